//! [`LoggedPart`]: what the log stores of a batch, if some of its keyspaces have no log.
//!
//! Operations on keyspaces without a log go into the memtable alone. The log counts them when its
//! next record is written or its memtable is sealed, so that the numbers in it have no gap. Until
//! then `Sequence::logged`, up to which syncs and the change feed reach, stays behind
//! `Sequence::visible`. A flush writes all keyspaces of a memtable in one edit. After a crash,
//! those without a log are therefore of one moment.

use std::borrow::Cow;

use super::UNLOGGED;
use super::{BatchReader, LogOps};
use tamis_base::format::Decoded;
use tamis_base::format::coding::put_varint;

/// What the log stores of a batch of which it does not store all.
#[derive(Clone, Debug)]
pub struct LoggedPart {
    pub payload: Cow<'static, [u8]>,
    /// Whether there are operations in it.
    pub has_operations: bool,
}

impl LoggedPart {
    /// The part of an encoded batch of `count` operations; `None` for all of it.
    pub fn of(batch: &[u8], count: u32, is_logged: impl Fn(u32) -> bool) -> Option<LoggedPart> {
        let mut reader = BatchReader::new(batch, count);
        let (mut payload, mut has_operations, mut is_whole) = (Vec::new(), false, true);
        let (mut start, mut left_out) = (0, 0);
        // Only what this process has encoded is in a batch.
        while let Some(Ok(operation)) = reader.next() {
            let end = batch.len() - reader.left();
            if is_logged(operation.keyspace) {
                if left_out > 0 {
                    payload.extend(unlogged(std::mem::take(&mut left_out)));
                }
                payload.extend_from_slice(&batch[start..end]);
                has_operations = true;
            } else {
                is_whole = false;
                left_out += 1;
            }
            start = end;
        }
        if is_whole {
            return None;
        }
        if left_out > 0 {
            payload.extend(unlogged(left_out));
        }
        Some(LoggedPart { payload: Cow::Owned(payload), has_operations })
    }

    /// The part of a batch in a log of which a copy stores the operations of some keyspaces. What
    /// the log does not store, the copy does not, either.
    pub fn of_log(batch: &[u8], count: u32, is_kept: impl Fn(u32) -> bool) -> Decoded<LoggedPart> {
        let mut operations = LogOps::new(batch, count);
        let (mut payload, mut has_operations, mut left_out, mut start) = (Vec::new(), false, 0, 0);
        while operations.remaining > 0 || !operations.rest.is_empty() {
            let before = operations.index;
            let operation = operations.decode_op()?;
            let end = batch.len() - operations.rest.remaining();
            if operation.is_some_and(|operation| is_kept(operation.keyspace())) {
                if left_out > 0 {
                    payload.extend(unlogged(std::mem::take(&mut left_out)));
                }
                payload.extend_from_slice(&batch[start..end]);
                has_operations = true;
            } else {
                left_out += operations.index - before;
            }
            start = end;
        }
        if left_out > 0 {
            payload.extend(unlogged(left_out));
        }
        Ok(LoggedPart { payload: Cow::Owned(payload), has_operations })
    }

    /// The part for `count` operations, none of which the log stores.
    pub fn none_of(count: u32) -> LoggedPart {
        let payload = if count == 1 { Cow::Borrowed(&[UNLOGGED, 1][..]) } else { Cow::Owned(unlogged(count)) };
        LoggedPart { payload, has_operations: false }
    }
}

fn unlogged(count: u32) -> Vec<u8> {
    let mut payload = vec![UNLOGGED];
    put_varint(&mut payload, count.into());
    payload
}
