//! Each command, its output and its exit codes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::sandbox::{CORRUPTION, DONE, IO, NOT_FOUND, Sandbox, USAGE};

/// A sandbox whose store holds the keys `key000` to `key099`.
fn with_store() -> Sandbox {
    Sandbox::with_store(100, 3, &[])
}

fn flip(path: &Path, offset: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_put_value_is_found_until_it_is_deleted() {
    let sandbox = Sandbox::new();
    sandbox.check(&["put", "db", "apple", "red"], DONE);
    assert_eq!(sandbox.text(&["get", "db", "apple"]), "red\n");
    sandbox.check(&["put", "db", "apple", "green"], DONE);
    assert_eq!(sandbox.text(&["get", "db", "apple"]), "green\n");
    sandbox.check(&["delete", "db", "apple"], DONE);
    assert_eq!(sandbox.check(&["get", "db", "apple"], NOT_FOUND), b"");
    sandbox.check(&["delete", "db", "apple"], DONE);
}

#[test]
fn a_store_of_more_files_than_the_soft_limit_is_read() {
    let sandbox = Sandbox::new();
    let db = tamis::Db::open(sandbox.path("db")).unwrap();
    for i in 0..100 {
        db.keyspace(&format!("keyspace {i}")).unwrap().put("key", "value").unwrap();
    }
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    let get = |limit: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("ulimit {limit} && exec \"$0\" get db key"), env!("CARGO_BIN_EXE_kvtool")]);
        shell.current_dir(sandbox.dir()).output().unwrap()
    };
    assert_eq!(get("-Sn 64").stdout, b"value\n");
    let refused = get("-n 64");
    let words = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(IO), "{words}");
    assert!(words.contains("101 files") && words.contains("ulimit -n"), "{words}");
}

#[test]
fn an_operand_changes_the_value_as_the_keyspace_s_operator_says() {
    let sandbox = Sandbox::new();
    sandbox.check(&["put", "db", "apple", "red"], DONE);
    sandbox.check(&["merge", "db", "apple", ",green"], USAGE);
    sandbox.check(&["merge", "db", "apple", ",green", "--operator", "append"], DONE);
    sandbox.check(&["merge", "db", "apple", ",blue"], DONE);
    assert_eq!(sandbox.text(&["get", "db", "apple"]), "red,green,blue\n");
    sandbox.check(&["merge", "db", "apple", "x", "--operator", "max"], USAGE);
    sandbox.check(&["merge", "db", "6e", "01ff", "--hex", "--operator", "add-big", "--keyspace", "numbers"], DONE);
    sandbox.check(&["merge", "db", "6e", "0001", "--hex", "--keyspace", "numbers"], DONE);
    assert_eq!(sandbox.text(&["get", "db", "6e", "--hex", "--keyspace", "numbers"]), "0200\n");
    assert!(sandbox.text(&["keyspaces", "db"]).contains("tamis.add.big"));
}

#[test]
fn value_from_standard_input_is_taken_byte_by_byte() {
    let sandbox = Sandbox::new();
    let value: Vec<u8> = (0..=255).chain(*b"\n").collect();
    sandbox.check_with_input(&["put", "db", "k", "-"], &value, DONE);
    assert_eq!(sandbox.check(&["get", "db", "k", "--raw"], DONE), value);
    sandbox.check(&["put", "db", "--escaped", "dash", r"\x2d"], DONE);
    assert_eq!(sandbox.text(&["get", "db", "dash"]), "-\n");
}

#[test]
fn exit_codes_are_those_of_the_help() {
    let sandbox = with_store();
    sandbox.check(&["get", "db", "absent"], NOT_FOUND);
    sandbox.check(&["frobnicate"], USAGE);
    sandbox.check(&["get", "db"], USAGE);
    sandbox.check(&["get", "db", "--escaped", r"bad\q"], USAGE);
    sandbox.check(&["get", "db", "--escaped", "--hex", "k"], USAGE);
    sandbox.check(&["put", "db", "k"], USAGE);
    sandbox.check(&["put", "db", "k", "v", "--file", "f"], USAGE);
    sandbox.check(&["get", "db", "--hex", "0"], USAGE);
    sandbox.check(&["get", "db", "k", "--keyspace", "absent"], USAGE);
    sandbox.check(&["sst", "db"], USAGE);
    for command in ["scan", "changes", "stats", "levels", "keyspaces", "verify", "compact"] {
        sandbox.check(&[command, "nowhere"], IO);
    }
    for command in ["get", "delete"] {
        sandbox.check(&[command, "nowhere", "k"], IO);
    }
    assert!(!sandbox.path("nowhere").exists());
    sandbox.check(&["import", "db", "no-such-file"], IO);
    let help = sandbox.text(&["--help"]);
    assert!(help.contains("Exit codes:") && help.contains(r"\xNN"), "{help}");
}

