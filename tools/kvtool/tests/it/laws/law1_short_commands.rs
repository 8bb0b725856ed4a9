//! Law 1 for commands that are over soon: a store that only they open is compacted all the same.

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
    for key in ["key0001", "key0002"] {
        sandbox.run(&["import", "db"], format!("{key}\tvalue\n").as_bytes(), DONE);
    }
    let look_up = &sandbox.json(&["stats", "db"])["keyspaces"][0]["look_up"];
    // The two runs of one key each waste as good as nothing; the large one what ten bits a key do.
    assert_eq!(look_up["filters"], 3);
    let wasted = look_up["wasted_reads_per_100"].as_f64().unwrap();
    assert!(0.1 < wasted && wasted < 3.0, "{wasted}");
    let text = sandbox.text(&["stats", "db"]);
    assert!(
        text.contains("a look-up of an absent key asks 3 filters: ") && text.contains(" wasted reads in 100"),
        "{text}"
    );
    sandbox.check(&["compact", "db"], DONE);
    assert_eq!(sandbox.json(&["stats", "db"])["keyspaces"][0]["look_up"]["filters"], 1);
}
