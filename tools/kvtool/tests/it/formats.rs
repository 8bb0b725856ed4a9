//! `import` and `export`: every format, malformed input, several files, dry runs, and files that
//! are replaced whole or not at all.

use std::collections::BTreeMap;
use std::fs;

use fastrand::Rng;
use tamis::Db;

use crate::sandbox::{DONE, INTERRUPTED, IO, Sandbox, USAGE};

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn entries(sandbox: &Sandbox, db: &str) -> Entries {
    let db = Db::open_read_only(sandbox.path(db)).unwrap();
    let snapshot = db.snapshot();
    snapshot.iter().map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

/// Random bytes, with those favoured that have a meaning in some format.
fn random_bytes(random: &mut Rng, with_nul: bool) -> Vec<u8> {
    const SPECIAL: &[u8] = b"$'\\\t\n\r,\"\xef\xbb\xbf {}tnx";
    let len = random.usize(..10);
    let byte = |random: &mut Rng| match random.bool() {
        true => SPECIAL[random.usize(..SPECIAL.len())],
        false => random.u8(u8::from(!with_nul)..),
    };
    (0..len).map(|_| byte(random)).collect()
}

/// A store `db` with random entries, and what is in it.
fn store_of_any_bytes(sandbox: &Sandbox, with_nul: bool) -> Entries {
    let seed = fastrand::get_seed();
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let mut bytes = || random_bytes(&mut random, with_nul);
    let mut expected: Entries = (0..2000).map(|_| (bytes(), bytes())).collect();
    for special in
        ["", "\t", "\n", "\r", "\r\n", "\"", "\"\"", ",", "$''", "$'x'", "\u{feff}", " a ", "{\"hex\": \"00\"}"]
    {
        expected.insert(special.into(), special.into());
        expected.insert(format!("empty value of {special}").into(), Vec::new());
    }
    let db = Db::open(sandbox.path("db")).unwrap();
    for (key, value) in &expected {
        db.put(key, value).unwrap();
    }
    db.close().unwrap();
    expected
}

const FORMATS: [&str; 4] = ["tsv", "csv", "jsonl", "nul"];
const FORMS: [&[&str]; 3] = [&[], &["--escaped"], &["--hex"]];

#[test]
fn any_bytes_survive_every_format_and_form() {
    let sandbox = Sandbox::new();
    let expected = store_of_any_bytes(&sandbox, true);
    for format in FORMATS {
        for form in FORMS.iter().filter(|form| format != "nul" || !form.is_empty()) {
            let (file, copy) = (format!("out.{format}"), format!("copy {format} {form:?}"));
            sandbox.words(&[&["export", "db", &file], *form].concat(), DONE);
            let piped = sandbox.check(&[&["export", "db", "--format", format], *form].concat(), DONE);
            assert!(fs::read(sandbox.path(&file)).unwrap() == piped, "{format} {form:?}");
            sandbox.words(&[&["import", &copy, &file], *form].concat(), DONE);
            assert!(entries(&sandbox, &copy) == expected, "{format} {form:?}");
        }
    }
}

#[test]
fn nul_pairs_hold_any_bytes_but_nul() {
    let sandbox = Sandbox::new();
    let expected = store_of_any_bytes(&sandbox, false);
    sandbox.words(&["export", "db", "out.nul"], DONE);
    sandbox.words(&["import", "copy", "out.nul"], DONE);
    assert!(entries(&sandbox, "copy") == expected);
}

#[test]
fn an_entry_that_the_format_cannot_hold_is_named_and_the_old_file_stays() {
    let sandbox = Sandbox::new();
    sandbox.run(&["import", "db", "--escaped"], b"a\t1\nb\tx\\x00y\nc\t2\n", DONE);
    fs::write(sandbox.path("out.nul"), "old").unwrap();
    let said = sandbox.words(&["export", "db", "out.nul"], USAGE);
    assert!(said.contains("entry 2 of keyspace \"default\", key b,") && said.contains("its value has a NUL"), "{said}");
    assert_eq!(fs::read(sandbox.path("out.nul")).unwrap(), b"old");
    assert_eq!(names(&sandbox, ""), ["db", "out.nul"], "no temporary file is left");
    let piped = sandbox.check(&["export", "db", "--format", "nul", "--prefix", "c"], DONE);
    assert_eq!(piped, b"c\x002\0");
}

/// The names in a directory, sorted.
fn names(sandbox: &Sandbox, dir: &str) -> Vec<String> {
    let entries = fs::read_dir(sandbox.path(dir)).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The reader and the writer of the crate `csv` are the judges of what CSV is.
#[test]
fn other_programs_read_our_csv_and_write_what_we_read() {
    let sandbox = Sandbox::new();
    let expected = store_of_any_bytes(&sandbox, true);
    let ours = sandbox.check(&["export", "db", "--format", "csv"], DONE);
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&ours[..]);
    let read = reader.byte_records().map(Result::unwrap).inspect(|record| assert_eq!(record.len(), 2));
    let read: Entries = read.map(|record| (record[0].to_vec(), record[1].to_vec())).collect();
    assert!(read == expected);
    for terminator in [csv::Terminator::CRLF, csv::Terminator::Any(b'\n')] {
        let mut theirs = Vec::new();
        let mut writer = csv::WriterBuilder::new().terminator(terminator).from_writer(&mut theirs);
        // A byte order mark at the beginning of a file is not part of the first key.
        for (key, value) in &expected {
            writer.write_record([key, value]).unwrap();
        }
        drop(writer);
        let copy = format!("copy {terminator:?}");
        sandbox.run(&["import", &copy, "--format", "csv"], &theirs, DONE);
        assert!(entries(&sandbox, &copy) == expected, "{terminator:?}");
    }
}

#[test]
fn empty_files_crlf_and_a_missing_last_line_end_are_read() {
    let sandbox = Sandbox::new();
    for format in FORMATS {
        let said = sandbox.run(&["import", "empty", "--format", format], b"", DONE).stderr;
        assert!(String::from_utf8_lossy(&said).contains("0 keys"), "{said:?}");
    }
    assert!(entries(&sandbox, "empty").is_empty());
    for (format, text, value) in [
        ("tsv", &b"a\tb\r\nk\tv"[..], &b"b\r"[..]),
        ("csv", b"a,b\r\nk,v", b"b"),
        ("jsonl", b"{\"key\": \"a\", \"value\": \"b\"}\r\n{\"key\": \"k\", \"value\": \"v\"}", b"b"),
        ("nul", b"a\0b\r\n\0k\0v", b"b\r\n"),
    ] {
        sandbox.run(&["import", format, "--format", format], text, DONE);
        let expected = [(b"a".to_vec(), value.to_vec()), (b"k".to_vec(), b"v".to_vec())];
        assert_eq!(entries(&sandbox, format), Entries::from(expected), "{format}");
    }
}

#[test]
fn malformed_records_are_named_and_a_dry_run_names_them_all() {
    let sandbox = Sandbox::new();
    let cases = [
        ("rows.tsv", "a\t1\n\tno key\nb\t2\n", "line 2 of rows.tsv is not valid", 1),
        ("rows.csv", "a,1\nb,2,3\n\"c\"d,4\ne,5\n", "record 2 of rows.csv, at byte 4, is not valid", 2),
        ("open.csv", "a,1\nb,\"2\nc,3\n", "record 2 of open.csv, at byte 4, is not valid", 1),
        ("rows.jsonl", "{\"key\": \"a\"}\n{\"key\": 1}\n{\n", "line 2 of rows.jsonl is not valid", 2),
        ("rows.nul", "a\x001\0b", "record 2 of rows.nul, at byte 4, is not valid", 1),
    ];
    for (i, (file, text, why, faults)) in cases.into_iter().enumerate() {
        fs::write(sandbox.path(file), text).unwrap();
        let dry = sandbox.words(&["import", "none", file, "--dry-run"], USAGE);
        assert!(dry.contains(why) && dry.contains("nothing was written"), "{dry}");
        assert_eq!(dry.matches("is not valid").count(), faults, "{dry}");
        let db = format!("db{i}");
        let said = sandbox.words(&["import", &db, file], USAGE);
        assert!(said.contains(why) && said.contains("resume with --skip 1"), "{said}");
        assert_eq!(sandbox.text(&["scan", &db]).split('\t').next(), Some("a"));
    }
    assert!(!sandbox.path("none").exists());
}

#[test]
fn keys_longer_than_the_stores_limit_are_refused_in_every_format() {
    let sandbox = Sandbox::new();
    let long = "k".repeat((1 << 20) + 1);
    for (format, text) in [
        ("tsv", format!("{long}\tv\n")),
        ("csv", format!("\"{long}\",v\n")),
        ("jsonl", format!("{{\"key\": \"{long}\"}}\n")),
        ("nul", format!("{long}\0v\0")),
    ] {
        let said = sandbox.run(&["import", "db", "--format", format], text.as_bytes(), USAGE).stderr;
        assert!(String::from_utf8_lossy(&said).contains("a key has at most 1048576 bytes"), "{format}: {said:?}");
    }
    // A long value goes through.
    sandbox.run(&["import", "db", "--format", "csv"], format!("k,\"{long}\"\n").as_bytes(), DONE);
    assert_eq!(sandbox.check(&["export", "db", "--format", "nul"], DONE), format!("k\0{long}\0").as_bytes());
}

#[test]
fn several_files_are_imported_in_order_each_without_its_header() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("a.csv"), "key,value\r\nk,1\na,\"x\ny\"\n").unwrap();
    fs::write(sandbox.path("b.tsv"), "key\tvalue\nk\t2\n").unwrap();
    let input = b"key\nk\t3\n";
    let said = sandbox.run(&["import", "db", "a.csv", "b.tsv", "-", "--skip", "1"], input, DONE).stderr;
    assert!(String::from_utf8_lossy(&said).contains("4 keys in"), "{said:?}");
    assert_eq!(sandbox.text(&["scan", "db"]), "a\t$'x\\ny'\nk\t3\n");
    // All files are looked for first.
    sandbox.words(&["import", "new", "a.csv", "absent"], IO);
    sandbox.words(&["import", "new", "-", "-"], USAGE);
    assert!(!sandbox.path("new").exists());
    // The message names the file to go on with, and those after it.
    fs::write(sandbox.path("bad.csv"), "key,value\nb,1\nc,2,3\n").unwrap();
    let said = sandbox.words(&["import", "db", "a.csv", "bad.csv", "b.tsv", "--skip", "1"], USAGE);
    assert!(said.contains("record 3 of bad.csv, at byte 14,"), "{said}");
    assert!(said.contains("the first 2 records of bad.csv are in the store"), "{said}");
    assert!(said.contains("resume with --skip 2 of bad.csv alone, then import b.tsv"), "{said}");
}

