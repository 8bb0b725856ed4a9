//! What the keyspace of a group holds. All numbers are big-endian, so that keys sort by them.
//!
//! ```text
//! 'c'                          counters: 8 bytes each, in the order of `Counters`; the last one is
//!                              left out if it is zero
//! 'd' slot:u16 key             record: kind u8 (1), version u64, deadline u64 (0: none), value
//! 'e' deadline:u64 slot:u16 key    empty; one for each record with a deadline
//! 'l' used:u64 session:u64     empty; sessions, least recently used first
//! 'm' name                     a meta pair of the caller
//! 's' session:u64              a session's last request (postcard)
//! ```
//!
//! A slot is one range of keys, and so is a range of slots.

use bytes::{Buf, BufMut, Bytes};

use super::slot::slot_of;

/// Key of the counters.
pub(super) const COUNTERS: &[u8] = b"c";

/// Length of the counters' value without the last one.
const COUNTERS_LEN: usize = 40;

/// Length with it.
const LONG_COUNTERS_LEN: usize = 48;

/// Kind of a record that holds a string.
const STRING: u8 = 1;

/// Length of a record before its value.
const HEADER_LEN: usize = 17;

/// Key of a user's key.
pub(super) fn data_key(key: &[u8]) -> Vec<u8> {
    let mut out = slot_start(slot_of(key));
    out.put_slice(key);
    out
}

/// The key before all keys of a slot, and behind all keys of the slot before.
pub(super) fn slot_start(slot: u16) -> Vec<u8> {
    let mut out = vec![b'd'];
    out.put_u16(slot);
    out
}

/// Slot and user's key of a data key.
pub(super) fn user_key(data_key: &[u8]) -> Option<(u16, &[u8])> {
    let (slot, key) = data_key.strip_prefix(b"d")?.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*slot), key))
}

/// Key in the index of deadlines.
pub(super) fn deadline_key(deadline_ms: u64, key: &[u8]) -> Vec<u8> {
    let mut out = deadline_start(deadline_ms);
    out.put_u16(slot_of(key));
    out.put_slice(key);
    out
}

/// The key before all deadlines from `deadline_ms` on.
pub(super) fn deadline_start(deadline_ms: u64) -> Vec<u8> {
    let mut out = vec![b'e'];
    out.put_u64(deadline_ms);
    out
}

/// Deadline and user's key of a key in the index of deadlines.
pub(super) fn expiring_key(deadline_key: &[u8]) -> Option<(u64, &[u8])> {
    let (deadline, rest) = deadline_key.strip_prefix(b"e")?.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*deadline), rest.get(2..)?))
}

/// A time of the log as a time on the wall, of whose clocks the log is `ahead_ms` ahead.
pub(super) fn on_wall(log_ms: u64, ahead_ms: i64) -> u64 {
    log_ms.saturating_add_signed(ahead_ms.saturating_neg())
}

/// Key in the list of sessions by use.
pub(super) fn use_key(used: u64, session: u64) -> Vec<u8> {
    let mut out = vec![b'l'];
    out.put_u64(used);
    out.put_u64(session);
    out
}

/// Number of the session that a key in the list of sessions by use names.
pub(super) fn used_session(use_key: &[u8]) -> Option<u64> {
    let session = use_key.strip_prefix(b"l")?.get(8..)?;
    Some(u64::from_be_bytes(session.try_into().ok()?))
}

/// Key of a meta pair.
pub(super) fn meta_key(name: &[u8]) -> Vec<u8> {
    [b"m", name].concat()
}

/// Key of a session.
pub(super) fn session_key(session: u64) -> Vec<u8> {
    let mut out = vec![b's'];
    out.put_u64(session);
    out
}

/// What a record says apart from its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Number of the write that made the record.
    pub(super) version: u64,
    /// When it expires, in milliseconds since 1970.
    pub(super) deadline_ms: Option<u64>,
}

impl Header {
    pub(super) fn decode(mut record: &[u8]) -> Option<Header> {
        if record.len() < HEADER_LEN || record.get_u8() != STRING {
            return None;
        }
        let (version, deadline) = (record.get_u64(), record.get_u64());
        Some(Header { version, deadline_ms: (deadline != 0).then_some(deadline) })
    }

