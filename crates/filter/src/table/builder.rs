//! Makes a filter block from the hashes of a table's keys.

use super::hash_list::HashList;
use super::info::FilterInfo;
use super::reader::Filter;
use crate::fuse;
use crate::hash::KeyHash;
use crate::hasher::HashFunction;
use crate::header::{self, FilterContent, FilterHeader};
use crate::layout::Layout;
use crate::line::FilterLine;
use crate::sizing::{bloom_millibits, line_count, spent_millibits};
use crate::split::{self, Groups};
use crate::{FilterPolicy, PrefixExtractor};

/// Collects hashes, 8 bytes per key and prefix, and makes the block when their number is known.
/// Beyond the hashes and itself, a Bloom filter then takes no memory; `fuse` says what a binary
/// fuse takes.
pub struct FilterBuilder {
    policy: FilterPolicy,
    /// Those of its Bloom filter; `None` if the policy is no filter.
    groups: Option<Groups>,
    seed: u64,
    prefixes: Option<PrefixExtractor>,
    /// Hash of the prefix that was added last.
    last_prefix: Option<u64>,
    hashes: HashList,
    /// How many distinct ones a binary fuse found.
    distinct: Option<usize>,
    /// A hash under another seed was added: whatever the bits, they would deny that key.
    foreign: bool,
}

/// A finished filter.
#[derive(Debug)]
pub struct FilterBlock {
    /// The block as it goes to disk, without the trailer of a table's blocks.
    pub bytes: Vec<u8>,
    pub info: FilterInfo,
    /// Why the block answers "maybe" to every key, if the builder gave it up. To be reported: the
    /// fault is in this process or its memory.
    pub degraded: Option<&'static str>,
}

impl FilterBuilder {
    /// A builder without keys.
    pub fn new(policy: FilterPolicy, seed: u64) -> FilterBuilder {
        FilterBuilder {
            policy,
            groups: (policy != FilterPolicy::None).then(|| Groups::for_millibits(bloom_millibits(policy))),
            seed,
            prefixes: None,
            last_prefix: None,
            hashes: HashList::default(),
            distinct: None,
            foreign: false,
        }
    }

    /// Adds the prefixes of keys too, by `extractor`.
    pub fn with_prefixes(self, extractor: Option<PrefixExtractor>) -> FilterBuilder {
        FilterBuilder { prefixes: extractor, ..self }
    }

    /// Adds a key, whose hash is `hash`, and its prefix. In a table, keys with one prefix are
    /// adjacent: the prefix counts once.
    pub fn add_key(&mut self, key: &[u8], hash: KeyHash) {
        if self.groups.is_some()
            && let Some(prefix) = self.prefixes.and_then(|extractor| extractor.extract(key))
        {
            let prefix = KeyHash::of_prefix(self.seed, prefix).value();
            if self.last_prefix.replace(prefix) != Some(prefix) {
                self.hashes.push(prefix);
            }
        }
        self.add(hash);
    }

    /// Adds a key. In a table, versions of a key are adjacent: a hash equal to the previous one
    /// counts once.
    pub fn add(&mut self, hash: KeyHash) {
        if self.groups.is_none() {
            return;
        }
        self.foreign |= hash.seed() != self.seed;
        if self.hashes.last() != Some(hash.value()) {
            self.hashes.push(hash.value());
        }
    }

    /// Distinct keys and prefixes so far; 0 if the policy is no filter.
    pub fn key_count(&self) -> u64 {
        self.distinct.unwrap_or(self.hashes.len()) as u64
    }

    /// Bytes of memory that the builder takes, with those of the block that it will make.
    pub fn memory(&self) -> usize {
        let beside = FilterBuilder::memory_of(self.policy, self.hashes.len() as u64);
        self.hashes.memory() + usize::try_from(beside).unwrap_or(usize::MAX)
    }

    /// Bytes of memory that a filter of so many keys takes while it is built, beside their hashes
    /// of 8 bytes.
    pub fn memory_of(policy: FilterPolicy, keys: u64) -> u64 {
        let building = match policy {
            FilterPolicy::BinaryFuse { .. } => fuse::BYTES_PER_KEY as u64,
            _ => 0,
        };
        // The lines, the block, and the filter that verifies it.
        let finished = 3 * u128::from(policy.millibits()) * u128::from(keys) / 8000;
        keys.saturating_mul(building).saturating_add(u64::try_from(finished).unwrap_or(u64::MAX))
    }

    /// The block, or `None` if the policy is no filter.
    pub fn finish(mut self) -> Option<FilterBlock> {
        let groups = self.groups?;
        let block = match self.policy {
            FilterPolicy::BinaryFuse { fingerprint_bits } => self.encode_fuse(fingerprint_bits),
            _ => None,
        };
        let block = block.unwrap_or_else(|| self.encode(groups));
        Some(self.verified(block))
    }