#[test]
fn a_dry_run_writes_nothing_and_tells_what_it_would_do() {
    let sandbox = Sandbox::with_store(10, 3, &[]);
    fs::write(sandbox.path("rows.csv"), "key,value\nk,v\nl,w\n").unwrap();
    let before = sandbox.files("db");
    let dry = ["import", "db", "rows.csv", "--skip", "1", "--dry-run"];
    let said = sandbox.words(&dry, DONE);
    assert!(said.contains("would put 2 keys of 4 B into keyspace \"default\" of db;"), "{said}");
    let report = sandbox.json(&[&dry[..], &["--keyspace", "new"]].concat());
    assert_eq!((report["lines"].as_u64(), report["creates_keyspace"].as_bool()), (Some(2), Some(true)));
    assert_eq!((report["creates_store"].as_bool(), report["invalid"].as_u64()), (Some(false), Some(0)));
    assert_eq!(sandbox.files("db"), before);
    let said = sandbox.words(&["import", "new", "rows.csv", "--dry-run"], DONE);
    assert!(said.contains("the new keyspace \"default\" of the new store new"), "{said}");
    assert!(!sandbox.path("new").exists());
}

#[test]
fn export_writes_the_range_it_is_asked_for() {
    let sandbox = Sandbox::with_store(100, 3, &[]);
    let range = ["--from", "key010", "--to", "key013"];
    let keys = |options: &[&str]| {
        let text = sandbox.text(&[&["export", "db"], options].concat());
        text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&range), ["key010", "key011", "key012"]);
    assert_eq!(keys(&["--prefix", "key09", "--from", "key098"]), ["key098", "key099"]);
    assert_eq!(sandbox.text(&["export", "db"]), sandbox.text(&["scan", "db"]));
    // The first line says of which keyspace the others are.
    let json = sandbox.text(&["export", "db", "--json"]);
    assert_eq!(json.split_once('\n').unwrap().1, sandbox.text(&["scan", "db", "--json"]));
    sandbox.words(&["export", "db", "--json", "--format", "csv"], USAGE);
    sandbox.words(&["export", "db", "--keyspace", "absent"], USAGE);
    sandbox.words(&["export", "absent"], IO);
    let report = sandbox.json(&[&["export", "db", "out.csv"], &range[..]].concat());
    assert_eq!((report["keys"].as_u64(), report["files"][0]["file"].as_str()), (Some(3), Some("out.csv")));
}

