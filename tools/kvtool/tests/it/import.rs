//! `import`: lines without an entry, and resuming after an interruption.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use tamis::Db;

use crate::sandbox::{DONE, INTERRUPTED, Sandbox, USAGE};

#[test]
fn empty_lines_are_skipped_and_counted() {
    let sandbox = Sandbox::new();
    let said = sandbox.run(&["import", "db"], b"\nk\tv\n\n\nword\n", DONE).stderr;
    assert!(String::from_utf8_lossy(&said).contains("3 empty lines of standard input skipped"), "{said:?}");
    assert_eq!(sandbox.text(&["scan", "db"]), "k\tv\nword\t\n");
    let said = sandbox.run(&["get", "db", "--keys-from", "-"], b"\nword\n", DONE).stderr;
    assert!(String::from_utf8_lossy(&said).contains("asked 1, found 1"), "{said:?}");
}

#[test]
fn a_value_without_a_key_is_refused_with_file_and_line() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("rows.tsv"), "k\tv\n\tlost\n").unwrap();
    let said = sandbox.words(&["import", "db", "rows.tsv"], USAGE);
    assert!(said.contains("line 2 of rows.tsv") && said.contains("$''"), "{said}");
    assert!(said.contains("the first line of rows.tsv is in the store; resume with --skip 1"), "{said}");
    assert_eq!(sandbox.text(&["scan", "db"]), "k\tv\n");
    fs::write(sandbox.path("rows.tsv"), "k\tv\n$''\tempty\n").unwrap();
    sandbox.words(&["import", "db", "rows.tsv", "--skip", "1"], DONE);
    assert_eq!(sandbox.text(&["scan", "db"]), "$''\tempty\nk\tv\n");
}

#[test]
fn imported_lines_are_skipped_on_request() {
    let sandbox = Sandbox::new();
    sandbox.run(&["import", "db", "--skip", "2"], b"a\n\nb\nc\n", DONE);
    assert_eq!(sandbox.text(&["scan", "db"]), "b\t\nc\t\n");
    let said = sandbox.run(&["import", "new", "--skip", "3"], b"a\nb\n", USAGE).stderr;
    assert!(String::from_utf8_lossy(&said).contains("standard input has 2 lines"), "{said:?}");
    assert!(!sandbox.path("new").exists());
    fs::write(sandbox.path("rows.jsonl"), "{\"key\": \"a\"}\n\n{\"key\": \"b\"}\n").unwrap();
    sandbox.words(&["import", "json", "rows.jsonl", "--skip", "2"], DONE);
    assert_eq!(sandbox.text(&["scan", "json"]), "b\t\n");
}

/// Lines read before the import is interrupted while it waits for more.
const LINES: u64 = 2500;
/// Lines certainly in the store by then: whole batches.
const WRITTEN: u64 = 2000;

fn line(i: u64) -> String {
    format!("{i:06}\tvalue {i}\n")
}

#[test]
fn an_interrupted_import_says_how_to_resume() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["import", "db", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all((1..=LINES).map(line).collect::<String>().as_bytes()).unwrap();
    // When the last line of the whole batches can be read, the import has written them all and
    // waits for input.
    let is_written = || {
        let db = Db::open_read_only(sandbox.path("db")).ok()?;
        db.get(format!("{WRITTEN:06}")).unwrap()
    };
    while is_written().is_none() {
        assert!(child.try_wait().unwrap().is_none(), "the import ended by itself");
        std::thread::yield_now();
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    drop(input);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(INTERRUPTED), "{said}");
    let (_, skip) = said.trim_end().rsplit_once("resume with --skip ").unwrap();
    let skip: u64 = skip.parse().unwrap();
    assert!((WRITTEN..=LINES).contains(&skip), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["skip"].as_u64(), report["lines"].as_u64()), (Some(skip), Some(skip)));
    let expected = |lines: u64| (1..=lines).map(line).collect::<String>();
    assert_eq!(sandbox.text(&["scan", "db"]), expected(skip), "just the lines that it named are in");

    sandbox.run(&["import", "db", "--skip", &skip.to_string()], expected(LINES + 10).as_bytes(), DONE);
    assert_eq!(sandbox.text(&["scan", "db"]), expected(LINES + 10));
}

#[test]
fn an_interrupted_sorted_import_leaves_no_tables() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["import", "db", "--sorted"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(line(1).as_bytes()).unwrap();
    let directories = || {
        let files = fs::read_dir(sandbox.dir()).unwrap().map(|file| file.unwrap().path());
        files
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("kvtool-import-"))
            .collect::<Vec<_>>()
    };
    while directories().is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "the import ended by itself");
        std::thread::yield_now();
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    drop(input);
    assert_eq!(output.status.code(), Some(INTERRUPTED));
    assert_eq!(directories(), Vec::<std::path::PathBuf>::new());
    assert_eq!(sandbox.text(&["scan", "db"]), "");
}
