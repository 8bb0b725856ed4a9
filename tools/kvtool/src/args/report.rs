//! The command line of `kvtool report`.

use std::path::PathBuf;

use clap::Args as Group;

use super::OutputFormat;

#[derive(Debug, Group)]
pub(crate) struct Report {
    /// Directory of the store
    pub(crate) db: PathBuf,
    /// Write the report to FILE, which is replaced when the report is complete, instead of standard
    /// output (`-`)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Look up each line of FILE (`-` for standard input) in the keyspace, with nothing cached, and
    /// report the reads that its filters save
    #[arg(long, value_name = "FILE")]
    pub(crate) keys_from: Option<PathBuf>,
}

/// The form of a report, which no flag chooses.
#[derive(Debug, Group)]
pub(crate) struct Html {}

impl From<Html> for OutputFormat {
    fn from(Html {}: Html) -> OutputFormat {
        OutputFormat::Table
    }
}