#[test]
fn all_keyspaces_are_exported_each_to_its_file() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    sandbox.run(&["import", "db", "--keyspace", "../a b"], b"k\tv\n", DONE);
    sandbox.words(&["export", "db", "out", "--all-keyspaces", "--format", "csv"], DONE);
    assert_eq!(names(&sandbox, "out"), ["%2E.%2Fa%20b.csv", "default.csv"]);
    assert_eq!(fs::read(sandbox.path("out/%2E.%2Fa%20b.csv")).unwrap(), b"k,v\n");
    sandbox.words(&["export", "db", "--all-keyspaces"], USAGE);
    sandbox.words(&["export", "db", "-", "--all-keyspaces"], USAGE);
    sandbox.words(&["export", "db", "out", "--all-keyspaces", "--keyspace", "default"], USAGE);
    sandbox.words(&["export", "db", "out"], USAGE);
    sandbox.words(&["export", "db", "absent/out.csv"], IO);
}

/// One that fails leaves the files of all keyspaces as they were, and no other file.
#[test]
fn all_keyspaces_are_exported_or_none() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    sandbox.run(&["import", "db", "--keyspace", "other"], b"k\tv\n", DONE);
    let export = ["export", "db", "out", "--all-keyspaces", "--format", "nul"];
    sandbox.words(&export, DONE);
    let old = sandbox.files("out");
    assert_eq!(old.len(), 2);
    sandbox.run(&["import", "db"], b"more\t1\n", DONE);
    // The format cannot hold this value.
    sandbox.run(&["put", "db", "6b", "7600", "--hex", "--keyspace", "other"], b"", DONE);
    let said = sandbox.words(&export, USAGE);
    assert!(said.contains("\"other\""), "{said}");
    assert_eq!(sandbox.files("out"), old);
    // A directory stands where a file is to be.
    sandbox.run(&["put", "db", "6b", "76", "--hex", "--keyspace", "other"], b"", DONE);
    fs::remove_file(sandbox.path("out/other.nul")).unwrap();
    fs::create_dir(sandbox.path("out/other.nul")).unwrap();
    sandbox.words(&export, USAGE);
    assert_eq!(names(&sandbox, "out"), ["default.nul", "other.nul"]);
    assert_eq!(fs::read(sandbox.path("out/default.nul")).unwrap(), old[&sandbox.path("out/default.nul")]);
    fs::remove_dir(sandbox.path("out/other.nul")).unwrap();
    sandbox.words(&export, DONE);
    assert_eq!(fs::read(sandbox.path("out/other.nul")).unwrap(), b"k\0v\0");
    assert_ne!(fs::read(sandbox.path("out/default.nul")).unwrap(), old[&sandbox.path("out/default.nul")]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_and_a_closed_pipe_end_an_export() {
    use std::process::{Command, Stdio};
    let sandbox = Sandbox::with_store(20_000, 6, &[]);
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("KVTOOL", env!("CARGO_BIN_EXE_kvtool")).current_dir(sandbox.dir());
        command.stdin(Stdio::null()).output().unwrap()
    };
    let code_of = |script: &str| {
        let output = shell(script);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("panicked"), "{said}");
        (output.status.code(), said)
    };
    let (code, said) = code_of("\"$KVTOOL\" export db > /dev/full");
    assert!(code == Some(IO) && said.contains("standard output"), "{said}");
    // Here no file may grow beyond 32 or 64 KiB.
    fs::create_dir(sandbox.path("out")).unwrap();
    fs::write(sandbox.path("out/default.tsv"), "old").unwrap();
    let limited = |rest: &str| code_of(&format!("trap '' XFSZ; ulimit -f 64; \"$KVTOOL\" export db {rest}"));
    for rest in ["out/default.tsv", "out --all-keyspaces"] {
        let (code, said) = limited(rest);
        assert!(code == Some(IO) && said.contains("out/default.tsv"), "{said}");
        assert_eq!(names(&sandbox, "out"), ["default.tsv"]);
        assert_eq!(fs::read(sandbox.path("out/default.tsv")).unwrap(), b"old");
    }
    // A reader that has enough is no failure.
    let output = shell("{ \"$KVTOOL\" export db; echo \"code $?\" >&2; } | head -n 1");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "key000000\tvalue 0\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "code 0\n");
}

