//! [`Properties`]: what a table states about itself. The manifest repeats some of it, and opening a
//! table compares the two.
//!
//! | tag | content |
//! |---|---|
//! | 1 | file number |
//! | 2 | entries |
//! | 3 | tombstones |
//! | 4 | data blocks |
//! | 5 | bytes of user keys |
//! | 6 | bytes of values |
//! | 7, 8 | smallest, largest user key |
//! | 9, 10 | smallest, largest sequence number |
//! | 11 | bytes of the largest data block before compression |
//! | 12 | configured compression, as in a trailer |
//! | 13 | configured block size, bytes |
//! | 14 | hash seed |
//! | 15 | filter policy, as in a version edit |
//! | 16 | filter bits per key, in thousandths |
//! | 17 | distinct keys and prefixes in the filter |
//! | 18 | keyspace id |
//! | 19 | distinct user keys |
//! | 20 | XXH3 of the filter block, 64 bits, seed 0, as `u64`; absent if there is no filter |
//! | 21 to 28 | [`Origin`](super::Origin) |
//! | 29 | operands of merges; absent if there are none |
//! | 30 | [`References`]; absent if no entry points to a value file |
//! | 31 | [`Deadlines`]; absent if no entry has one |
//! | 32 | range deletes; absent if there are none: a range table has nothing else |
//! | 33 | 1 if the entries have no sequence numbers, but 0: the manifest states one for all |
//! | 34 | range filter requested: bits per key in thousandths, predicted rates (below); or absent |
//! | 35 | [`Extras`](super::Extras); absent if there are none |
//!
//! The rates are those of fresh ranges and of ranges near keys, in parts per 10^9. A table whose
//! rates exceed 25 % has property 34, and no range filter.

use xxhash_rust::xxh3::xxh3_64;

use super::extras::Extras;
use super::{Deadlines, Ingested, References, TableMeta};
use crate::filter::RangeRates;
use crate::format::coding::{Decoder, put_field, put_u64_field, put_varint, put_varint_field};
use crate::format::header::features;
use crate::format::key::{MAX_KEY_LEN, MAX_SEQNO, MAX_VALUE_LEN, SeqNo, ValueKind};
use crate::format::pointer::{ValuePointer, split_separate};
use crate::format::{Decoded, Malformed};

/// Longest data block: a single entry of the greatest size, directory included.
pub(super) const LONGEST_BLOCK: u64 = (MAX_KEY_LEN + MAX_VALUE_LEN + 4096) as u64;

/// Decoded properties block.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Properties {
    pub number: u64,
    pub entries: u64,
    /// Distinct user keys.
    pub keys: u64,
    pub tombstones: u64,
    /// Entries that are operands of merges.
    pub operands: u64,
    /// Of the entries with a deadline.
    pub deadlines: Deadlines,
    pub references: References,
    /// Entries that are range deletes: all or none.
    pub ranges: u64,
    /// Whether the entries have no sequence numbers in the file.
    pub is_unnumbered: bool,
    pub data_blocks: u64,
    /// Bytes of all user keys.
    pub key_bytes: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
    pub smallest: Box<[u8]>,
    pub largest: Box<[u8]>,
    pub smallest_seqno: SeqNo,
    pub largest_seqno: SeqNo,
    /// Bytes of the largest data block before compression.
    pub largest_block: u32,
    /// Code of the requested compression. A block that would not shrink is stored without.
    pub compression: u64,
    /// Requested block size in bytes.
    pub block_size: u32,
    /// Seed of the hash used by filter and fingerprints.
    pub seed: u64,
    /// Code of the filter policy, 0 for none.
    pub filter_policy: u64,
    /// Requested bits per key, in thousandths.
    pub filter_millibits: u32,
    /// Distinct keys in the filter.
    pub filter_keys: u64,
    /// [`filter_hash`] of the filter block, if there is one. Absent in tables of older versions.
    pub filter_hash: Option<u64>,
    pub range_filter: Option<RangeFilterRequest>,
    /// The blocks after the filter.
    pub extras: Extras,
    pub keyspace: u32,
}

