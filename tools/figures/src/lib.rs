//! Tables of measured figures. A program that measures prints its results as a [`Table`]; with the
//! environment variable `TAMIS_FIGURES=DIRECTORY` it also keeps each as JSON there, and the program
//! `tamis-figures` lays what is kept into the documents.
//!
//! ```
//! let mut table = tamis_figures::Table::new("demo/gets", "cargo run --example demo", &["", "ns"]);
//! table.row(["get", "390"]);
//! assert_eq!(table.markdown(), "| | ns |\n|---|--:|\n| get | 390 |\n");
//! ```
#![allow(clippy::disallowed_methods, reason = "the file system trait is the library's; these are files of documents")]

pub mod document;
mod file;
pub mod text;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use std::{fmt, io};

use comfy_table::{CellAlignment, presets};
use serde::{Deserialize, Serialize};

use file::{of_file, replace};

/// Names the directory in which programs keep their tables.
pub const DIRECTORY: &str = "TAMIS_FIGURES";

/// The tables in a file of the directory, by the second part of their names.
pub type Kept = BTreeMap<String, Table>;

/// A table of measured figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// `FILE/TABLE`: the file without `.json`, and the table's name in it.
    #[serde(skip)]
    name: String,
    /// The command that measures this table again, run at the root of the repository.
    pub command: String,
    /// The day of the measurement, as in 2026-11-26.
    pub date: String,
    /// Processor, threads and kernel of the machine.
    pub machine: String,
    /// How many columns, from the left, hold text; the others hold numbers.
    text_columns: usize,
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows, measured today on this machine. `name` is `FILE/TABLE`; `command` is
    /// what measures it again. The first column holds text.
    pub fn new(name: &str, command: &str, heads: &[&str]) -> Table {
        Table {
            name: name.to_owned(),
            command: command.to_owned(),
            date: today(),
            machine: machine(),
            text_columns: 1,
            heads: heads.iter().map(|&head| head.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// The table as one that was measured on another day or machine.
    #[must_use]
    pub fn measured(self, date: String, machine: String) -> Table {
        Table { date, machine, ..self }
    }

    /// Sets how many columns, from the left, hold text.
    #[must_use]
    pub fn text_columns(self, text_columns: usize) -> Table {
        Table { text_columns, ..self }
    }

    /// Adds a row.
    ///
    /// # Panics
    ///
    /// If it has not as many cells as the table has columns.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl ToString>) {
        let row: Vec<String> = cells.into_iter().map(|cell| cell.to_string()).collect();
        assert_eq!(row.len(), self.heads.len(), "a row of {}: {row:?}", self.name);
        self.rows.push(row);
    }

    /// Prints the table, and keeps it if the environment says where.
    ///
    /// # Panics
    ///
    /// If the table cannot be kept: a measurement that is lost should not look like a success.
    pub fn show(&self) {
        println!("{}\n{self}\n", self.name);
        self.keep().unwrap_or_else(|error| panic!("cannot keep {}: {error}", self.name));
    }

    /// Keeps the table if the environment says where.
    ///
    /// # Errors
    ///
    /// What reading and writing the file returns; a file that is not one of tables.
    pub fn keep(&self) -> io::Result<()> {
        match std::env::var_os(DIRECTORY) {
            Some(dir) => self.keep_in(Path::new(&dir)),
            None => Ok(()),
        }
    }

    /// Keeps the table in a directory, which is created, in the place of an older one of its name.
    ///
    /// # Errors
    ///
    /// Those of [`keep`](Table::keep).
    pub fn keep_in(&self, dir: &Path) -> io::Result<()> {
        let (file, name) = self.name.split_once('/').unwrap_or((&self.name, ""));
        let path = dir.join(file).with_extension("json");
        let mut kept: Kept = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| of_file(&path, error.into()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Kept::new(),
            Err(error) => return Err(of_file(&path, error)),
        };
        kept.insert(name.to_owned(), self.clone());
        std::fs::create_dir_all(dir).map_err(|error| of_file(dir, error))?;
        replace(&path, &format!("{:#}\n", serde_json::to_value(kept)?))
    }

    /// The table in Markdown, without padding.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            cells.iter().fold("|".to_owned(), |line, cell| match cell.as_str() {
                "" => line + " |",
                cell => line + " " + &cell.replace('|', "\\|") + " |",
            })
        };
        let rule = (0..self.heads.len()).map(|column| if column < self.text_columns { "---|" } else { "--:|" });
        let mut lines = vec![line(&self.heads), rule.fold("|".to_owned(), |line, cell| line + cell)];
        lines.extend(self.rows.iter().map(|row| line(row)));
        lines.join("\n") + "\n"
    }
}

