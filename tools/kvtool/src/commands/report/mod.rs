//! `report`: a store on one page of HTML, to be handed on.
//!
//! The page has no script and loads nothing. Its tables are those of `stats`, `keyspaces` and
//! `filter advise`; its pictures are SVG within the page. What cannot be read is listed, and the
//! rest is reported all the same.

mod chapter;
mod charts;
mod disk;
mod facts;
mod findings;
mod page;
mod parts;
mod saved;

use std::io::Write;
use std::path::Path;

use tamis::{Db, Error, Options};

use self::facts::Facts;
use self::saved::Saved;
use super::store::{existing_keyspace, stats_of};
use super::whole_file::{cannot_write, write_whole};
use crate::args::{Common, Report};
use crate::failure::{Failure, Result};
use crate::markup::Markup;
use crate::output::{Output, say};

pub(crate) fn run(common: &Common, args: Report) -> Result<()> {
    let (page, outcome) = match open(&args.db) {
        Ok(db) => {
            let saved = match &args.keys_from {
                Some(file) => Some(Saved::measure(&db, &existing_keyspace(&db, common)?, common.form(), file)?),
                None => None,
            };
            let facts = Facts::gather(&db, stats_of(&db, common)?, saved)?;
            let outcome = if facts.is_damaged() { Err(Failure::Damaged) } else { Ok(()) };
            (page::of_store(common, &facts), outcome)
        }
        // Even of a store that does not open there is something to say.
        Err(error) if error.is_corruption() => {
            let failure = Failure::from(error);
            (page::of_wreck(&args.db, &failure.message().unwrap_or_default()), Err(failure))
        }
        Err(error) => return Err(error.into()),
    };
    deliver(&page, args.output.as_deref())?;
    if let Err(Failure::Damaged) = outcome {
        say("kvtool: the store is damaged; the report lists what cannot be read");
    }
    outcome
}

/// Opens a store that caches nothing: each block that a look-up needs is then counted as a read.
fn open(db: &Path) -> tamis::Result<Db, Error> {
    Options::new().cache_size(0).open_read_only(db)
}

fn deliver(page: &Markup, file: Option<&Path>) -> Result<()> {
    match file.filter(|file| *file != Path::new("-")) {
        None => {
            let mut output = Output::new();
            output.write(page.to_string().as_bytes())?;
            output.finish()
        }
        Some(file) => {
            let write = |out: &mut dyn Write| write!(out, "{page}").map_err(|source| cannot_write(file, source));
            if let Some(written) = write_whole(file, |out| write(out))? {
                written.put_in_place()?;
            }
            say(format_args!("report written to {}", file.display()));
            Ok(())
        }
    }
}
