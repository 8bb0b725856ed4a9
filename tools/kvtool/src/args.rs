//! The command line.

mod entries;
mod filter;
mod flags;
mod format;
mod keyspace;
mod measure;
mod report;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args as Group, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell as SystemShell;
use tamis_backup::StoreId;
use tamis_bench::cli::RunArgs;

use crate::text::parse_time;

pub(crate) use entries::{
    Delete, DeleteRange, Diff, Explain, FilterUse, Get, InRange, Merge, Operator, Put, Range, Scan,
};
pub(crate) use filter::{
    FilterAdd, FilterAdvise, FilterCheck, FilterCommand, FilterCreate, FilterInfo, FilterRebuild, FilterUnion, Policy,
};
pub(crate) use flags::{AllFlags, ByteFlags, Common, JsonFlag, KeyspaceFlags, OutputFormat, TableFlags, With};
pub(crate) use format::Format;
pub(crate) use keyspace::{CreateKeyspace, KeyspaceCommand, NamedKeyspace, OptionFlags, SetKeyspace};
pub(crate) use measure::{BenchReads, Demo, Soak, SoakWorker};
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

The store:
  Commands take its directory as their first operand. If KVTOOL_DB names one, they take
  none: `KVTOOL_DB=fruit.db kvtool get apple`; --db STORE then names another. A first
  operand that is a store all the same is refused.

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

