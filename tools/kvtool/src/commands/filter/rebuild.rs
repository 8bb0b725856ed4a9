//! `filter rebuild`: new filters for the tables of a store.

use std::time::Instant;

use serde_json::{Value, json};
use tamis::{Db, FilterBudget, FilterPolicy, Keyspace, LevelFilters};

use super::super::filters::{FilterTotals, Totals, filters_of};
use super::super::progress::{Unit, bar};
use super::super::store::{close, open_existing, selected_keyspaces, stats_of_keyspace};
use crate::args::{Common, FilterRebuild, Policy};
use crate::failure::{Failure, Result};
use crate::output::{Output, say};
use crate::text::{Decimal, count, counted, size};

pub(crate) fn run(common: &Common, args: FilterRebuild) -> Result<()> {
    // Invalid arguments fail before the store is opened.
    new_policy(&args, FilterPolicy::DEFAULT)?;
    let levels = match (args.allocate, args.bits) {
        (true, Some(bits)) => LevelFilters::Budget(FilterBudget::bits_per_key(bits).absent(args.absent)),
        _ => LevelFilters::Uniform,
    };
    let db = open_existing(&args.db, common)?;
    let keyspaces = selected_keyspaces(&db, common)?;
    let start = Instant::now();
    let bar = bar(Unit::Tables, Some(0));
    let mut documents = Vec::new();
    for keyspace in &keyspaces {
        bar.set_prefix(keyspace.name().to_owned());
        let before = keyspace.options()?;
        let mut options = before.clone();
        if let Some(policy) = new_policy(&args, before.filter)? {
            if before.level_filters != LevelFilters::Uniform && before.level_filters != levels {
                say(format_args!(
                    "keyspace {}: the new policy replaces its policies by level or its filter budget",
                    keyspace.name()
                ));
            }
            options = options.filter(policy).level_filters(levels.clone());
        }
        if let Some(policy) = args.range_filter {
            options = options.range_filter(policy);
        }
        if options != before {
            db.keyspace_with(keyspace.name(), options)?;
        }
        let progress = |rebuild: &tamis::FilterRebuild| {
            bar.set_length(rebuild.wanted);
            bar.set_position(rebuild.replaced);
        };
        let rebuild = if args.all { keyspace.remake_filters(progress)? } else { keyspace.renew_filters(progress)? };
        let ranges = ranges_of(&db, keyspace);
        bar.suspend(|| {
            say(format_args!(
                "keyspace {}: new filters for {}, {} before and {} after; {} unchanged",
                keyspace.name(),
                counted(rebuild.replaced, "table"),
                size(rebuild.bytes_before),
                size(rebuild.bytes_after),
                count(rebuild.unchanged)
            ));
            if ranges.declined > 0 {
                say(format_args!(
                    "keyspace {}: {} without a range filter, since it would say \"maybe\" to more than a quarter of short \
                     empty ranges; `kvtool filter advise` shows what other sizes would do",
                    keyspace.name(),
                    counted(ranges.declined, "table")
                ));
            }
        });
        documents.push(json!({
            "name": keyspace.name(),
            "replaced": rebuild.replaced,
            "unchanged": rebuild.unchanged,
            "bytes_before": rebuild.bytes_before,
            "bytes_after": rebuild.bytes_after,
            "range_filter_bytes": ranges.bytes,
            "range_filters_declined": ranges.declined,
        }));
    }
    drop((bar, keyspaces));
    close(db, common)?;
    let seconds = start.elapsed().as_secs_f64();
    say(format_args!("done in {} s", Decimal(seconds)));
    if common.json() {
        let mut output = Output::new();
        output.json(json!({ "keyspaces": Value::Array(documents), "seconds": seconds }))?;
        output.finish()?;
    }
    Ok(())
}

/// The range filters that a keyspace now has. A table that a compaction removes meanwhile is left
/// out.
fn ranges_of(db: &Db, keyspace: &Keyspace) -> Totals {
    let levels = stats_of_keyspace(db, keyspace).levels;
    let tables = levels.iter().flat_map(|level| &level.tables);
    tables.filter_map(|table| filters_of(db.path(), std::slice::from_ref(table)).ok()).sum::<FilterTotals>().ranges
}

/// The policy that the command line sets, if any. Without --policy, the kind of `old` stays.
fn new_policy(args: &FilterRebuild, old: FilterPolicy) -> Result<Option<FilterPolicy>> {
    let bits_per_key = args.bits.unwrap_or(10.0);
    let kind = args.policy.or(args.bits.map(|_| match old {
        FilterPolicy::BinaryFuse { .. } if !args.allocate => Policy::Fuse,
        _ => Policy::Bloom,
    }));
    Ok(match (kind, args.bits) {
        (None, _) => None,
        (Some(Policy::None), None) => Some(FilterPolicy::None),
        (Some(Policy::None), Some(_)) => return Err(Failure::usage("--policy none takes no --bits")),
        (Some(Policy::Fuse), _) => Some(FilterPolicy::BinaryFuse { fingerprint_bits: fingerprint_bits(args.bits)? }),
        (Some(Policy::Bloom), _) => Some(FilterPolicy::Bloom { bits_per_key }),
    })
}

/// Only whole numbers. The options check the value itself.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "compared afterwards")]
fn fingerprint_bits(bits: Option<f32>) -> Result<u8> {
    let bits = bits.unwrap_or(8.0);
    match bits as u8 {
        whole if f32::from(whole) == bits => Ok(whole),
        _ => Err(Failure::usage(format_args!(
            "a binary fuse needs a whole number of bits per fingerprint, not {bits}; --policy chooses another kind of filter"
        ))),
    }
}