#[test]
fn every_byte_comes_back_through_the_escaped_form() {
    let sandbox = Sandbox::new();
    let lines: String = (0..=255u8).map(|byte| format!("k\\x{byte:02X}e\t\\x{byte:02x}\n")).collect();
    sandbox.check_with_input(&["import", "db", "--escaped"], lines.as_bytes(), DONE);
    let rows = sandbox.text(&["scan", "db", "--escaped"]);
    assert_eq!(rows.lines().count(), 256);
    for (byte, row) in (0..=255u8).zip(rows.lines()) {
        let (key, value) = row.split_once('\t').unwrap();
        if byte % 16 < 2 || byte == b'\\' {
            assert_eq!(sandbox.text(&["get", "db", "--escaped", key]), format!("{value}\n"));
            assert_eq!(sandbox.check(&["get", "db", "--escaped", key, "--raw"], DONE), [byte]);
        }
    }
    let hex: String = (0..=255u8).map(|byte| format!("6b{byte:02x}65\t{byte:02x}\n")).collect();
    assert_eq!(sandbox.text(&["scan", "db", "--hex"]), hex);
    assert_eq!(sandbox.text(&["get", "db", "--hex", "6b0065"]), "00\n");
    assert_eq!(sandbox.check(&["get", "db", "--hex", "6b0065", "--raw"], DONE), b"\0");
    sandbox.check(&["put", "db", "--escaped", r"a\tb", r"\\"], DONE);
    assert_eq!(sandbox.text(&["scan", "db", "--escaped", "--to", "b"]), "a\\tb\t\\\\\n");
    // Arguments need not be UTF-8.
    let args = [OsStr::new("get"), OsStr::new("db"), OsStr::from_bytes(b"k\xf0e")];
    assert_eq!(sandbox.check(&args, DONE), b"$'\\xf0'\n");
}

#[test]
fn scan_keeps_to_its_bounds_in_both_directions() {
    let sandbox = with_store();
    let keys = |args: &[&str]| -> Vec<String> {
        let rows = sandbox.text(&[&["scan", "db"], args].concat());
        rows.lines().map(|row| row.split_once('\t').unwrap().0.to_owned()).collect()
    };
    assert_eq!(keys(&[]).len(), 100);
    assert_eq!(keys(&["--from", "key098"]), ["key098", "key099"]);
    assert_eq!(keys(&["--to", "key002"]), ["key000", "key001"]);
    assert_eq!(keys(&["--to", "key002", "--reverse"]), ["key001", "key000"]);
    assert_eq!(keys(&["--prefix", "key01", "--limit", "2"]), ["key010", "key011"]);
    assert_eq!(keys(&["--prefix", "key01", "--limit", "2", "--reverse"]), ["key019", "key018"]);
    assert_eq!(keys(&["--prefix", "key01", "--from", "key018"]), ["key018", "key019"]);
    assert_eq!(keys(&["--from", "key0985", "--reverse"]), ["key099"]);
    assert!(keys(&["--from", "key5", "--to", "key1"]).is_empty());
    assert!(keys(&["--limit", "0"]).is_empty());
}

#[test]
fn bad_line_is_named_and_what_came_before_it_stays() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("rows.jsonl"), "{\"key\": \"a\"}\n\n{\"key\": \"b\"}\n{\"value\": \"c\"}\n").unwrap();
    let words = sandbox.words(&["import", "db", "rows.jsonl"], USAGE);
    assert!(words.contains("line 4 of rows.jsonl") && words.contains("resume with --skip 3"), "{words}");
    assert_eq!(sandbox.text(&["scan", "db"]), "a\t\nb\t\n");
    let long = [&[b'k'; (1 << 20) + 1][..], b"\n"].concat();
    sandbox.check_with_input(&["import", "db"], &long, USAGE);
}

#[test]
fn many_batches_are_imported_whole() {
    let sandbox = Sandbox::new();
    let lines: String = (0..5500).map(|i| format!("{i:05}\n")).collect();
    let report = sandbox.check_with_input(&["import", "db", "--json"], lines.as_bytes(), DONE);
    assert_eq!(document(&report)["lines"], 5500);
    assert_eq!(sandbox.text(&["scan", "db"]).lines().count(), 5500);
}

#[test]
fn looking_up_a_list_prints_existing_keys_and_counts_the_rest() {
    let sandbox = with_store();
    fs::write(sandbox.path("list"), "key001\nkey001x\nkey098\n").unwrap();
    assert_eq!(sandbox.text(&["get", "db", "--keys-from", "list"]), "key001\tvalue 1\nkey098\tvalue 98\n");
    let json = sandbox.check(&["get", "db", "--keys-from", "list", "--json"], DONE);
    let summary = document(json.trim_ascii_end().split(|&byte| byte == b'\n').next_back().unwrap());
    assert_eq!(summary["summary"]["absent"], 1);
    assert_eq!(summary["summary"]["reads"]["probes"], 3);
    sandbox.check_with_input(&["get", "db", "--keys-from", "-"], b"absent\n", NOT_FOUND);
    for filters in ["ignore", "shadow"] {
        let args = ["get", "db", "--keys-from", "list", "--filters", filters];
        assert_eq!(sandbox.text(&args).lines().count(), 2);
    }
}

#[test]
fn absent_words_are_answered_by_filters_and_hardly_ever_by_reads() {
    let sandbox = Sandbox::new();
    let words = |range: std::ops::Range<u32>| -> String {
        range.map(|i| format!("{:08x}\n", i.wrapping_mul(0x9e37_79b1))).collect()
    };
    sandbox.check_with_input(&["import", "db"], words(0..20_000).as_bytes(), DONE);
    let args = ["get", "db", "--keys-from", "-", "--json"];
    let json = sandbox.check_with_input(&args, words(20_000..40_000).as_bytes(), NOT_FOUND);
    let reads = &document(&json)["summary"]["reads"];
    assert!(reads["negatives"].as_u64().unwrap() > 19_600, "{reads}");
    assert!(reads["block_reads"].as_u64().unwrap() < 400, "{reads}");
}

