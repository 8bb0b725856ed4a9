//! The record of an ingest in a log: the tables that it adds, as an edit adds them.

use super::edit::VersionEdit;
use crate::error::{Error, Result};
use crate::format::coding::{put_bytes, put_varint};
use crate::format::key::{MAX_VALUE_LEN, SeqNo, ValueKind};
use crate::format::{Decoded, Malformed};
use crate::sorted::table::TableMeta;
use crate::write::batch::Op;

/// The payload of the record of an ingest: one operation, with the edit that adds the tables to a
/// keyspace. Fails if it exceeds the limit of a value.
pub(crate) fn encode_ingest(keyspace: u32, tables: &[TableMeta]) -> Result<Vec<u8>> {
    let added = tables.iter().map(|meta| (keyspace, 0, meta.clone()));
    let edit = VersionEdit { added: added.collect(), ..VersionEdit::default() }.encode();
    if edit.len() > MAX_VALUE_LEN {
        return Err(Error::invalid("too many tables are ingested at once: their keys take more than 1 GiB"));
    }
    let mut payload = vec![ValueKind::Ingest as u8];
    put_varint(&mut payload, keyspace.into());
    put_bytes(&mut payload, &[]);
    put_bytes(&mut payload, &edit);
    Ok(payload)
}

/// The tables of an ingest that has the number `seqno`.
pub(crate) fn ingested_tables(operation: &Op<'_>, seqno: SeqNo) -> Decoded<Vec<TableMeta>> {
    let edit = VersionEdit::decode(operation.value)?;
    let is_of_ingest = |(id, level, meta): &(u32, u8, TableMeta)| {
        *id == operation.keyspace && *level == 0 && meta.ingested.is_some_and(|of| of.seqno == seqno)
    };
    let adds_only = VersionEdit { added: Vec::new(), ..edit.clone() } == VersionEdit::default();
    if !operation.key.is_empty() || !adds_only || edit.added.is_empty() || !edit.added.iter().all(is_of_ingest) {
        return Err(Malformed("an ingest does something else than to add tables"));
    }
    Ok(edit.added.into_iter().map(|(.., meta)| meta).collect())
}
