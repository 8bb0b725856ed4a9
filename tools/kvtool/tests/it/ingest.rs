//! `sst-build`, `ingest` and `import --sorted`.

use std::fs;

use crate::sandbox::{CORRUPTION, DONE, IO, Sandbox, USAGE};

fn lines(from: u32, to: u32) -> String {
    (from..to).map(|i| format!("key{i:05}\tnew {i}\n")).collect()
}

#[test]
fn tables_are_built_beside_a_store_and_ingested() {
    let sandbox = Sandbox::with_store(1000, 5, &[]);
    let built = sandbox.check_with_input(&["sst-build", "db", "out", "--json"], lines(500, 1500).as_bytes(), DONE);
    let built: serde_json::Value = serde_json::from_slice(&built).unwrap();
    assert_eq!((built["entries"].as_u64(), built["tables"][0]["smallest"].as_str()), (Some(1000), Some("key00500")));
    assert!(sandbox.text(&["sst", "out/000001.sst"]).contains("1,000"));
    assert_eq!(sandbox.text(&["scan", "db"]).lines().count(), 1000, "the store has not changed");

    let info = sandbox.check(&["ingest", "db", "out/000001.sst", "--move", "--json"], DONE);
    let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
    assert_eq!((info["entries"].as_u64(), info["seqno"].as_u64()), (Some(1000), Some(1001)));
    assert!(!sandbox.path("out/000001.sst").exists());
    let found = sandbox.text(&["scan", "db"]);
    assert_eq!(found.lines().count(), 1500);
    assert!(found.contains("key00499\tvalue 499\nkey00500\tnew 500\n"));
    sandbox.check(&["verify", "db"], DONE);
    let changes = sandbox.text(&["changes", "db"]);
    assert!(changes.contains("1001\tdefault\tingest\ttable") && changes.contains("key00500 to key01499"), "{changes}");
    let log = fs::read_dir(sandbox.path("db")).unwrap().map(|file| file.unwrap().path());
    let log = log.filter(|path| path.extension().is_some_and(|kind| kind == "wal")).max().unwrap();
    assert!(sandbox.text(&["dump", log.to_str().unwrap()]).contains("ingest"));
}

#[test]
fn range_deletes_are_built_and_ingested_with_what_replaces_them() {
    let sandbox = Sandbox::with_store(1000, 5, &[]);
    let deletes = ["--delete-range", "key00100", "key00200", "--delete-from", "key00900"];
    let build = [&["sst-build", "db", "out", "--json"], &deletes[..]].concat();
    let built = sandbox.check_with_input(&build, lines(150, 160).as_bytes(), DONE);
    let built: serde_json::Value = serde_json::from_slice(&built).unwrap();
    assert_eq!((built["entries"].as_u64(), built["range_deletes"].as_u64()), (Some(10), Some(2)));
    let said = sandbox.words(&["ingest", "db", "out/000001.sst", "out/deletes.sst", "--move"], DONE);
    assert!(said.contains("10 entries and 2 range deletes"), "{said}");
    assert_eq!(sandbox.text(&["scan", "db"]).lines().count(), 1000 - 100 + 10 - 100);
    assert_eq!(sandbox.text(&["scan", "db", "--from", "key00099", "--to", "key00151"]).lines().count(), 2);
    let changes = sandbox.text(&["changes", "db"]);
    assert!(changes.contains("2 range deletes, key00100 to the end"), "{changes}");
    assert!(changes.contains("key00150 to key00159"), "{changes}");
    sandbox.check(&["verify", "db"], DONE);
    // They need no lines, and an order.
    sandbox.run(&[&["sst-build", "db", "alone"], &deletes[..]].concat(), b"", DONE);
    sandbox.run(&["sst-build", "db", "inverted", "--delete-range", "b", "a"], b"", USAGE);
    let unordered = ["sst-build", "db", "unordered", "--delete-range", "b", "c", "--delete-range", "a", "b"];
    sandbox.run(&unordered, lines(0, 5).as_bytes(), USAGE);
    sandbox.run(&["sst-build", "db", "unordered", "--delete-range", "b", "c", "--delete-from", "a"], b"", USAGE);
    assert!(!sandbox.path("inverted").exists() && !sandbox.path("unordered").exists());

    sandbox.run(&["import", "db", "--replace"], b"a\t1\n", USAGE);
    let said = sandbox.run(&["import", "db", "--sorted", "--replace"], b"", USAGE).stderr;
    assert!(String::from_utf8_lossy(&said).contains("empty"));
    sandbox.run(&["import", "db", "--sorted", "--replace"], b"b\t2\na\t1\n", USAGE);
    assert_eq!(sandbox.text(&["scan", "db"]).lines().count(), 810, "nothing is deleted without what replaces it");
    sandbox.run(&["import", "db", "--sorted", "--replace"], b"a\t1\nz\t2\n", DONE);
    assert_eq!(sandbox.text(&["scan", "db"]), "a\t1\nz\t2\n");
    sandbox.check(&["verify", "db"], DONE);
}

