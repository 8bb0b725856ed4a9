//! The command line of `kvtool filter`.

use std::path::PathBuf;

use clap::{Args as Group, Subcommand, ValueEnum};
use tamis::RangeFilterPolicy;
use tamis::filter::{BloomLayout, HashFunction};

use super::{AllFlags, ByteFlags, KeyspaceFlags, TableFlags, With};

#[derive(Debug, Subcommand)]
pub(crate) enum FilterCommand {
    /// Create a filter of lines
    Create(Box<With<FilterCreate, ByteFlags>>),
    /// Add lines to a filter; the file is replaced atomically
    Add(With<FilterAdd, ByteFlags>),
    /// Print the lines that may be in a filter, like grep; exit code 1 if there are none
    ///
    /// A line that is not printed is certainly not in the filter. A printed line may be a false
    /// positive, with the probability that `filter info` shows.
    Check(With<FilterCheck, ByteFlags>),
    /// Unite filters: the result holds the lines of all of them
    ///
    /// The filters must be Bloom filters of equal size, probes, layout, hash and seed: created with
    /// equal --bits and --probes, or with an equal --capacity and --bits-per-key or --error-rate.
    Union(With<FilterUnion, TableFlags>),
    /// Print the parameters of a filter and its fill
    Info(With<FilterInfo, TableFlags>),
    /// Give the tables of a store new filters; their data blocks are copied unchanged
    Rebuild(With<FilterRebuild, KeyspaceFlags>),
    /// Print what filters, of 4 to 20 bits per key, and range filters would cost and save
    ///
    /// A run is a table of level 0, or a level below. Each run counts with its real number of keys,
    /// and each look-up is taken to visit every run and find nothing. With --trace, the look-ups of
    /// the trace decide instead, by the real read path: which runs' key ranges hold the key, and
    /// where the search ends. A wasted read is one that a filter wrongly allows.
    ///
    /// What range filters cost and save depends on the keys. Each table of level 0, and four tables
    /// of each level below, are read for that. A table whose keys allow no useful range filter is
    /// counted as declined; each scan of an empty range reads a block of it.
    Advise(With<FilterAdvise, AllFlags<TableFlags>>),
}

#[derive(Debug, Group)]
pub(crate) struct FilterAdvise {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Look up each line of FILE (`-` for standard input), and weight each run by the look-ups that
    /// miss there
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Scan the range of each line of FILE (`-` for standard input), ten entries at most, and
    /// weight each run by the blocks that these scans enter there for nothing. A line has the first
    /// key, a tab, and the key before which the range ends
    #[arg(long, value_name = "FILE")]
    pub(crate) ranges_from: Option<PathBuf>,
}

#[derive(Debug, Group)]
pub(crate) struct FilterRebuild {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Bits per key, 1 to 24; fractions are allowed (for a binary fuse, see --policy). Without
    /// --bits, --policy and --range-filter, every table gets the filters that the options of its
    /// keyspace ask for, which repairs damaged ones
    ///
    /// --bits and --policy set one policy for all levels: it replaces policies by level and any
    /// budget, unless --allocate sets a new one.
    #[arg(long, value_name = "N")]
    pub(crate) bits: Option<f32>,
    /// Kind of filter; it becomes the keyspace's policy. With --bits alone the kind stays (Bloom if
    /// the keyspace has none)
    #[arg(long, value_enum)]
    pub(crate) policy: Option<Policy>,
    /// Range filters of this many bits per key, 3 to 18, or none; they become the keyspace's
    /// policy. A table whose keys allow no useful one gets none
    #[arg(long, value_name = "none|BITS", value_parser = range_filter)]
    pub(crate) range_filter: Option<RangeFilterPolicy>,
    /// Rebuild every filter, also those that look right; for filters that deny keys of their table,
    /// which `verify` reports
    #[arg(long)]
    pub(crate) all: bool,
    /// Distribute the memory of --bits per key among the levels so that the fewest reads are
    /// wasted; later tables follow the same rule
    #[arg(long, requires = "bits")]
    pub(crate) allocate: bool,
    /// With --allocate: the share of look-ups for absent keys, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, requires = "allocate")]
    pub(crate) absent: f32,
}

