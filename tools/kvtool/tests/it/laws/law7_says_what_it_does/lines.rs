//! A line of input means one thing in every command: a key, or a key, a tab and a value.

use crate::sandbox::{DONE, NOT_FOUND, Sandbox, USAGE};

/// Every command that reads keys from lines, with lines on standard input.
const READERS: [&[&str]; 8] = [
    &["get", "db", "--keys-from", "-"],
    &["stats", "db", "--keys-from", "-"],
    &["filter", "create", "f", "--force"],
    &["filter", "add", "f"],
    &["filter", "check", "f"],
    &["filter", "advise", "db", "--trace", "-"],
    &["bench", "reads", "db", "--keys-from", "-", "--warm", "--bits", "10", "--asked", "10"],
    &["bench", "reads", "db", "--missing-from", "-", "--warm", "--bits", "10", "--asked", "10"],
];

#[test]
fn what_scan_prints_is_understood_by_all_that_read_keys() {
    let sandbox = Sandbox::with_store(200, 3, &[]);
    sandbox.run(&["put", "db", "--escaped", r"a\tkey", r"a\tvalue"], b"", DONE);
    for form in [&[][..], &["--escaped"], &["--hex"]] {
        let with =
            |args: &[&str]| -> Vec<String> { [args, form].concat().iter().map(|arg| (*arg).to_owned()).collect() };
        let (pairs, keys) =
            (sandbox.check(&with(&["scan", "db"]), DONE), sandbox.check(&with(&["scan", "db", "--keys"]), DONE));
        assert_eq!(pairs.iter().filter(|&&byte| byte == b'\t').count(), 201);
        assert!(!keys.contains(&b'\t'));
        for lines in [&pairs, &keys] {
            let found = sandbox.run(&with(&["get", "db", "--keys-from", "-"]), lines, DONE);
            assert!(found.stdout == pairs, "{form:?}");
            let said = String::from_utf8(found.stderr).unwrap();
            assert_eq!(said.contains("201 values of standard input left out"), *lines == pairs, "{said}");
            sandbox.run(&with(&["filter", "create", "f", "--force"]), lines, DONE);
            for asked in [&pairs, &keys] {
                let passed = sandbox.run(&with(&["filter", "check", "f"]), asked, DONE);
                assert!(passed.stdout == *asked, "{form:?}");
            }
        }
    }
}

#[test]
fn every_reader_of_keys_refuses_json_utf_16_and_lines_without_a_key() {
    let sandbox = Sandbox::with_store(2000, 4, &[]);
    sandbox.run(&["filter", "create", "f"], b"key0001\n", DONE);
    let json = sandbox.check(&["scan", "db", "--json", "--limit", "3"], DONE);
    for reader in READERS.into_iter().filter(|reader| !reader.contains(&"--missing-from")) {
        for (input, why) in [(&json[..], "JSON"), (b"\xff\xfek\0\n\0", "UTF-16"), (b"key0001\n\tvalue\n", "line 2")] {
            let said = String::from_utf8(sandbox.run(reader, input, USAGE).stderr).unwrap();
            assert!(said.contains(why), "{reader:?}: {said}");
        }
    }
    for reader in READERS {
        let input: &[u8] =
            if reader.contains(&"--missing-from") { b"absent\tvalue\n" } else { b"\xef\xbb\xbfkey0001\tvalue\n" };
        sandbox.run(reader, input, DONE);
    }
    sandbox.run(&["get", "db", "--keys-from", "-"], b"absent\tkey0001\n", NOT_FOUND);
}
