//! `get`: one key, or all keys of a file with what that cost.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use tamis::{Keyspace, MAX_KEY_LEN, ReadOptions, ReadStats};

use super::lines::Lines;
use super::store::open_to_read;
use crate::args::{Common, Get};
use crate::failure::{Failure, Result};
use crate::output::{Output, json_bytes, json_reads, say};
use crate::text::{Decimal, Form, count, size};

pub(crate) fn run(common: &Common, args: Get) -> Result<()> {
    let options = ReadOptions::new().filters(args.filters.into());
    let key = common.optional_bytes("KEY", args.key.as_ref())?;
    let (db, keyspace) = open_to_read(&args.db, common)?;
    match (key, &args.keys_from) {
        (Some(key), _) => get_one(common, &keyspace, &key, args.raw, options),
        (None, Some(file)) => {
            let form = match (common.hex, args.escaped) {
                (true, _) => Some(Form::Hex),
                (false, true) => Some(Form::Escaped),
                (false, false) => None,
            };
            let summary = get_all(common, &keyspace, file, form, options)?;
            summary.report(common, &db.stats().reads())
        }
        (None, None) => Err(Failure::usage("a KEY or --keys-from is needed")),
    }
}

fn get_one(common: &Common, keyspace: &Keyspace, key: &[u8], raw: bool, options: ReadOptions) -> Result<()> {
    let value = keyspace.get_with(key, options)?;
    let mut output = Output::new();
    if common.json {
        let mut document = json!({ "key": json_bytes(common.form(), key), "found": value.is_some() });
        if let Some(value) = &value {
            document["value"] = json_bytes(common.form(), value);
        }
        output.json(document)?;
    } else if let Some(value) = &value {
        match raw {
            true => output.write(value)?,
            false => output.line(common.form().show(value))?,
        }
    }
    output.finish()?;
    value.map(|_| ()).ok_or(Failure::NotFound)
}

struct Summary {
    asked: u64,
    found: u64,
    time: Duration,
    output: Output,
}

fn get_all(common: &Common, keyspace: &Keyspace, file: &Path, form: Option<Form>, options: ReadOptions) -> Result<Summary> {
    // The longest form of a byte is `\xNN`.
    let mut lines = Lines::open(Some(file), MAX_KEY_LEN * 4)?;
    let mut summary = Summary { asked: 0, found: 0, time: Duration::ZERO, output: Output::new() };
    while let Some(line) = lines.next()? {
        let parsed = form.map(|form| form.parse(line)).transpose();
        let key = match &parsed {
            Ok(Some(key)) => key,
            Ok(None) => line,
            Err(why) => return Err(lines.invalid(why)),
        };
        let start = Instant::now();
        let value = keyspace.get_with(key, options)?;
        summary.time += start.elapsed();
        summary.asked += 1;
        let Some(value) = value else { continue };
        summary.found += 1;
        if common.json {
            let (key, value) = (json_bytes(common.form(), key), json_bytes(common.form(), &value));
            summary.output.json(json!({ "key": key, "value": value }))?;
        } else {
            summary.output.row(common.form(), key, &value)?;
        }
    }
    Ok(summary)
}

impl Summary {
    fn report(mut self, common: &Common, reads: &ReadStats) -> Result<()> {
        let absent = self.asked - self.found;
        let per_key = |n: f64| n / self.asked.max(1) as f64;
        if common.json {
            let mut document = json!({
                "asked": self.asked,
                "found": self.found,
                "absent": absent,
                "seconds": self.time.as_secs_f64(),
            });
            document["reads"] = json_reads(reads);
            self.output.json(json!({ "summary": document }))?;
        }
        self.output.finish()?;
        say(format_args!(
            "asked {}, found {}, absent {}; {} µs per key",
            count(self.asked),
            count(self.found),
            count(absent),
            Decimal(per_key(self.time.as_secs_f64() * 1e6))
        ));
        say(format_args!(
            "filters asked {} times: no {}, rightly maybe {}, wrongly maybe {}; looked into a table without asking one {} times",
            count(reads.probes),
            count(reads.negatives),
            count(reads.true_positives),
            count(reads.false_positives),
            count(reads.unfiltered)
        ));
        say(format_args!(
            "blocks read {} ({}), {} per key; found in the cache {}",
            count(reads.block_reads),
            size(reads.block_bytes),
            Decimal(per_key(reads.block_reads as f64)),
            count(reads.cache_hits)
        ));
        if self.found == 0 { Err(Failure::NotFound) } else { Ok(()) }
    }
}
