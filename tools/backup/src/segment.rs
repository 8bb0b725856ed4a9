//! [`Segment`]: batches of the change feed, as a repository keeps them between generations.
//!
//! ```text
//! segment = "tamislog", version 1: u32, timeline: u64, batch*, hash: u64
//! batch   = time: u64, first: u64, last: u64, length: u32, what `ChangeBatch::encoded` returns
//! ```
//!
//! Integers are little endian. Times are milliseconds since 1970 and do not decrease. The hash is
//! XXH3 (64 bits, seed 0) of all before it. A *timeline* is a random number, drawn by one follower
//! for batches without a gap: each segment begins with the number after the one before it, and
//! generations of the same timeline state the store at some of these numbers. The name of a segment
//! has its timeline, its first and last number, and its last time.

use std::collections::BTreeMap;

use tamis::{Result, SeqNo};
use xxhash_rust::xxh3::xxh3_64;

use crate::journal::read_small;
use crate::record::Generation;
use crate::storage::{Storage, Take};
use crate::{LOG, damaged};

const MAGIC: &[u8; 8] = b"tamislog";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 8 + 4 + 8;
const HASH_LEN: usize = 8;
/// The longest batch, and what a segment may have before it.
const MAX_LEN: usize = (1 << 31) + (64 << 20);

/// A segment that is being filled.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) id: SegmentId,
    bytes: Vec<u8>,
}

/// What the name of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentId {
    pub(crate) timeline: u64,
    pub(crate) first: SeqNo,
    pub(crate) last: SeqNo,
    /// Time of the last batch.
    pub(crate) until: u64,
}

/// A batch in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredBatch<'a> {
    pub(crate) time: u64,
    pub(crate) first: SeqNo,
    pub(crate) last: SeqNo,
    pub(crate) encoded: &'a [u8],
}

impl Segment {
    /// A segment of batches after number `since`.
    pub(crate) fn new(timeline: u64, since: SeqNo) -> Segment {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&timeline.to_le_bytes());
        Segment { id: SegmentId { timeline, first: since + 1, last: since, until: 0 }, bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() == HEADER_LEN
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a batch; `false` if it does not follow the last one.
    pub(crate) fn add(&mut self, batch: StoredBatch<'_>) -> bool {
        let Ok(len) = u32::try_from(batch.encoded.len()) else { return false };
        if batch.first != self.id.last + 1 || batch.last < batch.first || batch.time < self.id.until {
            return false;
        }
        for number in [batch.time, batch.first, batch.last] {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(batch.encoded);
        (self.id.last, self.id.until) = (batch.last, batch.time);
        true
    }

    /// Gives its content to `put`.
    pub(crate) fn write(&self, put: &mut Take<'_>) -> Result<()> {
        put(&self.bytes)?;
        put(&xxh3_64(&self.bytes).to_le_bytes())
    }
}

impl SegmentId {
    pub(crate) fn name(&self) -> String {
        let SegmentId { timeline, first, last, until } = self;
        format!("{LOG}/{timeline:016x}-{first:020}-{last:020}-{until:016}")
    }

    pub(crate) fn parse(name: &str) -> Option<SegmentId> {
        let mut parts = name.strip_prefix(LOG)?.strip_prefix('/')?.split('-');
        let timeline = u64::from_str_radix(parts.next()?, 16).ok()?;
        let mut number = || parts.next()?.parse().ok();
        let id = SegmentId { timeline, first: number()?, last: number()?, until: number()? };
        (id.first <= id.last && id.name() == name).then_some(id)
    }

    /// Reads the segment, and checks all of it.
    pub(crate) fn read(&self, storage: &dyn Storage) -> Result<Vec<u8>> {
        let name = self.name();
        let bytes = read_small(storage, &name, MAX_LEN)?;
        let fail = |rule| damaged(storage, &name, rule);
        let (content, hash) = bytes.split_last_chunk::<HASH_LEN>().ok_or_else(|| fail("it is cut short"))?;
        if u64::from_le_bytes(*hash) != xxh3_64(content) {
            return Err(fail("its hash does not match"));
        }
        let header = [MAGIC, &VERSION.to_le_bytes()[..], &self.timeline.to_le_bytes()].concat();
        if !content.starts_with(&header) {
            return Err(fail("it is no segment of a known version, or of another timeline"));
        }
        let mut end = SegmentId { last: self.first.wrapping_sub(1), until: 0, ..*self };
        let mut batches = batches(&bytes);
        for batch in &mut batches {
            let is_next = batch.first == end.last.wrapping_add(1) && batch.last >= batch.first;
            if !is_next || batch.time < end.until {
                return Err(fail("a batch does not follow the one before it"));
            }
            (end.last, end.until) = (batch.last, batch.time);
        }
        match batches.rest.is_empty() && end == *self {
            true => Ok(bytes),
            false => Err(fail("it does not hold the batches that its name says")),
        }
    }
}

/// The batches in a segment that [`SegmentId::read`] has returned.
pub(crate) fn batches(segment: &[u8]) -> Batches<'_> {
    let end = segment.len().saturating_sub(HASH_LEN);
    Batches { rest: segment.get(HEADER_LEN..end).unwrap_or_default() }
}

/// Ends before what is no batch.
pub(crate) struct Batches<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Batches<'a> {
    type Item = StoredBatch<'a>;