#[test]
fn tables_that_do_not_fit_are_refused() {
    let sandbox = Sandbox::with_store(10, 5, &[]);
    sandbox.run(&["import", "other"], b"a\tb\n", DONE);
    sandbox.run(&["sst-build", "other", "out"], lines(0, 9).as_bytes(), DONE);
    let said = sandbox.words(&["ingest", "db", "out/000001.sst"], USAGE);
    assert!(said.contains("out/000001.sst") && said.contains("another store"), "{said}");
    sandbox.run(&["import", "db", "--keyspace", "words"], b"a\tb\n", DONE);
    sandbox.run(&["sst-build", "db", "words", "--keyspace", "words"], lines(0, 9).as_bytes(), DONE);
    let said = sandbox.words(&["ingest", "db", "words/000001.sst"], USAGE);
    assert!(said.contains("words/000001.sst") && said.contains("keyspace \"words\""), "{said}");
    sandbox.words(&["ingest", "db", "none.sst"], IO);
    fs::write(sandbox.path("text.sst"), "no table").unwrap();
    sandbox.words(&["ingest", "db", "text.sst"], CORRUPTION);
    sandbox.words(&["ingest", "absent", "out/000001.sst"], IO);
    assert_eq!(sandbox.text(&["scan", "db"]).lines().count(), 10);
}

#[test]
fn sorted_lines_are_imported_whole_or_not_at_all() {
    let sandbox = Sandbox::with_store(100, 5, &[]);
    let said = sandbox.run(&["import", "db", "--sorted"], b"a\t1\nb\t2\nb\t3\nc\t4\n", USAGE).stderr;
    assert!(String::from_utf8_lossy(&said).contains("line 3 of standard input is not valid"), "{said:?}");
    assert_eq!(sandbox.text(&["scan", "db"]).lines().count(), 100);
    sandbox.run(&["import", "db", "--sorted"], lines(50, 20_000).as_bytes(), DONE);
    sandbox.run(&["import", "db", "--sorted", "--keyspace", "new"], b"", DONE);
    sandbox.run(&["import", "fresh", "--sorted"], lines(0, 10).as_bytes(), DONE);
    let found = sandbox.text(&["scan", "db"]);
    assert!(found.lines().count() == 20_000 && found.contains("key00049\tvalue 49\nkey00050\tnew 50\n"));
    let left: Vec<_> = fs::read_dir(sandbox.dir()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("import")), "{left:?}");
    sandbox.check(&["verify", "db"], DONE);
    // Without a directory for the tables, or with one that exists, nothing is written.
    sandbox.run(&["sst-build", "db", "fresh"], b"a\n", IO);
    sandbox.run(&["sst-build", "db", "empty"], b"", USAGE);
    sandbox.run(&["sst-build", "db", "unsorted"], b"b\na\n", USAGE);
    assert!(!sandbox.path("empty").exists() && !sandbox.path("unsorted").exists());
}
