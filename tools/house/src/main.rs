//! Counts how large the code of tamis is, and how many cases it has: the measures by which a
//! rebuilding is judged.
//!
//! ```text
//! cargo run -p tamis-house              # a table
//! cargo run -p tamis-house -- --json    # the same as JSON
//! cargo run -p tamis-house -- --list    # what was counted: long functions, wide matches, ...
//! ```
//!
//! Code is what is neither blank nor a comment nor compiled for tests only.
#![allow(clippy::disallowed_methods, reason = "reads the sources of this repository")]

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Parser;
use serde::Serialize;

use source::{Found, Source};

/// Functions with more lines are long.
const LONG: usize = 50;
/// A match that names so many kinds of entries decides by kind.
const MANY_KINDS: usize = 3;

#[derive(Parser)]
struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print what was counted, too
    #[arg(long)]
    list: bool,
    /// The repository; by default the one that this program was built from
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))]
    repository: PathBuf,
}

#[derive(Serialize)]
struct Measures {
    /// Lines of code of the library, by crate.
    code: BTreeMap<String, usize>,
    code_of_all_crates: usize,
    /// Lines of code that name `unsafe`.
    unsafe_lines: usize,
    /// Matches on three and more kinds of entries.
    matches_on_kinds: usize,
    /// Fields in rooms of `db` that other rooms can see.
    shared_fields: usize,
    largest_struct: (String, usize),
    long_functions: usize,
    longest_function: (String, usize),
    /// Types that share a name with another one, and how many names that are.
    types_with_shared_names: (usize, usize),
    test_lines: usize,
    architecture_lines: usize,
}

fn main() {
    let args = Args::parse();
    let library = source::library(&args.repository);
    let tests = source::tests(&args.repository);
    let found = Found::of(&library);
    let measures = measure(&args, &library, &tests, &found);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&measures).expect("maps with keys of text"));
    } else {
        print(&measures);
    }
    if args.list {
        list(&found);
    }
}

fn measure(args: &Args, library: &[Source], tests: &[Source], found: &Found) -> Measures {
    let mut code: BTreeMap<String, usize> = BTreeMap::new();
    for source in library {
        *code.entry(source.krate.clone()).or_default() += source.code_lines();
    }
    let in_library: usize = library.iter().map(Source::test_lines).sum();
    let apart: usize = tests.iter().map(|source| source.text.lines().count()).sum();
    let largest =
        found.structs.iter().filter(|(name, _)| name.starts_with("src/db/")).max_by_key(|(_, fields)| *fields);
    let longest = found.functions.iter().max_by_key(|(_, lines)| *lines);
    let shared: Vec<&BTreeSet<String>> = found.types.values().filter(|places| places.len() > 1).collect();
    let map = std::fs::read_to_string(args.repository.join("ARCHITECTURE.md")).unwrap_or_default();
    Measures {
        code_of_all_crates: code.values().sum(),
        code,
        unsafe_lines: library.iter().map(Source::unsafe_lines).sum(),
        matches_on_kinds: found.matches.iter().filter(|(_, kinds)| *kinds >= MANY_KINDS).count(),
        shared_fields: found.shared_fields.iter().filter(|(file, _)| file.starts_with("src/db/")).map(|(_, n)| n).sum(),
        largest_struct: largest.cloned().unwrap_or_default(),
        long_functions: found.functions.iter().filter(|(_, lines)| *lines > LONG).count(),
        longest_function: longest.cloned().unwrap_or_default(),
        types_with_shared_names: (shared.iter().map(|places| places.len()).sum(), shared.len()),
        test_lines: in_library + apart,
        architecture_lines: map.lines().count(),
    }
}

fn print(measures: &Measures) {
    println!("| measure | now |\n|---|--:|");
    println!("| lines of code, all crates of the library | {} |", measures.code_of_all_crates);
    for (krate, lines) in &measures.code {
        println!("| lines of code, `{krate}` | {lines} |");
    }
    println!("| lines that name `unsafe` | {} |", measures.unsafe_lines);
    println!("| matches on three and more kinds of entries | {} |", measures.matches_on_kinds);
    println!("| fields in `db` that other rooms can see | {} |", measures.shared_fields);
    let (name, fields) = &measures.largest_struct;
    println!("| fields of the largest struct in `db`, `{name}` | {fields} |");
    println!("| functions over {LONG} lines | {} |", measures.long_functions);
    let (name, lines) = &measures.longest_function;
    println!("| lines of the longest function, `{name}` | {lines} |");
    let (types, names) = measures.types_with_shared_names;
    println!("| types that share a name | {types} under {names} names |");
    println!("| lines of tests | {} |", measures.test_lines);
    println!("| lines of ARCHITECTURE.md | {} |", measures.architecture_lines);
}

fn list(found: &Found) {
    println!("\nFunctions over {LONG} lines:");
    found.functions.iter().filter(|(_, lines)| *lines > LONG).for_each(|(name, lines)| println!("  {lines:4} {name}"));
    println!("\nMatches on {MANY_KINDS} and more kinds of entries:");
    found.matches.iter().filter(|(_, kinds)| *kinds >= MANY_KINDS).for_each(|(at, kinds)| println!("  {kinds:4} {at}"));
    println!("\nFields in `db` that other rooms can see:");
    let shared = found.shared_fields.iter().filter(|(place, fields)| place.starts_with("src/db/") && *fields > 0);
    shared.for_each(|(place, fields)| println!("  {fields:4} {place}"));
    println!("\nTypes that share a name:");
    for (name, places) in found.types.iter().filter(|(_, places)| places.len() > 1) {
        println!("  {name}: {}", places.iter().cloned().collect::<Vec<_>>().join(", "));
    }
}
