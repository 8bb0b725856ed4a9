//! The command lines of commands that make and change keyspaces.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Group, Subcommand};
use tamis::{Compression, FilterPolicy, KeyspaceOptions, LevelFilters, PrefixExtractor, RangeFilterPolicy};

use super::filter::range_filter;
use super::{Operator, TableFlags, With};

#[derive(Debug, Subcommand)]
pub(crate) enum KeyspaceCommand {
    /// Change options of a keyspace; the others stay
    ///
    /// They hold for tables that are written from now on. `kvtool filter rebuild` gives the others
    /// filters as the options say; compactions rewrite the rest in time. A merge operator stays for
    /// good once a keyspace has it.
    Set(With<SetKeyspace, TableFlags>),
}

#[derive(Debug, Group)]
pub(crate) struct NamedKeyspace {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Name of the keyspace
    pub(crate) name: String,
}

#[derive(Debug, Group)]
pub(crate) struct CreateKeyspace {
    #[command(flatten)]
    pub(crate) of: NamedKeyspace,
    #[command(flatten)]
    pub(crate) options: OptionFlags,
}

#[derive(Debug, Group)]
#[command(group = clap::ArgGroup::new("options").multiple(true).required(true).args([
    "filter", "range_filter", "compression", "block_size", "prefix", "ttl", "separate_values", "wal", "operator",
]))]
pub(crate) struct SetKeyspace {
    #[command(flatten)]
    pub(crate) of: NamedKeyspace,
    #[command(flatten)]
    pub(crate) options: OptionFlags,
}

/// Options of a keyspace. Those that are not given stay.
#[derive(Debug, Group)]
pub(crate) struct OptionFlags {
    /// Filters of the tables of all levels: `none`; `bloom`, with the bits per key after a colon
    /// [default: 10]; or `fuse`, with the bits of a fingerprint [default: 8]
    #[arg(long, value_name = "none|bloom[:BITS]|fuse[:BITS]", value_parser = filter)]
    filter: Option<FilterPolicy>,
    /// Range filters of this many bits per key, 3 to 18, or none
    #[arg(long, value_name = "none|BITS", value_parser = range_filter)]
    range_filter: Option<RangeFilterPolicy>,
    /// Compression of blocks
    #[arg(long, value_name = "none|lz4|zstd", value_parser = compression)]
    compression: Option<Compression>,
    /// Bytes of a data block before compression
    #[arg(long, value_name = "BYTES")]
    block_size: Option<u32>,
    /// Filters also hold the first LENGTH bytes of each key, or all up to a byte, for scans of a
    /// prefix
    #[arg(long, value_name = "none|LENGTH|up-to:BYTE", value_parser = prefix)]
    prefix: Option<Setting<PrefixExtractor>>,
    /// Seconds after which a value expires that is put without a deadline
    #[arg(long, value_name = "none|SECONDS", value_parser = ttl)]
    ttl: Option<Setting<Duration>>,
    /// Values of at least this many bytes are kept apart from the keys
    #[arg(long, value_name = "none|BYTES", value_parser = bytes)]
    separate_values: Option<Setting<u32>>,
    /// Whether writes go to the log; without it, what no table has yet is lost in a crash
    #[arg(long, value_name = "true|false")]
    wal: Option<bool>,
    /// The merge operator
    #[arg(long, value_enum)]
    pub(crate) operator: Option<Operator>,
}

impl OptionFlags {
    /// `options` with those that are given, but for the merge operator.
    pub(crate) fn apply(&self, mut options: KeyspaceOptions) -> KeyspaceOptions {
        if let Some(filter) = self.filter {
            (options.filter, options.level_filters) = (filter, LevelFilters::Uniform);
        }
        options.range_filter = self.range_filter.unwrap_or(options.range_filter);
        options.compression = self.compression.unwrap_or(options.compression);
        options.block_size = self.block_size.unwrap_or(options.block_size);
        options.prefix = self.prefix.map_or(options.prefix, Setting::value);
        options.ttl = self.ttl.map_or(options.ttl, Setting::value);
        options.separate_values = self.separate_values.map_or(options.separate_values, Setting::value);
        options.wal = self.wal.unwrap_or(options.wal);
        options
    }
}

/// An option that may be off.
#[derive(Clone, Copy, Debug)]
enum Setting<T> {
    Off,
    On(T),
}

impl<T> Setting<T> {
    fn value(self) -> Option<T> {
        match self {
            Setting::Off => None,
            Setting::On(value) => Some(value),
        }
    }

    fn parse(text: &str, value: impl FnOnce(&str) -> Option<T>, what: &str) -> Result<Setting<T>, String> {
        match text {
            "none" => Ok(Setting::Off),
            _ => value(text).map(Setting::On).ok_or_else(|| format!("it is `none`, or {what}")),
        }
    }
}

fn filter(text: &str) -> Result<FilterPolicy, String> {
    let (kind, bits) = text.split_once(':').map_or((text, None), |(kind, bits)| (kind, Some(bits)));
    let policy = match kind {
        "none" if bits.is_none() => Some(FilterPolicy::None),
        "bloom" => bits.unwrap_or("10").parse().ok().map(|bits_per_key| FilterPolicy::Bloom { bits_per_key }),
        "fuse" => {
            bits.unwrap_or("8").parse().ok().map(|fingerprint_bits| FilterPolicy::BinaryFuse { fingerprint_bits })
        }
        _ => None,
    };
    policy.ok_or_else(|| "it is `none`, `bloom`, `bloom:BITS`, `fuse` or `fuse:BITS`".to_owned())
}

fn compression(text: &str) -> Result<Compression, String> {
    match text {
        "none" => Ok(Compression::None),
        "lz4" => Ok(Compression::Lz4),
        "zstd" => Ok(Compression::Zstd),
        _ => Err("it is `none`, `lz4` or `zstd`".to_owned()),
    }
}

fn prefix(text: &str) -> Result<Setting<PrefixExtractor>, String> {
    let extractor = |text: &str| match text.strip_prefix("up-to:").map(str::as_bytes) {
        Some([byte]) => Some(PrefixExtractor::UpTo(*byte)),
        Some(_) => None,
        None => text.parse().ok().map(PrefixExtractor::Fixed),
    };
    Setting::parse(text, extractor, "a number of bytes, or `up-to:` and a byte")
}

fn ttl(text: &str) -> Result<Setting<Duration>, String> {
    let seconds = |text: &str| text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Setting::parse(text, seconds, "a number of seconds")
}

fn bytes(text: &str) -> Result<Setting<u32>, String> {
    Setting::parse(text, |text| text.parse().ok(), "a number of bytes")
}
