//! `report`: a page that is well-formed and does nothing, with the figures that `stats` has.

use std::fs;

use roxmltree::{Document, Node, ParsingOptions};
use serde_json::Value;

use crate::sandbox::{CORRUPTION, DONE, IO, Sandbox, USAGE};

/// Keys that a page must not take for markup, and cannot hold as they are.
const ODD: [&str; 4] = [r"<script>alert(1)</script>", r"\x00\x1b[31m", r"\xff\xfe", r#""'&amp;]]>--><!--"#];

/// Parses a page. It must be well-formed, run nothing and load nothing.
#[track_caller]
fn parse(page: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(page, options).unwrap();
    for node in document.descendants().filter(Node::is_element) {
        assert!(!["script", "link", "img", "iframe", "object", "embed", "base"].contains(&node.tag_name().name()));
        for attribute in node.attributes() {
            assert!(!["src", "href", "style"].contains(&attribute.name()), "{attribute:?}");
            assert!(!attribute.name().starts_with("on"), "{attribute:?}");
        }
    }
    for load in ["<script", "://", "url(", "@import"] {
        assert!(!page.contains(load), "{load}");
    }
    assert!(page.chars().all(|c| !c.is_control() || c == '\n'));
    document
}

fn text(node: Node<'_, '_>) -> String {
    node.descendants().filter_map(|node| node.is_text().then(|| node.text())?).collect()
}

/// Writes lines to a table of their own: what `put` writes may stay in the log.
fn add_table(sandbox: &Sandbox, lines: &str, flags: &[&str]) {
    sandbox.run(&[&["import", "db"], flags].concat(), lines.as_bytes(), DONE);
}

/// All text of a page, with single spaces.
fn words(document: &Document<'_>) -> String {
    text(document.root_element()).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The rows of the first table whose heads begin like this.
#[track_caller]
fn table(document: &Document<'_>, begin: &[&str]) -> Vec<Vec<String>> {
    let tables = document.descendants().filter(|node| node.has_tag_name("table"));
    let rows = |table: Node<'_, '_>| -> Vec<Vec<String>> {
        let rows = table.descendants().filter(|node| node.has_tag_name("tr"));
        rows.map(|row| row.children().filter(Node::is_element).map(text).collect()).collect()
    };
    let mut rows = tables.map(rows).find(|rows| rows[0].iter().take(begin.len()).eq(begin)).unwrap();
    rows.remove(0);
    rows
}

/// A number as a page has it.
fn number(cell: &str) -> u64 {
    cell.replace(',', "").parse().unwrap()
}

#[test]
fn a_page_says_what_stats_say() {
    let sandbox = Sandbox::with_store(5000, 5, &[]);
    sandbox.text(&["delete", "db", "key00007"]);
    let page = sandbox.text(&["report", "db"]);
    let document = parse(&page);
    let stats = sandbox.json(&["stats", "db"]);
    let keyspace = &stats["keyspaces"][0];
    let levels: Vec<&Value> =
        keyspace["levels"].as_array().unwrap().iter().filter(|level| level["tables"].as_u64() > Some(0)).collect();
    let rows = table(&document, &["level", "tables", "size"]);
    assert_eq!(rows.len(), levels.len() + 1);
    for (row, level) in rows.iter().zip(&levels) {
        assert_eq!(row[0], level["level"].to_string());
        let counts = ["tables", "entries", "tombstones"].map(|name| level[name].as_u64().unwrap());
        assert_eq!([number(&row[1]), number(&row[3]), number(&row[4])], counts);
        let bits = level["filter_bits_per_key"].as_f64().unwrap();
        assert_eq!(row[7], format!("{bits:.2}"));
    }
    let said = words(&document);
    let look_up = &keyspace["look_up"];
    let wasted = look_up["wasted_reads_per_100"].as_f64().unwrap() / 100.0;
    assert!((look_up["filters"].as_f64().unwrap() - 1.0).abs() < 1e-9);
    assert!(said.contains(&format!("asks 1 filter and reads {wasted:.4} blocks")), "{said}");
    assert!(said.contains("About 4,999 keys") && said.contains("No table has been read in this run"), "{said}");
    // The advice, as the command has it.
    let advice = sandbox.json(&["filter", "advise", "db"]);
    let rows = table(&document, &["bits per key", "memory"]);
    let choices = advice["choices"].as_array().unwrap();
    assert_eq!(rows.len(), choices.len() + 1);
    for (row, choice) in rows[1..].iter().zip(choices) {
        assert_eq!(row[0], choice["bits_per_key"].to_string());
        assert_eq!(row[3], format!("{:.5}", choice["wasted_reads"].as_f64().unwrap()));
    }
    let pictures = document.descendants().filter(|node| node.has_tag_name("svg")).count();
    assert_eq!(pictures, 4, "levels, filters, sizes, disk");
}

#[test]
fn a_get_meets_only_the_tables_of_level_0_that_are_over_its_key() {
    let sandbox = Sandbox::new();
    for batch in 0..8 {
        let lines: String = (0..200).map(|i| format!("key{batch}{i:03}\tvalue\n")).collect();
        add_table(&sandbox, &lines, &[]);
    }
    let absent: String = (0..8).map(|batch| format!("key{batch}100x\n")).collect();
    fs::write(sandbox.path("keys"), absent).unwrap();
    let page = sandbox.text(&["report", "db", "--keys-from", "keys"]);
    let document = parse(&page);
    let said = words(&document);
    assert!(said.contains("8 tables, 1 over one key"), "{said}");
    assert!(said.contains("absent key asks 1 filter and reads") && said.contains("filters it would read 1."), "{said}");
    // As measured.
    assert_eq!(table(&document, &["look-ups of"])[0][5], "1.0000");
}

#[test]
fn look_ups_of_keys_are_counted_with_filters_and_without() {
    let sandbox = Sandbox::with_store(3000, 5, &[]);
    // A second run.
    add_table(&sandbox, "key00000\tnew\nkey99999\tnew\n", &[]);
    let keys: String = (0..600).map(|i| format!("key{:05}\nkey{:05}x\n", 5 * i, 5 * i)).collect();
    fs::write(sandbox.path("keys"), keys).unwrap();
    let stats = |filters: &str| {
        let stats = sandbox.json(&["stats", "db", "--keys-from", "keys", "--filters", filters]);
        let reads = &stats["reads"];
        let blocks = ["block_reads", "cache_hits"].map(|name| reads[name].as_u64().unwrap()).iter().sum::<u64>();
        (blocks, reads["false_positives"].as_u64().unwrap())
    };
    let ((with, wrong), (without, _)) = (stats("use"), stats("ignore"));
    let page = sandbox.text(&["report", "db", "--keys-from", "keys"]);
    let document = parse(&page);
    let rows = table(&document, &["look-ups of"]);
    let row = |at: usize| [1, 2, 3].map(|cell| number(&rows[at][cell]));
    assert_eq!((rows[0][0].as_str(), row(0)[0], row(1)[0]), ("absent keys", 600, 600));
    assert_eq!(row(2), [1200, without, with]);
    assert_eq!(row(0)[1] + row(1)[1], without);
    let said = words(&document);
    let counters = format!("{} block reads without filters, and {} with them", counted(without), counted(with));
    assert!(said.contains(&counters), "{said}");
    let were = if wrong == 1 { "was" } else { "were" };
    assert!(
        said.contains("The filters' bits predict ") && said.contains(&format!("; {wrong} {were} measured.")),
        "{said}"
    );
    let hot = table(&document, &["table", "level", "from key"]);
    assert!(hot.iter().any(|row| row[2] == "key00000") && hot.len() >= 2);
    // Advice is weighted by these look-ups, as `--trace` weights it.
    let advice = sandbox.json(&["filter", "advise", "db", "--trace", "keys"]);
    let now = advice["now"]["wasted_reads"].as_f64().unwrap();
    assert_eq!(table(&document, &["bits per key", "memory"])[0][3], format!("{now:.5}"));
    // From standard input, too.
    let keys = fs::read(sandbox.path("keys")).unwrap();
    let page = String::from_utf8(sandbox.check_with_input(&["report", "db", "--keys-from", "-"], &keys, DONE)).unwrap();
    assert_eq!(table(&parse(&page), &["look-ups of"]), rows);
}

#[test]
fn look_ups_that_measure_nothing_are_not_denied() {
    let sandbox = Sandbox::with_store(1000, 4, &[]);
    let said = |keys: &str| {
        fs::write(sandbox.path("keys"), keys).unwrap();
        words(&parse(&sandbox.text(&["report", "db", "--keys-from", "keys"])))
    };
    let present: String = (0..1000).map(|i| format!("key{i:04}\n")).collect();
    let is_titled = |said: &str| said.contains("Filters of other sizes No look-up missed in any run");
    for (keys, truth) in [
        (&*present, "No filter was asked for a key that its table lacks"),
        (
            "zzz1\nzzz2\n",
            "2 look-ups reached no table: the keys are in the log, or outside the key ranges of all tables.",
        ),
    ] {
        let said = said(keys);
        assert!(said.contains(truth) && !said.contains("Nothing was looked up"), "{said}");
        assert!(!said.contains("looks keys of yours up") && is_titled(&said), "{said}");
    }
    assert!(words(&parse(&sandbox.text(&["report", "db"]))).contains("Nothing was looked up"));
}

fn counted(n: u64) -> String {
    let digits = n.to_string();
    let (head, tail) = digits.split_at(digits.len().saturating_sub(3));
    if head.is_empty() { digits } else { format!("{head},{tail}") }
}

#[test]
fn no_key_and_no_name_is_markup() {
    let sandbox = Sandbox::new();
    let names = ["<script>alert(2)</script>", "a\"b'c&d", "\u{1b}[31m\u{202e}"];
    for name in names {
        for key in ODD {
            add_table(&sandbox, &format!("{key}\tv\n"), &["--escaped", "--keyspace", name]);
        }
        // Each key is the first of its table, and therefore shown.
        fs::write(sandbox.path("keys"), ODD.join("\n")).unwrap();
        let args = ["report", "db", "--escaped", "--keys-from", "keys", "--keyspace", name];
        let page = sandbox.text(&args);
        let hot = table(&parse(&page), &["table", "level", "from key"]);
        for key in ODD {
            assert!(hot.iter().any(|row| row[2].starts_with(&key[..key.len().min(24)])), "{key}: {hot:?}");
        }
    }
    let page = sandbox.text(&["report", "db", "-o", "-"]);
    let rows = table(&parse(&page), &["keyspace", "keys, about"]);
    let mut shown: Vec<&str> = rows.iter().map(|row| &*row[0]).collect();
    shown.sort_unstable();
    assert_eq!(shown, [r"$'\x1b[31m\xe2\x80\xae'", "<script>alert(2)</script>", "a\"b'c&d", "default"]);
}

#[test]
fn names_are_shown_with_their_backticks() {
    let sandbox = Sandbox::new();
    sandbox.text(&["create-keyspace", "db", "no`table`"]);
    let lines: String = (0..10).map(|i| format!("key{i}\tvalue\n")).collect();
    add_table(&sandbox, &lines, &["--keyspace", "a`b`c"]);
    add_table(&sandbox, &lines, &["--keyspace", "broken`"]);
    let table = sandbox.file("sst");
    let bytes = fs::read(&table).unwrap();
    fs::write(&table, &bytes[..bytes.len() - 1]).unwrap();
    fs::write(sandbox.path("my`keys`"), "key1\n").unwrap();
    let args = ["report", "db", "--keys-from", "my`keys`", "--keyspace", "a`b`c"];
    let of_one = words(&parse(&sandbox.text(&args)));
    assert!(of_one.contains("1 look-up of keys from my`keys`, each searched"), "{of_one}");
    let page = String::from_utf8(sandbox.check(&["report", "db"], CORRUPTION)).unwrap();
    let said = words(&parse(&page));
    for name in ["Damage: Keyspace broken`: 1 table cannot be read", "Without tables: default, no`table`."] {
        assert!(said.contains(name), "{name}: {said}");
    }
    let codes = parse(&page);
    let codes = codes.descendants().filter(|node| node.has_tag_name("code")).map(text);
    assert!(codes.clone().any(|code| code == "kvtool repair"), "{page}");
    assert!(codes.into_iter().all(|code| code != "table" && code != "b"), "{page}");
}

#[test]
fn long_names_are_broken() {
    let sandbox = Sandbox::new();
    let name = "W".repeat(80);
    add_table(&sandbox, "key\tvalue\n", &["--keyspace", &name]);
    let page = sandbox.text(&["report", "db"]);
    let document = parse(&page);
    let head = document.descendants().find(|node| node.has_tag_name("th") && text(*node) == name).unwrap();
    assert_eq!(head.attribute("class"), Some("text"));
    // A name is the head of its row, and such heads may be broken.
    assert!(page.contains("tbody th.text { min-width: 9rem; max-width: 20rem; overflow-wrap: anywhere; }"), "{page}");
    assert!(!page.contains("tbody th { white-space: nowrap"), "{page}");
}

#[test]
fn stores_without_keys_and_with_many_keyspaces_have_sensible_reports() {
    let sandbox = Sandbox::new();
    sandbox.text(&["create-keyspace", "db", "one"]);
    let page = sandbox.text(&["report", "db"]);
    assert!(words(&parse(&page)).contains("The store is empty: 2 keyspaces without a key."), "{page}");
    assert!(!page.contains("NaN") && !page.contains("inf"));
    for i in 0..20 {
        add_table(&sandbox, "key\tvalue\n", &["--keyspace", &format!("space{i}")]);
    }
    let page = sandbox.text(&["report", "db"]);
    let document = parse(&page);
    assert_eq!(table(&document, &["keyspace", "keys, about"]).len(), 22);
    assert_eq!(table(&document, &["keyspace", "filter"]).len(), 22);
    let chapters = |page: &str| page.matches("<section class=\"chapter\">").count();
    assert_eq!(chapters(&page), 8);
    assert!(page.contains("12 smaller keyspaces without a chapter"), "{page}");
    // Small as it may be, the keyspace of the look-ups has one.
    let last = table(&document, &["keyspace", "keys, about"]).into_iter().rfind(|row| row[3] == "1").unwrap().remove(0);
    fs::write(sandbox.path("keys"), "key\n").unwrap();
    let page = sandbox.text(&["report", "db", "--keys-from", "keys", "--keyspace", &last]);
    assert!(chapters(&page) == 1 && page.contains("Reads saved"), "{page}");
    assert!(words(&document).contains("About 20 keys in 22 keyspaces"), "{page}");
    assert!(!page.contains("NaN") && !page.contains("inf"));
    let one = sandbox.text(&["report", "db", "--keyspace", "space3"]);
    assert!(one.contains("space3") && !one.contains("space4"));
    sandbox.words(&["report", "db", "--keyspace", "absent"], USAGE);
    sandbox.words(&["report", "nowhere"], IO);
    sandbox.words(&["report", "db", "--keys-from", "nowhere"], IO);
}

#[test]
fn a_file_is_replaced_when_the_report_is_complete() {
    let sandbox = Sandbox::with_store(100, 4, &[]);
    fs::write(sandbox.path("out.html"), "old").unwrap();
    sandbox.words(&["report", "db", "-o", "out.html", "--keys-from", "nowhere"], IO);
    assert_eq!(fs::read_to_string(sandbox.path("out.html")).unwrap(), "old");
    let before = sandbox.files("db");
    // The store may be open elsewhere.
    let db = tamis::Db::open(sandbox.path("db")).unwrap();
    assert!(sandbox.words(&["report", "db", "-o", "out.html"], DONE).contains("report written to out.html"));
    db.close().unwrap();
    parse(&fs::read_to_string(sandbox.path("out.html")).unwrap());
    let names: Vec<_> = fs::read_dir(sandbox.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    sandbox.text(&["report", "db"]);
    let tables = |files: &std::collections::BTreeMap<_, Vec<u8>>| {
        let is_table = |path: &&std::path::PathBuf| path.extension().is_some_and(|e| e == "sst");
        files.keys().filter(is_table).cloned().collect::<Vec<_>>()
    };
    assert_eq!(tables(&sandbox.files("db")), tables(&before));
    sandbox.words(&["report", "db", "-o", "."], IO);
}

#[test]
fn what_is_worth_acting_on_is_said_with_the_cure() {
    let sandbox = Sandbox::with_store(5000, 5, &[]);
    let found = |code| words(&parse(&String::from_utf8(sandbox.check(&["report", "db"], code)).unwrap()));
    assert!(found(DONE).contains("Nothing was found that asks for action"), "{}", found(DONE));
    // A damaged filter answers "maybe": reads go on, more slowly.
    let table = sandbox.file("sst");
    let sst = sandbox.json(&["sst", table.to_str().unwrap()]);
    let offset = usize::try_from(sst["properties"]["filter_block"]["offset"].as_u64().unwrap()).unwrap();
    let mut bytes = fs::read(&table).unwrap();
    bytes[offset + 200] ^= 1;
    fs::write(&table, bytes).unwrap();
    let said = found(CORRUPTION);
    assert!(said.contains("Damage: 1 filter is damaged") && said.contains("no usable filter"), "{said}");
    assert!(said.contains("reads 1.00 blocks on average; without filters it would read 1"), "{said}");
    sandbox.text(&["filter", "rebuild", "db", "--policy", "none"]);
    let said = found(DONE);
    assert!(said.contains("Worth acting on: 1 table without a filter") && said.contains("--bits 10"), "{said}");
    sandbox.text(&["filter", "rebuild", "db", "--policy", "bloom"]);
    assert!(found(DONE).contains("Nothing was found that asks for action"));
}

#[test]
fn many_tombstones_are_worth_a_compaction() {
    let sandbox = Sandbox::with_store(5000, 5, &[]);
    // A fifth of the entries, and a thousand of them, is what is worth it.
    let delete = |keys: std::ops::Range<u32>| {
        let db = tamis::Db::open(sandbox.path("db")).unwrap();
        for i in keys {
            db.delete(format!("key{i:05}")).unwrap();
        }
        db.flush().unwrap();
        db.close().unwrap();
        words(&parse(&sandbox.text(&["report", "db"])))
    };
    let said = delete(0..1000);
    assert!(!said.contains("are tombstones"), "{said}");
    let said = delete(1000..1300);
    let finding = "Worth acting on: 1,300 of 6,300 entries are tombstones, which scans step over. `kvtool compact`";
    assert!(said.contains(&finding.replace('`', "")), "{said}");
    sandbox.check(&["compact", "db"], DONE);
    assert!(words(&parse(&sandbox.text(&["report", "db"]))).contains("Nothing was found that asks for action"));
}

#[test]
fn what_is_damaged_is_reported_and_the_rest_too() {
    let damage = |sandbox: &Sandbox, at: fn(usize) -> usize| {
        let table = sandbox.file("sst");
        let mut bytes = fs::read(&table).unwrap();
        let at = at(bytes.len());
        bytes[at] ^= 1;
        fs::write(&table, bytes).unwrap();
    };
    // A footer: the table cannot be read at all.
    let sandbox = Sandbox::with_store(1000, 4, &[]);
    add_table(&sandbox, "key\tvalue\n", &["--keyspace", "sound"]);
    let sound = sandbox.file("sst");
    let bytes = fs::read(&sound).unwrap();
    fs::write(&sound, &bytes[..bytes.len() - 1]).unwrap();
    let page = String::from_utf8(sandbox.check(&["report", "db"], CORRUPTION)).unwrap();
    let said = words(&parse(&page));
    assert!(said.contains("Damage: Keyspace sound: 1 table cannot be read"), "{said}");
    assert!(said.contains("Keyspace default") && said.contains("1,000"), "{said}");
    // A block of data: only look-ups see it.
    let sandbox = Sandbox::with_store(1000, 4, &[]);
    damage(&sandbox, |_| 100);
    sandbox.text(&["report", "db"]);
    let keys: String = (0..1000).map(|i| format!("key{i:04}\n")).collect();
    fs::write(sandbox.path("keys"), keys).unwrap();
    let page = String::from_utf8(sandbox.check(&["report", "db", "--keys-from", "keys"], CORRUPTION)).unwrap();
    let said = words(&parse(&page));
    assert!(said.contains("of your keys met damage") && said.contains("key0000"), "{said}");
    // A manifest: the store does not open.
    let manifest = sandbox.files("db").into_keys().find(|path| path.to_str().unwrap().contains("MANIFEST")).unwrap();
    let mut bytes = fs::read(&manifest).unwrap();
    bytes[40] ^= 1;
    fs::write(&manifest, bytes).unwrap();
    let output = sandbox.run(&["report", "db", "-o", "wreck.html"], b"", CORRUPTION);
    assert!(String::from_utf8(output.stderr).unwrap().contains("MANIFEST"));
    let page = fs::read_to_string(sandbox.path("wreck.html")).unwrap();
    let said = words(&parse(&page));
    assert!(said.contains("cannot be opened") && said.contains("kvtool repair"), "{said}");
    assert_eq!(table(&parse(&page), &["files in the directory"])[0][1], "1");
}
