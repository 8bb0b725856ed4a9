use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::admission::{MIN_REMEMBERED_MISSES, OVERHEAD};
use super::*;
use crate::block::{BlockBuilder, FramedBlock};
use crate::format::key::ValueKind;
use crate::memory::budget::{MemoryCharge, MemoryUse};
use crate::memory::pool::TableMemory;

/// A block whose value repeats `tag`.
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
fn tag_of(block: &FramedBlock) -> u64 {
    u64::from_le_bytes(*block.block().bytes().last_chunk().unwrap())
}

/// A store's view of a cache, with some tables.
struct Fixture {
    cache: Arc<BlockCache>,
    owner: Arc<CacheOwner>,
    epoch: Arc<Epoch>,
    slots: Vec<Arc<BlockSlots>>,
}

fn slots_of(owner: &Arc<CacheOwner>, number: u64, blocks: usize) -> Arc<BlockSlots> {
    Arc::new(BlockSlots::new(owner, number, blocks, &Arc::<TableMemory>::default()))
}

impl Fixture {
    fn new(capacity: usize, tables: usize, blocks: usize) -> Fixture {
        Fixture::beside(&Arc::new(BlockCache::new(capacity)), tables, blocks)
    }

    /// Of another store that uses `cache`.
    fn beside(cache: &Arc<BlockCache>, tables: usize, blocks: usize) -> Fixture {
        let owner = cache.new_owner();
        let slots = (0..tables).map(|table| slots_of(&owner, table as u64, blocks)).collect();
        Fixture { cache: Arc::clone(cache), epoch: Arc::clone(owner.epoch()), owner, slots }
    }

    /// Handles one miss as a reader does; returns whether the block was admitted.
    fn miss(&self, table: usize, i: usize, block: &BlockRef) -> bool {
        self.miss_of(Place::Earned, table, i, block)
    }

    /// [`miss`](Fixture::miss) of a reader that wants this place for the block.
    fn miss_of(&self, place: Place, table: usize, i: usize, block: &BlockRef) -> bool {
        let len = block.block().bytes().len();
        let Some(mut frame) = self.cache.admit(&self.slots[table], i, len, place) else { return false };
        frame.bytes_mut()[..len].copy_from_slice(block.block().bytes());
        self.cache.insert(&self.slots[table], i, &frame.into_block(len).unwrap());
        true
    }

    /// Reads the block up to `times` times until it is a hit.
    fn read_until_hit(&self, times: usize, table: usize, i: usize, block: &BlockRef) -> bool {
        (0..times).any(|_| self.hit(table, i) || self.miss(table, i, block) && self.hit(table, i))
    }

