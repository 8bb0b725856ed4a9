//! [`ScanSource`]: one input of a scan's merge.

use std::sync::Arc;

use super::run::RunCursor;
use crate::error::Result;
use crate::format::key::{SeqNo, ValueKind};
use crate::report::stats::ReadCounters;
use crate::sorted::iter::{InternalCursor, KeyBound, MergeCursor, SkippedRun};
use crate::sorted::memtable::MemtableCursor;
use crate::sorted::scan_trace::ScanTrace;

/// One input of a merge. An enum, so that a step costs a branch instead of a virtual call.
#[expect(clippy::large_enum_variant, reason = "nearly all are runs, and a seek should not pay for a box of each")]
pub enum ScanSource {
    Memtable(MemtableCursor),
    Run(RunCursor),
}

/// Forwards a call to the variant's cursor.
macro_rules! dispatch {
    ($self:ident, $cursor:ident => $call:expr) => {
        match $self {
            ScanSource::Memtable($cursor) => $call,
            ScanSource::Run($cursor) => $call,
        }
    };
}

impl InternalCursor for ScanSource {
    #[inline]
    fn valid(&self) -> bool {
        dispatch!(self, cursor => cursor.valid())
    }

    fn seek_to_last(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.seek_to_last())
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        dispatch!(self, cursor => cursor.seek(key, seqno))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.next())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.prev())
    }

    #[inline]
    fn key(&self) -> &[u8] {
        dispatch!(self, cursor => cursor.key())
    }

    #[inline(always)]
    fn stamp(&self) -> (SeqNo, ValueKind) {
        dispatch!(self, cursor => cursor.stamp())
    }

    #[inline]
    fn value(&self) -> &[u8] {
        dispatch!(self, cursor => cursor.value())
    }
}

impl MergeCursor for ScanSource {
    fn seek_to_first(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.seek_to_first())
    }

    #[inline]
    fn begin_seek(&mut self, key: &[u8], seqno: SeqNo, forward: bool) -> Result<()> {
        dispatch!(self, cursor => cursor.begin_seek(key, seqno, forward))
    }

    #[inline]
    fn continue_seek(&mut self, key: &[u8]) -> Result<bool> {
        dispatch!(self, cursor => cursor.continue_seek(key))
    }

    #[inline]
    fn end_seek(&mut self, key: &[u8], seqno: SeqNo, forward: bool) -> Result<()> {
        dispatch!(self, cursor => cursor.end_seek(key, seqno, forward))
    }

    fn let_steps_defer(&mut self) {
        dispatch!(self, cursor => cursor.let_steps_defer());
    }

    fn deferred(&self) -> Option<KeyBound<'_>> {
        dispatch!(self, cursor => cursor.deferred())
    }

    fn resume(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.resume())
    }

    fn jump(&mut self, end: Option<&[u8]>, seen: SeqNo, forward: bool) -> Result<()> {
        dispatch!(self, cursor => cursor.jump(end, seen, forward))
    }

    fn skip(&mut self, from: Option<&[u8]>, skipped: &SkippedRun<'_>, forward: bool) -> Result<bool> {
        dispatch!(self, cursor => cursor.skip(from, skipped, forward))
    }

    #[inline]
    fn note_position(&mut self) {
        dispatch!(self, cursor => cursor.note_position());
    }

    #[inline]
    fn note_taken(&mut self) {
        dispatch!(self, cursor => cursor.note_taken());
    }

    fn set_trace(&mut self, trace: &Arc<ScanTrace>) {
        dispatch!(self, cursor => cursor.set_trace(trace));
    }

    fn counters(&self) -> Option<&ReadCounters> {
        dispatch!(self, cursor => cursor.counters())
    }

    #[inline]
    fn fast_steps(&self, snapshot: SeqNo, bound: u128, forward: bool) -> usize {
        dispatch!(self, cursor => cursor.fast_steps(snapshot, bound, forward))
    }

    #[inline]
    fn fast_step(&mut self, forward: bool) -> bool {
        dispatch!(self, cursor => cursor.fast_step(forward))
    }

    fn end_fast_steps(&mut self) -> Result<()> {
        dispatch!(self, cursor => cursor.end_fast_steps())
    }

    #[inline]
    fn is_first_of_key(&self) -> bool {
        dispatch!(self, cursor => cursor.is_first_of_key())
    }

    #[inline(always)]
    fn head(&self) -> u128 {
        dispatch!(self, cursor => cursor.head())
    }

    #[inline(always)]
    fn head_if_valid(&self) -> Option<u128> {
        dispatch!(self, cursor => cursor.head_if_valid())
    }

    #[inline(always)]
    fn shows(&self, snapshot: SeqNo) -> bool {
        dispatch!(self, cursor => cursor.shows(snapshot))
    }
}
