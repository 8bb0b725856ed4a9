//! [`Finding`]: what a report draws attention to, with what to do about it.

use super::super::filters::averaged;
use super::facts::{Facts, KeyspaceFacts};
use super::parts::name_of;
use crate::text::{Decimal, count, counted, size};

/// Share of tombstones among entries that is worth a compaction, and how many there are at least.
const MANY_TOMBSTONES: f64 = 0.2;
const LEAST_TOMBSTONES: u64 = 1000;
/// Runs in level 0 from which on a compaction is due.
const MANY_RUNS: usize = 12;
/// Of value files, the share that nothing points to.
const MUCH_DEAD: f64 = 0.3;
/// Bytes of a keyspace from which on filters of other sizes are worth a thought.
const LEAST_SIZE: u64 = 16 << 20;
/// Wasted reads per look-up that are worth a change of filters, and the share that it must save.
const LEAST_WASTE: f64 = 0.005;
const LEAST_GAIN: f64 = 0.25;
/// Blocks that range filters save, per empty range.
const LEAST_RANGE_GAIN: f64 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    Damage,
    ActOn,
    Consider,
}

impl Weight {
    pub(super) fn name(self) -> &'static str {
        match self {
            Weight::Damage => "Damage",
            Weight::ActOn => "Worth acting on",
            Weight::Consider => "Worth considering",
        }
    }
}

pub(super) struct Finding {
    pub(super) weight: Weight,
    pub(super) what: String,
    /// Names no file and no key: it is [`prose`](super::parts::prose).
    pub(super) cure: String,
}

/// The findings, the gravest first.
pub(super) fn of(facts: &Facts) -> Vec<Finding> {
    let mut findings = of_store(facts);
    for keyspace in &facts.keyspaces {
        findings.extend(of_keyspace(facts, keyspace));
    }
    findings.sort_by_key(|finding| finding.weight);
    findings
}

fn of_store(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |weight, what: String, cure: &str| findings.push(Finding { weight, what, cure: cure.to_owned() });
    let stats = &facts.stats;
    if let Some(saved) = facts.saved.as_ref().filter(|saved| saved.failed > 0) {
        find(
            Weight::Damage,
            format!("{} of your keys met damage.", counted(saved.failed, "look-up")),
            "`kvtool verify` lists all damage; `kvtool repair` mends the store and lists what is lost.",
        );
    }
    if let Some(error) = &stats.background_error {
        find(Weight::ActOn, format!("Background work fails: {error}."), "Mend the cause; the work is tried again.");
    }
    if stats.compaction_debt > 0 {
        find(
            Weight::ActOn,
            format!("Compactions are behind by {}.", size(stats.compaction_debt)),
            "The program that has the store open does them by itself; `kvtool compact` does them now.",
        );
    }
    if !stats.clock_lag.is_zero() {
        find(
            Weight::ActOn,
            format!(
                "The clock is {} s behind the latest time that the store has seen.",
                Decimal(stats.clock_lag.as_secs_f64())
            ),
            "Set it right: deadlines before that time count as past.",
        );
    }
    let obsolete = facts.disk.obsolete;
    if obsolete.count > 0 {
        find(
            Weight::Consider,
            format!(
                "{} of {} belong to no version of the store.",
                counted(obsolete.count, "file"),
                size(obsolete.bytes)
            ),
            "A program that has it open may be writing or still reading them; otherwise they go when it is next opened.",
        );
    }
    findings
}

