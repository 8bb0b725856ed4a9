//! The command line.

mod filter;
mod flags;
mod format;
mod report;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args as Group, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tamis::FilterMode;
use tamis_backup::StoreId;
use tamis_bench::cli::RunArgs;

use crate::commands::soak::FaultKind;
use crate::text::parse_time;

pub(crate) use filter::{
    FilterAdd, FilterAdvise, FilterCheck, FilterCommand, FilterCreate, FilterInfo, FilterRebuild, FilterUnion, Policy,
};
pub(crate) use flags::{AllFlags, ByteFlags, Common, JsonFlag, KeyspaceFlags, OutputFormat, TableFlags, With};
pub(crate) use format::Format;
pub(crate) use report::Report;

const AFTER_HELP: &str = r#"Keys and values:
  Arguments are bytes as typed; the shell's quotes and nothing else change them.
  In lines of input and output, a key or value is plain text (a backslash is a backslash)
  or escapes inside $'...'. kvtool prints $'...' for what a line cannot hold or show: tabs,
  newlines, other control characters, bytes that are not UTF-8, an empty key, and text
  that itself begins with $' and ends with '. kvtool reads its own lines back exactly:
  `kvtool scan A | kvtool import B` copies any keys and values.
  Shells read $'...' too: `kvtool get DB $'a\tb'`.
  Escapes are \\ for a backslash, \t for a tab, \n for a newline, \xNN for any byte.
  With --escaped, arguments and lines are escaped text without $'...'.
  With --hex, they are two hexadecimal digits per byte.
  A line of input is a key, or a key, a tab and a value, in every command. Commands that
  want keys alone take the keys, and count the values that they leave out. Empty lines are
  skipped and counted. A line with a value and no key is an error, except with --escaped
  or --hex. A byte order mark at the beginning of a file is no part of it.
  CSV and NUL-delimited pairs hold bytes as they are, without $'...': --escaped and --hex
  make them text. A pair cannot hold a NUL byte without them.
  With --json, bytes are a string if they are UTF-8, and otherwise (or with --hex) an
  object {"hex": "00ff"}. Every document has "schema": 1.

Exit codes:
  0    success
  1    the key was not found, `filter check` selected no line, or the log no longer has
       the changes asked for
  2    the command line or a line of input is not valid
  3    the store is damaged, or a measurement differs from the expected value
  4    input or output failed, or there is no usable store: it is absent, locked, of a
       newer version, or belongs to another program
  130  interrupted (Ctrl-C); `import` says how to resume, `export` leaves FILE as it was"#;

