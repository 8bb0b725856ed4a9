//! Runs tamis in crud-bench beside other stores, and makes a table of what it reports.
//!
//! crud-bench is a benchmark by the authors of SurrealDB, with an adapter for each of a dozen
//! stores. `adapter` has one for tamis; this program clones the benchmark, puts the adapter there,
//! builds it and runs the stores in turn.
#![allow(clippy::disallowed_methods, reason = "the file system trait is the library's")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::Value;
use tamis_figures::text::rate;
use tamis_figures::{Table, median};

const REPOSITORY: &str = "https://github.com/surrealdb/crud-bench";
/// The commit that the patch was made for.
const COMMIT: &str = "a0e0b45";

/// Runs tamis in crud-bench beside other stores.
#[derive(Parser)]
#[command(name = "tamis-crud-bench")]
struct Args {
    /// Directory of the benchmark, cloned if it is missing
    #[arg(long, default_value = "target/crud-bench")]
    harness: PathBuf,
    /// Stores to run, by the names that the benchmark has for them
    #[arg(long, value_delimiter = ',', default_value = "tamis,rocksdb,fjall,lmdb,redb,sqlite")]
    engines: Vec<String>,
    /// Records to create, read, update and delete, of about 1 KiB
    #[arg(long, default_value_t = 1_000_000)]
    samples: u32,
    /// Concurrent clients
    #[arg(long, default_value_t = 2)]
    clients: u32,
    /// Each figure is the median of so many rounds, in each of which every store has its turn
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Make the table of results that are there, without a run
    #[arg(long)]
    report: bool,
}

/// Operations per second: by workload, in the benchmark's order, of each round.
type Figures = Vec<(String, Vec<f64>)>;

fn main() -> Result<()> {
    let args = Args::parse();
    if !args.report {
        prepare(&args.harness)?;
        build(&args)?;
        for round in 0..args.rounds {
            for engine in &args.engines {
                run(&args, engine, round)?;
            }
        }
    }
    let mut all = BTreeMap::new();
    for engine in &args.engines {
        all.insert(engine.as_str(), figures(&args, engine)?);
    }
    table(&args, &all)?.show();
    Ok(())
}

/// Clones the benchmark and puts the adapter there, if that is not done yet.
fn prepare(harness: &Path) -> Result<()> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    if !harness.exists() {
        succeed(Command::new("git").args(["clone", "--quiet", REPOSITORY]).arg(harness))?;
    }
    let in_harness = || {
        let mut git = Command::new("git");
        git.current_dir(harness);
        git
    };
    succeed(in_harness().args(["checkout", "--quiet", "--force", COMMIT]))?;
    let adapter = own.join("adapter");
    succeed(in_harness().arg("apply").arg(adapter.join("register.patch")))?;
    fs::copy(adapter.join("tamis.rs"), harness.join("src/tamis.rs"))?;
    let manifest = harness.join("Cargo.toml");
    let library = own.ancestors().nth(2).context("the repository's root")?;
    let text = fs::read_to_string(&manifest)?.replace("\"TAMIS\"", &format!("{:?}", library.display().to_string()));
    Ok(fs::write(manifest, text)?)
}

fn build(args: &Args) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--no-default-features", "--features", &args.engines.join(",")]);
    succeed(cargo.current_dir(&args.harness))
}

fn name(engine: &str, round: u32) -> String {
    format!("{engine}-{round}")
}

fn run(args: &Args, engine: &str, round: u32) -> Result<()> {
    let number = |n: u32| n.to_string();
    let mut bench = Command::new(fs::canonicalize(&args.harness)?.join("target/release/crud-bench"));
    bench.args(["--database", engine, "--name", &name(engine, round), "--random"]);
    bench.args(["--samples", &number(args.samples), "--clients", &number(args.clients)]);
    bench.args(["--workers", &number(args.clients), "--blocking", &number(args.clients)]);
    succeed(bench.current_dir(&args.harness))
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// What the benchmark has reported of a store.
fn figures(args: &Args, engine: &str) -> Result<Figures> {
    let mut all = Figures::new();
    for round in 0..args.rounds {
        let path = args.harness.join(format!("result-{}.json", name(engine, round)));
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        for (workload, figure) in workloads(&serde_json::from_str(&text)?) {
            match all.iter_mut().find(|(name, _)| *name == workload) {
                Some((_, figures)) => figures.push(figure),
                None => all.push((workload, vec![figure])),
            }
        }
    }
    Ok(all)
}

/// The workloads that the store took part in, and their operations per second.
fn workloads(result: &Value) -> Vec<(String, f64)> {
    let mut all = Vec::new();
    let mut add = |name: &str, operation: &Value| {
        if let Some(figure) = operation["ops"].as_f64() {
            all.push((name.to_owned(), figure));
        }
    };
    for (name, field) in [("create", "creates"), ("read", "reads"), ("update", "updates"), ("delete", "deletes")] {
        add(name, &result[field]);
    }
    for scan in result["scans"].as_array().into_iter().flatten() {
        for run in scan["runs"].as_array().into_iter().flatten() {
            add(scan["name"].as_str().unwrap_or("scan"), &run["result"]);
        }
    }
    for batch in result["batches"].as_array().into_iter().flatten() {
        add(batch[0].as_str().unwrap_or("batch"), &batch[3]);
    }
    all
}

fn table(args: &Args, all: &BTreeMap<&str, Figures>) -> Result<Table> {
    let command = format!(
        "cargo run --release -p tamis-crud-bench -- --engines {} --samples {} --clients {} --rounds {}",
        args.engines.join(","),
        args.samples,
        args.clients,
        args.rounds
    );
    let heads: Vec<&str> =
        ["operations per second"].into_iter().chain(args.engines.iter().map(String::as_str)).collect();
    let mut table = Table::new("crud_bench/operations", &command, &heads);
    let first = args.engines.first().and_then(|engine| all.get(engine.as_str())).context("no store")?;
    for (workload, _) in first {
        let cell = |engine: &String| {
            let found = all[engine.as_str()].iter().find(|(name, _)| name == workload);
            found.map_or_else(|| "-".to_owned(), |(_, figures)| rate(median(figures.iter().copied())))
        };
        table.row(std::iter::once(workload.clone()).chain(args.engines.iter().map(cell)));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_report() {
        let report = serde_json::json!({
            "creates": {"ops": 10.0}, "reads": {"ops": 2e6}, "updates": null, "deletes": {"ops": 3.0},
            "scans": [{"name": "all", "runs": [{"result": {"ops": 4.0}}, {"result": null}]}],
            "batches": [["batch", 5, 100, {"ops": 1234.0}], ["skipped", 5, 100, null]],
        });
        let found = workloads(&report);
        let found: Vec<(&str, String)> = found.iter().map(|(name, ops)| (name.as_str(), rate(*ops))).collect();
        let expected = [("create", "10.0"), ("read", "2.00M"), ("delete", "3.00"), ("all", "4.00"), ("batch", "1.23k")];
        assert_eq!(found, expected.map(|(name, ops)| (name, ops.to_owned())));
    }
}
