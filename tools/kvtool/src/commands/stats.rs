//! `stats`: levels, filters and memory of a store, and what reads cost.

use serde_json::{Value, json};
use tamis::filter::RangeFilterState;
use tamis::{FilterLedger, KeyspaceStats, LevelStats, ReadOptions, ReadStats};

use super::filters::{EmptyRead, FilterTotals, filters_by_level};
use super::look_up::{look_up_all, scan_all};
use super::store::{existing_keyspace, open_read_only, stats_of};
use super::view::View;
use crate::args::{Common, FilterUse, Stats};
use crate::failure::Result;
use crate::output::{Output, json_ledger, say};
use crate::table::{Column, Table, number, text};
use crate::text::{count, counted, percent, size};

pub(crate) fn run(common: &Common, args: Stats) -> Result<()> {
    common.form_needs("--keys-from or --ranges-from", args.keys_from.is_some() || args.ranges_from.is_some())?;
    let db = open_read_only(&args.db, common)?;
    let (options, form) = (ReadOptions::new().filters(args.filters.into()), common.form());
    let (mut looked_up, mut scanned) = (None, None);
    if let Some(file) = &args.keys_from {
        looked_up = Some(look_up_all(
            &View::of(common, &db, &existing_keyspace(&db, common)?),
            file,
            form,
            options,
            |_, _| Ok(()),
        )?);
    }
    if let Some(file) = &args.ranges_from {
        scanned = Some(scan_all(&existing_keyspace(&db, common)?, file, form, options)?);
    }
    let stats = stats_of(&db, common)?;
    if args.prometheus {
        let mut output = Output::new();
        output.write(stats.to_prometheus().as_bytes())?;
        return output.finish();
    }
    let mut filters = Vec::new();
    for keyspace in &stats.keyspaces {
        filters.push(filters_by_level(db.path(), keyspace)?);
    }
    let mut output = Output::new();
    if common.json() {
        let keyspaces: Vec<Value> =
            stats.keyspaces.iter().zip(&filters).map(|(keyspace, filters)| keyspace_json(keyspace, filters)).collect();
        output.json(json!({
            "last_seqno": stats.last_seqno,
            "flushed_seqno": stats.flushed_seqno,
            "memory": {
                "limit": stats.memory.usage.limit,
                "used": stats.memory.usage.total(),
                "memtables": stats.memory.memtables,
                "pool": stats.memory.pool,
                "cache": stats.memory.cache,
                "cache_limit": stats.memory.cache_limit,
                "filters_and_indexes": stats.memory.filters_and_indexes,
            },
            "reads": json_ledger(&stats.ledger()),
            "warnings": warnings(&stats),
            "keyspaces": keyspaces,
        }))?;
        return output.finish();
    }
    for (keyspace, filters) in stats.keyspaces.iter().zip(&filters) {
        output.line(format_args!("keyspace {}", keyspace.name))?;
        output.table(common, &layout(keyspace, filters))?;
        output.line("")?;
        output.sentence(look_up(filters).in_words("a look-up of an absent key", "filter"))?;
        if filters.iter().any(|filters| filters.ranges.are_wanted()) {
            output.sentence(empty_scan(filters).in_words("a scan of a short empty range", "range filter"))?;
        }
        output.line("")?;
        let ranges = keyspace.range_deletes;
        if ranges.in_memory + ranges.in_tables > 0 {
            output.sentence(format_args!(
                "range deletes: {} in memory, {} in {} of {}",
                count(ranges.in_memory),
                count(ranges.in_tables),
                counted(ranges.tables, "table"),
                size(ranges.size)
            ))?;
            output.line("")?;
        }
        let values = keyspace.values;
        if values.files > 0 {
            output.line(format_args!(
                "values apart: {} in {} of {}, {} of them in use",
                counted(values.values, "value"),
                counted(values.files, "value file"),
                size(values.size),
                size(values.live)
            ))?;
            output.line("")?;
        }
        if looked_up.is_some() {
            output.table(common, &answers(keyspace))?;
            output.line("")?;
        }
        if keyspace.ledger().reads.range_probes > 0 {
            output.table(common, &range_answers(keyspace))?;
            output.line("")?;
        }
        if looked_up.is_some() || scanned.is_some() {
            output.table(common, &costs(keyspace, args.filters))?;
            output.line("")?;
        }
    }
    let all: FilterTotals = filters.iter().flatten().copied().sum();
    for note in notes(&all) {
        output.sentence(note)?;
        output.line("")?;
    }
    for warning in warnings(&stats) {
        output.warning(warning)?;
        output.line("")?;
    }
    let memory = &stats.memory;
    let rows = [
        ("all, within the limit", memory.usage.total()),
        ("limit", memory.usage.limit),
        ("memtables", memory.memtables),
        ("kept for the next memtable", memory.pool),
        ("cached blocks", memory.cache),
        ("limit of the cache", memory.cache_limit),
        // A table is opened by the first read that reaches it.
        ("filters and indexes of opened tables", memory.filters_and_indexes),
    ];
    let rows = rows.map(|(what, bytes)| (what, size(bytes as u64)));
    output.table(common, &Table::of_pairs([text("memory"), number("bytes")], rows))?;
    output.line("")?;
    output.line(format_args!(
        "last sequence number {}, in tables up to {}",
        count(stats.last_seqno),
        count(stats.flushed_seqno)
    ))?;
    output.finish()?;
    if looked_up.is_none() && scanned.is_none() {
        say(
            "This run read no keys; --keys-from FILE looks keys up first, --ranges-from FILE scans ranges, and both show what \
             the reads cost.",
        );
    }
    if let Some(summary) = looked_up {
        summary.say(&stats.reads());
    }
    if let Some(summary) = scanned {
        summary.say(&stats.reads());
    }
    Ok(())
}

