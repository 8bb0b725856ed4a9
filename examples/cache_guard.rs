//! A cache guard. Requests for keys that do not exist always miss the cache, so all of them reach
//! the back end behind it. A filter of the existing keys stops them.
//!
//! ```sh
//! apt-cache pkgnames | cargo run --release --example cache_guard
//! cargo run --release --example cache_guard -- /usr/share/dict/words
//! ```
//!
//! The input has one key per line; all exist in the back end. Requests are equal with and without
//! the guard: half for existing keys, some much more often than others, and half for missing keys.
#![allow(missing_docs, clippy::disallowed_types, reason = "an example that opens the files that it is told to")]

use std::collections::{HashMap, HashSet, VecDeque};
use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use tamis::filter::BloomFilter;

const BITS_PER_KEY: f64 = 10.0;
/// Requests per key.
const REQUESTS: usize = 4;

type Key = Vec<u8>;

fn main() -> Result<(), Box<dyn Error>> {
    let report = match std::env::args().nth(1) {
        Some(path) => {
            let file = File::open(&path).map_err(|error| format!("cannot open {path}: {error}"))?;
            run(BufReader::new(file))?
        }
        None => run(io::stdin().lock())?,
    };
    let Report { keys, requests, missing, .. } = report;
    println!("{keys} keys; {requests} requests, {missing} of them for keys that do not exist");
    println!("{:<16}{:>14}{:>22}", "", "back-end calls", "for nothing");
    for (name, calls) in [("without guard", &report.unguarded), ("with guard", &report.guarded)] {
        println!("{name:<16}{:>14}{:>22}", calls.all, calls.for_nothing);
    }
    println!(
        "saved {} calls; let through {:.3} % of the requests for missing keys, expected {:.3} %; the filter takes {} bytes",
        report.unguarded.all - report.guarded.all,
        100.0 * report.guarded.for_nothing as f64 / missing.max(1) as f64,
        100.0 * report.expected,
        report.filter_bytes
    );
    Ok(())
}

/// The slow back end: a database or a service.
struct BackEnd {
    keys: HashSet<Key>,
    calls: Calls,
}

#[derive(Default)]
struct Calls {
    all: u64,
    for_nothing: u64,
}

impl BackEnd {
    fn get(&mut self, key: &[u8]) -> Option<usize> {
        let value = self.keys.get(key).map(Vec::len);
        self.calls.all += 1;
        self.calls.for_nothing += u64::from(value.is_none());
        value
    }
}

/// A first-in, first-out cache. Missing keys are not cached, because there is no bound on their
/// number.
struct Cache {
    values: HashMap<Key, usize>,
    order: VecDeque<Key>,
    capacity: usize,
    guard: Option<BloomFilter>,
    back_end: BackEnd,
}

impl Cache {
    fn new(keys: &HashSet<Key>, guard: Option<BloomFilter>) -> Cache {
        let back_end = BackEnd { keys: keys.clone(), calls: Calls::default() };
        Cache { values: HashMap::new(), order: VecDeque::new(), capacity: keys.len() / 10 + 1, guard, back_end }
    }

    fn get(&mut self, key: &[u8]) -> Option<usize> {
        if let Some(&value) = self.values.get(key) {
            return Some(value);
        }
        if self.guard.as_ref().is_some_and(|guard| !guard.contains(key)) {
            return None;
        }
        let value = self.back_end.get(key)?;
        if self.order.len() == self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
        self.order.push_back(key.to_vec());
        self.values.insert(key.to_vec(), value);
        Some(value)
    }
}

struct Report {
    keys: usize,
    requests: u64,
    missing: u64,
    unguarded: Calls,
    guarded: Calls,
    filter_bytes: u64,
    expected: f64,
}

fn run(input: impl BufRead) -> Result<Report, Box<dyn Error>> {
    let in_order: Vec<Key> = input.split(b'\n').collect::<io::Result<_>>()?;
    let keys: HashSet<Key> = in_order.iter().cloned().collect();
    let mut guard = BloomFilter::builder().with_bits_per_key((keys.len() as u64).max(1), BITS_PER_KEY)?;
    guard.extend(&keys);
    let (filter_bytes, expected) = (guard.encoded_len(), guard.expected_fpr());

    let (mut plain, mut guarded) = (Cache::new(&keys, None), Cache::new(&keys, Some(guard)));
    let mut random = fastrand::Rng::with_seed(1);
    let (mut requests, mut missing) = (0, 0);
    for number in 0..in_order.len() * REQUESTS {
        // The square of a random number in [0, 1) is mostly small: the first keys are the most
        // popular.
        let place = random.f64().powi(2) * in_order.len() as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below the number of keys")]
        let mut key = in_order[place as usize].clone();
        if number % 2 == 1 {
            key.extend_from_slice(format!("-{number}").as_bytes());
        }
        requests += 1;
        missing += u64::from(!keys.contains(&key));
        if plain.get(&key) != guarded.get(&key) {
            return Err(format!("the guard denies the existing key {}", String::from_utf8_lossy(&key)).into());
        }
    }
    Ok(Report {
        keys: keys.len(),
        requests,
        missing,
        unguarded: plain.back_end.calls,
        guarded: guarded.back_end.calls,
        filter_bytes,
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_requests_for_nothing_reach_the_back_end() {
        let keys: Vec<String> = (0..2000).map(|i| format!("key{i}")).collect();
        let report = run(keys.join("\n").as_bytes()).unwrap();
        assert_eq!((report.keys, report.requests, report.missing), (2000, 8000, 4000));
        assert_eq!(report.unguarded.for_nothing, 4000);
        assert!((1..80).contains(&report.guarded.for_nothing));
        let of_existing = |calls: &Calls| calls.all - calls.for_nothing;
        assert_eq!(of_existing(&report.guarded), of_existing(&report.unguarded));
    }
}
