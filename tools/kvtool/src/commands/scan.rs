//! `scan`: the entries of a range, in either direction.

use super::range::KeyRange;
use super::row::{Part, Rows};
use super::salvage;
use super::store::open_to_read;
use super::view::View;
use crate::args::{Common, Scan};
use crate::failure::{Failure, Result};
use crate::output::say;
use crate::text::counted;

pub(crate) fn run(common: &Common, args: Scan) -> Result<()> {
    let (range, part) = (KeyRange::of(common, &args.range)?, Part::of(&args));
    let (db, keyspace) = open_to_read(&args.db, common)?;
    let view = View::of(common, &db, &keyspace);
    if args.skip_damaged && view.is_in_transaction() {
        return Err(Failure::usage("--skip-damaged reads what is committed: not in a transaction"));
    }
    if args.skip_damaged {
        let limit = args.limit.unwrap_or(u64::MAX);
        return salvage::run(common, &keyspace, range.lower, range.upper, limit, part);
    }
    let mut rows = Rows::new(common, part);
    let (mut left, mut deadlines) = (args.limit.unwrap_or(u64::MAX), 0);
    if left > 0 {
        view.scan(&range, args.reverse, |key, value, deadline| {
            deadlines += u64::from(deadline.is_some());
            rows.add(key, value, deadline)?;
            left -= 1;
            Ok(left > 0)
        })?;
    }
    rows.finish()?;
    if deadlines > 0 && !common.json() && part == Part::Entries {
        let deadlines = counted(deadlines, "value");
        say(format_args!(
            "{deadlines} with a deadline, which lines do not show; --json does, and `export` to JSON lines"
        ));
    }
    Ok(())
}
