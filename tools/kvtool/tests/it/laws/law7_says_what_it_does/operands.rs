//! Operands: decimal where an operator adds, and none is stored that cannot be combined.

use tamis::operator::{Append, Union};
use tamis::{Db, KeyspaceOptions};

use crate::sandbox::{CORRUPTION, DONE, Sandbox, USAGE};

#[test]
fn adding_operators_take_decimal() {
    let sandbox = Sandbox::new();
    for (operator, one, sum) in
        [("add-big", "0000000000000001", "0000000000000029"), ("add-little", "0100000000000000", "2900000000000000")]
    {
        let merge = |operand: &str| {
            sandbox.words(&["merge", operator, "n", operand, "--operator", operator], DONE);
            sandbox.text(&["get", operator, "n", "--hex"].map(|arg| if arg == "n" { "6e" } else { arg }))
        };
        assert_eq!(merge("1"), format!("{one}\n"));
        assert_eq!(merge("+43"), format!("{}\n", sum.replace("29", "2c")));
        assert_eq!(merge("-3"), format!("{sum}\n"));
    }
    // The length is that of the value that is there.
    sandbox.text(&["put", "add-big", "--hex", "73", "01ff"]);
    sandbox.text(&["merge", "add-big", "s", "1"]);
    assert_eq!(sandbox.text(&["get", "add-big", "--hex", "73"]), "0200\n");
}

#[test]
fn an_operand_that_cannot_be_combined_is_refused_and_nothing_is_stored() {
    let sandbox = Sandbox::new();
    sandbox.text(&["merge", "db", "n", "1", "--operator", "add-big"]);
    for args in [
        &["merge", "db", "n", "one"][..],
        &["merge", "db", "n", "18446744073709551616"],
        &["merge", "db", "--hex", "6e", "01"],
        &["merge", "db", "--hex", "6e", ""],
        &["merge", "db", "n", "1", "--operator", "append"],
        &["merge", "db", "n", "1", "--keyspace", "absent"],
    ] {
        sandbox.words(args, USAGE);
        assert_eq!(sandbox.text(&["get", "db", "--hex", "6e"]), "0000000000000001\n", "{args:?}");
    }
    sandbox.text(&["put", "db", "text", "not an integer, for it is long"]);
    let said = sandbox.words(&["merge", "db", "text", "1"], USAGE);
    assert!(said.contains("no integer"), "{said}");
    // What can be seen to be wrong creates no store.
    sandbox.words(&["merge", "new", "n", "x", "--operator", "add-big"], USAGE);
    sandbox.words(&["merge", "new", "n", "x"], crate::sandbox::IO);
    assert!(!sandbox.path("new").exists());
    // A set gets a member, or with --hex the members of a set.
    sandbox.text(&["merge", "sets", "s", "a", "--operator", "union"]);
    sandbox.text(&["merge", "sets", "s", "b"]);
    assert_eq!(sandbox.text(&["get", "sets", "--hex", "73"]), "01610162\n");
    sandbox.words(&["merge", "sets", "--hex", "73", "0500"], USAGE);
}

#[test]
fn export_leaves_out_what_cannot_be_combined_if_it_is_asked_to() {
    let sandbox = Sandbox::new();
    let db = Db::open(sandbox.path("db")).unwrap();
    let sets = db.keyspace_with("sets", KeyspaceOptions::new().merge_operator(Union)).unwrap();
    sets.put("bad", "\u{5}not a set").unwrap();
    sets.merge("bad", Union::encode(["a"])).unwrap();
    sets.put("good", Union::encode(["a"])).unwrap();
    let texts = db.keyspace_with("texts", KeyspaceOptions::new().merge_operator(Append)).unwrap();
    texts.put("k", "v").unwrap();
    db.close().unwrap();
    let said = sandbox.words(&["export", "db", "out.csv", "--keyspace", "sets"], CORRUPTION);
    assert!(said.contains("key bad") && said.contains("--skip-damaged") && !sandbox.path("out.csv").exists(), "{said}");
    let said = sandbox.words(&["export", "db", "out.csv", "--keyspace", "sets", "--skip-damaged"], CORRUPTION);
    assert!(said.contains("key bad") && said.contains("skipped 1"), "{said}");
    assert_eq!(std::fs::read_to_string(sandbox.path("out.csv")).unwrap(), "good,\u{1}a\n");
    // JSON lines keep even that.
    let all = sandbox.check(&["export", "db", "--all-keyspaces", "--format", "jsonl"], DONE);
    sandbox.run(&["import", "copy", "--format", "jsonl"], &all, DONE);
    assert_eq!(sandbox.check(&["export", "copy", "--all-keyspaces", "--format", "jsonl"], DONE), all);
}

#[test]
fn export_goes_on_past_damage_if_it_is_asked_to() {
    let sandbox = Sandbox::with_store(1000, 4, &[]);
    let table = sandbox.file("sst");
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[64 + 500] ^= 2;
    std::fs::write(&table, bytes).unwrap();
    for format in ["tsv", "jsonl"] {
        let out = format!("out.{format}");
        let said = sandbox.words(&["export", "db", &out], CORRUPTION);
        assert!(said.contains("--skip-damaged") && !sandbox.path(&out).exists(), "{said}");
        let said = sandbox.words(&["export", "db", &out, "--skip-damaged"], CORRUPTION);
        assert!(said.contains("skipped keys key"), "{said}");
        let lines = std::fs::read_to_string(sandbox.path(&out)).unwrap().lines().count();
        assert!((500..1000).contains(&lines), "{format}: {lines}");
    }
}

#[test]
fn a_ttl_of_nothing_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.words(&["put", "db", "k", "v", "--ttl", "0"], USAGE);
    assert!(!sandbox.path("db").exists());
    sandbox.text(&["put", "db", "k", "v", "--ttl", "1000"]);
    assert_eq!(sandbox.text(&["get", "db", "k"]), "v\n");
}
