//! What an incremental backup copies and how long it takes, after 1 % of a store has changed.
//!
//! ```text
//! cargo bench -p tamis-backup --bench incremental
//! ```
//!
//! A store is filled in order with values of 1 KiB that do not compress. Then 1 % of its keys are
//! put again, in one range or everywhere, and it is backed up at once, and once more when it rests.
//! `TAMIS_GB` sets the size in GB (default 1), `TAMIS_DIR` the directory. No figure makes this
//! program fail.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::collections::BTreeSet;
use std::time::Instant;

use tamis::inspect::FileKind;
use tamis::{Compression, Db, KeyspaceOptions, Options};
use tamis_backup::Repository;

const VALUE: usize = 1024;

fn put(db: &Db, rng: &mut fastrand::Rng, i: u64) {
    let mut value = [0; VALUE];
    rng.fill(&mut value);
    db.put(i.to_be_bytes(), value).unwrap();
}

fn tables(db: &Db) -> BTreeSet<(FileKind, u64)> {
    let image = db.image().unwrap();
    let tables = image.files().filter(|file| matches!(file.kind, FileKind::Table(_)));
    tables.map(|file| (file.kind, file.size)).collect()
}

fn back_up(name: &str, db: &Db, repository: &Repository, before: &mut BTreeSet<(FileKind, u64)>) {
    let begin = Instant::now();
    let made = repository.backup(db).unwrap();
    let time = begin.elapsed();
    let now = tables(db);
    let changed: u64 = now.difference(before).map(|(_, size)| size).sum();
    println!(
        "  {name:32} {:7.1} of {:7.1} MB copied in {:6.2} s; new tables {:7.1} MB",
        made.copied_bytes as f64 / 1e6,
        made.bytes as f64 / 1e6,
        time.as_secs_f64(),
        changed as f64 / 1e6
    );
    *before = now;
}

fn main() {
    let gb: u64 = std::env::var("TAMIS_GB").map_or(1, |text| text.parse().unwrap());
    let dir = match std::env::var("TAMIS_DIR") {
        Ok(dir) => tempfile::tempdir_in(dir).unwrap(),
        Err(_) => tempfile::tempdir().unwrap(),
    };
    let keyspace = KeyspaceOptions::new().compression(Compression::None);
    let db = Options::new().default_keyspace(keyspace).open(dir.path().join("db")).unwrap();
    let repository = Repository::create(dir.path().join("backups")).unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let count = gb * 1_000_000_000 / VALUE as u64;
    (0..count).for_each(|i| put(&db, &mut rng, i));
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    println!("{gb} GB");
    let mut known = BTreeSet::new();
    back_up("first", &db, &repository, &mut known);
    back_up("nothing changed", &db, &repository, &mut known);
    for name in ["1 % in one range", "1 % everywhere"] {
        let start = rng.u64(0..count * 99 / 100);
        for i in 0..count / 100 {
            let key = if name == "1 % everywhere" { rng.u64(0..count) } else { start + i };
            put(&db, &mut rng, key);
        }
        db.flush().unwrap();
        back_up(name, &db, &repository, &mut known);
        db.wait_for_compactions().unwrap();
        back_up("  and at rest", &db, &repository, &mut known);
    }
    db.compact_range(..).unwrap();
    back_up("  and compacted", &db, &repository, &mut known);
    let begin = Instant::now();
    let verified = repository.verify(&mut |fault| panic!("{fault}")).unwrap();
    println!("  verify {:.1} MB: {:.2} s", verified.bytes as f64 / 1e6, begin.elapsed().as_secs_f64());
    let begin = Instant::now();
    let last = repository.generations().unwrap().pop().unwrap();
    repository.restore(last.number, dir.path().join("restored")).unwrap();
    println!("  restore: {:.2} s", begin.elapsed().as_secs_f64());
    let begin = Instant::now();
    let pruned = repository.prune(1).unwrap();
    println!("  prune {} generations, {} files: {:.2?}", pruned.generations, pruned.files, begin.elapsed());
}
