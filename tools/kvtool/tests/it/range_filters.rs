//! Range filters in all commands that show, ask, add or remove them.

use std::fs;

use fastrand::Rng;
use serde_json::Value;

use crate::sandbox::{CORRUPTION, DONE, NOT_FOUND, Sandbox, USAGE};

/// Keys of the large run of [`with_runs`].
const KEYS: usize = 5000;

/// Random numbers, as lines of a key and a value.
fn lines(seed: u64, count: usize) -> String {
    let mut random = Rng::with_seed(seed);
    (0..count).map(|_| format!("{:016x}\tvalue\n", random.u64(..))).collect()
}

/// A sandbox whose store has a run in the last level and one in level 0, of random keys, and a file
/// `ranges` of 1,000 short ranges that are empty, as good as certainly.
fn with_runs() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.run(&["import", "db"], lines(1, KEYS).as_bytes(), DONE);
    sandbox.run(&["compact", "db"], b"", DONE);
    sandbox.run(&["import", "db"], lines(2, 500).as_bytes(), DONE);
    let mut random = Rng::with_seed(3);
    let range = |at: u64| format!("{at:016x}\t{:016x}\n", at.saturating_add(1000));
    let ranges: String = (0..1000).map(|_| range(random.u64(..))).collect();
    fs::write(sandbox.path("ranges"), ranges).unwrap();
    sandbox
}

/// Paths of three random names each, eight deep: whatever the scale, keys cluster below it.
pub(crate) fn paths(path: &str, depth: u32, random: &mut Rng, out: &mut String) {
    if depth == 0 {
        out.push_str(&format!("{path}\tvalue\n"));
        return;
    }
    for _ in 0..3 {
        let name: String = (0..8).map(|_| random.lowercase()).collect();
        paths(&format!("{path}/{name}"), depth - 1, random, out);
    }
}

/// A sandbox whose keys allow no useful range filter.
fn with_paths() -> Sandbox {
    let (sandbox, mut lines) = (Sandbox::new(), String::new());
    paths("", 8, &mut Rng::with_seed(1), &mut lines);
    sandbox.run(&["import", "db"], lines.as_bytes(), DONE);
    sandbox
}

/// What `sst` prints of the newest table.
fn table(sandbox: &Sandbox) -> Value {
    sandbox.json(&["sst", sandbox.file("sst").to_str().unwrap()])
}

/// What `sst` prints of a filter of all tables, by level.
fn of_all(sandbox: &Sandbox, filter: &str) -> Vec<Value> {
    let levels = sandbox.json(&["levels", "db"]);
    let levels = levels["keyspaces"][0]["levels"].as_array().unwrap().clone();
    let tables = levels.iter().flat_map(|level| level["tables"].as_array().unwrap().clone());
    tables.map(|table| sandbox.json(&["sst", "db", &table["number"].to_string()])[filter].clone()).collect()
}

fn text_of_table(sandbox: &Sandbox) -> String {
    sandbox.text(&["sst", sandbox.file("sst").to_str().unwrap()])
}

fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn rebuild_adds_and_removes_range_filters_and_changes_nothing_else() {
    let sandbox = with_runs();
    let entries = sandbox.text(&["scan", "db"]);
    assert_eq!(sandbox.json(&["keyspaces", "db"])["keyspaces"][0]["range_filter"], "none");
    assert_eq!(table(&sandbox)["range_filter"]["state"], "none");
    let points = of_all(&sandbox, "filter");

    let report = sandbox.json(&["filter", "rebuild", "db", "--range-filter", "10.5"]);
    let keyspace = &report["keyspaces"][0];
    assert_eq!((&keyspace["replaced"], &keyspace["range_filters_declined"]), (&2.into(), &0.into()));
    let grown = float(&keyspace["bytes_after"]) - float(&keyspace["bytes_before"]);
    let filters = float(&keyspace["range_filter_bytes"]);
    assert!(filters > 0.0 && grown >= filters && grown < filters + 200.0, "{report}");
    let now = table(&sandbox);
    let filter = &now["range_filter"];
    assert_eq!((&filter["state"], &filter["requested_bits_per_key"]), (&"usable".into(), &10.5.into()));
    assert_eq!((&filter["data_blocks"], &filter["folded_blocks"]), (&now["properties"]["data_blocks"], &0.into()));
    assert!((10.0..11.5).contains(&float(&filter["bits_per_key"])), "{filter}");
    assert!((0.0001..0.02).contains(&float(&filter["predicted_false_positive_rate"])), "{filter}");
    assert!(filter["predicted_false_positive_rate_near_keys"].is_f64(), "{filter}");
    let properties = &now["properties"];
    assert_eq!(properties["range_filter_bits_per_key"], 10.5);
    assert_eq!(properties["range_filter_block"]["len"], filter["bytes"]);
    // The filter of points is next to it, and as it was.
    let of_points = &properties["filter_block"];
    assert_eq!(
        float(&of_points["offset"]) + float(&of_points["len"]) + 5.0,
        float(&properties["range_filter_block"]["offset"])
    );
    assert_eq!(of_all(&sandbox, "filter"), points);
    let text = text_of_table(&sandbox);
    assert!(text.contains("false positives predicted near keys") && text.contains("| 10.5 "), "{text}");
    let dumped = sandbox.text(&["dump", sandbox.file("sst").to_str().unwrap()]);
    assert!(dumped.contains("false positives predicted near keys"), "{dumped}");
    assert!(sandbox.text(&["keyspaces", "db"]).contains("ordered, 10.5 bits per key"));
    assert_eq!(sandbox.text(&["scan", "db"]), entries);
    sandbox.run(&["verify", "db"], b"", DONE);

    // Another size of the filters for points leaves them.
    let words = sandbox.words(&["filter", "rebuild", "db", "--bits", "8"], DONE);
    assert!(words.contains("new filters for 2 tables"), "{words}");
    assert_eq!(table(&sandbox)["range_filter"]["requested_bits_per_key"], 10.5);
    let words = sandbox.words(&["filter", "rebuild", "db", "--range-filter", "10.5"], DONE);
    assert!(words.contains("new filters for 0 tables"), "{words}");
    // Both at once, and none again.
    sandbox.text(&["filter", "rebuild", "db", "--range-filter", "12", "--bits", "10"]);
    let both = table(&sandbox);
    assert_eq!(both["properties"]["range_filter_bits_per_key"], 12.0);
    assert_eq!(both["properties"]["filter_bits_per_key"], 10.0);
    sandbox.text(&["filter", "rebuild", "db", "--range-filter", "none"]);
    assert_eq!(table(&sandbox)["range_filter"]["state"], "none");
    assert_eq!(table(&sandbox)["properties"]["range_filter_block"], Value::Null);
    assert_eq!(sandbox.text(&["scan", "db"]), entries);
    for invalid in ["2.9", "18.1", "many", "NaN", "-5"] {
        sandbox.words(&["filter", "rebuild", "db", &format!("--range-filter={invalid}")], USAGE);
    }
}

