//! `soak`: a few rounds.

use crate::sandbox::{DONE, Sandbox, USAGE};

#[test]
fn kills_and_faults_lose_nothing() {
    let sandbox = Sandbox::new();
    let report = sandbox.json(&["soak", "db", "--rounds", "8", "--seed", "3"]);
    assert_eq!((report["rounds"].as_u64(), report["reopens"].as_u64()), (Some(8), Some(8)), "{report}");
    assert!(report["kills"].as_u64() >= Some(4), "{report}");
    let faults = report["faults"].as_object().unwrap();
    let faults: u64 = faults.values().filter_map(serde_json::Value::as_u64).sum();
    assert!(faults >= 2 && report["operations"].as_u64() > Some(1000), "{report}");
    assert_eq!(report["lost"], serde_json::json!([]));
    if cfg!(target_os = "linux") {
        assert!(
            report["resident_memory"].as_u64() > Some(1 << 20) && report["open_files"].as_u64() > Some(3),
            "{report}"
        );
    }
    // The store stays and is sound; another run in it is refused.
    sandbox.words(&["verify", "db"], DONE);
    sandbox.words(&["soak", "db", "--rounds", "1"], USAGE);
}

#[test]
fn the_seed_is_printed_and_the_report_is_a_table() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(&["soak", "--seconds", "0"], b"", DONE);
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("seed "));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("operations acknowledged") && table.contains("| lost"), "{table}");
}
