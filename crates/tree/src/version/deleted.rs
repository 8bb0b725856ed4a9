//! How much of a table range deletes have deleted, judged by the keys that it has.
//!
//! The index of a table separates its data blocks. A block between two separators that a range
//! delete covers is deleted whole, and one that no range meets is not: their bytes are known
//! without a read. The ends of ranges lie within blocks. If these hold but a small part of the
//! table, half of their bytes count. If they hold more, because the ranges are smaller than blocks,
//! the survey reads a few of them and counts their entries.
//!
//! It does not matter how the keys are spread, in which level the table is, or how many blocks it
//! has. Reading takes time, so the picker is given the results (`db::upkeep`).

use std::ops::Range;
use std::sync::Arc;

use super::draws::{Piece, draw, part_of};
use crate::error::Result;
use crate::format::key::SeqNo;
use crate::sorted::range_table::RangeSet;
use crate::sorted::ranges::{Covers, Stretch};
use crate::sorted::table::{Table, TableMeta};

/// Most stretches of ranges that an estimate of keys looks at in a table.
const MAX_STRETCHES: usize = 64;
/// If blocks that are deleted in part hold at most this part of a table, as a divisor, none of them
/// is read.
const FEW_PARTIAL: u64 = 16;
/// Otherwise so many of them are read.
const SAMPLES: usize = 16;
/// The golden ratio less one, a half and one, in 1/2^32.
const GOLDEN_RATIO: u128 = 0x9E37_79B9;
const HALF: u128 = ONE / 2;
const ONE: u128 = 1 << 32;
/// Bytes that an entry counts for in addition to its key and value.
const ENTRY_COST: u64 = 8;
/// Of ranges that came since a table was looked at, one is wide if it has one byte in this many of
/// it, and all are many if they are one in [`MANY_NEW`] of those known then.
const WIDE: f64 = 1.0 / 32.0;
const MANY_NEW: usize = 8;

/// The stretches of a table's keys that a range delete deletes whole: those numbered above all of
/// the table's entries. The first and last key of each; the last one may lie beyond the table.
pub(super) fn deleted_stretches<'a>(table: &'a TableMeta, ranges: &'a Covers) -> impl Iterator<Item = Stretch> + 'a {
    let stretches = stretches(table, ranges).filter(|_| table.largest_seqno < ranges.snapshot());
    stretches.take(MAX_STRETCHES).filter(|stretch| stretch.cover() > table.largest_seqno)
}

/// The stretches in which a table's keys lie, in order.
fn stretches<'a>(table: &'a TableMeta, ranges: &'a Covers) -> impl Iterator<Item = Stretch> + 'a {
    let mut next = Some(ranges.stretch(&table.smallest));
    std::iter::from_fn(move || {
        let stretch = next.take()?;
        next = stretch.to.as_ref().filter(|to| ***to <= *table.largest).map(|to| ranges.stretch(to));
        Some(stretch)
    })
}

/// What is known of a table's deleted entries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surveyed {
    /// Range deletes numbered up to this are taken into account.
    pub limit: SeqNo,
    /// Bytes of the table that hold entries which they delete.
    pub bytes: u64,
    /// Number of their fragments that meet the table.
    fragments: usize,
}

impl Surveyed {
    /// What is known of a table when ranges numbered up to `limit`, which all snapshots see, count.
    /// `known` is what was known before.
    ///
    /// A table is looked at again when the ranges in it have become more by a part, or when a new
    /// one is wide. All looks together then cost a time in proportion to the number of ranges.
    pub fn of(known: Option<Surveyed>, table: &Arc<Table>, ranges: &RangeSet, limit: SeqNo) -> Surveyed {
        let (meta, known) = (table.meta(), known.unwrap_or_default());
        let since = known.limit.max(meta.cleared);
        if since >= limit {
            return known;
        }
        let new = match meta.smallest_seqno < limit {
            true => ranges.count_between(&meta.smallest, &meta.largest, since),
            false => 0,
        };
        if new == 0 {
            return Surveyed { limit, ..known };
        }
        let is_wide = |span| table.share(span).is_ok_and(|share| share >= WIDE);
        if new < known.fragments / MANY_NEW && !ranges.between(&meta.smallest, &meta.largest, since).any(is_wide) {
            return known;
        }
        let covers = Covers::new(ranges.sources().collect(), limit);
        // If the table cannot be read now, the next survey tries again.
        let Ok(bytes) = deleted_bytes(table, &covers) else { return known };
        Surveyed { limit, bytes, fragments: ranges.count_between(&meta.smallest, &meta.largest, meta.cleared) }
    }
}

