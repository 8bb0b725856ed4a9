//! Operands and the values beneath them, with something between the two that is not in tables yet.

use std::path::Path;
use std::sync::Arc;

use tamis::operator::Append;
use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Compression, Executor, IngestOptions, KeyspaceOptions, SstWriter, WriteBatch};

use crate::support::stepped_options;

/// A range delete in a memtable, and an operand ingested after it. Pointers are merged down early,
/// and with them the operand and the value that the range deletes: the compaction does not know of
/// the range, and must not find the two together.
#[test]
fn an_ingested_operand_is_not_combined_with_what_an_unflushed_range_deletes_issue_29() {
    let fs = SimFileSystem::new();
    fs.create_dir("/in".as_ref()).unwrap();
    let (options, executor) = stepped_options(&fs);
    let keyspace = KeyspaceOptions::new().merge_operator(Append).separate_values(16).compression(Compression::None);
    let db = options.memtable_size(4096).default_keyspace(keyspace).open("/db").unwrap();
    // The range deletes no whole table, for which it would be flushed at once.
    for key in ["b", "k", "y"] {
        db.put(key, [b'.'; 40]).unwrap();
    }
    db.compact_range(..).unwrap();
    // A memtable with pointers on both sides of the key, to be flushed.
    let mut batch = WriteBatch::new();
    batch.put("a", vec![b'a'; 50_000]);
    batch.put("z", vec![b'z'; 50_000]);
    db.write(batch).unwrap();
    // The next memtable, which stays.
    db.put("c", [b'.'; 4]).unwrap();
    db.delete_range("k".."l").unwrap();
    let path = Path::new("/in/1");
    let mut writer = SstWriter::create_in(Arc::new(fs.clone()), path, &db.sst_format().unwrap()).unwrap();
    writer.merge("k", "operand").unwrap();
    writer.finish().unwrap();
    db.ingest([path], IngestOptions::new()).unwrap();
    let compactions = || db.stats().compactions;
    let before = compactions();
    while executor.step() {
        assert_eq!(db.get("k").unwrap().as_deref(), Some(&b"operand"[..]));
    }
    assert!(compactions() > before, "the pointers went down");
    let values: Vec<usize> = db.iter().map(|entry| entry.unwrap().1.len()).collect();
    assert_eq!(values, [50_000, 40, 4, 7, 40, 50_000]);
}
