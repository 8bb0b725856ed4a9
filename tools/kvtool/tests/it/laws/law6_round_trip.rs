//! Law 6: a round trip keeps everything, or says what it leaves out.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use tamis::operator::{Add, Append, MergeError, MergeOperator};
use tamis::{Compression, Db, FilterPolicy, KeyspaceOptions, Parts, PrefixExtractor, RangeFilterPolicy, WriteBatch};

use crate::sandbox::{CORRUPTION, DONE, Sandbox, USAGE};

/// What a keyspace is: its options in words, and for each key its value, deadline and operands,
/// which are appended to one another.
type Content = BTreeMap<String, (String, BTreeMap<Vec<u8>, Entry>)>;
type Entry = (Option<Vec<u8>>, Option<SystemTime>, Vec<u8>);

fn content(sandbox: &Sandbox, db: &str) -> Content {
    let db = Db::open_read_only(sandbox.path(db)).unwrap();
    let mut all = Content::new();
    for name in db.keyspace_names().unwrap() {
        let keyspace = db.existing_keyspace(&name).unwrap().unwrap();
        let options = format!("{:?}", keyspace.options().unwrap());
        let (mut cursor, mut entries) = (keyspace.cursor().unwrap().unmerged(), BTreeMap::new());
        let mut valid = cursor.seek_to_first().unwrap();
        while valid {
            let parts = cursor.parts().unwrap();
            entries.insert(parts.key.to_vec(), entry(&parts));
            valid = cursor.next().unwrap();
        }
        all.insert(name, (options, entries));
    }
    all
}

/// What a key has, whatever the store has combined by now: of a value that does not expire,
/// operands are a part, and several operands are one.
fn entry(parts: &Parts<'_>) -> Entry {
    let (value, operands) = (parts.value.map(<[u8]>::to_vec), parts.operands.concat());
    match parts.deadline {
        None => (Some([value.unwrap_or_default(), operands].concat()), None, Vec::new()),
        deadline => (value, deadline, operands),
    }
}

fn random_options(random: &mut Rng) -> KeyspaceOptions {
    let mut options = KeyspaceOptions::new();
    if random.bool() {
        options = options.ttl(Duration::from_secs(random.u64(3_000..1 << 32)));
    }
    if random.bool() {
        options = options.merge_operator(Append);
    }
    if random.bool() {
        options = options.separate_values(16);
    }
    if random.bool() {
        options = options.wal(false).block_size(512).compression(Compression::None);
    }
    if random.bool() {
        options = options.filter(FilterPolicy::Bloom { bits_per_key: 7.7 }).prefix(PrefixExtractor::Fixed(2));
    }
    if random.bool() {
        options = options.range_filter(RangeFilterPolicy::Ordered { bits_per_key: 7.7 });
    }
    options
}

fn random_bytes(random: &mut Rng) -> Vec<u8> {
    let len = random.usize(..30);
    (0..len)
        .map(|_| if random.bool() { random.u8(..) } else { b"\t\n\"\\,{}\0\xff\xef\xbb\xbfab"[random.usize(..14)] })
        .collect()
}

/// A store of several keyspaces with random names, options and histories.
fn random_store(sandbox: &Sandbox, random: &mut Rng) {
    let db = Db::open(sandbox.path("db")).unwrap();
    let names = ["default", "größe", "журнал/сервера", "a", "A", "%", "\u{feff}x", "sessions"];
    for name in names {
        if random.bool() {
            continue;
        }
        let options = random_options(random);
        let (has_operator, options) = (options.merge_operator_name().is_some(), options);
        let keyspace = db.keyspace_with(name, options).unwrap();
        let keys: Vec<Vec<u8>> = (0..20).map(|_| random_bytes(random)).collect();
        for _ in 0..60 {
            let (key, value) = (&keys[random.usize(..keys.len())], random_bytes(random));
            match random.u8(..8) {
                0 => {
                    let deadline = SystemTime::now() + Duration::from_millis(random.u64(3_600_000..1 << 45));
                    keyspace.put_with_expiry(key, value, deadline).unwrap();
                }
                1 => _ = keyspace.delete(key).unwrap(),
                2..5 if has_operator => _ = keyspace.merge(key, value).unwrap(),
                5 if random.u8(..4) == 0 => db.flush().unwrap(),
                _ => _ = keyspace.put(key, value).unwrap(),
            }
        }
    }
    db.close().unwrap();
}

