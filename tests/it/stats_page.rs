//! A store that publishes its statistics: what the page says, when it is there, and that its loss
//! and its leftovers do no harm.
#![allow(clippy::disallowed_methods, reason = "reads the page as another process would")]

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tamis::inspect::{FindingKind, Inspector};
use tamis::vfs::{Fault, FaultMode, FileSystem, SimFileSystem};
use tamis::{Db, Options};

const OFTEN: Duration = Duration::from_millis(20);

fn open(dir: &Path) -> Db {
    Options::new().publish_stats(OFTEN).open(dir).unwrap()
}

/// The figure of a page.
fn figure(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// The page, once `is_wanted`.
fn page(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> String {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match fs::read_to_string(dir.join("stats.prom")) {
            Ok(page) if is_wanted(&page) => return page,
            read => assert!(Instant::now() < end, "{read:?}"),
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_page_has_the_figures_and_goes_with_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("db");
    let db = open(&dir);
    page(&dir, |page| figure(page, "tamis_last_seqno") == Some(0.0));
    for n in 0..10u32 {
        db.put(n.to_be_bytes(), "value").unwrap();
    }
    let last = page(&dir, |page| figure(page, "tamis_last_seqno") == Some(10.0));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let written = figure(&last, "tamis_page_time_seconds").unwrap();
    assert!((now - written).abs() < 60.0 && figure(&last, "tamis_page_interval_seconds") == Some(0.02), "{last}");
    // All that the statistics have.
    let all = db.stats().to_prometheus();
    for line in all.lines().filter(|line| line.starts_with('#')) {
        assert!(last.contains(line), "{line}");
    }
    // No fault for those who look on, and no part of copies.
    let verified = Inspector::new().verify(&dir, &mut |found| panic!("{found}")).unwrap();
    assert!(verified.being_written);
    let copy = dir.with_file_name("copy");
    db.checkpoint(&copy).unwrap();
    assert!(!names(&copy).iter().any(|name| name.starts_with("stats")));
    db.close().unwrap();
    assert!(!names(&dir).iter().any(|name| name.starts_with("stats")), "{:?}", names(&dir));
    // Not after the end, either.
    thread::sleep(3 * OFTEN);
    assert!(!dir.join("stats.prom").exists());
}

#[test]
fn stores_that_do_not_publish_have_no_page() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("db");
    let db = Db::open(&dir).unwrap();
    db.put("a", "1").unwrap();
    let reader = Options::new().publish_stats(OFTEN).open_read_only(&dir).unwrap();
    thread::sleep(3 * OFTEN);
    assert!(!dir.join("stats.prom").exists());
    drop((reader, db));
    // Dropped, not closed.
    let db = open(&dir);
    page(&dir, |_| true);
    drop(db);
    assert!(!dir.join("stats.prom").exists());
}

#[test]
fn a_page_left_behind_is_no_damage_and_goes_with_the_next_opening() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("db");
    Db::open(&dir).unwrap().close().unwrap();
    for name in ["stats.prom", "stats.prom.tmp"] {
        fs::write(dir.join(name), "# HELP tamis_page_ti").unwrap();
    }
    let mut found = Vec::new();
    let verified = Inspector::new().verify(&dir, &mut |finding| found.push(finding.kind)).unwrap();
    assert_eq!((verified.damaged, found), (0, vec![FindingKind::Leftover; 2]));
    Db::open(&dir).unwrap().close().unwrap();
    assert!(!names(&dir).iter().any(|name| name.starts_with("stats")));
    // One that is none of ours stays.
    fs::write(dir.join("stats.prom"), "node_load1 0.5\n").unwrap();
    Db::open(&dir).unwrap().close().unwrap();
    assert_eq!(fs::read(dir.join("stats.prom")).unwrap(), b"node_load1 0.5\n");
    // Such a file alone is another program's.
    let other = dir.with_file_name("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("stats.prom"), "node_load1 0.5\n").unwrap();
    let refused = Db::open(&other).unwrap_err().to_string();
    assert!(refused.contains("stats.prom"), "{refused}");
    assert_eq!(fs::read(other.join("stats.prom")).unwrap(), b"node_load1 0.5\n");
}

#[test]
fn a_page_that_cannot_be_written_harms_nothing() {
    let disk = SimFileSystem::new();
    let options =
        Options::new().publish_stats(Duration::from_millis(10)).file_system(std::sync::Arc::new(disk.clone()));
    let db = options.open("/db").unwrap();
    db.put("a", "1").unwrap();
    let is_there = |name: &str| disk.list(Path::new("/db")).unwrap().iter().any(|file| file == name);
    let appears = || {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_there("stats.prom") {
            assert!(Instant::now() < end);
            thread::sleep(Duration::from_millis(2));
        }
    };
    appears();
    disk.set_fault(Some(Fault { at: 1, mode: FaultMode::NoSpace, sticky: true }));
    let end = Instant::now() + Duration::from_secs(60);
    while !disk.fault_hit() {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(2));
    }
    disk.set_fault(None);
    // Those that come are new.
    let _ = disk.remove(Path::new("/db/stats.prom"));
    db.put("b", "2").unwrap();
    assert!(db.stats().background_error.is_none());
    appears();
    db.close().unwrap();
    assert!(!is_there("stats.prom") && !is_there("stats.prom.tmp"));
}
