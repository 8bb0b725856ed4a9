//! [`Table::verify`]: reads a table from front to back and checks every rule that look-ups rely on.

use std::ops::Range;
use std::sync::Arc;

use super::Table;
use super::deadlines::{DeadlineCounter, Deadlines};
use super::fetch::{Fetcher, ReadAhead, ReadHint};
use super::index::Index;
use super::properties::Properties;
use super::resident::Resident;
use crate::block::{BlockCursor, BlockRef, Frame};
use crate::error::Result;
use crate::filter::{BlockRange, KeyHash, RangeFilter};
use crate::format::checksum::FileChecksum;
use crate::format::header::FILE_HEADER_LEN;
use crate::format::key::{SeqNo, compare_entries};
use crate::format::{Decoded, Malformed};
use crate::ranges::Fragment;

/// Bytes per read for the checksum of the whole file.
const READ_LEN: u64 = 1 << 20;

impl Table {
    /// Checks the file: its checksum and each block's, the order of entries, index and filter
    /// against the keys, all counts and ranges. Reads everything from the file, past the cache and
    /// this table's counters.
    pub fn verify(&self) -> Result<()> {
        let context = Arc::clone(&self.fetcher().context);
        let table = Table::new(context, self.meta().clone()).of_ranges(self.holds_ranges());
        if let Some(file) = self.fetcher().file.kept() {
            table.fetcher().file.keep(Arc::clone(file));
        }
        check_file_checksum(&table, table.verify_content(true)?)
    }

    /// Checks everything but the checksum of the file, of which it reads each byte once. Returns
    /// that checksum. Without `entries`, it checks of the data blocks only that they are as they
    /// were written, and the first and the last key.
    pub fn verify_content(&self, entries: bool) -> Result<u32> {
        let (fetcher, resident) = (self.fetcher(), self.resident()?);
        let filter = resident.filter.whole(fetcher, resident)?;
        let filter = filter.as_deref();
        let range_filter = resident.range_filter.whole(fetcher, &resident.properties)?;
        let mut asked = RangeFilterCheck::new(range_filter.as_ref());
        let index = resident.whole_index(fetcher)?;
        let mut checker = TableChecker::default();
        let mut checksum = FileChecksum::default();
        let data_end = index.data_end();
        let mut ahead = ReadAhead::for_whole_table(data_end);
        let mut end = FILE_HEADER_LEN as u64;
        checksum_range(&mut checksum, fetcher, 0..end)?;
        for i in 0..index.len() {
            ahead.step_to(i);
            let handle = index.handle(i);
            if handle.offset > end {
                let padding = fetcher.bytes(end, handle.offset - end)?;
                if padding.iter().any(|&byte| byte != 0) {
                    return Err(fetcher.corrupt(end, "the padding before a data block is not all zeros"));
                }
                checksum.update(&padding);
            }
            end = handle.offset + handle.stored_len();
            if !entries {
                fetcher.check_block(handle, &mut ahead, &mut checksum)?;
                continue;
            }
            let longest = resident.properties.largest_block;
            let (_, _, block) = fetcher.data_block_to_copy(handle, longest, &mut ahead, &mut checksum)?;
            let mut denied = false;
            asked.enter(&index, i);
            let ask = |key: &[u8], hash| {
                denied |= filter.is_some_and(|filter| filter.denies(key, hash)) || asked.denies(key);
            };
            checker
                .check_block(resident, &index, i, &block, ask)
                .map_err(|malformed| self.malformed_block(i, malformed))?;
            if denied {
                let rule = "a filter denies a key that the table holds, or its prefix";
                return Err(self.malformed_block(i, Malformed(rule)));
            }
        }
        match entries {
            true => checker.check_end(self)?,
            false => self.check_bounds(resident)?,
        }
        checksum_range(&mut checksum, fetcher, data_end..fetcher.size)?;
        Ok(checksum.finish())
    }

    /// Compares the first and the last key with the properties.
    fn check_bounds(&self, resident: &Resident) -> Result<()> {
        let read = |i: usize| {
            let hint = ReadHint::None;
            let handle = resident.index.handle(self.fetcher(), i)?;
            let (_, block) = self.fetcher().data_block(handle, &resident.properties, hint, Frame::new)?;
            Ok(BlockCursor::new(block))
        };
        let last = resident.index.len().saturating_sub(1);
        let (mut first, mut end) = (read(0)?, read(last)?);
        first.seek_to_first().map_err(|malformed| self.malformed_block(0, malformed))?;
        end.seek_to_last().map_err(|malformed| self.malformed_block(last, malformed))?;
        let stated = &resident.properties;
        if (first.key(), end.key()) == (&*stated.smallest, &*stated.largest) {
            return Ok(());
        }
        let rule = "the first or the last key is not the one in the properties";
        Err(self.fetcher().corrupt(resident.footer.properties.offset, rule))
    }
}

/// Asks a table's range filter for each key of a block.
struct RangeFilterCheck<'a> {
    filter: Option<&'a RangeFilter>,
    block: usize,
    /// Separators around the block.
    low: Vec<u8>,
    high: Vec<u8>,
    bound: Vec<u8>,
    after: Vec<u8>,
}

