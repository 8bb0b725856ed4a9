//! A keyspace in a report: levels, filters, reads saved, hot tables, advice.

use tamis::{FilterLedger, LevelStats, TableStats};

use super::super::filter::advise::{Advice, RangeAdvice};
use super::super::filters::{average, averaged};
use super::super::stats;
use super::charts::{Bar, Curve, Group, Rate, Unit, bars, curves, rates};
use super::facts::{Facts, KeyspaceFacts};
use super::parts::{capital, figure, hint, name_of, paragraph, prose};
use super::saved::{Cost, Saved};
use crate::args::{Common, FilterUse};
use crate::markup::{Markup, element, words};
use crate::table::{Table, number, text};
use crate::text::{Decimal, count, counted, percent, size};

/// Hot tables that are listed.
const HOT: usize = 10;
/// Tables that cannot be read and are listed.
const MOST_UNREADABLE: usize = 20;
/// Entries of a keyspace for which the size of filters matters.
const LEAST_ENTRIES: u64 = 1000;
/// Most bits per key that have a place in the picture.
const MOST_BITS: f64 = 24.0;
/// Title of the advice.
const SIZES: &str = "Filters of other sizes";
/// Characters shown of a key.
const KEY_WIDTH: usize = 24;

/// The keyspaces in a table.
pub(super) fn overview(keyspaces: &[KeyspaceFacts]) -> Markup {
    let row = |facts: &KeyspaceFacts| {
        vec![
            name_of(&facts.stats.name),
            facts.keys.map_or_else(|| "–".to_owned(), count),
            size(facts.stats.size()),
            count(facts.tables()),
            average(facts.tables_over_a_key()),
            format!("{:.4}", facts.absent_get().wasted_reads),
        ]
    };
    let columns = [
        text("keyspace").key(),
        number("keys, about"),
        number("size"),
        number("tables"),
        number("over a key"),
        number("reads per get of an absent key"),
    ];
    Table::new(columns, keyspaces.iter().map(row)).markup()
}

/// What gets cost, in a sentence.
pub(super) fn gets(facts: &KeyspaceFacts) -> String {
    let absent = facts.absent_get();
    let apart = if facts.stats.values.files > 0 { ", and one more if its value is kept apart" } else { "" };
    format!(
        "A get of an absent key asks {} and reads {} blocks on average; without filters it would read {}. A get of a key \
         that is in a table reads {} blocks{apart}.",
        averaged(absent.filters, "filter"),
        Decimal(absent.wasted_reads),
        average(facts.tables_over_a_key()),
        Decimal(facts.present_get())
    )
}

pub(super) fn of(common: &Common, facts: &Facts, keyspace: &KeyspaceFacts) -> Markup {
    let title = element("h2", &[], words(format_args!("Keyspace {}", name_of(&keyspace.stats.name))));
    let saved = facts.saved.as_ref().filter(|saved| saved.keyspace == keyspace.stats.name);
    let parts = [
        title,
        levels(keyspace),
        filters(keyspace, saved),
        saved.map_or_else(Markup::new, |saved| reads_saved(keyspace, saved)),
        hot_tables(common, keyspace, saved),
        advice(keyspace),
    ];
    element("section", &[("class", &"chapter")], parts.into_iter().collect())
}

