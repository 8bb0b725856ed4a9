//! Do the documents agree with the repository, and with themselves?
#![allow(clippy::disallowed_methods, reason = "reads the sources of this crate")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text_of(document: &str) -> String {
    fs::read_to_string(root().join(document)).unwrap()
}

/// The files with this ending in a directory of the repository and below, by their paths from the
/// root.
fn files_in(dir: &str, ending: &str) -> Vec<String> {
    let mut out = Vec::new();
    for entry in fs::read_dir(root().join(dir)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            if !path.ends_with("target") {
                out.extend(files_in(&name, ending));
            }
        } else if name.ends_with(ending) {
            out.push(name);
        }
    }
    out
}

/// All documents: Markdown at the root, in `docs` and beside the tools.
fn documents() -> Vec<String> {
    let at_root = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let at_root = at_root.filter(|name| name.ends_with(".md"));
    at_root.chain(files_in("docs", ".md")).chain(files_in("tools", ".md")).collect()
}

/// What stands between backticks in a text, code blocks left out.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|prose| prose.split('`').skip(1).step_by(2))
}

/// What it says of mechanisms belongs into the headers of their modules.
#[test]
fn architecture_is_a_map_of_at_most_150_lines() {
    let lines = text_of("ARCHITECTURE.md").lines().count();
    assert!(lines <= 150, "{lines} lines");
}

/// The numbers of the promises in RELIABILITY.md, in the order in which it makes them.
fn promises() -> Vec<u32> {
    let text = text_of("docs/RELIABILITY.md");
    let section = text.split("\n## ").find(|section| section.starts_with("The promise\n")).expect("a section");
    let number = |line: &str| line.split_once(". **").and_then(|(number, _)| number.parse().ok());
    section.lines().filter_map(number).collect()
}

#[test]
fn promises_are_numbered_once_and_in_order() {
    let promises = promises();
    assert!(promises.len() >= 14 && promises.iter().copied().eq((1..).take(promises.len())), "{promises:?}");
}

#[test]
fn every_promise_that_a_text_names_by_number_is_made() {
    let (promises, mut seen) = (promises(), 0);
    let sources = ["src", "tests", "tools"].iter().flat_map(|dir| files_in(dir, ".rs"));
    for file in documents().into_iter().chain(sources) {
        let text = text_of(&file);
        for after in text.split("romise ").skip(1) {
            let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
            let Ok(number) = digits.parse::<u32>() else { continue };
            assert!(promises.contains(&number), "{file}: there is no promise {number}");
            seen += 1;
        }
    }
    assert!(seen >= 4, "the search finds what there is: {seen}");
}

/// A path may be given from the root of the repository, from the sources or the tests, or from the
/// place of the text that names it.
#[test]
fn every_source_file_that_a_text_names_exists() {
    let sources = files_in("src", ".rs");
    let comments = |file: &String| {
        let text = text_of(file);
        let lines = text.lines().map(str::trim_start).filter(|line| line.starts_with("//"));
        lines.map(|line| format!("{}\n", line.trim_start_matches(['/', '!', ' ']))).collect::<String>()
    };
    let of_sources = sources.iter().map(|file| (file.clone(), comments(file)));
    let of_documents = documents().into_iter().map(|file| (file.clone(), text_of(&file)));
    let (mut seen, mut lacking) = (0, BTreeSet::new());
    for (file, text) in of_documents.chain(of_sources) {
        let own = Path::new(&file).parent().unwrap();
        let places = ["", "src", "tests/it", "tools/backup/tests/it"].map(Path::new).into_iter().chain(own.ancestors());
        let places: Vec<PathBuf> = places.map(|place| root().join(place)).collect();
        // Upper case stands for a name.
        let is_name =
            |name: &str| name.ends_with(".rs") && !name.contains(|c: char| " *<".contains(c) || c.is_uppercase());
        for name in quoted(&text).filter(|name| is_name(name)) {
            seen += 1;
            if !places.iter().any(|place| place.join(name).is_file()) {
                lacking.insert(format!("{file}: {name}"));
            }
        }
    }
    assert!(seen > 100, "the search finds what there is: {seen}");
    assert!(lacking.is_empty(), "{lacking:#?}");
}
