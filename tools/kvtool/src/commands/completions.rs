//! `completions` and `man`: what shells and readers of manuals get of the command line.

use clap::{Command, CommandFactory};

use crate::args::{Args, Completions, Man};
use crate::failure::{Attempt, Result};
use crate::output::Output;

pub(crate) fn completions(args: &Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "kvtool", &mut script);
    let mut output = Output::new();
    output.write(&script)?;
    output.finish()
}

pub(crate) fn man(args: &Man) -> Result<()> {
    let what = format!("cannot write to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).attempt(&what)?;
    // Pages of `help` say what the others say.
    let command: Command = Args::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, &args.dir).attempt(&what)
}
