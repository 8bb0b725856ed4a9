//! `changes`: what is printed, beside a process that writes and without, and what is said when the
//! log no longer has it.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tamis::operator::Append;
use tamis::{Db, KeyspaceOptions, Options, WriteBatch};

use crate::sandbox::{DONE, IO, NOT_FOUND, Sandbox, USAGE};

/// A store, open in this process, with changes 1 to 8.
fn with_changes() -> (Sandbox, Db) {
    let sandbox = Sandbox::new();
    let db = Options::new().keep_log(1 << 20, Duration::MAX).open(sandbox.path("db")).unwrap();
    let users = db.keyspace("users").unwrap();
    let notes = db.keyspace_with("notes", KeyspaceOptions::new().merge_operator(Append)).unwrap();
    db.put("apple", "red").unwrap();
    let mut batch = WriteBatch::new();
    batch.put_in(&users, "id7", "Ann\tLee");
    batch.delete("apple");
    db.write(batch).unwrap();
    notes.merge("n", "x").unwrap();
    db.put([0xff, b'\n'], vec![b'v'; 1000]).unwrap();
    db.put_with_expiry("soon", "gone", SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000)).unwrap();
    let mut batch = WriteBatch::new();
    batch.delete_range_in(&users, "b".."d");
    batch.delete_range_in(&users, "x"..);
    db.write(batch).unwrap();
    (sandbox, db)
}

#[test]
fn changes_come_with_number_keyspace_operation_key_and_value() {
    let (sandbox, db) = with_changes();
    let expected = format!(
        "1\tdefault\tput\tapple\tred\n\
         2\tusers\tput\tid7\t$'Ann\\tLee'\n\
         3\tdefault\tdelete\tapple\n\
         4\tnotes\tmerge\tn\tx\n\
         5\tdefault\tput\t$'\\xff\\n'\t{}… (1,000 bytes)\n\
         6\tdefault\tput\tsoon\tgone\tuntil 4000000000.000\n\
         7\tusers\tdelete range\tb\td\n\
         8\tusers\tdelete range\tx\n",
        "v".repeat(60)
    );
    assert_eq!(sandbox.text(&["changes", "db"]), expected, "beside the process that writes");
    db.close().unwrap();
    let before = sandbox.files("db");
    assert_eq!(sandbox.text(&["changes", "db"]), expected);
    assert_eq!(sandbox.files("db"), before);
    let lines: Vec<&str> = expected.lines().collect();
    assert_eq!(sandbox.text(&["changes", "db", "--since", "3"]).lines().collect::<Vec<_>>(), lines[3..]);
    assert_eq!(sandbox.text(&["changes", "db", "--since", "8"]), "");
    let limited = |more: &[&str]| sandbox.text(&[&["changes", "db"], more].concat()).lines().count();
    assert_eq!((limited(&["--limit", "0"]), limited(&["--limit", "2"]), limited(&["--limit", "9"])), (0, 3, 8));
    assert_eq!(limited(&["--limit", "3", "--follow"]), 4);
    let of_users = sandbox.text(&["changes", "db", "--keyspace", "users", "--limit", "2"]);
    assert_eq!(of_users.lines().collect::<Vec<_>>(), [lines[1], lines[6], lines[7]]);
    let full = sandbox.text(&["changes", "db", "--since", "4", "--full", "--hex"]);
    assert_eq!(full.lines().next(), Some(format!("5\tdefault\tput\tff0a\t{}", "76".repeat(1000)).as_str()));
}

#[test]
fn json_has_an_object_for_each_batch_and_shortens_nothing() {
    let (sandbox, _db) = with_changes();
    let objects = |text: String| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    let batches = objects(sandbox.text(&["changes", "db", "--json"]));
    assert_eq!(batches.len(), 6);
    assert_eq!(
        batches[1],
        json!({ "schema": 1, "first": 2, "last": 3, "operations": [
            { "seqno": 2, "keyspace": "users", "kind": "put", "key": "id7", "value": "Ann\tLee" },
            { "seqno": 3, "keyspace": "default", "kind": "delete", "key": "apple" },
        ] })
    );
    assert_eq!(batches[2]["operations"][0]["kind"], "merge");
    let put = &batches[3]["operations"][0];
    assert_eq!((&put["key"], put["value"].as_str().map(str::len)), (&json!({ "hex": "ff0a" }), Some(1000)));
    assert_eq!(batches[4]["operations"][0]["deadline"], "4000000000.000");
    assert_eq!(
        batches[5]["operations"],
        json!([
            { "seqno": 7, "keyspace": "users", "kind": "delete range", "from": "b", "to": "d" },
            { "seqno": 8, "keyspace": "users", "kind": "delete range", "from": "x", "to": null },
        ])
    );
    // The numbers are those of the whole batch.
    let of_users = objects(sandbox.text(&["changes", "db", "--json", "--keyspace", "users", "--limit", "1"]));
    assert_eq!((of_users.len(), &of_users[0]["last"]), (1, &json!(3)));
    assert_eq!(of_users[0]["operations"].as_array().map(Vec::len), Some(1));
}

#[test]
fn positions_that_the_log_does_not_have_are_refused_in_words() {
    let (sandbox, db) = with_changes();
    let said = sandbox.words(&["changes", "db", "--since", "9"], USAGE);
    assert!(said.contains("no change 9") && said.contains("number 8"), "{said}");
    let said = sandbox.words(&["changes", "db", "--since", "2"], USAGE);
    assert!(said.contains("within the batch from 2 to 3"), "{said}");
    db.close().unwrap();
    // Opened without `keep_log`, the store removes what tables have.
    let db = Db::open(sandbox.path("db")).unwrap();
    db.flush().unwrap();
    db.put("later", "1").unwrap();
    let said = sandbox.words(&["changes", "db", "--since", "3"], NOT_FOUND);
    assert!(said.contains("change 4 is no longer in the log") && said.contains("--since 8"), "{said}");
    let all = sandbox.run(&["changes", "db"], b"", DONE);
    assert_eq!(String::from_utf8(all.stdout).unwrap(), "9\tdefault\tput\tlater\t1\n");
    assert!(String::from_utf8(all.stderr).unwrap().contains("begins with number 9"));
    sandbox.words(&["changes", "nowhere"], IO);
}

#[test]
fn following_prints_what_is_written_meanwhile() {
    let (sandbox, db) = with_changes();
    let mut child =
        sandbox.command(&["changes", "db", "--since", "6", "--follow"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.by_ref().take(2).last().unwrap(), "8\tusers\tdelete range\tx");
    for i in 9..40 {
        assert_eq!(db.put("k", i.to_string()).unwrap(), i);
        if i % 10 == 0 {
            db.flush().unwrap();
        }
        if i % 4 == 0 {
            assert_eq!(lines.by_ref().take(4).last(), Some(format!("{i}\tdefault\tput\tk\t{i}")));
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn help_names_the_command_and_its_flags() {
    let sandbox = Sandbox::new();
    assert!(sandbox.text(&["--help"]).contains("changes"));
    let help = sandbox.text(&["changes", "--help"]);
    for flag in ["--since <N>", "--limit <LIMIT>", "--follow", "--full", "--json", "keep_log"] {
        assert!(help.contains(flag), "{help}");
    }
}
