//! Runs every workload over every engine at a small size. Workloads fail when an engine lacks
//! entries written to it, so this also tests the engine modules.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::process::Command;

use serde_json::Value;
use tamis_bench::groups::group_named;

const GROUPS: [&str; 7] = ["raw", "compacted", "big", "lz4", "updates", "blobs", "ingest"];
/// Contestants that take part in one group only.
const ONLY_IN: [(&str, &str); 6] = [
    ("tamis-mutex", "updates"),
    ("rocksdb-optimistic", "updates"),
    ("fjall-optimistic", "updates"),
    ("tamis-separated", "blobs"),
    ("rocksdb-blobdb", "blobs"),
    ("fjall-separated", "blobs"),
];
/// Workloads that not every engine supports.
const OPTIONAL: [&str; 4] = ["compact", "ingest", "multiget100", "multiget100-cold"];
/// Engines that support merges.
const MERGE: [&str; 4] = ["tamis", "tamis-mapped", "rocksdb", "rocksdb-tuned"];
/// A killed process loses no writes, except with redb, which documents that.
const LOSES_WHAT_IS_NOT_SYNCED: &str = "redb";

#[test]
fn every_engine_does_every_workload() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = ["--keys", "5000", "--seconds", "0.02", "--memtable", "1"];
    let output = Command::new(env!("CARGO_BIN_EXE_tamis-peers"))
        .args(sizes)
        .args(["--groups", &GROUPS.join(",")])
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
        let only_in = ONLY_IN.iter().find(|(name, _)| *name == engine).map(|(_, group)| *group);
        for group in GROUPS {
            for workload in group_named(group).unwrap().workloads().map(|workload| workload.name()) {
                let done = |record: &&&Value| record["group"] == group && record["workload"] == workload;
                let does = only_in.is_none_or(|only| only == group)
                    && (!workload.starts_with("merge") || MERGE.contains(&engine));
                let record = of_engine.iter().find(done);
                assert!(record.is_some() == does || OPTIONAL.contains(&workload), "{engine}: {workload}");
            }
        }
        if only_in.is_some() {
            continue;
        }
        let recovered =
            of_engine.iter().find(|record| record["workload"] == "open-killed").unwrap()["extra"]["recovered"]
                .as_f64()
                .unwrap();
        assert!(recovered == 1.0 || engine == LOSES_WHAT_IS_NOT_SYNCED, "{engine} recovered {recovered}");
    }
    assert!(document["targets"].as_array().unwrap().len() > 20, "{}", document["targets"]);
}