/// Command line of the tamis key-value store.
///
/// Data go to standard output, messages to standard error. Commands that only read open the store
/// read-only, change no file in it, and work while another process has it open.
#[derive(Debug, Parser)]
#[command(name = "kvtool", version, after_help = AFTER_HELP, max_term_width = 120)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Set a key to a value, durably; creates the store and the keyspace if absent
    Put(With<Put>),
    /// Merge an operand into the value of a key, durably; creates the store and the keyspace if
    /// absent
    Merge(With<Merge>),
    /// Print the value of a key, or of many
    Get(With<Get>),
    /// Delete keys, or a range of them, durably; deleting an absent key succeeds
    Delete(With<Delete>),
    /// Delete a range of keys, durably, in the same short time whatever it holds
    DeleteRange(With<DeleteRange>),
    /// Print keys and values in order: key, tab, value
    Scan(With<Scan>),
    /// Print how many keys there are, or are in a range
    Count(With<InRange>),
    /// Print about how many bytes a range takes, or a keyspace, and about how many keys it has
    ///
    /// Estimated from the indexes of tables, without a read of their data. Bytes are those of the
    /// tables, with filters and indexes; overwritten and deleted entries count until compactions
    /// remove them.
    Size(With<InRange, AllFlags<TableFlags>>),
    /// Print what was written, in order, as far as the log still has it: number, keyspace,
    /// operation, key, value; with `--json`, an object for each batch
    ///
    /// The log has at least what no table has yet. A program that opens its store with
    /// `Options::keep_log` keeps more. The store may be open elsewhere. Changes of keyspaces that
    /// were dropped are left out.
    Changes(With<Changes>),
    /// Put many keys from files or standard input; creates the store and the keyspace if absent
    ///
    /// Reads TSV, CSV, JSON lines and NUL-delimited pairs. JSON lines that `export` has written say
    /// of which keyspace they are; a new one gets its options from there. Without --dry-run, what
    /// comes before an invalid record is imported, and a message says how to resume.
    Import(With<Import>),
    /// Write sorted lines to tables for `ingest`, with no other access to the store than to read
    /// how its tables are written
    ///
    /// The store may be open elsewhere. Keys must ascend as bytes, each once: `LC_ALL=C sort` sorts
    /// plain lines. A line that does not is an error, and no table is left.
    SstBuild(With<SstBuild>),
    /// Add tables that `sst-build` or a program has written to a keyspace, all of them or none
    ///
    /// Their entries replace those that the keyspace has under the same keys. The tables must not
    /// overlap each other. Each is read and checked first. The keyspace must exist.
    Ingest(With<Ingest, KeyspaceFlags>),
    /// Write the keys and values of a keyspace, as they are at one moment, to a file or standard
    /// output
    ///
    /// Writes what `import` reads: TSV, CSV, JSON lines or NUL-delimited pairs. CSV has no header.
    /// JSON lines hold all there is: deadlines, merge operands, the keyspace and its options. What
    /// another format leaves out is counted in a message. An entry that the format cannot hold is
    /// an error, and no file is written.
    Export(With<Export>),
    /// Print the levels, filters and memory of a store, and what reads cost
    Stats(With<Stats, AllFlags<TableFlags>>),
    /// Write a report on a store as one page of HTML: levels, filters, reads saved, advice, costs
    Report(With<Report, AllFlags<report::Html>>),
    /// Look up a key and show the steps: memtables, tables, filter answers, blocks read
    Explain(With<Explain, AllFlags<TableFlags>>),
    /// Print the tables of every level
    Levels(With<StoreDir, AllFlags<TableFlags>>),
    /// List the keyspaces
    Keyspaces(With<StoreDir, KeyspaceFlags<TableFlags>>),
    /// Create a keyspace; the store, too, if absent
    CreateKeyspace(With<NamedKeyspace, JsonFlag>),
    /// Drop a keyspace with all that it holds
    DropKeyspace(With<NamedKeyspace, JsonFlag>),
    /// Move entries to the last level, and drop deleted and overwritten ones
    Compact(With<Compact>),
    /// Make a copy of a store that shares its files by hard links; it survives a power cut
    ///
    /// The copy is a store of its own. It takes the space of the log only, until the original
    /// replaces files. On another file system everything is copied, and checksums are compared.
    /// No other process may have the store open; one that has calls `Db::checkpoint` itself.
    Checkpoint(With<Checkpoint, JsonFlag>),
    /// Back up a store to a repository, which is created if absent; copies only what it lacks
    ///
    /// The repository is a directory, or a bucket of an object store: s3://bucket/prefix, with
    /// endpoint and credentials in AWS_ENDPOINT, AWS_REGION, AWS_ACCESS_KEY_ID and
    /// AWS_SECRET_ACCESS_KEY. It has many generations. An interrupted backup leaves them as they
    /// were, and the next one goes on with the files that were copied.
    ///
    /// With --follow, everything that is written afterwards is kept, too, and `restore --at` makes
    /// a store as of any second. A program that has the store open can do that itself, with the
    /// crate `tamis-backup`.
    Backup(With<Backup, JsonFlag>),
    /// List the generations in a backup repository, or check all of its files
    Backups(With<Backups, TableFlags>),
    /// Make a store of a generation in a backup repository; every file is compared with its hash
    Restore(With<Restore, JsonFlag>),
    /// Print what an SSTable contains
    Sst(With<Sst, ByteFlags<TableFlags>>),
    /// Print a file of a store as text: log, manifest, CURRENT or SSTable
    Dump(With<Dump, ByteFlags>),
    /// Check every file of a store; one line per fault: file, offset, kind
    Verify(With<Verify, JsonFlag>),
    /// Repair a damaged store so that it opens again, and report what is lost; deletes nothing
    ///
    /// Files that no longer belong to the store move to its directory `lost`, with a report. Exit
    /// code 3: some keys may be missing or have older values; the report lists their ranges. No
    /// process may have the store open.
    Repair(With<Repair, JsonFlag>),
    /// Create, query and compare filters
    #[command(subcommand)]
    Filter(FilterCommand),
    /// Load a million keys and measure how many disk reads the filters save
    Demo(With<Demo, TableFlags>),
    /// Put a store under load, kill it and inject faults, repeatedly, and check that no
    /// acknowledged write is lost
    ///
    /// A worker process puts, deletes, scans, flushes and compacts in several threads. It is killed
    /// at random moments, or one of its file system calls fails: any call, a sync, an append that
    /// writes only part, or several calls for lack of space. After each, the store is opened and
    /// compared with the acknowledged writes. Exit code 3 if a write is lost, an entry is invented,
    /// or a file is left open.
    Soak(With<Soak, TableFlags>),
    /// The worker process that `soak` kills
    #[command(hide = true)]
    SoakWorker(SoakWorker),
    /// Measure, and compare with theory
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Print what makes a shell complete commands and flags; the shell reads it at its start
    Completions(Completions),
    /// Write manual pages, one for each command
    Man(Man),
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Look up missing and existing keys with filters of several sizes: reads and bytes per key,
    /// expected and measured
    ///
    /// Fails with exit code 3 if a measurement differs from theory by more than five standard
    /// deviations, or if the store's counters differ from the operating system's for this process.
    Reads(Box<With<BenchReads, AllFlags<TableFlags>>>),
    /// Run the usual workloads, like tamis-bench: throughput, latency, processor time, memory,
    /// amplification
    ///
    /// Creates its stores and removes them again. With --json, all figures go to standard output.
    Run(Box<With<RunArgs, JsonFlag>>),
}

