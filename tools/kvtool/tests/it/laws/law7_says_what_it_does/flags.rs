//! Each command takes the flags that mean something to it: each changes what the command does, and
//! any other is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::sandbox::{DONE, Sandbox, USAGE};

/// Of these no call is made twice: they run until they are interrupted, or for long, or need
/// input. Other tests run them.
const LONG: [&str; 11] = [
    "demo",
    "soak",
    "bench reads",
    "bench run",
    "changes --follow",
    "backup --follow",
    "backup --every",
    "shell --keep-going",
    "top",
    "watch --interval",
    "watch --count",
];

/// A command without a flag and with it. What they print, their exit codes or the files that they
/// leave differ.
const CALLS: &[(&str, &str)] = &[
    ("shell absent", "shell absent --read-only"),
    ("put db 6b 76", "put db 6b 76 --hex"),
    (r"put db a\tb 76", r"put db a\tb 76 --escaped"),
    ("put db 6b 76", "put db 6b 76 --keyspace m"),
    ("put db 6b 76", "put db 6b 76 --json"),
    ("put db 6b 76", "put db 6b 76 --format json"),
    ("put db 6b 76", "put db 6b --file lines"),
    ("put db 6b 76", "put db 6b 76 --ttl 1000000"),
    ("merge db 6e 3035 --operator append", "merge db 6e 3035 --operator append --hex"),
    (r"merge db n \t --operator append", r"merge db n \t --operator append --escaped"),
    ("merge db n 5 --operator append", "merge db n 5 --operator append --keyspace o"),
    ("merge db n 5 --operator append", "merge db n 5 --operator append --json"),
    ("merge db n 5 --operator append", "merge db n 5 --operator append --format json"),
    ("merge db n 5", "merge db n 5 --operator append"),
    ("get db 6b657931", "get db 6b657931 --hex"),
    (r"get db a\tb", r"get db a\tb --escaped"),
    ("get db key1", "get db key1 --keyspace m"),
    ("get db key1", "get db key1 --json"),
    ("get db key1", "get db key1 --format json"),
    ("get db key1", "get db key1 --raw"),
    ("get db key1", "get db --keys-from lines"),
    ("get db --keys-from lines", "get db --keys-from lines --filters ignore"),
    ("get db key1 nobody", "get db key1 nobody --missing"),
    ("explain db 6b657931", "explain db 6b657931 --hex"),
    (r"explain db a\tb", r"explain db a\tb --escaped"),
    ("explain db key1", "explain db key1 --keyspace m"),
    ("explain db key1", "explain db key1 --json"),
    ("explain db key1", "explain db key1 --format json"),
    ("explain db key1", "explain db key1 --format plain"),
    ("explain db key55", "explain db key55 --filters ignore"),
    ("explain db --prefix key", "explain db --prefix key --from key98"),
    ("explain db --prefix key", "explain db --prefix key --to key10"),
    ("explain db --from key", "explain db --from key --prefix key98"),
    ("explain db --from key", "explain db --from key --limit 3"),
    ("delete db 6b657931", "delete db 6b657931 --hex"),
    (r"delete db a\tb", r"delete db a\tb --escaped"),
    ("delete db key1", "delete db key1 --keyspace m"),
    ("delete db key1", "delete db key1 --json"),
    ("delete db key1", "delete db key1 --format json"),
    ("delete db", "delete db --keys-from lines"),
    ("delete db", "delete db --prefix key"),
    ("delete db --to key5", "delete db --to key5 --from key2"),
    ("delete db --from key5", "delete db --from key5 --to key7"),
    ("delete-range db --prefix key", "delete-range db --prefix key --json"),
    ("delete-range db --prefix key", "delete-range db --prefix key --format json"),
    ("delete-range db --prefix 6b", "delete-range db --prefix 6b --hex"),
    (r"delete-range db --prefix a\t", r"delete-range db --prefix a\t --escaped"),
    ("delete-range db --prefix key", "delete-range db --prefix key --keyspace m"),
    ("delete-range db --to key5", "delete-range db --to key5 --from key2"),
    ("delete-range db --from key5", "delete-range db --from key5 --to key7"),
    ("delete-range db", "delete-range db --prefix key"),
    ("delete-range db", "delete-range db --all"),
    ("keyspace set db m --json", "keyspace set db m --json --filter none"),
    ("create-keyspace db n", "create-keyspace db n --filter none"),
    ("keyspace set db m --json", "keyspace set db m --json --range-filter 12"),
    ("create-keyspace db n", "create-keyspace db n --range-filter 12"),
    ("keyspace set db m --json", "keyspace set db m --json --compression none"),
    ("create-keyspace db n", "create-keyspace db n --compression none"),
    ("keyspace set db m --json", "keyspace set db m --json --block-size 8192"),
    ("create-keyspace db n", "create-keyspace db n --block-size 8192"),
    ("keyspace set db m --json", "keyspace set db m --json --prefix 4"),
    ("create-keyspace db n", "create-keyspace db n --prefix 4"),
    ("keyspace set db m --json", "keyspace set db m --json --ttl 60"),
    ("create-keyspace db n", "create-keyspace db n --ttl 60"),
    ("keyspace set db m --json", "keyspace set db m --json --separate-values 2000"),
    ("create-keyspace db n", "create-keyspace db n --separate-values 2000"),
    ("keyspace set db m --json", "keyspace set db m --json --wal false"),
    ("create-keyspace db n", "create-keyspace db n --wal false"),
    ("keyspace set db m --json", "keyspace set db m --json --operator append"),
    ("create-keyspace db n", "create-keyspace db n --operator append"),
    ("keyspace set db m --ttl 1", "keyspace set db m --ttl 1 --json"),
    ("keyspace set db m --ttl 1", "keyspace set db m --ttl 1 --format json"),
    ("diff db bad --count", "diff db bad --count --from key5"),
    ("diff db bad --count", "diff db bad --count --to key5"),
    ("diff db bad --count", "diff db bad --count --prefix key5"),
    ("diff db open", "diff db open --limit 1"),
    ("diff db open", "diff db open --count"),
    ("diff db open", "diff db open --json"),
    ("diff db open", "diff db open --format json"),
    ("diff db open", "diff db open --hex"),
    ("diff db open", "diff db open --escaped"),
    ("diff db open", "diff db open --keyspace m"),
    ("batch db writes", "batch db writes --json"),
    ("batch db writes", "batch db writes --format json"),
    ("batch db writes", "batch db writes --keyspace m"),
    ("sst db 4 --entries", "sst db 4 --entries --from key5"),
    ("sst db 4 --entries", "sst db 4 --entries --to key5"),
    ("sst db 4 --entries", "sst db 4 --entries --prefix key5"),
    ("scan db", "scan db --from key5"),
    ("scan db", "scan db --to key5"),
    ("scan db", "scan db --prefix key5"),
    ("scan db", "scan db --limit 2"),
    ("scan db", "scan db --reverse"),
    ("scan db", "scan db --keys-only"),
    ("scan db", "scan db --values-only"),
    ("scan db", "scan db --count"),
    ("scan bad", "scan bad --skip-damaged"),
    ("scan db", "scan db --hex"),
    ("scan db", "scan db --escaped"),
    ("scan db", "scan db --json"),
    ("scan db", "scan db --format json"),
    ("scan db", "scan db --keyspace m"),
    ("count db", "count db --from key5"),
    ("count db", "count db --to key5"),
    ("count db", "count db --prefix key5"),
    ("count db --prefix 6b", "count db --prefix 6b --hex"),
    (r"count db --prefix a\t", r"count db --prefix a\t --escaped"),
    ("count db", "count db --json"),
    ("count db", "count db --format json"),
    ("count db", "count db --keyspace m"),
    ("size db --json", "size db --json --from zz"),
    ("size db --json", "size db --json --to a"),
    ("size db --json", "size db --json --prefix zz"),
    ("size db --from 6b --json", "size db --from 6b --json --hex"),
    (r"size db --from \q", r"size db --from \q --escaped"),
    ("size db", "size db --json"),
    ("size db", "size db --format json"),
    ("size db", "size db --format plain"),
    ("size db --json", "size db --json --keyspace m"),
    ("changes new", "changes new --since 2"),
    ("changes new", "changes new --limit 1"),
    ("changes new", "changes new --full"),
    ("changes new", "changes new --hex"),
    ("changes new", "changes new --escaped"),
    ("changes new", "changes new --json"),
    ("changes new", "changes new --format json"),
    ("changes new", "changes new --keyspace m"),
    ("import db lines", "import db lines --skip 1"),
    ("import db lines", "import db lines --format csv"),
    ("import db lines", "import db lines --dry-run"),
    ("import db unsorted", "import db unsorted --sorted"),
    ("import db lines --sorted", "import db lines --sorted --replace"),
    ("import db lines", "import db lines --hex"),
    ("import db escapes", "import db escapes --escaped"),
    ("import db lines", "import db lines --json"),
    ("import db lines", "import db lines --keyspace m"),
    ("sst-build db t lines", "sst-build db t lines --format csv"),
    ("sst-build db t big", "sst-build db t big --table-size 1"),
    ("sst-build db t lines", "sst-build db t lines --delete-range a b"),
    ("sst-build db t lines", "sst-build db t lines --delete-from a"),
    ("sst-build db t lines", "sst-build db t lines --hex"),
    ("sst-build db t escapes", "sst-build db t escapes --escaped --json"),
    ("sst-build db t lines", "sst-build db t lines --json"),
    ("sst-build db t lines", "sst-build db t lines --keyspace absent"),
    ("ingest db tables/000001.sst --json", "ingest db tables/000001.sst --json --copy"),
    ("ingest db tables/000001.sst", "ingest db tables/000001.sst --move"),
    ("ingest db tables/000001.sst", "ingest db tables/000001.sst --keyspace m"),
    ("ingest db tables/000001.sst", "ingest db tables/000001.sst --json"),
    ("ingest db tables/000001.sst", "ingest db tables/000001.sst --format json"),
    ("export db out", "export db out --all-keyspaces"),
    ("export bad", "export bad --skip-damaged"),
    ("export db", "export db --format csv"),
    ("export db", "export db --from key5"),
    ("export db", "export db --to key5"),
    ("export db", "export db --prefix key5"),
    ("export db", "export db --hex"),
    ("export db", "export db --escaped"),
    ("export db", "export db --json"),
    ("export db", "export db --keyspace m"),
    ("watch db --count 1 --interval 0.05", "watch db --count 1 --interval 0.05 --json"),
    ("watch db --count 1 --interval 0.05", "watch db --count 1 --interval 0.05 --format json"),
    ("stats db", "stats db --keys-from lines"),
    ("stats db", "stats db --ranges-from lines"),
    ("stats db --keys-from lines", "stats db --keys-from lines --filters shadow"),
    ("stats db", "stats db --prometheus"),
    ("stats db --keys-from lines", "stats db --keys-from lines --hex"),
    ("stats db --keys-from escapes", "stats db --keys-from escapes --escaped"),
    ("stats db", "stats db --json"),
    ("stats db", "stats db --format json"),
    ("stats db", "stats db --format plain"),
    ("stats db", "stats db --keyspace m"),
    ("report db", "report db --output report.html"),
    ("report db", "report db --keys-from lines"),
    ("report db --keys-from lines", "report db --keys-from lines --hex"),
    ("report db --keys-from escapes", "report db --keys-from escapes --escaped"),
    ("report db", "report db --keyspace m"),
    ("levels db", "levels db --hex"),
    ("levels db", "levels db --escaped"),
    ("levels db", "levels db --json"),
    ("levels db", "levels db --format json"),
    ("levels db", "levels db --format plain"),
    ("levels db", "levels db --keyspace m"),
    ("keyspaces db", "keyspaces db --json"),
    ("keyspaces db", "keyspaces db --format json"),
    ("keyspaces db", "keyspaces db --format plain"),
    ("keyspaces db", "keyspaces db --keyspace m"),
    ("create-keyspace db n", "create-keyspace db n --json"),
    ("create-keyspace db n", "create-keyspace db n --format json"),
    ("drop-keyspace db m", "drop-keyspace db m --json"),
    ("drop-keyspace db m", "drop-keyspace db m --format json"),
    ("compact db --json", "compact db --json --from zzz"),
    ("compact db --json", "compact db --json --to a"),
    ("compact db --from zz", "compact db --from zz --hex"),
    (r"compact db --from \q", r"compact db --from \q --escaped"),
    ("compact db", "compact db --json"),
    ("compact db", "compact db --format json"),
    ("compact db --json", "compact db --json --keyspace m"),
    ("backup db backups --json", "backup db backups --json --keep 1"),
    ("backup db backups", "backup db backups --json"),
    ("backup db backups", "backup db backups --format json"),
    ("backup db backups --json", "backup db backups --json --keyspace m"),
    ("backups backups", "backups backups --verify"),
    ("backups backups", "backups backups --json"),
    ("backups backups", "backups backups --format json"),
    ("backups backups", "backups backups --format plain"),
    ("backups backups", "backups backups --forget 0000000000000000"),
    ("restore backups r", "restore backups r --generation 1"),
    ("restore backups r", "restore backups r --at 1970-01-01T00:00:00Z"),
    ("restore backups r", "restore backups r --seqno 1"),
    ("restore backups r", "restore backups r --store 0000000000000000"),
    ("restore backups r", "restore backups r --json"),
    ("restore backups r", "restore backups r --format json"),
    ("restore backups r", "restore backups r --keyspace m"),
    ("restore backups r --keyspace m", "restore backups r --keyspace m --as o"),
    ("checkpoint db c", "checkpoint db c --json"),
    ("checkpoint db c", "checkpoint db c --format json"),
    ("sst tables/000001.sst", "sst tables/000001.sst --blocks"),
    ("sst tables/000001.sst", "sst tables/000001.sst --entries"),
    ("sst tables/000001.sst", "sst tables/000001.sst --hex"),
    ("sst tables/000001.sst", "sst tables/000001.sst --escaped"),
    ("sst tables/000001.sst", "sst tables/000001.sst --json"),
    ("sst tables/000001.sst", "sst tables/000001.sst --format json"),
    ("sst tables/000001.sst", "sst tables/000001.sst --format plain"),
    ("dump new/LOG", "dump new/LOG --full"),
    ("dump new/LOG", "dump new/LOG --hex"),
    ("dump new/LOG", "dump new/LOG --escaped"),
    ("dump new/LOG", "dump new/LOG --json"),
    ("dump new/LOG", "dump new/LOG --format json"),
    ("verify db", "verify db --json"),
    ("verify db", "verify db --format json"),
    ("repair bad", "repair bad --dry-run"),
    ("repair bad", "repair bad --json"),
    ("repair bad", "repair bad --format json"),
    ("filter create f lines", "filter create f lines --bits-per-key 5"),
    ("filter create f lines --probes 3", "filter create f lines --probes 3 --bits 1024"),
    ("filter create f lines --bits 1024", "filter create f lines --bits 1024 --probes 3"),
    ("filter create f lines", "filter create f lines --fuse 8"),
    ("filter create f lines", "filter create f lines --error-rate 0.1"),
    ("filter create f lines", "filter create f lines --capacity 500"),
    ("filter create f lines", "filter create f lines --scalable"),
    ("filter create f lines", "filter create f lines --seed 7"),
    ("filter create f lines", "filter create f lines --hash murmur3"),
    ("filter create f lines", "filter create f lines --layout standard"),
    ("filter create a.bloom lines", "filter create a.bloom lines --force"),
    ("filter create f lines", "filter create f lines --hex"),
    ("filter create f escapes", "filter create f escapes --escaped"),
    ("filter create f lines", "filter create f lines --json"),
    ("filter create f lines", "filter create f lines --format json"),
    ("filter add a.bloom lines", "filter add a.bloom lines --hex"),
    ("filter add a.bloom escapes", "filter add a.bloom escapes --escaped"),
    ("filter add a.bloom lines", "filter add a.bloom lines --json"),
    ("filter add a.bloom lines", "filter add a.bloom lines --format json"),
    ("filter check a.bloom lines", "filter check a.bloom lines --invert"),
    ("filter check a.bloom lines", "filter check a.bloom lines --count"),
    ("filter check a.bloom lines", "filter check a.bloom lines --hex"),
    ("filter check a.bloom odd", "filter check a.bloom odd --escaped"),
    ("filter check a.bloom lines", "filter check a.bloom lines --json"),
    ("filter check a.bloom lines", "filter check a.bloom lines --format json"),
    ("filter union a.bloom b.bloom", "filter union a.bloom b.bloom --output u"),
    ("filter union a.bloom b.bloom -o b.bloom", "filter union a.bloom b.bloom -o b.bloom --force"),
    ("filter union a.bloom b.bloom -o u", "filter union a.bloom b.bloom -o u --json"),
    ("filter union a.bloom b.bloom -o u", "filter union a.bloom b.bloom -o u --format json"),
    ("filter info a.bloom", "filter info a.bloom --json"),
    ("filter info a.bloom", "filter info a.bloom --format json"),
    ("filter info a.bloom", "filter info a.bloom --format plain"),
    ("filter rebuild db", "filter rebuild db --bits 4"),
    ("filter rebuild db", "filter rebuild db --policy none"),
    ("filter rebuild db", "filter rebuild db --range-filter 12"),
    ("filter rebuild db", "filter rebuild db --all"),
    ("filter rebuild db --bits 4", "filter rebuild db --bits 4 --allocate"),
    ("filter rebuild db --absent 0.5 --bits 4", "filter rebuild db --absent 0.5 --bits 4 --allocate"),
    ("filter rebuild db --bits 4 --allocate", "filter rebuild db --bits 4 --allocate --absent 0.5"),
    ("filter rebuild db", "filter rebuild db --keyspace m"),
    ("filter rebuild db", "filter rebuild db --json"),
    ("filter rebuild db", "filter rebuild db --format json"),
    ("filter advise db", "filter advise db --trace lines"),
    ("filter advise db", "filter advise db --ranges-from lines"),
    ("filter advise db --trace lines", "filter advise db --trace lines --hex"),
    ("filter advise db --trace odd", "filter advise db --trace odd --escaped"),
    ("filter advise db", "filter advise db --json"),
    ("filter advise db", "filter advise db --format json"),
    ("filter advise db", "filter advise db --format plain"),
    ("filter advise db", "filter advise db --keyspace m"),
];

