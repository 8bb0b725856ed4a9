//! "Is this user name taken?": a filter in front of a store, so that most look-ups of free names
//! never reach the store.
//!
//! ```sh
//! cargo run --release --example user_names -- /usr/share/dict/words
//! getent passwd | cut -d: -f1 | cargo run --release --example user_names
//! ```
//!
//! The input has one name per line. All are registered in a new store. Then each name is looked up,
//! with three variants that somebody might try: with a digit, an underscore, or a year. The answers
//! are checked against the store, and the saved look-ups are counted.
#![allow(missing_docs, clippy::disallowed_types, reason = "an example that opens the files that it is told to")]

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use tamis::filter::{BloomFilter, HashedKeys};
use tamis::{Db, WriteBatch};

/// The share of free names for which the store is read anyway.
const RATE: f64 = 0.01;
const BATCH: usize = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let report = match std::env::args().nth(1) {
        Some(path) => {
            let file = File::open(&path).map_err(|error| format!("cannot open {path}: {error}"))?;
            run(BufReader::new(file))?
        }
        None => run(io::stdin().lock())?,
    };
    let free = report.asked - report.taken;
    println!("{} names registered; the filter takes {} bytes", report.registered, report.filter_bytes);
    println!("{} names looked up: {} taken, {free} free", report.asked, report.taken);
    println!("look-ups in the store: {} instead of {}", report.look_ups, report.asked);
    let wrong = report.look_ups - report.taken;
    println!(
        "free names looked up in the store: {wrong}, {:.3} %, expected {:.3} %",
        100.0 * wrong as f64 / free.max(1) as f64,
        100.0 * report.expected
    );
    Ok(())
}

/// User names in a store, and a filter of them in memory.
struct UserNames {
    db: Db,
    filter: BloomFilter,
    registered: u64,
    look_ups: u64,
}

impl UserNames {
    /// Builds the filter from the names in the store. It could also be kept in a file next to the
    /// store.
    fn open(db: Db) -> Result<UserNames, tamis::Error> {
        let builder = BloomFilter::builder();
        let mut names = HashedKeys::new(builder.hasher()?);
        for entry in db.iter() {
            names.push(entry?.0);
        }
        let registered = names.distinct();
        let mut filter = builder.with_rate(registered.max(1), RATE)?;
        filter.insert_all(&names)?;
        Ok(UserNames { db, filter, registered, look_ups: 0 })
    }

    fn is_taken(&mut self, name: &[u8]) -> Result<bool, tamis::Error> {
        if !self.filter.contains(name) {
            return Ok(false);
        }
        self.look_ups += 1;
        Ok(self.db.get(name)?.is_some())
    }
}

struct Report {
    registered: u64,
    filter_bytes: u64,
    asked: u64,
    taken: u64,
    look_ups: u64,
    expected: f64,
}

fn run(input: impl BufRead) -> Result<Report, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let db = Db::open(dir.path().join("users.db"))?;
    let names: Vec<Vec<u8>> = input.split(b'\n').collect::<io::Result<_>>()?;
    for some in names.chunks(BATCH) {
        let mut batch = WriteBatch::new();
        for name in some {
            batch.put(name, "registered");
        }
        db.write(batch)?;
    }

    let mut users = UserNames::open(db)?;
    let (mut asked, mut taken) = (0, 0);
    for name in &names {
        for suffix in [&b""[..], b"1", b"_", b"2026"] {
            let name = [name, suffix].concat();
            let is_taken = users.is_taken(&name)?;
            if is_taken != users.db.get(&name)?.is_some() {
                return Err(format!("the filter denies the registered name {}", String::from_utf8_lossy(&name)).into());
            }
            asked += 1;
            taken += u64::from(is_taken);
        }
    }
    Ok(Report {
        registered: users.registered,
        filter_bytes: users.filter.encoded_len(),
        asked,
        taken,
        look_ups: users.look_ups,
        expected: users.filter.expected_fpr(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_look_ups_for_free_names_reach_the_store() {
        let names: Vec<String> = (0..1000).map(|i| format!("user{i:03}x")).collect();
        let report = run(names.join("\n").as_bytes()).unwrap();
        assert_eq!((report.asked, report.taken), (4000, 1000));
        assert!((1000..1080).contains(&report.look_ups), "{}", report.look_ups);
    }
}
