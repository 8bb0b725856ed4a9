//! Runs every workload of every group once, over tamis, at a tiny size. Workloads check their
//! answers and fail otherwise. The tests run the program itself, because it starts further
//! processes of itself.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test looks at files and may fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tamis_bench::groups::{GROUPS, group_named};

fn bench(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tamis-bench")).args(args).arg("--dir").arg(dir).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs some groups over an engine; returns the records by group and workload.
fn records(dir: &Path, engine: &str, groups: &str, args: &[&str]) -> BTreeMap<(String, String), Value> {
    let tiny = ["--seconds", "0.02", "--fill-seconds", "60", "--memtable", "1", "--results", "-"];
    let sizes = if args.contains(&"--keys") { &[][..] } else { &["--keys", "5000"] };
    let output = bench(dir, &[&tiny[..], &["--engines", engine, "--groups", groups], sizes, args].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["failures"], Value::Array(Vec::new()));
    let name = |record: &Value, field: &str| record[field].as_str().unwrap().to_owned();
    let records = document["records"].as_array().unwrap();
    records.iter().map(|record| ((name(record, "group"), name(record, "workload")), record.clone())).collect()
}

#[test]
fn every_workload_runs_and_finds_the_expected_entries() {
    check_usual_groups("tamis");
}

#[test]
fn every_workload_runs_with_mapped_tables() {
    check_usual_groups("tamis-mapped");
}

fn check_usual_groups(engine: &str) {
    let dir = tempfile::tempdir().unwrap();
    let groups: Vec<&str> = GROUPS.iter().map(|group| group.name).filter(|name| *name != "grown").collect();
    let records = records(dir.path(), engine, &groups.join(","), &[]);
    let expected: BTreeSet<(String, String)> = groups.iter().flat_map(|group| workloads(group)).collect();
    assert_eq!(records.keys().cloned().collect::<BTreeSet<_>>(), expected);
    for ((group, workload), record) in &records {
        let ops = record["ops"].as_u64().unwrap();
        assert!(ops > 0 && record["ops_per_second"].as_f64().unwrap() > 0.0, "{group} {workload}: {record}");
        let latency = |name: &str| record["latency"][name].as_f64().unwrap();
        assert!(latency("p50") <= latency("p99") && latency("p999") <= latency("max"), "{group} {workload}: {record}");
    }
    let raw = |workload: &str| &records[&("raw".to_owned(), workload.to_owned())];
    for fill in ["fillseq", "fillbatch", "fillrandom", "bulkload", "overwrite", "deleterandom"] {
        assert_eq!((&raw(fill)["ops"], &raw(fill)["capped"]), (&Value::from(5000), &Value::from(false)), "{fill}");
    }
    // The device gets more bytes than were put: the log and the tables.
    assert!(raw("fillrandom")["settled"]["write_amplification"].as_f64().unwrap() > 1.5, "{}", raw("fillrandom"));
    assert_eq!(raw("open-killed")["extra"]["recovered"], 1.0);
    assert_eq!(raw("multiget100")["ops"].as_u64().unwrap() % 100, 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a store was left behind");
}

/// A group's workloads, each with the group's name.
fn workloads(group: &str) -> impl Iterator<Item = (String, String)> {
    group_named(group).unwrap().workloads().map(|workload| (group.to_owned(), workload.name().to_owned()))
}

#[test]
fn contestants_of_one_group_take_part_in_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(dir.path(), "tamis-mutex,tamis-separated", "raw,updates,blobs", &["--keys", "1000"]);
    // There are no merges under a mutex.
    let merges = |(_, workload): &(String, String)| workload.starts_with("merge");
    let expected = workloads("blobs").chain(workloads("updates").filter(|name| !merges(name)));
    assert_eq!(records.keys().cloned().collect::<BTreeSet<_>>(), expected.collect());
}

#[test]
fn updates_and_long_values_have_their_own_figures() {
    let dir = tempfile::tempdir().unwrap();
    let chosen = ["--keys", "20000", "--workloads", "increment-80k,merge-one,transfer-10-8t,overwrite2x"];
    let records = records(dir.path(), "tamis", "updates,blobs", &chosen);
    let record = |group: &str, workload: &str| &records[&(group.to_owned(), workload.to_owned())];
    assert_eq!(record("updates", "increment-80k")["ops"], 80_000);
    assert!(record("updates", "merge-one")["extra"]["seconds_to_read_all"].as_f64().unwrap() > 0.0);
    assert!(record("updates", "transfer-10-8t")["extra"]["conflicts_per_op"].as_f64().unwrap() >= 0.0);
    let overwritten = record("blobs", "overwrite2x");
    assert_eq!(overwritten["ops"], 2 * 20_000 / 50);
    let settled = &overwritten["settled"];
    let (all, tables) = (&settled["write_amplification"], &settled["write_amplification_without_log"]);
    // At least one copy of everything is in tables, and another one in the log.
    assert!(tables.as_f64().unwrap() > 0.9 && all.as_f64() > tables.as_f64(), "{settled}");
}

#[test]
fn chosen_workloads_run_on_complete_stores() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--workloads", "readseq,compact", "--encoding", "big-endian", "--key-len", "24", "--value-len", "7"];
    let records = records(dir.path(), "tamis", "raw", &args);
    let names: Vec<&str> = records.keys().map(|(_, workload)| workload.as_str()).collect();
    assert_eq!(names, ["compact", "readseq"]);
    assert_eq!(records[&("raw".to_owned(), "compact".to_owned())]["ops"], 5000);
}

#[test]
fn tables_and_plots_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("rates.svg");
    let args = ["--groups", "raw", "--workloads", "fillrandom,readrandom", "--keys", "5000", "--seconds", "0.02"];
    let output = bench(dir.path(), &[&args[..], &["--plot", plot.to_str().unwrap()]].concat());
    let tables = text(&output.stdout);
    assert!(tables.contains("| fillrandom |") && tables.contains("| readrandom |"), "{tables}");
    assert!(tables.contains("no step over 100 ms"), "{tables}");
    assert!(std::fs::read_to_string(dir.path().join("rates-raw.svg")).unwrap().contains("readrandom"));
}

#[test]
fn invalid_arguments_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |args: &[&str], words: &str| {
        let output = bench(dir.path(), args);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    };
    refused(&["--groups", "none"], "groups are raw,");
    refused(&["--workloads", "readall"], "workloads are fillseq,");
    refused(&["--engines", "unknown"], "engines are tamis");
    refused(&["--key-len", "7"], "8 to 240 bytes");
    refused(&["--key-len", "8", "--keys", "100000000", "--groups", "compacted"], "too short");
    refused(&["--plot", "rates.jpg"], ".svg or .png");
}