#[test]
fn explain_shows_each_source_and_what_it_cost() {
    let sandbox = with_store();
    let text = sandbox.text(&["explain", "db", "key007"]);
    assert!(text.contains("filter said maybe, rightly: value of 7 bytes") && text.contains("from disk"), "{text}");
    // Each store has a seed of its own, under which the filter may say "maybe" to some of them.
    let mut absent_keys = (0..10).map(|i| format!("key007{i}"));
    let denied = absent_keys.find(|key| {
        let absent = document(&sandbox.check(&["explain", "db", key, "--json"], NOT_FOUND));
        let steps = absent["steps"].as_array().unwrap();
        assert_eq!((absent["outcome"].as_str(), steps.len()), (Some("absent"), 1));
        let filter = steps[0]["filter"].as_str().unwrap();
        assert_eq!(absent["block_reads"], u64::from(filter == "maybe"), "{absent}");
        filter == "no"
    });
    denied.expect("a filter denies one of ten absent keys");
    let ignored = ["explain", "db", "key0071", "--json", "--filters", "ignore"];
    let ignored = document(&sandbox.check(&ignored, NOT_FOUND));
    assert_eq!(ignored["steps"][0]["filter"], "skipped");
    assert_eq!(ignored["block_reads"], 1);
    let step = &ignored["steps"][0];
    let (opening, block) = (step["opened"]["bytes"].as_u64().unwrap(), step["blocks"][0]["bytes"].as_u64().unwrap());
    assert_eq!((&ignored["tables_opened"], &ignored["block_bytes"]), (&1.into(), &block.into()));
    assert_eq!(ignored["bytes_read"], opening + block);
    // The table has one block, so the whole file was read.
    assert_eq!(opening + block, fs::metadata(sandbox.file("sst")).unwrap().len());
    assert!(text.contains("table opened") && text.contains("to open it"), "{text}");
}

#[test]
fn explain_of_a_scan_shows_the_blocks_it_enters() {
    let sandbox = with_store();
    let text = sandbox.text(&["explain", "db", "--from", "key007", "--limit", "2"]);
    assert!(text.contains("table opened, 1 block") && text.contains("from disk"), "{text}");
    let json = document(&sandbox.check(&["explain", "db", "--prefix", "key00", "--limit", "3", "--json"], DONE));
    assert_eq!((&json["entries"], &json["blocks_entered"], &json["blocks_unused"]), (&3.into(), &1.into(), &0.into()));
    assert_eq!((&json["block_reads"], &json["tables_opened"]), (&1.into(), &1.into()));
    assert_eq!(json["steps"][0]["blocks"][0]["used"], true);
    let empty =
        document(&sandbox.check(&["explain", "db", "--from", "key0070", "--to", "key0071", "--json"], NOT_FOUND));
    assert_eq!(
        (&empty["entries"], &empty["block_reads"], &empty["block_reads_unused"]),
        (&0.into(), &1.into(), &1.into())
    );
    // Beyond the table's keys: nothing is read.
    let beyond = document(&sandbox.check(&["explain", "db", "--from", "z", "--json"], NOT_FOUND));
    assert_eq!((&beyond["bytes_read"], &beyond["steps"]), (&0.into(), &Value::Array(Vec::new())));
    sandbox.check(&["explain", "db"], USAGE);
    sandbox.check(&["explain", "db", "key007", "--from", "a"], USAGE);
}

#[test]
fn stats_compare_filters_with_their_design() {
    let sandbox = with_store();
    let absent: String = (0..2000).map(|i| format!("key0{}x{i}\n", i % 100)).collect();
    fs::write(sandbox.path("absent"), absent).unwrap();
    let stats = document(&sandbox.check(&["stats", "db", "--keys-from", "absent", "--json"], DONE));
    let reads = &stats["reads"];
    let classes = ["negatives", "true_positives", "false_positives"].map(|class| reads[class].as_u64().unwrap());
    assert_eq!(reads["probes"], classes.iter().sum::<u64>());
    let design = reads["designed_false_positive_rate"].as_f64().unwrap();
    assert!((design - 0.008_194).abs() < 1e-5, "{design}");
    // The interval is around the measured rate. It contains the design rate only 19 times out of
    // 20, and each run has another seed; therefore this allows five standard deviations.
    let measured = classes[2] as f64 / (classes[0] + classes[2]) as f64;
    let (low, high) = (&reads["false_positive_interval"][0], &reads["false_positive_interval"][1]);
    let (low, high) = (low.as_f64().unwrap(), high.as_f64().unwrap());
    assert!(low <= measured && measured <= high && low < 4.0 * design && high - low < 0.03, "{reads}");
    assert!(reads["excess_in_standard_deviations"].as_f64().unwrap().abs() < 5.0, "{reads}");
    assert_eq!(stats["warnings"], Value::Array(Vec::new()));
    assert!(sandbox.text(&["stats", "db", "--keys-from", "absent"]).contains("false by design"));
    let table = sandbox.file("sst");
    let json = sandbox.check(&["sst", table.to_str().unwrap(), "--json"], DONE);
    let filter = document(&json)["properties"]["filter_block"]["offset"].as_u64().unwrap();
    flip(&table, usize::try_from(filter).unwrap() + 70);
    let stats = document(&sandbox.check(&["stats", "db", "--keys-from", "absent", "--json"], DONE));
    let probes = &reads["probes"];
    assert_eq!((&stats["reads"]["degraded"], &stats["reads"]["probes"]), (probes, &0.into()));
    assert!(stats["warnings"][0].as_str().unwrap().contains("damaged"), "{stats}");
}