fn levels(facts: &KeyspaceFacts) -> Markup {
    let filled: Vec<&LevelStats> = facts.stats.levels.iter().filter(|level| !level.tables.is_empty()).collect();
    let group = |(at, level): (usize, &&LevelStats)| {
        let mut end = 0.0;
        let ends = level.tables.iter().map(|table| {
            end += table.size as f64;
            end
        });
        let mut parts: Vec<f64> = ends.collect();
        parts.pop();
        let overlap = match (level.level, filled.get(at + 1)) {
            (0, _) if level.tables.len() > 1 => format!(", {} over one key", count(facts.most_over_one_key())),
            (1.., Some(next)) => format!(", each over {} below", Decimal(overlap(&level.tables, &next.tables))),
            _ => String::new(),
        };
        let note = format!("{} in {}{overlap}", size(level.size()), counted(level.tables.len() as u64, "table"));
        let bar = Bar { value: level.size() as f64, parts, is_hollow: false, note };
        Group { name: format!("level {}", level.level), bars: vec![bar] }
    };
    let groups: Vec<Group> = filled.iter().enumerate().map(group).collect();
    let caption = "Newest data above. A bar is divided into its tables where there is room. A read looks into one table of each level, and into every table of level 0 whose key range holds its key. 'Over one key': the most tables that share a key. Compacting a table rewrites the tables below that it overlaps.";
    let picture = figure("Levels", words(caption), bars("Bytes by level", Unit::Bytes, &groups));
    let mut all = picture.and(stats::layout(&facts.stats, &facts.filters).markup());
    if !facts.unreadable.is_empty() {
        let rows = facts.unreadable.iter().take(MOST_UNREADABLE);
        let rows = rows.map(|(level, number, error)| vec![level.to_string(), number.to_string(), error.to_string()]);
        let table = Table::new([text("level").key(), number("table"), text("cannot be read").key()], rows);
        all = all.and(table.markup());
        let left = facts.unreadable.len().saturating_sub(MOST_UNREADABLE);
        if left > 0 {
            all = all.and(paragraph(format_args!("And {} more.", counted(left as u64, "table"))));
        }
    }
    if facts.gone > 0 {
        all = all.and(paragraph(format_args!(
            "{} replaced while the report was made, by the program that has the store open: filters are without them.",
            counted(facts.gone, "table")
        )));
    }
    all
}

/// Tables of the level below that the key range of a table meets, on average.
fn overlap(tables: &[TableStats], below: &[TableStats]) -> f64 {
    let met = tables.iter().map(|table| {
        let begin = below.partition_point(|other| other.largest < table.smallest);
        let end = below.partition_point(|other| other.smallest <= table.largest);
        end.saturating_sub(begin) as f64
    });
    met.sum::<f64>() / tables.len().max(1) as f64
}

/// Why no table was read in this run, if keys were looked up.
fn unread(saved: Option<&Saved>) -> Option<String> {
    let look_ups = saved.map(|saved| saved.all().look_ups).filter(|look_ups| *look_ups > 0)?;
    Some(format!(
        "{} reached no table: the keys are in the log, or outside the key ranges of all tables.",
        counted(look_ups, "look-up")
    ))
}

fn filters(facts: &KeyspaceFacts, saved: Option<&Saved>) -> Markup {
    let row = |name: String, ledger: FilterLedger, expected: Option<f64>| {
        let measured = ledger.measured_rate().zip(ledger.reads.false_positive_interval());
        // What was asked decides how the filters' rates are weighted.
        let expected = ledger.expected_rate().or(expected);
        let by_bits =
            expected.map_or_else(|| "no usable filter".to_owned(), |rate| format!("{} expected", percent(Some(rate))));
        let note = match measured {
            Some((rate, _)) => format!("{by_bits}, {} measured", percent(Some(rate))),
            None => by_bits,
        };
        Rate { name, expected, measured: measured.map(|(rate, (low, high))| (rate, low, high)), note }
    };
    let levels = facts.stats.levels.iter().zip(&facts.filters).filter(|(level, _)| !level.tables.is_empty());
    let mut rows: Vec<Rate> = levels
        .map(|(level, filters)| row(format!("level {}", level.level), level.ledger(), filters.points.expected_rate()))
        .collect();
    let (ledger, all) = (facts.stats.ledger(), facts.total());
    if rows.len() > 1 {
        rows.push(row("all".to_owned(), ledger, all.points.expected_rate()));
    }
    let reads = ledger.reads;
    let measured = if reads.absent() > 0 {
        "Dot: as measured in this run, with its 95 % interval.".to_owned()
    } else if reads.look_ups() > 0 {
        "No filter was asked for a key that its table lacks, and so no rate is measured.".to_owned()
    } else {
        unread(saved).unwrap_or_else(|| {
            "Nothing was looked up, and so nothing is measured: `--keys-from FILE` looks keys of yours up.".to_owned()
        })
    };
    let caption = format!("Upright stroke: the rate that the filters' bits predict. {measured}");
    let mut markup = figure("Filters", prose(&caption), rates("False positives by level", &rows));
    if reads.look_ups() > 0 {
        markup = markup.and(stats::answers(&facts.stats).markup());
    }
    let mut notes = stats::notes(&all);
    if all.ranges.are_wanted() {
        let scan = stats::empty_scan(&facts.filters);
        notes.push(format!("{}.", capital(&scan.in_words("a scan of a short empty range", "range filter"))));
    }
    markup.and(notes.into_iter().map(hint).collect())
}

