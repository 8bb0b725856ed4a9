//! Scans that continue past damage, while the store is written to.

use tamis::Executor;
use tamis::vfs::SimFileSystem;

use super::{DIR, key, options, value};

#[test]
fn salvage_continues_while_its_tables_are_compacted_away() {
    let fs = SimFileSystem::new();
    let (options_of, executor) = options(&fs);
    let db = options_of.open(DIR).unwrap();
    let put = |from: usize| (0..300).for_each(|i| _ = db.put(key(i), value(from + i)).unwrap());
    put(0);
    db.compact_range(..).unwrap();
    let mut entries = db.default_keyspace().salvage(..).unwrap();
    let first = entries.next().unwrap().unwrap();
    put(1000);
    db.compact_range(..).unwrap();
    while executor.step() {}
    let mut found = vec![first];
    found.extend(entries.by_ref().map(Result::unwrap));
    assert_eq!(found, (0..300).map(|i| (key(i), value(i))).collect::<Vec<_>>());
    assert_eq!(entries.skipped(), []);
}
