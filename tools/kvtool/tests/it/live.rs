//! `watch` and `top`: a store in use.

use std::time::Duration;

use serde_json::Value;
use tamis::{Db, Options};

use crate::sandbox::{DONE, IO, Sandbox, USAGE};

const LOOKS: [&str; 6] = ["watch", "db", "--count", "3", "--interval", "0.1"];

#[test]
fn a_store_that_publishes_shows_what_it_does() {
    let sandbox = Sandbox::new();
    let options = Options::new().publish_stats(Duration::from_millis(20));
    let db = options.open(sandbox.path("db")).unwrap();
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let (lines, json) = std::thread::scope(|threads| {
        threads.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                db.put("other", [7; 100]).unwrap();
                db.get("key").unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let lines = sandbox.command(&LOOKS).output().unwrap();
        let json = sandbox.command(&[&LOOKS[..], &["--json"]].concat()).output().unwrap();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        (lines, json)
    });
    let text = String::from_utf8(lines.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].contains("writes/s") && lines.iter().all(|line| line.chars().count() == lines[0].len()), "{text}");
    for line in String::from_utf8(json.stdout).unwrap().lines() {
        let rates: Value = serde_json::from_str(line).unwrap();
        let rate = |name: &str| rates[name].as_f64().unwrap();
        assert_eq!(rates["published"], true);
        assert!(rate("writes_per_second") > 0.0 && rate("log_bytes_per_second") > 100.0 * rate("writes_per_second"));
        assert!(rate("blocks_cached_per_second") > 0.0 && rate("memory_bytes") > 0.0, "{line}");
    }
    db.close().unwrap();
}

#[test]
fn any_other_store_is_read_beside_its_process() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    let db = Db::open(sandbox.path("db")).unwrap();
    let writes = std::thread::spawn(move || {
        for n in 0..2000u32 {
            db.put(n.to_be_bytes(), "value").unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    let output = sandbox.run(&[&LOOKS[..], &["--json"]].concat(), b"", DONE);
    writes.join().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let rates: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rates.iter().any(|rates| rates["writes_per_second"].as_f64().unwrap() > 0.0), "{lines}");
    assert!(rates.iter().all(|rates| rates["memory_bytes"].is_null() && rates["published"] == false), "{lines}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("publish_stats"));
}

#[test]
fn pages_that_are_none_and_stale_ones_are_seen_to_be() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    let page = sandbox.path("db/stats.prom");
    std::fs::write(&page, "tamis_page_time_seconds 1000\ntamis_page_interval_seconds 1\n").unwrap();
    // Of a process that was killed long ago.
    let output = sandbox.run(&[&LOOKS[..], &["--json"]].concat(), b"", DONE);
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"published\":false"));
    std::fs::write(&page, "no page").unwrap();
    let said = sandbox.words(&LOOKS, USAGE);
    assert!(said.contains("line 1 is no figure"), "{said}");
    std::fs::write(&page, b"\xff\xfe").unwrap();
    sandbox.words(&LOOKS, IO);
    sandbox.words(&["watch", "nowhere", "--count", "1"], IO);
    assert!(sandbox.words(&["top", "db"], USAGE).contains("kvtool watch"));
    sandbox.words(&["watch", "db", "--interval", "0"], USAGE);
}