    /// Looks the block up as a reader does.
    fn hit(&self, table: usize, i: usize) -> bool {
        self.epoch.pin(|pin| {
            let found = self.slots[table].get(i, pin);
            found.inspect(|found| found.framed().set_referenced()).is_some()
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
            kept += usize::from(fixture.read_until_hit(2, table, place, &block(i * 7919 % 9001)));
            assert!(fixture.cache.usage() <= capacity);
        }
        assert_eq!(kept > 0, capacity >= 1000);
    }
}

/// A long scan takes free space, and never that of a block, however often it comes.
#[test]
fn a_block_that_wants_free_space_evicts_none() {
    let blocks = if cfg!(miri) { 60 } else { 400 };
    let (fixture, block) = (Fixture::new(blocks / 2 * 4100, 2, blocks), block(4000));
    let resident = |table: usize| fixture.epoch.pin(|pin| fixture.slots[table].linked(pin).count());
    let scan = |table: usize| (0..blocks).for_each(|i| _ = fixture.miss_of(Place::Free, table, i, &block));
    // Some may have to wait for memory that is being prepared.
    (0..50).for_each(|_| scan(0));
    let kept = resident(0);
    assert!((blocks / 4..blocks).contains(&kept), "{kept}");
    (0..5).for_each(|_| scan(1));
    assert_eq!((resident(0), resident(1)), (kept, 0));
}

/// What others take leaves the cache at once, but for what a pinned reader sees.
#[test]
fn blocks_make_way_for_other_uses_of_the_budget() {
    let budget = MemoryBudget::new(4 << 20);
    let fixture = Fixture::beside(&BlockCache::within(&budget, 8 << 20), 1, 2000);
    assert_eq!(fixture.cache.capacity(), 4 << 20);
    let block = block(4000);
    let fill = || (0..if cfg!(miri) { 50 } else { 1500 }).for_each(|i| _ = fixture.read_until_hit(2, 0, i, &block));
    fill();
    let full = fixture.cache.usage();
    assert!(full > if cfg!(miri) { 0 } else { 3 << 20 } && full + fixture.cache.idle() == budget.total());
    let mut other = MemoryCharge::new(&budget, MemoryUse::Memtables, 0);
    for bytes in [1 << 20, 2 << 20, 7 << 19, 4 << 20] {
        other.resize(bytes);
        assert!(budget.total() <= 4 << 20, "{} beside {bytes}", fixture.cache.usage());
        assert_eq!(budget.used(MemoryUse::Cache), fixture.cache.usage() + fixture.cache.idle());
    }
    assert_eq!((fixture.cache.usage(), fixture.cache.idle()), (0, 0));
    other.resize(0);
    fill();
    assert_eq!(fixture.cache.usage(), full);
    // What is evicted may be visible to this reader.
    fixture.epoch.pin(|_| {
        other.resize(3 << 20);
        assert!(fixture.cache.usage() > 1 << 20 || cfg!(miri));
    });
    fixture.miss(0, 0, &block);
    other.resize(4 << 20);
    assert_eq!(fixture.cache.usage(), 0);
}

/// Blocks of other lengths than pages, of which every third has been read: what is evicted leaves
/// gaps.
#[test]
#[cfg_attr(miri, ignore = "too slow under Miri: thousands of blocks")]
fn small_blocks_make_way_in_small_steps() {
    for value_len in [100, 900, 3000, 9000] {
        let limit = 2 << 20;
        let budget = MemoryBudget::new(limit);
        let fixture = Fixture::beside(&BlockCache::within(&budget, limit), 1, 20_000);
        let block = block(value_len);
        (0..20_000).for_each(|i| _ = fixture.read_until_hit(2, 0, i, &block));
        let mut other = MemoryCharge::new(&budget, MemoryUse::Memtables, 0);
        for step in 1..=256 {
            (0..20_000).step_by(3).for_each(|i| _ = fixture.hit(0, i));
            other.resize(step * (limit / 256));
            let cache = (fixture.cache.usage(), fixture.cache.idle(), fixture.cache.arena.stuck());
            assert!(budget.total() <= limit, "values of {value_len}, {step}: {cache:?}");
        }
    }
}

#[test]
fn usage_is_that_of_the_blocks() {
    let fixture = Fixture::new(1 << 20, 1, 100);
    let block = block(4000);
    for i in 0..100 {
        assert!(fixture.miss(0, i, &block));
        // The block is already cached: nothing changes.
        fixture.miss(0, i, &block);
    }
    assert_eq!(fixture.cache.usage(), 100 * (block.memory() + OVERHEAD));
}

#[test]
#[cfg_attr(miri, ignore = "too slow under Miri: thousands of blocks")]
fn blocks_are_admitted_at_once_while_there_is_space() {
    let fixture = Fixture::new(8 << 20, 1, 4000);
    let block = block(4000);
    let kept = (0..4000).filter(|&i| fixture.miss(0, i, &block)).count();
    assert!(fixture.cache.usage() > 7 << 20, "{}", fixture.cache.usage());
    assert!(kept > 1700, "{kept}");
    assert_eq!((0..4000).filter(|&i| fixture.hit(0, i)).count(), kept);
}

#[test]
#[cfg_attr(miri, ignore = "too slow under Miri: thousands of blocks")]
fn blocks_that_are_read_once_evict_nothing() {
    let fixture = Fixture::new(1 << 20, 2, 5000);
    let block = block(4000);
    let kept = (0..5000).filter(|&i| fixture.miss(0, i, &block)).count();
    assert!((100..300).contains(&kept), "{kept}");
    for i in 0..5000 {
        assert!(!fixture.miss(1, i, &block), "{i}");
    }
    assert_eq!((0..5000).filter(|&i| fixture.hit(0, i)).count(), kept);
}

#[test]
fn the_doorkeeper_forgets_a_miss_of_long_ago() {
    // So small that each admission moves the hand at once.
    let fixture = Fixture::new(20_000, 2, 100);
    let block = block(4000);
    let kept: Vec<usize> = (0..10).filter(|&i| fixture.miss(0, i, &block)).collect();
    let are_kept = || fixture.epoch.pin(|pin| kept.iter().all(|&i| fixture.slots[0].get(i, pin).is_some()));
    assert!(kept.len() > 2 && kept.len() < MIN_REMEMBERED_MISSES);
    assert!(!fixture.miss(1, 0, &block));
    for i in 1..=MIN_REMEMBERED_MISSES {
        assert!(!fixture.miss(1, i, &block));
    }
    assert!(!fixture.miss(1, 0, &block) && are_kept(), "forgotten: nothing is evicted for it");
    // Missed just now, and therefore admitted.
    assert!(fixture.read_until_hit(2, 1, 0, &block) && !are_kept());
}

/// Between two misses of a block come as many others as the cache can hold small blocks, or large
/// ones.
#[test]
#[cfg_attr(miri, ignore = "too slow under Miri: thousands of blocks")]
fn the_doorkeeper_forgets_large_blocks_sooner() {
    let fixture = Fixture::new(250_000, 2, 3000);
    let (small, large) = (block(900), block(9000));
    (0..1000).for_each(|i| _ = fixture.miss(0, i, &small));
    let kept = || fixture.epoch.pin(|pin| (0..1000).filter(|&i| fixture.slots[0].get(i, pin).is_some()).count());
    let mut next = 1000;
    let mut evicts_after = |misses: usize, i: usize, block: &BlockRef| {
        assert!(!fixture.miss(1, i, block));
        (next..next + misses).for_each(|i| _ = fixture.miss(0, i, &small));
        next += misses;
        let before = kept();
        fixture.miss(1, i, block);
        kept() < before
    };
    // 250 small ones fit, or 27 large ones.
    let evicted = [(100, 1, &large), (400, 3, &small), (20, 0, &large)];
    assert_eq!(evicted.map(|(misses, i, block)| evicts_after(misses, i, block)), [false, false, true]);
}

#[test]
#[cfg_attr(miri, ignore = "too slow under Miri: thousands of blocks")]
fn hot_blocks_survive_others_that_are_read_repeatedly() {
    let (len, hot) = (5000, 20);
    let fixture = Fixture::new(1 << 20, 2, len);
    let block = block(4000);
    for i in 0..hot {
        assert!(fixture.miss(0, i, &block));
    }
    let mut admitted = 0;
    for i in 0..len {
        admitted += usize::from(fixture.read_until_hit(3, 1, i, &block));
        assert!(fixture.hit(0, i % hot), "{i}");
    }
    assert!(admitted > len / 4, "{admitted}");
}

/// A working set that fits is soon cached whole, whatever was cached before.
#[test]
#[cfg_attr(miri, ignore = "too slow under Miri: thousands of blocks")]
fn a_former_working_set_makes_room() {
    let fixture = Fixture::new(4 << 20, 2, 900);
    let block = block(4000);
    for i in 0..900 {
        fixture.miss(0, i, &block);
        fixture.hit(0, i);
    }
    // Several passes in the same order, as a program that loops over its data.
    let hits: Vec<usize> =
        (0..6).map(|_| (0..900).filter(|&i| fixture.read_until_hit(1, 1, i, &block)).count()).collect();
    assert!(hits[3..].iter().all(|&hits| hits > 850), "{hits:?}");
}

/// Where all blocks are equally hot, an exchange gains nothing.
#[test]
#[cfg_attr(miri, ignore = "too slow under Miri: thousands of blocks")]
fn few_of_equally_hot_blocks_are_exchanged() {
    let (blocks, rounds) = (1000, 50_000);
    let fixture = Fixture::new(2 << 20, 1, blocks);
    let block = block(4000);
    let mut random = fastrand::Rng::with_seed(7);
    (0..blocks).for_each(|i| _ = fixture.miss(0, i, &block));
    let (mut hits, mut exchanges) = (0, 0);
    for _ in 0..rounds {
        let i = random.usize(0..blocks);
        match fixture.hit(0, i) {
            true => hits += 1,
            false => exchanges += usize::from(fixture.miss(0, i, &block)),
        }
    }
    assert!(hits > rounds * 4 / 10, "{hits} hits in {rounds}");
    assert!(exchanges < (rounds - hits) / 4, "{exchanges} exchanges, {hits} hits in {rounds}");
}

#[test]
fn blocks_of_any_size_find_room() {
    let fixture = Fixture::new(1 << 20, 1, 100);
    for i in 0..100 {
        let len = [100_000, 10, 5000, 200_000][i % 4];
        assert!(fixture.read_until_hit(8, 0, i, &block(len)), "{i}");
    }
}

#[test]
fn forgetting_a_table_evicts_its_blocks() {
    let fixture = Fixture::new(1 << 20, 2, 50);
    for i in 0..50 {
        assert!(fixture.miss(i % 2, i, &block(4000)));
    }
    let half = 25 * (block(4000).memory() + OVERHEAD);
    assert_eq!(fixture.cache.usage(), 2 * half);
    fixture.cache.forget(&fixture.slots[0]);
    assert_eq!(fixture.cache.usage(), half);
    assert!(!fixture.hit(0, 0) && fixture.hit(1, 1));
    fixture.cache.forget(&fixture.slots[1]);
    assert_eq!(fixture.cache.usage(), 0);
}

/// Blocks move to places that others have left: those of a table are found wherever they are.
#[test]
fn a_table_is_forgotten_among_others_that_come_and_go() {
    let (tables, blocks) = (6, 40);
    let fixture = Fixture::new(80 * (4096 + 256), tables, blocks);
    let (block, mut rng) = (block(4000), fastrand::Rng::with_seed(1));
    let linked = |table: usize| fixture.epoch.pin(|pin| fixture.slots[table].linked(pin).count());
    let mut most = 0;
    for _ in 0..if cfg!(miri) { 5 } else { 200 } {
        for _ in 0..100 {
            fixture.read_until_hit(2, rng.usize(..tables), rng.usize(..blocks), &block);
        }
        let (table, before) = (rng.usize(..tables), fixture.cache.usage());
        let others: usize = (0..tables).filter(|other| *other != table).map(linked).sum();
        let own = linked(table);
        fixture.cache.forget(&fixture.slots[table]);
        assert_eq!((linked(table), (0..tables).map(linked).sum::<usize>()), (0, others));
        let freed = before - fixture.cache.usage();
        assert!(freed >= own * (block.memory() + OVERHEAD), "{freed} bytes for {own} blocks");
        most = most.max(own);
    }
    assert!(most > 10, "{most} blocks of a table");
}

#[test]
fn forgetting_a_table_waits_for_no_shard_without_its_blocks() {
    let fixture = Fixture::new(MAX_SHARDS * MIN_SHARD_BYTES, 2, 100);
    let shards = &fixture.cache.shards;
    assert_eq!(shards.len(), MAX_SHARDS);
    assert!(fixture.miss(0, 5, &block(4000)) && fixture.miss(0, 5 + MAX_SHARDS, &block(4000)));
    let (own, other) = (fixture.cache.shard_of(&fixture.slots[0], 5), fixture.slots[1].first_shard());
    assert_ne!(own, other);
    assert!(fixture.miss(1, 0, &block(4000)) && !fixture.hit(0, 6));
    // A mark is no block.
    assert_eq!(fixture.slots[0].mark(6, 3), None);
    let busy: Vec<_> = shards.iter().enumerate().filter(|(i, _)| *i != own).map(|(_, shard)| shard.lock()).collect();
    fixture.cache.forget(&fixture.slots[0]);
    drop(busy);
    assert_eq!(fixture.cache.usage(), block(4000).memory() + OVERHEAD);
    assert!(!fixture.hit(0, 5) && !fixture.hit(0, 5 + MAX_SHARDS) && fixture.hit(1, 0));
}

#[test]
fn blocks_that_a_pinned_reader_sees_count_until_it_ends() {
    let fixture = Fixture::new(100_000, 1, 1000);
    assert!(fixture.miss(0, 0, &tagged(99, 4000)));
    fixture.epoch.pin(|pin| {
        let seen = fixture.slots[0].get(0, pin).unwrap();
        for i in 1..500 {
            fixture.read_until_hit(3, 0, i, &tagged(1, 4000));
            assert!(fixture.cache.usage() <= 100_000);
        }
        assert!(!fixture.hit(0, 0), "it was evicted");
        assert!(!fixture.hit(0, 499), "there is no space while the reader is pinned");
        assert_eq!(tag_of(seen.framed()), 99);
    });
    assert!(fixture.read_until_hit(2, 0, 499, &tagged(1, 4000)));
}

#[test]
fn stores_with_equal_tables_find_their_own_blocks_and_are_charged_for_them() {
    let one = Fixture::new(1 << 20, 1, 20);
    let two = Fixture::beside(&one.cache, 1, 20);
    for i in 0..20 {
        assert!(one.miss(0, i, &tagged(1, 4000)));
        assert!(!two.hit(0, i));
        assert!(i % 2 == 0 || two.miss(0, i, &tagged(2, 4000)));
    }
    for (fixture, tag) in [(&one, 1), (&two, 2)] {
        fixture.epoch.pin(|pin| {
            let seen = (0..20).filter_map(|i| fixture.slots[0].get(i, pin));
            assert!(seen.map(|block| tag_of(block.framed())).all(|seen| seen == tag));
        });
    }
    let each = block(4000).memory() + OVERHEAD;
    assert_eq!((one.owner.usage(), two.owner.usage(), one.cache.usage()), (20 * each, 10 * each, 30 * each));
    one.cache.forget(&one.slots[0]);
    assert_eq!((one.owner.usage(), two.owner.usage(), one.cache.usage()), (0, 10 * each, 10 * each));
}

#[test]
fn a_long_read_holds_up_its_own_store_alone() {
    let stuck = Fixture::new(200_000, 1, 1000);
    let free = Fixture::beside(&stuck.cache, 1, 1000);
    let exchanges = |fixture: &Fixture, from: usize| {
        (from..from + 300).filter(|&i| fixture.read_until_hit(8, 0, i, &tagged(1, 4000))).count()
    };
    (0..20).for_each(|i| _ = stuck.miss(0, i, &tagged(99, 4000)));
    stuck.epoch.pin(|pin| {
        let seen = stuck.slots[0].get(0, pin).unwrap();
        // The hand soon takes a batch of the store whose reader is pinned.
        assert!(exchanges(&free, 0) > 150 && exchanges(&free, 300) > 150);
        assert!(stuck.cache.usage() <= 200_000);
        // Its evicted blocks cannot be reused yet, only what the other store has left free.
        assert!(exchanges(&stuck, 100) < 20);
        assert_eq!(tag_of(seen.framed()), 99);
    });
    assert!(exchanges(&stuck, 100) > 150);
    let usage = stuck.owner.usage() + free.owner.usage();
    assert!(usage <= stuck.cache.usage(), "{usage} of {}", stuck.cache.usage());
}

#[test]
fn an_evicted_block_that_is_held_by_a_count_is_not_reused() {
    let fixture = Fixture::new(20_000, 1, 1000);
    let held = tagged(99, 4000);
    fixture.cache.insert(&fixture.slots[0], 0, &held);
    for i in 1..100 {
        fixture.read_until_hit(3, 0, i, &tagged(1, 4000));
    }
    assert!(!fixture.hit(0, 0));
    assert_eq!(tag_of(&held), 99);
    assert!(held.into_frame().is_some(), "the cache has released it");
}

#[test]
fn frames_are_reused() {
    let fixture = Fixture::new(100_000, 1, 1000);
    let block = block(4000);
    let (mut admitted, mut reused) = (0, 0);
    for i in (0..200).flat_map(|i| [i, i]) {
        let before = fixture.cache.usage();
        if let Some(mut frame) = fixture.cache.admit(&fixture.slots[0], i, block.block().bytes().len(), Place::Earned) {
            admitted += 1;
            reused += usize::from(fixture.cache.usage() < before);
            frame.bytes_mut()[..block.block().bytes().len()].copy_from_slice(block.block().bytes());
            fixture.cache.insert(&fixture.slots[0], i, &frame.into_block(block.block().bytes().len()).unwrap());
        }
    }
    assert!(admitted > 100 && reused > admitted / 2, "{reused} of {admitted}");
}

/// Readers, evictions and dropped tables over a cache of a few blocks: no reader ever sees another
/// block's bytes.
#[test]
fn readers_never_see_a_reused_block() {
    const BLOCKS: usize = 12;
    let (rounds, readers) = if cfg!(miri) { (40, 2) } else { (60_000, 3) };
    let cache = BlockCache::new(20_000);
    let owner = cache.new_owner();
    let epoch = Arc::clone(owner.epoch());
    let tables: Vec<Mutex<(u64, Arc<BlockSlots>)>> =
        (0..2).map(|table| Mutex::new((table, slots_of(&owner, table, BLOCKS)))).collect();
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
                        found.framed().set_referenced();
                        assert_eq!(tag_of(found.framed()), tag(number, i));
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
                        let len = new.block().bytes().len();
                        if let Some(mut frame) = cache.admit(&slots, i, len, Place::Earned) {
                            frame.bytes_mut()[..len].copy_from_slice(new.block().bytes());
                            cache.insert(&slots, i, &frame.into_block(len).unwrap());
                        }
                        assert!(cache.usage() <= cache.capacity());
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        // Tables are dropped while others read them: those readers keep the slots that they have.
        scope.spawn(|| {
            for round in 0.. {
                // Under Miri the tables would otherwise be gone before any hit.
                while cfg!(miri) && hits.load(Ordering::Relaxed) < round && !done.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let number = numbers.fetch_add(1, Ordering::Relaxed) as u64;
                let new = (number, slots_of(&owner, number, BLOCKS));
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
