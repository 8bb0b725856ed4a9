//! The command lines of commands that read and write entries.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args as Group, ValueEnum};
use tamis::FilterMode;

#[derive(Debug, Group)]
pub(crate) struct Put {
    /// Directory of the store
    pub(crate) db: PathBuf,
    pub(crate) key: OsString,
    /// The value; `-` reads it from standard input, like `--file -`
    #[arg(required_unless_present = "file", conflicts_with = "file", allow_hyphen_values = true)]
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
pub(crate) struct Diff {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Directory of the store with which it is compared
    pub(crate) other: PathBuf,
    #[command(flatten)]
    pub(crate) range: Range,
    /// Stop after N differences
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Print how many differences there are, and none of them
    #[arg(long)]
    pub(crate) count: bool,
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
