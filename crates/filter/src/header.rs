//! The filter block: a header that describes itself, then the lines.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `FLT1` |
//! | 4 | 1 | format version, 1 |
//! | 5 | 1 | policy, below |
//! | 6 | 1 | hash (`hasher`): 1 XXH3, 2 SipHash-1-3, 3 Murmur3, 255 named below; 1 in every table |
//! | 7 | 1 | flags: 1 whole user keys, 2 also the keys' prefixes; 4 (salted) is reserved |
//! | 8 | 8 | seed of the hash |
//! | 16 | 8 | number of keys, below |
//! | 24 | 4 | requested bits per key, in thousandths (policy 4: bits of a fingerprint) |
//! | 28 | 1 | k, the probes per key, 1 to 32 (policy 4: 3) |
//! | 29 | 1 | number of groups (policy 1) |
//! | 30 | 2 | prefix extractor, below; 0 without flag 2 |
//! | 32 | 8 | policy 1: probes per group, zeros after the last; policy 4: shape, below |
//! | 40 | 8 | number of lines, 1 to 2^28; policy 4: the lines that its slots take |
//! | 48 | 8 | XXH3 with 64 bits, seed 0, of all that follows the header |
//! | 56 | 4 | false-positive rate of these bits, in parts per 10^9 |
//! | 60 | 4 | CRC-32 of bytes 0..60, not bound to file and offset |
//! | 64 | 64 | with hash 255 only: its name, UTF-8 without a zero byte, then zeros |
//! | then | 64 per line | the lines; `split`, `standard` and `fuse` say where a key's bits are |
//!
//! | policy | filter |
//! |---|---|
//! | 0 | always "maybe": the builder gave the filter up |
//! | 1 | split-line Bloom |
//! | 2 | standard Bloom, alone only: in a table it is not trusted |
//! | 4 | binary fuse |
//! | 255 | no keys: always "no" |
//! | 3, 5 | reserved |
//!
//! The shape of a binary fuse:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 32 | 1 | r, the bits of a fingerprint: 4 to 8, 10, 12 or 16 |
//! | 33 | 1 | s: a segment has 2^s slots, 2 to 18 |
//! | 34 | 1 | attempt, 0 to 99 |
//! | 35 | 4 | number of segments, at least 3 |
//! | 39 | 1 | xor of the seven bytes before |
//!
//! Prefix extractor: 0x1000 + n, the first n bytes, 1 to 4095; 0x2000 + b, up to and including the
//! first byte b.
//!
//! The number of keys counts distinct keys and prefixes. In a table's block with lines it is never
//! 0, and in policy 4 at most one per slot. In a stand-alone Bloom filter it is always 0.
//!
//! A Bloom filter replaces a binary fuse if there are few keys, or if they found no slots. The
//! policy is then 1, and the bits per key are r / ln 2, which have the rate of the fuse. Policies 0
//! and 255 have no lines, probes or groups. 255 is the only way to say "no" to every key; its
//! number of keys is 0. A block that breaks any of these rules is not trusted: its reader answers
//! "maybe".

use xxhash_rust::xxh3::xxh3_64;

use super::fuse::{self, FuseShape};
use super::hasher::HashFunction;
use super::layout::Layout;
use super::line::{Fill, LINE_LEN, ReadLine};
use super::sizing::{MAX_LINES, MAX_PROBES};
use super::split::Groups;
use crate::PrefixExtractor;
use tamis_base::error::{Error, Result};
use tamis_base::format::checksum::crc;
use tamis_base::format::coding::{Decoder, get_u32, put_u16, put_u32, put_u64, set_u32, set_u64, u64_bytes};
use tamis_base::format::{Decoded, Malformed};

/// Length of the header. Part of the format.
pub(super) const HEADER_LEN: usize = 64;
pub(super) const MAGIC: [u8; 4] = *b"FLT1";
const VERSION: u8 = 1;
/// The policy of a binary fuse. Part of the format.
pub(super) const FUSE: u8 = 4;
const FLAG_WHOLE_KEYS: u8 = 1;
const FLAG_PREFIXES: u8 = 2;
/// The number of a hash that has a name instead.
const NAMED_HASH: u8 = 255;
/// Longest name of a hash, and the bytes that a name takes: as many as a line, so that the lines of
/// a mapped file stay aligned. Part of the format.
pub(super) const NAME_LEN: usize = LINE_LEN;

/// The contents of a filter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilterContent {
    /// Nothing usable: the builder gave the filter up.
    AlwaysMaybe,
    /// No keys.
    Empty,
    /// Bits of a Bloom filter, in lines.
    Lines(Layout),
    /// Fingerprints in lines.
    Fuse(FuseShape),
}

