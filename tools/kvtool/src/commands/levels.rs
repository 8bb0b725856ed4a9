//! `levels`: the tables of every level.

use serde_json::{Value, json};
use tamis::TableStats;

use super::filters::{FilterTotals, filters_of};
use super::store::{open_read_only, stats_of};
use crate::args::{Common, StoreDir};
use crate::failure::Result;
use crate::output::{Output, json_bytes};
use crate::table::{Table, number, text};
use crate::text::{Form, count, percent, size, unix_time};

/// Characters shown of a key.
const KEY_WIDTH: usize = 24;

pub(crate) fn run(common: &Common, args: StoreDir) -> Result<()> {
    let db = open_read_only(&args.db, common)?;
    let stats = stats_of(&db, common)?;
    let mut output = Output::new();
    let mut documents = Vec::new();
    for keyspace in &stats.keyspaces {
        let (mut rows, mut levels) = (Vec::new(), Vec::new());
        for level in keyspace.levels.iter().filter(|level| !level.tables.is_empty()) {
            let mut tables = Vec::new();
            for table in &level.tables {
                let filters = filters_of(db.path(), std::slice::from_ref(table))?;
                rows.push(row(common, level.level, table, &filters));
                tables.push(table_json(common, table, &filters));
            }
            levels.push(json!({ "level": level.level, "bytes": level.size(), "tables": tables }));
        }
        documents.push(json!({ "name": keyspace.name, "levels": levels }));
        if !common.json() {
            let columns = [
                text("level").key(),
                text("from key"),
                text("to key"),
                number("table").key(),
                number("size").key(),
                number("entries"),
                number("tombstones").detail(),
                number("sequence numbers").detail(),
                number("expected false"),
                number("of ranges").detail(),
            ];
            output.line(format_args!("keyspace {}", Form::Plain.show(keyspace.name.as_bytes())))?;
            output.table(common, &Table::new(columns, rows))?;
            output.line("")?;
        }
    }
    if common.json() {
        output.json(json!({ "keyspaces": documents }))?;
    }
    output.finish()
}

fn row(common: &Common, level: usize, table: &TableStats, filters: &FilterTotals) -> Vec<String> {
    vec![
        level.to_string(),
        common.form().show_short(&table.smallest, KEY_WIDTH),
        common.form().show_short(&table.largest, KEY_WIDTH),
        table.number.to_string(),
        size(table.size),
        count(table.entries),
        count(table.tombstones),
        format!("{} – {}", table.smallest_seqno, table.largest_seqno),
        percent(filters.points.expected_rate()),
        percent(filters.ranges.expected_rate()),
    ]
}

fn table_json(common: &Common, table: &TableStats, filters: &FilterTotals) -> Value {
    json!({
        "number": table.number,
        "bytes": table.size,
        "entries": table.entries,
        "tombstones": table.tombstones,
        "expiring": table.expiring,
        "deadlines": table.deadlines.map(|(first, last)| [unix_time(first), unix_time(last)]),
        "smallest": json_bytes(common.form(), &table.smallest),
        "largest": json_bytes(common.form(), &table.largest),
        "smallest_seqno": table.smallest_seqno,
        "largest_seqno": table.largest_seqno,
        "expected_false_positive_rate": filters.points.expected_rate(),
        "predicted_range_false_positive_rate": filters.ranges.expected_rate(),
    })
}