/// The range filter that was asked for when the table was written, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeFilterRequest {
    /// Bits per key, in thousandths.
    pub millibits: u32,
    /// What the builder predicted.
    pub rates: RangeRates,
}

impl RangeFilterRequest {
    fn put(self, out: &mut Vec<u8>) {
        for number in [self.millibits, self.rates.fresh, self.rates.near] {
            put_varint(out, number.into());
        }
    }

    fn decode(content: &mut Decoder<'_>) -> Decoded<RangeFilterRequest> {
        let (millibits, rates) = (content.varint_u32()?, RangeRates::of(content.varint_u32()?, content.varint_u32()?));
        Ok(RangeFilterRequest { millibits, rates })
    }
}

/// Hash of a filter block, header included: XXH3 with 64 bits, seed 0. Part of the format.
///
/// A filter describes itself, but does not name its table. The filter of another table with as many
/// keys would look sound and deny this table's keys.
pub(super) fn filter_hash(block: &[u8]) -> u64 {
    xxh3_64(block)
}

const FILTER_HASH: u64 = 20;
const OPERANDS: u64 = 29;
const REFERENCES: u64 = 30;
const DEADLINES: u64 = 31;
const RANGES: u64 = 32;
const UNNUMBERED: u64 = 33;
const RANGE_FILTER: u64 = 34;
const EXTRAS: u64 = 35;
/// The tags from here to the last one may be absent.
const FIRST_OPTIONAL: u64 = OPERANDS;
/// One bit per mandatory tag.
const MANDATORY_TAGS: u64 = (1 << FILTER_HASH) - 2;

impl Properties {
    /// What the manifest says of table `number`, whose file has `size` bytes. The caller knows the
    /// sequence number of entries that have none.
    pub(super) fn into_meta(self, number: u64, size: u64, checksum: u32) -> TableMeta {
        let ingested = self.is_unnumbered.then_some(Ingested::unknown(self.number));
        let properties = self.numbered(ingested);
        properties.meta(number, size, checksum, ingested)
    }

    fn meta(self, number: u64, size: u64, checksum: u32, ingested: Option<Ingested>) -> TableMeta {
        TableMeta {
            number,
            size,
            checksum,
            entries: self.entries,
            keys: self.keys,
            tombstones: self.tombstones,
            deadlines: self.deadlines,
            references: self.references,
            smallest_seqno: self.smallest_seqno,
            largest_seqno: self.largest_seqno,
            cleared: 0,
            smallest: self.smallest,
            largest: self.largest,
            ingested,
            range_end: None,
            kept: 0,
        }
    }

    /// The properties with the sequence number that the manifest states for all entries. Entries
    /// that have numbers of their own keep them: the manifest will contradict them.
    pub(super) fn numbered(mut self, ingested: Option<Ingested>) -> Properties {
        if self.is_unnumbered && self.largest_seqno == 0 {
            (self.smallest_seqno, self.largest_seqno) = ingested.map_or((0, 0), |of| (of.seqno, of.seqno));
        }
        self
    }

    /// The properties as a file with the same blocks states them.
    pub(super) fn without_numbers(mut self) -> Properties {
        if self.is_unnumbered {
            (self.smallest_seqno, self.largest_seqno) = (0, 0);
        }
        self
    }

    /// Counts an entry of the table. The largest key is set after the last one.
    pub(super) fn count_entry(&mut self, key: &[u8], is_new_key: bool, seqno: SeqNo, kind: ValueKind, value: &[u8]) {
        if self.entries == 0 {
            self.smallest = key.into();
            self.smallest_seqno = seqno;
        }
        self.entries += 1;
        self.keys += u64::from(is_new_key);
        self.tombstones += u64::from(kind == ValueKind::Delete);
        self.operands += u64::from(kind == ValueKind::Merge);
        self.key_bytes += key.len() as u64;
        self.value_bytes += value.len() as u64;
        if let Some((_, pointer)) = split_separate(kind, value)
            && let Ok(pointer) = ValuePointer::decode(pointer)
        {
            self.references.count(&pointer);
        }
        self.smallest_seqno = self.smallest_seqno.min(seqno);
        self.largest_seqno = self.largest_seqno.max(seqno);
    }

