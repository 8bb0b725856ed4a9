//! `filter rebuild` and `filter advise`: arguments, output, exit codes.

use serde_json::Value;

use crate::sandbox::{DONE, IO, Sandbox, USAGE};

/// A sandbox whose store has 5,000 keys.
fn with_store() -> Sandbox {
    Sandbox::with_store(5000, 5, &[])
}

/// Bits per key in the last level of keyspace `n`, according to `stats`.
fn bits(sandbox: &Sandbox, n: usize) -> f64 {
    let stats = sandbox.json(&["stats", "db"]);
    let levels = stats["keyspaces"][n]["levels"].as_array().unwrap();
    let mut bits = levels.iter().rev().filter_map(|level| level["filter_bits_per_key"].as_f64());
    bits.next().unwrap_or_default()
}

#[test]
fn rebuild_changes_the_filters_and_nothing_else() {
    let sandbox = with_store();
    let entries = sandbox.text(&["scan", "db"]);
    assert!((10.0..10.2).contains(&bits(&sandbox, 0)));
    let report = sandbox.json(&["filter", "rebuild", "db", "--bits", "15.5"]);
    let keyspace = &report["keyspaces"][0];
    assert_eq!((keyspace["name"].as_str(), keyspace["unchanged"].as_u64()), (Some("default"), Some(0)));
    assert!(keyspace["replaced"].as_u64() >= Some(1));
    assert!(keyspace["bytes_after"].as_u64() > keyspace["bytes_before"].as_u64());
    assert!((15.5..15.8).contains(&bits(&sandbox, 0)), "{}", bits(&sandbox, 0));
    assert_eq!(sandbox.text(&["scan", "db"]), entries);
    sandbox.run(&["verify", "db"], b"", DONE);

    let words = sandbox.words(&["filter", "rebuild", "db", "--bits", "15.5"], DONE);
    assert!(words.contains("new filters for 0 tables"), "{words}");
    sandbox.text(&["filter", "rebuild", "db", "--policy", "none"]);
    assert_eq!(bits(&sandbox, 0), 0.0);
    sandbox.text(&["filter", "rebuild", "db", "--policy", "bloom"]);
    assert!((10.0..10.2).contains(&bits(&sandbox, 0)));
    sandbox.text(&["filter", "rebuild", "db", "--policy", "fuse", "--bits", "7"]);
    let words = sandbox.words(&["filter", "rebuild", "db", "--policy", "fuse", "--bits", "7"], DONE);
    assert!(words.contains("new filters for 0 tables"), "{words}");
    sandbox.run(&["verify", "db"], b"", DONE);
    assert_eq!(sandbox.text(&["scan", "db"]), entries);
}

/// Policy code and bits per key with which the first table was written.
fn filter_of(sandbox: &Sandbox) -> (u64, f64) {
    let is_table = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "sst");
    let mut files = std::fs::read_dir(sandbox.dir().join("db")).unwrap().map(|entry| entry.unwrap().path());
    let table = sandbox.json(&["sst", files.find(is_table).unwrap().to_str().unwrap()]);
    let properties = &table["properties"];
    (properties["filter_policy"].as_u64().unwrap(), properties["filter_bits_per_key"].as_f64().unwrap())
}

#[test]
fn bits_alone_keep_the_kind_and_a_replaced_policy_is_reported() {
    let sandbox = with_store();
    sandbox.text(&["filter", "rebuild", "db", "--bits", "12"]);
    assert_eq!(filter_of(&sandbox), (1, 12.0));
    let words = sandbox.words(&["filter", "rebuild", "db", "--bits", "11", "--allocate"], DONE);
    assert!(!words.contains("replaces"), "{words}");
    let words = sandbox.words(&["filter", "rebuild", "db", "--bits", "9"], DONE);
    assert!(words.contains("replaces"), "{words}");
    assert_eq!(filter_of(&sandbox), (1, 9.0));
    sandbox.text(&["filter", "rebuild", "db", "--policy", "fuse"]);
    assert!(sandbox.words(&["filter", "rebuild", "db", "--bits", "9.5"], USAGE).contains("--policy"));
    sandbox.words(&["filter", "rebuild", "db", "--bits", "12"], DONE);
    assert_eq!(filter_of(&sandbox), (4, 12.0));

    let words = sandbox.words(&["filter", "rebuild", "db"], DONE);
    assert!(words.contains("new filters for 0 tables"), "{words}");
    let all = sandbox.json(&["filter", "rebuild", "db", "--all"]);
    assert!(all["keyspaces"][0]["replaced"].as_u64() >= Some(1), "{all}");
}

#[test]
fn rebuild_takes_all_keyspaces_or_the_one_it_is_given() {
    let sandbox = with_store();
    sandbox.run(&["import", "db", "--keyspace", "words"], b"apple\tred\npear\tgreen\n", DONE);
    let all = sandbox.json(&["filter", "rebuild", "db", "--bits", "8"]);
    assert_eq!(all["keyspaces"].as_array().unwrap().len(), 2);
    let one = sandbox.json(&["filter", "rebuild", "db", "--bits", "12", "--keyspace", "words"]);
    assert_eq!(one["keyspaces"].as_array().unwrap().len(), 1);
    assert!((8.0..8.2).contains(&bits(&sandbox, 0)));
}

#[test]
fn a_damaged_filter_is_repaired() {
    let sandbox = with_store();
    let is_table = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "sst");
    let mut files = std::fs::read_dir(sandbox.dir().join("db")).unwrap().map(|entry| entry.unwrap().path());
    let path = files.find(is_table).unwrap();
    let name = path.to_str().unwrap();
    let offset = sandbox.json(&["sst", name])["properties"]["filter_block"]["offset"].as_u64().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[usize::try_from(offset).unwrap() + 200] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    sandbox.run(&["verify", "db"], b"", 3);
    let report = sandbox.json(&["filter", "rebuild", "db"]);
    assert_eq!(report["keyspaces"][0]["replaced"].as_u64(), Some(1));
    sandbox.run(&["verify", "db"], b"", DONE);
}

