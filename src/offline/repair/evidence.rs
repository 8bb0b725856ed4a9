//! Which tables are alive, when no manifest says so: a pure function of what tables say of each
//! other.
//!
//! See the module [`repair`](super) for the reasons.

use std::collections::{BTreeMap, BTreeSet};

use crate::sorted::table::Origin;

/// A table that can be read, at least in part.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) number: u64,
    /// Whether all of it can be read.
    pub(super) is_whole: bool,
    /// Whether a manifest says that it was added to the store.
    pub(super) is_installed: bool,
    pub(super) smallest: Vec<u8>,
    pub(super) largest: Vec<u8>,
    pub(super) origin: Origin,
}

/// What becomes of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Live,
    /// Something else has taken its place.
    Dead,
    /// All that it holds is, or was, in the tables that it was made from, which are all there.
    Redundant,
    /// It was replaced, but not all of what replaced it is there; or it was never replaced, and
    /// something else is missing.
    Uncertain,
}

/// Decides about each of `candidates`. `dead` are tables that a manifest says were removed,
/// `is_there` tells whether the directory has a file of that number.
pub(super) fn decide(
    candidates: &[Candidate],
    dead: &BTreeSet<u64>,
    is_there: impl Fn(u64) -> bool,
) -> BTreeMap<u64, Fate> {
    let by_number: BTreeMap<u64, &Candidate> = candidates.iter().map(|table| (table.number, table)).collect();
    let mut dead = all_dead(candidates, &by_number, dead, &is_there);
    // For each table the tables that were made from it, and whether they replace it.
    let mut made_from: BTreeMap<u64, Vec<(&Candidate, bool)>> = BTreeMap::new();
    for table in candidates {
        for input in table.origin.inputs.iter().filter(|input| by_number.contains_key(&input.number)) {
            made_from.entry(input.number).or_default().push((table, input.is_replaced));
        }
    }
    let mut redundant: BTreeSet<u64> = BTreeSet::new();
    for table in candidates.iter().filter(|table| !dead.contains(&table.number)) {
        let inputs: Vec<&&Candidate> =
            table.origin.inputs.iter().filter_map(|input| by_number.get(&input.number)).collect();
        let are_there = !inputs.is_empty()
            && inputs.len() == table.origin.inputs.len()
            && inputs.iter().all(|input| is_there(input.number) && !dead.contains(&input.number));
        if table.is_installed || table.origin.by_repair || !are_there {
            continue;
        }
        // With damaged inputs, the outputs are better, but only if they are all there. If they are
        // not, the compaction has not come to its end.
        let is_unfinished = || {
            replaced(&table.origin).any(|number| {
                let outputs = made_from[&number].iter().map(|(output, _)| *output);
                !is_covered(by_number[&number], outputs.filter(|output| !dead.contains(&output.number)))
            })
        };
        if inputs.iter().all(|input| input.is_whole) || is_unfinished() {
            redundant.insert(table.number);
        }
    }
    let mut uncertain = BTreeSet::new();
    loop {
        let died = dead.len();
        for (&number, tables) in &made_from {
            let alive = |(table, _): &&(&Candidate, bool)| !dead.contains(&table.number);
            let (kept, spare): (Vec<_>, Vec<_>) =
                tables.iter().filter(alive).partition(|(table, _)| !redundant.contains(&table.number));
            if dead.contains(&number) || !kept.iter().any(|(_, is_replaced)| *is_replaced) {
                continue;
            }
            let input = by_number[&number];
            if is_covered(input, kept.iter().map(|(table, _)| *table)) {
                dead.insert(number);
            } else if is_covered(input, kept.iter().chain(&spare).map(|(table, _)| *table)) {
                // An earlier stage of the same compaction seemed to have been for nothing.
                spare.iter().for_each(|(table, _)| _ = redundant.remove(&table.number));
                dead.insert(number);
            } else {
                uncertain.insert(number);
            }
        }
        if dead.len() == died {
            break;
        }
    }
    let fate = |number: u64| match number {
        number if dead.contains(&number) => Fate::Dead,
        number if redundant.contains(&number) => Fate::Redundant,
        number if uncertain.contains(&number) => Fate::Uncertain,
        _ => Fate::Live,
    };
    candidates.iter().map(|table| (table.number, fate(table.number))).collect()
}