impl Args {
    /// Parses the command line. If `KVTOOL_DB` names a store, commands take it from there.
    pub(crate) fn parse_all() -> Args {
        let db = std::env::var_os("KVTOOL_DB").filter(|db| !db.is_empty());
        let command = match &db {
            Some(db) => with_store(Args::command(), Path::new(db), false),
            None => Args::command(),
        };
        let mut parser = command.clone();
        let matches = command.get_matches();
        if db.is_some()
            && let Some(store) = misplaced_store(&parser, &matches)
        {
            let message = format!(
                "{store} is a store, and KVTOOL_DB names the one to work in: use --db {store}, or unset KVTOOL_DB"
            );
            parser.error(ErrorKind::ArgumentConflict, message).exit()
        }
        Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// The command, and those below it, with a flag `--db` in place of the operand that names a store:
/// without the flag, it is `db`.
pub(crate) fn with_store(command: clap::Command, db: &Path, is_hidden: bool) -> clap::Command {
    // Of the process, which has one command line or one shell.
    let default: &'static OsStr = OsString::from(db).leak();
    with_default_store(command, default, is_hidden)
}

/// The first operand, if it is a store though the command takes its store from `KVTOOL_DB`: the
/// command line was meant for no such variable.
fn misplaced_store(command: &clap::Command, matches: &ArgMatches) -> Option<String> {
    if let Some((name, below)) = matches.subcommand() {
        // The one with which it is compared.
        return if name == "diff" { None } else { misplaced_store(command.find_subcommand(name)?, below) };
    }
    let is_default = |id| matches.value_source(id) == Some(ValueSource::DefaultValue);
    let takes_it = command.get_arguments().any(|argument| argument.get_id() == "db" && is_default("db"));
    let first = command.get_positionals().next().filter(|_| takes_it)?;
    let operand = matches.get_raw(first.get_id().as_str())?.next()?;
    Path::new(operand).join("CURRENT").exists().then(|| operand.to_string_lossy().into_owned())
}

fn with_default_store(command: clap::Command, db: &'static OsStr, is_hidden: bool) -> clap::Command {
    let takes_store = command.get_arguments().any(|argument| argument.get_id() == "db" && argument.is_required_set());
    let command = command.mut_subcommands(|command| with_default_store(command, db, is_hidden));
    match takes_store {
        true => command.mut_arg("db", |argument| {
            argument.long("db").value_name("STORE").required(false).default_value(db).hide(is_hidden)
        }),
        false => command,
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Open a store, and run the commands that are typed, or that standard input has, in it
    ///
    /// Commands are those of kvtool without the store, and `begin`, `commit`, `rollback`, `use` and
    /// `exit`; a dot before them is skipped. Words are quoted as in a POSIX shell; a JSON object or
    /// array is one word over as many lines as it takes. Tab completes commands, flags, keyspaces
    /// and keys. The history is in ~/.kvtool_history, or where KVTOOL_HISTORY says; a line that
    /// begins with a blank is left out. The store is created if absent.
    ///
    /// Standard input that is no terminal is a script: the first command that fails ends it, with
    /// that exit code; a key that is not found is no failure. A command that reads standard input
    /// reads what follows it there.
    Shell(Shell),
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
    /// Print the entries in which two stores differ: `-` or `+`, the keyspace if there are several,
    /// key, value
    ///
    /// `-` is before an entry of the first store, `+` before one of the second. A value that
    /// expires at another time is another one. Each store is read as of one moment, perhaps beside
    /// a process that writes it. Exit code 1 if they differ.
    Diff(With<Diff>),
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
    /// Write many puts, merges and deletes at once: all of them or none
    ///
    /// A line is a command of kvtool without the store: `put`, `merge`, `delete` or `delete-range`,
    /// in words as `shell` reads them. An invalid line is an error, and nothing is written; only
    /// keyspaces that were absent are created. The store is created if absent.
    Batch(With<Batch, KeyspaceFlags>),
    /// Put many keys from files or standard input; creates the store and the keyspace if absent
    ///
    /// Reads TSV, CSV, JSON lines and NUL-delimited pairs. JSON lines that `export` has written say
    /// of which keyspace they are; a new one gets its options from there. Without --dry-run, what
    /// comes before an invalid record is imported, and a message says how to resume.
    Import(With<Import, AllFlags<JsonFlag>>),
    /// Write sorted lines to tables for `ingest`, with no other access to the store than to read
    /// how its tables are written
    ///
    /// The store may be open elsewhere. Keys must ascend as bytes, each once: `LC_ALL=C sort` sorts
    /// plain lines. A line that does not is an error, and no table is left.
    SstBuild(With<SstBuild, AllFlags<JsonFlag>>),
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
    Export(With<Export, AllFlags<JsonFlag>>),
    /// Print the levels, filters and memory of a store, and what reads cost
    Stats(With<Stats, AllFlags<TableFlags>>),
    /// Write a report on a store as one page of HTML: levels, filters, reads saved, advice, costs
    Report(With<Report, AllFlags<report::Html>>),
    /// Look up a key and show the steps: memtables, tables, filter answers, blocks read
    Explain(With<Explain, AllFlags<TableFlags>>),
    /// Show a store in use, as it changes: writes, reads, memory, levels and what writes wait for
    ///
    /// A store that publishes its statistics (`Options::publish_stats`) shows all of it. Of any
    /// other, what can be read beside its process is shown: writes, sizes and levels.
    Top(Top),
    /// Print a line of figures of a store in use every second; see `top`
    Watch(With<Watch, TableFlags>),
    /// Print the tables of every level
    Levels(With<StoreDir, AllFlags<TableFlags>>),
    /// List the keyspaces
    Keyspaces(With<StoreDir, KeyspaceFlags<TableFlags>>),
    /// Create a keyspace; the store, too, if absent
    CreateKeyspace(With<CreateKeyspace, TableFlags>),
    /// Change keyspaces
    #[command(subcommand)]
    Keyspace(KeyspaceCommand),
    /// Drop a keyspace with all that it holds
    DropKeyspace(With<NamedKeyspace, TableFlags>),
    /// Move entries to the last level, and drop deleted and overwritten ones
    Compact(With<Compact>),
    /// Make a copy of a store that shares its files by hard links; it survives a power cut
    ///
    /// The copy is a store of its own. It takes the space of the log only, until the original
    /// replaces files. On another file system everything is copied, and checksums are compared.
    /// Beside a process that has the store open, files are copied, too; that process can make a
    /// checkpoint itself, by `Db::checkpoint`.
    Checkpoint(With<Checkpoint, TableFlags>),
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
    Backup(With<Backup, TableFlags>),
    /// List the generations in a backup repository, or check all of its files
    Backups(With<Backups, TableFlags>),
    /// Make a store of a generation in a backup repository; every file is compared with its hash
    Restore(With<Restore, TableFlags>),
    /// Print what an SSTable contains
    Sst(With<Sst, ByteFlags<TableFlags>>),
    /// Print files of a store as text: logs, manifests, CURRENT, SSTables, value files
    Dump(With<Dump, ByteFlags>),
    /// Check every file of a store, or single files; one line per fault: file, offset, kind
    ///
    /// A file alone shows its own damage. Whether it is the file that was written, and how it fits
    /// the others, is checked with the store.
    Verify(With<Verify, TableFlags>),
    /// Repair a damaged store so that it opens again, and report what is lost; deletes nothing
    ///
    /// Files that no longer belong to the store move to its directory `lost`, with a report. Exit
    /// code 3: some keys may be missing or have older values; the report lists their ranges. No
    /// process may have the store open.
    Repair(With<Repair, TableFlags>),
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
pub(crate) struct Shell {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Open the store as it is now, perhaps beside a process that writes it, and write nothing
    #[arg(long)]
    pub(crate) read_only: bool,
    /// After a command that fails, go on with the script; its exit code is that of the first one
    #[arg(long)]
    pub(crate) keep_going: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Batch {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// The lines; standard input if it is `-` or absent
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Group)]
pub(crate) struct Top {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = pause)]
    pub(crate) interval: f64,
}

#[derive(Debug, Group)]
pub(crate) struct Watch {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Seconds between two lines
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = pause)]
    pub(crate) interval: f64,
    /// End after N lines
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

fn pause(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("it is a number of seconds, 0.05 or more".to_owned()),
    }
}