fn reads_saved(facts: &KeyspaceFacts, saved: &Saved) -> Markup {
    let ledger = facts.stats.ledger();
    let (reads, all) = (ledger.reads, saved.all());
    let bar = |value: u64, is_hollow, how: &str| Bar {
        value: value as f64,
        parts: Vec::new(),
        is_hollow,
        note: format!("{} {how}", count(value)),
    };
    let kinds = [("absent keys", saved.absent), ("present keys", saved.present)];
    let groups = kinds.iter().filter(|(_, cost)| cost.look_ups > 0).map(|(name, cost)| Group {
        name: (*name).to_owned(),
        bars: vec![bar(cost.without_filters, true, "without filters"), bar(cost.with_filters, false, "with filters")],
    });
    let groups: Vec<Group> = groups.collect();
    let caption = format!(
        "{} of keys from {}, each searched with the filters asked and not believed: one run counts both. Nothing was cached, \
         and every block that was needed counts as a read.",
        counted(all.look_ups, "look-up"),
        name_of(&saved.source)
    );
    let picture = figure("Reads saved", words(caption), bars("Blocks read", Unit::Count("blocks read"), &groups));
    let row = |name: &str, cost: Cost| {
        let per_key = |blocks: u64| format!("{:.4}", blocks as f64 / cost.look_ups.max(1) as f64);
        vec![
            name.to_owned(),
            count(cost.look_ups),
            count(cost.without_filters),
            count(cost.with_filters),
            percent(cost.share_saved()),
            per_key(cost.without_filters),
            per_key(cost.with_filters),
        ]
    };
    let columns = [
        text("look-ups of").key(),
        number("look-ups"),
        number("blocks read without filters"),
        number("with filters"),
        number("saved"),
        number("per look-up without"),
        number("per look-up with"),
    ];
    let rows = kinds.iter().map(|(name, cost)| row(name, *cost)).chain([row("all", all)]);
    let mut said = format!(
        "The store's counters say {} block reads without filters, and {} with them.",
        count(reads.block_reads),
        count(reads.block_reads - reads.avoidable_reads)
    );
    if reads.absent() > 0 {
        let were = if reads.false_positives == 1 { "was" } else { "were" };
        said.push_str(&format!(
            " The filters' bits predict {}; {} {were} measured.",
            counted(whole(ledger.expected_false_positives), "false positive"),
            count(reads.false_positives)
        ));
    }
    let by_level = stats::costs(&facts.stats, FilterUse::Shadow).markup();
    let mut markup = picture.and(Table::new(columns, rows).markup()).and(paragraph(said)).and(by_level);
    if saved.failed > 0 {
        let rows = saved.failures.iter().map(|(key, why)| vec![key.clone(), why.clone()]);
        let head = format!("{} failed: key", counted(saved.failed, "look-up"));
        markup = markup.and(Table::new([text(head).key(), text("why").key()], rows).markup());
    }
    markup
}

