//! `repair`, and the other commands that continue past damage.

use std::fs;
use std::path::{Path, PathBuf};

use crate::sandbox::{CORRUPTION, DONE, IO, Sandbox};

/// A sandbox whose store has 2,000 keys in one table of several blocks.
fn with_store() -> Sandbox {
    let sandbox = Sandbox::with_store(2000, 4, &[]);
    sandbox.check(&["compact", "db"], DONE);
    sandbox
}

/// Content of the store's files, without `LOCK`: it names the process that held it last.
fn files(sandbox: &Sandbox) -> Vec<(PathBuf, Vec<u8>)> {
    let files = sandbox.files("db").into_iter();
    files.filter(|(path, _)| !path.ends_with("LOCK")).collect()
}

fn flip(path: &Path, offset: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn sound_store_needs_no_repair() {
    let sandbox = with_store();
    let before = files(&sandbox);
    assert_eq!(sandbox.words(&["repair", "db"], DONE), "nothing to repair\n");
    assert_eq!(files(&sandbox), before);
    // A dry run does not even take the lock.
    fs::remove_file(sandbox.path("db/LOCK")).unwrap();
    assert_eq!(sandbox.words(&["repair", "db", "--dry-run"], DONE), "nothing to repair\n");
    assert!(!sandbox.path("db/LOCK").exists());
    assert_eq!(sandbox.json(&["repair", "db"])["sound"], true);
    sandbox.check(&["repair", "nowhere"], IO);
    assert!(!sandbox.path("nowhere").exists());
}

#[test]
fn damaged_store_is_repaired_and_says_what_is_lost() {
    let sandbox = with_store();
    let table = sandbox.file("sst");
    flip(&table, 5000);
    sandbox.check(&["scan", "db"], CORRUPTION);
    let before = files(&sandbox);
    let dry = sandbox.run(&["repair", "db", "--dry-run"], b"", CORRUPTION);
    assert_eq!(files(&sandbox), before);
    let dry = String::from_utf8(dry.stdout).unwrap();
    assert!(dry.contains("\nlost: keyspace \"default\", keys \"key0"), "{dry}");
    sandbox.check(&["repair", "db"], CORRUPTION);
    sandbox.check(&["verify", "db"], DONE);
    let rows = sandbox.text(&["scan", "db"]).lines().count();
    assert!((1500..2000).contains(&rows), "{rows}");
    assert!(sandbox.path("db/lost").join(table.file_name().unwrap()).exists());
    assert_eq!(sandbox.words(&["repair", "db"], DONE), "nothing to repair\n");
    sandbox.check(&["put", "db", "key", "value"], DONE);
    assert_eq!(sandbox.text(&["get", "db", "key"]), "value\n");
}

/// The exit code of a command whose standard output is a closed pipe.
fn code_without_reader(sandbox: &Sandbox, args: &[&str]) -> Option<i32> {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    sandbox.command(args).stdout(writer).stderr(std::process::Stdio::null()).status().unwrap().code()
}

#[test]
fn exit_code_reports_losses_when_the_output_pipe_is_closed() {
    let sandbox = with_store();
    flip(&sandbox.file("sst"), 300);
    assert_eq!(code_without_reader(&sandbox, &["scan", "db", "--skip-damaged"]), Some(CORRUPTION));
    assert_eq!(code_without_reader(&sandbox, &["repair", "db", "--dry-run"]), Some(CORRUPTION));
    assert_eq!(code_without_reader(&sandbox, &["repair", "db"]), Some(CORRUPTION));
    assert_eq!(code_without_reader(&sandbox, &["repair", "db"]), Some(DONE));
}

#[test]
fn store_without_current_is_repaired_without_loss() {
    let sandbox = with_store();
    let rows = sandbox.text(&["scan", "db"]);
    fs::remove_file(sandbox.path("db/CURRENT")).unwrap();
    sandbox.check(&["scan", "db"], CORRUPTION);
    // Nothing is lost, but a repair is needed.
    sandbox.run(&["repair", "db", "--dry-run"], b"", CORRUPTION);
    sandbox.check(&["repair", "db"], DONE);
    assert_eq!(sandbox.text(&["scan", "db"]), rows);
}

#[test]
fn scan_skips_damaged_blocks_if_asked() {
    let sandbox = with_store();
    let whole = sandbox.text(&["scan", "db"]);
    assert_eq!(sandbox.text(&["scan", "db", "--skip-damaged"]), whole);
    let part = ["--from", "key0100", "--to", "key0200"];
    let of_part = sandbox.text(&[&["scan", "db"][..], &part].concat());
    flip(&sandbox.file("sst"), 30_000);
    let output = sandbox.run(&["scan", "db", "--skip-damaged"], b"", CORRUPTION);
    let (rows, words) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(words.contains("skipped keys key") && words.contains("skipped 1 damaged range"), "{words}");
    assert!(rows.lines().count() < 2000 && rows.lines().all(|row| whole.contains(row)));
    let last = whole.lines().last().unwrap();
    assert!(rows.ends_with(&format!("{last}\n")), "the scan continues after the damage");
    // An undamaged range is complete.
    assert_eq!(sandbox.text(&[&["scan", "db", "--skip-damaged"][..], &part].concat()), of_part);
    assert_eq!(sandbox.text(&["scan", "db", "--skip-damaged", "--limit", "3"]).lines().count(), 3);
}

#[test]
fn entries_of_a_table_are_listed_past_damage() {
    let sandbox = with_store();
    let table = sandbox.file("sst");
    let path = table.to_str().unwrap();
    let entries = |code: i32| {
        let output = sandbox.run(&["sst", path, "--entries"], b"", code);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| line.contains("\tput\t")).count()
    };
    assert_eq!(entries(DONE), 2000);
    flip(&table, 5000);
    assert!((1500..2000).contains(&entries(CORRUPTION)));
    flip(&table, 5000);
    // Damage the footer.
    let len = fs::read(&table).unwrap().len();
    flip(&table, len - 60);
    assert_eq!(entries(CORRUPTION), 2000);
}