/// Why tables have no usable filter.
pub(super) fn notes(filters: &FilterTotals) -> Vec<String> {
    let none = (filters.points.none > 0).then(|| {
        format!(
            "{} without a filter: the keyspace's policy or budget gave none when they were written (`kvtool keyspaces`); \
             `kvtool filter rebuild --bits N` adds one.",
            counted(filters.points.none, "table")
        )
    });
    let damaged = (filters.points.damaged > 0).then(|| {
        format!(
            "{} with a damaged filter, which answers \"maybe\": `kvtool sst` shows the reason, `kvtool filter rebuild` repairs it.",
            counted(filters.points.damaged, "table")
        )
    });
    let declined = (filters.ranges.declined > 0).then(|| {
        format!(
            "{} without a range filter, since it would say \"maybe\" to more than a quarter of short empty ranges \
             (`kvtool sst`).",
            counted(filters.ranges.declined, "table")
        )
    });
    let damaged_ranges = (filters.ranges.damaged > 0).then(|| {
        format!(
            "{} with a damaged range filter, which answers \"maybe\": `kvtool sst` shows the reason, `kvtool filter \
             rebuild` repairs it.",
            counted(filters.ranges.damaged, "table")
        )
    });
    none.into_iter().chain(damaged).chain(declined).chain(damaged_ranges).collect()
}

/// What the levels cost a look-up.
pub(super) fn look_up(filters: &[FilterTotals]) -> EmptyRead {
    EmptyRead::through(filters.iter().map(|filters| &filters.points))
}

/// What the levels cost a scan.
pub(super) fn empty_scan(filters: &[FilterTotals]) -> EmptyRead {
    EmptyRead::through(filters.iter().map(|filters| &filters.ranges))
}

