//! The cost of filter look-ups and of building a filter, compared with the textbook layout, another
//! crate, and the layout of RocksDB.
//!
//! ```text
//! cargo bench --bench filters [-- [many] KEYS]
//! ```
//!
//! Keys are 16 random bytes, and every figure includes hashing them. All contenders take turns in
//! one run, so that other load on the machine affects all alike. A figure is the median of its
//! rounds (and the least). `many` measures only `contains` against `contains_many`. No figure makes
//! this program fail.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

use std::hint::black_box;
use std::time::Instant;

use tamis::filter::{BloomFilter, BloomFilterRef, BloomLayout, FuseFilter};
use tamis_figures::{Table, command, median};
use xxhash_rust::xxh3::xxh3_64;

const ROUNDS: usize = 21;
const BITS_PER_KEY: f64 = 10.0;
const K: u32 = 7;

type Key = [u8; 16];

fn keys(seed: u64, count: usize) -> Vec<Key> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| rng.u128(..).to_le_bytes()).collect()
}

/// A filter to measure. The loops are trait methods, so that each contender's calls are inlined
/// into its own.
trait Contender {
    fn name(&self) -> &'static str;
    /// Returns whether the key was new to the filter.
    fn insert(&mut self, key: &Key) -> bool;
    fn contains(&self, key: &Key) -> bool;
    fn clear(&mut self);

    /// How many of `keys` the filter may contain.
    fn count(&self, keys: &[Key]) -> usize
    where
        Self: Sized,
    {
        keys.iter().filter(|key| self.contains(key)).count()
    }

    /// Inserts `keys`; returns how many were new to the filter.
    fn fill(&mut self, keys: &[Key]) -> usize
    where
        Self: Sized,
    {
        keys.iter().filter(|key| self.insert(key)).count()
    }
}

/// tamis, in either layout.
struct Tamis {
    name: &'static str,
    filter: BloomFilter,
}

impl Tamis {
    fn new(name: &'static str, layout: BloomLayout, capacity: u64) -> Tamis {
        let filter = BloomFilter::builder().layout(layout).with_bits_per_key(capacity, BITS_PER_KEY).unwrap();
        Tamis { name, filter }
    }
}

impl Contender for Tamis {
    fn name(&self) -> &'static str {
        self.name
    }

    #[inline(always)]
    fn insert(&mut self, key: &Key) -> bool {
        self.filter.insert(key)
    }

    #[inline(always)]
    fn contains(&self, key: &Key) -> bool {
        self.filter.contains(key)
    }

    fn clear(&mut self) {
        self.filter.clear();
    }
}

/// The crate fastbloom, with xxh3 as for the others: its default hash is slower.
struct Fastbloom {
    filter: fastbloom::BloomFilter,
}

impl Fastbloom {
    fn new(bits: usize) -> Fastbloom {
        Fastbloom { filter: fastbloom::BloomFilter::with_num_bits(bits).hashes(K) }
    }
}

impl Contender for Fastbloom {
    fn name(&self) -> &'static str {
        "fastbloom, hash xxh3"
    }

    #[inline(always)]
    fn insert(&mut self, key: &Key) -> bool {
        !self.filter.insert_hash(xxh3_64(key))
    }

    #[inline(always)]
    fn contains(&self, key: &Key) -> bool {
        self.filter.contains_hash(xxh3_64(key))
    }

    fn clear(&mut self) {
        self.filter.clear();
    }
}

/// All probes in one line of 512 bits, as in RocksDB (`util/bloom_impl.h`, FastLocalBloom). The low
/// half of the hash selects the line; the high half, times powers of the golden ratio, selects the
/// bits. AVX2 probes all seven bits in one step.
#[derive(Clone)]
struct OneLine {
    lines: Vec<Line512>,
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line512([u32; 16]);

/// The golden ratio as a fraction of 2^32, to the powers 0 to 7.
const GOLDEN: [u32; 8] = [1, 0x9e37_79b9, 0xe35e_67b1, 0x7342_97e9, 0x35fb_e861, 0xdeb7_c719, 0x0448_b211, 0x3459_b749];

impl OneLine {
    fn new(bits: usize) -> OneLine {
        OneLine { lines: vec![Line512::default(); bits.div_ceil(512)] }
    }

    fn place(&self, key: &Key) -> (usize, u32) {
        let hash = xxh3_64(key);
        let line = ((hash & 0xffff_ffff) * self.lines.len() as u64) >> 32;
        (usize::try_from(line).unwrap(), (hash >> 32) as u32)
    }
}

impl Contender for OneLine {
    fn name(&self) -> &'static str {
        "one 512-bit line, k = 7, AVX2"
    }

