//! Counts calls of `memcmp` and `bcmp` that compare no bytes.
//!
//! Such calls are easy to overlook. An empty slice may point anywhere, and glibc's AVX-512 `memcmp`
//! loads from there before it checks the length: at an unmapped address that takes 80 ns rather
//! than 1 ns. Other processors and libraries do not show it. Therefore the tests of this program
//! bring their own `memcmp` and `bcmp`, which count such calls on every machine. The program itself
//! keeps libc's, whose instructions it counts.

use std::cell::Cell;
use std::ffi::c_int;
use std::hint::black_box;
use std::sync::Arc;

use tamis::vfs::SimFileSystem;
use tamis::{
    Compression, Db, Executor, KeyspaceOptions, Options, PrefixExtractor, RangeFilterPolicy, ReadMode, SteppedExecutor,
};

thread_local! {
    // Const-initialised and without a destructor: reading it compares nothing.
    static EMPTY_COMPARISONS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the result of `work` and the number of empty comparisons by this thread during it.
fn count_empty<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let before = EMPTY_COMPARISONS.get();
    let result = work();
    (result, EMPTY_COMPARISONS.get() - before)
}

/// The symbols that compiled code calls to compare bytes. Linked into the tests, they replace
/// libc's.
mod symbols {
    use super::*;

    // SAFETY: this is `memcmp` as C defines it.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> c_int {
        // SAFETY: the caller promises `len` bytes at both places.
        unsafe { compare(a, b, len) }
    }

    // SAFETY: zero if and only if the bytes are equal, as BSD defines it.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> c_int {
        // SAFETY: as above.
        unsafe { compare(a, b, len) }
    }
}

/// Compares the `len` bytes at `a` and `b`, eight at a time.
///
/// SAFETY: there must be `len` bytes at both places.
#[inline(always)]
unsafe fn compare(a: *const u8, b: *const u8, len: usize) -> c_int {
    if len == 0 {
        EMPTY_COMPARISONS.set(EMPTY_COMPARISONS.get() + 1);
    }
    let mut at = 0;
    while at + 8 <= len {
        // SAFETY: the eight bytes are within `len`.
        let (x, y) = unsafe { (a.add(at).cast::<u64>().read_unaligned(), b.add(at).cast::<u64>().read_unaligned()) };
        if x != y {
            return if x.swap_bytes() < y.swap_bytes() { -1 } else { 1 };
        }
        at += 8;
    }
    while at < len {
        // SAFETY: the byte is within `len`.
        let (x, y) = unsafe { (*a.add(at), *b.add(at)) };
        if x != y {
            return c_int::from(x) - c_int::from(y);
        }
        at += 1;
    }
    0
}

#[test]
fn empty_comparisons_are_counted_and_others_are_right() {
    let bytes = |text: &'static str| black_box(text.as_bytes());
    let (order, count) = count_empty(|| bytes("").cmp(bytes("")).is_eq() && bytes("abc").starts_with(bytes("")));
    assert!(order && count > 0, "{count} calls counted: the symbols are not linked in");
    let texts = ["a", "ab", "b", "abcdefgh", "abcdefghi", "abcdefgi", "abcdefgh\u{ff}", "\u{ff}bcdefgh"];
    let (_, count) = count_empty(|| {
        for (a, b) in texts.iter().flat_map(|a| texts.iter().map(move |b| (bytes(a), bytes(b)))) {
            let first = a.iter().zip(b).find(|(x, y)| x != y);
            let expected = first.map_or(a.len().cmp(&b.len()), |(x, y)| x.cmp(y));
            assert_eq!(a.cmp(b), expected);
            assert_eq!(a == b, expected.is_eq());
        }
    });
    assert_eq!(count, 0);
}

/// Makes a key from a number.
type MakeKey = fn(u64) -> Vec<u8>;

/// Keys with a long common prefix.
fn alike(n: u64) -> Vec<u8> {
    format!("user/{n:08}").into_bytes()
}

/// Keys spread over all first bytes.
fn scattered(n: u64) -> Vec<u8> {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec()
}

/// Keys of all lengths; the first ones are prefixes of the longer ones after them.
fn nested(n: u64) -> Vec<u8> {
    let len = if n < 60 { n } else { n % 60 };
    let tail = if n < 60 { Vec::new() } else { n.to_be_bytes().to_vec() };
    [vec![0; usize::try_from(len).unwrap()], tail].concat()
}

