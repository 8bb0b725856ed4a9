//! Do the documents agree with the repository, and with themselves?
#![allow(clippy::disallowed_methods, reason = "reads the sources of this crate")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
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
    let sources = ["src", "crates", "tests", "tools"].iter().flat_map(|dir| files_in(dir, ".rs"));
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
    let sources: Vec<String> = ["src", "crates"].iter().flat_map(|dir| files_in(dir, ".rs")).collect();
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
        let places = ["", "src", "crates/base/src", "tests/it", "tools/backup/tests/it"]
            .map(Path::new)
            .into_iter()
            .chain(own.ancestors());
        let places: Vec<PathBuf> = places.map(|place| root().join(place)).collect();
        // Upper case stands for a name, braces for several.
        let is_name =
            |name: &str| name.ends_with(".rs") && !name.contains(|c: char| " *<{".contains(c) || c.is_uppercase());
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

/// The source of a file without its tests, line by line.
fn lines_without_tests(file: &str) -> Vec<String> {
    let lines: Vec<String> = text_of(file).lines().map(str::to_owned).collect();
    let begins_tests = |pair: &[String]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ");
    let end = lines.windows(2).position(|pair| begins_tests(pair) && pair[1].ends_with('{')).unwrap_or(lines.len());
    lines[..end].to_vec()
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The lines of the item that begins in line `at`, with its comment and attributes: rustfmt puts
/// its end at its own indentation.
fn item_at(lines: &[String], at: usize) -> &[String] {
    let own = indent_of(&lines[at]);
    let is_above =
        |line: &String| indent_of(line) == own && ["//", "#["].iter().any(|begin| line.trim_start().starts_with(begin));
    let first = at - lines[..at].iter().rev().take_while(|line| is_above(line)).count();
    if lines[at].ends_with([';', '}']) {
        return &lines[first..=at];
    }
    let is_end = |line: &String| indent_of(line) == own && ["}", ");", "};"].contains(&line.trim());
    let len = lines[at + 1..].iter().position(is_end).expect("the end of an item");
    &lines[first..=at + 1 + len]
}

/// The item of this name, or `Type::method`.
fn item_named<'l>(lines: &'l [String], name: &str) -> Option<&'l [String]> {
    let words = |line: &str| {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        words.map(str::to_owned).collect::<Vec<String>>()
    };
    if let Some((of, method)) = name.split_once("::") {
        let begins = |line: &String| line.starts_with("impl") && words(line).iter().any(|word| word == of);
        let impls = (0..lines.len()).filter(|&at| begins(&lines[at])).map(|at| item_at(lines, at));
        return impls.filter_map(|lines| item_named(lines, method)).next();
    }
    let kinds = ["fn", "struct", "enum", "trait", "type"];
    let names = |line: &String| {
        let is_code = !line.trim_start().starts_with("//");
        is_code && words(line).windows(2).any(|pair| kinds.contains(&pair[0].as_str()) && pair[1] == name)
    };
    lines.iter().position(names).map(|at| item_at(lines, at))
}

/// The stops of READING.md: file, what to read of it, and the lines that this is said to be.
fn stops() -> Vec<(String, Vec<String>, usize)> {
    let text = text_of("docs/READING.md");
    let rows = text.lines().filter(|line| line.starts_with("| `src/") || line.starts_with("| `crates/"));
    let stop = |row: &str| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let names = cells[1].split(',').map(|name| name.trim_matches([' ', '`']).to_owned());
        (cells[0].trim_matches('`').to_owned(), names.collect(), cells[2].parse().unwrap())
    };
    rows.map(stop).collect()
}

#[test]
fn the_reading_path_names_what_there_is_and_fits_into_an_evening() {
    let (mut sum, mut wrong) = (0, Vec::new());
    for (file, names, stated) in stops() {
        if !root().join(&file).is_file() {
            wrong.push(format!("there is no {file}"));
            continue;
        }
        let lines = lines_without_tests(&file);
        let mut count = 0;
        for name in &names {
            match name.as_str() {
                "header" => count += lines.iter().take_while(|line| line.starts_with("//!")).count(),
                "all" => count += lines.len(),
                name => match item_named(&lines, name) {
                    Some(item) => count += item.len(),
                    None => wrong.push(format!("{file} has no {name}")),
                },
            }
        }
        sum += count;
        if stated.abs_diff(count) > count / 4 + 5 {
            wrong.push(format!("{file}: {stated} lines are said to be read, and {count} are there"));
        }
    }
    assert!(wrong.is_empty(), "docs/READING.md: {wrong:#?}");
    assert!((3000..=5000).contains(&sum), "{sum} lines");
}