impl<'a> RangeFilterCheck<'a> {
    fn new(filter: Option<&'a RangeFilter>) -> RangeFilterCheck<'a> {
        let [low, high, bound, after] = [const { Vec::new() }; 4];
        RangeFilterCheck { filter, block: 0, low, high, bound, after }
    }

    /// Goes on to the block at position `i`, the next one.
    fn enter(&mut self, index: &Index, i: usize) {
        if self.filter.is_some() {
            self.block = i;
            std::mem::swap(&mut self.low, &mut self.high);
            self.high.clear();
            index.separator(i).append_to(&mut self.high);
        }
    }

    /// Whether the filter denies a key of the block, or misplaces it: asked for the first key from
    /// it on, and for the last one up to it.
    fn denies(&mut self, key: &[u8]) -> bool {
        let Some(filter) = self.filter else { return false };
        let RangeFilterCheck { block, low, high, bound, after, .. } = self;
        let block = BlockRange { index: *block, low, high };
        let is_next = filter.next(block, key, bound) && **bound == *key;
        after.clear();
        after.extend_from_slice(key);
        after.push(0);
        !is_next || !filter.before(block, Some(after), bound) || **bound <= *key
    }
}

pub(super) fn file_checksum(fetcher: &Fetcher) -> Result<u32> {
    let mut checksum = FileChecksum::default();
    checksum_range(&mut checksum, fetcher, 0..fetcher.size)?;
    Ok(checksum.finish())
}

/// Adds a part of the file to its checksum.
pub(super) fn checksum_range(checksum: &mut FileChecksum, fetcher: &Fetcher, part: Range<u64>) -> Result<()> {
    let mut offset = part.start;
    while offset < part.end {
        let len = READ_LEN.min(part.end - offset);
        checksum.update(&fetcher.bytes(offset, len)?);
        offset += len;
    }
    Ok(())
}

/// Compares the checksum of the whole file with the manifest's record. Called last, because it does
/// not tell where the damage is.
pub(super) fn check_file_checksum(table: &Table, found: u32) -> Result<()> {
    if found == table.meta().checksum {
        return Ok(());
    }
    Err(table.fetcher().corrupt(0, "the checksum of the file is not the one in the manifest"))
}

/// Checks a table block by block, in order, and collects the properties of its entries.
#[derive(Default)]
pub(super) struct TableChecker {
    properties: Properties,
    deadlines: DeadlineCounter,
    last_key: Vec<u8>,
    last_seqno: SeqNo,
}

impl TableChecker {
    /// Checks the block at position `i` and calls `take` with each entry's key and hash.
    pub(super) fn check_block(
        &mut self,
        resident: &Resident,
        index: &Index,
        i: usize,
        block: &BlockRef,
        mut take: impl FnMut(&[u8], KeyHash),
    ) -> Decoded<()> {
        block.verify(|key| {
            let hash = KeyHash::new(resident.footer.seed, key);
            take(key, hash);
            hash.fingerprint()
        })?;
        let mut cursor = BlockCursor::new(block.clone());
        cursor.seek_to_first()?;
        if i > 0 && !self.separated(index, i - 1, cursor.key()) {
            return Err(Malformed("a data block does not begin after the separator before it"));
        }
        while cursor.valid() {
            let last = (&self.last_key[..], self.last_seqno);
            let here = (cursor.key(), cursor.seqno());
            if self.properties.entries > 0 && compare_entries(last, here).is_ge() {
                return Err(Malformed("entries are out of order"));
            }
            if resident.holds_ranges() {
                Fragment::stored_in((here.1, cursor.kind()), here.0, cursor.value())?;
            }
            let is_new_key = self.properties.entries == 0 || *here.0 != *self.last_key;
            self.properties.count_entry(here.0, is_new_key, here.1, cursor.kind(), cursor.value());
            self.deadlines.count_entry(here.0, cursor.kind(), cursor.value());
            self.last_key.clear();
            self.last_key.extend_from_slice(here.0);
            self.last_seqno = here.1;
            cursor.next()?;
        }
        if index.compare_separator(i, &self.last_key).is_lt() || !index.head_is_right(i) {
            return Err(Malformed("a data block goes beyond its separator, or the head of its separator is wrong"));
        }
        self.properties.count_block(block.block().bytes().len());
        Ok(())
    }

    /// Whether separator `i` lies between the last key so far and `next`.
    fn separated(&self, index: &Index, i: usize, next: &[u8]) -> bool {
        let order = index.compare_separator(i, next);
        order.is_lt() || (order.is_eq() && *next == *self.last_key)
    }

    /// Compares the collected properties with those of `table`, after the last block.
    pub(super) fn check_end(self, table: &Table) -> Result<()> {
        let resident = table.resident()?;
        if self.agrees_with(&resident.properties) {
            return Ok(());
        }
        let rule = "a count or range in the properties does not match the entries";
        Err(table.fetcher().corrupt(resident.footer.properties.offset, rule))
    }

    fn agrees_with(self, stated: &Properties) -> bool {
        // The quarter is an estimate: another version of tamis may estimate it differently.
        let deadlines =
            Deadlines { quarter: stated.deadlines.quarter, ..self.deadlines.finish(self.properties.all_bytes()) };
        let found = Properties {
            largest: self.last_key.into(),
            deadlines,
            number: stated.number,
            ranges: stated.ranges,
            is_unnumbered: stated.is_unnumbered,
            compression: stated.compression,
            block_size: stated.block_size,
            seed: stated.seed,
            filter_policy: stated.filter_policy,
            filter_millibits: stated.filter_millibits,
            filter_keys: stated.filter_keys,
            filter_hash: stated.filter_hash,
            range_filter: stated.range_filter,
            extras: stated.extras.clone(),
            keyspace: stated.keyspace,
            ..self.properties
        };
        found == *stated
    }
}
