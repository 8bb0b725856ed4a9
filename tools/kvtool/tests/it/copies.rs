//! Copies of a store that somebody else uses: `checkpoint`, `backup`, `backup --follow`, and one
//! repository for several stores.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tamis::Db;

use crate::sandbox::{DONE, Sandbox, USAGE};

#[test]
fn a_store_in_use_is_copied() {
    let sandbox = Sandbox::new();
    let db = Db::open(sandbox.path("db")).unwrap();
    db.put("apple", "1").unwrap();
    db.flush().unwrap();
    db.put("pear", "2").unwrap();
    assert_eq!(sandbox.json(&["checkpoint", "db", "copy"])["seqno"], 2);
    assert_eq!(sandbox.json(&["backup", "db", "backups"])["seqno"], 2);
    // The store takes no notice, and the copies are whole.
    db.put("fig", "3").unwrap();
    sandbox.check(&["restore", "backups", "restored"], DONE);
    for copy in ["copy", "restored"] {
        assert_eq!(sandbox.text(&["scan", copy]), "apple\t1\npear\t2\n");
    }
}

/// Ends a process if a test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Issue 29, fault 22: it took the lock of a store that nobody had open, and kept it.
#[test]
#[cfg(unix)]
fn a_follower_keeps_no_writer_out() {
    let sandbox = Sandbox::with_store(10, 2, &[]);
    let mut command = sandbox.command(&["backup", "db", "backups", "--follow"]);
    let mut running = Running(command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stderr.take().unwrap()).lines();
    // It follows from here on.
    assert_eq!(lines.next().unwrap().unwrap(), "generation 1");
    for i in 0..3 {
        sandbox.run(&["put", "db", "number", &i.to_string()], b"", DONE);
    }
    // One that keeps the store open is followed, too.
    let db = Db::open(sandbox.path("db")).unwrap();
    let seqno = db.put("last", "written").unwrap();
    let reached = || {
        let listed = sandbox.json(&["backups", "backups"]);
        let generations = listed["generations"].as_array().unwrap().clone();
        let numbers = generations.iter().flat_map(|of| [of["seqno"].as_u64(), of["followed_seqno"].as_u64()]);
        numbers.flatten().max()
    };
    while reached() < Some(seqno) {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(Command::new("kill").args(["-INT", &running.0.id().to_string()]).status().unwrap().success());
    assert!(running.0.wait().unwrap().success());
    let said: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(said.iter().any(|line| line.starts_with("followed up to number")), "{said:?}");
    sandbox.check(&["restore", "backups", "copy", "--seqno", &seqno.to_string()], DONE);
    assert_eq!(sandbox.text(&["get", "copy", "number"]), "2\n");
    assert_eq!(sandbox.text(&["get", "copy", "last"]), "written\n");
}

#[test]
fn a_repository_of_two_stores_says_which_one_is_meant() {
    let sandbox = Sandbox::new();
    let mut ids = Vec::new();
    for store in ["one", "two"] {
        sandbox.run(&["put", store, "name", store], b"", DONE);
        for _ in 0..2 {
            let made = sandbox.json(&["backup", store, "backups", "--keep", "1"]);
            ids.push(made["store"].as_str().unwrap().to_owned());
        }
    }
    ids.dedup();
    assert_eq!(ids.len(), 2);
    let listed = sandbox.text(&["backups", "backups"]);
    let refused = sandbox.words(&["restore", "backups", "copy"], USAGE);
    let refused_at = sandbox.words(&["restore", "backups", "copy", "--at", "2100-01-01T00:00:00Z"], USAGE);
    for (id, store) in ids.iter().zip(["one", "two"]) {
        assert!(listed.contains(id) && refused.contains(id) && refused_at.contains(id), "{listed}{refused}");
        assert!(refused.contains(&format!("/{store}")), "{refused}");
        sandbox.check(&["restore", "backups", &format!("of-{store}"), "--store", id], DONE);
        assert_eq!(sandbox.text(&["get", &format!("of-{store}"), "name"]), format!("{store}\n"));
    }
    assert!(!sandbox.path("copy").exists());
    sandbox.words(&["restore", "backups", "copy", "--store", "0123456789abcdef"], USAGE);
    sandbox.words(&["restore", "backups", "copy", "--store", "one"], USAGE);
    // What is left of a store that is no more goes only by name.
    sandbox.check(&["backups", "backups", "--forget", &ids[0]], DONE);
    sandbox.check(&["restore", "backups", "copy"], DONE);
    assert_eq!(sandbox.text(&["get", "copy", "name"]), "two\n");
}

/// A store with entries of all kinds in the keyspace `users`.
fn with_users() -> Sandbox {
    let sandbox = Sandbox::with_store(10, 1, &[]);
    let create =
        ["create-keyspace", "db", "users", "--ttl", "86400", "--operator", "append", "--separate-values", "500"];
    sandbox.check(&create, DONE);
    let users = |words: &[&str]| sandbox.check(&[words, &["--keyspace", "users"]].concat(), DONE);
    for i in 0..30 {
        users(&["put", "db", &format!("user{i:02}"), &format!("name {i}")]);
    }
    users(&["put", "db", "long", &"l".repeat(1000)]);
    users(&["merge", "db", "user01", " merged"]);
    users(&["merge", "db", "merged alone", "x"]);
    users(&["delete", "db", "user02"]);
    users(&["delete-range", "db", "--from", "user10", "--to", "user20"]);
    sandbox
}

/// All that a keyspace has, with its options, but not its name.
fn exported(sandbox: &Sandbox, db: &str, keyspace: &str) -> String {
    let all = sandbox.text(&["export", db, "--keyspace", keyspace, "--format", "jsonl"]);
    all.replacen(&format!("\"keyspace\":\"{keyspace}\""), "", 1)
}

#[test]
fn one_keyspace_comes_back_into_a_store_that_has_gone_on() {
    let sandbox = with_users();
    sandbox.check(&["backup", "db", "backups"], DONE);
    let first = exported(&sandbox, "db", "users");
    assert!(first.lines().count() > 20 && first.contains("deadline") && first.contains("ttl_ms"), "{first}");
    sandbox.check(&["delete-range", "db", "--all", "--keyspace", "users"], DONE);
    sandbox.check(&["put", "db", "user99", "second", "--keyspace", "users"], DONE);
    sandbox.check(&["backup", "db", "backups"], DONE);
    sandbox.check(&["put", "db", "key1", "goes on"], DONE);

    // What is there stays, and the message says what to do.
    let refused = sandbox.words(&["restore", "backups", "db", "--keyspace", "users"], USAGE);
    assert!(refused.contains("--as NAME") && refused.contains("kvtool drop-keyspace db users"), "{refused}");
    let refused = sandbox.words(&["restore", "backups", "db", "--keyspace", "default"], USAGE);
    assert!(refused.contains("--as NAME") && !refused.contains("drop-keyspace"), "{refused}");
    let refused = sandbox.words(&["restore", "backups", "db", "--keyspace", "absent"], USAGE);
    assert!(refused.contains("\"users\""), "{refused}");

    let restore = ["restore", "backups", "db", "--keyspace", "users", "--generation", "1", "--as", "old users"];
    let restored = sandbox.json(&restore);
    assert_eq!(restored["keyspace"]["name"], "old users");
    assert_eq!(exported(&sandbox, "db", "old users"), first);
    assert_eq!(sandbox.text(&["get", "db", "key1"]), "goes on\n");
    assert_eq!(sandbox.text(&["scan", "db", "--keyspace", "users"]), "user99\tsecond\n");
    sandbox.check(&["drop-keyspace", "db", "users"], DONE);
    sandbox.check(&["restore", "backups", "db/", "--keyspace", "users"], DONE);
    assert_eq!(sandbox.text(&["scan", "db", "--keyspace", "users"]), "user99\tsecond\n");
    // Into a new store, too.
    sandbox.check(&["restore", "backups", "new", "--keyspace", "users", "--generation", "1"], DONE);
    assert_eq!(exported(&sandbox, "new", "users"), first);
    assert_eq!(sandbox.text(&["count", "new"]), "0\n");
    sandbox.check(&["verify", "db", "new"], DONE);
    assert!(!sandbox.path("db.restoring").exists() && !sandbox.path("new.restoring").exists());
}

#[test]
fn one_keyspace_is_backed_up_alone() {
    let sandbox = with_users();
    sandbox.check(&["compact", "db"], DONE);
    sandbox.check(&["backup", "db", "backups"], DONE);
    let made = sandbox.json(&["backup", "db", "backups", "--keyspace", "users"]);
    assert!(made["copied_files"].as_u64() <= Some(3), "its tables are there: {made}");
    sandbox.words(&["backup", "db", "backups", "--keyspace", "absent"], USAGE);
    let listed = sandbox.text(&["backups", "backups", "--format", "plain"]);
    assert_eq!(listed.matches("keyspace users").count(), 1, "{listed}");
    let listed = sandbox.json(&["backups", "backups"]);
    assert_eq!(
        (&listed["generations"][0]["keyspace"], &listed["generations"][1]["keyspace"]),
        (&().into(), &"users".into())
    );
    // The repository has two stores then.
    let refused = sandbox.words(&["restore", "backups", "copy"], USAGE);
    assert!(refused.contains("keyspace users of "), "{refused}");
    sandbox.check(&["restore", "backups", "copy", "--generation", "2"], DONE);
    assert_eq!(exported(&sandbox, "copy", "users"), exported(&sandbox, "db", "users"));
    assert_eq!(sandbox.text(&["count", "copy"]), "0\n");
    // And one again when the other is forgotten.
    let store = listed["generations"][0]["store"].as_str().unwrap();
    sandbox.check(&["backups", "backups", "--forget", store], DONE);
    sandbox.check(&["backups", "backups", "--verify"], DONE);
    sandbox.check(&["restore", "backups", "again"], DONE);
    sandbox.check(&["restore", "backups", "db", "--keyspace", "users", "--as", "copy"], DONE);
    assert_eq!(exported(&sandbox, "db", "copy"), exported(&sandbox, "again", "users"));
}

#[test]
fn a_killed_restore_of_a_keyspace_leaves_none_and_can_be_repeated() {
    let sandbox = Sandbox::new();
    let lines: String = (0..60_000).map(|i| format!("key{i:06}\t{}\n", "v".repeat(100))).collect();
    sandbox.run(&["import", "db", "--keyspace", "users"], lines.as_bytes(), DONE);
    sandbox.check(&["backup", "db", "backups"], DONE);
    sandbox.check(&["put", "other", "key", "stays"], DONE);
    let mut random = fastrand::Rng::with_seed(1);
    let mut killed = 0;
    for _ in 0..8 {
        let mut command = sandbox.command(&["restore", "backups", "other", "--keyspace", "users"]);
        let mut child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(random.u64(1..150)));
        let _ = child.kill();
        let is_done = child.wait().unwrap().success();
        assert_eq!(sandbox.text(&["get", "other", "key"]), "stays\n");
        let keyspaces = sandbox.text(&["keyspaces", "other", "--format", "plain"]);
        match keyspaces.lines().any(|line| line.starts_with("users\t")) {
            true => {
                assert_eq!(sandbox.text(&["count", "other", "--keyspace", "users"]), "60000\n");
                sandbox.check(&["drop-keyspace", "other", "users"], DONE);
            }
            false => {
                assert!(!is_done);
                killed += 1;
            }
        }
    }
    assert!(killed > 0);
    sandbox.check(&["restore", "backups", "other", "--keyspace", "users"], DONE);
    assert_eq!(sandbox.text(&["count", "other", "--keyspace", "users"]), "60000\n");
    let keyspaces = sandbox.json(&["keyspaces", "other"]);
    assert_eq!(keyspaces["keyspaces"].as_array().unwrap().len(), 2, "{keyspaces}");
    assert!(!sandbox.path("other.restoring").exists());
}