impl FilterContent {
    /// The policy number. Part of the format.
    pub(super) fn policy_id(self) -> u8 {
        match self {
            FilterContent::AlwaysMaybe => 0,
            FilterContent::Lines(Layout::Split(_)) => 1,
            FilterContent::Lines(Layout::Standard { .. }) => 2,
            FilterContent::Fuse(_) => FUSE,
            FilterContent::Empty => 255,
        }
    }

    fn decode(policy: u8, probes: u8, (group_count, groups): (u8, [u8; 8])) -> Decoded<FilterContent> {
        let content = match policy {
            0 => FilterContent::AlwaysMaybe,
            1 => FilterContent::Lines(Layout::Split(Groups::decode(groups, group_count, probes)?)),
            2 => FilterContent::Lines(Layout::Standard { probes }),
            FUSE => FilterContent::Fuse(FuseShape::decode(groups)?),
            255 => FilterContent::Empty,
            _ => return Err(Malformed("the filter's policy is unknown")),
        };
        if content.probes() != probes || content.groups() != (group_count, groups) {
            return Err(Malformed("the filter's probes do not fit its policy"));
        }
        Ok(content)
    }

    /// Refuses numbers of lines and keys that such a filter does not have.
    fn check_counts(self, lines: u64, keys: u64) -> Decoded<()> {
        let rules: &[(bool, &str)] = match self {
            FilterContent::AlwaysMaybe => &[(lines == 0, "the filter has lines, but its policy has none")],
            FilterContent::Empty => &[
                (lines == 0, "the filter has lines, but its policy has none"),
                (keys == 0, "the filter is marked as empty, but counts keys"),
            ],
            FilterContent::Lines(layout) => &[
                ((1..=MAX_PROBES).contains(&layout.probes().into()), "the filter does not have 1 to 32 probes"),
                ((1..=MAX_LINES).contains(&lines), "the filter does not have 1 to 2^28 lines"),
            ],
            FilterContent::Fuse(shape) => &[
                ((1..=MAX_LINES).contains(&lines), "the filter does not have 1 to 2^28 lines"),
                (shape.line_count() == lines, "the filter's number of lines does not fit its slots"),
                (keys <= shape.slots(), "the filter has more keys than slots"),
            ],
        };
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Malformed(rule)),
            None => Ok(()),
        }
    }

    fn probes(self) -> u8 {
        match self {
            FilterContent::AlwaysMaybe | FilterContent::Empty => 0,
            FilterContent::Lines(layout) => layout.probes(),
            FilterContent::Fuse(_) => fuse::ARITY,
        }
    }

    fn groups(self) -> (u8, [u8; 8]) {
        match self {
            FilterContent::Lines(Layout::Split(groups)) => (groups.count(), groups.encode()),
            FilterContent::Fuse(shape) => (0, shape.encode()),
            _ => (0, [0; 8]),
        }
    }
}

/// The header, without the size and the checks of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterHeader<'h> {
    pub(super) content: FilterContent,
    /// Name of the hash, for which [`is_name`] holds.
    pub(super) hash: &'h str,
    pub(super) seed: u64,
    /// Distinct keys and prefixes.
    pub(super) keys: u64,
    /// Requested bits per key, in thousandths.
    pub(super) millibits: u32,
    /// The extractor of the prefixes that the filter holds beside the keys.
    pub(super) prefixes: Option<PrefixExtractor>,
}

impl FilterHeader<'_> {
    /// The name of the hash, if that has no number.
    fn name(&self) -> Option<[u8; NAME_LEN]> {
        if HashFunction::from_name(self.hash).is_some() {
            return None;
        }
        let mut name = [0; NAME_LEN];
        name.iter_mut().zip(self.hash.bytes()).for_each(|(to, byte)| *to = byte);
        Some(name)
    }
}

/// Whether a hash may be called `name`.
fn is_name(name: &str) -> bool {
    (1..=NAME_LEN).contains(&name.len()) && !name.contains('\0')
}

/// Refuses a hash that a header cannot name.
pub(super) fn check_name(name: &str) -> Result<()> {
    if is_name(name) {
        Ok(())
    } else {
        Err(Error::invalid(format_args!("the name of a hash has 1 to 64 bytes, none of them 0, unlike {name:?}")))
    }
}

