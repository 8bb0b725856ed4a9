//! [`Shape`]: how many runs level 0 may have, and how large the levels are.
//!
//! `rivals` compares shapes by what they write and by how many runs reads meet.

use crate::version::LEVELS;

/// Number of level-0 runs that starts a compaction. Each run costs a get a filter probe and a seek
/// a block. Merging more runs at once rewrites the level below less often.
pub const L0_TRIGGER: usize = 12;
/// Ratio of a level's target to that of the level above. With 8, a large store would write a
/// twentieth less, and hold a fourth more above the last level, where reads look first.
const FANOUT: u64 = 10;
/// Level 0 is compacted straight into a level of up to this many times the base size. Below that
/// size, a level in between would rewrite every byte once and save less than that.
pub(super) const BASE_FANOUT: u64 = 8;
/// Most neighbours that move down from a level together. Each task rewrites two tables of the next
/// level that it overlaps only in part. A billion entries of 116 bytes are written 10.0 times; they
/// were 10.7 times with one table at a time.
const MOST_NEIGHBOURS: usize = 8;

/// What decides how many runs there are, and how large.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub(super) l0_trigger: usize,
    pub(super) fanout: u64,
    pub(super) base_fanout: u64,
    pub(super) neighbours: usize,
}

impl Shape {
    /// That of every store. Only the simulation knows others.
    pub const USUAL: Shape =
        Shape { l0_trigger: L0_TRIGGER, fanout: FANOUT, base_fanout: BASE_FANOUT, neighbours: MOST_NEIGHBOURS };

    /// The targets for a last level of `last` bytes, if a full level 0 has `base_size`.
    pub(super) fn targets(&self, last: u64, base_size: u64) -> LevelTargets {
        let limit = base_size.saturating_mul(self.base_fanout);
        let (mut sizes, mut level) = ([0; LEVELS], LEVELS - 1);
        let mut target = last.max(limit);
        sizes[level] = target;
        while target > limit && level > 1 {
            target /= self.fanout;
            level -= 1;
            sizes[level] = target.max(base_size);
        }
        LevelTargets { base_level: level, sizes }
    }
}

/// Target sizes of the levels.
#[derive(Debug, PartialEq, Eq)]
pub struct LevelTargets {
    /// The level into which level 0 is compacted.
    pub base_level: usize,
    /// In bytes; 0 above the base level.
    pub sizes: [u64; LEVELS],
}