/// What each call begins with.
fn fixture() -> Sandbox {
    let sandbox = Sandbox::with_store(10, 1, &[]);
    sandbox.text(&["put", "db", "--escaped", r"a\tb", r"\x00"]);
    sandbox.text(&["put", "db", "key3", "of keyspace m", "--keyspace", "m"]);
    let lines: String = (1..9).map(|i| format!("key{i}\tnew\n")).collect();
    fs::write(sandbox.path("lines"), &lines).unwrap();
    fs::write(sandbox.path("writes"), "put key1 new\n").unwrap();
    fs::write(sandbox.path("unsorted"), "key2\tx\nkey1\ty\n").unwrap();
    fs::write(sandbox.path("escapes"), "a\\tb\t\\x41\nkey1\t\\\\\n").unwrap();
    fs::write(sandbox.path("odd"), "\\q\tno escape\n").unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let mut long = || -> String { (0..50_000).map(|_| random.alphanumeric()).collect() };
    let big: String = (0..40).map(|i| format!("key{i:03}\t{}\n", long())).collect();
    fs::write(sandbox.path("big"), big).unwrap();
    sandbox.text(&["sst-build", "db", "tables", "escapes"]);
    sandbox.text(&["backup", "db", "backups"]);
    sandbox.text(&["put", "db", "key2", "second"]);
    sandbox.text(&["backup", "db", "backups"]);
    for filter in ["a.bloom", "b.bloom"] {
        sandbox.text(&["filter", "create", filter, "lines", "--bits", "4096", "--probes", "5"]);
    }
    // With writes in its log, as after a kill.
    let db = tamis::Db::open(sandbox.path("open")).unwrap();
    db.put("a\tb", "x".repeat(200)).unwrap();
    db.put("key", "value").unwrap();
    db.keyspace("m").unwrap().put("key", "value").unwrap();
    copy(&sandbox.path("open"), &sandbox.path("new"));
    db.close().unwrap();
    copy(&sandbox.path("db"), &sandbox.path("bad"));
    let table = sandbox.files("bad").into_keys().find(|path| path.extension().is_some_and(|e| e == "sst")).unwrap();
    let mut bytes = fs::read(&table).unwrap();
    bytes[70] ^= 1;
    fs::write(&table, bytes).unwrap();
    sandbox
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        match path.is_dir() {
            true => copy(&path, &to),
            false => _ = fs::copy(&path, &to).unwrap(),
        }
    }
}