/// For a terminal: Markdown whose columns are aligned.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        aligned(self.text_columns, &self.heads, &self.rows).fmt(f)
    }
}

/// A table with a header, readable as it is and as Markdown. The first `text_columns` columns hold
/// text, the others numbers.
pub fn aligned(
    text_columns: usize,
    heads: &[impl fmt::Display],
    rows: impl IntoIterator<Item = impl Into<comfy_table::Row>>,
) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(heads).add_rows(rows);
    for column in table.column_iter_mut().skip(text_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The day, in UTC, as in 2026-11-26.
pub fn today() -> String {
    time::OffsetDateTime::now_utc().date().to_string()
}

/// Processor, threads and kernel of the machine; what the system does not tell is left out.
pub fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    // Of the machine, even if this process may use fewer.
    let threads = match info.lines().filter(|line| line.starts_with("processor")).count() {
        0 => std::thread::available_parallelism().map_or(0, usize::from),
        threads => threads,
    };
    match model {
        Some((_, model)) => {
            // As in 6.18, without what its builder appends.
            let release = read("/proc/sys/kernel/osrelease");
            let version: Vec<&str> = release.split('.').take(2).collect();
            format!("{model}, {threads} threads, Linux {}", version.join("."))
        }
        None => format!("{threads} threads"),
    }
}

/// The middle one of some figures, or the greater one of two.
///
/// # Panics
///
/// If there are none.
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Milliseconds: `12.34 ms`.
pub fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// What runs a program again as it runs now: `program`, with those of the environment's `variables`
/// that are set and the arguments that it was given.
pub fn command(program: &str, variables: &[&str]) -> String {
    let set = variables.iter().filter_map(|name| Some(format!("{name}={} ", std::env::var(name).ok()?)));
    // Cargo adds the argument `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments = if arguments.is_empty() { String::new() } else { format!(" -- {}", arguments.join(" ")) };
    format!("{}{program}{arguments}", set.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_replaces_its_like_and_leaves_the_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let keep = |name: &str, cell: &str| {
            let mut table = Table::new(name, "make", &["", "n"]);
            table.row(["row", cell]);
            table.keep_in(dir.path()).expect("kept");
        };
        keep("file/one", "1");
        keep("file/two", "2");
        keep("file/one", "3");
        let kept = document::kept(dir.path()).expect("readable");
        let cells: Vec<_> = kept.iter().map(|(name, table)| (name.as_str(), table.rows[0][1].as_str())).collect();
        assert_eq!(cells, [("file/one", "3"), ("file/two", "2")]);
    }

    #[test]
    fn a_file_of_something_else_is_not_overwritten() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("file.json"), "[1]").expect("written");
        let error = Table::new("file/one", "make", &[""]).keep_in(dir.path()).expect_err("refused");
        assert!(error.to_string().contains("file.json"), "{error}");
        assert_eq!(std::fs::read(dir.path().join("file.json")).expect("read"), b"[1]");
    }

    #[test]
    fn a_bar_in_a_cell_does_not_end_it() {
        let mut table = Table::new("file/one", "make", &["", "n"]);
        table.row(["a|b", "1"]);
        assert!(table.markdown().contains("| a\\|b | 1 |"));
    }
}
