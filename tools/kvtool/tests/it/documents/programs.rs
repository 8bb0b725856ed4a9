//! The programs of the documents, as they stand there. Each has its block between two markers; a
//! test compares them, and another runs each twice in a directory of its own.
#![allow(clippy::needless_borrows_for_generic_args, reason = "documents borrow what readers may use again")]

use std::process::Command;

use super::{blocks, documents};

/// The text of this file.
const THIS: &str = include_str!("programs.rs");

/// The programs, by the tests that run them and the documents that have them, in the order there.
const PROGRAMS: [(&str, &str); 7] = [
    ("readme_use", "README.md"),
    ("filters_options", "docs/FILTERS.md"),
    ("filters_ledger", "docs/FILTERS.md"),
    ("filters_alone", "docs/FILTERS.md"),
    ("operations_events", "docs/OPERATIONS.md"),
    ("operations_environment", "docs/OPERATIONS.md"),
    ("operations_backups", "docs/OPERATIONS.md"),
];

/// The block between the markers of a program, without its indentation.
fn program(name: &str) -> String {
    let begin = format!("    // {name} begins\n");
    let (_, after) = THIS.split_once(&begin).unwrap();
    let (block, _) = after.split_once(&format!("    // {name} ends\n")).unwrap();
    block.lines().map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n").collect()
}

#[test]
fn every_program_of_the_documents_stands_here_as_it_stands_there() {
    let mut programs = PROGRAMS.iter();
    // Those of the guide are tests of documentation.
    for document in documents().iter().filter(|document| !document.starts_with("docs/guide")) {
        for block in blocks(document, "rust") {
            let (name, of) =
                programs.next().unwrap_or_else(|| panic!("{}: a block that no test runs", document.display()));
            assert_eq!(document.to_str(), Some(*of));
            assert_eq!(block, program(name), "{name}: compare {} with the test", document.display());
        }
    }
    assert!(programs.next().is_none());
}

#[test]
fn every_program_of_the_documents_runs_twice_in_one_directory() {
    let this = std::env::current_exe().unwrap();
    for (name, _) in PROGRAMS {
        let dir = tempfile::tempdir().unwrap();
        for time in 0..2 {
            let test = format!("documents::programs::{name}");
            let run =
                Command::new(&this).args(["--exact", &test, "--ignored"]).current_dir(dir.path()).output().unwrap();
            let said = String::from_utf8_lossy(&run.stdout);
            assert!(run.status.success() && said.contains("1 passed"), "{name}, time {time}: {said}");
        }
    }
}

#[test]
#[ignore = "run in a directory of its own by every_program_of_the_documents_runs_twice_in_one_directory"]
#[rustfmt::skip]
fn filters_options() -> Result<(), Box<dyn std::error::Error>> {
    use tamis::{Db, FilterPolicy, KeyspaceOptions, PrefixExtractor, RangeFilterPolicy};

    let db = Db::open("words.db")?;
    // filters_options begins
    let events = db.keyspace_with("events", KeyspaceOptions::new()
        .filter(FilterPolicy::BinaryFuse { fingerprint_bits: 7 })  // the default's rate in four fifths of its memory, slower to build
        .prefix(PrefixExtractor::UpTo(b':'))                       // prefix("user17:") skips tables without that prefix
        .range_filter(RangeFilterPolicy::ORDERED))?;               // a scan reads only the runs that have some of it
    // filters_options ends
    events.put("user17:1", "login")?;
    Ok(())
}

#[test]
#[ignore = "run in a directory of its own by every_program_of_the_documents_runs_twice_in_one_directory"]
#[rustfmt::skip]
#[expect(unused_variables, reason = "the document shows how they are had")]
fn filters_ledger() -> Result<(), Box<dyn std::error::Error>> {
    use tamis::{Db, FilterMode, Options, ReadOptions};

    let db = Db::open("words.db")?;
    // filters_ledger begins
    let ledger = db.stats().ledger();                            // also per keyspace, level and table
    let rates = (ledger.designed_rate(), ledger.expected_rate(), ledger.measured_rate());
    let interval = ledger.reads.false_positive_interval();       // 95 %
    for step in db.explain("apple")?.steps {                     // how this key is read, source by source
        println!("{}: {step}, {:?}", step.source, step.blocks);  // out of range; filter said no; false positive; …
    }
    for step in db.explain_range("apple".., 10)?.steps {          // how ten entries are read, table by table
        println!("level {}, table {}: {step}", step.level, step.table);   // 2 blocks, 1 for nothing; no block needed; …
    }
    let mode = ReadOptions::new().filters(FilterMode::Shadow);   // ask the filter, search the table anyway:
    db.get_with("apple", mode)?;                                 // counts the saving; a wrong "no" is an error that names the table
    Options::new().on_event(|event| eprintln!("{event}"));       // damaged filters, and those wrong too often
    // filters_ledger ends
    Ok(())
}