fn hot_tables(common: &Common, facts: &KeyspaceFacts, saved: Option<&Saved>) -> Markup {
    let title = element("h3", &[], words("Hot tables"));
    let tables = facts.stats.levels.iter().flat_map(|level| level.tables.iter().map(|table| (level.level, table)));
    let mut hot: Vec<(usize, &TableStats)> = tables.filter(|(_, table)| table.reads().look_ups() > 0).collect();
    if hot.is_empty() {
        let counts = "Counts begin when a store is opened and are not kept in it: a program has those of its own reads in \
                      `Db::stats`. `--keys-from FILE` looks keys of yours up, and counts these.";
        let why = unread(saved).unwrap_or_else(|| counts.to_owned());
        return title.and(hint(format_args!("No table has been read in this run. {why}")));
    }
    let all: u64 = hot.iter().map(|(_, table)| table.reads().look_ups()).sum();
    hot.sort_by_key(|(_, table)| std::cmp::Reverse((table.reads().look_ups(), table.number)));
    let row = |(level, table): &(usize, &TableStats)| {
        let reads = table.reads();
        vec![
            table.number.to_string(),
            level.to_string(),
            common.form().show_short(&table.smallest, KEY_WIDTH),
            common.form().show_short(&table.largest, KEY_WIDTH),
            count(reads.look_ups()),
            percent(Some(reads.look_ups() as f64 / all as f64)),
            count(reads.negatives),
            count(reads.false_positives),
            count(reads.block_reads - reads.avoidable_reads),
        ]
    };
    let columns = [
        text("table").key(),
        number("level"),
        text("from key"),
        text("to key"),
        number("look-ups"),
        number("of all"),
        number("filter said no"),
        number("wrongly maybe"),
        number("blocks read"),
    ];
    let shown = match hot.len() {
        n if n > HOT => format!("The {HOT} most asked of {}, in the look-ups of this run.", counted(n as u64, "table")),
        _ => "Those that were asked in the look-ups of this run.".to_owned(),
    };
    title.and(paragraph(shown)).and(Table::new(columns, hot.iter().take(HOT).map(row)).markup())
}

fn advice(facts: &KeyspaceFacts) -> Markup {
    let title = element("h3", &[], words(SIZES));
    if facts.entries() < LEAST_ENTRIES && facts.unreadable.is_empty() {
        let said = "No advice: of so few keys, filters of any size cost next to nothing.";
        return title.and(paragraph(said));
    }
    let Some(advice) = &facts.advice else {
        return title.and(paragraph("No advice: it needs all tables of the keyspace, and some cannot be read."));
    };
    let rebuild = "`kvtool filter rebuild --bits N` gives every run N bits per key; with `--allocate` it shares the same \
                   memory out. `kvtool filter advise` prints these tables.";
    let points = curve(facts, advice)
        .and(advice.runs_table().markup())
        .and(advice.choices_table().markup())
        .and(paragraph(advice.in_words()))
        .and(hint(rebuild));
    points.and(facts.ranges.as_ref().map_or_else(Markup::new, range_advice))
}

fn curve(facts: &KeyspaceFacts, advice: &Advice) -> Markup {
    let rows = advice.rows();
    let points = |of: fn(&super::super::filter::advise::Row) -> f64| -> Vec<(f64, f64)> {
        rows.iter().map(|row| (f64::from(row.bits), of(row))).collect()
    };
    let (equal, shared) = (points(|row| row.wasted), points(|row| row.shared));
    if equal.iter().all(|(_, wasted)| *wasted <= 0.0) {
        let said = "No look-up missed in any run: filters of any size would save nothing.";
        return element("h3", &[], words(SIZES)).and(paragraph(said));
    }
    let differ = equal.iter().zip(&shared).any(|(a, b)| a.1 - b.1 > 0.02 * a.1);
    let mut lines = vec![Curve { name: "equal bits", is_dashed: false, points: equal }];
    if differ {
        lines.push(Curve { name: "shared out", is_dashed: true, points: shared });
    }
    let ticks: Vec<(f64, String)> = rows
        .iter()
        .filter(|row| row.bits.is_multiple_of(4))
        .map(|row| (f64::from(row.bits), size(row.memory)))
        .collect();
    let now = facts.total().points.bits_per_key().filter(|bits| *bits <= MOST_BITS);
    let now = now.map(|bits| (bits, advice.wasted_now()));
    let caption = "Reads that find nothing, on a scale of powers of ten, against the size of filters. Shared out, small \
                   runs get more bits and large ones fewer, in the same memory.";
    let picture = curves(
        "Wasted reads against bits per key",
        ["filters: bits per key, and memory", "wasted reads per look-up (logarithmic)"],
        &ticks,
        &lines,
        now,
    );
    figure(SIZES, words(caption), picture)
}

fn range_advice(ranges: &RangeAdvice) -> Markup {
    let title = element("h3", &[], words("Range filters"));
    let said = "A range filter lets scans skip tables that have nothing of their range. Blocks are per scan of a short empty \
                range that lies in the key range of every run. `kvtool filter rebuild --range-filter BITS` adds them.";
    title.and(hint(said)).and(ranges.choices_table().markup()).and(ranges.runs_table().markup())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of reads")]
fn whole(n: f64) -> u64 {
    n.round() as u64
}