#[test]
fn stats_compare_range_filters_with_what_was_predicted() {
    let sandbox = with_runs();
    let scan = ["stats", "db", "--ranges-from", "ranges"];
    let before = sandbox.json(&scan);
    assert_eq!(before["reads"]["range_probes"], 0);
    // Some ranges are before or after all keys of a run.
    assert!((1990..=2000).contains(&before["reads"]["scan_blocks_unused"].as_u64().unwrap()), "{before}");
    let expected = before["keyspaces"][0]["empty_scan"]["wasted_reads_per_100"].as_f64().unwrap();
    assert!((199.9..=200.0).contains(&expected), "{expected}");
    let text = sandbox.text(&scan);
    assert!(!text.contains("range filter") && text.contains("unused by scans"), "{text}");
    assert!(!sandbox.text(&["stats", "db", "--ranges-from", "ranges", "--prometheus"]).contains("range_filter"));

    sandbox.text(&["filter", "rebuild", "db", "--range-filter", "6"]);
    let after = sandbox.json(&scan);
    let reads = &after["reads"];
    let [asked, no, wrong] =
        ["range_probes", "range_negatives", "range_false_positives"].map(|count| reads[count].as_u64().unwrap());
    assert_eq!(asked, no + wrong);
    // A filter is not asked where its false positive has brought the block into memory.
    assert!((200..2000).contains(&asked) && wrong > 0, "{reads}");
    let levels = after["keyspaces"][0]["levels"].as_array().unwrap();
    let sum: u64 = levels.iter().map(|level| level["reads"]["range_probes"].as_u64().unwrap()).sum();
    assert_eq!(sum, asked);
    let filters: Vec<Value> = of_all(&sandbox, "range_filter");
    let with: Vec<&Value> = levels.iter().filter(|level| level["tables"] == 1).collect();
    for (level, filter) in with.iter().zip(&filters) {
        assert_eq!(level["range_filter_bytes"], filter["bytes"]);
        assert_eq!(level["predicted_range_false_positive_rate"], filter["predicted_false_positive_rate"]);
    }
    let listed = sandbox.json(&["levels", "db"])["keyspaces"][0]["levels"].clone();
    let rate = &listed[0]["tables"][0]["predicted_range_false_positive_rate"];
    assert_eq!(*rate, filters[0]["predicted_false_positive_rate"]);
    let rates: f64 = filters.iter().map(|filter| float(&filter["predicted_false_positive_rate"])).sum();
    let empty = &after["keyspaces"][0]["empty_scan"];
    // Each of the two tables is over almost all keys of the other.
    let [wasted, met] = ["wasted_reads_per_100", "range_filters"].map(|name| float(&empty[name]));
    assert!((wasted - 100.0 * rates).abs() < 0.001 * wasted && (1.99..=2.0).contains(&met), "{empty}");
    let text = sandbox.text(&scan);
    for part in ["range filter asked", "false as predicted", "a scan of a short empty range asks 2 range filters: "] {
        assert!(text.contains(part), "{text}");
    }
    let said = sandbox.words(&scan, DONE);
    assert!(said.contains("scanned 1,000 ranges, 1,000 empty; 0 entries found"), "{said}");
    // Each scan asks in shadow, whatever is in memory.
    let shadow = sandbox.json(&["stats", "db", "--ranges-from", "ranges", "--filters", "shadow"])["reads"].clone();
    let asked_all = shadow["range_probes"].as_u64().unwrap();
    assert!((1990..=2000).contains(&asked_all), "{shadow}");
    let [predicted, measured] =
        ["predicted_range_false_positive_rate", "range_false_positive_rate"].map(|rate| float(&shadow[rate]));
    // Five standard deviations.
    let allowed = 5.0 * (predicted / asked_all as f64).sqrt();
    assert!((measured - predicted).abs() < allowed, "{measured} {predicted}");
    // Nothing is asked where filters are not used.
    let ignored = sandbox.json(&["stats", "db", "--ranges-from", "ranges", "--filters", "ignore"]);
    assert_eq!(ignored["reads"]["range_probes"], 0);

    let figures = sandbox.text(&["stats", "db", "--ranges-from", "ranges", "--prometheus"]);
    let sum = |name: &str| {
        let of = figures.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        of.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum::<f64>()
    };
    assert_eq!(sum("tamis_range_filter_probes_total"), asked as f64);
    assert_eq!(sum("tamis_range_filter_negatives_total"), no as f64);
    assert_eq!(sum("tamis_range_filter_false_positives_total"), wrong as f64);
    let predicted = float(&reads["predicted_range_false_positive_rate"]) * asked as f64;
    assert!((sum("tamis_range_filter_predicted_false_positives_total") - predicted).abs() < 1e-6);
}

#[test]
fn ranges_are_read_from_lines() {
    let sandbox = Sandbox::with_store(100, 3, &[]);
    let scan = |input: &[u8], flags: &[&str], code: i32| {
        let args = [&["stats", "db", "--ranges-from", "-"], flags].concat();
        String::from_utf8(sandbox.run(&args, input, code).stderr).unwrap()
    };
    // Empty; of two keys; of ten and more, without an end; without a tab.
    let said = scan(b"key0500\tkey0501\nkey050\tkey052\n$'\\x00'\tz\nkey095\n", &[], DONE);
    assert!(said.contains("scanned 4 ranges, 1 empty; 17 entries found"), "{said}");
    assert!(scan(b"6b\t6c\n", &["--hex"], DONE).contains("10 entries found"));
    assert!(scan(b"b\ta\n", &[], USAGE).contains("line 1 of standard input is not valid: the range ends before"));
    scan(b"", &["--ranges-from", "absent"], USAGE);
    sandbox.words(&["stats", "db", "--filters", "shadow"], USAGE);
}