const KEYS: u64 = 6000;

/// A store with several runs in level 0, and tables in two levels below. Even numbers are existing
/// keys.
fn many_levels(make_key: MakeKey, compression: Compression, mapped: bool) -> Db {
    let executor = Arc::new(SteppedExecutor::new());
    let shared: Arc<dyn Executor> = Arc::<SteppedExecutor>::clone(&executor);
    let keyspace = KeyspaceOptions::new().compression(compression).prefix(PrefixExtractor::Fixed(3));
    let keyspace = keyspace.range_filter(RangeFilterPolicy::ORDERED);
    let options = Options::new().file_system(Arc::new(SimFileSystem::new())).executor(shared).hash_seed(7);
    let options = options.memtable_size(16 << 10).table_size(16 << 10).read_mode(if mapped {
        ReadMode::Mmap
    } else {
        ReadMode::Auto
    });
    let db = options.default_keyspace(keyspace.block_size(512)).open("/db").unwrap();
    let mut numbers: Vec<u64> = (0..KEYS).collect();
    fastrand::Rng::with_seed(5).shuffle(&mut numbers);
    for &n in &numbers {
        db.put(make_key(2 * n), n.to_string()).unwrap();
    }
    db.compact_range(..).unwrap();
    let below = |db: &Db| db.stats().keyspaces[0].levels[1..].iter().filter(|level| !level.tables.is_empty()).count();
    let runs = |db: &Db| db.stats().keyspaces[0].levels[0].tables.len();
    for &n in numbers.iter().cycle().take(20 * numbers.len()) {
        if below(&db) >= 2 && runs(&db) >= 2 {
            break;
        }
        db.put(make_key(2 * n), n.to_string()).unwrap();
        while below(&db) < 2 && executor.step() {}
    }
    // A run of one entry, and a memtable.
    db.put(make_key(0), "0").unwrap();
    db.flush().unwrap();
    db.put(make_key(2), "1").unwrap();
    assert!(below(&db) >= 2 && runs(&db) >= 3, "{} levels, {} runs", below(&db), runs(&db));
    db
}

#[test]
fn reads_make_no_empty_comparison() {
    for (name, make_key) in [("alike", alike as MakeKey), ("scattered", scattered), ("nested", nested)] {
        for (compression, mapped) in [(Compression::None, false), (Compression::None, true), (Compression::Lz4, false)]
        {
            let db = many_levels(make_key, compression, mapped);
            // Warm up: opening tables and reading blocks are not checked.
            (0..2 * KEYS).for_each(|n| _ = db.get(make_key(n)).unwrap());
            let keys: Vec<Vec<u8>> = (0..2 * KEYS).map(make_key).collect();
            let check = |what: &str, work: &dyn Fn(&Db)| {
                let ((), count) = count_empty(|| work(&db));
                assert_eq!(count, 0, "{what}, keys {name}, {compression:?}, mapped: {mapped}");
            };
            check("get, absent", &|db| {
                for key in keys.iter().skip(1).step_by(2) {
                    assert!(db.get(key).unwrap().is_none());
                }
            });
            check("get, present", &|db| {
                for key in keys.iter().step_by(2) {
                    assert!(db.get(key).unwrap().is_some());
                }
            });
            check("read", &|db| keys.iter().for_each(|key| _ = db.read(key, <[u8]>::len).unwrap()));
            check("multi_get", &|db| keys.chunks(100).for_each(|keys| _ = db.multi_get(keys).unwrap()));
            check("seek and steps", &|db| {
                for key in keys.iter().step_by(7) {
                    let mut cursor = db.cursor().unwrap();
                    let mut found = cursor.seek(key).unwrap();
                    for step in 0..9 {
                        found = found && if step < 6 { cursor.next() } else { cursor.prev() }.unwrap();
                    }
                }
            });
            check("scan of a prefix", &|db| {
                for key in keys.iter().step_by(70).filter(|key| key.len() >= 3) {
                    db.prefix(&key[..3]).take(20).for_each(|entry| _ = entry.unwrap());
                }
            });
        }
    }
}