    fn next(&mut self) -> Option<StoredBatch<'a>> {
        let mut rest = self.rest;
        let mut number = || {
            let (number, after) = rest.split_first_chunk()?;
            rest = after;
            Some(u64::from_le_bytes(*number))
        };
        let (time, first, last) = (number()?, number()?, number()?);
        let (len, after) = rest.split_first_chunk()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        let (encoded, after) = after.split_at_checked(len)?;
        self.rest = after;
        Some(StoredBatch { time, first, last, encoded })
    }
}

/// The segments of a repository, by timeline, in order.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    timelines: BTreeMap<u64, Vec<SegmentId>>,
}

/// The segments that follow a generation without a gap.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chain<'a> {
    pub(crate) segments: &'a [SegmentId],
    /// The number that is missing after them, if there are later segments.
    pub(crate) missing: Option<SeqNo>,
}

impl Segments {
    pub(crate) fn list(storage: &dyn Storage) -> Result<Segments> {
        let ids = storage.list(LOG)?;
        Ok(ids.iter().filter_map(|listed| SegmentId::parse(&listed.name)).collect())
    }

    /// The segments with writes after a generation.
    pub(crate) fn after(&self, generation: &Generation) -> Chain<'_> {
        let all = match generation.timeline {
            0 => &[],
            timeline => self.timelines.get(&timeline).map_or(&[][..], Vec::as_slice),
        };
        let later = &all[all.partition_point(|segment| segment.last <= generation.seqno)..];
        let mut next = generation.seqno + 1;
        let mut count = 0;
        for segment in later {
            // The first one may begin before the generation.
            if segment.first > next || count > 0 && segment.first < next {
                break;
            }
            (next, count) = (segment.last + 1, count + 1);
        }
        Chain { segments: &later[..count], missing: (count < later.len()).then_some(next) }
    }
}

impl FromIterator<SegmentId> for Segments {
    fn from_iter<I: IntoIterator<Item = SegmentId>>(ids: I) -> Segments {
        let mut timelines: BTreeMap<u64, Vec<SegmentId>> = BTreeMap::new();
        ids.into_iter().for_each(|id| timelines.entry(id.timeline).or_default().push(id));
        timelines.values_mut().for_each(|segments| segments.sort_unstable());
        Segments { timelines }
    }
}

impl Chain<'_> {
    /// The last time and number that can be reached from a generation.
    pub(crate) fn end(&self, generation: &Generation) -> (u64, SeqNo) {
        let created = crate::record::millis(generation.time);
        self.segments.last().map_or((created, generation.seqno), |last| (last.until.max(created), last.last))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::record::Standing;
    use crate::record::StoreId;

    fn id(first: SeqNo, last: SeqNo) -> SegmentId {
        SegmentId { timeline: 7, first, last, until: 1_764_035_797_123 }
    }

    fn generation(timeline: u64, seqno: SeqNo) -> Generation {
        Generation {
            number: 1,
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(5),
            seqno,
            flushed_seqno: 0,
            files: Vec::new(),
            store: StoreId(1),
            path: String::new(),
            keyspace: None,
            token: 0,
            standing: Standing::default(),
            timeline,
        }
    }

    #[test]
    fn names_come_back_and_others_are_no_segments() {
        let name = id(12, 15).name();
        assert_eq!(SegmentId::parse(&name), Some(id(12, 15)));
        let others = ["log/", "log/x", "gen/00000001", &name[1..], &format!("{name}0"), &format!("{name}-1")];
        for other in others.into_iter().chain([id(15, 12).name().as_str()]) {
            assert_eq!(SegmentId::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_chain_ends_where_a_number_is_missing() {
        let segments: Segments = [id(9, 12), id(1, 4), id(5, 8), id(20, 30)].into_iter().collect();
        let chain = |timeline, seqno| {
            let generation = generation(timeline, seqno);
            let chain = segments.after(&generation);
            (chain.segments.len(), chain.missing, chain.end(&generation))
        };
        let until = 1_764_035_797_123;
        assert_eq!(chain(7, 0), (3, Some(13), (until, 12)));
        // The generation is within a segment, or at its end.
        assert_eq!(chain(7, 6), (2, Some(13), (until, 12)));
        assert_eq!(chain(7, 8), (1, Some(13), (until, 12)));
        assert_eq!(chain(7, 15), (0, Some(16), (5, 15)));
        assert_eq!(chain(7, 19), (1, None, (until, 30)));
        assert_eq!(chain(7, 30), (0, None, (5, 30)));
        // Another timeline, and none.
        assert_eq!((chain(8, 0), chain(0, 0)), ((0, None, (5, 0)), (0, None, (5, 0))));
    }

    #[test]
    fn a_segment_takes_only_what_follows() {
        let mut segment = Segment::new(7, 10);
        let batch = |time, first, last| StoredBatch { time, first, last, encoded: b"encoded" };
        for (refused, accepted) in [(batch(1, 12, 12), batch(1, 11, 12)), (batch(0, 13, 13), batch(1, 13, 13))] {
            assert!(!segment.add(refused) && segment.add(accepted));
        }
        assert!(!segment.add(batch(1, 14, 13)) && !segment.add(batch(1, 13, 13)));
        let mut bytes = Vec::new();
        segment
            .write(&mut |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
        assert_eq!(batches(&bytes).collect::<Vec<_>>(), [batch(1, 11, 12), batch(1, 13, 13)]);
        assert_eq!((segment.id.first, segment.id.last), (11, 13));
    }
}