#[test]
fn json_lines_keep_names_options_deadlines_and_operands_of_any_store() {
    let seed = fastrand::get_seed();
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    for round in 0..8 {
        let sandbox = Sandbox::new();
        random_store(&sandbox, &mut random);
        let before = content(&sandbox, "db");
        let hex: &[&str] = if round % 2 == 0 { &[] } else { &["--hex"] };
        sandbox.words(&[&["export", "db", "out", "--all-keyspaces", "--format", "jsonl"], hex].concat(), DONE);
        let files: Vec<String> = fs::read_dir(sandbox.path("out"))
            .unwrap()
            .map(|file| format!("out/{}", file.unwrap().file_name().into_string().unwrap()))
            .collect();
        assert_eq!(files.len(), before.len());
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        sandbox.words(&[&["import", "copy"], &files[..]].concat(), DONE);
        assert_eq!(content(&sandbox, "copy"), before, "files");
        // All keyspaces in one stream; what damage is skipped changes nothing here.
        let all = sandbox.check(&["export", "db", "--all-keyspaces", "--format", "jsonl", "--skip-damaged"], DONE);
        sandbox.run(&["import", "piped", "--format", "jsonl"], &all, DONE);
        assert_eq!(content(&sandbox, "piped"), before, "a stream");
        // Once more: nothing is merged twice.
        sandbox.run(&["import", "piped", "--format", "jsonl"], &all, DONE);
        assert_eq!(content(&sandbox, "piped"), before, "a second time");
        // Resumed behind the definition.
        let skipped = all.split(|&byte| byte == b'\n').take(3).collect::<Vec<_>>();
        if skipped.len() == 3 && skipped[1..].iter().all(|line| line.starts_with(b"{\"schema\":1,\"key\"")) {
            sandbox.run(&["import", "piped", "--format", "jsonl", "--skip", "2"], &all, DONE);
            assert_eq!(content(&sandbox, "piped"), before, "resumed");
        }
    }
}

#[test]
fn other_formats_count_what_they_leave_out() {
    let sandbox = Sandbox::new();
    let db = Db::open(sandbox.path("db")).unwrap();
    let options = KeyspaceOptions::new().merge_operator(Append).ttl(Duration::from_secs(1000));
    let keyspace = db.keyspace_with("s", options).unwrap();
    keyspace.put("a", "1").unwrap();
    keyspace.merge("b", "x").unwrap();
    keyspace.merge("b", "y").unwrap();
    db.close().unwrap();
    for format in ["tsv", "csv", "nul"] {
        let file = format!("out.{format}");
        let said = sandbox.words(&["export", "db", &file, "--keyspace", "s"], DONE);
        for what in ["1 deadline left out", "merge operand", "options of keyspace \"s\"", "jsonl"] {
            assert!(said.contains(what), "{format}: {said}");
        }
    }
    let report = sandbox.json(&["export", "db", "out.csv", "--keyspace", "s"]);
    assert_eq!(report["dropped_deadlines"], 1);
    let said = sandbox.words(&["scan", "db", "--keyspace", "s"], DONE);
    assert!(said.contains("1 value with a deadline"), "{said}");
    assert!(sandbox.text(&["scan", "db", "--keyspace", "s", "--json"]).contains("\"deadline\":\"2"));
    let said = sandbox.words(&["export", "db", "out.jsonl", "--keyspace", "s"], DONE);
    assert!(!said.contains("left out"), "{said}");
    // A keyspace that is there keeps its options, and that is said.
    sandbox.text(&["put", "other", "k", "v", "--keyspace", "s"]);
    let said = sandbox.words(&["import", "other", "out.jsonl"], USAGE);
    assert!(said.contains("ttl_ms 1000000") && said.contains("no merge operator"), "{said}");
}

/// What programs define themselves, kvtool cannot combine, but copy.
#[test]
fn operands_of_a_programs_own_operator_are_copied_as_they_are() {
    struct Own;
    impl MergeOperator for Own {
        fn name(&self) -> &str {
            "own"
        }
        fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
            out.extend(operands.concat().iter().rev());
            Ok(())
        }
    }
    let sandbox = Sandbox::new();
    let db = Db::open(sandbox.path("db")).unwrap();
    let keyspace = db.keyspace_with("own", KeyspaceOptions::new().merge_operator(Own)).unwrap();
    keyspace.put("k", "1").unwrap();
    // A flush combines what it finds together.
    db.flush().unwrap();
    for operand in ["2", "3"] {
        keyspace.merge("k", operand).unwrap();
        db.flush().unwrap();
    }
    db.close().unwrap();
    let before = content(&sandbox, "db");
    let all = sandbox.check(&["export", "db", "--all-keyspaces", "--format", "jsonl"], DONE);
    sandbox.run(&["import", "copy", "--format", "jsonl"], &all, DONE);
    assert_eq!(content(&sandbox, "copy"), before);
    let said = sandbox.words(&["export", "db", "out.csv", "--keyspace", "own"], CORRUPTION);
    assert!(said.contains("--format jsonl") && said.contains("\"own\""), "{said}");
}

