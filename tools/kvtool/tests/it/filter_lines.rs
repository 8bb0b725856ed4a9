//! `kvtool filter` on lines of text.

use std::fs;

use serde_json::Value;
use tamis::filter::{BloomFilter, FuseFilter, HashFunction, ScalableBloomFilter};

use crate::sandbox::{CORRUPTION, DONE, IO, NOT_FOUND, Sandbox, USAGE};

/// A sandbox with a filter `f` of the words `word0` to `word999`.
fn with_words(options: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new();
    run(&sandbox, &[&["create", "f"], options].concat(), &words(0..1000), DONE);
    sandbox
}

/// Runs `kvtool filter`; returns standard output and standard error.
#[track_caller]
fn run(sandbox: &Sandbox, args: &[&str], input: &[u8], code: i32) -> (Vec<u8>, String) {
    let output = sandbox.run(&[&["filter"], args].concat(), input, code);
    (output.stdout, String::from_utf8(output.stderr).unwrap())
}

#[track_caller]
fn json(sandbox: &Sandbox, args: &[&str]) -> Value {
    sandbox.json(&[&["filter"], args].concat())
}

fn words(range: std::ops::Range<u32>) -> Vec<u8> {
    range.map(|i| format!("word{i}\n")).collect::<String>().into_bytes()
}

fn line_count(bytes: &[u8]) -> usize {
    bytes.split_inclusive(|&byte| byte == b'\n').count()
}

#[test]
fn check_selects_lines_like_grep() {
    let sandbox = with_words(&["--error-rate", "0.0001"]);
    let input = [words(990..1000), words(5000..5005)].concat();
    assert_eq!(run(&sandbox, &["check", "f"], &input, DONE).0, words(990..1000));
    assert_eq!(run(&sandbox, &["check", "f", "-v"], &input, DONE).0, words(5000..5005));
    assert_eq!(run(&sandbox, &["check", "f", "-c"], &input, DONE).0, b"10\n");
    assert_eq!(run(&sandbox, &["check", "f", "-vc"], &input, DONE).0, b"5\n");
    assert_eq!(run(&sandbox, &["check", "f"], b"other\n", NOT_FOUND).0, b"");
    assert_eq!(run(&sandbox, &["check", "f", "-c"], b"other\n", NOT_FOUND).0, b"0\n");
    assert_eq!(run(&sandbox, &["check", "f", "-v"], b"word1\n", NOT_FOUND).0, b"");
    assert_eq!(run(&sandbox, &["check", "f"], b"", NOT_FOUND).0, b"");
    // From a file without a final newline.
    fs::write(sandbox.path("lines"), "word1\nother").unwrap();
    assert_eq!(run(&sandbox, &["check", "f", "lines"], b"", DONE).0, b"word1\n");
    assert_eq!(run(&sandbox, &["check", "f", "-v", "lines"], b"", DONE).0, b"other\n");
}

#[test]
fn no_line_is_denied_and_few_others_are_false_positives() {
    for options in [
        &[][..],
        &["--bits-per-key", "10", "--layout", "standard"],
        &["--error-rate", "0.01", "--hash", "siphash13", "--seed", "77"],
        &["--error-rate", "0.01", "--hash", "murmur3", "--capacity", "1000"],
        &["--scalable"],
        &["--scalable", "--capacity", "10", "--error-rate", "0.01"],
        &["--bits", "10000", "--probes", "7"],
        &["--fuse", "7", "--seed", "3"],
    ] {
        let sandbox = with_words(options);
        assert_eq!(run(&sandbox, &["check", "f", "-c"], &words(0..1000), DONE).0, b"1000\n", "{options:?}");
        let (others, _) = run(&sandbox, &["check", "f"], &words(100_000..120_000), DONE);
        assert!((1..280).contains(&line_count(&others)), "{options:?}: {} of 20,000", line_count(&others));
    }
}

#[test]
fn every_byte_of_a_line_counts() {
    let sandbox = Sandbox::new();
    let lines: &[u8] = b"a\0b\n\xff\xfe\r\n\n tab$here \n";
    run(&sandbox, &["create", "f", "--error-rate", "0.000001"], lines, DONE);
    let (checked, said) = run(&sandbox, &["check", "f"], lines, DONE);
    assert_eq!(checked, b"a\0b\n\xff\xfe\r\n tab$here \n");
    assert!(said.contains("1 empty line of standard input skipped"), "{said}");
    // The quoted form that `scan` prints is the same key.
    assert_eq!(run(&sandbox, &["check", "f"], b"$'a\\x00b'\n", DONE).0, b"$'a\\x00b'\n");
    run(&sandbox, &["check", "f"], b"a\n\xff\xfe0\ntab$here\nab\n", NOT_FOUND);
    // Those bytes in hexadecimal.
    assert_eq!(run(&sandbox, &["check", "f", "--hex"], b"610062\n00\nFFFE0d\n", DONE).0, b"610062\nFFFE0d\n");
    let (_, complaint) = run(&sandbox, &["check", "f", "--hex"], b"61\n6g\n", USAGE);
    assert!(complaint.contains("line 2 of standard input"), "{complaint}");
}