    /// `None` if there are too few keys for a binary fuse, or every attempt fails.
    fn encode_fuse(&mut self, fingerprint_bits: u8) -> Option<Vec<u8>> {
        let hashes = self.hashes.sorted();
        self.distinct = Some(hashes.len());
        if hashes.len() < fuse::MIN_KEYS {
            return None;
        }
        let (shape, lines) = fuse::build(fingerprint_bits, &hashes)?;
        Some(header::encode(&self.header(FilterContent::Fuse(shape)), &lines))
    }

    fn header(&self, content: FilterContent) -> FilterHeader<'static> {
        let millibits = match content {
            FilterContent::Lines(_) => bloom_millibits(self.policy),
            _ => self.policy.millibits(),
        };
        let (hash, keys) = (HashFunction::Xxh3.name(), self.key_count());
        FilterHeader { content, hash, seed: self.seed, keys, millibits, prefixes: self.prefixes }
    }

    fn encode(&self, groups: Groups) -> Vec<u8> {
        if self.hashes.len() == 0 {
            return header::encode::<FilterLine>(&self.header(FilterContent::Empty), &[]);
        }
        let count = line_count(self.key_count(), spent_millibits(bloom_millibits(self.policy)));
        let mut lines: Vec<FilterLine> = (0..count).map(|_| FilterLine::default()).collect();
        for hash in self.hashes.iter() {
            split::insert(groups, &mut lines[..], hash);
        }
        header::encode(&self.header(FilterContent::Lines(Layout::Split(groups))), &lines)
    }

    /// Opens the block as a reader does, asks it for every key, and gives it up if it denies one: a
    /// filter that denies a key loses it.
    fn verified(&self, bytes: Vec<u8>) -> FilterBlock {
        let filter = Filter::open(&bytes, self.seed);
        let holds_all = || {
            let mut hashes = self.hashes.iter();
            hashes.all(|hash| filter.may_contain(KeyHash::from_value(self.seed, hash)))
        };
        let fault = if self.foreign {
            Some("a key was hashed under another seed than the filter's")
        } else if let Some(rule) = filter.degraded() {
            Some(rule)
        } else if !holds_all() {
            Some("the finished filter denied one of its keys")
        } else {
            None
        };
        match (fault, filter.info()) {
            (None, Some(info)) => FilterBlock { info: info.clone(), bytes, degraded: None },
            (fault, _) => {
                let header = self.header(FilterContent::AlwaysMaybe);
                FilterBlock {
                    bytes: header::encode::<FilterLine>(&header, &[]),
                    info: FilterInfo::new(&header, &[]),
                    degraded: fault,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::HEADER_LEN;
    use crate::header::tests::seal;

    fn builder(keys: u64) -> FilterBuilder {
        let mut builder = FilterBuilder::new(FilterPolicy::DEFAULT, 0);
        for key in 0..keys {
            builder.add(KeyHash::new(0, &key.to_be_bytes()));
        }
        builder
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn policy_none_has_no_block() {
        let mut builder = FilterBuilder::new(FilterPolicy::None, 0);
        builder.add(KeyHash::new(0, b"key"));
        assert_eq!(builder.key_count(), 0);
        assert!(builder.finish().is_none());
    }

    #[test]
    fn adjacent_duplicates_count_once() {
        let mut builder = builder(0);
        for key in [b"a", b"a", b"b", b"b", b"b", b"c"] {
            builder.add(KeyHash::new(0, key));
        }
        assert_eq!(builder.key_count(), 3);
        assert_eq!(builder.finish().unwrap().info.keys, 3);
    }

    #[test]
    fn prefixes_count_once_and_are_no_keys() {
        let extractor = PrefixExtractor::UpTo(b':');
        for policy in [FilterPolicy::Bloom { bits_per_key: 24.0 }, FilterPolicy::BinaryFuse { fingerprint_bits: 16 }] {
            let mut builder = FilterBuilder::new(policy, 5).with_prefixes(Some(extractor));
            let key = |i: u32| format!("{:05}:{}", i / 3, i % 3);
            for i in 0..12_000 {
                // Two versions each.
                builder.add_key(key(i).as_bytes(), KeyHash::new(5, key(i).as_bytes()));
                builder.add_key(key(i).as_bytes(), KeyHash::new(5, key(i).as_bytes()));
            }
            builder.add_key(b"none", KeyHash::new(5, b"none"));
            assert_eq!(builder.key_count(), 12_000 + 4_000 + 1);
            let block = builder.finish().unwrap();
            assert_eq!((block.degraded, block.info.keys), (None, 16_001));
            assert_eq!((block.bytes[7], &block.bytes[30..32]), (3, &[b':', 0x20][..]));
            let filter = Filter::open(&block.bytes, 5);
            assert_eq!(filter.prefixes(), Some(extractor));
            let prefixes = (0..4000).map(|i| format!("{i:05}:"));
            assert!(prefixes.clone().all(|prefix| filter.may_contain(KeyHash::of_prefix(5, prefix.as_bytes()))));
            // As keys they are absent.
            let passed = prefixes.filter(|prefix| filter.may_contain(KeyHash::new(5, prefix.as_bytes()))).count();
            assert!(passed < 5, "{passed}");
            assert!((0..12_000).all(|i| !filter.denies(key(i).as_bytes(), KeyHash::new(5, key(i).as_bytes()))));
        }
    }

    #[test]
    fn a_filter_of_keys_alone_knows_no_prefixes() {
        let block = builder(100).finish().unwrap();
        let filter = Filter::open(&block.bytes, 0);
        assert_eq!(filter.prefixes(), None);
        let degraded = Filter::open(&block.bytes[..100], 0);
        assert_eq!(degraded.prefixes(), None);
    }

    #[test]
    fn golden_block_of_a_hundred_keys() {
        let block = builder(100).finish().unwrap();
        assert_eq!(block.degraded, None);
        let payload = &block.bytes[HEADER_LEN..];
        let ones: u32 = payload.iter().map(|byte| byte.count_ones()).sum();
        assert_eq!((payload.len(), ones), (128, 516));
        assert_eq!(
            payload[..16],
            [0x03, 0x23, 0x4f, 0x18, 0xaf, 0x49, 0xc7, 0x08, 0x86, 0xa2, 0xc7, 0x33, 0x3e, 0x39, 0x54, 0xc8]
        );
        let fields = [
            "464c5431",         // magic
            "01010101",         // version, policy, hash, flags
            "0000000000000000", // seed
            "6400000000000000", // keys
            "10270000",         // thousandths of bits per key
            "07020000",         // probes, groups, extractor
            "0403000000000000", // probes per group
            "0200000000000000", // lines
            "a7d00e0ea0a7b18d", // hash of the lines
            "284f7e00",         // rate, 0.0082778
            "116fd991",         // CRC
        ];
        assert_eq!(hex(&block.bytes[..HEADER_LEN]), fields.concat());
    }

    #[test]
    fn golden_block_of_no_keys() {
        let block = builder(0).finish().unwrap();
        let fields = [
            "464c543101ff0101",                 // magic, version, policy, hash, flags
            "00000000000000000000000000000000", // seed, keys
            "1027000000000000",                 // thousandths of bits per key, no probes
            "00000000000000000000000000000000", // groups, lines
            "c294d3380580062d",                 // hash of nothing
            "000000004f00c701",                 // rate, CRC
        ];
        assert_eq!(hex(&block.bytes), fields.concat());
        assert_eq!(block.info.expected_fpr, 0.0);
    }

    #[test]
    fn a_block_that_denies_a_key_is_given_up() {
        let builder = builder(100);
        let groups = builder.groups.unwrap();
        let good = builder.encode(groups);
        for bit in HEADER_LEN * 8..good.len() * 8 {
            let mut bytes = good.clone();
            let mask = 1 << (bit % 8);
            if bytes[bit / 8] & mask == 0 {
                continue;
            }
            bytes[bit / 8] &= !mask;
            seal(&mut bytes);
            let block = builder.verified(bytes);
            let reason = "the finished filter denied one of its keys";
            assert_eq!(block.degraded, Some(reason));
            assert_eq!((block.info.policy_id, block.info.expected_fpr), (0, 1.0));
            let filter = Filter::open(&block.bytes, 0);
            assert_eq!(filter.degraded(), Some("the filter was given up when it was built"));
            assert!(filter.info().is_none());
            assert!(filter.may_contain(KeyHash::new(0, b"any")));
        }
        assert_eq!(builder.verified(good).degraded, None);
    }

    #[test]
    fn a_block_that_does_not_verify_is_given_up() {
        let builder = builder(100);
        let mut bytes = builder.encode(builder.groups.unwrap());
        bytes[80] ^= 1;
        let block = builder.verified(bytes);
        assert_eq!(block.degraded, Some("the hash of the filter's lines does not match"));
    }

    #[test]
    fn a_hash_under_another_seed_gives_the_filter_up() {
        let mut builder = builder(100);
        builder.add(KeyHash::new(5, b"key"));
        let block = builder.finish().unwrap();
        assert!(block.degraded.is_some());
        assert!(Filter::open(&block.bytes, 0).may_contain(KeyHash::new(0, b"key")));
    }
}
