//! `tamis-figures`: measures what the documents state, and lays the tables into them.
#![allow(clippy::disallowed_methods, reason = "the file system trait is the library's; these are documents")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};
use tamis_figures::{DIRECTORY, Table, document};

/// Measures what the documents state, and lays the tables into them.
#[derive(Parser)]
#[command(name = "tamis-figures", version)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
    /// The repository
    #[arg(long, global = true, default_value = ".")]
    repository: PathBuf,
}

#[derive(Subcommand)]
enum Action {
    /// Writes the tables of docs/figures into README.md and docs/*.md.
    Lay,
    /// Runs the commands that measured tables, which keep the new figures, and lays them.
    Measure {
        /// A file of docs/figures without .json, or one of its tables, FILE/TABLE; without any,
        /// all but costs, whose command also sets the bounds that CI checks
        names: Vec<String>,
        /// Print the commands instead of running them
        #[arg(long)]
        dry_run: bool,
    },
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tamis-figures: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let root = arguments.repository.canonicalize()?;
    let figures = root.join(document::FIGURES);
    let mut failures = Vec::new();
    if let Action::Measure { names, dry_run } = &arguments.action {
        for command in commands(&document::kept(&figures)?, names)? {
            println!("{command}");
            if !dry_run {
                failures.extend(measure(&command, &root, &figures).err());
            }
        }
        if *dry_run {
            return Ok(());
        }
    }
    for path in document::lay(&root)? {
        println!("{} has new figures", path.display());
    }
    match failures.as_slice() {
        [] => Ok(()),
        failures => Err(failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n").into()),
    }
}

/// The commands of the selected tables, each once.
fn commands(tables: &BTreeMap<String, Table>, names: &[String]) -> Result<BTreeSet<String>> {
    let file = |table: &str| table.split('/').next().unwrap_or_default().to_owned();
    let is_named = |table: &str, name: &String| table == name || file(table) == *name;
    if let Some(name) = names.iter().find(|name| !tables.keys().any(|table| is_named(table, name))) {
        return Err(format!("there is no table {name}").into());
    }
    let is_selected = |table: &str| match names {
        [] => file(table) != "costs",
        names => names.iter().any(|name| is_named(table, name)),
    };
    Ok(tables.iter().filter(|(table, _)| is_selected(table)).map(|(_, table)| table.command.clone()).collect())
}

fn measure(command: &str, root: &Path, figures: &Path) -> Result<()> {
    let status = Command::new("sh").args(["-c", command]).current_dir(root).env(DIRECTORY, figures).status()?;
    if status.success() { Ok(()) } else { Err(format!("`{command}` failed: {status}").into()) }
}
