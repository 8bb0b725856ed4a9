//! Errors name the cure.

use std::fs;
use std::path::Path;

use tamis::Db;

use crate::sandbox::{CORRUPTION, DONE, IO, Sandbox};

fn flip(path: &Path, offset: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset] ^= 2;
    fs::write(path, bytes).unwrap();
}

/// The cure is one: the store opens again, or the rest is printed.
#[test]
fn damage_names_a_command_that_cures_it() {
    type Harm = fn(&Sandbox);
    let harms: [(&str, Harm, bool); 6] = [
        ("CURRENT lost", |sandbox| fs::remove_file(sandbox.path("db/CURRENT")).unwrap(), false),
        ("CURRENT damaged", |sandbox| flip(&sandbox.path("db/CURRENT"), 3), false),
        ("manifest lost", |sandbox| fs::remove_file(manifest(sandbox)).unwrap(), false),
        ("block damaged", |sandbox| flip(&sandbox.file("sst"), 64 + 500), true),
        ("header damaged", |sandbox| flip(&sandbox.file("sst"), 8), true),
        ("table lost", |sandbox| fs::remove_file(sandbox.file("sst")).unwrap(), true),
    ];
    for (what, harm, opens) in harms {
        let sandbox = Sandbox::with_store(100, 3, &[]);
        harm(&sandbox);
        let said = sandbox.words(&["get", "db", "key001"], CORRUPTION);
        assert!(said.contains("`kvtool repair "), "{what}: {said}");
        assert_eq!(said.contains("--skip-damaged` prints what can be read"), opens, "{what}: {said}");
        if opens {
            let output = sandbox.command(&["scan", "db", "--skip-damaged"]).output().unwrap();
            assert!([DONE, CORRUPTION].map(Some).contains(&output.status.code()), "{what}");
        }
        let code = sandbox.command(&["repair", "db"]).output().unwrap().status.code().unwrap();
        assert!([DONE, CORRUPTION].contains(&code), "{what}: {code}");
        sandbox.run(&["scan", "db"], b"", DONE);
    }
}

fn manifest(sandbox: &Sandbox) -> std::path::PathBuf {
    let is_manifest = |path: &Path| path.file_name().unwrap().to_str().unwrap().starts_with("MANIFEST");
    sandbox.files("db").into_keys().find(|path| is_manifest(path)).unwrap()
}

#[test]
fn a_locked_store_names_what_works_beside_the_writer_and_that_does() {
    let sandbox = Sandbox::with_store(100, 3, &[]);
    let db = Db::open(sandbox.path("db")).unwrap();
    let said = sandbox.words(&["put", "db", "k", "v"], IO);
    let (_, commands) = said.trim_end().split_once("work the commands that only read: ").unwrap();
    let named: Vec<&str> = commands.split(", ").collect();
    let calls: [&[&str]; 19] = [
        &["get", "db", "key001"],
        &["scan", "db"],
        &["count", "db"],
        &["size", "db"],
        &["diff", "db", "db"],
        &["dump", "db/CURRENT"],
        &["filter", "advise", "db"],
        &["watch", "db", "--count", "1", "--interval", "0.05"],
        &["export", "db"],
        &["stats", "db"],
        &["report", "db"],
        &["explain", "db", "key001"],
        &["levels", "db"],
        &["keyspaces", "db"],
        &["changes", "db"],
        &["verify", "db"],
        &["sst-build", "db", "tables"],
        &["backup", "db", "backups"],
        &["checkpoint", "db", "copy"],
    ];
    let is_of = |call: &[&str], name: &str| call.join(" ").starts_with(&format!("{name} "));
    for call in calls.iter().filter(|call| named.iter().any(|name| is_of(call, name))) {
        sandbox.run(call, b"k\tv\n", DONE);
    }
    assert!(named.iter().all(|name| calls.iter().any(|call| is_of(call, name))), "{named:?}");
    db.close().unwrap();
}