/// Every way to load lines stores the same, whatever the options of the keyspace.
#[test]
fn a_flag_for_speed_never_changes_what_is_stored() {
    const TTL: Duration = Duration::from_secs(100_000);
    let new = KeyspaceOptions::new;
    let options = [
        ("none", new()),
        ("ttl", new().ttl(TTL)),
        ("separate", new().separate_values(16)),
        ("operator", new().merge_operator(Add::BIG)),
        ("wal", new().wal(false)),
        ("filter", new().filter(FilterPolicy::None).prefix(PrefixExtractor::UpTo(b'1'))),
        ("range filter", new().range_filter(RangeFilterPolicy::ORDERED)),
        ("blocks", new().block_size(256).compression(Compression::None)),
        ("ttl and all", new().ttl(TTL).separate_values(16).merge_operator(Append)),
    ];
    let lines: String = (0..50).map(|i| format!("key{i:03}\tvalue {i} of more than sixteen bytes\n")).collect();
    for (name, options) in options {
        let sandbox = Sandbox::new();
        let ttl = options.ttl;
        for db in ["plain", "sorted", "replaced", "built"] {
            let store = Db::open(sandbox.path(db)).unwrap();
            store.keyspace_with("s", options.clone()).unwrap();
            store.close().unwrap();
        }
        let before = SystemTime::now();
        let load = |args: &[&str]| drop(sandbox.run(&[args, &["--keyspace", "s"]].concat(), lines.as_bytes(), DONE));
        load(&["import", "plain"]);
        load(&["import", "sorted", "--sorted"]);
        load(&["import", "replaced", "--sorted"]);
        load(&["import", "replaced", "--sorted", "--replace"]);
        load(&["sst-build", "built", "tables"]);
        load(&["ingest", "built", "tables/000001.sst"]);
        let after = SystemTime::now();
        // Deadlines are as far away as the ttl says, from when each was written.
        let of = |db: &str| {
            let (options, entries) = content(&sandbox, db).remove("s").unwrap();
            let in_time = |deadline: SystemTime| {
                ttl.is_some_and(|ttl| (before + ttl..=after + ttl + Duration::from_millis(1)).contains(&deadline))
            };
            let entries: Vec<_> = entries
                .into_iter()
                .map(|(key, (value, deadline, operands))| (key, value, deadline.map(in_time), operands))
                .collect();
            assert!(entries.iter().all(|(.., deadline, _)| *deadline == ttl.map(|_| true)), "{name} {db}");
            (options, entries)
        };
        let plain = of("plain");
        assert_eq!(plain.1.len(), 50);
        for db in ["sorted", "replaced", "built"] {
            assert_eq!(of(db), plain, "{name}: {db}");
        }
    }
}

#[test]
fn sorted_imports_keep_deadlines_and_refuse_what_a_table_cannot_hold() {
    let sandbox = Sandbox::new();
    let lines = b"{\"keyspace\":\"s\",\"options\":{\"ttl_ms\":60000000,\"merge_operator\":\"tamis.append\"}}\n\
        {\"key\":\"a\",\"value\":\"1\",\"deadline\":\"2100-01-01T00:00:00.000Z\"}\n\
        {\"key\":\"b\",\"value\":\"2\",\"deadline\":null}\n\
        {\"key\":\"c\",\"operands\":[\"x\",\"y\"]}\n";
    for (db, flags) in [("plain", &[][..]), ("sorted", &["--sorted"])] {
        sandbox.run(&[&["import", db, "--format", "jsonl"], flags].concat(), lines, DONE);
        assert_eq!(sandbox.text(&["get", db, "c", "--keyspace", "s"]), "xy\n");
    }
    let (plain, sorted) = (content(&sandbox, "plain"), content(&sandbox, "sorted"));
    assert_eq!(plain["s"].0, sorted["s"].0);
    for key in [b"a", b"b"] {
        assert_eq!(plain["s"].1[&key[..]], sorted["s"].1[&key[..]]);
    }
    let more =
        [&lines[..], b"{\"key\":\"d\",\"value\":\"1\",\"operands\":[\"x\"],\"deadline\":\"2100-01-01T00:00:00Z\"}\n"]
            .concat();
    let said = sandbox.run(&["import", "other", "--sorted", "--format", "jsonl"], &more, USAGE).stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("line 5") && said.contains("without --sorted"), "{said}");
}