/// What is dead for certain.
fn all_dead(
    candidates: &[Candidate],
    by_number: &BTreeMap<u64, &Candidate>,
    dead: &BTreeSet<u64>,
    is_there: &impl Fn(u64) -> bool,
) -> BTreeSet<u64> {
    let mut dead = dead.clone();
    for table in candidates {
        let inputs = &table.origin.inputs;
        if is_unfinished(&table.origin, table.is_installed, is_there) {
            dead.insert(table.number);
            continue;
        }
        dead.extend(&table.origin.dead);
        if table.is_installed || table.origin.by_repair {
            dead.extend(replaced(&table.origin));
        }
        // What a table was made from was added before: what that replaces is gone.
        let made_from = inputs.iter().filter_map(|input| by_number.get(&input.number));
        made_from.for_each(|input| dead.extend(replaced(&input.origin)));
    }
    dead
}

/// Whether a repair that was interrupted has left the table: nothing that it says has come to pass,
/// and this repair makes it again.
pub(super) fn is_unfinished(origin: &Origin, is_installed: bool, is_there: impl Fn(u64) -> bool) -> bool {
    origin.by_repair && !is_installed && origin.inputs.iter().all(|input| is_there(input.number))
}

fn replaced(origin: &Origin) -> impl Iterator<Item = u64> {
    origin.inputs.iter().filter(|input| input.is_replaced).map(|input| input.number)
}