pub(super) fn range_filter(text: &str) -> Result<RangeFilterPolicy, String> {
    match text.parse() {
        Ok(bits_per_key) if (3.0..=18.0).contains(&bits_per_key) => Ok(RangeFilterPolicy::Ordered { bits_per_key }),
        _ if text == "none" => Ok(RangeFilterPolicy::None),
        _ => Err("a range filter takes 3 to 18 bits per key, or it is `none`".to_owned()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// No filter
    None,
    /// Split-line Bloom filter, 10 bits per key unless --bits says otherwise
    Bloom,
    /// Binary fuse: denser and slower to build. --bits is the size of a fingerprint: 4, 5, 6, 7, 8
    /// (default), 10, 12 or 16
    Fuse,
}

#[derive(Debug, Group)]
pub(crate) struct FilterUnion {
    /// The files of the filters, two or more
    #[arg(required = true, num_args = 2..)]
    pub(crate) filters: Vec<PathBuf>,
    /// The file to create
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Group)]
pub(crate) struct FilterCreate {
    /// The file to create
    pub(crate) filter: PathBuf,
    /// The lines; standard input if it is `-` or absent. Each is a key, as described under *Keys
    /// and values* in `kvtool --help`
    pub(crate) lines: Option<PathBuf>,
    /// Bits per line, 1 to 24; 10 by default
    #[arg(long, value_name = "N", conflicts_with_all = ["error_rate", "scalable", "fuse", "bits"])]
    pub(crate) bits_per_key: Option<f64>,
    /// Bits of the whole filter, rounded up to a multiple of 512, however many lines there are.
    /// Filters of equal --bits and --probes can be united
    #[arg(long, value_name = "M", requires = "probes", conflicts_with_all = ["error_rate", "scalable", "fuse", "capacity"])]
    pub(crate) bits: Option<u64>,
    /// Bits that each line sets, 1 to 25 (32 in the standard layout)
    #[arg(long, value_name = "K", requires = "bits")]
    pub(crate) probes: Option<u32>,
    /// Create a binary fuse with fingerprints of R bits (4, 5, 6, 7, 8, 10, 12 or 16): smaller than
    /// a Bloom filter of its error rate of 2^-R, but no line can be added later
    #[arg(long, value_name = "R", conflicts_with_all = ["error_rate", "scalable", "capacity"])]
    pub(crate) fuse: Option<u8>,
    /// False-positive rate: the share of other lines for which the filter may say "maybe", for
    /// example 0.01
    #[arg(long, value_name = "RATE")]
    pub(crate) error_rate: Option<f64>,
    /// Size it for N distinct lines. By default the lines are counted first, which takes 8 bytes of
    /// memory each
    #[arg(long, value_name = "N")]
    pub(crate) capacity: Option<u64>,
    /// Create a filter that grows as lines are added and keeps its error rate (0.01 by default)
    #[arg(long)]
    pub(crate) scalable: bool,
    /// Seed of the hash
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Hash function
    #[arg(long, value_enum, default_value_t)]
    pub(crate) hash: Hash,
    /// Where the bits of a line are; not for a binary fuse
    #[arg(long, value_enum, default_value_t)]
    pub(crate) layout: Layout,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Hash {
    /// Fast
    #[default]
    Xxh3,
    /// Keyed by the seed: resists lines chosen to collide
    Siphash13,
    /// As in Cassandra and Guava; the seed has 32 bits
    Murmur3,
}

impl From<Hash> for HashFunction {
    fn from(hash: Hash) -> HashFunction {
        match hash {
            Hash::Xxh3 => HashFunction::Xxh3,
            Hash::Siphash13 => HashFunction::SipHash13,
            Hash::Murmur3 => HashFunction::Murmur3,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Layout {
    /// In one or a few cache lines
    #[default]
    Split,
    /// Anywhere, as in the textbook
    Standard,
}

impl From<Layout> for BloomLayout {
    fn from(layout: Layout) -> BloomLayout {
        match layout {
            Layout::Split => BloomLayout::Split,
            Layout::Standard => BloomLayout::Standard,
        }
    }
}

#[derive(Debug, Group)]
pub(crate) struct FilterAdd {
    /// The file of the filter
    pub(crate) filter: PathBuf,
    /// The lines; standard input if it is `-` or absent
    pub(crate) lines: Option<PathBuf>,
}

#[derive(Debug, Group)]
pub(crate) struct FilterCheck {
    /// The file of the filter
    pub(crate) filter: PathBuf,
    /// The lines; standard input if it is `-` or absent
    pub(crate) lines: Option<PathBuf>,
    /// Select the lines that are certainly not in the filter
    #[arg(short = 'v', long)]
    pub(crate) invert: bool,
    /// Print only how many lines are selected
    #[arg(short, long)]
    pub(crate) count: bool,
}

#[derive(Debug, Group)]
pub(crate) struct FilterInfo {
    /// The file of the filter
    pub(crate) filter: PathBuf,
}