#[test]
fn stats_are_printed_for_prometheus() {
    let sandbox = with_store();
    let text = sandbox.text(&["stats", "db", "--prometheus"]);
    let figures = text.lines().filter(|line| !line.starts_with('#'));
    for figure in figures {
        let (name, value) = figure.rsplit_once(' ').unwrap();
        assert!(name.starts_with("tamis_") && value.parse::<f64>().is_ok(), "{figure}");
    }
    assert!(text.contains("\ntamis_last_seqno 100\n"), "{text}");
    assert!(text.contains("tamis_level_entries{keyspace=\"default\",level=\""), "{text}");
    sandbox.check(&["stats", "db", "--prometheus", "--json"], USAGE);
}

#[test]
fn stats_say_why_a_filter_is_not_usable() {
    let sandbox = with_store();
    assert!(!sandbox.text(&["stats", "db"]).contains("without"));
    sandbox.text(&["filter", "rebuild", "db", "--policy", "none"]);
    let stats = sandbox.text(&["stats", "db"]);
    assert!(stats.contains("0 B (1 without)") && stats.contains("1 table without a filter: "), "{stats}");
    sandbox.text(&["filter", "rebuild", "db", "--policy", "bloom"]);
    let table = sandbox.file("sst");
    let json = sandbox.check(&["sst", table.to_str().unwrap(), "--json"], DONE);
    let filter = document(&json)["properties"]["filter_block"]["offset"].as_u64().unwrap();
    flip(&table, usize::try_from(filter).unwrap() + 70);
    let stats = sandbox.text(&["stats", "db"]);
    assert!(stats.contains("0 B (1 damaged)") && stats.contains("1 table with a damaged filter"), "{stats}");
    let level = &sandbox.json(&["stats", "db"])["keyspaces"][0]["levels"][0];
    assert_eq!((&level["tables_without_filter"], &level["tables_with_damaged_filter"]), (&0.into(), &1.into()));
}

#[test]
fn nouns_agree_with_their_number() {
    let sandbox = Sandbox::new();
    let said = sandbox.run(&["import", "db"], b"k\n", DONE).stderr;
    assert!(String::from_utf8_lossy(&said).starts_with("1 key in "), "{said:?}");
    sandbox.words(&["compact", "db"], DONE);
    let said = sandbox.words(&["verify", "db"], DONE);
    assert!(said.contains("0 batches, 1 table with 1 entry in "), "{said}");
    let said = sandbox.words(&["explain", "db", "k"], DONE);
    assert!(said.contains("1 table opened, 1 block read"), "{said}");
}

#[test]
fn keyspaces_are_separate() {
    let sandbox = with_store();
    sandbox.check(&["put", "db", "--keyspace", "users", "key000", "Ann"], DONE);
    assert_eq!(sandbox.text(&["get", "db", "key000", "--keyspace", "users"]), "Ann\n");
    assert_eq!(sandbox.text(&["get", "db", "key000"]), "value 0\n");
    assert_eq!(sandbox.text(&["scan", "db", "--keyspace", "users"]), "key000\tAnn\n");
    let listed = sandbox.text(&["keyspaces", "db"]);
    assert!(listed.contains("default") && listed.contains("users"), "{listed}");
    sandbox.check(&["delete", "db", "--keyspace", "users", "key000"], DONE);
    sandbox.check(&["get", "db", "key000", "--keyspace", "users"], NOT_FOUND);
}

#[track_caller]
fn document(json: &[u8]) -> Value {
    let document: Value = serde_json::from_slice(json).unwrap();
    assert_eq!(document["schema"], 1);
    document
}

#[test]
fn every_command_has_json_with_a_schema_number() {
    let sandbox = with_store();
    let (table, manifest) = (sandbox.file("sst"), fs::read_to_string(sandbox.path("db/CURRENT")).unwrap());
    let manifest = format!("db/{}", manifest.lines().nth(1).unwrap());
    let table = table.to_str().unwrap();
    let check = |args: &[&str], code: i32| document(&sandbox.check(&[args, &["--json"]].concat(), code));
    assert_eq!(check(&["get", "db", "key007"], DONE)["value"], "value 7");
    assert_eq!(check(&["get", "db", "absent"], NOT_FOUND)["found"], false);
    assert_eq!(check(&["get", "db", "--hex", "6b6579303037"], DONE)["key"]["hex"], "6b6579303037");
    assert_eq!(check(&["scan", "db", "--limit", "1"], DONE)["key"], "key000");
    assert_eq!(check(&["stats", "db"], DONE)["last_seqno"], 100);
    assert_eq!(check(&["levels", "db"], DONE)["keyspaces"][0]["levels"][0]["tables"][0]["entries"], 100);
    assert_eq!(check(&["keyspaces", "db"], DONE)["keyspaces"][0]["name"], "default");
    assert_eq!(check(&["sst", table, "--blocks"], DONE)["properties"]["entries"], 100);
    assert_eq!(check(&["dump", table], DONE)["blocks"][0]["first_key"], "key000");
    assert_eq!(check(&["dump", "db/CURRENT"], DONE)["kind"], "current");
    assert_eq!(check(&["dump", &manifest], DONE)["records"][0]["kind"], "version edit");
    assert_eq!(check(&["verify", "db"], DONE)["sound"], true);
    assert!(check(&["put", "db", "k", "v"], DONE)["seqno"].as_u64() > Some(100));
    assert!(check(&["delete", "db", "k"], DONE)["seqno"].as_u64() > Some(101));
    assert!(check(&["compact", "db"], DONE)["bytes_after"].as_u64() > Some(0));
}

