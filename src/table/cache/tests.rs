use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::block::{Block, BlockBuilder};
use crate::format::key::ValueKind;

/// A block whose value is `tag` all along.
fn tagged(tag: u64, value_len: usize) -> BlockRef {
    let mut builder = BlockBuilder::new();
    let mut value = tag.to_le_bytes().repeat(value_len.div_ceil(8).max(1));
    value.truncate(value_len.max(8));
    builder.add(b"key", 1, ValueKind::Put, &value, 0, usize::MAX);
    let mut bytes = Vec::new();
    builder.finish(&mut bytes);
    BlockRef::copy_of(&bytes).unwrap()
}

fn block(value_len: usize) -> BlockRef {
    tagged(7, value_len)
}

/// The tag of a block, whose value must be of whole words.
fn tag_of(block: &Block) -> u64 {
    u64::from_le_bytes(*block.bytes().last_chunk().unwrap())
}

struct Fixture {
    cache: BlockCache,
    epoch: Arc<Epoch>,
    slots: Vec<Arc<Slots>>,
}

impl Fixture {
    fn new(capacity: usize, tables: usize, blocks: usize) -> Fixture {
        let epoch = Arc::new(Epoch::default());
        let cache = BlockCache::new(Arc::clone(&epoch), capacity);
        let slots = (0..tables).map(|table| cache.slots(table as u64, blocks)).collect();
        Fixture { cache, epoch, slots }
    }

    fn insert(&self, table: usize, i: usize, block: &BlockRef) {
        self.cache.insert(&self.slots[table], i, block);
    }

    /// As a reader does it.
    fn hit(&self, table: usize, i: usize) -> bool {
        self.epoch.pin(|pin| {
            let found = self.slots[table].get(i, pin);
            found.inspect(|found| found.block().set_referenced()).is_some()
        })
    }
}

#[test]
fn usage_stays_within_the_capacity() {
    for capacity in [0, 1000, 100_000, 5 << 20] {
        let fixture = Fixture::new(capacity, 7, 501);
        let mut kept = 0;
        for i in 0..if cfg!(miri) { 60 } else { 3000 } {
            let (table, place) = (i % 7, i % 501);
            fixture.insert(table, place, &block(i * 7919 % 9001));
            kept += usize::from(fixture.hit(table, place));
            assert!(fixture.cache.usage() <= capacity);
        }
        assert_eq!(kept > 0, capacity >= 1000);
    }
}

#[test]
fn usage_is_that_of_the_blocks() {
    let fixture = Fixture::new(1 << 20, 1, 100);
    let block = block(4000);
    for i in 0..100 {
        fixture.insert(0, i, &block);
        // It is there: nothing changes.
        fixture.insert(0, i, &block);
    }
    assert_eq!(fixture.cache.usage(), 100 * (block.memory() + OVERHEAD));
}

#[test]
fn the_capacity_is_used() {
    let fixture = Fixture::new(8 << 20, 1, 4000);
    for i in 0..4000 {
        fixture.insert(0, i, &block(4000));
    }
    assert!(fixture.cache.usage() > 7 << 20, "{}", fixture.cache.usage());
    let kept = (0..4000).filter(|&i| fixture.hit(0, i)).count();
    assert!(kept > 1700, "{kept}");
}

#[test]
fn hot_blocks_survive_a_scan_that_fills_the_cache() {
    let fixture = Fixture::new(1 << 20, 2, 5000);
    for i in 0..20 {
        fixture.insert(0, i, &block(4000));
    }
    for i in 0..5000 {
        fixture.insert(1, i, &block(4000));
        assert!(fixture.hit(0, i % 20));
    }
}

#[test]
fn blocks_of_any_size_find_room() {
    let fixture = Fixture::new(1 << 20, 1, 100);
    for i in 0..100 {
        let len = [100_000, 10, 5000, 200_000][i % 4];
        fixture.insert(0, i, &block(len));
        assert!(fixture.hit(0, i), "{i}");
    }
}

#[test]
fn a_table_that_goes_takes_its_blocks_along() {
    let fixture = Fixture::new(1 << 20, 2, 50);
    for i in 0..50 {
        fixture.insert(i % 2, i, &block(4000));
    }
    let half = 25 * (block(4000).memory() + OVERHEAD);
    assert_eq!(fixture.cache.usage(), 2 * half);
    fixture.cache.forget(&fixture.slots[0]);
    assert_eq!(fixture.cache.usage(), half);
    assert!(!fixture.hit(0, 0) && fixture.hit(1, 1));
    fixture.cache.forget(&fixture.slots[1]);
    assert_eq!(fixture.cache.usage(), 0);
}

