//! `sst`: the content of an SSTable.

use std::path::PathBuf;

use serde_json::{Value, json};
use tamis::Error;
use tamis::filter::{FilterInfo, FilterState, RangeFilterState, RangeInfo, RangeRates};
use tamis::inspect::{DataBlock, FileKind, Handle, Inspector, TableFile, TableProperties};

use super::filters::{rates_of, share};
use super::keyspaces::compression_in_words;
use super::range::KeyRange;
use crate::args::{Common, Sst};
use crate::failure::{Failure, Result};
use crate::output::{Output, json_bytes, say};
use crate::table::{Table, number, text};
use crate::text::{count, percent, size, unix_time};

/// Characters shown of a key in wide tables.
const KEY_WIDTH: usize = 40;

pub(crate) fn run(common: &Common, args: Sst) -> Result<()> {
    let path = path_of(args.path, args.number)?;
    let from = common.optional_bytes("--from", args.range.from.as_ref())?;
    let to = common.optional_bytes("--to", args.range.to.as_ref())?;
    let prefix = common.optional_bytes("--prefix", args.range.prefix.as_ref())?;
    let range = KeyRange::new(from, to, prefix);
    let mut output = Output::new();
    // Entries can be read even if properties, index, footer or some blocks are damaged.
    let described = Inspector::new()
        .table(&path)
        .map_err(Failure::from)
        .and_then(|file| describe(&mut output, common, &file, args.blocks.then_some(&range)));
    if !args.entries || !matches!(&described, Ok(()) | Err(Failure::Store(Error::Corruption { .. }))) {
        described?;
        return output.finish();
    }
    let mut damage = described.err();
    {
        if !common.json() {
            output.line("")?;
            output.line("entries: key, sequence number, kind, value")?;
        }
        for entry in Inspector::new().entries(&path)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error @ Error::Corruption { .. }) => {
                    output.flush()?;
                    say(&error);
                    damage.get_or_insert(error.into());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if !range.contains(&entry.key) {
                continue;
            }
            let kind = entry.kind.to_string();
            let value = entry.value.unwrap_or_default();
            if common.json() {
                output.json(json!({
                    "key": json_bytes(common.form(), &entry.key),
                    "seqno": entry.seqno,
                    "oldest": entry.oldest,
                    "kind": kind,
                    "value": json_bytes(common.form(), &value),
                    "deadline": entry.deadline.map(unix_time),
                }))?;
            } else {
                let (key, value) = (common.form().show(&entry.key), common.form().show(&value));
                let until = entry.deadline.map_or_else(String::new, |at| format!("\tuntil {}", unix_time(at)));
                output.line(format_args!("{key}\t{}\t{kind}\t{value}{until}", entry.seqno))?;
            }
        }
    }
    output.finish()?;
    damage.map_or(Ok(()), Err)
}

fn path_of(path: PathBuf, number: Option<u64>) -> Result<PathBuf> {
    match number {
        Some(number) if path.is_dir() => Ok(FileKind::Table(number).path(&path)),
        Some(_) => Err(Failure::usage(format_args!(
            "{} is not a directory; NUMBER needs the directory of a store",
            path.display()
        ))),
        None if path.is_dir() => {
            Err(Failure::usage("a store needs the NUMBER of a table (`kvtool levels` lists them)"))
        }
        None => Ok(path),
    }
}