/// Content of the levels. Range filters are listed where some table was to have one.
pub(super) fn layout(keyspace: &KeyspaceStats, filters: &[FilterTotals]) -> Table {
    let with_ranges = filters.iter().any(|filters| filters.ranges.are_wanted());
    let bits = |bits: Option<f64>| bits.map_or_else(|| "–".into(), |bits| format!("{bits:.2}"));
    let row = |name: String, level: &LevelStats, filters: &FilterTotals| {
        let mut row = vec![
            name,
            count(level.tables.len() as u64),
            size(level.size()),
            count(level.entries()),
            count(level.tables.iter().map(|table| table.tombstones).sum()),
            count(level.tables.iter().map(|table| table.expiring).sum()),
            filters.points.to_string(),
            bits(filters.points.bits_per_key()),
            percent(filters.points.expected_rate()),
        ];
        if with_ranges {
            let ranges = &filters.ranges;
            row.extend([ranges.to_string(), bits(ranges.bits_per_key()), percent(ranges.expected_rate())]);
        }
        row
    };
    let levels = keyspace.levels.iter().zip(filters).filter(|(level, _)| !level.tables.is_empty());
    let mut rows: Vec<_> = levels.map(|(level, filters)| row(level.level.to_string(), level, filters)).collect();
    let mut all = LevelStats::default();
    all.tables.extend(keyspace.levels.iter().flat_map(|level| level.tables.iter().cloned()));
    rows.push(row("all".into(), &all, &filters.iter().copied().sum()));
    let mut columns = vec![
        text("level").key(),
        number("tables"),
        number("size").key(),
        number("entries"),
        number("tombstones").detail(),
        number("expiring").detail(),
        number("filters"),
        number("bits per key"),
        number("expected false").key(),
    ];
    if with_ranges {
        columns.extend([number("range filters"), number("bits per key").detail(), number("predicted false")]);
    }
    Table::new(columns, rows)
}

/// The filters' answers by level, and how many were right.
pub(super) fn answers(keyspace: &KeyspaceStats) -> Table {
    let row = |ledger: FilterLedger| {
        let reads = ledger.reads;
        let classes = [reads.probes, reads.negatives, reads.true_positives, reads.false_positives];
        let rates = [ledger.designed_rate(), ledger.expected_rate(), ledger.measured_rate()];
        let interval = reads
            .false_positive_interval()
            .map_or_else(|| "–".to_owned(), |(low, high)| format!("{} – {}", percent(Some(low)), percent(Some(high))));
        let rest = [interval, count(reads.degraded), count(reads.skipped)];
        classes.map(count).into_iter().chain(rates.map(percent)).chain(rest).collect()
    };
    let columns = answered("filter asked").into_iter().chain([
        number("false by design").detail(),
        number("false by its bits"),
        number("false as measured").key(),
        number("95 % interval").detail(),
        number("damaged"),
        number("not asked"),
    ]);
    by_level(keyspace, columns, row)
}

/// The range filters' answers by level, and how many were right.
fn range_answers(keyspace: &KeyspaceStats) -> Table {
    let row = |ledger: FilterLedger| {
        let reads = ledger.reads;
        let right = reads.range_probes.saturating_sub(reads.range_absent());
        let classes = [reads.range_probes, reads.range_negatives, right, reads.range_false_positives];
        let rates = [ledger.predicted_range_rate(), reads.range_false_positive_rate()];
        classes.map(count).into_iter().chain(rates.map(percent)).collect()
    };
    let rates = [number("false as predicted"), number("false as measured").key()];
    by_level(keyspace, answered("range filter asked").into_iter().chain(rates), row)
}

/// Columns of the classes of answers.
fn answered(asked: &str) -> [Column; 4] {
    [number(asked).key(), number("no"), number("rightly maybe"), number("wrongly maybe")]
}

/// The cost of reads by level. What filters save is known only of reads that did not trust them.
pub(super) fn costs(keyspace: &KeyspaceStats, filters: FilterUse) -> Table {
    let knows_savings = matches!(filters, FilterUse::Shadow);
    let row = |ledger: FilterLedger| {
        let reads = ledger.reads;
        let mut row = vec![
            count(reads.look_ups()),
            count(reads.block_reads),
            size(reads.block_bytes),
            count(reads.cache_hits),
            count(reads.tombstones_passed),
            count(reads.scan_blocks_unused),
            count(reads.scan_reads_unused),
        ];
        if knows_savings {
            row.extend([count(reads.avoidable_reads), size(reads.avoidable_bytes)]);
        }
        row
    };
    let mut columns = vec![
        number("looked into"),
        number("blocks read").key(),
        number("bytes read"),
        number("in cache"),
        number("tombstones passed").detail(),
        number("unused by scans"),
        number("of these, read"),
    ];
    if knows_savings {
        columns.extend([number("blocks filters save").key(), number("bytes filters save")]);
    }
    by_level(keyspace, columns, row)
}