#[test]
#[ignore = "run in a directory of its own by every_program_of_the_documents_runs_twice_in_one_directory"]
#[rustfmt::skip]
#[expect(unused_variables, reason = "the document shows how they are had")]
fn filters_alone() -> Result<(), Box<dyn std::error::Error>> {
    let keys = ["a", "b"];
    let secret = 7;
    let mut other = tamis::filter::BloomFilter::with_rate(350_000, 0.01)?;
    other.insert("tamis");
    other.save("other.bloom")?;
    let mapped_file = std::fs::read("other.bloom")?;
    // filters_alone begins
    use tamis::filter::{
        BloomFilter, BloomFilterRef, BloomLayout, BloomSize, FuseFilter, HashFunction, ScalableBloomFilter,
    };

    let mut words = BloomFilter::with_rate(350_000, 0.01)?;      // or with_bits(m, k); builder() for seed, hash, layout
    let is_new = words.insert("tamis");                          // whether any bit changed
    let maybe = words.contains("sieve");                         // "no" is certain
    println!("{words}");                                         // estimated keys, bits, fill, false positives
    words.save("words.bloom")?;                                  // durable, in one step, self-describing, checksummed
    words.union_with(&BloomFilter::load("other.bloom")?)?;       // refused unless size, layout and hash agree
    let answers: Vec<bool> = words.contains_many(&keys);         // a batch: cache misses overlap
    let common = words.estimated_intersection(&other)?;          // how many keys both have, from the bits

    let size = BloomSize::for_bits(BloomLayout::Split, 8 << 20, 6)?;  // before anything is built:
    println!("{} bytes, {:.4} false positives", size.bytes(), size.rate(1_000_000));

    let shared = BloomFilter::with_rate(350_000, 0.01)?.into_shared();
    std::thread::scope(|scope| { scope.spawn(|| shared.insert("from another thread")); });   // by &self, without locks
    let words = shared.into_filter();                            // the bits are not copied

    let view = BloomFilterRef::new(&mapped_file)?;               // verified once, answers from the bytes
    let fuse = FuseFilter::from_keys(&keys, 8)?;                 // 1/256 false positives in 9 bits per key; fixed

    let builder = ScalableBloomFilter::builder().hash(HashFunction::SipHash13).seed(secret);
    let mut seen = builder.with_rate(1000, 0.001)?;              // grows, and holds its rate
    seen.extend(["https://example.com/", "https://example.org/"]);
    // filters_alone ends
    Ok(())
}

#[test]
#[ignore = "run in a directory of its own by every_program_of_the_documents_runs_twice_in_one_directory"]
#[rustfmt::skip]
fn operations_events() -> Result<(), Box<dyn std::error::Error>> {
    use std::time::Duration;
    use tamis::Options;

    // operations_events begins
    let options = Options::new()
        .on_event(|event| eprintln!("{:?}: {event}", event.severity()))
        .slow_operation(Duration::from_millis(100));
    // operations_events ends
    options.open("words.db")?;
    Ok(())
}

#[test]
#[ignore = "run in a directory of its own by every_program_of_the_documents_runs_twice_in_one_directory"]
#[rustfmt::skip]
fn operations_environment() -> Result<(), Box<dyn std::error::Error>> {
    use tamis::{Environment, EnvironmentOptions, Options};

    // operations_environment begins
    let environment = Environment::new(EnvironmentOptions::new().memtable_budget(512 << 20))?;
    let db = Options::new().environment(&environment).open("tenants/ann")?;
    // operations_environment ends
    db.put("k", "v")?;
    Ok(())
}

#[test]
#[ignore = "run in a directory of its own by every_program_of_the_documents_runs_twice_in_one_directory"]
#[rustfmt::skip]
fn operations_backups() -> Result<(), Box<dyn std::error::Error>> {
    use tamis_backup::{FollowOptions, Repository};

    let db = tamis::Db::open("words.db")?;
    // operations_backups begins
    let repository = Repository::create("backups")?; // or create_in_bucket("s3://bucket/words")
    repository.backup(&db)?;                                  // while the store is written
    repository.prune(7)?;                                     // keeps the last seven of each store
    let follower = repository.follow(&db, FollowOptions::new().keep(7))?;   // and everything in between
    // operations_backups ends
    follower.stop()?;
    Ok(())
}

#[test]
#[ignore = "run in a directory of its own by every_program_of_the_documents_runs_twice_in_one_directory"]
#[rustfmt::skip]
#[expect(unused_variables, reason = "the document shows how they are had")]
fn readme_use() -> Result<(), Box<dyn std::error::Error>> {
    // readme_use begins
    use tamis::{Db, Error, WriteBatch, WriteOptions};

    let db = Db::open("words.db")?;                              // created when absent
    db.put("apple", "1")?;
    let value = db.get("apple")?;                                // Option<Value>; Value derefs to [u8]
    db.put_with("pear", "2", WriteOptions::new().sync(true))?;   // survives a power cut
    let users = db.keyspace("users")?;                           // a map of its own, in the same log
    let mut batch = WriteBatch::new();
    batch.delete("apple");
    batch.put_in(&users, "id7", "Ann");
    db.write(batch)?;                                            // all or nothing
    db.transact(|tx| {                                           // run again if what it read has changed
        if let Some(value) = tx.get("pear")? {
            tx.put("plum", value);
        }
        Ok::<_, Error>(())
    })?;
    for entry in db.snapshot().range("a".."q") {                 // also .rev(), prefix(p), cursor()
        let (key, value) = entry?;
    }
    // readme_use ends
    Ok(())
}