/// What a call does: exit code, output without what differs from run to run, files, and the content
/// of the store.
fn outcome(fixture: &Sandbox, call: &str) -> String {
    let sandbox = Sandbox::new();
    copy(fixture.dir(), sandbox.dir());
    let logs = sandbox.files("new").into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "wal"));
    let log = logs.max_by_key(|(_, bytes)| bytes.len()).unwrap().0;
    let call = call.replace("new/LOG", log.to_str().unwrap());
    let args: Vec<&str> = call.split(' ').collect();
    let output = sandbox.command(&args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{call}: {said}");
    let mut outcome = format!("{:?}\n{}\n{}\n", output.status.code(), steady(&output.stdout), steady(&output.stderr));
    let mut names: Vec<_> = fs::read_dir(sandbox.dir()).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    for path in names {
        let is_file = path.is_file();
        outcome.push_str(&format!("{:?} {:?}\n", path.file_name(), is_file.then(|| fs::read(&path).unwrap())));
        if !is_file && path.join("000001.sst").exists() {
            outcome.push_str(&format!("{} tables\n", fs::read_dir(&path).unwrap().count()));
        }
    }
    outcome.push_str(&format!("{}", sandbox.path("tables/000001.sst").exists()));
    let writes =
        ["put", "merge", "delete", "delete-range", "batch", "import", "ingest", "restore", "filter", "create-keyspace"];
    if writes.contains(&args[0]) {
        for store in ["db", "r"] {
            let all = sandbox.command(&["export", store, "--all-keyspaces", "--format", "jsonl"]).output().unwrap();
            let all = String::from_utf8_lossy(&all.stdout).into_owned();
            // Deadlines are of the time of the run.
            let lines =
                all.lines().map(|line| line.split("\"deadline\":\"").next().unwrap_or_default().to_owned() + "\n");
            outcome.extend(lines);
        }
    }
    outcome
}