#[test]
fn create_takes_the_size_that_the_lines_need() {
    let sandbox = Sandbox::new();
    let twice = [words(0..1000), words(0..1000)].concat();
    let (output, said) = run(&sandbox, &["create", "f", "--json"], &twice, DONE);
    let report: Value = serde_json::from_slice(&output).unwrap();
    assert_eq!((&report["lines"], &report["schema"]), (&2000.into(), &1.into()));
    assert!(said.contains("2,000 lines"), "{said}");
    let filter = BloomFilter::load(sandbox.path("f")).unwrap();
    assert_eq!((filter.bits(), filter.k()), (10_240, 7));
    assert!((990..=1000).contains(&report["new"].as_u64().unwrap()), "{report}");
    run(&sandbox, &["create", "g", "--capacity", "50000", "--error-rate", "0.001"], &words(0..1000), DONE);
    assert!((50_000..51_000).contains(&BloomFilter::load(sandbox.path("g")).unwrap().capacity()));
    run(&sandbox, &["create", "none"], b"", DONE);
    assert!(BloomFilter::load(sandbox.path("none")).unwrap().is_empty());
    let (_, said) = run(&sandbox, &["create", "small", "--capacity", "100"], &words(0..1000), DONE);
    assert!(said.contains("made for 10"), "{said}");
}

#[test]
fn create_replaces_nothing_unless_forced() {
    let sandbox = with_words(&[]);
    let before = fs::read(sandbox.path("f")).unwrap();
    let (_, complaint) = run(&sandbox, &["create", "f"], b"other\n", USAGE);
    assert!(complaint.contains("--force"), "{complaint}");
    assert_eq!(fs::read(sandbox.path("f")).unwrap(), before);
    run(&sandbox, &["create", "f", "--force"], b"other\n", DONE);
    assert_eq!(BloomFilter::load(sandbox.path("f")).unwrap().estimated_keys().round(), 1.0);
}

#[test]
fn add_keeps_what_was_there() {
    for options in [&["--capacity", "2000"][..], &["--scalable", "--capacity", "100"]] {
        let sandbox = with_words(options);
        let (output, _) = run(&sandbox, &["add", "f", "--json"], &words(500..1500), DONE);
        let report: Value = serde_json::from_slice(&output).unwrap();
        assert_eq!(report["lines"], 1000);
        assert!((485..=500).contains(&report["new"].as_u64().unwrap()), "{report}");
        assert_eq!(run(&sandbox, &["check", "f", "-c"], &words(0..1500), DONE).0, b"1500\n");
        assert_eq!(fs::read_dir(sandbox.dir()).unwrap().count(), 1, "nothing else is left");
    }
    let sandbox = with_words(&[]);
    let (_, said) = run(&sandbox, &["add", "f"], &words(1000..3000), DONE);
    assert!(said.contains("false-positive rate exceeds"), "{said}");
}