/// The data blocks of a table that are deleted.
#[derive(Default)]
struct DeletedBlocks {
    /// Bytes of those of which every entry is.
    whole: u64,
    /// Positions of those of which some entries may be.
    partial: Vec<Range<usize>>,
}

impl DeletedBlocks {
    fn add_partial(&mut self, blocks: Range<usize>) {
        match self.partial.last_mut() {
            Some(last) if blocks.start <= last.end => last.end = last.end.max(blocks.end),
            _ if !blocks.is_empty() => self.partial.push(blocks),
            _ => {}
        }
    }

    fn find(table: &Table, ranges: &Covers) -> Result<DeletedBlocks> {
        let (meta, len) = (table.meta(), table.block_count()?);
        let mut found = DeletedBlocks::default();
        // Stretches that are deleted whole are joined before blocks are asked for.
        let mut run: Option<Stretch> = None;
        for stretch in stretches(meta, ranges) {
            let is_whole = stretch.cover() > meta.largest_seqno;
            match &mut run {
                Some(run) if is_whole => run.to = stretch.to,
                _ => {
                    if let Some(run) = run.take() {
                        found.add_whole(table, len, &run)?;
                    }
                    if is_whole {
                        run = Some(stretch);
                    } else if stretch.cover() > meta.cleared {
                        let blocks = Self::blocks(table, len, &stretch)?;
                        found.add_partial(blocks.start..(blocks.end + 1).min(len));
                    }
                }
            }
        }
        if let Some(run) = run {
            found.add_whole(table, len, &run)?;
        }
        Ok(found)
    }

    /// The block in which a stretch begins and that in which the next one does.
    fn blocks(table: &Table, len: usize, stretch: &Stretch) -> Result<Range<usize>> {
        let ends_within = stretch.to.as_deref().filter(|to| *to <= &*table.meta().largest);
        let end = ends_within.map_or(Ok(len), |to| table.block_at(to))?;
        Ok(table.block_at(&stretch.from)?.min(end)..end)
    }

    fn add_whole(&mut self, table: &Table, len: usize, stretch: &Stretch) -> Result<()> {
        let blocks = Self::blocks(table, len, stretch)?;
        // Unless it begins before the table, keys before it may be in its first block.
        let first = if *stretch.from <= *table.meta().smallest { 0 } else { (blocks.start + 1).min(len) };
        if first > blocks.start {
            self.add_partial(blocks.start..first);
        }
        if first < blocks.end {
            self.whole += table.block_bytes(first..blocks.end)?;
        }
        self.add_partial(blocks.end.max(first)..(blocks.end + 1).min(len));
        Ok(())
    }
}

/// About how many bytes of a table hold entries that `ranges` delete, which all snapshots see.
fn deleted_bytes(table: &Arc<Table>, ranges: &Covers) -> Result<u64> {
    let meta = table.meta();
    let mut pieces = stretches(meta, ranges);
    if let (Some(all), None) = (pieces.next(), pieces.next())
        && all.cover() > meta.largest_seqno
    {
        return Ok(meta.total_size());
    }
    drop(pieces);
    if !meta.references.is_empty() {
        // Blocks do not tell how long the values are to which they point.
        let whole = Piece::new(table, 0..table.block_count()?)?;
        let found = draw(&[whole], |entry| Ok(ranges.stretch(entry.key).cover() > entry.seqno))?;
        return Ok(part_of(meta.total_size(), found.meant / f64::max(found.all, 1.0)));
    }
    let found = DeletedBlocks::find(table, ranges)?;
    let all = table.block_bytes(0..table.block_count()?)?.max(1);
    let partial = found.partial.iter().try_fold(0, |sum, blocks| Ok(sum + table.block_bytes(blocks.clone())?))?;
    let of_partial = match partial <= all / FEW_PARTIAL {
        true => partial / 2,
        false => {
            let (deleted, seen) = deleted_of_samples(table, &found.partial, ranges)?;
            share_of(partial, deleted, seen)
        }
    };
    Ok(share_of(meta.size, (found.whole + of_partial).min(all), all))
}

/// `part / whole` of some bytes; `part` is at most `whole`.
fn share_of(bytes: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(bytes)
}

