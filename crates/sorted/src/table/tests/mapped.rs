//! Tables that are read in place.

use std::io;

use super::*;
use crate::vfs::{FileLock, Mapping, ReadableFile, WritableFile};

fn open_on(fs: Arc<dyn FileSystem>, dir: &Path, meta: &TableMeta) -> Arc<Table> {
    let context = TableContext::new(fs, dir, 1 << 20, 8).with_read_mode(ReadMode::Mmap);
    Arc::new(Table::new(Arc::new(context), meta.clone()))
}

/// An open table of `entries`, none of whose blocks has been read.
fn mapped(options: TableOptions, entries: &[TableEntry]) -> (SimFileSystem, Arc<Table>) {
    let fs = file_system();
    let meta = build(&fs, options, entries);
    let table = open_on(Arc::new(fs.clone()), Path::new("/db"), &meta);
    table.resident().unwrap();
    (fs, table)
}

fn is_mapped(table: &Table) -> bool {
    table.resident().unwrap().mapped.is_some()
}

#[test]
fn a_block_is_read_once_and_then_in_place() {
    const N: u64 = 3000;
    let (fs, table) = mapped(options(), &even_keys(N));
    let blocks = table.block_count().unwrap() as u64;
    assert!(is_mapped(&table) && blocks > 10);
    let index = table.resident().unwrap().index.resident().unwrap();
    let stored: u64 = (0..index.len()).map(|i| index.handle(i).stored_len()).sum();
    let before = fs.reads();
    for pass in 1..=2 {
        for i in 0..N {
            let hit = get(&table, even_key(i), MAX_SEQNO).unwrap().unwrap();
            assert_eq!(hit.value, format!("value of {i}").as_bytes());
        }
        assert_eq!(fs.reads() - before, blocks);
        let reads = table.ledger().reads;
        assert_eq!((reads.block_reads, reads.cache_hits), (blocks, pass * N - blocks));
        assert_eq!(reads.block_bytes, stored);
    }
    // Cursors read in place too, even those without `fill_cache`; a compaction reads the file.
    for fill_cache in [true, false] {
        assert_eq!(entries_of(&table, fill_cache).unwrap().len() as u64, N);
        assert_eq!(fs.reads() - before, blocks);
    }
    let mut cursor = table.cursor(true).for_compaction();
    cursor.seek_to_first().unwrap();
    assert!(fs.reads() - before > blocks);
    assert_eq!(table.fetcher().context.cache().usage(), 0);
}

#[test]
fn a_long_scan_reads_ahead_and_then_in_place() {
    let (fs, table) = mapped(options(), &even_keys(20_000));
    let before = fs.reads();
    for _ in 0..2 {
        assert_eq!(entries_of(&table, true).unwrap().len(), 20_000);
        let reads = fs.reads() - before;
        assert!(reads < table.block_count().unwrap() as u64 / 2, "{reads}");
    }
    let reads = fs.reads();
    assert!((0..20_000).all(|i| get(&table, even_key(i), MAX_SEQNO).unwrap().is_some()));
    assert_eq!(fs.reads(), reads);
}

#[test]
fn a_block_that_does_not_verify_is_never_read_in_place() {
    let (fs, table) = mapped(options(), &even_keys(1000));
    let resident = table.resident().unwrap();
    for i in 0..resident.index.resident().unwrap().len() {
        let handle = resident.index.resident().unwrap().handle(i);
        let key =
            even_keys(1000).into_iter().map(|entry| entry.0).find(|key| table.block_at(key).unwrap() == i).unwrap();
        fs.corrupt(PATH, handle.offset + 100, 0x10).unwrap();
        for _ in 0..2 {
            let Error::Corruption { file, offset, .. } = get(&table, &key, MAX_SEQNO).unwrap_err() else { panic!() };
            assert_eq!((file.as_path(), offset), (Path::new(PATH), handle.offset));
            let mut cursor = table.cursor(true);
            assert!(cursor.seek(&key, MAX_SEQNO).is_err() && !cursor.valid());
        }
        fs.corrupt(PATH, handle.offset + 100, 0x10).unwrap();
        assert!(get(&table, &key, MAX_SEQNO).unwrap().is_some());
        // From now on nothing reads the file.
        fs.corrupt(PATH, handle.offset + 100, 0x10).unwrap();
        assert!(get(&table, &key, MAX_SEQNO).unwrap().is_some());
    }
    assert!(table.verify().is_err());
}

/// A file system with one table. Its mapping shows other bytes than the file has; there is no
/// mapping if `shown` is `None`.
#[derive(Clone, Debug)]
struct Rotten {
    fs: SimFileSystem,
    shown: Option<Vec<u8>>,
}

#[derive(Debug)]
struct RottenFile(Arc<dyn ReadableFile>, Option<Vec<u8>>);

#[derive(Debug)]
struct Shown(Vec<u8>);

impl Mapping for Shown {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl ReadableFile for RottenFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    unsafe fn map(&self) -> Option<Arc<dyn Mapping>> {
        self.1.clone().map(|shown| Arc::new(Shown(shown)) as _)
    }
}

/// Only what reading a table needs.
impl FileSystem for Rotten {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadableFile>> {
        Ok(Arc::new(RottenFile(self.fs.open(path)?, self.shown.clone())))
    }

