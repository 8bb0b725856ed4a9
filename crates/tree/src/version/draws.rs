//! Draws entries evenly from the bytes of tables: what they are like by bytes, whatever their
//! lengths.

use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::format::key::SeqNo;
use crate::sorted::table::{Table, TableCursor};

/// Entries drawn from some tables. Of those of which a fifth is meant, 24 in 25 are seen to be
/// meant by a tenth, which is worth a merge.
const SAMPLES: u32 = 48;
/// If none of the first is meant, no more are drawn. That misses 3 in 100 of the tables of which a
/// fifth is meant.
const FIRST_SAMPLES: u32 = 16;
/// No more are drawn once so many bytes of blocks have been read.
const MOST_READ: u64 = 32 << 20;

/// Numbers from 0 to 1, spread evenly: multiples of the golden ratio less whole numbers. They have
/// no step that keys may have too.
fn spread(i: u32) -> f64 {
    (f64::from(i) * 0.618_033_988_749_895).fract()
}

/// A part of some bytes.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
pub(super) fn part_of(bytes: u64, part: f64) -> u64 {
    (part * bytes as f64) as u64
}

/// Blocks of a table, from which entries are drawn.
pub(super) struct Piece<'t> {
    table: &'t Arc<Table>,
    blocks: Range<usize>,
    pub(super) bytes: u64,
}

impl<'t> Piece<'t> {
    pub(super) fn new(table: &'t Arc<Table>, blocks: Range<usize>) -> Result<Piece<'t>> {
        Ok(Piece { table, bytes: table.block_bytes(blocks.clone())?, blocks })
    }

    /// The blocks that may have keys from `smallest` to `largest`.
    pub(super) fn between(table: &'t Arc<Table>, smallest: &[u8], largest: &[u8]) -> Result<Piece<'t>> {
        let end = (table.block_at(largest)? + 1).min(table.block_count()?);
        Piece::new(table, table.block_at(smallest)?.min(end)..end)
    }

    /// The block that has byte `at` of them.
    fn block_with(&self, at: u64) -> Result<usize> {
        let Range { mut start, mut end } = self.blocks;
        while end - start > 1 {
            let middle = start.midpoint(end);
            let is_before = self.table.block_bytes(self.blocks.start..middle)? <= at;
            *(if is_before { &mut start } else { &mut end }) = middle;
        }
        Ok(start)
    }
}

/// An entry that was drawn.
pub(super) struct Drawn<'a> {
    pub(super) key: &'a [u8],
    pub(super) seqno: SeqNo,
    /// How many bytes its block stands for, with those in value files, for each byte in the table.
    pub(super) weight: f64,
}

/// The entries of a block.
#[derive(Default)]
struct Entries {
    /// For each: its number, and where it and its key end.
    ends: Vec<(SeqNo, u64, usize)>,
    keys: Vec<u8>,
    /// Bytes in the table.
    stored: u64,
    /// Bytes with those in value files.
    all: u64,
}

impl Entries {
    fn read(&mut self, cursor: &mut TableCursor, block: usize) -> Result<()> {
        let Entries { ends, keys, stored, all } = self;
        ends.clear();
        keys.clear();
        (*stored, *all) = (0, 0);
        cursor.visit_block(block, |entry| {
            *stored += entry.stored_len();
            *all += entry.stored_len() + entry.separate_len;
            keys.extend_from_slice(entry.key);
            ends.push((entry.seqno, *all, keys.len()));
        })
    }

    /// The entry at a part, from 0 to 1, of the bytes for which the block stands.
    #[allow(clippy::cast_precision_loss)]
    fn at(&self, part: f64) -> Option<Drawn<'_>> {
        let at = part_of(self.all, part);
        let i = self.ends.partition_point(|(_, end, _)| *end <= at);
        let (seqno, _, key_end) = *self.ends.get(i)?;
        let key_start = i.checked_sub(1).map_or(0, |before| self.ends[before].2);
        let weight = self.all as f64 / u64::max(self.stored, 1) as f64;
        Some(Drawn { key: &self.keys[key_start..key_end], seqno, weight })
    }
}

/// What was found of entries that were drawn.
#[derive(Default)]
pub(super) struct Found {
    /// Entries drawn.
    pub(super) count: f64,
    /// Weights of all of them, and of those that were meant.
    pub(super) all: f64,
    pub(super) meant: f64,
    /// Bytes of blocks that were read for them.
    pub(super) read: u64,
}

/// Draws entries evenly from the bytes of some pieces, and asks which are meant.
pub(super) fn draw(pieces: &[Piece<'_>], mut is_meant: impl FnMut(&Drawn<'_>) -> Result<bool>) -> Result<Found> {
    let bytes = pieces.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.bytes));
    let (mut entries, mut found) = (Entries::default(), Found::default());
    for i in 1..=SAMPLES {
        let mut at = part_of(bytes, spread(i));
        let holder = pieces.iter().find(|piece| {
            let is_it = at < piece.bytes;
            at -= if is_it { 0 } else { piece.bytes };
            is_it
        });
        let is_enough = found.read >= MOST_READ || i > FIRST_SAMPLES && found.meant == 0.0;
        let Some(piece) = holder.filter(|_| !is_enough) else { break };
        let block = piece.block_with(at)?;
        found.read += piece.table.block_bytes(block..block + 1)?;
        entries.read(&mut piece.table.cursor(false).uncounted(), block)?;
        // Not at the part that has led to the block, which may be in step with it.
        let Some(drawn) = entries.at(spread(i * i)) else { continue };
        found.count += 1.0;
        found.all += drawn.weight;
        found.meant += if is_meant(&drawn)? { drawn.weight } else { 0.0 };
    }
    Ok(found)
}
