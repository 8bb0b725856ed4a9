//! `tamis-peers`: the workloads of tamis-bench over tamis and its peers, in turn.
//!
//! Each module makes an engine out of a store, in the way that its users would write it. Which settings each has, and why they are fair,
//! stands in the README.

#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "leveldb")]
mod leveldb;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use std::process::ExitCode;

use clap::Parser;
use tamis_bench::cli::{RunArgs, run};
use tamis_bench::contest::Contestant;
use tamis_bench::tamis_engine::{TAMIS, TAMIS_MAPPED};

/// Runs the field's workloads over tamis and its peers, in turn, and compares
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    run: RunArgs,
}

/// All that take part.
const CONTESTANTS: &[Contestant] = &[
    TAMIS,
    TAMIS_MAPPED,
    #[cfg(feature = "rocksdb")]
    rocksdb::ROCKSDB,
    #[cfg(feature = "rocksdb")]
    rocksdb::ROCKSDB_TUNED,
    #[cfg(feature = "leveldb")]
    leveldb::LEVELDB,
    #[cfg(feature = "fjall")]
    fjall::FJALL,
    #[cfg(feature = "lmdb")]
    lmdb::LMDB,
    #[cfg(feature = "redb")]
    redb::REDB,
];

fn main() -> ExitCode {
    match run(&Arguments::parse().run, CONTESTANTS, &[]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tamis-peers: {error}");
            ExitCode::FAILURE
        }
    }
}