/// Encodes a whole block: header and lines.
pub(super) fn encode<L: ReadLine>(header: &FilterHeader, lines: &[L]) -> Vec<u8> {
    let name = header.name();
    let mut block = Vec::with_capacity(HEADER_LEN + (lines.len() + 1) * LINE_LEN);
    let (group_count, groups) = header.content.groups();
    let flags = FLAG_WHOLE_KEYS | header.prefixes.map_or(0, |_| FLAG_PREFIXES);
    let extractor = header.prefixes.map_or(0, PrefixExtractor::code);
    let hash = HashFunction::from_name(header.hash).map_or(NAMED_HASH, HashFunction::id);
    block.extend_from_slice(&MAGIC);
    block.extend_from_slice(&[VERSION, header.content.policy_id(), hash, flags]);
    put_u64(&mut block, header.seed);
    put_u64(&mut block, header.keys);
    put_u32(&mut block, header.millibits);
    block.extend_from_slice(&[header.content.probes(), group_count]);
    put_u16(&mut block, extractor);
    block.extend_from_slice(&groups);
    put_u64(&mut block, lines.len() as u64);
    block.resize(HEADER_LEN, 0);
    block.extend(name.into_iter().flatten());
    for line in lines {
        block.extend_from_slice(&line.encode());
    }
    let hash = xxh3_64(&block[HEADER_LEN..]);
    set_u64(&mut block, 48, hash);
    set_u32(&mut block, 56, rate_of(header, lines));
    let checksum = crc(&block[..60]);
    set_u32(&mut block, 60, checksum);
    block
}

/// How many bytes [`encode`] returns for `lines` lines and a hash of this name.
pub(super) fn encoded_len(lines: u64, hash: &str) -> u64 {
    let name = if HashFunction::from_name(hash).is_some() { 0 } else { NAME_LEN as u64 };
    HEADER_LEN as u64 + name + lines * LINE_LEN as u64
}

/// The exact false-positive rate of these bits, in parts per 10^9, as the header states it.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is 0 to 1")]
pub(super) fn rate_of<L: ReadLine>(header: &FilterHeader, lines: &[L]) -> u32 {
    let rate = match header.content {
        FilterContent::AlwaysMaybe => 1.0,
        FilterContent::Empty => 0.0,
        FilterContent::Lines(layout) => layout.exact_fpr(&Fill::of(lines)),
        FilterContent::Fuse(shape) => shape.fpr(),
    };
    (rate * 1e9).round() as u32
}

/// The rate that a block's header states; 0 if the block is shorter than its header.
pub(super) fn stated_rate(block: &[u8]) -> u32 {
    let field = block.get(56..60).and_then(|field| field.first_chunk());
    field.map_or(0, get_u32)
}

/// Checks a whole block and returns the header and the bytes of the lines. The error names the
/// broken rule.
pub(super) fn decode(block: &[u8]) -> Decoded<(FilterHeader<'_>, &[[u8; LINE_LEN]])> {
    let Some((header, payload)) = block.split_first_chunk::<HEADER_LEN>() else {
        return Err(Malformed("the filter block is shorter than its header"));
    };
    let mut fields = verified(header)?;
    let (policy, hash_id, flags) = (fields.u8()?, fields.u8()?, fields.u8()?);
    let (seed, keys, millibits) = (fields.u64()?, fields.u64()?, fields.u32()?);
    let (probes, group_count, extractor) = (fields.u8()?, fields.u8()?, fields.u16()?);
    let groups = u64_bytes(fields.u64()?);
    let (line_count, payload_hash) = (fields.u64()?, fields.u64()?);
    let (hash, body) = match HashFunction::from_id(hash_id) {
        Some(function) => (function.name(), payload),
        None if hash_id == NAMED_HASH => decode_name(payload)?,
        None => return Err(Malformed("the filter uses an unknown hash")),
    };
    let prefixes = match (flags.checked_sub(FLAG_WHOLE_KEYS), extractor) {
        (Some(0), 0) => None,
        (Some(FLAG_PREFIXES), code) => {
            let extractor = PrefixExtractor::from_code(code);
            Some(extractor.ok_or(Malformed("the filter's prefix extractor is unknown"))?)
        }
        _ => return Err(Malformed("the filter's flags and extractor are not those of keys, or of keys and prefixes")),
    };
    let content = FilterContent::decode(policy, probes, (group_count, groups))?;
    content.check_counts(line_count, keys)?;
    let (lines, rest) = body.as_chunks::<LINE_LEN>();
    if lines.len() as u64 != line_count || !rest.is_empty() {
        return Err(Malformed("the filter's length does not match its number of lines"));
    }
    if xxh3_64(payload) != payload_hash {
        return Err(Malformed("the hash of the filter's lines does not match"));
    }
    let header = FilterHeader { content, hash, seed, keys, millibits, prefixes };
    Ok((header, lines))
}