/// Of some of these blocks, the bytes that `ranges` delete, and all bytes.
fn deleted_of_samples(table: &Arc<Table>, blocks: &[Range<usize>], ranges: &Covers) -> Result<(u64, u64)> {
    let count = blocks.iter().map(Range::len).sum::<usize>();
    let mut samples: Vec<usize> = match count <= SAMPLES {
        true => (0..count).collect(),
        // Multiples of the golden ratio are spread evenly, and not in steps that ranges may have
        // too.
        false => (0..SAMPLES as u128)
            .filter_map(|i| usize::try_from((HALF + i * GOLDEN_RATIO) % ONE * count as u128 / ONE).ok())
            .collect(),
    };
    samples.sort_unstable();
    samples.dedup();
    let mut cursor = table.cursor(false).uncounted();
    let (mut all, mut deleted) = (0, 0);
    let mut stretch = None::<Stretch>;
    let (mut runs, mut passed) = (blocks.iter(), 0);
    let mut run = runs.next();
    for sample in samples {
        while let Some(blocks) = run.filter(|blocks| sample >= passed + blocks.len()) {
            passed += blocks.len();
            run = runs.next();
        }
        let Some(blocks) = run else { break };
        cursor.visit_block(blocks.start + (sample - passed), |entry| {
            if stretch.as_ref().is_none_or(|stretch| !stretch.holds(entry.key)) {
                stretch = Some(ranges.stretch(entry.key));
            }
            let len = entry.stored_len() + entry.separate_len + ENTRY_COST;
            all += len;
            if stretch.as_ref().is_some_and(|stretch| stretch.cover() > entry.seqno) {
                deleted += len;
            }
        })?;
    }
    Ok((deleted, all))
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use super::*;
    use crate::format::key::ValueKind;
    use crate::options::Compression;
    use crate::sorted::range_table::RangeTable;
    use crate::sorted::ranges::Fragment;
    use crate::sorted::ranges::{NO_SNAPSHOT, RangeLayer, RangeSource};
    use crate::sorted::table::{TableBuilder, TableContext, TableFilters, TableOptions};
    use crate::vfs::{FileSystem, SimFileSystem};

    pub(in super::super) const OPTIONS: TableOptions = TableOptions {
        filters: TableFilters::NONE,
        compression: Compression::None,
        block_size: 512,
        seed: 0,
        keyspace: 0,
    };

    pub(in super::super) fn context() -> Arc<TableContext> {
        let fs = SimFileSystem::new();
        fs.create_dir(Path::new("/db")).unwrap();
        Arc::new(TableContext::new(Arc::new(fs), Path::new("/db"), 0, 8))
    }

    /// A table in which the entry of `keys[i]` is numbered `numbers(i)`.
    fn table(context: &Arc<TableContext>, keys: &[Vec<u8>], numbers: impl Fn(usize) -> SeqNo) -> Arc<Table> {
        let mut builder = TableBuilder::new(context.fs(), context.dir(), 1, OPTIONS).unwrap();
        for (i, key) in keys.iter().enumerate() {
            builder.add(key, numbers(i), ValueKind::Put, &[7; 20]).unwrap();
        }
        Arc::new(Table::new(Arc::clone(context), builder.finish().unwrap()))
    }

    /// Sensors and times, names, and numbers, in order.
    fn shapes() -> [Vec<Vec<u8>>; 3] {
        let sensors = (0..3000u64)
            .map(|i| [&(i / 300).to_be_bytes()[6..], &((1 << 40) | (i % 300 * 60_000)).to_be_bytes()].concat());
        let names = (0..3000u64).map(|i| format!("user:{:03}:order-{:02}", i / 30, i % 30).into_bytes());
        [sensors.collect(), names.collect(), (0..3000).map(|i| format!("{i:09}").into_bytes()).collect()]
    }

    /// A version's ranges that delete the keys at these positions, each numbered by its position in
    /// the list above 100,000.
    fn covers(keys: &[Vec<u8>], ranges: impl Iterator<Item = Range<usize>>, limit: SeqNo) -> Covers {
        let mut layer = RangeLayer::default();
        for (i, Range { start, end }) in ranges.enumerate() {
            layer.push(&keys[start], &[&keys[end - 1][..], &[0]].concat(), 100_000 + i as u64);
        }
        Covers::new(vec![Arc::new(layer) as Arc<dyn RangeSource>], limit)
    }

    #[test]
    fn the_keys_that_exist_are_judged_however_they_are_spread_and_however_the_ranges_lie() {
        for (number, keys) in shapes().iter().enumerate() {
            let context = context();
            let table = table(&context, keys, |i| i as u64 + 1);
            assert!(table.block_count().unwrap() > 100);
            let len = keys.len();
            let each = |step: usize, deleted: Range<usize>| {
                (0..len / step).map(move |i| i * step + deleted.start..i * step + deleted.end)
            };
            // The share of the keys that are deleted.
            let cases: [(&str, Vec<Range<usize>>, f64); 8] = [
                ("the older nine tenths of each sensor", each(300, 0..270).collect(), 0.9),
                ("two sensors of three", each(900, 0..600).collect(), 0.6),
                ("small ranges", each(10, 0..7).collect(), 0.7),
                ("few small ranges", each(100, 0..2).collect(), 0.02),
                ("a range per key", each(2, 1..2).collect(), 0.5),
                ("one range", std::iter::once(500..1500).collect(), 1.0 / 3.0),
                ("many ranges at the front", (0..500).map(|i| i..i + 1).collect(), 1.0 / 6.0),
                ("all", std::iter::once(0..len).collect(), 1.0),
            ];
            for (name, ranges, share) in cases {
                let ranges = covers(keys, ranges.into_iter(), NO_SNAPSHOT);
                let found = deleted_bytes(&table, &ranges).unwrap() as f64 / table.meta().size as f64;
                assert!((found - share).abs() < 0.06, "{name}, keys {number}: {found} instead of {share}");
            }
            let absent = covers(keys, each(10, 0..7), 99_999);
            assert_eq!(deleted_bytes(&table, &absent).unwrap(), 0, "a snapshot sees all of it");
        }
    }

    #[test]
    fn a_table_with_newer_entries_is_judged_by_their_numbers() {
        let keys = &shapes()[0];
        let context = context();
        // Every second entry is newer than the ranges.
        let table = table(&context, keys, |i| if i % 2 == 0 { 200_000 } else { 5 });
        let ranges = covers(keys, std::iter::once(0..2000), NO_SNAPSHOT);
        let found = deleted_bytes(&table, &ranges).unwrap() as f64 / table.meta().size as f64;
        assert!((found - 1.0 / 3.0).abs() < 0.06, "{found}");
    }

    #[test]
    fn tables_of_one_block_are_read() {
        for keys in shapes() {
            let context = context();
            let keys = &keys[..8];
            let table = table(&context, keys, |_| 5);
            assert_eq!(table.block_count().unwrap(), 1);
            let ranges = covers(keys, std::iter::once(2..8), NO_SNAPSHOT);
            let found = deleted_bytes(&table, &ranges).unwrap() as f64 / table.meta().size as f64;
            assert!((found - 0.75).abs() < 0.05, "{found}");
        }
    }

    #[test]
    fn a_table_is_looked_at_again_when_ranges_are_many_more_or_one_is_wide() {
        let keys = &shapes()[2];
        let context = context();
        let table = table(&context, keys, |_| 5);
        let range_table = |number: u64, ranges: &[Range<usize>]| {
            let mut builder = TableBuilder::new(context.fs(), context.dir(), number, OPTIONS.for_ranges()).unwrap();
            for Range { start, end } in ranges {
                let (start, end) = (&*keys[*start], Some(&*keys[*end]));
                builder.add_range(&Fragment { start, end, seqno: number }).unwrap();
            }
            let table = Table::new(Arc::clone(&context), builder.finish().unwrap()).of_ranges(true);
            Arc::new(RangeTable::load(Arc::new(table)).unwrap())
        };
        let each = |step: usize, from: usize| (0..2900 / step).map(move |i| i * step + from..i * step + from + 1);
        let first = range_table(10, &each(10, 0).collect::<Vec<_>>());
        let set = |more: &[Arc<RangeTable>]| RangeSet::new([std::slice::from_ref(&first), more].concat());
        let known = Surveyed::of(None, &table, &set(&[]), 10);
        let share = |surveyed: Surveyed| surveyed.bytes as f64 / table.meta().size as f64;
        assert!((share(known) - 0.1).abs() < 0.04 && known.limit == 10, "{known:?}");

        let few = range_table(20, &each(100, 5).collect::<Vec<_>>());
        let after = Surveyed::of(Some(known), &table, &set(&[Arc::clone(&few)]), 20);
        assert_eq!((after.limit, after.bytes), (10, known.bytes), "few and small ones");
        let more = range_table(30, &each(100, 7).collect::<Vec<_>>());
        let after = Surveyed::of(Some(after), &table, &set(&[Arc::clone(&few), more]), 30);
        assert!(after.limit == 30, "as many since it was looked at: {after:?}");
        let wide = range_table(40, std::slice::from_ref(&(1000..2000)));
        let after = Surveyed::of(Some(known), &table, &set(&[few, wide]), 40);
        assert!(after.limit == 40 && share(after) > 0.35, "{after:?}");
        let behind = range_table(50, std::slice::from_ref(&(2950..2960)));
        let beside =
            Table::new(Arc::clone(&context), TableMeta { largest: keys[2900].clone().into(), ..table.meta().clone() });
        let none = Surveyed::of(None, &Arc::new(beside), &RangeSet::new(vec![behind]), 50);
        assert_eq!((none.limit, none.bytes), (50, 0), "the table is not opened");
    }
}
