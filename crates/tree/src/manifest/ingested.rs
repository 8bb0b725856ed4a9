//! An ingest in a log: the tables that it adds, as an edit adds them.

use super::edit::{RANGE_LEVEL, VersionEdit};
use super::state::ManifestState;
use crate::error::Result;
use crate::format::key::SeqNo;
use crate::format::{Decoded, Malformed};
use crate::log::op::{self, Ingest};
use crate::sorted::table::TableMeta;

/// Appends an ingest to the payload of a batch: one operation, with the edit that adds the tables
/// to a level of a keyspace, 0 or that of range tables. Fails if it exceeds the limit of a value.
pub fn put_ingest(payload: &mut Vec<u8>, keyspace: u32, level: u8, tables: &[TableMeta]) -> Result<()> {
    let added = tables.iter().map(|meta| (keyspace, level, meta.clone()));
    let edit = VersionEdit { added: added.collect(), ..VersionEdit::default() };
    op::put_ingest(payload, keyspace, &edit.encode())
}

/// The tables that recovery adds to `state`, with their levels, when it meets an ingest with the
/// number `seqno` in a log: none if the manifest has its edit.
pub fn missing_tables(ingest: &Ingest<'_>, seqno: SeqNo, state: &ManifestState) -> Decoded<Vec<(u8, TableMeta)>> {
    if seqno <= state.ingested || !state.keyspaces.contains_key(&ingest.keyspace) {
        return Ok(Vec::new());
    }
    ingested_tables(ingest, seqno)
}

/// The tables of an ingest that has the number `seqno`, with their levels.
pub fn ingested_tables(ingest: &Ingest<'_>, seqno: SeqNo) -> Decoded<Vec<(u8, TableMeta)>> {
    let tables = stated_tables(ingest)?;
    match tables.iter().all(|(_, meta)| meta.largest_seqno == seqno) {
        true => Ok(tables),
        false => Err(Malformed("an ingest states another number than it has")),
    }
}

/// The tables of an ingest, with their levels, whatever number it has. Each states a number.
pub fn stated_tables(ingest: &Ingest<'_>) -> Decoded<Vec<(u8, TableMeta)>> {
    let edit = VersionEdit::decode(ingest.edit)?;
    let is_of_ingest = |(id, level, meta): &(u32, u8, TableMeta)| {
        *id == ingest.keyspace && [0, RANGE_LEVEL].contains(level) && meta.ingested.is_some()
    };
    let adds_only = VersionEdit { added: Vec::new(), ..edit.clone() } == VersionEdit::default();
    if !adds_only || edit.added.is_empty() || !edit.added.iter().all(is_of_ingest) {
        return Err(Malformed("an ingest does something else than to add tables"));
    }
    Ok(edit.added.into_iter().map(|(_, level, meta)| (level, meta)).collect())
}