#[test]
fn invalid_arguments_are_reported() {
    let sandbox = with_store();
    assert!(sandbox.words(&["filter", "rebuild", "db", "--bits", "25"], USAGE).contains("1 to 24 bits"));
    sandbox.words(&["filter", "rebuild", "db", "--bits", "many"], USAGE);
    assert!(sandbox.words(&["filter", "rebuild", "db", "--policy", "fuse", "--bits", "7.5"], USAGE).contains("whole"));
    sandbox.words(&["filter", "rebuild", "db", "--policy", "fuse", "--bits", "9"], USAGE);
    sandbox.words(&["filter", "rebuild", "db", "--policy", "none", "--bits", "3"], USAGE);
    sandbox.words(&["filter", "rebuild", "db", "--keyspace", "nobody"], USAGE);
    assert!(sandbox.words(&["filter", "rebuild", "nowhere", "--bits", "9"], IO).contains("no store"));
}

/// Wasted reads per look-up of row `bits`: with equal bits in every run, and shared out.
fn wasted(advice: &Value, bits: u64) -> (f64, f64) {
    let rows = advice["choices"].as_array().unwrap();
    let row = rows.iter().find(|row| row["bits_per_key"].as_u64() == Some(bits)).unwrap();
    (row["wasted_reads"].as_f64().unwrap(), row["wasted_reads_shared_out"].as_f64().unwrap())
}

/// A sandbox whose store has one large run below two small ones, all with nearly the same key
/// range.
fn with_runs() -> Sandbox {
    let sandbox = with_store();
    sandbox.run(&["compact", "db"], b"", DONE);
    for run in 0..2 {
        let lines: String = (0..100).map(|i| format!("key{:05}-{run}\tnew\n", i * 50)).collect();
        sandbox.run(&["import", "db"], lines.as_bytes(), DONE);
    }
    sandbox
}

#[test]
fn advice_goes_by_the_runs_of_the_store() {
    let sandbox = with_runs();
    let advice = sandbox.json(&["filter", "advise", "db"]);
    let runs = advice["runs"].as_array().unwrap();
    let keys: Vec<u64> = runs.iter().map(|run| run["keys"].as_u64().unwrap()).collect();
    assert_eq!(keys, [100, 100, 5000]);
    assert!(runs.iter().all(|run| run["weight"].as_f64() == Some(1.0)));
    assert_eq!(advice["choices"].as_array().unwrap().len(), 17);
    let (uniform, shared) = wasted(&advice, 10);
    assert!((uniform - 3.0 * 0.008_134).abs() < 1e-4, "{uniform}");
    assert!(shared * 2.0 < uniform, "{shared} {uniform}");
    let mut last = f64::INFINITY;
    for bits in 4..=20 {
        let (uniform, shared) = wasted(&advice, bits);
        assert!(shared <= uniform && uniform < last);
        last = uniform;
    }

    // A rebuild has the advised effect.
    sandbox.text(&["filter", "rebuild", "db", "--bits", "12", "--allocate"]);
    let after = sandbox.json(&["filter", "advise", "db"]);
    let now = after["now"]["wasted_reads"].as_f64().unwrap();
    let planned = wasted(&after, 12).1;
    // Small runs do a little better: their last lines are filled up.
    assert!(now < planned * 1.1, "{now} {planned}");
    sandbox.text(&["filter", "rebuild", "db", "--policy", "none"]);
    let none = sandbox.json(&["filter", "advise", "db"]);
    assert_eq!((none["now"]["wasted_reads"].as_f64(), none["now"]["bytes"].as_u64()), (Some(3.0), Some(0)));

    let words = sandbox.text(&["filter", "advise", "db"]);
    assert!(words.contains("level 6") && words.contains("if shared out"), "{words}");
}

#[test]
fn a_trace_weighs_the_runs() {
    let sandbox = with_runs();
    // Of five look-ups, three find a key, one in each run. One finds nothing, and one is outside of
    // every range.
    let trace = b"key00050-1\nkey00050-0\nkey00050\nkey00051!\nzzz\n";
    let output = sandbox.run(&["filter", "advise", "db", "--json", "--trace", "-"], trace, DONE);
    let advice: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(advice["look_ups"].as_u64(), Some(5));
    let weights: Vec<f64> =
        advice["runs"].as_array().unwrap().iter().map(|run| run["weight"].as_f64().unwrap()).collect();
    assert_eq!(weights, [0.6, 0.4, 0.2]);
    let (uniform, _) = wasted(&advice, 10);
    assert!((uniform - 1.2 * 0.008_134).abs() < 1e-4, "{uniform}");

    // If all look-ups find their key in the last run, that run needs no filter.
    let trace: String = (0..100).map(|i| format!("key{:05}\n", i * 50 + 1)).collect();
    let output = sandbox.run(&["filter", "advise", "db", "--json", "--trace", "-"], trace.as_bytes(), DONE);
    let advice: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(advice["choices"][0]["bits_per_key_of_runs"][2].as_f64(), Some(0.0));
    sandbox.run(&["filter", "advise", "db", "--trace", "-", "--escaped"], b"\\x\n", USAGE);
    sandbox.words(&["filter", "advise", "db", "--keyspace", "nobody"], USAGE);
    sandbox.words(&["filter", "rebuild", "db", "--allocate"], USAGE);
    sandbox.words(&["filter", "rebuild", "db", "--bits", "9", "--allocate", "--absent", "2"], USAGE);
}