#[cfg(unix)]
#[test]
fn a_replaced_file_keeps_its_permissions_and_the_link_to_it() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let sandbox = Sandbox::with_store(3, 1, &[]);
    fs::write(sandbox.path("old.tsv"), "old").unwrap();
    fs::set_permissions(sandbox.path("old.tsv"), PermissionsExt::from_mode(0o640)).unwrap();
    symlink("old.tsv", sandbox.path("link.tsv")).unwrap();
    sandbox.words(&["export", "db", "link.tsv"], DONE);
    assert!(fs::symlink_metadata(sandbox.path("link.tsv")).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(sandbox.path("old.tsv")).unwrap(), sandbox.text(&["scan", "db"]));
    assert_eq!(fs::metadata(sandbox.path("old.tsv")).unwrap().permissions().mode() & 0o777, 0o640);
    // A new file has the permissions of any other new file.
    sandbox.words(&["export", "db", "new.tsv"], DONE);
    fs::write(sandbox.path("other"), "").unwrap();
    let mode = |name| fs::metadata(sandbox.path(name)).unwrap().permissions().mode();
    assert_eq!(mode("new.tsv"), mode("other"));
    // A device is written to, not replaced.
    sandbox.words(&["export", "db", "/dev/null"], DONE);
    assert_eq!(sandbox.text(&["export", "db", "/dev/stdout"]), sandbox.text(&["scan", "db"]));
}

