//! Tables that are kept, laid into documents: between the lines
//!
//! ```text
//! <!-- figures: FILE/TABLE -->
//! <!-- end of figures -->
//! ```
//!
//! stand the table, the command that measured it, the day and the machine.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::file::{of_file, replace};
use crate::{Kept, Table};

/// Where the tables of a repository are kept.
pub const FIGURES: &str = "docs/figures";

const BEGIN: &str = "<!-- figures: ";
const BEGIN_CLOSES: &str = " -->\n";
const END: &str = "<!-- end of figures -->\n";

/// All tables that are kept in a directory, by `FILE/TABLE`.
///
/// # Errors
///
/// What reading returns; a file that is not one of tables, by its name.
pub fn kept(dir: &Path) -> io::Result<BTreeMap<String, Table>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).map_err(|error| of_file(dir, error))? {
        let path = entry?.path();
        let Some(file) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        if path.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        let text = std::fs::read(&path).map_err(|error| of_file(&path, error))?;
        let tables: Kept = serde_json::from_slice(&text).map_err(|error| of_file(&path, error.into()))?;
        all.extend(tables.into_iter().map(|(name, table)| (format!("{file}/{name}"), table)));
    }
    Ok(all)
}

/// The document with the tables that it names. The command stands below each; if one command has
/// measured several tables between which there is no text, below the last.
///
/// # Errors
///
/// A name of no table, or a beginning without an end.
pub fn laid(document: &str, tables: &BTreeMap<String, Table>) -> Result<String, String> {
    let mut parts = document.split(BEGIN);
    let mut out = parts.next().unwrap_or_default().to_owned();
    let mut blocks = Vec::new();
    for part in parts {
        let (name, rest) = part.split_once(BEGIN_CLOSES).ok_or("a line of figures does not end in `-->`")?;
        let (_, after) = rest.split_once(END).ok_or_else(|| format!("{name} has no `{}`", END.trim()))?;
        blocks.push((name, tables.get(name).ok_or_else(|| format!("no table {name} is kept"))?, after));
    }
    for (at, (name, table, after)) in blocks.iter().enumerate() {
        let run = |table: &Table| (table.command.clone(), table.date.clone(), table.machine.clone());
        let next = blocks.get(at + 1).filter(|_| after.trim().is_empty());
        let is_followed = next.is_some_and(|(_, next, _)| run(next) == run(table));
        let caption = match run(table) {
            _ if is_followed => String::new(),
            (command, date, machine) => format!("\n```sh\n{command}\n```\n\n{date}, {machine}.\n"),
        };
        out.extend([BEGIN, name, BEGIN_CLOSES, &table.markdown(), &caption, END, after]);
    }
    Ok(out)
}

/// The documents of a repository that may have tables: README.md and those in `docs`.
///
/// # Errors
///
/// What reading the directory returns.
pub fn documents(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = vec![root.join("README.md")];
    for entry in std::fs::read_dir(root.join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "md") {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Lays the tables of `docs/figures` into the documents of a repository; returns those that
/// changed.
///
/// # Errors
///
/// What reading and writing returns, and what [`laid`] refuses, with the name of the document.
pub fn lay(root: &Path) -> io::Result<Vec<PathBuf>> {
    let tables = kept(&root.join(FIGURES))?;
    let mut changed = Vec::new();
    for path in documents(root)? {
        let text = std::fs::read_to_string(&path).map_err(|error| of_file(&path, error))?;
        let new = laid(&text, &tables).map_err(|error| of_file(&path, io::Error::other(error)))?;
        if new != text {
            changed.push((path, new));
        }
    }
    // Only if all can be laid.
    changed.iter().try_for_each(|(path, new)| replace(path, new))?;
    Ok(changed.into_iter().map(|(path, _)| path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> BTreeMap<String, Table> {
        let mut table = Table::new("a/b", "make", &["", "n"]);
        table.row(["row", "1"]);
        BTreeMap::from([("a/b".to_owned(), table)])
    }

    #[test]
    fn what_stood_between_the_lines_is_replaced() {
        let document = "before\n<!-- figures: a/b -->\nold\n<!-- end of figures -->\nafter\n";
        let once = laid(document, &tables()).expect("laid");
        assert!(once.starts_with("before\n") && once.ends_with("after\n") && !once.contains("old"), "{once}");
        assert!(once.contains("| row | 1 |\n"));
        assert_eq!(laid(&once, &tables()).as_deref(), Ok(once.as_str()));
    }

    #[test]
    fn the_command_stands_below_the_last_of_tables_without_text_between() {
        let block = |table: &str| format!("<!-- figures: {table} -->\n<!-- end of figures -->\n");
        let count = |between: &str| {
            let document = block("a/b") + between + &block("a/b");
            laid(&document, &tables()).expect("laid").matches("make").count()
        };
        assert_eq!([count("\n"), count("\nText.\n\n")], [1, 2]);
    }

    #[test]
    fn a_name_of_no_table_and_a_missing_end_are_errors() {
        assert!(laid("<!-- figures: a/c -->\n<!-- end of figures -->\n", &tables()).is_err());
        assert!(laid("<!-- figures: a/b -->\n", &tables()).is_err());
    }

    /// A document states nothing that no program has written.
    #[test]
    fn the_documents_are_current() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let tables = kept(&root.join(FIGURES)).expect("readable");
        for path in documents(root).expect("readable") {
            let text = std::fs::read_to_string(&path).expect("readable");
            assert_eq!(laid(&text, &tables).as_ref(), Ok(&text), "{}: run `tamis-figures lay`", path.display());
        }
    }
}