/// Prints properties, footer and filters, and the data blocks of a range, if one is given. Also for
/// `dump`.
pub(super) fn describe(
    output: &mut Output,
    common: &Common,
    file: &TableFile,
    blocks: Option<&KeyRange>,
) -> Result<()> {
    let mut listed = Vec::new();
    let mut damaged = Vec::new();
    if let Some(range) = blocks {
        for block in file.blocks() {
            match block {
                Ok(block) if block.last_key < range.lower => {}
                Ok(block) if range.upper.as_ref().is_some_and(|upper| block.first_key >= *upper) => {}
                Ok(block) => listed.push(block),
                Err(error) => damaged.push(error),
            }
        }
    }
    if common.json() {
        let mut document = json!({
            "properties": properties_json(common, file.properties()),
            "filter": filter_json(file.filter()),
            "range_filter": range_filter_json(file.range_filter()),
        });
        if blocks.is_some() {
            document["blocks"] = listed.iter().map(|block| block_json(common, block)).collect();
        }
        output.json(document)?;
    } else {
        output.table(common, &described("property", properties_rows(common, file.properties())))?;
        output.line("")?;
        output.table(common, &described("filter", filter_rows(file.filter())))?;
        output.line("")?;
        output.table(common, &described("range filter", range_filter_rows(file.range_filter())))?;
        if blocks.is_some() {
            output.line("")?;
            output.table(common, &blocks_table(common, &listed))?;
        }
    }
    match damaged.into_iter().next() {
        Some(error) => {
            output.flush()?;
            Err(error.into())
        }
        None => Ok(()),
    }
}

fn properties_rows(common: &Common, properties: &TableProperties) -> Vec<Vec<String>> {
    let p = properties;
    let handle = |handle: Handle| format!("{} + {}", handle.offset, handle.len);
    let compression = match p.compression {
        Ok(compression) => compression_in_words(compression).to_owned(),
        Err(number) => format!("{number}, unknown to this build"),
    };
    [
        ("number", p.number.to_string()),
        ("file size", format!("{} ({})", count(p.size), size(p.size))),
        ("keyspace id", p.keyspace.to_string()),
        ("entries", count(p.entries)),
        ("distinct keys", count(p.keys)),
        ("tombstones", count(p.tombstones)),
        ("range deletes", count(p.range_deletes)),
        ("entries with a deadline", count(p.expiring)),
        ("deadlines", p.deadlines.map_or("–".into(), |(a, b)| format!("{} to {}", unix_time(a), unix_time(b)))),
        ("data blocks", count(p.data_blocks)),
        ("bytes of keys", count(p.key_bytes)),
        ("bytes of values", count(p.value_bytes)),
        ("value files", p.value_files.iter().map(|(number, ..)| number.to_string()).collect::<Vec<_>>().join(" ")),
        ("bytes in value files", count(p.value_files.iter().map(|(.., bytes)| bytes).sum())),
        ("smallest key", common.form().show_short(&p.smallest, KEY_WIDTH)),
        ("largest key", common.form().show_short(&p.largest, KEY_WIDTH)),
        ("smallest sequence number", p.smallest_seqno.to_string()),
        ("largest sequence number", p.largest_seqno.to_string()),
        ("largest data block", count(p.largest_block.into())),
        ("requested compression", compression),
        ("requested block size", count(p.block_size.into())),
        ("hash seed", format!("{:#018x}", p.hash_seed)),
        ("filter policy", policy_in_words(p.filter_policy).to_owned()),
        ("requested filter bits per key", format!("{}", f64::from(p.filter_millibits) / 1000.0)),
        ("keys in the filter", count(p.filter_keys)),
        ("hash of the filter", p.filter_hash.map_or_else(|| "none".into(), |hash| format!("{hash:#018x}"))),
        ("requested range filter bits per key", range_bits(p)),
        ("footer: filter block at", p.filter_block.map_or_else(|| "none".into(), handle)),
        ("range filter block at", p.range_filter_block.map_or_else(|| "none".into(), handle)),
        ("footer: properties block at", handle(p.properties_block)),
        ("footer: index block at", handle(p.index_block)),
    ]
    .map(|(name, value)| vec![name.to_owned(), value])
    .into()
}

fn range_bits(properties: &TableProperties) -> String {
    match properties.range_filter_millibits {
        0 => "none".into(),
        millibits => (f64::from(millibits) / 1000.0).to_string(),
    }
}

fn policy_in_words(policy: u64) -> &'static str {
    match policy {
        0 => "none",
        1 => "split-line Bloom",
        4 => "binary fuse",
        255 => "no keys",
        _ => "unknown",
    }
}

