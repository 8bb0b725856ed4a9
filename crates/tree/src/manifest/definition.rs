//! Name and options of a keyspace, as version edits and the origins of tables have them.
//!
//! ```text
//! options    = block size, compression, policy, field*
//! policy     = filter policy, bits per key in thousandths (binary fuse: bits of a fingerprint)
//! field      = 1, length, by level   |   2, length, prefix extractor   |   3, length, name
//!            | 4, length, ttl in milliseconds, not 0   |   5, 0
//!            | 6, length, bytes from which values are separate
//!            | 7, length, bits per key of range filters in thousandths, not 0
//! by level   = 1, policy{1,7}        from level 0; the last one holds for all further levels
//!            | 2, thousandths of bits per key, share absent
//!            | 3, bytes of all filters, share absent
//! share absent = look-ups that find nothing, in thousandths of all
//! ```
//!
//! Without field 1, all levels have the policy of the options; without field 2, there is no prefix
//! extractor; field 3 names the merge operator, if there is one. Field 4 says how long puts without
//! a deadline of their own live; a keyspace with field 5 has no log. Without field 7 there are no
//! range filters. Codes are those of [`Compression::code`], [`FilterPolicy::code`] and
//! [`PrefixExtractor::code`].

use std::time::Duration;

use crate::filter::{FINGERPRINT_BITS, FilterPolicy, PrefixExtractor, RangeFilterPolicy};
use crate::format::coding::{Decoder, put_bytes, put_field, put_varint, put_varint_field};
use crate::format::deadline::deadline_after;
use crate::format::{Decoded, Malformed};
use crate::options::{BudgetLimit, Compression, FilterBudget, KeyspaceOptions, LevelFilters};
use crate::sorted::operator::{CompactionHook, NamedOperator};

/// Longest name of a keyspace, in bytes. Part of the format.
pub const MAX_NAME_LEN: usize = 255;
/// Readers skip unknown tags of optional fields from here on.
const OPTIONAL: u64 = 64;

pub(super) fn set_once<T>(field: &mut Option<T>, value: T) -> Decoded<()> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(Malformed("a version edit states a field twice")),
    }
}

pub(super) fn keyspace_name(content: &mut Decoder<'_>) -> Decoded<String> {
    let bytes = content.bytes()?;
    if !(1..=MAX_NAME_LEN).contains(&bytes.len()) {
        return Err(Malformed("a keyspace's name is not 1 to 255 bytes long"));
    }
    match std::str::from_utf8(bytes) {
        Ok(name) => Ok(name.to_owned()),
        Err(_) => Err(Malformed("a keyspace's name is not UTF-8")),
    }
}

/// Tags of the optional fields after a keyspace's options. Part of the format.
mod option_tag {
    pub(super) const LEVEL_FILTERS: u64 = 1;
    pub(super) const PREFIX: u64 = 2;
    pub(super) const MERGE_OPERATOR: u64 = 3;
    pub(super) const TTL: u64 = 4;
    pub(super) const UNLOGGED: u64 = 5;
    pub(super) const SEPARATE_VALUES: u64 = 6;
    pub(super) const RANGE_FILTER: u64 = 7;
}

/// Kinds of level filters: the first number of the field. Part of the format.
mod level_filters {
    pub(super) const EACH: u64 = 1;
    pub(super) const BUDGET_PER_KEY: u64 = 2;
    pub(super) const BUDGET_IN_BYTES: u64 = 3;
}

/// Name and options of a keyspace, encoded as in a version edit, without the id.
pub fn encode_definition(name: &str, options: &KeyspaceOptions) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, name.as_bytes());
    put_options(&mut out, options);
    out
}

/// Decodes what [`encode_definition`] has encoded.
pub fn decode_definition(bytes: &[u8]) -> Decoded<(String, KeyspaceOptions)> {
    let mut content = Decoder::new(bytes);
    let definition = (keyspace_name(&mut content)?, options(&mut content)?);
    content.finish()?;
    Ok(definition)
}