/// Whether the ranges that `tables` stand for cover all keys of `input`.
fn is_covered<'a>(input: &Candidate, tables: impl Iterator<Item = &'a Candidate>) -> bool {
    let ranges = tables.map(|table| (table.origin.from.as_deref(), table.origin.to.as_deref()));
    let mut ranges: Vec<_> = ranges.collect();
    ranges.sort_unstable();
    // Every key before it is covered.
    let mut covered: &[u8] = &input.smallest;
    for (from, to) in ranges {
        if from.is_some_and(|from| from > covered) {
            return false;
        }
        match to {
            None => return true,
            Some(to) => covered = covered.max(to),
        }
    }
    *covered > *input.largest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sorted::table::Input;

    /// A table of the keys `a` to `z` that was made from `inputs`, of which it replaces those that
    /// are marked.
    fn table(number: u64, inputs: &[(u64, bool)]) -> Candidate {
        let inputs = inputs.iter().map(|&(number, is_replaced)| Input { number, is_replaced }).collect();
        Candidate {
            number,
            is_whole: true,
            is_installed: false,
            smallest: b"a".to_vec(),
            largest: b"z".to_vec(),
            origin: Origin { inputs, ..Origin::default() },
        }
    }

    fn of(mut table: Candidate, from: Option<&str>, to: Option<&str>) -> Candidate {
        table.origin.from = from.map(|key| key.as_bytes().to_vec());
        table.origin.to = to.map(|key| key.as_bytes().to_vec());
        table
    }

    #[track_caller]
    fn check(candidates: &[Candidate], expected: &[(u64, Fate)]) {
        let there = |number: u64| candidates.iter().any(|table| table.number == number);
        let fates = decide(candidates, &BTreeSet::new(), there);
        assert_eq!(fates.into_iter().collect::<Vec<_>>(), expected);
    }

    use Fate::{Dead, Live, Redundant, Uncertain};

    #[test]
    fn output_of_inputs_that_are_all_there_is_redundant() {
        check(
            &[table(1, &[]), table(2, &[]), table(3, &[(1, true), (2, true)])],
            &[(1, Live), (2, Live), (3, Redundant)],
        );
    }

    #[test]
    fn input_that_was_left_behind_is_dead() {
        check(&[table(1, &[]), table(3, &[(1, true), (2, true)])], &[(1, Dead), (3, Live)]);
        let mut damaged = table(2, &[]);
        damaged.is_whole = false;
        check(&[table(1, &[]), damaged, table(3, &[(1, true), (2, true)])], &[(1, Dead), (2, Dead), (3, Live)]);
    }

    #[test]
    fn inputs_stay_if_one_is_damaged_and_outputs_are_missing() {
        let mut damaged = table(2, &[]);
        damaged.is_whole = false;
        let first = of(table(3, &[(1, true), (2, true)]), None, Some("k"));
        let inputs = [table(1, &[]), damaged];
        let expected = [(1, Live), (2, Live), (3, Redundant)];
        check(&[&inputs[..], std::slice::from_ref(&first)].concat(), &expected);
        let second = of(table(4, &[(1, true), (2, true)]), Some("k"), None);
        let expected = [(1, Dead), (2, Dead), (3, Live), (4, Live)];
        check(&[&inputs[..], &[first, second]].concat(), &expected);
    }

    #[test]
    fn input_is_dead_if_all_that_replaces_it_is_there_and_otherwise_uncertain() {
        let first = of(table(3, &[(1, true), (2, true)]), None, Some("k"));
        let second = of(table(4, &[(1, true), (2, true)]), Some("k"), None);
        check(&[table(1, &[]), first.clone(), second.clone()], &[(1, Dead), (3, Live), (4, Live)]);
        check(&[table(1, &[]), first], &[(1, Uncertain), (3, Live)]);
        check(&[table(1, &[]), second], &[(1, Uncertain), (4, Live)]);
        let gap = of(table(4, &[(1, true), (2, true)]), Some("l"), None);
        let first = of(table(3, &[(1, true), (2, true)]), None, Some("k"));
        check(&[table(1, &[]), first, gap], &[(1, Uncertain), (3, Live), (4, Live)]);
    }

    #[test]
    fn input_that_a_later_stage_reads_stays() {
        // Table 1 is read by two stages; the first one replaces table 2, which is gone.
        let first = of(table(3, &[(1, false), (2, true)]), None, Some("k"));
        check(&[table(1, &[]), first.clone()], &[(1, Live), (3, Live)]);
        // The second stage has replaced table 5, which is gone, and table 1.
        let second = of(table(4, &[(1, true), (5, true)]), Some("k"), None);
        check(&[table(1, &[]), first, second.clone()], &[(1, Dead), (3, Live), (4, Live)]);
        // The first stage had nothing to replace.
        let first = of(table(3, &[(1, false)]), None, Some("k"));
        check(&[table(1, &[]), first, second], &[(1, Dead), (3, Live), (4, Live)]);
    }

    #[test]
    fn what_a_table_knew_to_be_dead_is_dead() {
        let mut witness = table(9, &[]);
        witness.origin.dead = vec![1];
        check(&[table(1, &[]), table(3, &[(1, true)]), witness], &[(1, Dead), (3, Live), (9, Live)]);
    }

    #[test]
    fn inputs_of_an_input_are_dead() {
        // Table 3 replaces table 1, table 4 is made from table 3: so table 3 was in the store.
        let chain = [table(1, &[]), table(3, &[(1, true)]), table(4, &[(3, true)])];
        check(&chain, &[(1, Dead), (3, Live), (4, Redundant)]);
    }

    #[test]
    fn table_of_an_interrupted_repair_is_made_again() {
        let mut damaged = table(1, &[]);
        damaged.is_whole = false;
        let mut copy = table(3, &[(1, true)]);
        copy.origin.by_repair = true;
        copy.origin.dead = vec![1];
        check(&[damaged, copy.clone()], &[(1, Live), (3, Dead)]);
        check(&[copy], &[(3, Live)]);
    }
}
