//! Decides which tables are alive when no manifest says so: a pure function of what tables state
//! about each other.
//!
//! The module [`repair`](super) gives the reasons.

use std::collections::{BTreeMap, BTreeSet};

use crate::sorted::table::Origin;

/// A table that can be read at least in part, or that a manifest names.
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
    /// Other tables have replaced it.
    Dead,
    /// Everything in it is, or was, in its inputs, which all exist.
    Redundant,
    /// It was replaced, but not all tables that replaced it exist; or it was never replaced, and
    /// another file is missing.
    Uncertain,
}

/// Decides the fate of each of `candidates`. `dead` are tables that a manifest says were removed.
/// `exists` tells whether the directory has a file of that number.
pub(super) fn decide(
    candidates: &[Candidate],
    dead: &BTreeSet<u64>,
    exists: impl Fn(u64) -> bool,
) -> BTreeMap<u64, Fate> {
    let mut evidence = Evidence::new(candidates, dead, &exists);
    evidence.redundant = evidence.outputs_not_needed(&exists);
    evidence.settle_inputs();
    candidates.iter().map(|table| (table.number, evidence.fate(table.number))).collect()
}

/// What the tables state about each other, and what follows from it so far.
struct Evidence<'c> {
    by_number: BTreeMap<u64, &'c Candidate>,
    /// For each table, the tables made from it, and whether they replace it.
    made_from: BTreeMap<u64, Vec<(&'c Candidate, bool)>>,
    dead: BTreeSet<u64>,
    redundant: BTreeSet<u64>,
    uncertain: BTreeSet<u64>,
}

impl<'c> Evidence<'c> {
    /// Only what is certainly dead is decided.
    fn new(candidates: &'c [Candidate], dead: &BTreeSet<u64>, exists: &impl Fn(u64) -> bool) -> Evidence<'c> {
        let by_number: BTreeMap<u64, &Candidate> = candidates.iter().map(|table| (table.number, table)).collect();
        let mut made_from: BTreeMap<u64, Vec<(&Candidate, bool)>> = BTreeMap::new();
        for table in candidates {
            for input in table.origin.inputs.iter().filter(|input| by_number.contains_key(&input.number)) {
                made_from.entry(input.number).or_default().push((table, input.is_replaced));
            }
        }
        let dead = certainly_dead(candidates, &by_number, dead, exists);
        Evidence { by_number, made_from, dead, redundant: BTreeSet::new(), uncertain: BTreeSet::new() }
    }

    fn fate(&self, number: u64) -> Fate {
        match number {
            number if self.dead.contains(&number) => Fate::Dead,
            number if self.redundant.contains(&number) => Fate::Redundant,
            number if self.uncertain.contains(&number) => Fate::Uncertain,
            _ => Fate::Live,
        }
    }

    /// The outputs whose inputs serve as well, or better.
    fn outputs_not_needed(&self, exists: &impl Fn(u64) -> bool) -> BTreeSet<u64> {
        // By input: whether the outputs that are not dead do not cover it.
        let mut unfinished: BTreeMap<u64, bool> = BTreeMap::new();
        let mut redundant = BTreeSet::new();
        let alive = self.by_number.values().filter(|table| !self.dead.contains(&table.number));
        for table in alive.filter(|table| !table.is_installed && !table.origin.by_repair) {
            let Some(inputs) = self.inputs_alive(table, exists) else { continue };
            // If inputs are damaged, the outputs are better, but only if they all exist. If some
            // are missing, the compaction did not finish.
            let mut is_unfinished = || {
                replaced(&table.origin).any(|number| {
                    *unfinished.entry(number).or_insert_with(|| {
                        let outputs = self.made_from[&number].iter().map(|(output, _)| *output);
                        let outputs = outputs.filter(|output| !self.dead.contains(&output.number));
                        !is_covered(self.by_number[&number], outputs)
                    })
                })
            };
            if inputs.iter().all(|input| input.is_whole) || is_unfinished() {
                redundant.insert(table.number);
            }
        }
        redundant
    }

    /// The inputs of a table, if it has any, and all of them exist and are not dead.
    fn inputs_alive(&self, table: &Candidate, exists: &impl Fn(u64) -> bool) -> Option<Vec<&'c Candidate>> {
        let numbers = table.origin.inputs.iter().map(|input| input.number);
        let alive = numbers.map(|number| match self.by_number.get(&number) {
            Some(input) if exists(number) && !self.dead.contains(&number) => Some(*input),
            _ => None,
        });
        alive.collect::<Option<Vec<_>>>().filter(|inputs| !inputs.is_empty())
    }