#[test]
fn every_legal_name_of_a_keyspace_has_a_file() {
    let sandbox = Sandbox::new();
    let db = Db::open(sandbox.path("db")).unwrap();
    let names = ["ж".repeat(42), "ж".repeat(127), "/".repeat(255), "..".into(), "users".into(), "Users".into()];
    let mut batch = WriteBatch::new();
    for name in &names {
        batch.put_in(&db.keyspace(name).unwrap(), "name", name);
    }
    db.write(batch).unwrap();
    db.close().unwrap();
    for format in ["csv", "jsonl"] {
        sandbox.words(&["export", "db", format, "--all-keyspaces", "--format", format], DONE);
        assert_eq!(fs::read_dir(sandbox.path(format)).unwrap().count(), names.len() + 1);
    }
    assert!(sandbox.path(&format!("csv/{}.csv", "ж".repeat(42))).exists());
    // A file that cannot be replaced is found before any is.
    fs::remove_file(sandbox.path("csv/default.csv")).unwrap();
    fs::create_dir(sandbox.path("csv/default.csv")).unwrap();
    sandbox.text(&["put", "db", "name", "new", "--keyspace", "Users"]);
    let before: BTreeMap<_, _> = fs::read_dir(sandbox.path("csv"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    sandbox.words(&["export", "db", "csv", "--all-keyspaces", "--format", "csv"], USAGE);
    assert!(before.iter().all(|(path, bytes)| fs::read(path).unwrap() == *bytes));
}

#[test]
fn one_rule_for_encodings_in_all_formats() {
    let sandbox = Sandbox::new();
    let records: [(&str, &[u8]); 4] =
        [("tsv", b"k\tv\n"), ("csv", b"k,v\n"), ("jsonl", b"{\"key\":\"k\",\"value\":\"v\"}\n"), ("nul", b"k\0v\0")];
    let wide = |text: &[u8], little: bool| -> Vec<u8> {
        text.iter().flat_map(|&byte| if little { [byte, 0] } else { [0, byte] }).collect()
    };
    for (format, record) in records {
        let import = |input: &[u8], code| {
            let said = sandbox.run(&["import", "db", "--format", format, "--dry-run"], input, code).stderr;
            String::from_utf8(said).unwrap()
        };
        let marked = [b"\xef\xbb\xbf", record].concat();
        sandbox.run(&["import", format, "--format", format], &marked, DONE);
        assert_eq!(sandbox.text(&["scan", format]), "k\tv\n", "{format}");
        for other in [[b"\xff\xfe", &wide(record, true)[..]].concat(), [b"\xfe\xff", &wide(record, false)[..]].concat()]
        {
            assert!(import(&other, USAGE).contains("UTF-16"), "{format}");
        }
        if format != "nul" {
            assert!(import(&wide(b"a line of text", true), USAGE).contains("UTF-16"), "{format}");
        }
        assert!(import(b"\x1f\x8b\x08\0\0\0", USAGE).contains("gzip"), "{format}");
        assert!(import(b"PK\x03\x04\x14\0", USAGE).contains("zip"), "{format}");
        // What looks like something else and is none comes back all the same.
        for key in [&b"\xef\xbb\xbf"[..], b"\xff\xfe", b"\xef\xbb\xbf\xff\xfe", b"PK\x03\x04", b"\x1f\x8b"] {
            let (source, copy) = (format!("{format} {key:?}"), format!("{format} {key:?} copy"));
            let db = Db::open(sandbox.path(&source)).unwrap();
            db.put(key, "v").unwrap();
            db.close().unwrap();
            let out = sandbox.check(&["export", &source, "--format", format], DONE);
            sandbox.run(&["import", &copy, "--format", format], &out, DONE);
            let copy = Db::open_read_only(sandbox.path(&copy)).unwrap();
            assert_eq!(copy.get(key).unwrap().as_deref(), Some(&b"v"[..]), "{format} {key:?}");
        }
    }
    let table = sandbox.files("tsv").into_keys().find(|path| path.extension().is_some_and(|e| e == "sst")).unwrap();
    let said = sandbox.words(&["import", "db", table.to_str().unwrap()], USAGE);
    assert!(said.contains("kvtool ingest"), "{said}");
}

#[test]
fn ambiguous_records_are_errors_with_their_number() {
    let sandbox = Sandbox::new();
    for (format, record, why) in [
        ("jsonl", &b"{\"key\":\"a\",\"key_hex\":\"61\"}"[..], "both key and key_hex"),
        ("jsonl", b"{\"key\":\"a\",\"key\":\"b\"}", "twice"),
        ("jsonl", b"{\"key\":\"a\",\"vlaue\":\"b\"}", "\"vlaue\""),
        ("jsonl", b"{\"key\":\"a\",\"deadline\":17}", "deadline"),
        ("csv", b"a,b,c", "more than two fields"),
        ("tsv", b"\tb", "no key"),
        ("tsv", b"{\"key\":\"a\",\"value\":\"b\"}", "--format jsonl"),
        ("nul", b"a\0", "no value"),
    ] {
        let good: &[u8] = match format {
            "jsonl" => b"{\"key\":\"k\"}\n",
            "nul" => b"k\0v\0",
            _ => b"k\n",
        };
        let said = sandbox.run(&["import", "db", "--format", format], &[good, record].concat(), USAGE).stderr;
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains(" 2 of standard input") && said.contains(why), "{format}: {said}");
    }
}
