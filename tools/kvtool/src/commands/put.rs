//! `put` and `delete`.

use std::io::{self, Read};

use serde_json::json;
use tamis::{Db, MAX_VALUE_LEN, SeqNo, WriteBatch, WriteOptions};

use super::store::{existing_keyspace, open_existing, open_to_write};
use crate::args::{Common, Delete, Put};
use crate::failure::{Attempt, Failure, Result};
use crate::output::Output;

pub(crate) fn put(common: &Common, args: Put) -> Result<()> {
    let key = common.bytes("KEY", &args.key)?;
    let value = match args.value.as_encoded_bytes() {
        b"-" => read_value()?,
        _ => common.bytes("VALUE", &args.value)?,
    };
    let (db, keyspace) = open_to_write(&args.db, common)?;
    let mut batch = WriteBatch::new();
    batch.put_in(&keyspace, key, value);
    write(common, db, batch)
}

pub(crate) fn delete(common: &Common, args: Delete) -> Result<()> {
    let key = common.bytes("KEY", &args.key)?;
    let db = open_existing(&args.db)?;
    let mut batch = WriteBatch::new();
    batch.delete_in(&existing_keyspace(&db, common)?, key);
    write(common, db, batch)
}

/// The value on standard input.
fn read_value() -> Result<Vec<u8>> {
    let mut value = Vec::new();
    // One byte more than can be, so that too long a value is refused and not cut.
    let limit = MAX_VALUE_LEN as u64 + 1;
    io::stdin().lock().take(limit).read_to_end(&mut value).attempt("cannot read the value from standard input")?;
    if value.len() > MAX_VALUE_LEN {
        return Err(Failure::usage(format_args!("a value takes up to {MAX_VALUE_LEN} bytes; standard input has more")));
    }
    Ok(value)
}

fn write(common: &Common, db: Db, batch: WriteBatch) -> Result<()> {
    let seqno: SeqNo = db.write_with(batch, WriteOptions { sync: true })?;
    db.close()?;
    if !common.json {
        return Ok(());
    }
    let mut output = Output::new();
    output.json(json!({ "seqno": seqno }))?;
    output.finish()
}
