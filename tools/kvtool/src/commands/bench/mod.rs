//! `bench`: measurements compared with theory, and the usual workloads.

mod reads;

use std::rc::Rc;

use tamis_bench::cli::RunArgs;
use tamis_bench::program::Program;
use tamis_bench::tamis_engine::CONTESTANTS;

use crate::args::{BenchCommand, Common};
use crate::failure::{Failure, Result};
use crate::session::Session;

const PROGRAM: Program = Program { name: "bench", command: "cargo run --release -p kvtool -- bench run" };

pub(crate) fn run(command: BenchCommand, session: Option<&Rc<Session>>) -> Result<()> {
    match command {
        BenchCommand::Reads(with) => with.run(session, reads::run),
        BenchCommand::Run(with) => with.run(session, run_workloads),
    }
}

fn run_workloads(common: &Common, mut args: RunArgs) -> Result<()> {
    if common.json() {
        args.results.get_or_insert("-".into());
    }
    tamis_bench::cli::run(&args, PROGRAM, &CONTESTANTS, &["bench", "run"])
        .map_err(|error| Failure::Wrong(error.to_string()))
}
