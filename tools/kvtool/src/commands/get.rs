//! `get`: looks up one key, several, or all keys of a file and what they cost.

use serde_json::{Value, json};
use tamis::ReadOptions;

use super::look_up::look_up_all;
use super::store::open_to_read;
use super::view::View;
use crate::args::{Common, Get};
use crate::failure::{Failure, Result};
use crate::output::{Output, json_bytes, json_reads, say};

pub(crate) fn run(common: &Common, args: Get) -> Result<()> {
    let options = ReadOptions::new().filters(args.filters.into());
    let keys = args.keys.iter().map(|key| common.bytes("KEY", key)).collect::<Result<Vec<_>>>()?;
    if args.raw && keys.len() > 1 {
        return Err(Failure::usage("--raw prints one value: name one KEY"));
    }
    let (db, keyspace) = open_to_read(&args.db, common)?;
    let view = View::of(common, &db, &keyspace);
    let Some(file) = &args.keys_from else { return get_keys(common, &view, &keys, &args, options) };
    let (mut output, mut printed) = (Output::new(), 0u64);
    let summary = look_up_all(&view, file, common.form(), options, |key, value| {
        if value.is_some() == args.missing {
            return Ok(());
        }
        printed += 1;
        match (common.json(), value) {
            (true, value) => output.json(document(common, key, value)),
            (false, Some(value)) => output.row(common.form(), key, value),
            (false, None) => output.key(common.form(), key),
        }
    })?;
    let reads = db.stats().reads();
    if common.json() {
        output.json(json!({ "summary": summary.json(json_reads(&reads)) }))?;
    }
    output.finish()?;
    summary.say(&reads);
    if printed == 0 { Err(Failure::NotFound) } else { Ok(()) }
}

/// A line of `--keys-from`.
fn document(common: &Common, key: &[u8], value: Option<&[u8]>) -> Value {
    let mut document = json!({ "key": json_bytes(common.form(), key) });
    match value {
        Some(value) => document["value"] = json_bytes(common.form(), value),
        None => document["found"] = json!(false),
    }
    document
}

/// The keys of the command line. Fails if one is absent; with `--missing`, if none is.
fn get_keys(common: &Common, view: &View<'_>, keys: &[Vec<u8>], args: &Get, options: ReadOptions) -> Result<()> {
    let (mut output, mut absent) = (Output::new(), 0);
    for key in keys {
        let value = view.get(key, options)?;
        absent += usize::from(value.is_none());
        let form = common.form();
        match (&value, common.json()) {
            (Some(_), _) if args.missing => {}
            (value, true) => {
                let mut document = json!({ "key": json_bytes(form, key), "found": value.is_some() });
                if let Some(value) = value {
                    document["value"] = json_bytes(form, value);
                }
                output.json(document)?;
            }
            (Some(value), _) if args.raw => output.write(value)?,
            (Some(value), _) if keys.len() == 1 => output.value(form, value)?,
            (Some(value), _) => output.row(form, key, value)?,
            (None, _) if args.missing => output.key(form, key)?,
            (None, _) if keys.len() > 1 => say(format_args!("absent: {}", form.show(key))),
            (None, _) => {}
        }
    }
    output.finish()?;
    if (absent > 0) == args.missing { Ok(()) } else { Err(Failure::NotFound) }
}