#[derive(Debug, Group)]
pub(crate) struct Put {
    /// Directory of the store
    pub(crate) db: PathBuf,
    pub(crate) key: OsString,
    /// The value; `-` reads it from standard input, like `--file -`
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub(crate) value: Option<OsString>,
    /// Use the bytes of FILE as the value (`-` for standard input), including a final newline
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Let the value expire after this many seconds, 1 or more. Default: the keyspace's ttl, if it
    /// has one
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ttl: Option<u64>,
}

#[derive(Debug, Group)]
pub(crate) struct Merge {
    /// Directory of the store
    pub(crate) db: PathBuf,
    pub(crate) key: OsString,
    /// For operators that add: an integer in decimal, which is stored with the length that the
    /// values of the key have, or in 8 bytes; with --hex or --escaped its bytes. For `union`: one
    /// member; with --hex or --escaped an encoded set. For the others: bytes
    #[arg(allow_hyphen_values = true)]
    pub(crate) operand: OsString,
    /// The keyspace's merge operator. A keyspace that has one keeps it
    #[arg(long, value_enum)]
    pub(crate) operator: Option<Operator>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Operator {
    /// Add little-endian integers of 1 to 16 bytes
    AddLittle,
    /// Add big-endian integers of 1 to 16 bytes
    AddBig,
    /// Keep the greatest operand
    Max,
    /// Keep the least operand
    Min,
    /// Append operands
    Append,
    /// Unite sets: members in ascending order, each after its length
    Union,
}

#[derive(Debug, Group)]
pub(crate) struct Get {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// One key, whose value is printed, or several: then key, tab, value, and absent ones are named
    /// on standard error
    #[arg(required_unless_present = "keys_from", conflicts_with = "keys_from", value_name = "KEY")]
    pub(crate) keys: Vec<OsString>,
    /// Print the value's bytes unchanged, without a trailing newline
    #[arg(long, conflicts_with_all = ["json", "keys_from", "missing"])]
    pub(crate) raw: bool,
    /// Print the keys that are absent, and none that are found
    #[arg(long)]
    pub(crate) missing: bool,
    /// Look up each line of FILE (`-` for standard input); print the keys found as key, tab, value,
    /// and the cost on standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) keys_from: Option<PathBuf>,
    /// How filters are used
    #[arg(long, value_enum, default_value_t)]
    pub(crate) filters: FilterUse,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum FilterUse {
    /// Query them first, and trust a "no"
    #[default]
    Use,
    /// Ignore them: search every table whose key range holds the key
    Ignore,
    /// Query them, search the table anyway, and fail if a "no" was wrong
    Shadow,
}

impl From<FilterUse> for FilterMode {
    fn from(filters: FilterUse) -> FilterMode {
        match filters {
            FilterUse::Use => FilterMode::Use,
            FilterUse::Ignore => FilterMode::Ignore,
            FilterUse::Shadow => FilterMode::Shadow,
        }
    }
}

#[derive(Debug, Group)]
pub(crate) struct Explain {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// The key of a get; without it, the scan of a range is explained
    #[arg(required_unless_present_any = ["from", "to", "prefix"], conflicts_with_all = ["from", "to", "prefix", "limit"])]
    pub(crate) key: Option<OsString>,
    /// A scan that starts at this key
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// A scan that stops before this key
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    /// A scan of the keys that begin with this
    #[arg(long)]
    pub(crate) prefix: Option<OsString>,
    /// The scan ends after N entries; with 1, it is a seek
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) limit: u64,
    /// How filters are used
    #[arg(long, value_enum, default_value_t)]
    pub(crate) filters: FilterUse,
}

#[derive(Debug, Group)]
#[command(group = clap::ArgGroup::new("what").args(["keys", "keys_from", "from", "to", "prefix"]).multiple(true).required(true))]
pub(crate) struct Delete {
    /// Directory of the store
    pub(crate) db: PathBuf,
    #[arg(value_name = "KEY", conflicts_with_all = ["keys_from", "from", "to", "prefix"])]
    pub(crate) keys: Vec<OsString>,
    /// Delete each line of FILE (`-` for standard input)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to", "prefix"])]
    pub(crate) keys_from: Option<PathBuf>,
    /// Delete from this key on, in the same short time whatever there is
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// Delete what is before this key
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    /// Delete the keys that begin with this
    #[arg(long, conflicts_with_all = ["from", "to"])]
    pub(crate) prefix: Option<OsString>,
}

#[derive(Debug, Group)]
pub(crate) struct DeleteRange {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Start at this key
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// Stop before this key
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    /// Only keys that begin with this
    #[arg(long, conflicts_with_all = ["from", "to"])]
    pub(crate) prefix: Option<OsString>,
    /// All keys
    #[arg(long, conflicts_with_all = ["from", "to", "prefix"])]
    pub(crate) all: bool,
}

/// A range of keys: what all of its bounds allow.
#[derive(Debug, Group)]
pub(crate) struct Range {
    /// Start at this key
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// Stop before this key
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
    /// Only keys that begin with this
    #[arg(long)]
    pub(crate) prefix: Option<OsString>,
}

#[derive(Debug, Group)]
pub(crate) struct InRange {
    /// Directory of the store
    pub(crate) db: PathBuf,
    #[command(flatten)]
    pub(crate) range: Range,
}

#[derive(Debug, Group)]
pub(crate) struct Scan {
    /// Directory of the store
    pub(crate) db: PathBuf,
    #[command(flatten)]
    pub(crate) range: Range,
    /// At most N entries
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// From the last key to the first
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Print keys alone; also `--keys`
    #[arg(long, alias = "keys", group = "part")]
    pub(crate) keys_only: bool,
    /// Print values alone, a line each
    #[arg(long, group = "part")]
    pub(crate) values_only: bool,
    /// Print how many entries there are, and none of them
    #[arg(long, group = "part")]
    pub(crate) count: bool,
    /// Skip damaged blocks, and list the skipped key ranges at the end (exit code 3)
    #[arg(long, conflicts_with = "reverse")]
    pub(crate) skip_damaged: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Changes {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Begin after this sequence number, the end of a batch [default: all that the log has]
    #[arg(long, value_name = "N")]
    pub(crate) since: Option<u64>,
    /// Stop after this many batches
    #[arg(long)]
    pub(crate) limit: Option<u64>,
    /// Go on with what another process writes, until interrupted; synced or not
    #[arg(long)]
    pub(crate) follow: bool,
    /// Do not shorten keys and values
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Repair {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Report what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Import {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// The files to import, in this order; standard input for `-` or if there are none
    pub(crate) files: Vec<PathBuf>,
    /// Skip the first N lines or records of each file: a header, or those that an interrupted
    /// import has written already
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) skip: u64,
    /// Format of all files [default: CSV for .csv, JSON lines for .jsonl, .ndjson and .json, NUL
    /// for .nul, otherwise TSV]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Read and check all files, print every fault and what would be imported, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The lines are sorted, each key once: write tables and ingest them, all or nothing. Several
    /// times as fast. Needs the space of the tables beside the store, not twice
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) sorted: bool,
    /// Delete, in the same write, all that the keyspace has: the lines replace it
    #[arg(long, requires = "sorted")]
    pub(crate) replace: bool,
}

#[derive(Debug, Group)]
pub(crate) struct SstBuild {
    /// Directory of the store for which the tables are
    pub(crate) db: PathBuf,
    /// Directory for the tables, which is created: 000001.sst, 000002.sst and so on, and
    /// deletes.sst for --delete-range and --delete-from
    pub(crate) out: PathBuf,
    /// The lines; standard input if it is `-` or absent
    pub(crate) file: Option<PathBuf>,
    /// Format of the lines [default: that of the extension of FILE, as for `import`; otherwise TSV]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// End a table at about this size
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) table_size: u64,
    /// Delete what the keyspace has from the key FROM on, up to TO; not what is ingested together
    /// with it. May be given several times, ordered by FROM; the input may then be empty
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"])]
    pub(crate) delete_range: Vec<OsString>,
    /// Like --delete-range, from the key FROM on to the last key; after all of --delete-range
    #[arg(long, value_name = "FROM")]
    pub(crate) delete_from: Option<OsString>,
}

#[derive(Debug, Group)]
pub(crate) struct Ingest {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// The tables
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Copy the tables. Without it they are linked where that is possible, and must not be changed
    /// afterwards
    #[arg(long, conflicts_with = "move_files")]
    pub(crate) copy: bool,
    /// Remove the tables from where they are when they are in the store
    #[arg(long = "move")]
    pub(crate) move_files: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Export {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// The file to write, replaced only when complete; standard output if it is `-` or absent
    pub(crate) file: Option<PathBuf>,
    /// Write every keyspace to a file of its own in the directory FILE, which is created if absent.
    /// Files are replaced when all are complete. JSON lines may go to standard output, one keyspace
    /// after the other
    #[arg(long)]
    pub(crate) all_keyspaces: bool,
    /// Leave out what cannot be read or combined, list it, and end with exit code 3
    #[arg(long)]
    pub(crate) skip_damaged: bool,
    /// Format [default: that of the extension of FILE, as for `import`; otherwise TSV]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    #[command(flatten)]
    pub(crate) range: Range,
}

#[derive(Debug, Group)]
#[command(group = clap::ArgGroup::new("reads").args(["keys_from", "ranges_from"]).multiple(true))]
pub(crate) struct Stats {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Look up each line of FILE (`-` for standard input) first, and show what these reads cost
    #[arg(long, value_name = "FILE")]
    pub(crate) keys_from: Option<PathBuf>,
    /// Scan the range of each line of FILE (`-` for standard input) first, ten entries at most, and
    /// show what these scans cost: its first key, a tab, and the key before which it ends
    #[arg(long, value_name = "FILE")]
    pub(crate) ranges_from: Option<PathBuf>,
    /// How filters are used
    #[arg(long, value_enum, default_value_t, requires = "reads")]
    pub(crate) filters: FilterUse,
    /// Print all figures in Prometheus' text format. Counts of reads and of background work begin
    /// when a store is opened, so here they are those of this run
    #[arg(long, conflicts_with = "json")]
    pub(crate) prometheus: bool,
}

#[derive(Debug, Group)]
pub(crate) struct StoreDir {
    /// Directory of the store
    pub(crate) db: PathBuf,
}

#[derive(Debug, Group)]
pub(crate) struct Completions {
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Group)]
pub(crate) struct Man {
    /// Directory of the pages, which is created if absent
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Group)]
pub(crate) struct NamedKeyspace {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Name of the keyspace
    pub(crate) name: String,
}