/// `output` without figures that have a fraction, and rates.
fn steady(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let words = text.split_inclusive([' ', '\n', ',', ':']);
    words.filter(|word| !(word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))).collect::<String>()
}

/// The commands with their flags, from their help.
fn flags(sandbox: &Sandbox) -> BTreeMap<String, BTreeSet<String>> {
    let of = |help: &str, head: &str| -> Vec<String> {
        let lines = help.lines().skip_while(|line| !line.starts_with(head)).skip(1).take_while(|line| !line.is_empty());
        let name = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        lines
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
            .map(name)
            .filter(|name| name != "help")
            .collect()
    };
    let mut all = BTreeMap::new();
    for command in of(&sandbox.text(&["-h"]), "Commands:") {
        let nested = of(&sandbox.text(&[&command, "-h"]), "Commands:");
        let calls = if nested.is_empty() {
            vec![command.clone()]
        } else {
            nested.iter().map(|n| format!("{command} {n}")).collect()
        };
        for call in calls {
            let args: Vec<&str> = call.split(' ').chain(["-h"]).collect();
            let help = sandbox.text(&args);
            let options = help.lines().skip_while(|line| !line.starts_with("Options:"));
            // A flag's own line; the lines of its description are indented further.
            let flag = |line: &str| {
                let line = line.strip_prefix("      ").or(line.strip_prefix("  ")).filter(|l| l.starts_with('-'))?;
                line.split([' ', ',', '=']).find(|word| word.starts_with("--")).map(str::to_owned)
            };
            let own = options.filter_map(flag).filter(|flag| flag != "--help").collect();
            all.insert(call, own);
        }
    }
    all
}

