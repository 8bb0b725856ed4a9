//! The command line of `kvtool filter`.

use std::path::PathBuf;

use clap::{Args as Group, Subcommand, ValueEnum};
use tamis::filter::{BloomLayout, HashFunction};

#[derive(Debug, Subcommand)]
pub(crate) enum FilterCommand {
    /// Make a filter of lines
    Create(FilterCreate),
    /// Add lines to a filter; the file is replaced in one step
    Add(FilterAdd),
    /// Print the lines that may be in a filter, like grep; exit code 1 when there are none
    ///
    /// A line that is not printed is certainly not in the filter. One that is printed may not be in it either, with the probability that
    /// `filter info` shows.
    Check(FilterCheck),
    /// Print what a filter is and how full it is
    Info(FilterInfo),
    /// Give the tables of a store new filters; their data are copied untouched
    Rebuild(FilterRebuild),
    /// Print what filters of this and that many bits per key would cost and save in a store
    ///
    /// For each run (a table of level 0, or a level) the real number of keys is taken, and for a look-up that it comes to every run
    /// and finds nothing; or, with --trace, what each look-up of the trace comes to by the read path itself: which runs' key ranges hold
    /// the key, and where the search ends. A wasted read is one that a filter wrongly allows.
    Advise(FilterAdvise),
}

#[derive(Debug, Group)]
pub(crate) struct FilterAdvise {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Look up each line of FILE (`-` for standard input), to weigh the runs by what these look-ups find there
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

#[derive(Debug, Group)]
pub(crate) struct FilterRebuild {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Bits per key, 1 to 24, fractions too (of a binary fuse, see --policy); without it and --policy, every table gets the filter that
    /// its keyspace's options ask for, which repairs damaged ones
    ///
    /// --bits and --policy make it the same for all levels: they take the place of policies by level and of a budget, unless --allocate
    /// sets a new one.
    #[arg(long, value_name = "N")]
    pub(crate) bits: Option<f32>,
    /// Which filter; it becomes the keyspace's policy. With --bits alone the kind stays (Bloom if there were none)
    #[arg(long, value_enum)]
    pub(crate) policy: Option<Policy>,
    /// Make every filter anew, also those that look right: against filters that deny what their tables hold, which `verify` reports
    #[arg(long)]
    pub(crate) all: bool,
    /// Share the memory of --bits per key out among the levels so that as few reads as possible are wasted; later tables are treated
    /// alike
    #[arg(long, requires = "bits")]
    pub(crate) allocate: bool,
    /// With --allocate: the share of look-ups that find nothing, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, requires = "allocate")]
    pub(crate) absent: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// No filter
    None,
    /// Split-line Bloom filter, 10 bits per key unless --bits says otherwise
    Bloom,
    /// Textbook Bloom filter, 10 bits per key unless --bits says otherwise
    Standard,
    /// Binary fuse: denser and slower to build. --bits are those of a fingerprint: 4, 5, 6, 7, 8 (if not said), 10, 12 or 16
    Fuse,
}

#[derive(Debug, Group)]
pub(crate) struct FilterCreate {
    /// The file to make
    pub(crate) filter: PathBuf,
    /// The lines; standard input if it is `-` or absent. Each is a key, as under *Keys and values*
    /// in `kvtool --help`
    pub(crate) lines: Option<PathBuf>,
    /// Bits for each line, 1 to 24; 10 if nothing else is asked for
    #[arg(long, value_name = "N", conflicts_with_all = ["error_rate", "scalable"])]
    pub(crate) bits_per_key: Option<f64>,
    /// The share of other lines to which the filter may say "maybe", for example 0.01
    #[arg(long, value_name = "RATE")]
    pub(crate) error_rate: Option<f64>,
    /// Make it for so many different lines; otherwise for those that there are, which are counted first, in 8 bytes of memory each
    #[arg(long, value_name = "N")]
    pub(crate) capacity: Option<u64>,
    /// Make a filter that grows with what is added, and holds its error rate (0.01 if none is given)
    #[arg(long)]
    pub(crate) scalable: bool,
    /// Seed of the hash
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Hash function
    #[arg(long, value_enum, default_value_t)]
    pub(crate) hash: Hash,
    /// Where a line's bits are
    #[arg(long, value_enum, default_value_t)]
    pub(crate) layout: Layout,
    /// Replace the file if it is there
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Hash {
    /// Fast
    #[default]
    Xxh3,
    /// Keyed by the seed, against lines that were chosen to collide
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
