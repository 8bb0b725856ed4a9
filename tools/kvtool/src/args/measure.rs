//! The command lines of commands that make stores of their own, to measure and to test.

use std::path::PathBuf;

use clap::Args as Group;

use crate::commands::soak::FaultKind;

#[derive(Debug, Group)]
pub(crate) struct Demo {
    /// Number of keys to load
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    pub(crate) keys: u64,
    /// Directory in which to create the store [default: the temporary directory]
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,
    /// Keep the store, and print its path
    #[arg(long)]
    pub(crate) keep: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Soak {
    /// Where to create the store, which is kept [default: the temporary directory]
    pub(crate) db: Option<PathBuf>,
    /// Duration in seconds
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) seconds: u64,
    /// Number of rounds instead; each round ends in a kill or a fault
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    pub(crate) rounds: Option<u64>,
    /// Seed of the load, the kills and the faults; random by default, and printed
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

#[derive(Debug, Group)]
pub(crate) struct SoakWorker {
    pub(crate) db: PathBuf,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long)]
    pub(crate) steps: u64,
    #[arg(long, value_enum, requires = "at")]
    pub(crate) fault: Option<FaultKind>,
    #[arg(long, default_value_t = 1)]
    pub(crate) at: u64,
}

#[derive(Debug, Group)]
pub(crate) struct BenchReads {
    /// The store to measure; no process should write to it meanwhile. It is not changed: its tables
    /// are linked or copied into a new directory. Without it, a store is created
    pub(crate) db: Option<PathBuf>,
    /// Number of keys to load [default: 1000000]
    #[arg(long, value_name = "N", conflicts_with = "db", value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    pub(crate) keys: Option<u64>,
    /// Bytes of each loaded value [default: 100]
    #[arg(long, value_name = "BYTES", conflicts_with = "db", value_parser = value_size)]
    pub(crate) value_size: Option<usize>,
    /// Use the lines of FILE as existing keys (`-` for standard input) instead of a sample of the
    /// store's keys
    #[arg(long, value_name = "FILE", requires = "db")]
    pub(crate) keys_from: Option<PathBuf>,
    /// Use the lines of FILE as missing keys, instead of existing keys with one more byte
    #[arg(long, value_name = "FILE", requires = "db")]
    pub(crate) missing_from: Option<PathBuf>,
    /// Measure range filters: blocks per scan of an empty range, and per short scan, in both
    /// directions. The ranges are made from the keys of the store. With cold caches only: a range
    /// filter is asked about blocks that are not in memory
    #[arg(long, conflicts_with_all = ["warm", "keys_from", "missing_from"])]
    pub(crate) ranges: bool,
    /// Sizes of the filters in bits per key, 1 to 24, of range filters 3 to 18; fractions are
    /// allowed [default: 4,6,8,10,12,16,20; of range filters 6,8,10,12,14,16]
    #[arg(long, value_name = "BITS", value_delimiter = ',', value_parser = bits_per_key)]
    pub(crate) bits: Vec<f32>,
    /// Ask for at most N keys of each kind, or ranges [default: 100000; of ranges 20000]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) asked: Option<usize>,
    /// Measure only with cold caches: no blocks cached by the store, no pages cached by the system
    #[arg(long)]
    pub(crate) cold: bool,
    /// Measure only with all blocks in the store's cache, which must fit in memory
    #[arg(long)]
    pub(crate) warm: bool,
    /// Directory in which to create the store [default: the temporary directory]. On a file system
    /// in memory, nothing is cold
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,
    /// Keep the store, and print its path
    #[arg(long)]
    pub(crate) keep: bool,
    /// Plot reads per missing key, or per empty range, against bits per key, into a file ending in
    /// .svg or .png; may be repeated
    #[arg(long, value_name = "FILE", value_parser = tamis_bench::plot::plot_file)]
    pub(crate) plot: Vec<PathBuf>,
    /// Seed of the keys, their order, the sample of keys, and the filters' hash
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub(crate) seed: u64,
}

fn bits_per_key(text: &str) -> Result<f32, String> {
    match text.trim().parse() {
        Ok(bits) if (1.0..=24.0).contains(&bits) => Ok(bits),
        _ => Err("a filter takes 1 to 24 bits per key".to_owned()),
    }
}

fn value_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size) if size <= 1 << 20 => Ok(size),
        _ => Err("a value has 0 to 1048576 bytes".to_owned()),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("it must be a whole number, 1 or more".to_owned()),
    }
}