    /// Bytes of all keys and values, those in value files among them.
    pub(super) fn all_bytes(&self) -> u64 {
        self.key_bytes.saturating_add(self.value_bytes).saturating_add(self.references.bytes())
    }

    /// The [`features`] that a reader of the entries needs.
    pub(super) fn features(&self) -> u32 {
        let merge = if self.operands > 0 { features::MERGE } else { 0 };
        let expiry = if self.deadlines.count > 0 { features::EXPIRY } else { 0 };
        let values = if self.references.is_empty() { 0 } else { features::VALUES };
        // Not told apart from a table that has each of them alone.
        let both = if expiry != 0 && values != 0 { features::EXPIRING_VALUES } else { 0 };
        let ingest = if self.is_unnumbered { features::INGEST } else { 0 };
        merge | expiry | values | both | ingest | if self.ranges > 0 { features::RANGE_DELETE } else { 0 }
    }

    /// Counts a data block of `len` bytes before compression.
    pub(super) fn count_block(&mut self, len: usize) {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.data_blocks += 1;
        self.largest_block = self.largest_block.max(len);
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut number = |tag, value| put_varint_field(&mut out, tag, value);
        number(1, self.number);
        number(2, self.entries);
        number(3, self.tombstones);
        number(4, self.data_blocks);
        number(5, self.key_bytes);
        number(6, self.value_bytes);
        number(9, self.smallest_seqno);
        number(10, self.largest_seqno);
        number(11, self.largest_block.into());
        number(12, self.compression);
        number(13, self.block_size.into());
        number(14, self.seed);
        number(15, self.filter_policy);
        number(16, self.filter_millibits.into());
        number(17, self.filter_keys);
        number(18, self.keyspace.into());
        number(19, self.keys);
        put_field(&mut out, 7, &self.smallest);
        put_field(&mut out, 8, &self.largest);
        if let Some(hash) = self.filter_hash {
            put_u64_field(&mut out, FILTER_HASH, hash);
        }
        if self.operands > 0 {
            put_varint_field(&mut out, OPERANDS, self.operands);
        }
        if self.deadlines.count > 0 {
            let mut content = Vec::new();
            self.deadlines.put(&mut content);
            put_field(&mut out, DEADLINES, &content);
        }
        if !self.references.is_empty() {
            let mut content = Vec::new();
            self.references.put(&mut content);
            put_field(&mut out, REFERENCES, &content);
        }
        if self.ranges > 0 {
            put_varint_field(&mut out, RANGES, self.ranges);
        }
        if self.is_unnumbered {
            put_varint_field(&mut out, UNNUMBERED, 1);
        }
        if let Some(request) = self.range_filter {
            let mut content = Vec::new();
            request.put(&mut content);
            put_field(&mut out, RANGE_FILTER, &content);
        }
        if !self.extras.is_empty() {
            let mut content = Vec::new();
            self.extras.put(&mut content);
            put_field(&mut out, EXTRAS, &content);
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Decoded<Properties> {
        let mut properties = Properties::default();
        let mut seen = 0u64;
        let mut fields = Decoder::new(bytes);
        while let Some((tag, mut content)) = fields.field()? {
            if !(1..=FILTER_HASH).contains(&tag) && !(FIRST_OPTIONAL..=EXTRAS).contains(&tag) {
                continue;
            }
            if seen & (1 << tag) != 0 {
                return Err(Malformed("a property occurs twice"));
            }
            seen |= 1 << tag;
            properties.decode_field(tag, &mut content)?;
            content.finish()?;
        }
        if seen & MANDATORY_TAGS != MANDATORY_TAGS {
            return Err(Malformed("a property is missing"));
        }
        if u64::from(properties.largest_block) > LONGEST_BLOCK {
            return Err(Malformed("the largest data block exceeds the limit of the format"));
        }
        if properties.deadlines.count > properties.entries {
            return Err(Malformed("more entries have a deadline than there are"));
        }
        if properties.smallest_seqno.max(properties.largest_seqno) > MAX_SEQNO {
            return Err(Malformed("a sequence number in the properties exceeds 56 bits"));
        }
        Ok(properties)
    }

    fn decode_field(&mut self, tag: u64, content: &mut Decoder<'_>) -> Decoded<()> {
        match tag {
            1 => self.number = content.varint()?,
            2 => self.entries = content.varint()?,
            3 => self.tombstones = content.varint()?,
            4 => self.data_blocks = content.varint()?,
            5 => self.key_bytes = content.varint()?,
            6 => self.value_bytes = content.varint()?,
            7 => self.smallest = content.take(content.remaining())?.into(),
            8 => self.largest = content.take(content.remaining())?.into(),
            9 => self.smallest_seqno = content.varint()?,
            10 => self.largest_seqno = content.varint()?,
            11 => self.largest_block = content.varint_u32()?,
            12 => self.compression = content.varint()?,
            13 => self.block_size = content.varint_u32()?,
            14 => self.seed = content.varint()?,
            15 => self.filter_policy = content.varint()?,
            16 => self.filter_millibits = content.varint_u32()?,
            17 => self.filter_keys = content.varint()?,
            18 => self.keyspace = content.varint_u32()?,
            19 => self.keys = content.varint()?,
            FILTER_HASH => self.filter_hash = Some(content.u64()?),
            REFERENCES => self.references = References::decode(content)?,
            DEADLINES => self.deadlines = Deadlines::decode(content)?,
            OPERANDS => self.operands = content.varint()?,
            UNNUMBERED => self.is_unnumbered = content.varint()? == 1,
            RANGE_FILTER => self.range_filter = Some(RangeFilterRequest::decode(content)?),
            EXTRAS => self.extras = Extras::decode(content)?,
            _ => self.ranges = content.varint()?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Properties {
        Properties {
            number: 12,
            entries: 100,
            keys: 90,
            tombstones: 3,
            operands: 2,
            references: References::default(),
            deadlines: Deadlines { count: 30, first: 5, quarter: 1 << 41, last: u64::MAX },
            ranges: 3,
            is_unnumbered: true,
            data_blocks: 4,
            key_bytes: 1000,
            value_bytes: 9000,
            smallest: b"".as_slice().into(),
            largest: b"z\xff".as_slice().into(),
            smallest_seqno: 5,
            largest_seqno: 1 << 55,
            largest_block: 4091,
            compression: 1,
            block_size: 4096,
            seed: u64::MAX,
            filter_policy: 1,
            filter_millibits: 10_000,
            filter_keys: 90,
            filter_hash: Some(0x1234_5678_9abc_def0),
            range_filter: Some(RangeFilterRequest { millibits: 12_000, rates: RangeRates::of(1_400_000, 1) }),
            extras: Extras::default().with(1, 70_000),
            keyspace: 7,
        }
    }

    #[test]
    fn properties_round_trip() {
        assert_eq!(Properties::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn unknown_properties_are_skipped() {
        let mut bytes = sample().encode();
        put_field(&mut bytes, 99, b"of a later version");
        put_field(&mut bytes, 0, b"");
        assert_eq!(Properties::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn missing_and_repeated_properties_are_refused() {
        let bytes = sample().encode();
        let mut fields = Decoder::new(&bytes);
        while !fields.is_empty() {
            let start = bytes.len() - fields.remaining();
            fields.field().unwrap();
            let end = bytes.len() - fields.remaining();
            let without = [&bytes[..start], &bytes[end..]].concat();
            let is_mandatory = u64::from(bytes[start]) < FILTER_HASH;
            assert_eq!(Properties::decode(&without).is_err(), is_mandatory);
            let twice = [&bytes[..], &bytes[start..end]].concat();
            assert!(Properties::decode(&twice).is_err());
        }
    }

    proptest! {
        #[test]
        fn decoding_damaged_properties_never_panics(at: prop::sample::Index, to: u8) {
            let mut bytes = sample().encode();
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _ = Properties::decode(&bytes);
            let _ = Properties::decode(&bytes[at..]);
        }
    }
}