    /// Decides about the tables from which others were made.
    fn settle_inputs(&mut self) {
        // The inputs to be looked at, in ascending order from `at` on, then from the first. A table
        // that dies or is not redundant any more has its inputs looked at again.
        let (mut due, mut at): (BTreeSet<u64>, u64) = (self.made_from.keys().copied().collect(), 0);
        while let Some(number) = due.range(at..).next().or(due.first()).copied() {
            due.remove(&number);
            at = number;
            let changed = self.settle_input(number);
            let inputs = changed.iter().flat_map(|table| &table.origin.inputs).map(|input| input.number);
            due.extend(inputs.filter(|input| self.made_from.contains_key(input)));
        }
    }

    /// Decides about one of them, by what is decided now. Returns the tables that have died by it,
    /// or are not redundant any more.
    fn settle_input(&mut self, number: u64) -> Vec<&'c Candidate> {
        let outputs = self.made_from[&number].iter().filter(|(table, _)| !self.dead.contains(&table.number));
        let (spare, kept): (Vec<_>, Vec<_>) =
            outputs.copied().partition(|(table, _)| self.redundant.contains(&table.number));
        if self.dead.contains(&number) || !kept.iter().any(|(_, is_replaced)| *is_replaced) {
            return Vec::new();
        }
        let input = self.by_number[&number];
        let tables = |outputs: &[(&'c Candidate, bool)]| outputs.iter().map(|(table, _)| *table).collect::<Vec<_>>();
        let (kept, spare) = (tables(&kept), tables(&spare));
        if is_covered(input, kept.iter().copied()) {
            self.dead.insert(number);
            return vec![input];
        }
        if is_covered(input, kept.iter().chain(&spare).copied()) {
            // An earlier stage of this compaction had seemed useless.
            spare.iter().for_each(|table| _ = self.redundant.remove(&table.number));
            self.dead.insert(number);
            return [vec![input], spare].concat();
        }
        self.uncertain.insert(number);
        Vec::new()
    }
}

/// The tables that are certainly dead.
fn certainly_dead(
    candidates: &[Candidate],
    by_number: &BTreeMap<u64, &Candidate>,
    dead: &BTreeSet<u64>,
    exists: &impl Fn(u64) -> bool,
) -> BTreeSet<u64> {
    let mut dead = dead.clone();
    for table in candidates {
        let inputs = &table.origin.inputs;
        if is_unfinished(&table.origin, table.is_installed, exists) {
            dead.insert(table.number);
            continue;
        }
        dead.extend(&table.origin.dead);
        if table.is_installed || table.origin.by_repair {
            dead.extend(replaced(&table.origin));
        }
        // The inputs of a table were in the store before: what they replaced is gone.
        let made_from = inputs.iter().filter_map(|input| by_number.get(&input.number));
        made_from.for_each(|input| dead.extend(replaced(&input.origin)));
    }
    dead
}

/// Whether an interrupted repair left the table: what it states did not happen, and this repair
/// makes it again.
pub(super) fn is_unfinished(origin: &Origin, is_installed: bool, exists: impl Fn(u64) -> bool) -> bool {
    origin.by_repair && !is_installed && origin.inputs.iter().all(|input| exists(input.number))
}

fn replaced(origin: &Origin) -> impl Iterator<Item = u64> {
    origin.inputs.iter().filter(|input| input.is_replaced).map(|input| input.number)
}

/// Whether the ranges for which `tables` stand in cover all keys of `input`.
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

    /// A table of the keys `a` to `z`, made from `inputs`: number, and whether the table replaces
    /// it.
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

