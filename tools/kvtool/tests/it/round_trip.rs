//! Keys and values survive every command unchanged, whatever their bytes.

use std::collections::BTreeMap;
use std::fs;

use fastrand::Rng;
use tamis::Db;

use crate::sandbox::{DONE, NOT_FOUND, Sandbox, USAGE};

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn entries(sandbox: &Sandbox, db: &str) -> Entries {
    let db = Db::open_read_only(sandbox.path(db)).unwrap();
    let snapshot = db.snapshot();
    snapshot.iter().map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

/// Random bytes, with those favoured that have a meaning in lines, escapes or quotes.
fn random_bytes(random: &mut Rng) -> Vec<u8> {
    const SPECIAL: &[u8] = b"$'\\\t\n\r\0\xff\xc3\xa9tnx ";
    let len = random.usize(..10);
    let byte = |random: &mut Rng| if random.bool() { SPECIAL[random.usize(..SPECIAL.len())] } else { random.u8(..) };
    (0..len).map(|_| byte(random)).collect()
}

#[test]
fn scan_and_import_copy_any_bytes_in_every_form() {
    let seed = fastrand::get_seed();
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let sandbox = Sandbox::new();
    let mut expected: Entries = (0..3000).map(|_| (random_bytes(&mut random), random_bytes(&mut random))).collect();
    for special in ["", "\t", "\n", "\0", "$''", "$'x'", "\\", "\\t", "a\tb", "a\r", "{\"hex\": \"00\"}"] {
        expected.insert(special.into(), special.into());
        expected.insert(format!("empty value of {special}").into(), Vec::new());
    }
    let db = Db::open(sandbox.path("db")).unwrap();
    for (key, value) in &expected {
        db.put(key, value).unwrap();
    }
    db.close().unwrap();
    let forms: [(&[&str], &[&str]); 5] = [
        (&[], &[]),
        (&["--escaped"], &["--escaped"]),
        (&["--hex"], &["--hex"]),
        (&["--json"], &["--format", "jsonl"]),
        (&["--json", "--hex"], &["--format", "jsonl"]),
    ];
    for (i, (out, into)) in forms.into_iter().enumerate() {
        let copy = format!("copy{i}");
        let lines = sandbox.check(&[&["scan", "db"], out].concat(), DONE);
        sandbox.run(&[&["import", &copy], into].concat(), &lines, DONE);
        assert!(entries(&sandbox, &copy) == expected, "scan {out:?} | import {into:?}");
        // The reverse scan prints the same lines, last first.
        let reversed = sandbox.check(&[&["scan", "db", "--reverse"], out].concat(), DONE);
        let mut backward: Vec<&[u8]> = reversed.split_inclusive(|&byte| byte == b'\n').collect();
        backward.reverse();
        assert!(backward.concat() == lines, "{out:?}");
    }
    // The first column works as a list of keys for every command that takes one.
    let rows = sandbox.check(&["scan", "db"], DONE);
    let mut keys = Vec::new();
    for row in rows.split_inclusive(|&byte| byte == b'\n') {
        keys.extend(row.split(|&byte| byte == b'\t').next().unwrap());
        keys.push(b'\n');
    }
    assert!(sandbox.check_with_input(&["get", "db", "--keys-from", "-"], &keys, DONE) == rows);
    sandbox.run(&["filter", "create", "f", "--error-rate", "0.000001"], &keys, DONE);
    assert!(sandbox.check_with_input(&["filter", "check", "f"], &keys, DONE) == keys);
}

#[test]
fn arguments_are_bytes_as_typed() {
    let sandbox = Sandbox::new();
    for typed in [r#"{"a":"x\ty"}"#, r"C:\new", r#"say \"hi\""#, r"\q", r"\x41", "$'x", "größe"] {
        sandbox.text(&["put", "db", "k", typed]);
        assert_eq!(sandbox.check(&["get", "db", "k", "--raw"], DONE), typed.as_bytes());
        assert_eq!(sandbox.text(&["get", "db", "k"]), format!("{typed}\n"));
        assert_eq!(sandbox.text(&["scan", "db"]), format!("k\t{typed}\n"));
        sandbox.text(&["put", "keys", typed, "v"]);
        assert_eq!(sandbox.text(&["get", "keys", typed]), "v\n");
        assert_eq!(sandbox.text(&["scan", "keys", "--from", typed]), format!("{typed}\tv\n"));
        sandbox.words(&["explain", "keys", typed], DONE);
        sandbox.text(&["delete", "keys", typed]);
        sandbox.check(&["get", "keys", typed], NOT_FOUND);
    }
    // This includes text that looks quoted: the shell has removed its quotes. Only lines are
    // quoted.
    sandbox.text(&["put", "db", "k", r"$'a\tb'"]);
    assert_eq!(sandbox.check(&["get", "db", "k", "--raw"], DONE), br"$'a\tb'");
    assert_eq!(sandbox.text(&["get", "db", "k"]), "$'$\\x27a\\\\tb\\x27'\n");
}

#[test]
fn escapes_are_decoded_only_with_an_option() {
    let sandbox = Sandbox::new();
    sandbox.text(&["put", "db", "--escaped", r"k\x00", r"a\tb\n"]);
    assert_eq!(sandbox.check(&["get", "db", "--escaped", r"k\x00", "--raw"], DONE), b"a\tb\n");
    assert_eq!(sandbox.text(&["get", "db", "--escaped", r"k\x00"]), "a\\tb\\n\n");
    assert_eq!(sandbox.text(&["get", "db", "--hex", "6b00"]), "6109620a\n");
    assert_eq!(sandbox.text(&["scan", "db"]), "$'k\\x00'\t$'a\\tb\\n'\n");
    sandbox.run(&["import", "db", "--escaped"], b"\\x6b\t\\\\\n", DONE);
    assert_eq!(sandbox.text(&["get", "db", "k"]), "\\\n");
    sandbox.run(&["import", "db", "--escaped"], b"\\q\n", USAGE);
    sandbox.run(&["put", "db", "--escaped", r"\q", "v"], b"", USAGE);
}

#[test]
fn a_value_from_a_file_keeps_every_byte() {
    let sandbox = Sandbox::new();
    let value: Vec<u8> = (0..=255).chain(*b"\r\n").collect();
    fs::write(sandbox.path("value"), &value).unwrap();
    sandbox.text(&["put", "db", "k", "--file", "value"]);
    assert_eq!(sandbox.check(&["get", "db", "k", "--raw"], DONE), value);
    sandbox.run(&["put", "db", "k", "--file", "-"], b"piped\n", DONE);
    assert_eq!(sandbox.check(&["get", "db", "k", "--raw"], DONE), b"piped\n");
    sandbox.words(&["put", "db", "k", "--file", "absent"], 4);
}
