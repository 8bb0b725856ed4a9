//! Runs every workload over every engine at a small size. Workloads fail when an engine lacks
//! entries written to it, so this also tests the engine modules.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::process::Command;

use serde_json::Value;
use tamis_bench::groups::group_named;

/// Workloads that not every engine supports.
const OPTIONAL: [&str; 3] = ["compact", "multiget100", "multiget100-cold"];
/// A killed process loses no writes, except with redb, which documents that.
const LOSES_WHAT_IS_NOT_SYNCED: &str = "redb";

#[test]
fn every_engine_does_every_workload() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = ["--keys", "5000", "--seconds", "0.02", "--memtable", "1", "--groups", "raw,compacted,big,lz4"];
    let output = Command::new(env!("CARGO_BIN_EXE_tamis-peers"))
        .args(sizes)
        .args(["--results", "-", "--dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let records = document["records"].as_array().unwrap();
    for engine in document["engines"].as_array().unwrap() {
        let engine = engine["name"].as_str().unwrap();
        let of_engine: Vec<&Value> = records.iter().filter(|record| record["engine"] == engine).collect();
        for group in ["raw", "compacted", "big", "lz4"] {
            for workload in group_named(group).unwrap().workloads() {
                let done = |record: &&&Value| record["group"] == group && record["workload"] == workload.name();
                let record = of_engine.iter().find(done);
                assert!(record.is_some() || OPTIONAL.contains(&workload.name()), "{engine}: {}", workload.name());
            }
        }
        let recovered =
            of_engine.iter().find(|record| record["workload"] == "open-killed").unwrap()["extra"]["recovered"]
                .as_f64()
                .unwrap();
        assert!(recovered == 1.0 || engine == LOSES_WHAT_IS_NOT_SYNCED, "{engine} recovered {recovered}");
    }
    assert!(document["targets"].as_array().unwrap().len() > 20, "{}", document["targets"]);
}