pub(super) fn put_options(out: &mut Vec<u8>, options: &KeyspaceOptions) {
    put_varint(out, options.block_size.into());
    put_varint(out, options.compression.code().into());
    put_policy(out, options.filter);
    if let Some(extractor) = options.prefix {
        put_varint_field(out, option_tag::PREFIX, extractor.code().into());
    }
    if let Some(operator) = &options.merge_operator {
        put_field(out, option_tag::MERGE_OPERATOR, operator.name().as_bytes());
    }
    if let Some(ttl) = options.ttl {
        put_varint_field(out, option_tag::TTL, deadline_after(0, ttl));
    }
    if !options.wal {
        put_field(out, option_tag::UNLOGGED, &[]);
    }
    if let Some(bytes) = options.separate_values {
        put_varint_field(out, option_tag::SEPARATE_VALUES, bytes.into());
    }
    if let millibits @ 1.. = options.range_filter.millibits() {
        put_varint_field(out, option_tag::RANGE_FILTER, millibits.into());
    }
    let mut content = Vec::new();
    match &options.level_filters {
        LevelFilters::Uniform => return,
        LevelFilters::Each(policies) => {
            put_varint(&mut content, level_filters::EACH);
            policies.iter().for_each(|policy| put_policy(&mut content, *policy));
        }
        LevelFilters::Budget(FilterBudget { limit, absent }) => {
            match *limit {
                BudgetLimit::BitsPerKey(bits) => {
                    put_varint(&mut content, level_filters::BUDGET_PER_KEY);
                    put_varint(&mut content, thousandths(bits).into());
                }
                BudgetLimit::Bytes(bytes) => {
                    put_varint(&mut content, level_filters::BUDGET_IN_BYTES);
                    put_varint(&mut content, bytes);
                }
            }
            put_varint(&mut content, thousandths(*absent).into());
        }
    }
    put_field(out, option_tag::LEVEL_FILTERS, &content);
}

pub(super) fn options(content: &mut Decoder<'_>) -> Decoded<KeyspaceOptions> {
    let block_size = content.varint_u32()?;
    if !(256..=1 << 20).contains(&block_size) {
        return Err(Malformed("a block size is not between 256 bytes and 1 MiB"));
    }
    let compression = Compression::from_code(content.varint()?);
    let compression = compression.ok_or(Malformed("a compression is of an unknown kind"))?;
    let filter = policy(content)?;
    let (mut level_filters, mut prefix, mut merge_operator) = (None, None, None);
    let (mut ttl, mut unlogged, mut separate_values, mut range_filter) = (None, None, None, None);
    while let Some((tag, mut field)) = content.field()? {
        match tag {
            option_tag::LEVEL_FILTERS => set_once(&mut level_filters, levels_of_filters(&mut field, filter)?)?,
            option_tag::PREFIX => set_once(&mut prefix, extractor(&mut field)?)?,
            option_tag::MERGE_OPERATOR => set_once(&mut merge_operator, operator(&mut field)?)?,
            option_tag::TTL => {
                let ttl_millis = field.varint()?;
                if ttl_millis == 0 {
                    return Err(Malformed("a ttl is 0"));
                }
                set_once(&mut ttl, Duration::from_millis(ttl_millis))?;
            }
            option_tag::UNLOGGED => set_once(&mut unlogged, ())?,
            option_tag::SEPARATE_VALUES => set_once(&mut separate_values, field.varint_u32()?)?,
            option_tag::RANGE_FILTER => set_once(&mut range_filter, range_policy(&mut field)?)?,
            OPTIONAL.. => continue,
            _ => return Err(Malformed("an option of a keyspace is of an unknown kind")),
        }
        field.finish()?;
    }
    let level_filters = level_filters.unwrap_or_default();
    let compaction_filter = CompactionHook::default();
    let merging = KeyspaceOptions { merge_operator, compaction_filter, ..KeyspaceOptions::default() };
    Ok(KeyspaceOptions {
        filter,
        level_filters,
        compression,
        block_size,
        prefix,
        ttl,
        wal: unlogged.is_none(),
        separate_values,
        range_filter: range_filter.unwrap_or_default(),
        ..merging
    })
}