#[test]
fn filters_of_equal_bits_and_probes_can_be_united() {
    let sandbox = Sandbox::new();
    let sized = ["--bits", "100000", "--probes", "5"];
    for (name, lines) in [("a", words(0..1000)), ("b", words(500..1500)), ("c", words(7000..7100))] {
        run(&sandbox, &[&["create", name], &sized[..]].concat(), &lines, DONE);
        assert_eq!(json(&sandbox, &["info", name])["bits"], 100_352, "whole lines of 512 bits");
    }
    let (output, said) = run(&sandbox, &["union", "a", "b", "c", "-o", "all", "--json"], b"", DONE);
    let report: Value = serde_json::from_slice(&output).unwrap();
    assert!((1580.0..1620.0).contains(&report["estimated_keys"].as_f64().unwrap()), "{report}");
    assert!(said.contains("all: about 1"), "{said}");
    assert_eq!(
        run(&sandbox, &["check", "all", "-c"], &[words(0..1500), words(7000..7100)].concat(), DONE).0,
        b"1600\n"
    );
    // As if all lines had gone into one filter.
    let lines = [words(0..1500), words(7000..7100)].concat();
    run(&sandbox, &[&["create", "one"], &sized[..]].concat(), &lines, DONE);
    assert_eq!(fs::read(sandbox.path("one")).unwrap(), fs::read(sandbox.path("all")).unwrap());
    // Nothing is replaced by accident.
    let (_, complaint) = run(&sandbox, &["union", "a", "b", "-o", "c"], b"", USAGE);
    assert!(complaint.contains("--force"), "{complaint}");
    run(&sandbox, &["union", "a", "b", "-o", "a", "--force"], b"", DONE);
    assert_eq!(run(&sandbox, &["check", "a", "-c"], &words(0..1500), DONE).0, b"1500\n");
    // What cannot be united is named.
    run(&sandbox, &["create", "k6", "--bits", "100000", "--probes", "6"], b"line\n", DONE);
    let (_, complaint) = run(&sandbox, &["union", "b", "k6", "-o", "new"], b"", USAGE);
    assert!(complaint.contains("k6 and ") && complaint.contains("number of probes"), "{complaint}");
    for kind in [&["--scalable"][..], &["--fuse", "8"]] {
        run(&sandbox, &[&["create", "other", "--force"], kind].concat(), b"line\n", DONE);
        let (_, complaint) = run(&sandbox, &["union", "b", "other", "-o", "new"], b"", USAGE);
        assert!(complaint.contains("other is not a plain Bloom filter"), "{complaint}");
    }
    run(&sandbox, &["union", "b", "-o", "new"], b"", USAGE);
    run(&sandbox, &["union", "b", "missing", "-o", "new"], b"", IO);
    assert!(!sandbox.path("new").exists());
}

#[test]
fn a_binary_fuse_is_complete_when_it_is_created() {
    let sandbox = with_words(&["--fuse", "8"]);
    let filter = FuseFilter::load(sandbox.path("f")).unwrap();
    let info = json(&sandbox, &["info", "f"]);
    for (field, value) in [
        ("policy", Value::from("binary-fuse")),
        ("hash", "xxh3".into()),
        ("keys", 1000.into()),
        ("fingerprint_bits", 8.into()),
        ("bits", filter.bits().into()),
        ("expected_false_positive_rate", (1.0 / 256.0).into()),
        ("bytes", fs::metadata(sandbox.path("f")).unwrap().len().into()),
    ] {
        assert_eq!(info[field], value, "{field}");
    }
    let text = String::from_utf8(run(&sandbox, &["info", "f"], b"", DONE).0).unwrap();
    assert!(text.contains("binary fuse") && text.contains("1,000"), "{text}");
    let before = fs::read(sandbox.path("f")).unwrap();
    let (_, complaint) = run(&sandbox, &["add", "f"], b"line\n", USAGE);
    assert!(complaint.contains("takes no more lines"), "{complaint}");
    assert_eq!(fs::read(sandbox.path("f")).unwrap(), before);
    let (output, _) = run(&sandbox, &["create", "g", "--fuse", "4", "--json"], &words(0..10).repeat(2), DONE);
    let report: Value = serde_json::from_slice(&output).unwrap();
    assert_eq!((&report["lines"], &report["new"]), (&20.into(), &10.into()));
}

#[test]
fn concurrent_adds_lose_nothing() {
    let sandbox = with_words(&["--capacity", "10000"]);
    std::thread::scope(|scope| {
        for i in 1..=8 {
            let sandbox = &sandbox;
            scope.spawn(move || run(sandbox, &["add", "f"], &words(i * 1000..i * 1000 + 1000), DONE));
        }
    });
    assert_eq!(run(&sandbox, &["check", "f", "-c"], &words(0..9000), DONE).0, b"9000\n");
}

