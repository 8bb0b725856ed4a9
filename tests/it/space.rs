//! How much space does a store take for its writes?

use std::path::Path;

use tamis::Options;
use tamis::vfs::{FileSystem, SimFileSystem};

use crate::support::{WAL_MODES, stepped_options};

/// Bytes that the files take, including reserved ones.
fn taken(fs: &SimFileSystem) -> u64 {
    const CAPACITY: u64 = 1 << 40;
    fs.set_capacity(Some(CAPACITY));
    CAPACITY - fs.free_space(Path::new("/")).unwrap()
}

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