fn filter_rows(filter: &FilterState) -> Vec<Vec<String>> {
    let state = |state: &str| vec![vec!["state".to_owned(), state.to_owned()]];
    let info = match filter {
        FilterState::Usable(info) => info,
        FilterState::None => return state("none"),
        FilterState::Degraded(reason) => return state(&format!("means \"maybe\" for every key: {reason}")),
        other => return state(&format!("{other:?}")),
    };
    let groups: Vec<String> = info.groups.iter().map(u8::to_string).collect();
    [
        ("state", "usable".to_owned()),
        ("policy", policy_in_words(info.policy_id.into()).to_owned()),
        ("keys", count(info.keys)),
        ("prefixes among them", info.prefixes.map_or_else(|| "none".into(), |prefixes| prefixes.to_string())),
        ("keys that the bits speak for", format!("about {:.0}", info.estimated_keys)),
        ("bits per key", format!("{:.3}", info.bits_per_key())),
        ("probes per key (k)", info.probes.to_string()),
        ("probes per line", if groups.is_empty() { "–".into() } else { groups.join(" + ") }),
        ("lines of 64 bytes", count(info.lines)),
        ("bytes of the block", count(info.bytes)),
        ("bits set", percent(Some(info.fill_ratio))),
        ("false positives expected of these bits", percent(Some(info.expected_fpr))),
        ("false positives in theory", percent(Some(info.model_fpr))),
    ]
    .map(|(name, value)| vec![name.to_owned(), value])
    .into()
}

fn range_filter_rows(filter: &RangeFilterState) -> Vec<Vec<String>> {
    let RangeRates { fresh, near, .. } = rates_of(filter).unwrap_or_default();
    let mut rows = vec![("state", range_state_in_words(filter))];
    if let Some(info) = filter.info() {
        rows.extend([
            ("keys", count(info.keys)),
            ("data blocks", count(info.blocks.into())),
            ("of these, with keys that cluster", count(info.folded.into())),
            ("bits per key", format!("{:.3}", info.bits_per_key())),
            ("bytes of the block", count(info.bytes)),
        ]);
    }
    if rates_of(filter).is_some() {
        rows.extend([
            ("false positives predicted", percent(Some(share(fresh)))),
            ("false positives predicted near keys", percent(Some(share(near)))),
        ]);
    }
    rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect()
}

fn range_state_in_words(filter: &RangeFilterState) -> String {
    match filter {
        RangeFilterState::None => "none".into(),
        RangeFilterState::Usable(_) => "usable".into(),
        RangeFilterState::Waiting(_) => "sound, but there was no room for it in memory".into(),
        RangeFilterState::Declined(_) => "declined: it would say \"maybe\" too often".into(),
        RangeFilterState::Degraded(reason) => format!("means \"maybe\" for every range: {reason}"),
        other => format!("{other:?}"),
    }
}

/// What something has, in words.
fn described(what: &str, rows: Vec<Vec<String>>) -> Table {
    Table::new([text(what).key(), text("value").key()], rows)
}

fn blocks_table(common: &Common, blocks: &[DataBlock]) -> Table {
    let rows = blocks.iter().enumerate().map(|(i, block)| {
        vec![
            common.form().show_short(&block.first_key, KEY_WIDTH),
            common.form().show_short(&block.last_key, KEY_WIDTH),
            compression_in_words(block.compression).to_owned(),
            i.to_string(),
            block.handle.offset.to_string(),
            count(block.handle.len.into()),
            count(block.raw_len),
            count(block.entries),
            count(block.prefix_len),
        ]
    });
    let columns = [
        text("first key").key(),
        text("last key"),
        text("compression").detail(),
        number("block").key(),
        number("offset"),
        number("bytes"),
        number("raw bytes").detail(),
        number("entries"),
        number("common prefix").detail(),
    ];
    Table::new(columns, rows)
}