#[test]
fn info_says_what_the_filter_is() {
    let options = ["--error-rate", "0.01", "--hash", "siphash13", "--seed", "77"];
    let sandbox = with_words(&options);
    let filter = BloomFilter::load(sandbox.path("f")).unwrap();
    assert_eq!((filter.hasher().function(), filter.hasher().seed()), (HashFunction::SipHash13, 77));
    let info = json(&sandbox, &["info", "f"]);
    for (field, value) in [
        ("policy", Value::from("bloom")),
        ("layout", "split".into()),
        ("hash", "siphash13".into()),
        ("seed", 77.into()),
        ("bits", filter.bits().into()),
        ("k", 7.into()),
        ("groups", vec![4, 3].into()),
        ("capacity", filter.capacity().into()),
        ("estimated_keys", filter.estimated_keys().into()),
        ("fill_ratio", filter.fill_ratio().into()),
        ("expected_false_positive_rate", filter.expected_fpr().into()),
        ("bytes", fs::metadata(sandbox.path("f")).unwrap().len().into()),
    ] {
        assert_eq!(info[field], value, "{field}");
    }
    let text = String::from_utf8(run(&sandbox, &["info", "f"], b"", DONE).0).unwrap();
    for part in ["4+3", "siphash13", "77", "9,728", "expected false positives"] {
        assert!(text.contains(part), "{text}: {part}");
    }
    let sandbox = with_words(&["--scalable", "--capacity", "100"]);
    let filter = ScalableBloomFilter::load(sandbox.path("f")).unwrap();
    let info = json(&sandbox, &["info", "f"]);
    assert_eq!(info["parts"].as_array().unwrap().len(), filter.filters());
    assert_eq!((&info["policy"], &info["asked_false_positive_rate"]), (&"scalable-bloom".into(), &0.01.into()));
    assert_eq!(info["bytes"], fs::metadata(sandbox.path("f")).unwrap().len());
    let text = String::from_utf8(run(&sandbox, &["info", "f"], b"", DONE).0).unwrap();
    assert!(text.contains("scalable Bloom") && text.contains("| part"), "{text}");
    // A filter with all bits set has no estimate.
    BloomFilter::with_bits(1, 1).unwrap().save(sandbox.path("full")).unwrap();
    run(&sandbox, &["add", "full"], &words(0..20_000), DONE);
    assert_eq!(json(&sandbox, &["info", "full"])["estimated_keys"], Value::Null);
}

#[test]
fn json_lines_are_those_that_are_selected() {
    let sandbox = with_words(&["--error-rate", "0.0001"]);
    let (output, _) = run(&sandbox, &["check", "f", "--json"], b"word1\nother\nword2\n", DONE);
    assert_eq!(output, b"{\"schema\":1,\"line\":\"word1\"}\n{\"schema\":1,\"line\":\"word2\"}\n");
    let (output, _) = run(&sandbox, &["check", "f", "--json", "-c"], b"word1\nother\nword2\n", DONE);
    assert_eq!(output, b"{\"schema\":1,\"lines\":3,\"selected\":2}\n");
}

#[test]
fn exit_codes_are_those_of_the_help() {
    let sandbox = with_words(&[]);
    for args in [
        &["create", "g", "--bits-per-key", "0.5"][..],
        &["create", "g", "--bits-per-key", "NaN"],
        &["create", "g", "--error-rate", "1"],
        &["create", "g", "--error-rate", "0"],
        &["create", "g", "--bits-per-key", "8", "--error-rate", "0.1"],
        &["create", "g", "--bits-per-key", "8", "--scalable"],
        &["create", "g", "--capacity", "0"],
        &["create", "g", "--capacity", "18446744073709551615"],
        &["create", "g", "--hash", "murmur3", "--seed", "4294967296"],
        &["create", "g", "--hash", "md5"],
        &["create", "g", "--bits", "1000"],
        &["create", "g", "--probes", "7"],
        &["create", "g", "--bits", "0", "--probes", "7"],
        &["create", "g", "--bits", "1000", "--probes", "26"],
        &["create", "g", "--bits", "1000", "--probes", "7", "--capacity", "10"],
        &["create", "g", "--bits", "1000", "--probes", "7", "--bits-per-key", "10"],
        &["create", "g", "--fuse", "9"],
        &["create", "g", "--fuse", "8", "--capacity", "10"],
        &["union", "f", "f"],
        &["create"],
        &["add"],
    ] {
        run(&sandbox, args, b"line\n", USAGE);
        assert!(!sandbox.path("g").exists(), "{args:?}");
    }
    for command in ["add", "check", "info"] {
        run(&sandbox, &[command, "missing"], b"line\n", IO);
    }
    run(&sandbox, &["create", "missing/g"], b"line\n", IO);
    let bytes = fs::read(sandbox.path("f")).unwrap();
    for damaged in
        [&bytes[..100], &bytes[..3], b"", b"no filter at all, but text of more than sixty-four bytes, to be sure of it"]
    {
        fs::write(sandbox.path("damaged"), damaged).unwrap();
        for command in ["add", "check", "info"] {
            let (output, complaint) = run(&sandbox, &[command, "damaged"], b"line\n", CORRUPTION);
            assert!(output.is_empty() && complaint.contains("damaged is not a sound filter"), "{complaint}");
        }
        assert_eq!(fs::read(sandbox.path("damaged")).unwrap(), damaged, "it is left as it was");
    }
}
