//! `tamis-costs`: a fixed small workload, and what each of its operations costs in instructions, system calls, allocations and block
//! reads.
//!
//! None of them depends on the clock, so that they hold on a busy machine, and a change that makes an operation dearer shows at once.
//! Instructions and system calls are counted by callgrind (valgrind), which runs this very program; allocations and block reads the
//! program counts itself. The store is stepped on one thread, and its hash seed is fixed.

#![allow(
    clippy::disallowed_methods,
    reason = "the seam for files is the library's; this program reads files of its own"
)]

mod callgrind;
#[cfg(test)]
mod comparisons;
mod counts;
mod phase;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use counts::Ledger;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Counts what operations of tamis cost, and compares it with what they cost when the file was written.
#[derive(Parser)]
#[command(name = "tamis-costs", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Counts, and fails if an operation has become dearer than the file says by more than the margin.
    Check {
        /// Counts as they should be.
        #[arg(default_value = "tools/costs/costs.json")]
        file: PathBuf,
        /// How much dearer instructions may be, in percent; other counts may be by a fifth of it.
        #[arg(long, default_value_t = 10.0)]
        margin: f64,
    },
    /// Counts, and writes the file.
    Update {
        /// Where the counts go.
        #[arg(default_value = "tools/costs/costs.json")]
        file: PathBuf,
    },
    /// Runs the workload and prints what this program counts itself, as JSON.
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

/// Runs the workload, as callgrind is told to.
fn run() -> Result<bool> {
    println!("{}", serde_json::to_string(&phase::run()?)?);
    Ok(true)
}

/// All counts of all phases.
fn count() -> Result<Ledger> {
    let (own, parts) = callgrind::run(&std::env::current_exe()?)?;
    let own: Vec<(String, phase::Own)> = serde_json::from_str(&own)?;
    if own.len() != parts.len() {
        return Err(format!("{} phases ran, and callgrind saw {}", own.len(), parts.len()).into());
    }
    Ok(counts::per_operation(own.into_iter().zip(parts)))
}

fn write(file: &Path, counts: &Ledger) -> Result<bool> {
    println!("{}", counts::table(counts, None));
    let mut text = serde_json::to_string_pretty(counts)?;
    text.push('\n');
    std::fs::write(file, text)?;
    Ok(true)
}

/// Whether nothing has become dearer.
fn check(file: &Path, margin: f64) -> Result<bool> {
    let expected: Ledger = serde_json::from_slice(&std::fs::read(file)?)?;
    let counted = count()?;
    println!("{}", counts::table(&counted, Some(&expected)));
    let dearer = counts::dearer(&counted, &expected, margin / 100.0);
    for finding in &dearer {
        eprintln!("{finding}");
    }
    Ok(dearer.is_empty())
}