#[test]
fn explain_shows_the_answers_of_range_filters() {
    let sandbox = with_runs();
    let first = fs::read_to_string(sandbox.path("ranges")).unwrap();
    let (from, to) = first.lines().next().unwrap().split_once('\t').unwrap();
    let explain = ["explain", "db", "--from", from, "--to", to];
    let asked = |sandbox: &Sandbox| {
        let json: Value =
            serde_json::from_slice(&sandbox.check(&[&explain[..], &["--json"]].concat(), NOT_FOUND)).unwrap();
        let steps = json["steps"].as_array().unwrap().clone();
        let answers: Vec<Value> = steps.iter().map(|step| step["range_filter"].clone()).collect();
        (answers, json["block_reads"].as_u64().unwrap())
    };
    assert_eq!(asked(&sandbox), (vec![Value::Null; 2], 2));
    sandbox.text(&["filter", "rebuild", "db", "--range-filter", "18"]);
    assert_eq!(asked(&sandbox), (vec!["no".into(), "no".into()], 0));
    let text = String::from_utf8(sandbox.check(&explain, NOT_FOUND)).unwrap();
    assert_eq!(text.matches("range filter said no, no block needed").count(), 2, "{text}");
}

#[test]
fn a_range_filter_that_would_not_help_is_declined_and_said_so() {
    let sandbox = with_paths();
    let said = sandbox.words(&["filter", "rebuild", "db", "--range-filter", "12"], DONE);
    assert!(said.contains("keyspace default: 1 table without a range filter, since"), "{said}");
    let now = table(&sandbox);
    assert_eq!((&now["range_filter"]["state"], &now["range_filter"]["bytes"]), (&"declined".into(), &Value::Null));
    assert!(float(&now["range_filter"]["predicted_false_positive_rate"]) > 0.25, "{now}");
    assert_eq!(now["properties"]["range_filter_bits_per_key"], 12.0);
    assert_eq!(now["properties"]["range_filter_block"], Value::Null);
    assert!(text_of_table(&sandbox).contains("declined: it would say \"maybe\" too often"));
    let stats = sandbox.text(&["stats", "db"]);
    assert!(stats.contains("0 B (1 declined)") && stats.contains("1 table without a range filter, since"), "{stats}");
    assert_eq!(sandbox.json(&["stats", "db"])["keyspaces"][0]["levels"][0]["tables_with_declined_range_filter"], 1);
    // It is not tried again, and the advice knew it.
    let words = sandbox.words(&["filter", "rebuild", "db"], DONE);
    assert!(words.contains("new filters for 0 tables"), "{words}");
    let advice = sandbox.json(&["filter", "advise", "db"])["ranges"].clone();
    let choice = &advice["runs"][0]["choices"][3];
    assert_eq!(choice["tables"][0], now["range_filter"]);
    assert_eq!((&choice["tables_declined"], &choice["bytes"]), (&1.into(), &0.0.into()));
    assert_eq!(
        (&advice["choices"][3]["runs_declined"], &advice["choices"][3]["blocks_saved"]),
        (&1.into(), &0.0.into())
    );
    let text = sandbox.text(&["filter", "advise", "db"]);
    assert!(text.contains("declined: predicted "), "{text}");
}