#[test]
fn sst_lists_every_entry() {
    let sandbox = with_store();
    let table = sandbox.file("sst");
    let number = table.file_stem().unwrap().to_str().unwrap().trim_start_matches('0').to_owned();
    let printed = sandbox.text(&["sst", "db", &number, "--blocks", "--entries"]);
    assert_eq!(printed.lines().filter(|line| line.contains("\tput\tvalue ")).count(), 100);
    assert!(printed.contains("key042\t43\tput\tvalue 42\n"), "{printed}");
    let lines = sandbox.text(&["sst", table.to_str().unwrap(), "--entries", "--json"]);
    assert_eq!(lines.lines().count(), 101);
    lines.lines().for_each(|line| drop(document(line.as_bytes())));
}

#[test]
fn verify_beside_a_writer_says_so_and_reports_nothing() {
    let sandbox = with_store();
    let db = tamis::Db::open(sandbox.path("db")).unwrap();
    db.put("logged", "1").unwrap();
    assert_eq!(sandbox.text(&["verify", "db"]), "");
    assert_eq!(document(&sandbox.check(&["verify", "db", "--json"], DONE))["being_written"], true);
    db.close().unwrap();
    assert_eq!(document(&sandbox.check(&["verify", "db", "--json"], DONE))["being_written"], false);
}

#[test]
fn commands_that_read_change_no_file() {
    let sandbox = with_store();
    // One write is only in the log: opening for writing would move it to a table.
    let db = tamis::Db::open(sandbox.path("db")).unwrap();
    db.put("logged", "1").unwrap();
    let log = sandbox.file("wal");
    let table = sandbox.file("sst");
    let before = sandbox.files("db");
    assert_eq!(sandbox.text(&["get", "db", "logged"]), "1\n");
    sandbox.text(&["scan", "db"]);
    sandbox.text(&["stats", "db"]);
    sandbox.text(&["levels", "db"]);
    sandbox.text(&["keyspaces", "db"]);
    sandbox.text(&["verify", "db"]);
    sandbox.text(&["sst", table.to_str().unwrap(), "--blocks", "--entries"]);
    let dumped = sandbox.text(&["dump", log.to_str().unwrap()]);
    assert!(dumped.contains("\tput\tlogged\t1\n"), "{dumped}");
    sandbox.text(&["dump", "db/CURRENT"]);
    sandbox.check(&["get", "db", "absent"], NOT_FOUND);
    assert_eq!(sandbox.files("db"), before);
    db.close().unwrap();
}

#[test]
fn locked_store_is_refused_to_writers_and_open_to_readers() {
    let sandbox = with_store();
    let db = tamis::Db::open(sandbox.path("db")).unwrap();
    let words = sandbox.words(&["put", "db", "k", "v"], IO);
    assert!(words.contains("locked by process"), "{words}");
    sandbox.check(&["delete", "db", "k"], IO);
    sandbox.check(&["compact", "db"], IO);
    sandbox.check_with_input(&["import", "db"], b"k\n", IO);
    assert_eq!(sandbox.text(&["get", "db", "key001"]), "value 1\n");
    db.close().unwrap();
    sandbox.check(&["put", "db", "k", "v"], DONE);
}

#[test]
fn damage_is_reported_and_never_taken_for_an_absent_key() {
    let sandbox = with_store();
    let table = sandbox.file("sst");
    flip(&table, 64 + 500);
    let words = sandbox.words(&["get", "db", "key001"], CORRUPTION);
    assert!(words.contains(".sst is damaged at offset 64"), "{words}");
    sandbox.check(&["scan", "db"], CORRUPTION);
    sandbox.check(&["sst", table.to_str().unwrap(), "--entries"], CORRUPTION);
    let faults = String::from_utf8(sandbox.check(&["verify", "db"], CORRUPTION)).unwrap();
    assert_eq!(faults.lines().count(), 1);
    assert!(faults.contains(".sst: 64: damaged: "), "{faults}");
    let found = document(&sandbox.check(&["verify", "db", "--json"], CORRUPTION));
    assert_eq!((&found["damaged"], &found["faults"][0]["offset"]), (&Value::from(1), &Value::from(64)));
}

#[test]
fn damaged_manifest_and_current_are_reported() {
    for name in ["CURRENT", "MANIFEST"] {
        let sandbox = with_store();
        let path =
            sandbox.files("db").into_keys().find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(name));
        flip(&path.unwrap(), 20);
        sandbox.check(&["get", "db", "key001"], CORRUPTION);
        sandbox.check(&["put", "db", "k", "v"], CORRUPTION);
        sandbox.check(&["verify", "db"], CORRUPTION);
    }
}

