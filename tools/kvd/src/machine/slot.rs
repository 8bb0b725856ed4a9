//! Slots: which of 16,384 parts of the key space a key belongs to, as Redis Cluster defines them.

use std::ops::Range;

use crc::{CRC_16_XMODEM, Crc};

/// Number of slots.
pub const SLOTS: u16 = 16_384;

static CRC16: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// Number of a group of replicas: each owns a range of slots, and has a log of its own.
pub type GroupId = u32;

/// The slot of a key: CRC-16 of its hash tag, modulo [`SLOTS`].
///
/// The hash tag is what stands between the first `{` and the first `}` after it, or the whole key
/// if there is none or it is empty.
pub fn slot_of(key: &[u8]) -> u16 {
    CRC16.checksum(hash_tag(key)) % SLOTS
}

/// The group that owns a slot when `groups` groups share all slots evenly.
pub fn group_of(slot: u16, groups: u32) -> GroupId {
    u32::from(slot) * groups / u32::from(SLOTS)
}

/// The slots that a group owns when `groups` groups share all slots evenly.
pub fn slots_of(group: GroupId, groups: u32) -> Range<u16> {
    let first = |group: u32| {
        let slot = (u64::from(group) * u64::from(SLOTS)).div_ceil(u64::from(groups));
        u16::try_from(slot).unwrap_or(SLOTS).min(SLOTS)
    };
    first(group)..first(group.saturating_add(1))
}

fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|&byte| byte == b'}') {
        None | Some(0) => key,
        Some(close) => &rest[..close],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(CRC16.checksum(b"123456789"), 0x31c3, "the check value of the specification");
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{}{bar}"), CRC16.checksum(b"foo{}{bar}") % SLOTS, "an empty tag is none");
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
        assert_eq!(slot_of(b"foo{bar"), CRC16.checksum(b"foo{bar") % SLOTS);
        assert_eq!(slot_of(b""), 0);
    }

    #[test]
    fn each_slot_is_in_the_range_of_its_group() {
        for groups in [1, 2, 3, 7, 64, 1000, u32::from(SLOTS)] {
            let mut next = 0;
            for group in 0..groups {
                let slots = slots_of(group, groups);
                assert_eq!(slots.start, next, "group {group} of {groups}");
                next = slots.end;
                assert!(slots.clone().all(|slot| group_of(slot, groups) == group));
            }
            assert_eq!(next, SLOTS);
        }
    }
}
