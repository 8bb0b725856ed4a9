//! The record of an ingest in a log: the tables that it adds, as an edit adds them.

use super::edit::VersionEdit;
use crate::format::key::SeqNo;
use crate::format::{Decoded, Malformed};
use crate::sorted::table::TableMeta;
use crate::write::batch::Op;

/// The edit that adds tables to a keyspace, as a log stores it: no level is stated.
pub(crate) fn encode_ingested(keyspace: u32, tables: &[TableMeta]) -> Vec<u8> {
    let added = tables.iter().map(|meta| (keyspace, 0, meta.clone()));
    VersionEdit { added: added.collect(), ..VersionEdit::default() }.encode()
}

/// The tables of an ingest that has the number `seqno`.
pub(crate) fn ingested_tables(operation: &Op<'_>, seqno: SeqNo) -> Decoded<Vec<TableMeta>> {
    let edit = VersionEdit::decode(operation.value)?;
    let is_of_ingest = |(id, level, meta): &(u32, u8, TableMeta)| {
        *id == operation.keyspace && *level == 0 && meta.ingested.is_some_and(|of| of.seqno == seqno)
    };
    let adds_only = VersionEdit { added: Vec::new(), ..edit.clone() } == VersionEdit::default();
    if !adds_only || edit.added.is_empty() || !edit.added.iter().all(is_of_ingest) {
        return Err(Malformed("an ingest does something else than to add tables"));
    }
    Ok(edit.added.into_iter().map(|(.., meta)| meta).collect())
}