#[test]
fn closed_pipe_ends_quietly() {
    let sandbox = Sandbox::new();
    let lines: String = (0..20_000).map(|i| format!("{i:05}\t0123456789\n")).collect();
    sandbox.check_with_input(&["import", "db"], lines.as_bytes(), DONE);
    let mut child = sandbox.command(&["scan", "db"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(DONE), &b""[..]));
}

#[test]
#[cfg(target_os = "linux")]
fn full_device_is_a_failure() {
    let sandbox = with_store();
    for args in [&["scan", "db"][..], &["get", "db", "key001"], &["stats", "db"], &["verify", "db", "--json"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = sandbox.command(args).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(IO), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"));
    }
}

#[test]
fn compaction_keeps_live_entries_and_drops_deleted_ones() {
    let sandbox = with_store();
    sandbox.check(&["delete", "db", "key050"], DONE);
    sandbox.check(&["compact", "db"], DONE);
    assert_eq!(sandbox.text(&["scan", "db"]).lines().count(), 99);
    let levels = document(&sandbox.check(&["levels", "db", "--json"], DONE));
    let levels = &levels["keyspaces"][0]["levels"];
    assert_eq!(levels.as_array().unwrap().len(), 1);
    assert_eq!((&levels[0]["level"], &levels[0]["tables"][0]["tombstones"]), (&Value::from(6), &Value::from(0)));
}

#[test]
fn keyspaces_are_created_and_dropped() {
    let sandbox = Sandbox::new();
    let names = || {
        let keyspaces = sandbox.json(&["keyspaces", "db"])["keyspaces"].as_array().unwrap().clone();
        keyspaces.iter().map(|keyspace| keyspace["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(sandbox.json(&["create-keyspace", "db", "users"])["created"], true);
    assert_eq!(names(), ["default", "users"]);
    sandbox.check(&["put", "db", "id7", "Ann", "--keyspace", "users"], DONE);
    assert!(sandbox.words(&["create-keyspace", "db", "users"], USAGE).contains("exists"));
    assert_eq!(sandbox.text(&["get", "db", "id7", "--keyspace", "users"]), "Ann\n");
    sandbox.check(&["drop-keyspace", "db", "users"], DONE);
    assert_eq!(names(), ["default"]);
    assert!(sandbox.words(&["drop-keyspace", "db", "users"], USAGE).contains("there is no keyspace"));
    sandbox.words(&["drop-keyspace", "nowhere", "users"], IO);
    // The default keyspace stays.
    sandbox.words(&["drop-keyspace", "db", "default"], USAGE);
    sandbox.check(&["put", "db", "key", "value"], DONE);
}

#[test]
fn shells_and_manuals_know_the_commands() {
    let sandbox = Sandbox::new();
    for (shell, words) in [("bash", "_kvtool()"), ("zsh", "#compdef kvtool"), ("fish", "complete -c kvtool")] {
        let script = sandbox.text(&["completions", shell]);
        assert!(script.contains(words) && script.contains("create-keyspace"), "{shell}: {script:.200}");
    }
    sandbox.check(&["man", "pages/man1"], DONE);
    let pages = sandbox.files("pages/man1");
    let text = |name: &str| String::from_utf8(pages[&sandbox.path("pages/man1").join(name)].clone()).unwrap();
    assert!(text("kvtool.1").contains("kvtool"));
    assert!(text("kvtool-filter-advise.1").contains("ranges\\-from"), "{}", text("kvtool-filter-advise.1"));
    sandbox.words(&["completions", "cmd"], USAGE);
}

#[test]
fn count_and_size_are_of_a_range() {
    let sandbox = Sandbox::with_store(20_000, 5, &[]);
    assert_eq!(sandbox.text(&["count", "db"]), "20000\n");
    assert_eq!(sandbox.text(&["count", "db", "--prefix", "key00", "--from", "key00100"]), "900\n");
    assert_eq!(sandbox.json(&["count", "db", "--to", "key00010"])["count"], 10);
    let size = |args: &[&str]| {
        let size = sandbox.json(&[&["size", "db"], args].concat());
        ["approximate_bytes", "approximate_keys"].map(|field| size[field].as_f64().unwrap())
    };
    let ([all, keys], [half, half_keys]) = (size(&[]), size(&["--to", "key10000"]));
    assert!((0.45..0.55).contains(&(half / all)) && (9_000.0..11_000.0).contains(&half_keys), "{half} of {all}");
    assert!((19_000.0..21_000.0).contains(&keys), "{keys}");
    assert_eq!(size(&["--from", "x"]), [0.0; 2]);
}

#[test]
fn several_keys_are_got_and_deleted_at_once() {
    let sandbox = Sandbox::with_store(100, 3, &[]);
    let get = |args: &[&str], code| {
        let output = sandbox.run(&[&["get", "db"], args].concat(), b"key001\nnobody\nkey002\n", code);
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
    };
    assert_eq!(get(&["key001", "key002"], DONE), ["key001\tvalue 1\nkey002\tvalue 2\n", ""]);
    let [out, said] = get(&["key001", "nobody"], NOT_FOUND);
    assert_eq!((&*out, &*said), ("key001\tvalue 1\n", "absent: nobody\n"));
    assert_eq!(get(&["key001", "nobody", "--missing"], DONE), ["nobody\n", ""]);
    assert_eq!(get(&["key001", "--missing"], NOT_FOUND), ["", ""]);
    assert_eq!(get(&["--keys-from", "-", "--missing"], DONE)[0], "nobody\n");
    assert!(get(&["key001", "key002", "--raw"], USAGE)[1].contains("--raw prints one value"));
    sandbox.words(&["get", "db"], USAGE);

    let count = || sandbox.text(&["scan", "db", "--count"]);
    sandbox.check(&["delete", "db", "key001", "key002", "nobody"], DONE);
    assert_eq!(count(), "98\n");
    sandbox.check(&["delete", "db", "--prefix", "key01"], DONE);
    assert_eq!(count(), "88\n");
    sandbox.check(&["delete", "db", "--from", "key090", "--to", "key095"], DONE);
    assert_eq!(count(), "83\n");
    let lines: String = (0..5000).map(|i| format!("key{i:03}\tvalue\n")).collect();
    sandbox.run(&["delete", "db", "--keys-from", "-"], lines.as_bytes(), DONE);
    assert_eq!(count(), "0\n");
    // Nothing is deleted where it is not said what.
    for args in
        [&["delete", "db"][..], &["delete", "db", "k", "--prefix", "k"], &["delete", "db", "k", "--keys-from", "-"]]
    {
        sandbox.words(args, USAGE);
    }
}

#[test]
fn scan_prints_keys_or_values_or_counts() {
    let sandbox = Sandbox::with_store(100, 3, &[]);
    let scan = |part: &str| sandbox.text(&["scan", "db", "--from", "key010", "--to", "key012", part]);
    let entries = sandbox.text(&["scan", "db", "--from", "key010", "--to", "key012"]);
    let (keys, values): (Vec<&str>, Vec<&str>) = entries.lines().map(|line| line.split_once('\t').unwrap()).unzip();
    assert_eq!(keys.len(), 2, "{entries}");
    assert_eq!(scan("--keys-only").lines().collect::<Vec<_>>(), keys);
    assert_eq!(scan("--keys"), scan("--keys-only"));
    assert_eq!(scan("--values-only").lines().collect::<Vec<_>>(), values);
    assert_eq!(scan("--count"), "2\n");
    assert_eq!(sandbox.json(&["scan", "db", "--count", "--limit", "7"])["count"], 7);
    assert_eq!(sandbox.text(&["scan", "db", "--count", "--skip-damaged"]), "100\n");
    let value = sandbox.json(&["scan", "db", "--values-only", "--limit", "1"]);
    assert_eq!((&value["value"], value.get("key")), (&Value::from(value_of(&sandbox, "key000")), None));
    sandbox.words(&["scan", "db", "--count", "--keys-only"], USAGE);
}

/// The value of a key.
fn value_of(sandbox: &Sandbox, key: &str) -> String {
    sandbox.text(&["get", "db", key]).trim_end().to_owned()
}

#[test]
fn demo_counts_what_the_filters_save() {
    let sandbox = Sandbox::new();
    let found = document(&sandbox.check(&["demo", "--keys", "20000", "--dir", ".", "--json"], DONE));
    let measured = found["measured"].as_array().unwrap();
    let block_reads = |i: usize| measured[i]["reads"]["block_reads"].as_u64().unwrap();
    let (with, without) = (block_reads(2), block_reads(3));
    assert!(with * 10 < without, "{found}");
    assert_eq!(fs::read_dir(sandbox.dir()).unwrap().count(), 0, "the demo left something behind");
    if cfg!(target_os = "linux") {
        assert_eq!(measured[3]["process"]["read_calls"], without);
    }
    let table = sandbox.text(&["demo", "--keys", "1000", "--dir", ".", "--keep"]);
    // The result comes first, in some six lines.
    let result: Vec<&str> = table.lines().take(6).collect();
    assert!(result[0].contains("disk reads per") && result[2].contains("missing key"), "{table}");
    assert!(table.find("False positives: filters") < table.find("asked for"), "{table}");
    assert_eq!(fs::read_dir(sandbox.dir()).unwrap().count(), 1);
}

#[test]
fn a_checkpoint_is_a_store_of_its_own() {
    let sandbox = Sandbox::with_store(500, 4, &[]);
    let before = sandbox.text(&["scan", "db"]);
    let document = sandbox.json(&["checkpoint", "db", "copies/monday"]);
    let names: Vec<&str> = document["files"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"CURRENT") && names.iter().any(|name| name.ends_with(".sst")), "{document}");
    assert_eq!(document["linked"], 1);
    sandbox.check(&["delete-range", "db", "--prefix", "key"], DONE);
    assert_eq!(sandbox.text(&["scan", "copies/monday"]), before);
    sandbox.check(&["verify", "copies/monday"], DONE);
    sandbox.check(&["put", "copies/monday", "key", "value"], DONE);
    let manifest = sandbox.files("copies/monday").into_keys().find(|path| path.to_str().unwrap().contains("MANIFEST"));
    let dump = sandbox.text(&["dump", manifest.unwrap().to_str().unwrap()]);
    assert!(dump.contains("on: branch "), "{dump}");
    // What is there is left alone, and an interrupted copy is no store.
    let words = sandbox.words(&["checkpoint", "db", "copies/monday"], USAGE);
    assert!(words.contains("absent or an empty directory"), "{words}");
    fs::create_dir(sandbox.path("half")).unwrap();
    fs::write(sandbox.path("half/PARTIAL"), "tamis: an unfinished copy of a store\n").unwrap();
    for command in ["scan", "verify"] {
        let words = sandbox.words(&[command, "half"], IO);
        assert!(words.contains("unfinished copy"), "{words}");
    }
    sandbox.check(&["checkpoint", "db", "half"], DONE);
    sandbox.check(&["scan", "half"], DONE);
}

#[test]
fn generations_are_backed_up_listed_verified_and_restored() {
    let sandbox = Sandbox::with_store(500, 4, &[]);
    let first = sandbox.text(&["scan", "db"]);
    assert_eq!(sandbox.json(&["backup", "db", "backups"])["generation"], 1);
    sandbox.check(&["put", "db", "another", "value"], DONE);
    let second = sandbox.text(&["scan", "db"]);
    let made = sandbox.json(&["backup", "db", "backups"]);
    assert_eq!(made["generation"], 2);
    assert!(made["copied_files"].as_u64() < made["files"].as_u64(), "{made}");
    let listed = sandbox.json(&["backups", "backups"]);
    assert_eq!(listed["generations"].as_array().unwrap().len(), 2);
    assert!(sandbox.text(&["backups", "backups"]).contains("last number"));
    sandbox.check(&["backups", "backups", "--verify"], DONE);
    sandbox.check(&["restore", "backups", "old", "--generation", "1"], DONE);
    sandbox.check(&["restore", "backups", "new"], DONE);
    assert_eq!((sandbox.text(&["scan", "old"]), sandbox.text(&["scan", "new"])), (first, second));
    sandbox.check(&["restore", "backups", "new"], USAGE);
    sandbox.check(&["restore", "backups", "none", "--generation", "7"], USAGE);
    assert!(sandbox.words(&["backups", "db"], USAGE).contains("no backup repository"));
    assert_eq!(sandbox.json(&["backup", "db", "backups", "--keep", "1"])["removed_generations"], 2);
    // Damage is found without restoring, and never restored.
    let data = sandbox.files("backups/data").into_keys().find(|path| path.to_str().unwrap().contains(".sst")).unwrap();
    flip(&data, 1000);
    let report = String::from_utf8(sandbox.check(&["backups", "backups", "--verify"], CORRUPTION)).unwrap();
    assert!(report.contains(".sst") && report.contains("generations [3]"), "{report}");
    sandbox.check(&["restore", "backups", "bad"], CORRUPTION);
    assert!(!sandbox.path("bad/CURRENT").exists());
}

#[test]
fn a_store_that_was_followed_is_restored_as_of_a_number_or_a_time() {
    let sandbox = Sandbox::with_store(100, 4, &[]);
    let db = tamis::Db::open(sandbox.path("db")).unwrap();
    let repository = tamis_backup::Repository::create(sandbox.path("backups")).unwrap();
    let follower = repository.follow(&db, tamis_backup::FollowOptions::new()).unwrap();
    let good = db.put("good", "value").unwrap();
    db.sync().unwrap();
    while follower.status().seqno < good {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::thread::sleep(std::time::Duration::from_millis(5));
    let then = sandbox.json(&["backups", "backups"])["generations"][0]["followed_until"].as_str().unwrap().to_owned();
    db.delete_range(..).unwrap();
    follower.stop().unwrap();
    db.close().unwrap();
    let good = good.to_string();
    for (dir, point) in [("a", ["--seqno", &good]), ("b", ["--at", &then])] {
        sandbox.check(&["restore", "backups", dir, point[0], point[1]], DONE);
        assert_eq!(sandbox.text(&["get", dir, "good"]), "value\n");
        assert_eq!(sandbox.json(&["stats", dir])["last_seqno"].to_string(), good);
    }
    sandbox.check(&["restore", "backups", "c", "--at", "2100-01-01T00:00:00Z", "--generation", "1"], DONE);
    assert_eq!(sandbox.text(&["scan", "c"]), "");
    for wrong in [["--at", "1970-01-01T00:00:00Z"], ["--at", "yesterday"], ["--seqno", "1"], ["--seqno", "1000000"]] {
        sandbox.check(&["restore", "backups", "d", wrong[0], wrong[1]], USAGE);
    }
    assert!(sandbox.text(&["backups", "backups"]).contains("followed until"));
    assert_eq!(sandbox.json(&["backups", "backups", "--verify"])["segments"], 2);
}

#[cfg(unix)]
#[test]
fn backup_follows_a_store_until_it_is_interrupted() {
    use std::io::{BufRead, BufReader};
    let sandbox = Sandbox::with_store(100, 4, &[]);
    let mut child = sandbox
        .command(&["backup", "db", "backups", "--follow", "--every", "1", "--keep", "2"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    for _ in 0..3 {
        assert!(lines.next().unwrap().unwrap().starts_with("generation "));
    }
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success() && child.wait().unwrap().success());
    assert!(lines.map(Result::unwrap).last().unwrap().starts_with("followed up to number"));
    assert!(sandbox.json(&["backups", "backups"])["generations"].as_array().unwrap().len() <= 2);
    sandbox.check(&["restore", "backups", "copy"], DONE);
    assert_eq!(sandbox.text(&["scan", "copy"]), sandbox.text(&["scan", "db"]));
}
