//! The command line.

mod filter;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args as Group, Parser, Subcommand, ValueEnum};
use tamis::FilterMode;
use tamis_bench::cli::RunArgs;

use crate::commands::soak::FaultKind;
use crate::failure::{Failure, Result};
use crate::text::Form;

pub(crate) use filter::{
    FilterAdd, FilterAdvise, FilterCheck, FilterCommand, FilterCreate, FilterInfo, FilterRebuild, Policy,
};

const AFTER_HELP: &str = r#"Keys and values:
  Arguments are bytes as typed; the shell's quotes and nothing else change them.
  In lines of input and output, a key or value is text as it is, backslashes too, or
  $'...' around escapes. kvtool prints $'...' for what a line cannot hold or show: tabs,
  newlines, other control characters, bytes that are not UTF-8, an empty key, and text
  that itself begins with $' and ends with '. Lines that kvtool prints are read back
  exactly, so that `kvtool scan A | kvtool import B` copies any keys and values.
  Shells read $'...' too: `kvtool get DB $'a\tb'`.
  Escapes are \\ for a backslash, \t for a tab, \n for a newline, \xNN for any byte.
  With --escaped, arguments and lines are escapes throughout, without $'...'.
  With --hex, they are two hexadecimal digits per byte.
  A line of input is a key, or a key, a tab and a value. Empty lines are passed over and
  counted; a line with a value and no key is refused, unless by --escaped or --hex.
  With --json, bytes are a string if they are UTF-8, and otherwise (or with --hex) an
  object {"hex": "00ff"}; every document has "schema": 1.

Exit codes:
  0    done
  1    the key was not found; `filter check` selected no line
  2    the command line, or a line of input, is not valid
  3    the store is damaged, or a measurement contradicts what it should be
  4    input or output failed, or there is no store that could be used: it is locked,
       of a newer version, or another program's
  130  interrupted (Ctrl-C); `import` says how to resume"#;

