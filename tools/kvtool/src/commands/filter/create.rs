//! `filter create`: a filter of lines, sized for them.

use serde_json::json;
use tamis::filter::{BloomBuilder, BloomFilter, FuseFilter, HashedKeys, ScalableBloomFilter};

use super::file::{AnyFilter, each_line, refuse_existing};
use crate::args::{Common, FilterCreate};
use crate::failure::Result;
use crate::output::{Output, say};
use crate::text::{count, counted, size};

const BITS_PER_KEY: f64 = 10.0;
const SCALABLE_RATE: f64 = 0.01;

pub(super) fn run(common: &Common, args: &FilterCreate) -> Result<()> {
    refuse_existing(&args.filter, args.force)?;
    let builder = BloomFilter::builder().seed(args.seed).hash(args.hash.into()).layout(args.layout.into());
    let mut lines = 0;
    let (filter, new) = if args.capacity.is_some() || args.bits.is_some() {
        let (mut filter, mut new) = (empty(args, &builder, args.capacity.unwrap_or(1))?, 0);
        each_line(common, args.lines.as_deref(), |_, key| {
            lines += 1;
            new += u64::from(filter.insert(key)?);
            Ok(())
        })?;
        (filter, new)
    } else {
        let mut keys = HashedKeys::new(builder.hasher()?);
        // Invalid parameters fail here, before all lines are read.
        match args.fuse {
            Some(bits) => _ = FuseFilter::bytes_for(1, bits)?,
            None => _ = empty(args, &builder, 1)?,
        }
        each_line(common, args.lines.as_deref(), |_, key| {
            lines += 1;
            keys.push(key);
            Ok(())
        })?;
        match args.fuse {
            Some(bits) => {
                let filter = FuseFilter::from_hashed(keys, bits)?;
                let new = filter.keys();
                (AnyFilter::Fuse(filter), new)
            }
            None => {
                let mut filter = empty(args, &builder, keys.distinct().max(1))?;
                let new = filter.insert_all(&keys)?;
                (filter, new)
            }
        }
    };
    filter.save(&args.filter)?;
    report(common, args, lines, new, &filter)
}

fn empty(args: &FilterCreate, builder: &BloomBuilder, capacity: u64) -> Result<AnyFilter> {
    if args.scalable {
        let builder = ScalableBloomFilter::builder().seed(args.seed).hash(args.hash.into()).layout(args.layout.into());
        let filter = builder.with_rate(capacity, args.error_rate.unwrap_or(SCALABLE_RATE))?;
        return Ok(AnyFilter::Scalable(filter));
    }
    let filter = match (args.error_rate, args.bits, args.probes) {
        (_, Some(bits), Some(probes)) => builder.with_bits(bits, probes)?,
        (Some(rate), ..) => builder.with_rate(capacity, rate)?,
        _ => builder.with_bits_per_key(capacity, args.bits_per_key.unwrap_or(BITS_PER_KEY))?,
    };
    Ok(AnyFilter::Bloom(filter))
}

fn report(common: &Common, args: &FilterCreate, lines: u64, new: u64, filter: &AnyFilter) -> Result<()> {
    let (bytes, rate) = (filter.bytes(), filter.expected_fpr());
    if common.json() {
        let mut output = Output::new();
        output.json(json!({
            "lines": lines,
            "new": new,
            "bytes": bytes,
            "expected_false_positive_rate": rate,
        }))?;
        output.finish()?;
    }
    say(format_args!(
        "{}: {}, {} new to the filter, {}; expected false positives {:.4} %",
        args.filter.display(),
        counted(lines, "line"),
        count(new),
        size(bytes),
        rate * 100.0
    ));
    filter.warn_if_overfull();
    Ok(())
}