fn properties_json(common: &Common, properties: &TableProperties) -> Value {
    let p = properties;
    let handle = |handle: Handle| json!({ "offset": handle.offset, "len": handle.len });
    json!({
        "number": p.number,
        "bytes": p.size,
        "keyspace": p.keyspace,
        "entries": p.entries,
        "keys": p.keys,
        "tombstones": p.tombstones,
        "range_deletes": p.range_deletes,
        "expiring": p.expiring,
        "deadlines": p.deadlines.map(|(first, last)| [unix_time(first), unix_time(last)]),
        "data_blocks": p.data_blocks,
        "key_bytes": p.key_bytes,
        "value_bytes": p.value_bytes,
        "value_files": p.value_files.iter().map(|(number, values, bytes)| json!({ "number": number, "values": values, "bytes": bytes })).collect::<Vec<_>>(),
        "smallest": json_bytes(common.form(), &p.smallest),
        "largest": json_bytes(common.form(), &p.largest),
        "smallest_seqno": p.smallest_seqno,
        "largest_seqno": p.largest_seqno,
        "largest_block": p.largest_block,
        "compression": p.compression.map_or("unknown", compression_in_words),
        "block_size": p.block_size,
        // As text: many JSON readers keep numbers exactly only up to 2^53.
        "hash_seed": format!("{:#018x}", p.hash_seed),
        "filter_policy": p.filter_policy,
        "filter_bits_per_key": f64::from(p.filter_millibits) / 1000.0,
        "filter_keys": p.filter_keys,
        "filter_hash": p.filter_hash.map(|hash| format!("{hash:#018x}")),
        "filter_block": p.filter_block.map(handle),
        "range_filter_bits_per_key": f64::from(p.range_filter_millibits) / 1000.0,
        "range_filter_block": p.range_filter_block.map(handle),
        "properties_block": handle(p.properties_block),
        "index_block": handle(p.index_block),
    })
}

fn filter_json(filter: &FilterState) -> Value {
    match filter {
        FilterState::None => json!({ "state": "none" }),
        FilterState::Degraded(reason) => json!({ "state": "degraded", "reason": reason }),
        FilterState::Usable(info) => usable_filter_json(info),
        other => json!({ "state": format!("{other:?}") }),
    }
}

fn usable_filter_json(info: &FilterInfo) -> Value {
    json!({
        "state": "usable",
        "policy": info.policy_id,
        "keys": info.keys,
        "prefixes": info.prefixes.map(|prefixes| prefixes.to_string()),
        "estimated_keys": info.estimated_keys,
        "bits_per_key": info.bits_per_key(),
        "probes": info.probes,
        "groups": info.groups,
        "lines": info.lines,
        "bytes": info.bytes,
        "fill_ratio": info.fill_ratio,
        "expected_false_positive_rate": info.expected_fpr,
        "model_false_positive_rate": info.model_fpr,
    })
}

/// Also for `filter advise`.
pub(super) fn range_filter_json(filter: &RangeFilterState) -> Value {
    let state = match filter {
        RangeFilterState::None => "none",
        RangeFilterState::Declined(_) => "declined",
        RangeFilterState::Usable(_) => "usable",
        RangeFilterState::Waiting(_) => "waiting",
        RangeFilterState::Degraded(_) => "degraded",
        _ => "other",
    };
    let mut document = json!({ "state": state });
    if let Some(RangeInfo { keys, blocks, folded, millibits, bytes, .. }) = filter.info() {
        document["keys"] = json!(keys);
        document["data_blocks"] = json!(blocks);
        document["folded_blocks"] = json!(folded);
        document["requested_bits_per_key"] = json!(f64::from(*millibits) / 1000.0);
        document["bits_per_key"] = json!(filter.info().map(RangeInfo::bits_per_key));
        document["bytes"] = json!(bytes);
    }
    if let Some(rates) = rates_of(filter) {
        document["predicted_false_positive_rate"] = json!(share(rates.fresh));
        document["predicted_false_positive_rate_near_keys"] = json!(share(rates.near));
    }
    if let RangeFilterState::Degraded(reason) = filter {
        document["reason"] = json!(reason);
    }
    document
}

fn block_json(common: &Common, block: &DataBlock) -> Value {
    json!({
        "offset": block.handle.offset,
        "len": block.handle.len,
        "raw_len": block.raw_len,
        "compression": compression_in_words(block.compression),
        "entries": block.entries,
        "prefix_len": block.prefix_len,
        "first_key": json_bytes(common.form(), &block.first_key),
        "last_key": json_bytes(common.form(), &block.last_key),
    })
}