#[test]
fn each_flag_of_each_command_changes_what_it_does() {
    let sandbox = fixture();
    let mut tried: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut bases: BTreeMap<&str, String> = BTreeMap::new();
    for (without, with) in CALLS {
        let words: Vec<&str> = with.split(' ').collect();
        let command =
            if ["filter", "keyspace"].contains(&words[0]) { words[..2].join(" ") } else { words[0].to_owned() };
        let mut new =
            words.iter().filter(|word| word.starts_with("--") && !without.split(' ').any(|old| old == **word));
        tried.entry(command).or_default().insert((*new.next().unwrap()).to_owned());
        let base = bases.entry(without).or_insert_with(|| outcome(&sandbox, without));
        assert!(outcome(&sandbox, with) != *base, "{with} does what {without} does");
    }
    // The table is complete.
    for (command, flags) in flags(&sandbox).into_iter().filter(|(command, _)| !LONG.contains(&command.as_str())) {
        let tried = tried.remove(&command).unwrap_or_default();
        let is_missing = |flag: &&String| !tried.contains(*flag) && !LONG.contains(&&*format!("{command} {flag}"));
        let missing: Vec<&String> = flags.iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "{command}: no call tries {missing:?}");
    }
}

#[test]
fn flags_that_mean_nothing_to_a_command_are_refused() {
    let sandbox = Sandbox::with_store(10, 1, &[]);
    for call in [
        "backup db b --keyspace m --follow",
        "restore b r --as m",
        "checkpoint db c --keyspace m",
        "verify db --keyspace m",
        "repair db --keyspace m",
        "verify db --hex",
        "backup db b --hex",
        "keyspaces db --escaped",
        "ingest db x.sst --hex",
        "sst db 3 --keyspace m",
        "dump db/CURRENT --keyspace m",
        "demo --keyspace m",
        "filter info f --hex",
        "filter create f --keyspace m",
        "filter rebuild db --hex",
        "filter advise db --hex",
        "stats db --escaped",
        "--json get db key1",
    ] {
        let args: Vec<&str> = call.split(' ').collect();
        sandbox.words(&args, USAGE);
    }
    assert!(!sandbox.path("b").exists() && !sandbox.path("c").exists());
}

#[test]
fn restore_prints_json() {
    let sandbox = Sandbox::with_store(10, 1, &[]);
    sandbox.run(&["backup", "db", "b"], b"", DONE);
    let restored = sandbox.json(&["restore", "b", "r"]);
    assert_eq!((&restored["generation"], &restored["seqno"]), (&1.into(), &10.into()));
}

#[test]
fn what_filters_save_is_shown_where_it_is_known() {
    let sandbox = Sandbox::with_store(10, 1, &[]);
    let stats = |filters: &str| {
        let output = sandbox.run(&["stats", "db", "--keys-from", "-", "--filters", filters], b"absent\nkey1\n", DONE);
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(stats("shadow").contains("blocks filters save"));
    assert!(!stats("use").contains("filters save") && !stats("ignore").contains("filters save"));
}
