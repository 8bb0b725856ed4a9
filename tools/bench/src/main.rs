//! `tamis-bench`: the usual workloads over tamis.

use std::process::ExitCode;

use clap::Parser;
use tamis_bench::cli::{RunArgs, run};
use tamis_bench::program::Program;
use tamis_bench::tamis_engine::CONTESTANTS;

/// Runs the usual workloads over tamis: throughput, latency, processor time, memory, amplification
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    run: RunArgs,
}

const PROGRAM: Program = Program { name: "bench", command: "cargo run --release -p tamis-bench --" };

fn main() -> ExitCode {
    match run(&Arguments::parse().run, PROGRAM, &CONTESTANTS, &[]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tamis-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
