//! How much space does a store take for its writes?

use std::path::Path;
use std::time::{Duration, SystemTime};

use tamis::vfs::{FileSystem, SimFileSystem};
use tamis::{Db, FilterPolicy, KeyspaceOptions, Options, Result};

use crate::support::{Scene, WAL_MODES, stepped_options, taken};

#[test]
fn issue_13_space_is_reserved_in_proportion_to_what_is_written() {
    for mode in WAL_MODES {
        let fs = SimFileSystem::new();
        let db = stepped_options(&fs).0.wal_mode(mode).open("/db").unwrap();
        let empty = taken(&fs);
        db.put("k", "v").unwrap();
        assert!(taken(&fs) - empty <= 256 << 10);
        let mut most = 0;
        for n in 0u64..20_000 {
            db.put(n.to_be_bytes(), [7; 1000]).unwrap();
            let written = 1000 * (n + 1);
            assert!(taken(&fs) - empty <= written * 9 / 4 + (512 << 10), "{n}");
            most = most.max(taken(&fs) - empty);
        }
        assert!(most > 30_000_000, "reservations grow: {most}");
    }
}

#[test]
fn issue_13_small_puts_need_little_space() {
    for mode in WAL_MODES {
        for room in [16 << 10, 40 << 10, 100 << 10, 300 << 10, 1 << 20, 24 << 20] {
            let fs = SimFileSystem::new();
            let options = |fs: &SimFileSystem| -> Options { stepped_options(fs).0.wal_mode(mode) };
            let db = options(&fs).open("/db").unwrap();
            fs.set_capacity(None);
            let used = taken(&fs);
            fs.set_capacity(Some(used + room));
            db.put("k", "v").unwrap();
            db.put("synced", "v").unwrap();
            db.sync().unwrap();
            // Without space for more, only the write itself fails.
            let mut count = 0;
            while count < 2000
                && db.put(format!("{count}"), [7; 500]).map_err(|e| assert!(e.is_no_space(), "{e}")).is_ok()
            {
                count += 1;
            }
            assert!(count as u64 * 600 > room / 4 || count == 2000, "{room}: {count}");
            db.sync().unwrap();
            fs.set_capacity(None);
            db.put("later", "v").unwrap();
            db.close().unwrap();
            let db = options(&fs).open("/db").unwrap();
            assert!(db.contains_key("synced").unwrap() && db.contains_key("later").unwrap());
            assert!((0..count).all(|n| db.contains_key(format!("{n}")).unwrap()));
        }
    }
}

#[test]
fn a_failed_reservation_is_not_counted_on() {
    for mode in WAL_MODES {
        let fs = SimFileSystem::new();
        let db = stepped_options(&fs).0.wal_mode(mode).open("/db").unwrap();
        db.put("k", [7; 100_000]).unwrap();
        let used = taken(&fs);
        fs.set_capacity(Some(used));
        assert!(db.put("large", [7; 300_000]).unwrap_err().is_no_space());
        // Another program takes the space that the failure gave back.
        let free = fs.free_space(Path::new("/")).unwrap();
        fs.set_capacity(Some(used - free));
        assert!(db.put("small", [7; 1000]).unwrap_err().is_no_space());
        fs.set_capacity(None);
        db.put("small", "v").unwrap();
        db.sync().unwrap();
    }
}

/// An operation that writes little but an edit of the manifest.
type Edit = fn(&Db) -> Result<()>;

const EDITS: [(&str, Edit); 10] = [
    ("create", |db| db.keyspace("new").map(drop)),
    ("drop", |db| db.drop_keyspace("old").map(drop)),
    ("change", |db| db.keyspace_with("old", KeyspaceOptions::new().block_size(512)).map(drop)),
    ("rename", |db| db.rename_keyspace("old", "renamed")),
    ("flush", |db| db.put("new", "v").and_then(|_| db.flush())),
    ("flush ranges", |db| db.delete_range("x".."y").and_then(|_| db.flush())),
    ("compact", |db| db.compact_range(..)),
    ("drop what has expired", |db| {
        db.put_with_expiry("gone", "v", SystemTime::now() - Duration::from_secs(9))?;
        db.flush()?;
        db.wait_for_compactions()
    }),
    ("filters", |db| db.keyspace("old")?.rebuild_filters(FilterPolicy::bloom(4.0), |_| ()).map(drop)),
    ("sync", |db| db.put("synced", "v").and_then(|_| db.sync())),
];