#[test]
fn the_glossary_is_in_order_and_its_words_are_those_of_the_source() {
    let text = text_of("docs/READING.md");
    let glossary = text.split("\n## Glossary\n").nth(1).unwrap();
    let words: Vec<&str> = glossary
        .lines()
        .filter_map(|line| line.strip_prefix("- **")?.split_once("**: ").map(|(word, _)| word))
        .collect();
    assert!(words.len() > 40 && words.is_sorted(), "{words:?}");
    let lines = glossary.lines().filter(|line| line.starts_with("- ") || line.starts_with("  ")).count();
    assert_eq!(lines, words.len(), "one line each");
    let sources: String =
        ["src", "crates"].iter().flat_map(|dir| files_in(dir, ".rs")).map(|file| text_of(&file)).collect();
    let sources = sources.to_lowercase().replace('_', " ");
    let in_sources: BTreeSet<&str> = sources.split(|c: char| !c.is_alphanumeric()).collect();
    let is_used = |word: &&&str| in_sources.contains(**word) || word.contains(' ') && sources.contains(**word);
    let unused: Vec<&&str> = words.iter().filter(|word| !is_used(word)).collect();
    assert!(unused.is_empty(), "words that the source does not have: {unused:?}");
}

/// What the references of a text stand for: `[keys]: keys.md`.
fn definitions(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().map(|line| line.trim_start_matches(['/', '!', ' ']));
    lines.filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).collect()
}

/// The names in brackets that are to be references: behind another pair of brackets, or of files.
fn references(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2).flat_map(|prose| prose.split('[').skip(1));
    let names = prose.scan(false, |follows, part| {
        let (name, rest) = part.split_once(']').unwrap_or((part, ""));
        let is_reference = *follows || name.ends_with(".md") || name.ends_with(".rs");
        *follows = rest.is_empty();
        Some((is_reference && !rest.starts_with('(')).then_some(name))
    });
    names.flatten()
}

/// The pages of the guide, by the names of their modules.
fn guide() -> Vec<String> {
    let files = files_in("docs/guide", ".md");
    let name = |file: &String| Path::new(file).file_stem().unwrap().to_str().unwrap().to_owned();
    files.iter().map(name).filter(|name| name != "README").collect()
}

#[test]
fn every_page_of_the_guide_is_a_module_and_in_its_index() {
    let (modules, index) = (text_of("src/guide.rs"), text_of("docs/guide/README.md"));
    let modules = modules.split("pages! {").nth(1).unwrap();
    let pages = guide();
    assert!(pages.len() >= 20, "{pages:?}");
    for page in &pages {
        assert!(modules.contains(&format!("    {page}: ")), "src/guide.rs has no module {page}");
        assert!(index.contains(&format!("][{page}]")), "docs/guide/README.md does not list {page}");
    }
    let listed = references(&index).filter(|name| !pages.iter().any(|page| page == name));
    assert_eq!(listed.collect::<Vec<_>>(), [""; 0], "not pages");
}

/// A page says where its references lead on GitHub, `src/guide/links.md` where they lead on
/// docs.rs.
#[test]
fn references_of_the_guide_lead_somewhere_on_github_and_on_docs_rs() {
    let (links, mut wrong) = (text_of("src/guide/links.md"), Vec::new());
    let links = definitions(&links);
    for file in files_in("docs/guide", ".md") {
        let text = text_of(&file);
        let own = definitions(&text);
        for name in references(&text).filter(|name| own.iter().all(|(known, _)| known != name)) {
            wrong.push(format!("{file} does not say where [{name}] leads"));
        }
        for (name, to) in own {
            let path = root().join("docs/guide").join(to);
            let path = path.canonicalize().unwrap_or_default();
            let path = path.strip_prefix(root().canonicalize().unwrap()).map(|path| path.to_str().unwrap().to_owned());
            let Ok(path) = path else {
                wrong.push(format!("{file}: there is no {to}"));
                continue;
            };
            let on_docs_rs = match path.strip_prefix("docs/guide/") {
                Some(page) => format!("crate::guide::{}", page.trim_end_matches(".md")),
                None => format!("https://docs.rs/crate/tamis/latest/source/{path}"),
            };
            if !links.contains(&(name, on_docs_rs.as_str())) {
                wrong.push(format!("src/guide/links.md lacks [{name}]: {on_docs_rs}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_recipe_is_on_the_front_page() {
    let front = text_of("src/lib.rs");
    let front: String =
        front.lines().take_while(|line| line.starts_with("//!")).map(|line| format!("{line}\n")).collect();
    let known = definitions(&front);
    for file in files_in("examples", ".rs").iter().filter_map(|file| file.strip_prefix("examples/")) {
        let name = match file.split_once('/') {
            Some((package, _)) => format!("- `{package}` ("),
            None => format!("- [`{}`][{file}]: ", file.trim_end_matches(".rs")),
        };
        assert!(front.contains(&name), "src/lib.rs does not list {file}");
    }
    let undefined = references(&front).filter(|name| known.iter().all(|(known, _)| known != name));
    assert_eq!(undefined.collect::<Vec<_>>(), [""; 0], "references that lead nowhere");
}
