//! What does a power cut leave of a log written by stores to mapped memory?
//!
//! Each sector or page shows a moment of its own since the last sync, also one in the middle of a
//! store. The database must show a prefix of the writes, whole batches only, everything that was
//! synced, and never damage.
//!
//! `TAMIS_SEEDS` sets the number of histories, `TAMIS_CUTS` the number of cuts in each;
//! `TAMIS_SEED` runs one.

use std::collections::BTreeSet;

use tamis::vfs::SimFileSystem;
use tamis::{Db, Executor, WalMode, WriteBatch, WriteOptions};

use crate::support::{Scene, count_from_env, for_each_seed, stepped_options};

/// A store of ascending numbers.
struct Numbers {
    fs: SimFileSystem,
    rng: fastrand::Rng,
    /// Count of numbers after each batch.
    ends: BTreeSet<u32>,
    count: u32,
    /// Count of writes that were promised to survive.
    durable: u32,
}

impl Numbers {
    fn new(seed: u64) -> Numbers {
        let rng = fastrand::Rng::with_seed(seed);
        Numbers { fs: SimFileSystem::new(), rng, ends: BTreeSet::from([0]), count: 0, durable: 0 }
    }

    /// Opens the store and writes until the power goes at mutating call `cut`, or for a while.
    fn live(&mut self, cut: u64) {
        // Windows of 4 KiB, 64 KiB and more.
        let memtable_size = [16 << 10, 256 << 10, 16 << 20][self.rng.usize(0..3)];
        let (options, executor) = stepped_options(&self.fs);
        let db = options.memtable_size(memtable_size).wal_mode(WalMode::Auto).open("/db").unwrap();
        self.fs.crash_at(Some(cut));
        let syncs_per_100 = [0, 2, 20][self.rng.usize(0..3)];
        let longest = [40, 700, 5000][self.rng.usize(0..3)];
        for _ in 0..self.rng.u32(1..300) {
            let mut batch = WriteBatch::new();
            let size = if self.rng.u8(0..4) == 0 { self.rng.u32(2..20) } else { 1 };
            let end = self.count + size;
            for n in self.count..end {
                // A large value is written by a call of its own, between stores.
                let len = if self.rng.u16(0..1000) == 0 { 1 << 20 } else { self.rng.usize(0..longest) };
                batch.put(n.to_be_bytes(), value(n, len));
            }
            self.ends.insert(end);
            let sync = self.rng.u8(0..100) < syncs_per_100;
            if db.write_with(batch, WriteOptions::new().sync(sync)).is_err() {
                break;
            }
            self.count = end;
            if sync || self.rng.u8(0..200) == 0 && db.sync().is_ok() {
                self.durable = end;
            }
            if self.rng.u8(0..30) == 0 {
                executor.step();
            }
        }
        // Calls by the handle's drop come too late.
        self.fs = self.fs.crash_point().unwrap_or_else(|| self.fs.kill());
    }
}

fn value(n: u32, len: usize) -> Vec<u8> {
    n.to_le_bytes().repeat(len / 4 + 1)
}

/// The numbers in the store, each of which must have its value.
fn found(db: &Db) -> Vec<u32> {
    let number = |entry: tamis::Result<(tamis::Value, tamis::Value)>| {
        let (key, found) = entry.unwrap();
        let n = u32::from_be_bytes(key[..].try_into().unwrap());
        assert_eq!(found[..], value(n, found.len() - 4));
        n
    };
    db.iter().map(number).collect()
}

/// Cuts a history at one of its calls. Each outcome must be a moment of the history, and one of
/// them continues it.
fn cut(seed: u64) {
    let mut numbers = Numbers::new(seed);
    for life in 0..3 {
        let cut = numbers.rng.u64(1..600);
        let _scene = Scene(format!("life {life}, cut at call {cut}"));
        numbers.live(cut);
        let cuts = count_from_env("TAMIS_CUTS", 8);
        let mut outcomes: Vec<u64> = (0..cuts).map(|_| numbers.rng.u64(..)).collect();
        let last = outcomes.pop();
        for outcome in outcomes.into_iter().chain(last) {
            let _scene = Scene(format!("outcome {outcome}"));
            let fs = numbers.fs.crash(outcome);
            let reader = stepped_options(&fs).0.open_read_only("/db").unwrap();
            let seen = found(&reader);
            let count = u32::try_from(seen.len()).unwrap();
            assert!(seen.into_iter().eq(0..count), "not a prefix");
            assert!(count >= numbers.durable, "{count} of {} synced", numbers.durable);
            assert!(numbers.ends.contains(&count), "part of a batch, up to {count}");
            let db = stepped_options(&fs).0.open("/db").unwrap();
            assert!(found(&db).into_iter().eq(0..count));
            if Some(outcome) == last {
                db.sync().unwrap();
                numbers.fs = fs.kill();
                (numbers.count, numbers.durable) = (count, count);
                numbers.ends.retain(|&end| end <= count);
            }
        }
    }
}

#[test]
fn power_cut_of_a_mapped_log_leaves_a_prefix_and_no_damage() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 100), cut);
}