    fn create(&self, _: &Path) -> io::Result<Box<dyn WritableFile>> {
        unreachable!()
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        unreachable!()
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        unreachable!()
    }

    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        unreachable!()
    }

    fn create_dir(&self, _: &Path) -> io::Result<bool> {
        unreachable!()
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        unreachable!()
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        unreachable!()
    }

    fn free_space(&self, _: &Path) -> io::Result<u64> {
        unreachable!()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 100 }))]

    /// Simulates a write to the file after its blocks were verified. tamis promises no more than
    /// this for that case.
    #[test]
    fn whatever_a_mapped_file_becomes_every_answer_is_a_result(
        seed: u64, share in prop_oneof![Just(1.0), Just(0.1), Just(0.003)], zeros: bool
    ) {
        let entries = even_keys(300);
        let fs = file_system();
        let meta = build(&fs, TableOptions { block_size: 512, ..options() }, &entries);
        let mut rng = fastrand::Rng::with_seed(seed);
        let rot = |byte| if rng.f64() >= share { byte } else if zeros { 0 } else { rng.u8(..) };
        let shown = fs.read(PATH).unwrap().into_iter().map(rot).collect();
        let table = open_on(Arc::new(Rotten { fs, shown: Some(shown) }), Path::new("/db"), &meta);
        prop_assert!(is_mapped(&table));
        prop_assert_eq!(&entries_of(&table, true).unwrap(), &entries);
        // A forged entry may point to a value file that the table does not name.
        let names_a_file = |text: &str| ["000012.sst", ".val"].iter().any(|name| text.contains(name));
        let check = |error: &Error| assert!(names_a_file(&error.to_string()), "{error}");
        for i in 0..300 {
            for key in [even_key(i), odd_key(i)] {
                get(&table, &key, MAX_SEQNO).err().iter().for_each(check);
                let mut cursor = table.cursor(true);
                let mut step = cursor.seek(key.as_bytes(), MAX_SEQNO);
                for _ in 0..3 {
                    if step.is_ok() && cursor.valid() {
                        let _ = current(&cursor);
                        step = cursor.prev();
                    }
                }
                step.err().iter().for_each(check);
            }
        }
        entries_of(&table, false).err().iter().for_each(check);
    }
}

#[test]
fn files_that_cannot_be_mapped_are_read() {
    let entries = even_keys(500);
    let fs = file_system();
    let meta = build(&fs, options(), &entries);
    let bytes = fs.read(PATH).unwrap();
    // No mapping, and mappings of another length.
    for shown in [None, Some(bytes[1..].to_vec()), Some(Vec::new())] {
        let table = open_on(Arc::new(Rotten { fs: fs.clone(), shown }), Path::new("/db"), &meta);
        assert!(!is_mapped(&table));
        assert_eq!(entries_of(&table, true).unwrap(), entries);
        assert!(get(&table, even_key(7), MAX_SEQNO).unwrap().is_some());
        assert!(table.fetcher().context.cache().usage() > 0);
    }
}

#[test]
fn tables_with_compression_are_not_mapped() {
    if Compression::Lz4.is_available() {
        let entries = even_keys(1000);
        let (_, table) = mapped(TableOptions { compression: Compression::Lz4, ..options() }, &entries);
        assert!(!is_mapped(&table));
        assert_eq!(entries_of(&table, true).unwrap(), entries);
    }
}

/// Uses real mapped pages, of the real file system.
#[test]
#[cfg_attr(any(miri, windows), ignore = "Miri and Windows map no files")]
fn cursors_and_values_outlive_a_table_and_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let fs = Arc::new(OsFileSystem::new());
    let entries: Vec<TableEntry> = (0..500u32)
        .map(|i| put(even_key(i.into()), 1, vec![i.to_le_bytes()[0]; if i % 50 == 0 { 9000 } else { 90 }]))
        .collect();
    let mut builder = TableBuilder::new(&*fs, dir.path(), 7, options()).unwrap();
    for (key, seqno, kind, value) in &entries {
        builder.add(key, *seqno, *kind, value).unwrap();
    }
    let table = open_on(fs.clone(), dir.path(), &builder.finish().unwrap());
    assert!(is_mapped(&table));
    for _ in 0..2 {
        assert_eq!(entries_of(&table, true).unwrap(), entries);
    }
    let values: Vec<Value> = entries.iter().map(|e| get(&table, &e.0, 1).unwrap().unwrap().value).collect();
    let mut cursor = table.cursor(true);
    cursor.seek_to_first().unwrap();
    let context = Arc::clone(&table.fetcher().context);
    let lock = OsFileSystem.lock(&dir.path().join("LOCK")).unwrap().unwrap();
    context.janitor().start(Arc::new(SteppedExecutor::new()), lock.into());
    assert_eq!(table.retire(), None);
    assert_eq!(fs.list(dir.path()).unwrap().len(), 2, "the cursor has the table");
    for entry in &entries {
        assert_eq!(current(&cursor).as_ref(), Some(entry));
        cursor.next().unwrap();
    }
    drop(cursor);
    context.janitor().stop();
    assert_eq!(fs.list(dir.path()).unwrap(), ["LOCK"]);
    assert!(values.iter().zip(&entries).all(|(value, entry)| *value == entry.3));
}

#[test]
fn racing_first_reads_of_a_block_all_succeed() {
    let n = if cfg!(miri) { 60 } else { 3000 };
    let (_, table) = mapped(TableOptions { block_size: 256, ..options() }, &even_keys(n));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let table = &table;
            scope.spawn(move || {
                for i in (0..2 * n).map(|i| i * 7 + thread) {
                    let hit = get(table, even_key(i % n), MAX_SEQNO).unwrap().unwrap();
                    assert_eq!(hit.value, format!("value of {}", i % n).as_bytes());
                }
            });
        }
    });
    let reads = table.ledger().reads;
    assert_eq!(reads.block_reads + reads.cache_hits, 8 * n);
    assert!(reads.block_reads <= 4 * table.block_count().unwrap() as u64);
}