#[test]
fn a_damaged_range_filter_is_shown_found_and_repaired() {
    let sandbox = with_runs();
    sandbox.text(&["filter", "rebuild", "db", "--range-filter", "12"]);
    let entries = sandbox.text(&["scan", "db"]);
    let block = table(&sandbox)["properties"]["range_filter_block"].clone();
    let (path, offset) = (sandbox.file("sst"), block["offset"].as_u64().unwrap());
    let mut bytes = fs::read(&path).unwrap();
    bytes[usize::try_from(offset).unwrap() + 100] ^= 1;
    fs::write(&path, bytes).unwrap();

    let damaged = table(&sandbox);
    assert_eq!(damaged["range_filter"]["state"], "degraded");
    assert!(damaged["range_filter"]["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{damaged}");
    assert_eq!(damaged["properties"]["range_filter_block"], block);
    assert_eq!(damaged["filter"]["state"], "usable");
    assert!(text_of_table(&sandbox).contains("means \"maybe\" for every range: "));
    let report: Value = serde_json::from_slice(&sandbox.check(&["verify", "db", "--json"], CORRUPTION)).unwrap();
    let faults = report["faults"].as_array().unwrap();
    let is_it = |fault: &Value| fault["offset"] == offset && fault["kind"] == "damaged";
    assert!(faults.iter().any(is_it), "{report}");
    let stats = sandbox.json(&["stats", "db", "--ranges-from", "ranges"]);
    let warning = stats["warnings"][0].as_str().unwrap();
    assert!(warning.contains("the range filter is damaged"), "{warning}");
    let text = sandbox.text(&["stats", "db"]);
    assert!(text.contains("(1 damaged)") && text.contains("1 table with a damaged range filter"), "{text}");
    assert_eq!(sandbox.text(&["scan", "db"]), entries);

    let report = sandbox.json(&["filter", "rebuild", "db"]);
    assert_eq!(report["keyspaces"][0]["replaced"], 1);
    assert_eq!(table(&sandbox)["range_filter"]["state"], "usable");
    sandbox.run(&["verify", "db"], b"", DONE);
    assert_eq!(sandbox.text(&["scan", "db"]), entries);
}

#[test]
fn advice_says_what_a_rebuild_then_does() {
    let sandbox = with_runs();
    let advice = sandbox.json(&["filter", "advise", "db"])["ranges"].clone();
    assert_eq!((&advice["scans"], &advice["without"]["blocks_per_empty_range"]), (&Value::Null, &2.0.into()));
    assert_eq!((&advice["now"]["bytes"], &advice["now"]["blocks_per_empty_range"]), (&0.into(), &2.0.into()));
    let choice = advice["choices"].as_array().unwrap().iter().find(|choice| choice["bits_per_key"] == 8).unwrap();
    assert_eq!(choice["runs_declined"], 0);
    let blocks = float(&choice["blocks_per_empty_range"]);
    assert!((0.005..0.1).contains(&blocks) && float(&choice["blocks_saved"]) == 2.0 - blocks, "{choice}");

    sandbox.text(&["filter", "rebuild", "db", "--range-filter", "8"]);
    let runs = advice["runs"].as_array().unwrap();
    let advised: Vec<Value> = runs.iter().map(|run| run["choices"][1]["tables"][0].clone()).collect();
    assert_eq!(advised, of_all(&sandbox, "range_filter"));
    let after = sandbox.json(&["filter", "advise", "db"])["ranges"].clone();
    assert_eq!(after["now"]["blocks_per_empty_range"], choice["blocks_per_empty_range"]);
    assert_eq!(float(&after["now"]["bytes"]), float(&choice["bytes"]));

    let said = sandbox.words(&["filter", "advise", "db"], DONE);
    assert!(said.contains("no such count") && said.contains("--ranges-from"), "{said}");
    assert!(sandbox.text(&["filter", "advise", "db"]).contains("blocks per empty range"));
}

#[test]
fn advice_weighs_runs_by_ranges() {
    let sandbox = with_runs();
    let first = sandbox.text(&["scan", "db", "--limit", "1", "--keys"]);
    let advice = sandbox.json(&["filter", "advise", "db", "--ranges-from", "ranges"])["ranges"].clone();
    assert_eq!(advice["scans"], 1000);
    let runs = advice["runs"].as_array().unwrap();
    assert!(runs.iter().all(|run| (0.99..=1.0).contains(&float(&run["weight"]))), "{advice}");
    // A range that holds its first key reads nothing of that run for nothing.
    fs::write(sandbox.path("full"), format!("{0}\t{0}0\n", first.trim_end())).unwrap();
    let advice = sandbox.json(&["filter", "advise", "db", "--ranges-from", "full"])["ranges"].clone();
    assert_eq!((&advice["scans"], &advice["without"]["blocks_per_empty_range"]), (&1.into(), &0.0.into()));
    let said = sandbox.words(&["filter", "advise", "db", "--ranges-from", "full"], DONE);
    assert!(said.contains("Blocks are per scan of 1 range, up to 10 entries"), "{said}");
}
