//! `diff`: the entries in which two stores differ.

use std::time::{Duration, SystemTime};

use tamis::Db;

use crate::sandbox::{DONE, IO, NOT_FOUND, Sandbox, USAGE};

/// Two stores that differ in every way that entries can.
fn two_stores() -> Sandbox {
    let sandbox = Sandbox::with_store(5, 1, &[]);
    sandbox.text(&["put", "db", "k", "1", "--keyspace", "m"]);
    sandbox.text(&["checkpoint", "db", "copy"]);
    sandbox.text(&["delete", "copy", "key1"]);
    sandbox.text(&["put", "copy", "key2", "new"]);
    sandbox.text(&["put", "copy", "--escaped", "", r"\xff"]);
    sandbox.text(&["put", "copy", "k", "1", "--keyspace", "only there"]);
    let db = Db::open(sandbox.path("copy")).unwrap();
    db.put_with_expiry("key3", "value 3", SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000)).unwrap();
    db.close().unwrap();
    sandbox
}

fn diff(sandbox: &Sandbox, args: &[&str], code: i32) -> (String, String) {
    let output = sandbox.run(&[&["diff"], args].concat(), b"", code);
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn differences_are_those_of_entries() {
    let sandbox = two_stores();
    let (out, said) = diff(&sandbox, &["db", "copy"], NOT_FOUND);
    let expected = "+\tdefault\t$''\t$'\\xff'\n\
                    -\tdefault\tkey1\tvalue 1\n\
                    -\tdefault\tkey2\tvalue 2\n\
                    +\tdefault\tkey2\tnew\n\
                    -\tdefault\tkey3\tvalue 3\n\
                    +\tdefault\tkey3\tvalue 3\tuntil 2096-10-02T07:06:40.000Z\n\
                    +\tonly there\tk\t1\n";
    assert_eq!(out, expected);
    assert!(said.contains("3 equal, 1 removed, 2 added, 2 changed"), "{said}");
    // The other way round, the signs change.
    let (back, _) = diff(&sandbox, &["copy", "db"], NOT_FOUND);
    let mut signs: Vec<&str> = back.lines().map(|line| &line[..1]).collect();
    signs.sort_unstable();
    assert_eq!(signs.concat(), "+++----");
    // Equal stores, and one with itself.
    for other in ["db", "copy"] {
        let (out, said) = diff(&sandbox, &[other, other], DONE);
        assert!(out.is_empty() && said.contains(" 0 removed, 0 added, 0 changed"), "{out}{said}");
    }
}

#[test]
fn differences_can_be_limited() {
    let sandbox = two_stores();
    assert_eq!(diff(&sandbox, &["db", "copy", "--keyspace", "m"], DONE).0, "");
    assert_eq!(diff(&sandbox, &["db", "copy", "--keyspace", "only there"], NOT_FOUND).0, "+\tk\t1\n");
    diff(&sandbox, &["db", "copy", "--keyspace", "nowhere"], USAGE);
    assert_eq!(diff(&sandbox, &["db", "copy", "--count"], NOT_FOUND).0, "5\n");
    assert_eq!(
        diff(&sandbox, &["db", "copy", "--from", "key1", "--to", "key2", "--keyspace", "default"], NOT_FOUND).0,
        "-\tkey1\tvalue 1\n"
    );
    let (out, said) = diff(&sandbox, &["db", "copy", "--prefix", "key", "--limit", "1"], NOT_FOUND);
    assert!(out == "-\tdefault\tkey1\tvalue 1\n" && said.contains("perhaps more"), "{out}{said}");
    assert_eq!(diff(&sandbox, &["db", "copy", "--prefix", "key0", "--keyspace", "default"], DONE).0, "");
    // A keyspace that one of them lacks is a difference, too.
    let (out, said) = diff(&sandbox, &["db", "copy", "--prefix", "key0"], NOT_FOUND);
    assert!(out.is_empty() && said.contains("keyspace only there is only in the second store"), "{said}");
    diff(&sandbox, &["db", "copy", "--limit", "0"], USAGE);
    let (json, _) = diff(&sandbox, &["db", "copy", "--json", "--from", "key3", "--to", "key4"], NOT_FOUND);
    let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!((&first["key"], &first["old"]["deadline"]), (&"key3".into(), &serde_json::Value::Null));
    assert_eq!(first["new"]["deadline"], "2096-10-02T07:06:40.000Z");
    assert!(json.lines().last().unwrap().contains(r#""changed":1"#), "{json}");
    diff(&sandbox, &["db", "nowhere"], IO);
    // Beside the process that writes one of them, and from a shell.
    let db = Db::open(sandbox.path("db")).unwrap();
    db.put("key0", "other").unwrap();
    assert_eq!(diff(&sandbox, &["db", "copy", "--count"], NOT_FOUND).0, "6\n");
    db.close().unwrap();
    assert_eq!(sandbox.run(&["shell", "db"], b"put key0 'value 0'\ndiff copy --count\n", DONE).stdout, b"5\n");
}
