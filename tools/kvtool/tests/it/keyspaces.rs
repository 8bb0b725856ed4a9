//! `create-keyspace`, `keyspace set` and `drop-keyspace`.

use serde_json::{Value, json};

use crate::sandbox::{DONE, IO, Sandbox, USAGE};

/// The options of keyspace `m`, as `keyspaces --json` has them.
fn options(sandbox: &Sandbox) -> Value {
    let all = sandbox.json(&["keyspaces", "db", "--keyspace", "m"]);
    all["keyspaces"][0].clone()
}

#[test]
fn options_are_set_one_by_one_and_stay() {
    let sandbox = Sandbox::new();
    sandbox.text(&["create-keyspace", "db", "m", "--compression", "none", "--ttl", "60"]);
    sandbox.text(&["put", "db", "k", "v", "--keyspace", "m"]);
    let mut expected = options(&sandbox);
    assert_eq!((&expected["compression"], &expected["ttl_seconds"]), (&json!("none"), &json!(60.0)));
    for (flag, value, field, shown) in [
        ("--filter", "fuse", "filter", json!("binary fuse, fingerprints of 8 bits")),
        ("--filter", "fuse:12", "filter", json!("binary fuse, fingerprints of 12 bits")),
        ("--filter", "bloom:14.5", "filter", json!("Bloom, 14.5 bits per key")),
        ("--filter", "none", "filter", json!("none")),
        ("--range-filter", "12", "range_filter", json!("ordered, 12 bits per key")),
        ("--compression", "lz4", "compression", json!("LZ4")),
        ("--block-size", "16384", "block_size", json!(16384)),
        ("--ttl", "none", "ttl_seconds", Value::Null),
        ("--ttl", "0.5", "ttl_seconds", json!(0.5)),
        ("--separate-values", "1024", "separate_values", json!(1024)),
        ("--separate-values", "none", "separate_values", Value::Null),
        ("--prefix", "8", "prefix", json!("first 8 bytes")),
        ("--prefix", "up-to::", "prefix", json!("up to b':'")),
        ("--prefix", "none", "prefix", Value::Null),
        ("--wal", "false", "wal", json!(false)),
        ("--operator", "append", "merge_operator", json!("tamis.append")),
    ] {
        sandbox.text(&["keyspace", "set", "db", "m", flag, value]);
        expected[field] = shown;
        let mut now = options(&sandbox);
        // How large it is changes with its options.
        (now["bytes"], now["tables"]) = (expected["bytes"].clone(), expected["tables"].clone());
        assert_eq!(now, expected, "{flag} {value}");
    }
}

#[test]
fn several_options_are_set_at_once_and_printed() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    let args = ["keyspace", "set", "db", "default", "--filter", "bloom:12", "--ttl", "60", "--json"];
    let set: Value = serde_json::from_str(&sandbox.text(&args)).unwrap();
    assert_eq!((&set["options"]["filter"], &set["options"]["ttl_ms"]), (&json!({ "bloom": 12.0 }), &json!(60000)));
    assert!(sandbox.words(&args[..8], DONE).contains("unchanged"));
    // Tables that are there get such filters when they are asked for.
    sandbox.text(&["filter", "rebuild", "db"]);
    let table = sandbox.file("sst");
    assert!(sandbox.text(&["dump", table.to_str().unwrap()]).contains("12"));
    // In a shell, too.
    sandbox.run(&["shell", "db"], b"keyspace set default --ttl none\n", DONE);
    let all = sandbox.json(&["keyspaces", "db"]);
    assert_eq!(all["keyspaces"][0]["ttl_seconds"], Value::Null);
}

#[test]
fn what_cannot_be_set_is_refused() {
    let sandbox = Sandbox::new();
    for flags in [
        &["--filter", "cuckoo"][..],
        &["--filter", "bloom:x"],
        &["--filter", "bloom:99"],
        &["--filter", "fuse:3.5"],
        &["--compression", "snappy"],
        &["--block-size", "0"],
        &["--prefix", "up-to:xy"],
        &["--ttl", "-1"],
        &["--ttl", "0"],
        &["--wal", "maybe"],
        &["--range-filter", "40"],
    ] {
        sandbox.words(&[&["create-keyspace", "db", "m"], flags].concat(), USAGE);
        assert!(!sandbox.path("db").exists(), "{flags:?}");
    }
    sandbox.words(&["keyspace", "set", "db", "m", "--ttl", "1"], IO);
    sandbox.text(&["create-keyspace", "db", "m", "--operator", "append"]);
    sandbox.words(&["keyspace", "set", "db", "n", "--ttl", "1"], USAGE);
    sandbox.words(&["keyspace", "set", "db", "m", "--operator", "max"], USAGE);
    sandbox.words(&["keyspace", "set", "db", "m"], USAGE);
    assert!(sandbox.words(&["create-keyspace", "db", "m"], USAGE).contains("keyspace set"));
}
