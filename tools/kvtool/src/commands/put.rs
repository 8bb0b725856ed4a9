//! `put`, `merge`, `delete` and `delete-range`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Bound;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tamis::{Db, Keyspace, MAX_VALUE_LEN, ReadOptions, WriteBatch, WriteOptions};

use super::look_up::each_key;
use super::operators::with_operator;
use super::store::{self, may_change_keyspaces, open_existing_to_write, open_to_write, settle_and_close};
use super::view::View;
use crate::args::{Common, Delete, DeleteRange, Merge, Operator, Put};
use crate::failure::{Attempt, Failure, Result};
use crate::output::Output;

/// The argument that means standard input.
const STDIN: &str = "-";

pub(crate) fn put(common: &Common, args: Put) -> Result<()> {
    let key = common.bytes("KEY", &args.key)?;
    let value = match (&args.file, &args.value) {
        (Some(file), _) => read_value(file)?,
        (None, Some(value)) if value == STDIN => read_value(Path::new(STDIN))?,
        (None, Some(value)) => common.bytes("VALUE", value)?,
        (None, None) => return Err(Failure::usage("a VALUE or --file is needed")),
    };
    let (db, keyspace) = open_to_write(&args.db, common)?;
    let mut batch = WriteBatch::new();
    match args.ttl {
        Some(seconds) => {
            let deadline = SystemTime::now().checked_add(Duration::from_secs(seconds));
            let deadline = deadline.ok_or_else(|| Failure::usage("--ttl is too long"))?;
            batch.put_with_expiry_in(&keyspace, key, value, deadline);
        }
        None => batch.put_in(&keyspace, key, value),
    }
    write(common, db, batch)
}

pub(crate) fn merge(common: &Common, args: Merge) -> Result<()> {
    let key = common.bytes("KEY", &args.key)?;
    let (db, keyspace) = match args.operator {
        Some(operator) => {
            // What can be seen to be wrong creates no store.
            operator.operand(common, &args.operand, None)?;
            let (db, keyspace) = open_to_write(&args.db, common)?;
            let before = keyspace.options()?;
            let options = with_operator(before.clone(), operator.name());
            if options == before {
                (db, keyspace)
            } else {
                may_change_keyspaces(&args.db, common)?;
                let keyspace = db.keyspace_with(keyspace.name(), options)?;
                (db, keyspace)
            }
        }
        None => open_existing_to_write(&args.db, common)?,
    };
    // Nobody else writes meanwhile: this process has the store's lock.
    let (operator, value) = (Operator::of(&keyspace)?, View::of(common, &db, &keyspace).get(&key, ReadOptions::new())?);
    let operand = operator.operand(common, &args.operand, value.as_deref())?;
    operator.check(&key, value.as_deref(), &operand).map_err(|why| {
        let key = common.form().show(&key);
        Failure::usage(format_args!("the operand cannot be merged into the value of key {key}: {why}"))
    })?;
    let mut batch = WriteBatch::new();
    batch.merge_in(&keyspace, key, operand);
    write(common, db, batch)
}

/// Deletes of this many keys are one batch.
const BATCH: usize = 1000;

pub(crate) fn delete(common: &Common, args: Delete) -> Result<()> {
    let keys = args.keys.iter().map(|key| common.bytes("KEY", key)).collect::<Result<Vec<_>>>()?;
    let range = Deleted::of(common, args.from.as_ref(), args.to.as_ref(), args.prefix.as_ref())?;
    let (db, keyspace) = open_existing_to_write(&args.db, common)?;
    let mut batch = WriteBatch::new();
    match &args.keys_from {
        // Keys before an invalid line may be deleted by then.
        Some(file) => each_key(file, common.form(), |key| {
            batch.delete_in(&keyspace, key);
            if batch.len() >= BATCH {
                store::write(common, &db, std::mem::take(&mut batch), WriteOptions::new())?;
            }
            Ok(())
        })?,
        None if keys.is_empty() => range.add_to(&mut batch, &keyspace),
        None => keys.iter().for_each(|key| batch.delete_in(&keyspace, key)),
    }
    write(common, db, batch)
}

pub(crate) fn delete_range(common: &Common, args: DeleteRange) -> Result<()> {
    let range = Deleted::of(common, args.from.as_ref(), args.to.as_ref(), args.prefix.as_ref())?;
    if matches!(range, Deleted::Range(None, None)) && !args.all {
        return Err(Failure::usage("--from, --to, --prefix or --all is needed"));
    }
    let (db, keyspace) = open_existing_to_write(&args.db, common)?;
    let mut batch = WriteBatch::new();
    range.add_to(&mut batch, &keyspace);
    write(common, db, batch)
}

/// The range that a command deletes.
enum Deleted {
    Prefix(Vec<u8>),
    Range(Option<Vec<u8>>, Option<Vec<u8>>),
}

impl Deleted {
    fn of(
        common: &Common,
        from: Option<&OsString>,
        to: Option<&OsString>,
        prefix: Option<&OsString>,
    ) -> Result<Deleted> {
        let (from, to) = (common.optional_bytes("--from", from)?, common.optional_bytes("--to", to)?);
        let prefix = common.optional_bytes("--prefix", prefix)?;
        Ok(prefix.map_or(Deleted::Range(from, to), Deleted::Prefix))
    }

    fn add_to(self, batch: &mut WriteBatch, keyspace: &Keyspace) {
        match self {
            Deleted::Prefix(prefix) => batch.delete_prefix_in(keyspace, prefix),
            Deleted::Range(from, to) => {
                let bounds =
                    (from.map_or(Bound::Unbounded, Bound::Included), to.map_or(Bound::Unbounded, Bound::Excluded));
                batch.delete_range_in(keyspace, bounds);
            }
        }
    }
}

/// Reads a value from a file or standard input.
fn read_value(file: &Path) -> Result<Vec<u8>> {
    let (name, len, input): (_, _, Box<dyn Read>) = match file == Path::new(STDIN) {
        true => ("standard input".to_owned(), 0, Box::new(io::stdin().lock())),
        false => {
            let name = file.display().to_string();
            let opened = File::open(file).attempt(format_args!("cannot read {name}"))?;
            let len = opened.metadata().attempt(format_args!("cannot read {name}"))?.len();
            (name, len, Box::new(opened))
        }
    };
    // Reads one byte more than the limit, so that a longer value is refused and not cut.
    let limit = MAX_VALUE_LEN as u64 + 1;
    let mut value = Vec::with_capacity(usize::try_from(len.min(limit)).unwrap_or_default());
    input.take(limit).read_to_end(&mut value).attempt(format_args!("cannot read {name}"))?;
    if value.len() > MAX_VALUE_LEN {
        return Err(Failure::usage(format_args!("a value has at most {MAX_VALUE_LEN} bytes; {name} has more")));
    }
    Ok(value)
}

fn write(common: &Common, db: Db, batch: WriteBatch) -> Result<()> {
    let seqno = store::write(common, &db, batch, WriteOptions::new().sync(true))?;
    settle_and_close(db, common)?;
    if !common.json() {
        return Ok(());
    }
    let mut output = Output::new();
    output.json(json!({ "seqno": seqno }))?;
    output.finish()
}
