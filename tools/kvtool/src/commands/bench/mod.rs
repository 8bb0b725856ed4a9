//! `bench`: measurements, beside what theory says of them.

mod reads;

pub(crate) use reads::plot_file;

use crate::args::{BenchCommand, Common};
use crate::failure::Result;

pub(crate) fn run(common: &Common, command: BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Reads(args) => reads::run(common, *args),
    }
}