#[derive(Debug, Group)]
pub(crate) struct Completions {
    #[arg(value_enum)]
    pub(crate) shell: SystemShell,
}

#[derive(Debug, Group)]
pub(crate) struct Man {
    /// Directory of the pages, which is created if absent
    pub(crate) dir: PathBuf,
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
    /// Back up this keyspace alone, as a store of its own that `backups` lists and `restore` makes
    #[arg(long, value_name = "NAME", conflicts_with = "follow")]
    pub(crate) keyspace: Option<String>,
    /// Afterwards, remove all generations of this store, or keyspace, but the last N
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
    /// Directory of the store to make: absent, empty, or with a restore that was interrupted. With
    /// --keyspace, a store that may be there
    pub(crate) dir: PathBuf,
    /// Bring this keyspace alone into the store, beside its other keyspaces, all of it or nothing.
    /// Its files are first put into the directory DIR.restoring
    #[arg(long, value_name = "NAME")]
    pub(crate) keyspace: Option<String>,
    /// What the keyspace is called in the store [default: as in the backup]
    #[arg(long = "as", value_name = "NAME", requires = "keyspace")]
    pub(crate) name: Option<String>,
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
    #[arg(id = "db", value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Number of the table; required with a store
    pub(crate) number: Option<u64>,
    /// List the data blocks
    #[arg(long)]
    pub(crate) blocks: bool,
    /// List the entries, skipping damaged blocks: key, sequence number, kind, value
    #[arg(long)]
    pub(crate) entries: bool,
    #[command(flatten)]
    pub(crate) range: ListedRange,
}

/// What is listed of a table.
#[derive(Debug, Group)]
#[command(group = clap::ArgGroup::new("listed").args(["blocks", "entries"]).multiple(true))]
pub(crate) struct ListedRange {
    /// List entries, or blocks that may have some, from this key on
    #[arg(long, value_name = "KEY", requires = "listed")]
    pub(crate) from: Option<OsString>,
    /// List entries, or blocks that may have some, before this key
    #[arg(long, value_name = "KEY", requires = "listed")]
    pub(crate) to: Option<OsString>,
    /// List entries, or blocks that may have some, of keys that begin with this
    #[arg(long, requires = "listed")]
    pub(crate) prefix: Option<OsString>,
}

#[derive(Debug, Group)]
pub(crate) struct Dump {
    /// Files of a store, under their original names
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Do not shorten keys and values
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Debug, Group)]
pub(crate) struct Verify {
    /// Directories of stores, or files of stores under their original names: tables, value files,
    /// logs, manifests, CURRENT
    #[arg(id = "db", value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
}
