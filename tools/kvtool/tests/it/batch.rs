//! `batch`: all of its writes or none.

use crate::sandbox::{DONE, NOT_FOUND, Sandbox, USAGE};

fn batch(sandbox: &Sandbox, args: &[&str], text: &str, code: i32) -> (String, String) {
    let output = sandbox.run(&[&["batch", "db"], args].concat(), text.as_bytes(), code);
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_batch_is_one_write() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    let text = "put a 'the first'\n# what is there goes\ndelete-range --prefix key\nput key1 new --keyspace m\n\
                merge n 5 --operator add-big --keyspace c\nmerge n 2 --keyspace c\nput doc {\"x\":\n 1}\ndelete absent\n";
    let (out, _) = batch(&sandbox, &["--json"], text, DONE);
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&said["commands"], &said["seqno"]), (&7.into(), &10.into()));
    assert_eq!(sandbox.text(&["scan", "db"]), "a\tthe first\ndoc\t$'{\"x\":\\n 1}'\n");
    assert_eq!(sandbox.text(&["get", "db", "key1", "--keyspace", "m"]), "new\n");
    assert_eq!(sandbox.text(&["scan", "db", "--keyspace", "c", "--hex"]), "6e\t0000000000000007\n");
    // One batch in the log, too.
    sandbox.text(&["batch", "db", "-"]);
    let lines = (0..100).map(|i| format!("put k{i} {i}\n")).collect::<String>();
    std::fs::write(sandbox.path("lines"), lines).unwrap();
    let db = tamis::Options::new().keep_log(1 << 20, std::time::Duration::MAX).open(sandbox.path("kept")).unwrap();
    db.close().unwrap();
    sandbox.text(&["batch", "kept", "lines"]);
    assert_eq!(sandbox.text(&["count", "kept"]), "100\n");
    let seqno: u64 = sandbox.json(&["stats", "kept"])["last_seqno"].as_u64().unwrap();
    assert_eq!(seqno, 100);
}

#[test]
fn a_batch_with_a_fault_writes_nothing() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    for (line, why) in [
        ("put", "line 3: "),
        ("get key1", "line 3: "),
        ("scan", "line 3: "),
        ("begin", "line 3: "),
        ("commit", "line 3: "),
        ("exit", "line 3: "),
        ("merge a 1", "merge operator"),
        ("put 'open", "line 3: a single quote is not closed"),
        ("import x", "line 3: "),
    ] {
        let (_, said) = batch(&sandbox, &[], &format!("put a 1\ndelete key1\n{line}\nput b 1\n"), USAGE);
        assert!(said.contains(why), "{line}: {said}");
        assert_eq!(sandbox.text(&["count", "db"]), "3\n", "{line}");
    }
    sandbox.check(&["get", "db", "a"], NOT_FOUND);
    batch(&sandbox, &["absent"], "", crate::sandbox::IO);
}

#[test]
fn a_batch_works_in_a_keyspace_and_in_a_shell() {
    let sandbox = Sandbox::new();
    batch(&sandbox, &["--keyspace", "m"], "put a 1\nput b 2 --keyspace n\n", DONE);
    assert_eq!(sandbox.text(&["scan", "db", "--keyspace", "m"]), "a\t1\n");
    assert_eq!(sandbox.text(&["scan", "db", "--keyspace", "n"]), "b\t2\n");
    std::fs::write(sandbox.path("lines"), "put x 1\nput y 2\n").unwrap();
    let shell = |text: &str, code| sandbox.run(&["shell", "db"], text.as_bytes(), code);
    assert_eq!(shell("use m\nbatch lines\ncount\n", DONE).stdout, b"3\n");
    // A batch in a transaction would not be written by itself.
    let said = shell("begin\nbatch lines\n", USAGE);
    assert!(String::from_utf8_lossy(&said.stderr).contains("transaction"));
}
