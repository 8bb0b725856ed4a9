//! The cost of the memtable and of sorting it.
//!
//! ```text
//! cargo bench --bench memtable [-- KEYS]
//! ```
//!
//! Keys have 16 digits, values 100 bytes; by default there are enough to fill 64 MiB. Memory comes
//! from one pool, as in a store that has been written to for a while; the first figure shows the
//! cost of fresh memory. A figure is the median of the rounds, in nanoseconds per entry.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark may fail")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tamis_base::format::key::{MAX_SEQNO, ValueKind, Window};
use tamis_base::memory::pool::MemtablePool;
use tamis_filter::KeyHash;
use tamis_sorted::iter::{InternalCursor, MergeCursor};
use tamis_sorted::memtable::Memtable;

const ROUNDS: usize = 9;
const SIZE: usize = 64 << 20;
const SEED: u64 = 1;
/// When seeks and writes are mixed, one write comes before this many seeks.
const WRITE_EVERY: usize = 20;

type Key = [u8; 16];

fn key(number: u64) -> Key {
    format!("{number:016}").into_bytes().try_into().unwrap()
}

/// Figures by name, one per round.
#[derive(Default)]
struct Figures(Vec<(&'static str, Vec<f64>)>);

impl Figures {
    /// Times `work` on `count` items.
    fn time<T>(&mut self, name: &'static str, count: usize, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = black_box(work());
        let nanos = start.elapsed().as_secs_f64() * 1e9 / count as f64;
        match self.0.iter_mut().find(|(of, _)| *of == name) {
            Some((_, figures)) => figures.push(nanos),
            None => self.0.push((name, vec![nanos])),
        }
        result
    }

    fn print(&mut self) {
        for (name, figures) in &mut self.0 {
            figures.sort_by(f64::total_cmp);
            println!("{name:<44}{:>9.1}{:>9.1}", figures[figures.len() / 2], figures[0]);
        }
    }
}

fn new(pool: &Arc<MemtablePool>) -> Arc<Memtable> {
    Arc::new(Memtable::new(1, SIZE, SEED, pool))
}

fn fill(memtable: &Memtable, keys: &[Key], value: &[u8]) {
    for (key, seqno) in keys.iter().zip(1..) {
        // One writer per entry, like a store without batches.
        memtable.writer().insert_hashed(0, key, KeyHash::new(SEED, key), seqno, ValueKind::Put, value);
    }
}

fn get(memtable: &Memtable, key: &Key) -> usize {
    memtable.get(0, key, KeyHash::new(SEED, key), Window::up_to(MAX_SEQNO)).map_or(0, |entry| entry.value.len())
}

fn walk(cursor: &mut impl MergeCursor) -> usize {
    let mut bytes = 0;
    cursor.seek_to_first().unwrap();
    while cursor.valid() {
        bytes += cursor.key().len() + cursor.value().len();
        cursor.next().unwrap();
    }
    bytes
}

fn main() {
    let count = std::env::args().skip(1).find_map(|text| text.parse().ok()).unwrap_or(SIZE / 144);
    let mut rng = fastrand::Rng::with_seed(1);
    let sequential: Vec<Key> = (0..count as u64).map(|number| key(2 * number)).collect();
    let missing: Vec<Key> = (0..count).map(|_| key(2 * rng.u64(0..count as u64) + 1)).collect();
    let mut random = sequential.clone();
    rng.shuffle(&mut random);
    let mut asked = sequential.clone();
    rng.shuffle(&mut asked);
    let value = [7; 100];
    let (pool, mut figures) = (MemtablePool::new(2 * SIZE), Figures::default());
    figures.time("insert random, fresh memory", count, || fill(&new(&pool), &random, &value));
    for _ in 0..ROUNDS {
        figures.time("insert in order", count, || fill(&new(&pool), &sequential, &value));
        let memtable = new(&pool);
        figures.time("insert random", count, || fill(&memtable, &random, &value));
        figures.time("get, hit", count, || asked.iter().map(|key| get(&memtable, key)).sum::<usize>());
        figures.time("get, miss", count, || missing.iter().map(|key| get(&memtable, key)).sum::<usize>());
        figures.time("overwrite random", count, || {
            for (key, seqno) in asked.iter().zip(count as u64 + 1..) {
                memtable.writer().insert_hashed(0, key, KeyHash::new(SEED, key), seqno, ValueKind::Put, &value);
            }
        });
        let memtable = new(&pool);
        fill(&memtable, &random, &value);
        figures.time("keyspaces and keys, for a flush", count, || memtable.keyspaces().len());
        let mut cursor = figures.time("order, for a flush", count, || memtable.flush_cursor(0));
        figures.time("walk, in one run", count, || walk(&mut cursor));
        let seeks = count / 10;
        figures.time("seek, in one run", seeks, || {
            asked[..seeks].iter().for_each(|key| cursor.seek(key, MAX_SEQNO).unwrap());
        });

        let memtable = new(&pool);
        let (before, during) = random.split_at(count / 2);
        fill(&memtable, before, &value);
        figures.time("first seek on half of them", 1, || memtable.cursor(0).seek(&asked[0], MAX_SEQNO).unwrap());
        let mut writes = during.iter().zip(before.len() as u64 + 1..);
        figures.time("open and seek, a write before each 20th", seeks, || {
            for (i, key) in asked[..seeks].iter().enumerate() {
                if i % WRITE_EVERY == 0 {
                    let (key, seqno) = writes.next().unwrap();
                    memtable.writer().insert_hashed(0, key, KeyHash::new(SEED, key), seqno, ValueKind::Put, &value);
                }
                memtable.cursor(0).seek(key, MAX_SEQNO).unwrap();
            }
        });
        figures.time("open and seek, a write before each", seeks, || {
            for (key, (write, seqno)) in asked[..seeks].iter().zip(&mut writes) {
                memtable.writer().insert_hashed(0, write, KeyHash::new(SEED, write), seqno, ValueKind::Put, &value);
                memtable.cursor(0).seek(key, MAX_SEQNO).unwrap();
            }
        });
        let mut cursor = memtable.cursor(0);
        figures.time("walk, in several runs", usize::try_from(memtable.entries()).expect("few"), || walk(&mut cursor));
    }
    println!("{count} entries{:<30}{:>9}{:>9}  ns per entry", "", "median", "least");
    figures.print();
}