#[cfg(unix)]
#[test]
fn an_interrupted_export_leaves_the_old_file() {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};
    let sandbox = Sandbox::new();
    let db = Db::open(sandbox.path("db")).unwrap();
    for i in 0..2000u32 {
        db.put(i.to_be_bytes(), [7; 20_000]).unwrap();
    }
    db.close().unwrap();
    for (signal, code) in [("-INT", Some(INTERRUPTED)), ("-KILL", None)] {
        fs::write(sandbox.path("out.jsonl"), "old").unwrap();
        let mut command = sandbox.command(&["export", "db", "out.jsonl", "--hex"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        while !names(&sandbox, "").iter().any(|name| name.starts_with(".kvtool-unfinished-")) {
            assert!(begun.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none());
            std::thread::yield_now();
        }
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), code, "{said}");
        assert_eq!(fs::read(sandbox.path("out.jsonl")).unwrap(), b"old");
        if code.is_some() {
            assert!(said.contains("interrupted"), "{said}");
            assert_eq!(names(&sandbox, ""), ["db", "out.jsonl"]);
        }
    }
    sandbox.words(&["export", "db", "out.jsonl", "--hex"], DONE);
    sandbox.words(&["import", "copy", "out.jsonl"], DONE);
    assert_eq!(entries(&sandbox, "copy").len(), 2000);
}
