//! [`HashList`]: the hashes of a table's keys, in pieces.
//!
//! A single vector would be copied each time that it grows, and an allocator keeps what megabytes
//! were freed once: glibc kept 60 MiB after compactions of 475 MiB (`examples/memory.rs`).

/// Hashes per piece: less than what allocators take from the system one by one.
const PIECE: usize = 8 << 10;

#[derive(Default)]
pub(super) struct HashList {
    full: Vec<Vec<u64>>,
    last: Vec<u64>,
}

impl HashList {
    #[inline]
    pub(super) fn push(&mut self, hash: u64) {
        if self.last.len() == PIECE {
            self.next_piece();
        }
        self.last.push(hash);
    }

    #[cold]
    fn next_piece(&mut self) {
        let piece = std::mem::replace(&mut self.last, Vec::with_capacity(PIECE));
        self.full.push(piece);
    }

    #[inline]
    pub(super) fn last(&self) -> Option<u64> {
        self.last.last().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.full.len() * PIECE + self.last.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        self.full.iter().chain([&self.last]).flatten().copied()
    }

    /// The hashes in order, each once.
    pub(super) fn sorted(&self) -> Vec<u64> {
        let mut hashes = Vec::with_capacity(self.len());
        hashes.extend(self.iter());
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }

    /// Bytes of memory that this points to.
    pub(super) fn memory(&self) -> usize {
        self.full.capacity() * size_of::<Vec<u64>>()
            + (self.full.len() * PIECE + self.last.capacity()) * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_come_in_the_order_in_which_they_were_added() {
        for count in [0, 1, PIECE, PIECE + 1, 3 * PIECE + 7] {
            let (mut list, all) = (HashList::default(), (0..count as u64).map(|i| i.wrapping_mul(0x9e37_79b9)));
            for hash in all.clone() {
                list.push(hash);
                assert_eq!(list.last(), Some(hash));
            }
            assert!(list.iter().eq(all.clone()));
            assert_eq!((list.len(), list.last()), (count, all.clone().next_back()));
            assert!(list.memory() >= count * size_of::<u64>());
            let mut sorted: Vec<u64> = all.collect();
            sorted.sort_unstable();
            assert_eq!(list.sorted(), sorted);
        }
    }
}