/// Command line of the tamis key-value store.
///
/// Data go to standard output, words to standard error. Commands that read open the store read-only, change no file in it, and work
/// while another process has it open.
#[derive(Debug, Parser)]
#[command(name = "kvtool", version, after_help = AFTER_HELP, max_term_width = 120)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Debug, Group)]
pub(crate) struct Common {
    /// The keyspace to work in (`default` if not given; `stats`, `levels`, `compact` and `filter rebuild` then take all of them)
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) keyspace: Option<String>,
    /// Keys and values are escaped, in arguments, input and output: \\, \t, \n, \xNN
    #[arg(long, global = true, conflicts_with = "hex")]
    pub(crate) escaped: bool,
    /// Keys and values are hexadecimal, in arguments, input and output
    #[arg(long, global = true)]
    pub(crate) hex: bool,
    /// Write JSON to standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Common {
    /// How keys and values are read and shown.
    pub(crate) fn form(&self) -> Form {
        match (self.hex, self.escaped) {
            (true, _) => Form::Hex,
            (_, true) => Form::Escaped,
            _ => Form::Plain,
        }
    }

    /// The bytes that an argument stands for.
    pub(crate) fn bytes(&self, what: &str, argument: &OsStr) -> Result<Vec<u8>> {
        self.form()
            .parse_argument(argument.as_encoded_bytes())
            .map_err(|why| Failure::usage(format_args!("{what}: {why}")))
    }

    pub(crate) fn optional_bytes(&self, what: &str, argument: Option<&OsString>) -> Result<Option<Vec<u8>>> {
        argument.map(|argument| self.bytes(what, argument)).transpose()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Set a key to a value, durably; creates store and keyspace when absent
    Put(Put),
    /// Print the value of a key, or look up many keys
    Get(Get),
    /// Delete a key, durably; it need not be there
    Delete(Delete),
    /// Print keys and values in order: key, tab, value
    Scan(Scan),
    /// Put many keys from a file or from standard input; creates store and keyspace when absent
    Import(Import),
    /// Print what the store is made of and what reads cost
    Stats(Stats),
    /// Look up a key and tell how: memtables, tables, what their filters said, which blocks were read
    Explain(Explain),
    /// Print the tables of every level
    Levels(Store),
    /// List the keyspaces
    Keyspaces(Store),
    /// Bring entries to the last level, and drop what deletes and overwrites have left
    Compact(Compact),
    /// Print what an SSTable contains
    Sst(Sst),
    /// Print a file of a store in words: log, manifest, CURRENT or SSTable
    Dump(Dump),
    /// Check every file of a store; one line per fault: file, offset, kind
    Verify(Verify),
    /// Make a damaged store one that can be opened, and tell what is lost; nothing is deleted
    ///
    /// What does not belong to the store any more is moved to the directory `lost` in it, with a report. Exit code 3: some keys may be
    /// missing or show older values; the ranges are told. No process may have the store open.
    Repair(Repair),
    /// Make, ask and compare filters
    #[command(subcommand)]
    Filter(FilterCommand),
    /// Load a million keys and measure how many disk reads the filters save
    Demo(Demo),
    /// Work on a store, kill it and make it fail, again and again, and check that nothing
    /// acknowledged is lost
    ///
    /// A process puts, deletes, scans, flushes and compacts by several threads. It is killed at
    /// random moments, or one of its calls to the file system fails: any call, a sync, an append
    /// that is cut short, or some calls for want of space. After each the store is opened and
    /// compared with what was acknowledged. Exit code 3 if anything is lost, invented, or left
    /// open.
    Soak(Soak),
    /// The process that `soak` kills
    #[command(hide = true)]
    SoakWorker(SoakWorker),
    /// Measure, and compare with what theory says
    #[command(subcommand)]
    Bench(BenchCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Ask for missing and existing keys, with filters of several sizes: reads and bytes per key, expected and measured
    ///
    /// Fails with exit code 3 if what is measured is not what theory says (beyond five standard deviations), or if what the store
    /// counts is not what the operating system counts for this process.
    Reads(Box<BenchReads>),
    /// The field's workloads, as tamis-bench runs them: throughput, latency, processor time, memory, amplification
    ///
    /// Stores are made and removed again. With --json, all figures are written to standard output.
    Run(Box<RunArgs>),
}

#[derive(Debug, Group)]
pub(crate) struct Put {
    /// Directory of the store
    pub(crate) db: PathBuf,
    pub(crate) key: OsString,
    /// The value; `-` reads it from standard input, as `--file -` does
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub(crate) value: Option<OsString>,
    /// Take the bytes of FILE as the value (`-` for standard input); every byte counts, a final
    /// newline too
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Group)]
pub(crate) struct Get {
    /// Directory of the store
    pub(crate) db: PathBuf,
    #[arg(required_unless_present = "keys_from", conflicts_with = "keys_from")]
    pub(crate) key: Option<OsString>,
    /// Print the value's bytes as they are, without a newline behind them
    #[arg(long, conflicts_with_all = ["json", "keys_from"])]
    pub(crate) raw: bool,
    /// Look up each line of FILE (`-` for standard input), print those that are there as key, tab, value, and say on standard error
    /// what it cost
    #[arg(long, value_name = "FILE")]
    pub(crate) keys_from: Option<PathBuf>,
    /// How filters are treated
    #[arg(long, value_enum, default_value_t)]
    pub(crate) filters: Filters,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Filters {
    /// Ask them first, and believe a "no"
    #[default]
    Use,
    /// Do not ask: look into every table that may hold the key
    Ignore,
    /// Ask, but look all the same, and fail if a filter was wrong to say "no"
    Shadow,
}

impl From<Filters> for FilterMode {
    fn from(filters: Filters) -> FilterMode {
        match filters {
            Filters::Use => FilterMode::Use,
            Filters::Ignore => FilterMode::Ignore,
            Filters::Shadow => FilterMode::Shadow,
        }
    }
}

#[derive(Debug, Group)]
pub(crate) struct Explain {
    /// Directory of the store
    pub(crate) db: PathBuf,
    pub(crate) key: OsString,
    /// How filters are treated
    #[arg(long, value_enum, default_value_t)]
    pub(crate) filters: Filters,
}

#[derive(Debug, Group)]
pub(crate) struct Delete {
    /// Directory of the store
    pub(crate) db: PathBuf,
    pub(crate) key: OsString,
}

#[derive(Debug, Group)]
pub(crate) struct Scan {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Begin with this key
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// End before this key
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    /// Only keys that begin with this
    #[arg(long)]
    pub(crate) prefix: Option<OsString>,
    /// At most so many entries
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// From the last key to the first
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Go on past damaged blocks, and tell at the end which ranges of keys were skipped (exit code 3)
    #[arg(long, conflicts_with = "reverse")]
    pub(crate) skip_damaged: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Repair {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Tell what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Import {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// What to import; standard input if it is `-` or absent
    pub(crate) file: Option<PathBuf>,
    /// Pass over the first N lines: those that an interrupted import has put into the store
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) skip: u64,
    /// Form of the lines; by default JSON lines if FILE ends in .jsonl, .ndjson or .json, and otherwise TSV
    #[arg(long, value_enum)]
    pub(crate) format: Option<ImportFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportFormat {
    /// Key, tab, value, as `scan` prints them; a value that is not quoted may hold tabs. A line
    /// without a tab is a key with an empty value. Only the final newline of a line is taken off,
    /// not a carriage return before it
    Tsv,
    /// {"key": "…", "value": "…"}, with "key_hex" and "value_hex", or an object {"hex": "…"} as `scan --json` writes it, for bytes
    /// that are not UTF-8. An absent value is empty; other fields are passed over
    Jsonl,
}

#[derive(Debug, Group)]
pub(crate) struct Stats {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Look up each line of FILE (`-` for standard input) first, so that there are reads to count
    #[arg(long, value_name = "FILE")]
    pub(crate) keys_from: Option<PathBuf>,
    /// How filters are treated
    #[arg(long, value_enum, default_value_t, requires = "keys_from")]
    pub(crate) filters: Filters,
}

#[derive(Debug, Group)]
pub(crate) struct Store {
    /// Directory of the store
    pub(crate) db: PathBuf,
}

#[derive(Debug, Group)]
pub(crate) struct Compact {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Begin with this key
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// End before this key
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
}

#[derive(Debug, Group)]
pub(crate) struct Sst {
    /// An SSTable, or the directory of a store
    pub(crate) path: PathBuf,
    /// Number of the table, if a store is given
    pub(crate) number: Option<u64>,
    /// List the data blocks
    #[arg(long)]
    pub(crate) blocks: bool,
    /// List the entries, past damaged blocks: key, sequence number, kind, value
    #[arg(long)]
    pub(crate) entries: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Dump {
    /// A file of a store, under the name that it has there
    pub(crate) file: PathBuf,
    /// Do not shorten keys and values
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Verify {
    /// Directory of the store
    pub(crate) db: PathBuf,
}

#[derive(Debug, Group)]
pub(crate) struct Demo {
    /// How many keys to load
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    pub(crate) keys: u64,
    /// Where to make the store; by default where temporary files go
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,
    /// Keep the store, and say where it is
    #[arg(long)]
    pub(crate) keep: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Soak {
    /// Where to make the store, which is kept; by default where temporary files go
    pub(crate) db: Option<PathBuf>,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) seconds: u64,
    /// How many rounds instead, each of which ends in a kill or a fault
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    pub(crate) rounds: Option<u64>,
    /// Seed of the load, the kills and the faults; another one each time, which is printed, if not
    /// given
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
    /// A store to be measured, to which nobody should write meanwhile. It is not changed: its tables are linked or copied into a
    /// directory of their own. Without it, a store is made
    pub(crate) db: Option<PathBuf>,
    /// How many keys to load [default: 1000000]
    #[arg(long, value_name = "N", conflicts_with = "db", value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    pub(crate) keys: Option<u64>,
    /// Bytes of each value that is loaded [default: 100]
    #[arg(long, value_name = "BYTES", conflicts_with = "db", value_parser = value_size)]
    pub(crate) value_size: Option<usize>,
    /// Ask for the lines of FILE as keys that are there (`-` for standard input); otherwise for some of the store's keys
    #[arg(long, value_name = "FILE", requires = "db")]
    pub(crate) keys_from: Option<PathBuf>,
    /// Ask for the lines of FILE as keys that are missing; otherwise for existing keys with one more byte
    #[arg(long, value_name = "FILE", requires = "db")]
    pub(crate) missing_from: Option<PathBuf>,
    /// Sizes of the filters, in bits per key, 1 to 24, fractions too
    #[arg(long, value_name = "BITS", value_delimiter = ',', default_value = "4,6,8,10,12,16,20", value_parser = bits_per_key)]
    pub(crate) bits: Vec<f32>,
    /// At most so many keys of each kind are asked for [default: 100000]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) asked: Option<usize>,
    /// Measure only with nothing cached: neither by the store, nor the tables' pages by the system
    #[arg(long)]
    pub(crate) cold: bool,
    /// Measure only with all blocks in the store's cache; their memory is needed
    #[arg(long)]
    pub(crate) warm: bool,
    /// Where to make the store; by default where temporary files go. In memory nothing is cold
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,
    /// Keep the store, and say where it is
    #[arg(long)]
    pub(crate) keep: bool,
    /// Draw reads per missing key against bits per key, into a file ending in .svg or .png; may be given several times
    #[arg(long, value_name = "FILE", value_parser = tamis_bench::plot::plot_file)]
    pub(crate) plot: Vec<PathBuf>,
    /// Seed of the keys, their order, the choice among them, and the filters' hash
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
        _ => Err("a value to be loaded takes 0 to 1048576 bytes".to_owned()),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("a whole number of 1 or more".to_owned()),
    }
}