#[test]
fn what_a_pinned_reader_sees_counts_until_it_ends() {
    let fixture = Fixture::new(100_000, 1, 1000);
    let wanted = tagged(99, 4000);
    fixture.insert(0, 0, &wanted);
    drop(wanted);
    fixture.epoch.pin(|pin| {
        let seen = fixture.slots[0].get(0, pin).unwrap();
        for i in 1..500 {
            fixture.insert(0, i, &tagged(1, 4000));
            assert!(fixture.cache.usage() <= 100_000);
        }
        assert!(!fixture.hit(0, 0), "it was evicted");
        assert!(!fixture.hit(0, 499), "there is no room while the reader is pinned");
        assert!(seen.block().bytes().windows(8).any(|bytes| bytes == 99u64.to_le_bytes()));
    });
    fixture.insert(0, 499, &tagged(1, 4000));
    assert!(fixture.hit(0, 499));
}

#[test]
fn an_evicted_block_that_is_held_by_a_count_is_not_used_again() {
    let fixture = Fixture::new(20_000, 1, 1000);
    let held = tagged(99, 4000);
    fixture.insert(0, 0, &held);
    for i in 1..100 {
        let frame = fixture.cache.frame(&fixture.slots[0], i, 4096);
        drop(frame);
        fixture.insert(0, i, &tagged(1, 4000));
    }
    assert!(!fixture.hit(0, 0));
    assert!(held.bytes().windows(8).any(|bytes| bytes == 99u64.to_le_bytes()));
    assert!(held.into_frame().is_some(), "the cache has let go");
}

#[test]
fn frames_are_used_again() {
    let fixture = Fixture::new(100_000, 1, 1000);
    let mut again = 0;
    for i in 0..200 {
        let before = fixture.cache.usage();
        let mut frame = fixture.cache.frame(&fixture.slots[0], i, 4096);
        again += usize::from(fixture.cache.usage() < before);
        let block = block(4000);
        let len = block.bytes().len();
        frame.bytes_mut()[..len].copy_from_slice(block.bytes());
        fixture.insert(0, i, &frame.into_block(len).unwrap());
    }
    assert!(again > 150, "{again}");
}

/// Readers, evictions and tables that go, with a cache of a few blocks: nobody ever reads anything but what belongs there.
#[test]
fn readers_never_see_a_block_that_was_used_again() {
    const BLOCKS: usize = 12;
    let (rounds, readers) = if cfg!(miri) { (40, 2) } else { (60_000, 3) };
    let epoch = Arc::new(Epoch::default());
    let cache = BlockCache::new(Arc::clone(&epoch), 20_000);
    let tables: Vec<Mutex<(u64, Arc<Slots>)>> =
        (0..2).map(|table| Mutex::new((table, cache.slots(table, BLOCKS)))).collect();
    let (numbers, hits, done) = (AtomicUsize::new(2), AtomicUsize::new(0), AtomicBool::new(false));
    let tag = |number: u64, i: usize| number << 8 | i as u64;
    std::thread::scope(|scope| {
        for reader in 0..readers {
            let (epoch, cache, tables, hits, done) = (&epoch, &cache, &tables, &hits, &done);
            scope.spawn(move || {
                let mut counted = None;
                for round in reader * 7..reader * 7 + rounds {
                    let (number, slots) = tables[round % 2].lock().clone();
                    let i = round * 31 % BLOCKS;
                    let hit = epoch.pin(|pin| {
                        let found = slots.get(i, pin)?;
                        found.block().set_referenced();
                        assert_eq!(tag_of(found.block()), tag(number, i));
                        if round % 16 == 0 {
                            counted = Some((found.counted(), tag(number, i)));
                        }
                        Some(())
                    });
                    if let Some((block, tag)) = &counted {
                        assert_eq!(tag_of(block), *tag);
                    }
                    hits.fetch_add(usize::from(hit.is_some()), Ordering::Relaxed);
                    if hit.is_none() {
                        let new = tagged(tag(number, i), 4000);
                        let mut frame = cache.frame(&slots, i, 4096);
                        let len = new.bytes().len();
                        frame.bytes_mut()[..len].copy_from_slice(new.bytes());
                        cache.insert(&slots, i, &frame.into_block(len).unwrap());
                        assert!(cache.usage() <= cache.capacity());
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        // Tables go while others read them: their readers go on with the slots that they have.
        scope.spawn(|| {
            for round in 0.. {
                let number = numbers.fetch_add(1, Ordering::Relaxed) as u64;
                let new = (number, cache.slots(number, BLOCKS));
                let (_, old) = std::mem::replace(&mut *tables[round % 2].lock(), new);
                cache.forget(&old);
                std::thread::yield_now();
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
    });
    assert!(hits.load(Ordering::Relaxed) > 0);
    for table in &tables {
        cache.forget(&table.lock().1);
    }
}
