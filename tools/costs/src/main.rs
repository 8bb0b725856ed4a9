//! `tamis-costs`: the cost of each operation of a small fixed workload in instructions, system
//! calls, allocations and block reads.
//!
//! No count depends on the clock, so they hold on a busy machine too, and a change that makes an
//! operation more expensive shows at once. callgrind (valgrind) runs this program and counts
//! instructions and system calls; the program itself counts allocations and block reads. The store
//! runs on one thread, and its hash seed is fixed.

#![allow(
    clippy::disallowed_methods,
    reason = "the file system trait is the library's; this program reads files of its own"
)]

mod callgrind;
#[cfg(test)]
mod comparisons;
mod counts;
mod phase;
mod prices;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use counts::{Ledger, MARGIN};
use tamis_figures::document;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Counts what operations of tamis cost, and compares that with the recorded costs.
#[derive(Parser)]
#[command(name = "tamis-costs", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Counts, and fails if an operation costs more than the file says plus the margin.
    Check {
        /// The file of recorded costs.
        #[arg(default_value = "tools/costs/costs.json")]
        file: PathBuf,
        /// Allowed increase of instructions, in percent.
        #[arg(long, default_value_t = MARGIN)]
        margin: f64,
    },
    /// Counts, and writes the costs to the file and the price list to docs/PERFORMANCE.md.
    Update {
        /// The file to write.
        #[arg(default_value = "tools/costs/costs.json")]
        file: PathBuf,
    },
    /// Runs the workload and prints this program's own counts as JSON.
    Run,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run => run(),
        Command::Update { file } => count().and_then(|counts| write(&file, &counts)),
        Command::Check { file, margin } => check(&file, margin),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tamis-costs: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the workload; callgrind runs the program in this mode.
fn run() -> Result<bool> {
    println!("{}", serde_json::to_string(&phase::run()?)?);
    Ok(true)
}

/// Counts all phases, under callgrind.
fn count() -> Result<Ledger> {
    let (own, totals) = callgrind::run(&std::env::current_exe()?)?;
    let own: Vec<(String, phase::OwnCounts)> = serde_json::from_str(&own)?;
    if own.len() != totals.len() {
        return Err(format!("{} phases ran, but callgrind counted {}", own.len(), totals.len()).into());
    }
    Ok(counts::per_operation(own.into_iter().zip(totals)))
}

fn write(file: &Path, counts: &Ledger) -> Result<bool> {
    println!("{}", counts::table(counts, None));
    let mut text = serde_json::to_string_pretty(counts)?;
    text.push('\n');
    std::fs::write(file, text)?;
    prices::table(counts, MARGIN / 100.0).keep_in(Path::new(document::FIGURES))?;
    document::lay(Path::new("."))?;
    Ok(true)
}

/// Returns whether no count increased beyond its margin.
fn check(file: &Path, margin: f64) -> Result<bool> {
    let expected: Ledger = serde_json::from_slice(&std::fs::read(file)?)?;
    let counted = count()?;
    println!("{}", counts::table(&counted, Some(&expected)));
    let increases = counts::increases(&counted, &expected, margin / 100.0);
    for finding in &increases {
        eprintln!("{finding}");
    }
    Ok(increases.is_empty())
}
