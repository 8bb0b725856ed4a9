//! Law 1 for commands that are over soon: a store that only they open is compacted all the same.

use serde_json::Value;

use crate::sandbox::{DONE, Sandbox};

/// Runs in level 0 from which on a compaction is due.
const DUE: usize = 12;

#[test]
fn a_store_that_only_short_commands_open_has_few_runs_in_level_0() {
    let commands: [(&str, &[&str]); 4] = [
        ("put", &["put", "db", "key", "value"]),
        ("delete", &["delete", "db", "key"]),
        ("delete-range", &["delete-range", "db", "--from", "a", "--to", "b"]),
        ("import", &["import", "db"]),
    ];
    for (name, args) in commands {
        let sandbox = Sandbox::with_store(100, 4, &[]);
        for i in 0..DUE + 6 {
            // An import leaves a run, the others together do: what they write stays in logs at
            // first. The puts bring what is deleted.
            let key = format!("key{i}");
            sandbox.check(&["put", "db", &key, "value"], DONE);
            sandbox.run(args, b"a\tvalue\n", DONE);
        }
        let stats = sandbox.json(&["stats", "db"]);
        let runs = stats["keyspaces"][0]["levels"][0]["tables"].as_u64().unwrap();
        // The last command leaves one more.
        assert!(runs <= DUE as u64, "{name}: {runs} runs");
    }
}

#[test]
fn stats_say_what_a_look_up_of_an_absent_key_costs() {
    let sandbox = Sandbox::with_store(1000, 4, &[]);
    // Beside the large table, two over about all of its keys.
    for keys in [["key0001", "key0998"], ["key0002", "key0999"]] {
        sandbox.run(&["import", "db"], keys.map(|key| format!("{key}\tvalue\n")).concat().as_bytes(), DONE);
    }
    let filters = |look_up: &Value| look_up["filters"].as_f64().unwrap();
    let look_up = &sandbox.json(&["stats", "db"])["keyspaces"][0]["look_up"];
    // The two runs of two keys each waste as good as nothing; the large one what ten bits a key do.
    assert!((2.9..=3.0).contains(&filters(look_up)), "{look_up}");
    let wasted = look_up["wasted_reads_per_100"].as_f64().unwrap();
    assert!(0.1 < wasted && wasted < 3.0, "{wasted}");
    let text = sandbox.text(&["stats", "db"]);
    assert!(
        text.contains("a look-up of an absent key asks 3 filters: ") && text.contains(" wasted reads in 100"),
        "{text}"
    );
    sandbox.check(&["compact", "db"], DONE);
    assert!((filters(&sandbox.json(&["stats", "db"])["keyspaces"][0]["look_up"]) - 1.0).abs() < 1e-9);
}

#[test]
fn a_look_up_asks_the_filters_of_tables_that_are_over_its_key() {
    let sandbox = Sandbox::new();
    for batch in 0..3 {
        let lines: String = (0..1000).map(|i| format!("key{batch}{i:03}\tvalue\n")).collect();
        sandbox.run(&["import", "db"], lines.as_bytes(), DONE);
    }
    let keyspace = &sandbox.json(&["stats", "db"])["keyspaces"][0];
    assert_eq!(keyspace["levels"][0]["tables"], 3);
    let wasted = keyspace["look_up"]["wasted_reads_per_100"].as_f64().unwrap();
    // As the filter of one table wastes.
    let rate = keyspace["levels"][0]["expected_false_positive_rate"].as_f64().unwrap();
    assert!((wasted - 100.0 * rate).abs() < 0.01 * wasted, "{wasted} {rate}");
    let text = sandbox.text(&["stats", "db"]);
    assert!(text.contains("a look-up of an absent key asks 1 filter: "), "{text}");
}
