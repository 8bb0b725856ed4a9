//! The fields of an edit that speak of a table which the edit adds: what every table has, in the
//! field that adds it, and what only some have, in a field each. These begin with the table's
//! number and come after the one that adds it.

use super::tag;
use crate::format::coding::{Decoder, put_bytes, put_field_with, put_varint, put_varints};
use crate::format::key::{MAX_KEY_LEN, MAX_SEQNO};
use crate::format::{Decoded, Malformed};
use crate::sorted::table::{Deadlines, Ingested, References, TableMeta};

/// A sequence number, file number, size or count. The bound keeps sums of them from overflowing.
pub(super) fn number(content: &mut Decoder<'_>) -> Decoded<u64> {
    match content.varint()? {
        number @ 0..=MAX_SEQNO => Ok(number),
        _ => Err(Malformed("a number in a version edit exceeds 56 bits")),
    }
}

pub(super) fn put_table(out: &mut Vec<u8>, table: &TableMeta) {
    put_varints(out, [table.number, table.size, table.checksum.into()]);
    put_varints(out, [table.entries, table.keys, table.tombstones]);
    put_varints(out, [table.smallest_seqno, table.largest_seqno]);
    put_bytes(out, &table.smallest);
    put_bytes(out, &table.largest);
}

pub(super) fn table(content: &mut Decoder<'_>) -> Decoded<TableMeta> {
    let table = TableMeta {
        number: number(content)?,
        size: number(content)?,
        checksum: content.varint_u32()?,
        entries: number(content)?,
        keys: number(content)?,
        tombstones: number(content)?,
        deadlines: Deadlines::default(),
        references: References::default(),
        smallest_seqno: number(content)?,
        largest_seqno: number(content)?,
        cleared: 0,
        smallest: content.bytes()?.into(),
        largest: content.bytes()?.into(),
        ingested: None,
        range_end: None,
        kept: 0,
    };
    let counts = 1..=table.entries;
    let broken = if !counts.contains(&table.keys) || table.tombstones > table.entries {
        "a table's counts of entries, keys and tombstones contradict each other"
    } else if table.smallest_seqno > table.largest_seqno {
        "a table's smallest sequence number exceeds its largest"
    } else if table.smallest > table.largest {
        "a table's smallest key comes after its largest"
    } else if table.smallest.len().max(table.largest.len()) > MAX_KEY_LEN {
        "a key is longer than 1 MiB"
    } else {
        return Ok(table);
    };
    Err(Malformed(broken))
}

/// Appends a field for each thing that `table` has and others do not.
pub(super) fn put_facts(out: &mut Vec<u8>, table: &TableMeta) {
    let mut put = |tag, fill: &dyn Fn(&mut Vec<u8>)| {
        put_field_with(out, tag, |content| {
            put_varint(content, table.number);
            fill(content);
        });
    };
    if table.cleared > 0 {
        put(tag::CLEARED, &|content| put_varint(content, table.cleared));
    }
    if !table.references.is_empty() {
        put(tag::REFERENCES, &|content| table.references.put(content));
    }
    if table.deadlines.count > 0 {
        put(tag::DEADLINES, &|content| table.deadlines.put(content));
    }
    if let Some(Ingested { identity, seqno }) = table.ingested {
        put(tag::INGESTED_TABLE, &|content| put_varints(content, [identity, seqno]));
    }
    if table.kept > 0 {
        put(tag::KEPT, &|content| put_varint(content, table.kept));
    }
    if let Some(end) = &table.range_end {
        put(tag::RANGE_END, &|content| put_bytes(content, end));
    }
}

/// Adds the content of a field of [`put_facts`] to the table that it is about.
pub(super) fn add_fact(table: &mut TableMeta, tag: u64, content: &mut Decoder<'_>) -> Decoded<()> {
    let broken = match tag {
        tag::CLEARED => {
            let cleared = number(content)?;
            let is_wrong = cleared == 0 || std::mem::replace(&mut table.cleared, cleared) > 0;
            is_wrong.then_some("a version edit says twice, or of nothing, what a table is free of")
        }
        tag::REFERENCES if !table.references.is_empty() => {
            Some("a version edit states the value files of a table twice")
        }
        tag::REFERENCES => {
            table.references = References::decode(content)?;
            let most = table.references.iter().map(|reference| reference.count).max();
            (most > Some(table.entries)).then_some("more entries point to a value file than there are")
        }
        tag::DEADLINES if table.deadlines.count > 0 => Some("a version edit states the deadlines of a table twice"),
        tag::DEADLINES => {
            table.deadlines = Deadlines::decode(content)?;
            (table.deadlines.count > table.entries).then_some("more entries have a deadline than there are")
        }
        tag::INGESTED_TABLE if table.ingested.is_some() => Some("a version edit says twice how a table was ingested"),
        tag::INGESTED_TABLE => {
            let ingested = Ingested { identity: content.varint()?, seqno: number(content)? };
            table.ingested = Some(ingested);
            ((table.smallest_seqno, table.largest_seqno) != (ingested.seqno, ingested.seqno))
                .then_some("the entries of an ingested table have several sequence numbers")
        }
        tag::KEPT => {
            let kept = number(content)?;
            let is_wrong = kept == 0 || kept > table.hidden_entries() || std::mem::replace(&mut table.kept, kept) > 0;
            is_wrong.then_some("a version edit says twice, or wrongly, what a rewrite of a table has kept")
        }
        tag::RANGE_END if table.range_end.is_some() || table.ingested.is_none() => {
            Some("a version edit says twice, or of another table, where ranges end")
        }
        tag::RANGE_END => {
            let end = content.bytes()?;
            table.range_end = Some(end.into());
            (*end <= *table.largest || end.len() > MAX_KEY_LEN)
                .then_some("the ranges of an ingested table end before the last one begins")
        }
        _ => Some("a field says nothing of a table"),
    };
    broken.map_or(Ok(()), |rule| Err(Malformed(rule)))
}
