//! The page: what stands on it, in order, and how it looks.

use std::collections::HashSet;
use std::path::Path;

use super::super::keyspaces;
use super::chapter;
use super::charts::{Bar, Group, Unit, bars};
use super::disk::Disk;
use super::facts::{Facts, KeyspaceFacts};
use super::findings::{self, Weight};
use super::parts::{capital, figure, hint, name_of, paragraph, prose, section, shown};
use crate::args::Common;
use crate::markup::{Markup, element, empty, words};
use crate::table::{Table, number, text};
use crate::text::{Decimal, Form, count, counted, percent, size, utc};

/// Keyspaces that have a chapter of their own, beside that of the look-ups; the others are listed.
const MOST_CHAPTERS: usize = 8;
/// Findings that are listed.
const MOST_FINDINGS: usize = 12;

/// The report on a store.
pub(super) fn of_store(common: &Common, facts: &Facts) -> Markup {
    let mut body = heading(&facts.path, &utc(facts.time));
    body = body.and(element("p", &[("class", &"summary")], words(summary(facts))));
    body = body.and(found(facts));
    if facts.keyspaces.len() > 1 {
        body = body.and(section("Keyspaces", chapter::overview(&facts.keyspaces)));
    }
    let (filled, empty): (Vec<&KeyspaceFacts>, Vec<_>) = facts.keyspaces.iter().partition(|facts| facts.tables() > 0);
    let is_asked = |name: &str| facts.saved.as_ref().is_some_and(|saved| saved.keyspace == name);
    let mut left = 0;
    for (at, keyspace) in filled.iter().enumerate() {
        if at < MOST_CHAPTERS || is_asked(&keyspace.stats.name) {
            body = body.and(chapter::of(common, facts, keyspace));
        } else {
            left += 1;
        }
    }
    if left > 0 {
        let left = counted(left, "smaller keyspace");
        body = body.and(hint(format_args!("{left} without a chapter here: `--keyspace NAME` reports on one.")));
    }
    if !empty.is_empty() && filled.len() < facts.keyspaces.len() && facts.keyspaces.len() > 1 {
        let names: Vec<String> = empty.iter().map(|facts| name_of(&facts.stats.name)).collect();
        body = body.and(paragraph(format_args!("Without tables: {}.", names.join(", "))));
    }
    let saved = facts.saved.as_ref();
    // What was looked up in a keyspace that has no chapter.
    if let Some(saved) = saved.filter(|saved| filled.iter().all(|facts| facts.stats.name != saved.keyspace)) {
        let all = saved.all();
        body = body.and(section(
            "Reads saved",
            paragraph(format_args!(
                "{} of keyspace {}, which has no tables: nothing was read from files.",
                counted(all.look_ups, "look-up"),
                name_of(&saved.keyspace)
            )),
        ));
    }
    body = body.and(section("Costs", costs(facts)));
    body = body.and(section("Options", options(&facts.keyspaces)));
    document(&facts.path, body.and(about()))
}

/// The report on a store that does not open, because it is damaged.
pub(super) fn of_wreck(dir: &Path, why: &str) -> Markup {
    let path = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned()).display().to_string();
    let mut body = heading(&path, &utc(std::time::SystemTime::now()));
    body =
        body.and(element("p", &[("class", &"summary")], words("The store cannot be opened, because it is damaged.")));
    body = body.and(element("ul", &[("class", &"findings")], finding(Weight::Damage, &format!("{why}."), "")));
    if let Ok(disk) = Disk::list(dir, &HashSet::new()) {
        let rows = [
            ("tables", disk.obsolete),
            ("value files", disk.values),
            ("logs", disk.logs),
            ("manifest and others", disk.manifests),
        ];
        let rows = rows.map(|(name, files)| vec![name.to_owned(), count(files.count), size(files.bytes)]);
        let columns = [text("files in the directory").key(), number("files"), number("size").key()];
        body = body.and(section("Files", Table::new(columns, rows).markup()));
    }
    document(&path, body)
}

fn heading(path: &str, time: &str) -> Markup {
    // To the minute: `2026-11-25T08:15`.
    let time = time.get(..16).unwrap_or_default().replace('T', " ");
    let made = format!("{time} UTC · kvtool {}", env!("CARGO_PKG_VERSION"));
    let title =
        element("h1", &[], words("Report on ").and(element("code", &[], words(Form::Plain.show(path.as_bytes())))));
    element("header", &[], title.and(element("p", &[("class", &"made")], words(made))))
}

/// What the store is, in one paragraph.
fn summary(facts: &Facts) -> String {
    let keyspaces = &facts.keyspaces;
    let keys: u64 = keyspaces.iter().filter_map(|facts| facts.keys).sum();
    let (tables, levels) = keyspaces.iter().fold((0, 0), |(tables, levels), facts| {
        let filled = facts.stats.levels.iter().filter(|level| !level.tables.is_empty()).count();
        (tables + facts.tables(), filled.max(levels))
    });
    let bytes: u64 = keyspaces.iter().map(|facts| facts.stats.size()).sum();
    let of = match keyspaces.len() {
        1 => format!("keyspace {}", name_of(&keyspaces[0].stats.name)),
        n => counted(n as u64, "keyspace"),
    };
    let log = facts.stats.log.bytes;
    let and_log = if log > 0 { format!(", and a log of {}", size(log)) } else { String::new() };
    let mut said = match (tables, keys) {
        (0, 0) => format!("The store is empty: {of} without a key."),
        (0, _) => {
            format!("About {} in {of}, all of them in the log ({}); no table yet.", counted(keys, "key"), size(log))
        }
        _ => format!(
            "About {} in {of}: {} in {} on {}{and_log}.",
            counted(keys, "key"),
            size(bytes),
            counted(tables, "table"),
            counted(levels as u64, "level")
        ),
    };
    if let Some(largest) = keyspaces.iter().find(|facts| facts.tables() > 0) {
        if keyspaces.len() > 1 {
            said.push_str(&format!(" The largest keyspace is {}.", name_of(&largest.stats.name)));
        }
        said.push(' ');
        said.push_str(&chapter::gets(largest));
    }
    if let Some(saved) = &facts.saved
        && let cost = saved.all()
        && let Some(share) = cost.share_saved()
    {
        said.push_str(&format!(
            " On {} of keys from {}, filters saved {} of the reads: {} instead of {}.",
            counted(cost.look_ups, "look-up"),
            shown(&saved.source),
            percent(Some(share)),
            count(cost.with_filters),
            count(cost.without_filters)
        ));
    }
    said
}