#[derive(Debug, Group)]
pub(crate) struct Checkpoint {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Directory of the copy: absent, empty, or with a copy that was interrupted
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Group)]
pub(crate) struct Backup {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Directory or address of the repository
    pub(crate) repository: PathBuf,
    /// Afterwards, remove all generations of this store but the last N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep: Option<u32>,
    /// Go on until Ctrl-C, and keep what another process writes; this one keeps no writer out
    #[arg(long)]
    pub(crate) follow: bool,
    /// Make a generation this often, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, requires = "follow",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) every: u64,
}

#[derive(Debug, Group)]
pub(crate) struct Backups {
    /// Directory or address of the repository
    pub(crate) repository: PathBuf,
    /// Read every file and compare it with its hash; one line per fault
    #[arg(long)]
    pub(crate) verify: bool,
    /// Remove all generations of this store first
    #[arg(long, value_name = "STORE", conflicts_with = "verify")]
    pub(crate) forget: Option<StoreId>,
}

#[derive(Debug, Group)]
pub(crate) struct Restore {
    /// Directory or address of the repository
    pub(crate) repository: PathBuf,
    /// Directory of the store to make: absent, empty, or with a restore that was interrupted
    pub(crate) dir: PathBuf,
    /// The generation; the last one if this is not given
    #[arg(long, value_name = "N")]
    pub(crate) generation: Option<u64>,
    /// The store, if the repository has generations of several; `kvtool backups` lists them
    #[arg(long, value_name = "STORE", conflicts_with = "generation")]
    pub(crate) store: Option<StoreId>,
    /// The store as it was at this time: 2026-11-25T08:15:00Z, or seconds since 1970
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) at: Option<SystemTime>,
    /// The store as it was after this sequence number
    #[arg(long, value_name = "N", conflicts_with = "at")]
    pub(crate) seqno: Option<u64>,
}

#[derive(Debug, Group)]
pub(crate) struct Compact {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Start at this key
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<OsString>,
    /// Stop before this key
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<OsString>,
}

#[derive(Debug, Group)]
pub(crate) struct Sst {
    /// An SSTable, or the directory of a store
    pub(crate) path: PathBuf,
    /// Number of the table; required with a store
    pub(crate) number: Option<u64>,
    /// List the data blocks
    #[arg(long)]
    pub(crate) blocks: bool,
    /// List the entries, skipping damaged blocks: key, sequence number, kind, value
    #[arg(long)]
    pub(crate) entries: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Dump {
    /// A file of a store, under its original name
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