    /// Whether the record's deadline is past.
    pub(super) fn has_expired(&self, now_ms: u64) -> bool {
        self.deadline_ms.is_some_and(|deadline| deadline <= now_ms)
    }
}

/// Encodes a record. A deadline of zero is none: no key is kept that expires in 1970.
pub(super) fn encode_record(header: Header, value: &[&[u8]]) -> Bytes {
    let len = value.iter().map(|part| part.len()).sum::<usize>();
    let mut out = Vec::with_capacity(HEADER_LEN + len);
    out.put_u8(STRING);
    out.put_u64(header.version);
    out.put_u64(header.deadline_ms.unwrap_or(0));
    value.iter().for_each(|part| out.put_slice(part));
    Bytes::from(out)
}

/// The value of a record whose header was decoded.
pub(super) fn value_of(record: &[u8]) -> &[u8] {
    record.get(HEADER_LEN..).unwrap_or_default()
}

/// Numbers that every entry may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counters {
    /// Time of the last entry.
    pub(super) time_ms: u64,
    /// The last number given to a version, a session or a use of one.
    pub(super) last_number: u64,
    /// Records.
    pub(super) keys: u64,
    /// Open sessions.
    pub(super) sessions: u64,
    /// No record has a deadline before this one: where the search for expired keys begins. Behind
    /// it are what removed keys left in the index of deadlines until a compaction.
    pub(super) swept_ms: u64,
    /// How far the log's time is ahead of the clocks on the wall. All times here are the log's,
    /// those of clients are on the wall.
    pub(super) ahead_ms: i64,
}

impl Counters {
    pub(super) fn encode(&self) -> Bytes {
        let Counters { time_ms, last_number, keys, sessions, swept_ms, ahead_ms } = *self;
        let mut out = Vec::with_capacity(COUNTERS_LEN);
        [time_ms, last_number, keys, sessions, swept_ms].iter().for_each(|&number| out.put_u64(number));
        if ahead_ms != 0 {
            out.put_i64(ahead_ms);
        }
        Bytes::from(out)
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Option<Counters> {
        matches!(bytes.len(), COUNTERS_LEN | LONG_COUNTERS_LEN).then(|| Counters {
            time_ms: bytes.get_u64(),
            last_number: bytes.get_u64(),
            keys: bytes.get_u64(),
            sessions: bytes.get_u64(),
            swept_ms: bytes.get_u64(),
            ahead_ms: if bytes.has_remaining() { bytes.get_i64() } else { 0 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_were_written() {
        assert_eq!(user_key(&data_key(b"foo")), Some((12_182, &b"foo"[..])));
        assert_eq!(expiring_key(&deadline_key(77, b"foo")), Some((77, &b"foo"[..])));
        assert_eq!(used_session(&use_key(5, 9)), Some(9));
        assert!(deadline_key(255, b"z") < deadline_start(256), "deadlines sort as numbers");
        assert!(data_key(b"foo") >= slot_start(12_182) && data_key(b"foo") < slot_start(12_183));
        for wrong in [&b""[..], b"d", b"d1", b"e1234567", b"l1234567", b"x"] {
            let read = (user_key(wrong), expiring_key(wrong), used_session(wrong));
            assert_eq!(read, (None, None, None), "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn records_are_read_as_they_were_written_and_others_are_refused() {
        for deadline_ms in [None, Some(1), Some(u64::MAX)] {
            let header = Header { version: 7, deadline_ms };
            let record = encode_record(header, &[b"ab", b"", b"c"]);
            assert_eq!(Header::decode(&record), Some(header));
            assert_eq!(value_of(&record), b"abc");
            assert_eq!(Header::decode(&record[..HEADER_LEN - 1]), None);
            assert_eq!(Header::decode(&[&[9], &record[1..]].concat()), None, "another kind");
        }
        for (ahead_ms, len) in [(0, 40), (-6, 48)] {
            let counters = Counters { time_ms: 1, last_number: 2, keys: 3, sessions: 4, swept_ms: 5, ahead_ms };
            assert_eq!(counters.encode().len(), len);
            assert_eq!(Counters::decode(&counters.encode()), Some(counters));
        }
        assert_eq!(Counters::decode(&[0; 39]), None);
    }
}