fn of_keyspace(facts: &Facts, keyspace: &KeyspaceFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let within = match facts.keyspaces.len() {
        1 => String::new(),
        _ => format!("Keyspace {}: ", name_of(&keyspace.stats.name)),
    };
    let mut find = |weight, what: String, cure: String| {
        let what = format!("{within}{what}");
        findings.push(Finding { weight, what, cure });
    };
    if !keyspace.unreadable.is_empty() {
        find(
            Weight::Damage,
            format!("{} cannot be read: table {}.", counted(keyspace.unreadable.len() as u64, "table"), {
                listed(&keyspace.unreadable.iter().map(|(_, number, _)| *number).collect::<Vec<_>>())
            }),
            "`kvtool verify` lists all damage; `kvtool repair` mends the store and lists what is lost.".to_owned(),
        );
    }
    let total = keyspace.total();
    let damaged = total.points.damaged + total.ranges.damaged;
    if damaged > 0 {
        find(
            Weight::Damage,
            format!(
                "{} damaged, and let every read through: table {}.",
                are(damaged, "filter"),
                listed(&keyspace.damaged_filters)
            ),
            "`kvtool filter rebuild` makes new ones; the data stay as they are.".to_owned(),
        );
    }
    let levels = || keyspace.stats.levels.iter();
    let excessive = levels().flat_map(|level| &level.tables).filter(|table| table.ledger.is_excessive()).count() as u64;
    if excessive > 0 {
        find(
            Weight::ActOn,
            format!("the filters of {} have more false positives than by design.", counted(excessive, "table")),
            "Either the same absent keys are looked up repeatedly, or `kvtool filter rebuild --all` is due.".to_owned(),
        );
    }
    if total.points.none > 0 {
        find(
            Weight::ActOn,
            format!("{} without a filter: each look-up of an absent key reads a block there.", {
                counted(total.points.none, "table")
            }),
            "`kvtool filter rebuild --bits 10` adds filters, if the program looks up single keys.".to_owned(),
        );
    }
    let (entries, tombstones) = (keyspace.entries(), keyspace.tombstones());
    if tombstones >= LEAST_TOMBSTONES && tombstones as f64 >= MANY_TOMBSTONES * entries as f64 {
        find(
            Weight::ActOn,
            format!("{} of {} entries are tombstones, which scans step over.", count(tombstones), count(entries)),
            "`kvtool compact` drops them; `delete-range` leaves none.".to_owned(),
        );
    }
    let runs = levels().find(|level| level.level == 0).map_or(0, |level| level.tables.len());
    if runs > MANY_RUNS {
        find(
            Weight::ActOn,
            format!(
                "level 0 has {}, of which up to {} are over one key: a read of it looks into each of these.",
                counted(runs as u64, "table"),
                count(keyspace.most_over_one_key())
            ),
            "`kvtool compact` merges them; the program may be writing faster than it compacts.".to_owned(),
        );
    }
    let values = keyspace.stats.values;
    let dead = values.size.saturating_sub(values.live);
    if values.size > 0 && dead as f64 > MUCH_DEAD * values.size as f64 {
        find(
            Weight::Consider,
            format!("{} of {} in value files are dead.", size(dead), size(values.size)),
            "Compactions free them; `kvtool compact` does now.".to_owned(),
        );
    }
    let is_large = keyspace.stats.size() >= LEAST_SIZE;
    if let Some(advice) = keyspace.advice.as_ref().filter(|_| is_large) {
        let (now, memory) = (advice.wasted_now(), advice.bytes());
        // The best choice that takes no more memory than the filters that there are.
        let choice =
            advice.rows().into_iter().filter(|row| row.memory <= memory).min_by(|a, b| a.shared.total_cmp(&b.shared));
        if let Some(row) = choice.filter(|row| now >= LEAST_WASTE && row.shared <= (1.0 - LEAST_GAIN) * now) {
            find(
                Weight::Consider,
                format!(
                    "in the same memory, filters shared out among the levels would waste {} reads in 100 look-ups, not {}.",
                    Decimal(100.0 * row.shared),
                    Decimal(100.0 * now)
                ),
                format!("`kvtool filter rebuild --bits {} --allocate`.", row.bits),
            );
        }
    }
    // The advice is on ranges within the key ranges of all runs.
    let gain = keyspace.ranges.as_ref().and_then(|ranges| ranges.gain());
    if let Some((bytes, without, with)) = gain.filter(|_| is_large && !total.ranges.are_wanted()) {
        let now = keyspace.tables_over_a_key();
        let then = now * with / without.max(1.0);
        if now - then >= LEAST_RANGE_GAIN {
            find(
                Weight::Consider,
                format!(
                    "a scan of a short empty range reads {} for nothing, and with range filters {then:.2}, for {} of memory.",
                    averaged(now, "block"),
                    size(bytes)
                ),
                "`kvtool filter rebuild --range-filter 12`, if the program scans short ranges of data beyond the cache."
                    .to_owned(),
            );
        }
    }
    findings
}

/// "1 filter is", "2 filters are".
fn are(n: u64, noun: &str) -> String {
    format!("{} {}", counted(n, noun), if n == 1 { "is" } else { "are" })
}

/// The first few numbers.
fn listed(numbers: &[u64]) -> String {
    const MOST: usize = 8;
    let shown: Vec<String> = numbers.iter().take(MOST).map(u64::to_string).collect();
    let more = if numbers.len() > MOST { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}
