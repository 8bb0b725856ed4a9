//! `tamis-peers`: the workloads of tamis-bench over tamis and its peers, in turn.
//!
//! Each module adapts a store to the trait `Engine`, in the way its users would write it. The
//! README lists the settings of each engine and why they are fair.

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
#[cfg(feature = "rocksdb")]
mod rocksdb_optimistic;

use std::process::ExitCode;

use clap::Parser;
use tamis_bench::cli::{RunArgs, run};
use tamis_bench::contest::Contestant;
use tamis_bench::program::Program;
use tamis_bench::tamis_engine::{TAMIS, TAMIS_MAPPED, TAMIS_MUTEX, TAMIS_PREAD, TAMIS_RANGES, TAMIS_SEPARATED};

/// Runs the usual workloads over tamis and its peers, in turn, and compares them
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    run: RunArgs,
}

/// All contestants.
const CONTESTANTS: &[Contestant] = &[
    TAMIS,
    TAMIS_MAPPED,
    TAMIS_PREAD,
    TAMIS_MUTEX,
    TAMIS_SEPARATED,
    TAMIS_RANGES,
    #[cfg(feature = "rocksdb")]
    rocksdb::ROCKSDB,
    #[cfg(feature = "rocksdb")]
    rocksdb::ROCKSDB_PREFIX,
    #[cfg(feature = "rocksdb")]
    rocksdb::ROCKSDB_TUNED,
    #[cfg(feature = "rocksdb")]
    rocksdb_optimistic::ROCKSDB_OPTIMISTIC,
    #[cfg(feature = "rocksdb")]
    rocksdb::ROCKSDB_SEPARATED,
    #[cfg(feature = "leveldb")]
    leveldb::LEVELDB,
    #[cfg(feature = "fjall")]
    fjall::FJALL,
    #[cfg(feature = "fjall")]
    fjall::FJALL_OPTIMISTIC,
    #[cfg(feature = "fjall")]
    fjall::FJALL_SEPARATED,
    #[cfg(feature = "lmdb")]
    lmdb::LMDB,
    #[cfg(feature = "redb")]
    redb::REDB,
];

/// The flags are those for RocksDB; see README.md.
const PROGRAM: Program = Program {
    name: "peers",
    command: "CFLAGS=-march=native CXXFLAGS=-march=native cargo run --release -p tamis-peers --",
};

fn main() -> ExitCode {
    match run(&Arguments::parse().run, PROGRAM, CONTESTANTS, &[]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tamis-peers: {error}");
            ExitCode::FAILURE
        }
    }
}
