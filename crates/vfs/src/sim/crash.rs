//! What a power cut leaves.
//!
//! What was synced stays exactly. A seed decides the rest, for each directory and each file
//! separately, so that a change in one file does not change the fate of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::disk::{Dir, Disk, Inode, NameOp, ROOT, SimFile};

/// What a disk writes atomically, in bytes.
const SECTOR_SIZE: usize = 512;
/// What a system writes to the disk at one moment, in bytes.
const PAGE_SIZE: usize = 4096;

/// SplitMix64.
pub(super) struct Rng(u64);

impl Rng {
    /// The numbers of one seed for one purpose, independent of other purposes.
    pub(super) fn new(seed: u64, purpose: u64) -> Rng {
        Rng(Rng(seed).next() ^ Rng(!purpose).next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        let number = self.next() % n.max(1) as u64;
        // The number is below a `usize`.
        usize::try_from(number).unwrap_or_default()
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

impl Disk {
    pub(super) fn after_power_cut(&self, seed: u64) -> Disk {
        let mut names = self.surviving_names(seed);
        let mut disk = Disk { capacity: self.capacity, next_inode: self.next_inode, ..Disk::new() };
        // What is unreachable from the root is gone: a directory is lost with its name in its
        // parent.
        let mut dirs = vec![ROOT];
        while let Some(dir) = dirs.pop() {
            let names = names.remove(&dir).unwrap_or_default();
            for &inode in names.values() {
                match self.files.get(&inode) {
                    Some(file) => {
                        let survivor = || SimFile { links: 0, ..file.after_power_cut(&mut Rng::new(seed, inode)) };
                        disk.files.entry(inode).or_insert_with(survivor).links += 1;
                    }
                    None => dirs.push(inode),
                }
            }
            let durable = names.clone();
            disk.dirs.insert(dir, Dir { names, durable });
        }
        disk
    }

    /// The surviving names of each directory. Operations on different names may survive out of
    /// order; an operation survives only with all earlier ones on its names.
    fn surviving_names(&self, seed: u64) -> BTreeMap<Inode, BTreeMap<String, Inode>> {
        let mut dirs: BTreeMap<_, _> = self.dirs.iter().map(|(&inode, dir)| (inode, dir.durable.clone())).collect();
        let mut op_counts = BTreeMap::<Inode, usize>::new();
        for op in &self.pending {
            *op_counts.entry(op.dir()).or_default() += 1;
        }
        let mut fates: BTreeMap<Inode, NamesFate> = op_counts
            .into_iter()
            .map(|(dir, op_count)| (dir, NamesFate::draw(Rng::new(seed, dir), op_count)))
            .collect();
        let mut in_doubt = BTreeSet::new();
        for op in &self.pending {
            let survives = fates.get_mut(&op.dir()).is_some_and(NamesFate::next)
                && !op.0.iter().any(|b| in_doubt.contains(&(b.dir, &b.name)));
            if !survives {
                in_doubt.extend(op.0.iter().map(|b| (b.dir, &b.name)));
                continue;
            }
            for binding in &op.0 {
                if let Some(names) = dirs.get_mut(&binding.dir) {
                    binding.apply(names);
                }
            }
        }
        dirs
    }
}

impl NameOp {
    /// The directory that decides the fate of the operation: the one that gets the new name.
    fn dir(&self) -> Inode {
        self.0.last().map_or(ROOT, |binding| binding.dir)
    }
}

/// Decides for the operations in a directory, one after the other, whether each reached the disk.
enum NamesFate {
    /// Only this many of the next operations survive: possibly none, possibly all.
    Prefix(usize),
    /// Each operation survives independently.
    Subset(Rng),
}

impl NamesFate {
    fn draw(mut rng: Rng, op_count: usize) -> NamesFate {
        match rng.below(4) {
            0 => NamesFate::Prefix(0),
            1 => NamesFate::Prefix(op_count),
            2 => NamesFate::Prefix(rng.below(op_count + 1)),
            _ => NamesFate::Subset(rng),
        }
    }

    fn next(&mut self) -> bool {
        match self {
            NamesFate::Prefix(0) => false,
            NamesFate::Prefix(left) => {
                *left -= 1;
                true
            }
            NamesFate::Subset(rng) => rng.coin(),
        }
    }
}

impl SimFile {
    fn after_power_cut(&self, rng: &mut Rng) -> SimFile {
        let (end, zeroed) = self.tail_fate(rng);
        let len = self.len_with_zeros(end, rng);
        if len == self.data.len() && end == self.end && zeroed.is_empty() && self.lost.is_empty() {
            return SimFile::durable(Arc::clone(&self.data));
        }
        let mut data = self.data.get(..end).unwrap_or_default().to_vec();
        for range in self.lost.iter().chain(&zeroed) {
            let range = range.start.min(end)..range.end.min(end);
            if let Some(bytes) = data.get_mut(range) {
                bytes.fill(0);
            }
        }
        data.resize(len, 0);
        SimFile::durable(Arc::new(data))
    }

    /// The length of a file whose content ends at `end`. Zeros after it that were prepared but not
    /// synced may be there or not.
    fn len_with_zeros(&self, end: usize, rng: &mut Rng) -> usize {
        let least = end.max(self.prepared);
        if self.data.len() > self.end && rng.coin() { self.data.len() } else { least }
    }

    /// The end of the content, and the parts of its unsynced tail that are zero.
    fn tail_fate(&self, rng: &mut Rng) -> (usize, Vec<Range<usize>>) {
        let whole = self.end;
        match rng.below(9) {
            _ if self.appends.is_empty() => (self.len_without_tail(rng), Vec::new()),
            0 => (whole, Vec::new()),
            1 => (self.some_append_end(rng), Vec::new()),
            2 => (self.torn_len(rng), Vec::new()),
            3 => {
                let len = self.some_append_end(rng);
                let sectors = self.tail_sectors(len);
                let first = rng.below(sectors.len());
                let count = 1 + rng.below(sectors.len() - first);
                let zeroed = sectors.into_iter().skip(first).take(count);
                (len, zeroed.collect())
            }
            4 => {
                let len = self.some_append_end(rng);
                let sectors = self.tail_sectors(len);
                // One sector survives although an earlier one does not; a single sector is lost.
                let present = sectors.len() - 1 - rng.below(sectors.len() - 1);
                let missing = rng.below(present);
                let zeroed =
                    sectors.into_iter().enumerate().filter(|&(i, _)| i == missing || (i != present && rng.coin()));
                (len, zeroed.map(|(_, sector)| sector).collect())
            }
            5 => (self.len_without_tail(rng), Vec::new()),
            _ => {
                let len = if rng.coin() { whole } else { self.some_append_end(rng) };
                (len, self.not_yet_written(len, rng))
            }
        }
    }

    /// The bytes before `len` that are zero if each sector, or each page, is as it was at a moment
    /// of its own. A moment is the number of bytes written since the last sync.
    fn not_yet_written(&self, len: usize, rng: &mut Rng) -> Vec<Range<usize>> {
        let unit = if rng.coin() { SECTOR_SIZE } else { PAGE_SIZE };
        let all = self.end - self.settled;
        let earliest = rng.below(all + 1);
        let latest = earliest + rng.below(all - earliest + 1);
        let amid_appends = rng.coin();
        let mut draw_moment = |_| {
            let most = earliest + rng.below(latest - earliest + 1);
            let moment = if rng.below(8) == 0 { rng.below(all + 1) } else { most };
            let finished = self.appends.partition_point(|append| append.end - self.settled <= moment);
            let last_end = finished
                .checked_sub(1)
                .and_then(|last| self.appends.get(last))
                .map_or(0, |last| last.end - self.settled);
            if amid_appends { moment } else { last_end }
        };
        let first_unit = self.settled / unit;
        let moments: Vec<usize> = (first_unit..len.div_ceil(unit)).map(&mut draw_moment).collect();
        let mut absent = Vec::new();
        let mut start = self.settled;
        for append in &self.appends {
            let (end, head_end) = (append.end, append.end.min(start + append.head_len));
            for (index, moment) in (first_unit..).zip(&moments).skip(start / unit - first_unit) {
                let (from, to) = (index * unit, (index + 1) * unit);
                if from >= end {
                    break;
                }
                let written = moment.saturating_sub(start - self.settled);
                let written_of_head = written.saturating_sub(end - head_end);
                absent.push(from.max(head_end + written)..to.min(end));
                absent.push(from.max(start + written_of_head)..to.min(head_end));
            }
            start = end;
        }
        absent.retain(|range| range.start < range.end);
        absent
    }

    /// A failed sync may or may not have written the length; bytes after the last successful one
    /// are not promised.
    fn len_without_tail(&self, rng: &mut Rng) -> usize {
        let mut synced = self.settled;
        for range in self.lost.iter().rev() {
            if range.end == synced {
                synced = range.start;
            }
        }
        if rng.coin() { synced } else { self.settled }
    }

    fn some_append_end(&self, rng: &mut Rng) -> usize {
        let index = rng.below(self.appends.len());
        self.appends.get(index).map_or(self.settled, |append| append.end)
    }

    /// Up to the end of a sector within the tail; if there is none, the tail is lost.
    fn torn_len(&self, rng: &mut Rng) -> usize {
        let mut ends = self.tail_sectors(self.end);
        ends.pop();
        let index = rng.below(ends.len());
        ends.get(index).map_or(self.settled, |sector| sector.end)
    }

    /// The sectors of the tail in a file cut at `len`, the first without its settled part.
    fn tail_sectors(&self, len: usize) -> Vec<Range<usize>> {
        (self.settled / SECTOR_SIZE..len.div_ceil(SECTOR_SIZE))
            .map(|sector| sector * SECTOR_SIZE)
            .map(|start| start.max(self.settled)..(start + SECTOR_SIZE).min(len))
            .collect()
    }
}
