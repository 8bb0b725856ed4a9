//! `filter info`: the parameters of a filter, its size and its fill.

use serde_json::{Value, json};
use tamis::filter::{BloomFilter, FuseFilter, ScalableBloomFilter};

use super::file::AnyFilter;
use crate::args::{Common, FilterInfo};
use crate::failure::Result;
use crate::output::Output;
use crate::table::{Table, number, text};
use crate::text::{count, size};

pub(super) fn run(common: &Common, args: &FilterInfo) -> Result<()> {
    let filter = AnyFilter::load(&args.filter)?;
    let mut output = Output::new();
    match (&filter, common.json()) {
        (AnyFilter::Bloom(bloom), true) => output.json(bloom_json(bloom))?,
        (AnyFilter::Scalable(scalable), true) => output.json(scalable_json(scalable))?,
        (AnyFilter::Fuse(fuse), true) => output.json(fuse_json(fuse))?,
        (AnyFilter::Bloom(bloom), false) => {
            let rows = bloom_rows(bloom).into_iter().chain([("size", size(filter.bytes()))]);
            output.table(common, &words(rows))?;
        }
        (AnyFilter::Fuse(fuse), false) => {
            let rows = fuse_rows(fuse).into_iter().chain([("size", size(filter.bytes()))]);
            output.table(common, &words(rows))?;
        }
        (AnyFilter::Scalable(scalable), false) => {
            let rows = scalable_rows(scalable).into_iter().chain([("size", size(filter.bytes()))]);
            output.table(common, &words(rows))?;
            output.line("")?;
            output.table(common, &parts(scalable))?;
        }
    }
    output.finish()
}

fn words<'a>(rows: impl Iterator<Item = (&'a str, String)>) -> Table {
    Table::of_pairs([text("filter"), text("")], rows)
}

fn bloom_rows(filter: &BloomFilter) -> Vec<(&'static str, String)> {
    vec![
        ("policy", format!("Bloom, {} layout", filter.layout())),
        ("hash", filter.hasher().function().to_string()),
        ("seed", filter.hasher().seed().to_string()),
        ("bits", count(filter.bits())),
        ("k", filter.k().to_string()),
        ("groups", groups(filter)),
        ("capacity", count(filter.capacity())),
        ("estimated keys", format!("{:.0}", filter.estimated_keys())),
        ("fill", format!("{:.2} %", filter.fill_ratio() * 100.0)),
        ("expected false positives", rate(filter.expected_fpr())),
    ]
}

fn fuse_rows(filter: &FuseFilter) -> Vec<(&'static str, String)> {
    vec![
        ("policy", "binary fuse".to_owned()),
        ("hash", filter.hasher().function().to_string()),
        ("seed", filter.hasher().seed().to_string()),
        ("bits", count(filter.bits())),
        ("bits of a fingerprint", filter.fingerprint_bits().to_string()),
        ("keys", count(filter.keys())),
        ("expected false positives", rate(filter.expected_fpr())),
    ]
}

fn scalable_rows(filter: &ScalableBloomFilter) -> Vec<(&'static str, String)> {
    vec![
        ("policy", format!("scalable Bloom, {} layout", filter.layout())),
        ("hash", filter.hasher().function().to_string()),
        ("seed", filter.hasher().seed().to_string()),
        ("bits", count(filter.bits())),
        ("filters", filter.filters().to_string()),
        ("capacity", count(filter.capacity())),
        ("estimated keys", format!("{:.0}", filter.estimated_keys())),
        ("fill", format!("{:.2} %", filter.fill_ratio() * 100.0)),
        ("expected false positives", rate(filter.expected_fpr())),
        ("requested rate", rate(filter.rate())),
    ]
}

fn parts(filter: &ScalableBloomFilter) -> Table {
    let rows = filter.parts().zip(1..).map(|(part, number)| {
        vec![
            number.to_string(),
            count(part.bits()),
            part.k().to_string(),
            groups(part),
            count(part.capacity()),
            format!("{:.0}", part.estimated_keys()),
            format!("{:.2} %", part.fill_ratio() * 100.0),
            rate(part.expected_fpr()),
        ]
    });
    let columns = [
        text("part").key(),
        number("bits"),
        number("k").detail(),
        number("groups").detail(),
        number("capacity"),
        number("estimated keys"),
        number("fill"),
        number("expected false").key(),
    ];
    Table::new(columns, rows)
}

fn groups(filter: &BloomFilter) -> String {
    let groups: Vec<String> = filter.groups().iter().map(u8::to_string).collect();
    if groups.is_empty() { "–".to_owned() } else { groups.join("+") }
}

fn rate(rate: f64) -> String {
    format!("{:.4} %", rate * 100.0)
}

fn bloom_json(filter: &BloomFilter) -> Value {
    // JSON has no infinity, which is the estimate of a filter whose bits are all set.
    let finite = |x: f64| x.is_finite().then_some(x);
    json!({
        "policy": "bloom",
        "layout": filter.layout().to_string(),
        "hash": filter.hasher().function().to_string(),
        "seed": filter.hasher().seed(),
        "bits": filter.bits(),
        "k": filter.k(),
        "groups": filter.groups(),
        "capacity": filter.capacity(),
        "estimated_keys": finite(filter.estimated_keys()),
        "fill_ratio": filter.fill_ratio(),
        "expected_false_positive_rate": filter.expected_fpr(),
        "full": filter.is_full(),
        "bytes": filter.encoded_len(),
    })
}

fn fuse_json(filter: &FuseFilter) -> Value {
    json!({
        "policy": "binary-fuse",
        "hash": filter.hasher().function().to_string(),
        "seed": filter.hasher().seed(),
        "bits": filter.bits(),
        "fingerprint_bits": filter.fingerprint_bits(),
        "keys": filter.keys(),
        "expected_false_positive_rate": filter.expected_fpr(),
        "bytes": filter.encoded_len(),
    })
}

fn scalable_json(filter: &ScalableBloomFilter) -> Value {
    json!({
        "policy": "scalable-bloom",
        "layout": filter.layout().to_string(),
        "hash": filter.hasher().function().to_string(),
        "seed": filter.hasher().seed(),
        "bits": filter.bits(),
        "capacity": filter.capacity(),
        "estimated_keys": filter.estimated_keys().is_finite().then(|| filter.estimated_keys()),
        "fill_ratio": filter.fill_ratio(),
        "expected_false_positive_rate": filter.expected_fpr(),
        "asked_false_positive_rate": filter.rate(),
        "bytes": filter.encoded_len(),
        "parts": filter.parts().map(bloom_json).collect::<Vec<Value>>(),
    })
}