fn found(facts: &Facts) -> Markup {
    let found = findings::of(facts);
    if found.is_empty() {
        return hint("Nothing was found that asks for action. Blocks of data were not read: `kvtool verify` does.");
    }
    let items = found.iter().take(MOST_FINDINGS).map(|found| finding(found.weight, &found.what, &found.cure));
    let items = element("ul", &[("class", &"findings")], items.collect());
    match found.len().saturating_sub(MOST_FINDINGS) {
        0 => items,
        left => items.and(paragraph(format_args!("And {} more.", counted(left as u64, "finding")))),
    }
}

fn finding(weight: Weight, what: &str, cure: &str) -> Markup {
    let class = if weight == Weight::Consider { "consider" } else { "act" };
    let head = element("b", &[], words(format_args!("{}:", weight.name())));
    element("li", &[("class", &class)], head.and(words(" ")).and(words(capital(what))).and(words(" ")).and(prose(cure)))
}

fn costs(facts: &Facts) -> Markup {
    let sum = |of: fn(&KeyspaceFacts) -> u64| facts.keyspaces.iter().map(of).sum::<u64>();
    let (points, ranges) = (sum(|facts| facts.total().points.bytes), sum(|facts| facts.total().ranges.bytes));
    let index = sum(|facts| facts.index_bytes);
    let memory = [("filters", points), ("range filters", ranges), ("indexes", index), ("all", points + ranges + index)];
    let memory = memory.map(|(what, bytes)| (what, size(bytes)));
    let memory = Table::of_pairs([text("memory while tables are in use"), number("size")], memory);
    let disk = &facts.disk;
    // Of the whole store, also where the report is on one keyspace.
    let kinds = [
        ("tables", disk.tables),
        ("range deletes", disk.range_tables),
        ("value files", disk.values),
        ("logs", disk.logs),
        ("manifest and others", disk.manifests),
        ("obsolete", disk.obsolete),
    ];
    let shown = || kinds.iter().filter(|(_, files)| files.count > 0);
    let rows = shown().map(|(name, files)| Group {
        name: (*name).to_owned(),
        bars: vec![Bar {
            value: files.bytes as f64,
            parts: Vec::new(),
            is_hollow: false,
            note: format!("{} in {}", size(files.bytes), counted(files.count, "file")),
        }],
    });
    let rows: Vec<Group> = rows.collect();
    let picture = figure(
        "Disk, by kind of file",
        words("The whole store; filters and indexes are parts of tables."),
        bars("Disk, by kind of file", Unit::Bytes, &rows),
    );
    let note = "Filters and indexes of tables in use are in memory, as large as on disk or a little larger. The cache of \
                blocks and the limits of memtables are options of the program.";
    picture.and(memory.markup()).and(paragraph(note))
}

fn options(facts: &[KeyspaceFacts]) -> Markup {
    let rows = facts.iter().map(|facts| {
        let mut row = keyspaces::row(&facts.stats, &facts.options);
        row[0] = name_of(&facts.stats.name);
        row
    });
    let more = facts.iter().filter_map(|facts| {
        let options = &facts.options;
        let ttl = options.ttl.map(|ttl| format!("values expire after {} s", Decimal(ttl.as_secs_f64())));
        let prefix = options.prefix.map(|prefix| format!("prefixes in filters: {prefix}"));
        let log = (!options.wal).then(|| "written without the log".to_owned());
        let apart =
            options.separate_values.map(|bytes| format!("values from {} on are kept apart", size(bytes.into())));
        let said: Vec<String> = ttl.into_iter().chain(prefix).chain(log).chain(apart).collect();
        (!said.is_empty()).then(|| format!("Keyspace {}: {}.", name_of(&facts.stats.name), said.join("; ")))
    });
    keyspaces::table(rows.collect()).markup().and(more.map(paragraph).collect())
}

fn about() -> Markup {
    let text = "Sizes and expected rates are from the tables' indexes and properties; data were read only where it says so. \
                What a get costs is an average over the keys in tables. \
                `kvtool stats`, `levels` and `filter advise` print the same figures, with --json for programs.";
    element("footer", &[], prose(text))
}

fn document(path: &str, body: Markup) -> Markup {
    let head = [
        empty("meta", &[("charset", &"utf-8")]),
        empty("meta", &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")]),
        empty("meta", &[("http-equiv", &"Content-Security-Policy"), ("content", &POLICY)]),
        empty("meta", &[("name", &"color-scheme"), ("content", &"light dark")]),
        element("title", &[], words(format_args!("Report on {}", shown(path)))),
        Markup::style(SHEET),
    ];
    let html = element("head", &[], head.into_iter().collect()).and(element("body", &[], element("main", &[], body)));
    Markup::doctype().and(element("html", &[("lang", &"en")], html))
}

/// Nothing runs and nothing is loaded, whatever stands in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

const SHEET: &str = include_str!("report.css");
