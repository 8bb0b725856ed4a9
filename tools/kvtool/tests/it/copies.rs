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
