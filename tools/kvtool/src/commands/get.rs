//! `get`: looks up one key, or all keys of a file and what they cost.

use serde_json::json;
use tamis::{Keyspace, ReadOptions};

use super::look_up::look_up_all;
use super::store::open_to_read;
use crate::args::{Common, Get};
use crate::failure::{Failure, Result};
use crate::output::{Output, json_bytes, json_reads};

pub(crate) fn run(common: &Common, args: Get) -> Result<()> {
    let options = ReadOptions::new().filters(args.filters.into());
    let key = common.optional_bytes("KEY", args.key.as_ref())?;
    let (db, keyspace) = open_to_read(&args.db, common)?;
    if let Some(key) = key {
        return get_one(common, &keyspace, &key, args.raw, options);
    }
    let Some(file) = &args.keys_from else { return Err(Failure::usage("a KEY or --keys-from is needed")) };
    let mut output = Output::new();
    let summary = look_up_all(&keyspace, file, common.form(), options, |key, value| match common.json() {
        true => {
            output.json(json!({ "key": json_bytes(common.form(), key), "value": json_bytes(common.form(), value) }))
        }
        false => output.row(common.form(), key, value),
    })?;
    let reads = db.stats().reads();
    if common.json() {
        output.json(json!({ "summary": summary.json(json_reads(&reads)) }))?;
    }
    output.finish()?;
    summary.say(&reads);
    if summary.found == 0 { Err(Failure::NotFound) } else { Ok(()) }
}

fn get_one(common: &Common, keyspace: &Keyspace, key: &[u8], raw: bool, options: ReadOptions) -> Result<()> {
    let value = keyspace.get_with(key, options)?;
    let mut output = Output::new();
    if common.json() {
        let mut document = json!({ "key": json_bytes(common.form(), key), "found": value.is_some() });
        if let Some(value) = &value {
            document["value"] = json_bytes(common.form(), value);
        }
        output.json(document)?;
    } else if let Some(value) = &value {
        match raw {
            true => output.write(value)?,
            false => output.value(common.form(), value)?,
        }
    }
    output.finish()?;
    value.map(|_| ()).ok_or(Failure::NotFound)
}