/// An edit that did not fit poisoned the store: the first one after opening, which states the whole
/// manifest anew, and any other one.
#[test]
fn an_edit_that_finds_no_space_changes_nothing() {
    let fs = SimFileSystem::new();
    let db = stepped_options(&fs).0.open("/db").unwrap();
    let names: Vec<String> = (0..300).map(|i| format!("{}{i}", "k".repeat(200))).collect();
    db.keyspaces(&names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    db.keyspace("old").unwrap().put("kept", "v").unwrap();
    db.put("kept", "v").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    let seen = |db: &Db, fs: &SimFileSystem| {
        let stats = db.stats();
        let levels = stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels);
        let ranges: u64 = stats.keyspaces.iter().map(|keyspace| keyspace.range_deletes.tables).sum();
        let tables = levels.map(|level| level.tables.len() as u64).sum::<u64>() + ranges;
        let files = fs.paths().iter().filter(|path| path.extension().is_some_and(|end| end == "sst")).count() as u64;
        assert_eq!(files, tables, "no table is left over");
        let block_size = db.existing_keyspace("old").unwrap().map(|old| old.options().unwrap().block_size);
        (db.keyspace_names().unwrap(), block_size)
    };
    let mut refused = 0;
    for (what, edit) in EDITS {
        for (is_first, room) in
            [true, false].map(|is_first| (8..24).map(move |i| (is_first, 1 << i))).into_iter().flatten()
        {
            let _scene = Scene(format!("{what}, the first edit: {is_first}, room for {room}"));
            let fs = fs.kill();
            let db = stepped_options(&fs).0.open("/db").unwrap();
            if !is_first {
                db.keyspace("earlier").unwrap();
            }
            let (used, before) = (taken(&fs), seen(&db, &fs));
            fs.set_capacity(Some(used + room));
            let result = edit(&db);
            if let Err(error) = &result {
                assert!(error.is_no_space() && !error.is_poisoned(), "{error}");
                assert!(seen(&db, &fs) == before);
                refused += 1;
            }
            fs.set_capacity(None);
            db.put("later", "v").unwrap();
            if what != "rename" || result.is_err() {
                edit(&db).unwrap();
            }
            db.close().unwrap();
            let db = stepped_options(&fs).0.open("/db").unwrap();
            assert!(["kept", "later"].iter().all(|key| db.contains_key(key).unwrap()));
            assert_eq!(db.existing_keyspace("old").unwrap().is_some(), !["drop", "rename"].contains(&what));
        }
    }
    assert!(refused > 40, "{refused} were refused");
}

/// Each flush seals a memtable: those that fail must not add up.
#[test]
fn flushes_that_fail_seal_few_memtables() {
    let fs = SimFileSystem::new();
    let db = stepped_options(&fs).0.open("/db").unwrap();
    db.put("key", "value").unwrap();
    // Enough for logs, and too little for tables beside them.
    fs.set_capacity(Some(taken(&fs) + (200 << 10)));
    let keyspace = db.default_keyspace();
    let mut failed = 0;
    for n in 0..60_u64 {
        db.put(n.to_be_bytes(), "value").unwrap();
        failed += usize::from(if n % 2 == 0 { db.flush() } else { keyspace.flush() }.is_err());
        let logs = fs.list("/db".as_ref()).unwrap().iter().filter(|name| name.ends_with(".wal")).count();
        assert!(logs <= 4, "{logs} logs after {n} flushes");
    }
    assert_eq!(failed, 60);
    fs.set_capacity(None);
    db.flush().unwrap();
    assert_eq!(db.keys(..).count(), 61);
    db.close().unwrap();
}