    #[inline(always)]
    fn insert(&mut self, key: &Key) -> bool {
        let (line, hash) = self.place(key);
        let line = &mut self.lines[line].0;
        let mut unset = 0;
        for power in &GOLDEN[..K as usize] {
            let bit = hash.wrapping_mul(*power) >> 23;
            let word = &mut line[(bit >> 5) as usize];
            unset |= !*word >> (bit & 31) & 1;
            *word |= 1 << (bit & 31);
        }
        unset == 1
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn contains(&self, key: &Key) -> bool {
        let (line, hash) = self.place(key);
        // SAFETY: `main` has checked that the processor has AVX2.
        unsafe { one_line::all_set(&self.lines[line], hash) }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn contains(&self, key: &Key) -> bool {
        let (line, hash) = self.place(key);
        GOLDEN[..K as usize].iter().all(|power| {
            let bit = hash.wrapping_mul(*power) >> 23;
            self.lines[line].0[(bit >> 5) as usize] >> (bit & 31) & 1 == 1
        })
    }

    fn clear(&mut self) {
        self.lines.fill(Line512::default());
    }
}

#[cfg(target_arch = "x86_64")]
mod one_line {
    use std::arch::x86_64::*;

    use super::{GOLDEN, K, Line512};

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn all_set(line: &Line512, hash: u32) -> bool {
        let words = line.0.as_ptr().cast::<__m256i>();
        // SAFETY: a line is two vectors of 32 bytes, aligned to 64 bytes; the powers are one
        // vector.
        let (lower, upper, powers) = unsafe {
            (_mm256_load_si256(words), _mm256_load_si256(words.add(1)), _mm256_loadu_si256(GOLDEN.as_ptr().cast()))
        };
        let products = _mm256_mullo_epi32(_mm256_set1_epi32(hash.cast_signed()), powers);
        // The top bit selects the half of the line, the next three the word in it, the next five
        // the bit in the word.
        let word = _mm256_srli_epi32::<28>(products);
        let chosen = _mm256_castps_si256(_mm256_blendv_ps(
            _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(lower, word)),
            _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(upper, word)),
            _mm256_castsi256_ps(products),
        ));
        let bit = _mm256_srli_epi32::<27>(_mm256_slli_epi32::<4>(products));
        let lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32(K.cast_signed()), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        let bits = _mm256_sllv_epi32(_mm256_srli_epi32::<31>(lanes), bit);
        _mm256_testc_si256(chosen, bits) == 1
    }
}

/// One contender's nanoseconds per key by round: look-ups of absent keys, look-ups of present keys,
/// and building.
type Times = [Vec<f64>; 3];

struct Measured<C> {
    filter: C,
    /// A second filter, for the build benchmark.
    spare: C,
    rate: f64,
    times: Times,
}

fn nanos_per_key<T>(keys: usize, work: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    black_box(work());
    start.elapsed().as_secs_f64() * 1e9 / keys as f64
}

impl<C: Contender> Measured<C> {
    fn new(make: impl Fn() -> C, present: &[Key], absent: &[Key]) -> Measured<C> {
        let (mut filter, mut spare) = (make(), make());
        filter.fill(present);
        spare.fill(present);
        assert_eq!(filter.count(present), present.len(), "{} denies a key", filter.name());
        let rate = filter.count(absent) as f64 / absent.len() as f64;
        Measured { filter, spare, rate, times: Times::default() }
    }
}

/// An filter with its contender's type erased.
trait AnyMeasured {
    fn turn(&mut self, present: &[Key], absent: &[Key]);
    fn result(&mut self) -> Row;
}

struct Row {
    name: &'static str,
    rate: f64,
    times: Times,
}

impl<C: Contender> AnyMeasured for Measured<C> {
    fn turn(&mut self, present: &[Key], absent: &[Key]) {
        let filter = &self.filter;
        self.times[0].push(nanos_per_key(absent.len(), || filter.count(black_box(absent))));
        self.times[1].push(nanos_per_key(present.len(), || filter.count(black_box(present))));
        // Refilled after clearing, so that no contender pays for first touches of pages.
        self.spare.clear();
        self.times[2].push(nanos_per_key(present.len(), || self.spare.fill(black_box(present))));
    }

    fn result(&mut self) -> Row {
        Row { name: self.filter.name(), rate: self.rate, times: std::mem::take(&mut self.times) }
    }
}

/// Look-ups of absent keys in six filters of decreasing size, like the levels of a store: hashed
/// once, and hashed for each filter.
fn six_levels(n: usize, absent: &[Key]) -> (f64, f64) {
    let levels: Vec<BloomFilter> = (0..6)
        .map(|i| {
            let keys = keys(100 + i, n >> (2 * i));
            let mut filter = BloomFilter::builder().with_bits_per_key(keys.len() as u64, BITS_PER_KEY).unwrap();
            filter.extend(&keys);
            filter
        })
        .collect();
    let hasher = levels[0].hasher();
    let (mut once, mut each) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        once.push(nanos_per_key(absent.len(), || {
            let asked = absent.iter().map(|key| {
                let hash = hasher.hash(key);
                levels.iter().filter(|level| level.contains_hashed(hash)).count()
            });
            asked.sum::<usize>()
        }));
        each.push(nanos_per_key(absent.len(), || {
            let asked = absent.iter().map(|key| levels.iter().filter(|level| level.contains(key)).count());
            asked.sum::<usize>()
        }));
    }
    (median(once), median(each))
}