    fn with_range(mut table: Candidate, from: Option<&str>, to: Option<&str>) -> Candidate {
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
        let first = with_range(table(3, &[(1, true), (2, true)]), None, Some("k"));
        let inputs = [table(1, &[]), damaged];
        let expected = [(1, Live), (2, Live), (3, Redundant)];
        check(&[&inputs[..], std::slice::from_ref(&first)].concat(), &expected);
        let second = with_range(table(4, &[(1, true), (2, true)]), Some("k"), None);
        let expected = [(1, Dead), (2, Dead), (3, Live), (4, Live)];
        check(&[&inputs[..], &[first, second]].concat(), &expected);
    }

    #[test]
    fn input_is_dead_if_all_that_replaces_it_is_there_and_otherwise_uncertain() {
        let first = with_range(table(3, &[(1, true), (2, true)]), None, Some("k"));
        let second = with_range(table(4, &[(1, true), (2, true)]), Some("k"), None);
        check(&[table(1, &[]), first.clone(), second.clone()], &[(1, Dead), (3, Live), (4, Live)]);
        check(&[table(1, &[]), first], &[(1, Uncertain), (3, Live)]);
        check(&[table(1, &[]), second], &[(1, Uncertain), (4, Live)]);
        let gap = with_range(table(4, &[(1, true), (2, true)]), Some("l"), None);
        let first = with_range(table(3, &[(1, true), (2, true)]), None, Some("k"));
        check(&[table(1, &[]), first, gap], &[(1, Uncertain), (3, Live), (4, Live)]);
    }

    #[test]
    fn input_that_a_later_stage_reads_stays() {
        // Two stages read table 1; the first one replaces table 2, which is gone.
        let first = with_range(table(3, &[(1, false), (2, true)]), None, Some("k"));
        check(&[table(1, &[]), first.clone()], &[(1, Live), (3, Live)]);
        // The second stage has replaced table 5, which is gone, and table 1.
        let second = with_range(table(4, &[(1, true), (5, true)]), Some("k"), None);
        check(&[table(1, &[]), first, second.clone()], &[(1, Dead), (3, Live), (4, Live)]);
        // The first stage had nothing to replace.
        let first = with_range(table(3, &[(1, false)]), None, Some("k"));
        check(&[table(1, &[]), first, second], &[(1, Dead), (3, Live), (4, Live)]);
    }

    #[test]
    fn table_that_another_one_lists_as_dead_is_dead() {
        let mut witness = table(9, &[]);
        witness.origin.dead = vec![1];
        check(&[table(1, &[]), table(3, &[(1, true)]), witness], &[(1, Dead), (3, Live), (9, Live)]);
    }

    #[test]
    fn inputs_of_an_input_are_dead() {
        // Table 3 replaces table 1, and table 4 is made from table 3; so table 3 was in the store.
        let chain = [table(1, &[]), table(3, &[(1, true)]), table(4, &[(3, true)])];
        check(&chain, &[(1, Dead), (3, Live), (4, Redundant)]);
    }

    /// One pass per table would take hours.
    #[test]
    fn each_table_of_a_long_chain_shows_that_the_one_before_is_dead() {
        const COUNT: u64 = 50_000;
        // Two tables replace each of the tables 2 to COUNT: one half of its keys each. Each table
        // shares one of the two with the next one. Of the very last table's inputs, one is missing.
        let half = |number: u64, inputs: &[(u64, bool)]| match number % 2 {
            0 => with_range(table(number, inputs), None, Some("k")),
            _ => with_range(table(number, inputs), Some("k"), None),
        };
        let inputs = (1..=COUNT).map(|number| table(number, &[]));
        let outputs = (1..COUNT).map(|number| half(COUNT + number, &[(number, true), (number + 1, true)]));
        let last = half(2 * COUNT, &[(COUNT, true), (3 * COUNT, true)]);
        let candidates: Vec<Candidate> = inputs.chain(outputs).chain([last]).collect();
        let fates = decide(&candidates, &BTreeSet::new(), |number| number <= 2 * COUNT);
        let dead = fates.iter().filter(|(_, fate)| **fate == Dead).count() as u64;
        assert_eq!((dead, fates[&1]), (COUNT - 1, Uncertain));
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