/// The name of a hash, and what follows it.
fn decode_name(payload: &[u8]) -> Decoded<(&str, &[u8])> {
    let (name, rest) = payload.split_first_chunk::<NAME_LEN>().ok_or(Malformed("the filter lacks its hash's name"))?;
    let len = name.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let name = std::str::from_utf8(&name[..len]).unwrap_or_default();
    // Each function has one form in a header.
    if !is_name(name) || HashFunction::from_name(name).is_some() {
        return Err(Malformed("the name of the filter's hash is none, or that of a hash with a number"));
    }
    Ok((name, rest))
}

/// Length of the block that begins with this header: how much to read from a stream.
pub(super) fn block_len(header: &[u8; HEADER_LEN]) -> Decoded<u64> {
    let mut fields = verified(header)?;
    fields.take(1)?;
    let name = if fields.u8()? == NAMED_HASH { NAME_LEN as u64 } else { 0 };
    fields.take(33)?;
    match fields.u64()? {
        lines @ 0..=MAX_LINES => Ok(HEADER_LEN as u64 + name + lines * LINE_LEN as u64),
        _ => Err(Malformed("the filter does not have 1 to 2^28 lines")),
    }
}

/// Checks a header's magic, version and checksum. The decoder it returns is at the next field.
fn verified(header: &[u8; HEADER_LEN]) -> Decoded<Decoder<'_>> {
    let mut fields = Decoder::new(header);
    if fields.take(MAGIC.len())? != MAGIC {
        return Err(Malformed("the filter block lacks its magic bytes"));
    }
    if fields.u8()? != VERSION {
        return Err(Malformed("the filter block is of an unknown version"));
    }
    if Decoder::new(&header[60..]).u32()? != crc(&header[..60]) {
        return Err(Malformed("the checksum of the filter's header does not match"));
    }
    Ok(fields)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::line::FilterLine;
    use super::*;

    /// Recomputes the header's CRC and the hash of the lines, if the block has a whole header.
    pub(crate) fn seal(block: &mut [u8]) {
        if block.len() >= HEADER_LEN {
            let hash = xxh3_64(&block[HEADER_LEN..]);
            set_u64(block, 48, hash);
            let checksum = crc(&block[..60]);
            set_u32(block, 60, checksum);
        }
    }

    fn sample(content: FilterContent) -> Vec<u8> {
        let (keys, lines) = match content {
            FilterContent::Lines(_) => (3, &[FilterLine([5; 8]); 2][..]),
            FilterContent::Fuse(_) => (3, &[FilterLine([5; 8])][..]),
            _ => (0, &[][..]),
        };
        let header = FilterHeader { content, hash: "xxh3", seed: 9, keys, millibits: 10_000, prefixes: None };
        encode(&header, lines)
    }

    fn split() -> FilterContent {
        FilterContent::Lines(Layout::Split(Groups::for_probes(7)))
    }

    /// Three segments of 8 slots of 7 bits, from the second attempt.
    fn fuse() -> FilterContent {
        FilterContent::Fuse(FuseShape::decode([7, 3, 1, 3, 0, 0, 0, 6]).unwrap())
    }

    #[test]
    fn every_content_round_trips() {
        let standard = FilterContent::Lines(Layout::Standard { probes: 7 });
        for content in [FilterContent::AlwaysMaybe, FilterContent::Empty, split(), standard, fuse()] {
            let block = sample(content);
            let (header, lines) = decode(&block).unwrap();
            assert_eq!(header.content, content);
            assert_eq!((header.seed, header.millibits), (9, 10_000));
            assert_eq!(encode(&header, lines), block);
        }
    }

    fn named(name: &[u8]) -> Vec<u8> {
        let sample = sample(split());
        let header = FilterHeader { hash: "mine", ..decode(&sample).unwrap().0 };
        let mut block = encode(&header, &[FilterLine([5; 8]); 2]);
        block[HEADER_LEN..][..NAME_LEN].fill(0);
        block[HEADER_LEN..][..name.len()].copy_from_slice(name);
        seal(&mut block);
        block
    }

    #[test]
    fn a_hash_of_a_program_is_named_before_the_lines() {
        for name in ["m", "mine", "größe", &"n".repeat(NAME_LEN)] {
            let block = named(name.as_bytes());
            let (header, lines) = decode(&block).unwrap();
            assert_eq!((header.hash, lines.len(), block[6]), (name, 2, 255));
            assert_eq!(encode(&header, lines), block);
            assert_eq!(encoded_len(2, name), block.len() as u64);
            assert_eq!(block_len(block.first_chunk().unwrap()), Ok(block.len() as u64));
        }
        let rule = "the name of the filter's hash is none, or that of a hash with a number";
        for name in [&b""[..], b"a\0b", b"\0a", b"\xff", b"xxh3", b"murmur3", b"siphash13"] {
            assert_eq!(decode(&named(name)).map(|_| ()), Err(Malformed(rule)), "{name:?}");
        }
        let mut short = named(b"mine")[..HEADER_LEN + 10].to_vec();
        seal(&mut short);
        assert_eq!(decode(&short).map(|_| ()), Err(Malformed("the filter lacks its hash's name")));
        assert!(!is_name("") && !is_name("a\0") && !is_name(&"n".repeat(NAME_LEN + 1)) && is_name("n"));
    }

    #[test]
    fn each_rule_is_checked_behind_valid_checksums() {
        let (split, empty) = (sample(split()), sample(FilterContent::Empty));
        let (standard, fuse) = (sample(FilterContent::Lines(Layout::Standard { probes: 7 })), sample(fuse()));
        for (block, offset, value, rule) in [
            (&split, 0, b'f', "the filter block lacks its magic bytes"),
            (&split, 4, 2, "the filter block is of an unknown version"),
            (&split, 5, 3, "the filter's policy is unknown"),
            (&split, 5, 0, "the filter's probes do not fit its policy"),
            (&split, 5, 2, "the filter's probes do not fit its policy"),
            (&split, 5, 255, "the filter's probes do not fit its policy"),
            (&split, 6, 0, "the filter uses an unknown hash"),
            (&split, 6, 4, "the filter uses an unknown hash"),
            (&split, 7, 2, "the filter's flags and extractor are not those of keys, or of keys and prefixes"),
            (&split, 7, 3, "the filter's prefix extractor is unknown"),
            (&split, 7, 5, "the filter's flags and extractor are not those of keys, or of keys and prefixes"),
            (&split, 28, 6, "the filter's groups do not add up to its probes"),
            (&split, 29, 9, "the filter has more than 8 groups of probes"),
            (&split, 29, 1, "the filter has groups beyond their count"),
            (&split, 30, 1, "the filter's flags and extractor are not those of keys, or of keys and prefixes"),
            (&split, 32, 5, "a group of the filter does not have 1 to 4 probes"),
            (&split, 40, 0, "the filter does not have 1 to 2^28 lines"),
            (&split, 40, 3, "the filter's length does not match its number of lines"),
            (&split, 44, 1, "the filter does not have 1 to 2^28 lines"),
            (&standard, 28, 0, "the filter does not have 1 to 32 probes"),
            (&standard, 28, 33, "the filter does not have 1 to 32 probes"),
            (&standard, 29, 1, "the filter's probes do not fit its policy"),
            (&fuse, 5, 1, "the filter has groups beyond their count"),
            (&fuse, 16, 25, "the filter has more keys than slots"),
            (&fuse, 28, 4, "the filter's probes do not fit its policy"),
            (&fuse, 29, 1, "the filter's probes do not fit its policy"),
            (&fuse, 34, 2, "the check byte of the filter's shape does not match"),
            (&fuse, 40, 2, "the filter's number of lines does not fit its slots"),
            (&empty, 16, 1, "the filter is marked as empty, but counts keys"),
            (&empty, 28, 1, "the filter's probes do not fit its policy"),
            (&empty, 40, 1, "the filter has lines, but its policy has none"),
        ] {
            let mut block = block.clone();
            block[offset] = value;
            seal(&mut block);
            assert_eq!(decode(&block).map(|_| ()), Err(Malformed(rule)), "{offset}");
        }
    }

    #[test]
    fn checksums_and_length_are_checked() {
        let block = sample(split());
        let mut damaged = block.clone();
        damaged[20] ^= 1;
        let rule = "the checksum of the filter's header does not match";
        assert_eq!(decode(&damaged).map(|_| ()), Err(Malformed(rule)));
        let mut damaged = block.clone();
        damaged[100] ^= 1;
        let rule = "the hash of the filter's lines does not match";
        assert_eq!(decode(&damaged).map(|_| ()), Err(Malformed(rule)));
        let mut longer = block;
        longer.push(0);
        let rule = "the filter's length does not match its number of lines";
        assert_eq!(decode(&longer).map(|_| ()), Err(Malformed(rule)));
        let rule = "the filter block is shorter than its header";
        assert_eq!(decode(&longer[..63]).map(|_| ()), Err(Malformed(rule)));
        assert_eq!(decode(&[]).map(|_| ()), Err(Malformed(rule)));
    }
}
