//! Threads and memory of a process with 256 stores, in a process of their own: other tests have
//! threads too.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use tamis::{Db, Environment, EnvironmentOptions, KeyspaceOptions, Options};

use crate::support::Watchdog;

/// The child's arguments.
const DIR: &str = "TAMIS_ENVIRONMENT_DIR";
const STORES: &str = "TAMIS_ENVIRONMENT_STORES";

/// A figure of the process that Linux tells.
fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Opens stores that use what takes threads: listeners, deadlines, flushes.
/// Prints the number of threads, and the kilobytes that the stores have added to the memory of the
/// process.
#[test]
#[ignore = "the process that the other test of this module starts; cargo test --test it environment::process"]
fn child() {
    let (Ok(dir), Ok(count)) = (std::env::var(DIR), std::env::var(STORES)) else { return };
    let _watchdog = Watchdog::new("environment child");
    let environment = Environment::new(EnvironmentOptions::new()).unwrap();
    let (threads, memory) = (status("Threads"), status("VmRSS"));
    let open = |n: u32| {
        let keyspace = KeyspaceOptions::new().ttl(Duration::from_secs(3600));
        let options = Options::new().environment(&environment).default_keyspace(keyspace);
        options.on_event(|event| drop(event.to_string())).open(Path::new(&dir).join(n.to_string())).unwrap()
    };
    let stores: Vec<Db> = (0..count.parse().unwrap()).map(open).collect();
    for db in &stores {
        for n in 0..1000u32 {
            db.put_with_expiry(n.to_be_bytes(), [7; 100], SystemTime::now() + Duration::from_secs(60)).unwrap();
        }
    }
    let taken = environment.stats().memtables as u64 >> 10;
    let memory = status("VmRSS") - memory;
    for db in stores.iter().step_by(2) {
        db.flush().unwrap();
        assert_eq!(db.get(3u32.to_be_bytes()).unwrap().map(|value| value.len()), Some(100));
    }
    // Threads that prepare memory come and go. The one that calls listeners stays.
    let mut more = status("Threads") - threads;
    while more > 1 {
        std::thread::sleep(Duration::from_millis(10));
        more = status("Threads") - threads;
    }
    println!("child: {more} {memory} {taken}");
}

/// What the child prints.
fn measure(stores: u32) -> [u64; 3] {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["environment::process::child", "--exact", "--ignored", "--nocapture", "--test-threads", "1"]);
    let output = child.env(DIR, dir.path()).env(STORES, stores.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, figures) = text.split_once("child: ").unwrap();
    let figures: Vec<u64> = figures.split_whitespace().take(3).map(|figure| figure.parse().unwrap()).collect();
    figures.try_into().unwrap()
}

#[test]
fn many_stores_have_the_threads_of_one_and_little_memory() {
    let _watchdog = Watchdog::new("environment");
    let ([one, ..], [many, memory, taken]) = (measure(1), measure(256));
    assert_eq!(one, many, "threads of one store and of 256");
    println!("256 stores with 1,000 entries each: {memory} KiB resident, {taken} KiB of memtables");
    assert!(memory < 256 << 10, "{memory} KiB");
    assert!(taken < 128 << 10, "{taken} KiB");
}