fn levels_of_filters(field: &mut Decoder<'_>, filter: FilterPolicy) -> Decoded<LevelFilters> {
    let kind = field.varint()?;
    if kind == level_filters::EACH {
        let mut policies = Vec::new();
        while !field.is_empty() && policies.len() < LevelFilters::MAX_EACH {
            policies.push(policy(field)?);
        }
        return match policies.len() {
            0 => Err(Malformed("the filters of the levels are missing")),
            _ => Ok(LevelFilters::Each(policies)),
        };
    }
    let limit = match kind {
        level_filters::BUDGET_PER_KEY => match field.varint()? {
            millibits @ 1..=24_000 => BudgetLimit::BitsPerKey(from_thousandths(millibits)),
            _ => return Err(Malformed("a filter budget is not 0.001 to 24 bits per key")),
        },
        level_filters::BUDGET_IN_BYTES => BudgetLimit::Bytes(field.varint()?),
        _ => return Err(Malformed("the filters of the levels are of an unknown kind")),
    };
    let absent = match field.varint()? {
        absent @ 0..=1000 => from_thousandths(absent),
        _ => return Err(Malformed("the share of absent keys is more than 1")),
    };
    if filter == FilterPolicy::None {
        return Err(Malformed("there is a filter budget, but no filter"));
    }
    Ok(LevelFilters::Budget(FilterBudget { limit, absent }))
}

#[expect(clippy::cast_possible_truncation, reason = "at most 24,000 when valid, and a float cast saturates")]
fn thousandths(number: f32) -> u32 {
    (f64::from(number) * 1000.0).round() as u32
}

/// `number` is at most 65,535.
fn from_thousandths(number: u64) -> f32 {
    f32::from(u16::try_from(number).unwrap_or(u16::MAX)) / 1000.0
}

fn put_policy(out: &mut Vec<u8>, policy: FilterPolicy) {
    put_varint(out, policy.code().into());
    put_varint(out, policy.millibits().into());
}

fn policy(content: &mut Decoder<'_>) -> Decoded<FilterPolicy> {
    let (policy, millibits) = (content.varint()?, content.varint()?);
    let bits_per_key = from_thousandths(millibits);
    match (policy, millibits) {
        (0, 0) => Ok(FilterPolicy::None),
        (1, 1000..=24_000) => Ok(FilterPolicy::Bloom { bits_per_key }),
        (0..=1, _) => Err(Malformed("a filter does not have 1 to 24 bits per key")),
        (4, _) => match FINGERPRINT_BITS.into_iter().find(|&bits| u64::from(bits) * 1000 == millibits) {
            Some(fingerprint_bits) => Ok(FilterPolicy::BinaryFuse { fingerprint_bits }),
            None => Err(Malformed("a filter's fingerprints do not have 4 to 8, 10, 12 or 16 bits")),
        },
        _ => Err(Malformed("a filter policy is of an unknown kind")),
    }
}

fn range_policy(content: &mut Decoder<'_>) -> Decoded<RangeFilterPolicy> {
    let policy = RangeFilterPolicy::of_millibits(content.varint()?);
    policy.ok_or(Malformed("a range filter does not have 3 to 18 bits per key"))
}

fn extractor(content: &mut Decoder<'_>) -> Decoded<PrefixExtractor> {
    let extractor = u16::try_from(content.varint()?).ok().and_then(PrefixExtractor::from_code);
    extractor.ok_or(Malformed("a prefix extractor is of an unknown kind"))
}

/// The operator is known if it comes with the store, until the store's options supply others.
fn operator(content: &mut Decoder<'_>) -> Decoded<NamedOperator> {
    let name = content.take(content.remaining())?;
    if !(1..=MAX_NAME_LEN).contains(&name.len()) {
        return Err(Malformed("a merge operator's name is not 1 to 255 bytes long"));
    }
    let name = std::str::from_utf8(name).map_err(|_| Malformed("a merge operator's name is not UTF-8"))?;
    Ok(NamedOperator::stored(name))
}