/// A row for each level that reads visited, and one for all.
fn by_level(
    keyspace: &KeyspaceStats,
    columns: impl IntoIterator<Item = Column>,
    row: impl Fn(FilterLedger) -> Vec<String>,
) -> Table {
    let levels = keyspace.levels.iter().map(|level| (level.level.to_string(), level.ledger()));
    let asked = levels.filter(|(_, ledger)| ledger.reads != ReadStats::default());
    let all = asked.chain([("all".to_owned(), keyspace.ledger())]);
    let rows = all.map(|(name, ledger)| [vec![name], row(ledger)].concat());
    Table::new(std::iter::once(text("level").key()).chain(columns), rows)
}

/// A line for each filter that is damaged or has too many false positives.
fn warnings(stats: &tamis::Stats) -> Vec<String> {
    let degraded = stats.degraded_filters().map(|(keyspace, level, table)| {
        // It has at least one that is damaged.
        let filter = match table.range_filter {
            Some(RangeFilterState::Degraded(_)) => "range filter",
            _ => "filter",
        };
        format!(
            "keyspace {keyspace}, level {level}, table {}: the {filter} is damaged and answers \"maybe\"",
            table.number
        )
    });
    let tables = stats.keyspaces.iter().flat_map(|keyspace| {
        let levels = keyspace.levels.iter();
        levels.flat_map(move |level| level.tables.iter().map(move |table| (keyspace, level, table)))
    });
    let excessive = tables.filter(|(.., table)| table.ledger.is_excessive()).map(|(keyspace, level, table)| {
        format!(
            "keyspace {}, level {}, table {}: {} false positives, expected {:.0} by design; the filter is broken, or the \
             same absent keys are looked up repeatedly",
            keyspace.name,
            level.level,
            table.number,
            count(table.reads().false_positives),
            table.ledger.designed_false_positives
        )
    });
    let lag = Some(stats.clock_lag).filter(|lag| !lag.is_zero()).map(|lag| {
        format!(
            "the clock is {:.3} s behind the latest time that the store has seen; deadlines before that time count as past",
            lag.as_secs_f64()
        )
    });
    degraded.chain(excessive).chain(lag).collect()
}

fn keyspace_json(keyspace: &KeyspaceStats, filters: &[FilterTotals]) -> Value {
    let levels: Vec<Value> = keyspace
        .levels
        .iter()
        .zip(filters)
        .map(|(level, filters)| {
            json!({
                "level": level.level,
                "tables": level.tables.len(),
                "bytes": level.size(),
                "entries": level.entries(),
                "tombstones": level.tables.iter().map(|table| table.tombstones).sum::<u64>(),
                "expiring": level.tables.iter().map(|table| table.expiring).sum::<u64>(),
                "filter_bytes": filters.points.bytes,
                "tables_without_filter": filters.points.none,
                "tables_with_damaged_filter": filters.points.damaged,
                "filter_bits_per_key": filters.points.bits_per_key(),
                "expected_false_positive_rate": filters.points.expected_rate(),
                "range_filter_bytes": filters.ranges.bytes,
                "tables_without_range_filter": filters.ranges.none,
                "tables_with_declined_range_filter": filters.ranges.declined,
                "tables_with_damaged_range_filter": filters.ranges.damaged,
                "range_filter_bits_per_key": filters.ranges.bits_per_key(),
                "predicted_range_false_positive_rate": filters.ranges.expected_rate(),
                "reads": json_ledger(&level.ledger()),
            })
        })
        .collect();
    let (ranges, look_up, scan) = (keyspace.range_deletes, look_up(filters), empty_scan(filters));
    json!({
        "name": keyspace.name,
        "look_up": { "filters": look_up.filters, "wasted_reads_per_100": 100.0 * look_up.wasted_reads },
        "empty_scan": { "range_filters": scan.filters, "wasted_reads_per_100": 100.0 * scan.wasted_reads },
        "bytes": keyspace.size(),
        "reads": json_ledger(&keyspace.ledger()),
        "levels": levels,
        "range_deletes": {
            "in_memory": ranges.in_memory,
            "in_tables": ranges.in_tables,
            "tables": ranges.tables,
            "bytes": ranges.size,
        },
        "value_files": {
            "files": keyspace.values.files,
            "bytes": keyspace.values.size,
            "values": keyspace.values.values,
            "live_bytes": keyspace.values.live,
        },
    })
}