/// How the filters of a table compare: one key at a time, and many at once.
fn many(n: usize, present: &[Key], absent: &[Key]) {
    // In turn, present and absent: what no branch predictor can learn.
    let mut mixed: Vec<Key> = present.iter().zip(absent).flat_map(|(one, other)| [*one, *other]).take(n).collect();
    fastrand::Rng::with_seed(3).shuffle(&mut mixed);
    let mut split = BloomFilter::builder().with_bits_per_key(n as u64, BITS_PER_KEY).unwrap();
    split.extend(present);
    let mut textbook =
        BloomFilter::builder().layout(BloomLayout::Standard).with_bits_per_key(n as u64, BITS_PER_KEY).unwrap();
    textbook.extend(present);
    let fuse = FuseFilter::from_keys(present, 7).unwrap();
    let bytes = split.to_bytes();
    let view = BloomFilterRef::new(&bytes).unwrap();
    let shared = split.clone().into_shared();
    type Ask<'a> = Box<dyn Fn(&[Key]) -> usize + 'a>;
    fn yes(answers: Vec<bool>) -> usize {
        answers.into_iter().filter(|&answer| answer).count()
    }
    // The calls are inlined into each closure, as a program inlines them into its loop.
    macro_rules! asks {
        ($($name:literal: $filter:ident),*) => {
            [$((
                $name,
                Box::new(|keys: &[Key]| keys.iter().filter(|key| $filter.contains(key)).count()) as Ask,
                Box::new(|keys: &[Key]| yes($filter.contains_many(keys))) as Ask,
            )),*]
        };
    }
    let filters = asks! {
        "split lines": split, "split lines, borrowed": view, "split lines, shared": shared,
        "textbook layout": textbook, "binary fuse of 7 bits": fuse
    };
    let mut times = vec![[const { Vec::new() }; 4]; filters.len()];
    for _ in 0..ROUNDS {
        for ((_, one, many), times) in filters.iter().zip(&mut times) {
            for (at, (keys, ask)) in [(absent, one), (absent, many), (&mixed, one), (&mixed, many)].iter().enumerate() {
                times[at].push(nanos_per_key(keys.len(), || ask(black_box(keys))));
            }
        }
    }
    let heads = ["filter", "absent", "absent, many", "half present", "half present, many"];
    let mut table = Table::new("filters/many", &command("cargo bench --bench filters", &[]), &heads);
    for ((name, ..), times) in filters.iter().zip(times) {
        table.row([name.to_string()].into_iter().chain(times.map(|times| format!("{:.2}", median(times)))));
    }
    table.show();
}

fn main() {
    let n = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(1_000_000);
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx2") {
        println!("this processor lacks AVX2, which one of the contenders needs");
        return;
    }
    let (present, absent) = (keys(1, n), keys(2, n));
    if std::env::args().any(|argument| argument == "many") {
        return many(n, &present, &absent);
    }
    let tamis = |name, layout| move || Tamis::new(name, layout, n as u64);
    let split = tamis("tamis, split lines", BloomLayout::Split);
    // The others get the number of bits that the split layout takes.
    let bits = usize::try_from(split().filter.bits()).unwrap();
    let standard = tamis("tamis, textbook layout", BloomLayout::Standard);
    let mut measured: [Box<dyn AnyMeasured>; 4] = [
        Box::new(Measured::new(split, &present, &absent)),
        Box::new(Measured::new(|| OneLine::new(bits), &present, &absent)),
        Box::new(Measured::new(standard, &present, &absent)),
        Box::new(Measured::new(|| Fastbloom::new(bits), &present, &absent)),
    ];
    for _ in 0..ROUNDS {
        measured.iter_mut().for_each(|filter| filter.turn(&present, &absent));
    }
    let rows: Vec<Row> = measured.iter_mut().map(|filter| filter.result()).collect();
    println!(
        "{n} keys of 16 bytes, {:.2} bits per key; ns per key, hash included, median (and least) of {ROUNDS} rounds\n",
        bits as f64 / n as f64
    );
    let heads = ["filter", "false positives", "absent", "×", "present", "×", "build", "×"];
    let mut table = Table::new("filters/cost", &command("cargo bench --bench filters", &[]), &heads);
    for row in &rows {
        // Ratios are of two turns in one round, which are disturbed alike.
        let columns = row.times.iter().zip(&rows[0].times).flat_map(|(times, first)| {
            let ratios = times.iter().zip(first).map(|(time, first)| time / first);
            let least = times.iter().copied().fold(f64::INFINITY, f64::min);
            [format!("{:.2} ({least:.2})", median(times.iter().copied())), format!("{:.2}", median(ratios))]
        });
        table.row([row.name.to_owned(), format!("{:.4} %", row.rate * 100.0)].into_iter().chain(columns));
    }
    table.show();
    many(n, &present, &absent);
    let (once, each) = six_levels(4 * n, &absent);
    let head = format!("six filters, of {} keys and a quarter each time", 4 * n);
    let command = command("cargo bench --bench filters", &[]);
    let mut table = Table::new("filters/levels", &command, &[&head, "ns per absent key"]);
    table.row(["hashed once".to_owned(), format!("{once:.1}")]);
    table.row(["hashed for each filter".to_owned(), format!("{each:.1}")]);
    table.show();
}
