//! Many keys at once: prefetch the lines of a chunk of keys, then probe them, so that cache misses
//! overlap and no answer is a branch.
//!
//! A round prefetches one line of each key that is not denied yet, and then drops those whose bits
//! are not all set. In the split layout, the first round leaves one absent key of sixteen. A chunk
//! is long enough for these to overlap too.

use super::hash::remix;

/// Keys per chunk. Of as many absent keys, about 16 are left for the second round.
pub(super) const CHUNK: usize = 256;

/// The keys of a chunk that no round has denied yet.
pub(super) struct Alive {
    /// What chooses each key's next line and bits.
    g: [u64; CHUNK],
    /// Where each key's answer goes.
    places: [u16; CHUNK],
    len: usize,
}

impl Alive {
    /// The keys whose answer is not yes, at most [`CHUNK`].
    pub(super) fn new(hashes: &[u64], answers: &[bool]) -> Alive {
        let mut alive = Alive { g: [0; CHUNK], places: [0; CHUNK], len: 0 };
        for (place, (&hash, &answer)) in (0..).zip(hashes.iter().zip(answers).take(CHUNK)) {
            alive.g[alive.len % CHUNK] = hash;
            alive.places[alive.len % CHUNK] = place;
            alive.len += usize::from(!answer);
        }
        alive
    }

    pub(super) fn each(&self, visit: impl FnMut(u64)) {
        self.g.iter().take(self.len).copied().for_each(visit);
    }

    /// Keeps the keys for which `holds`, without a branch: half of them may be present.
    #[inline(always)]
    pub(super) fn retain(&mut self, holds: impl Fn(u64) -> bool) {
        let mut kept = 0;
        for i in 0..self.len.min(CHUNK) {
            let (g, place) = (self.g[i], self.places[i]);
            self.g[kept % CHUNK] = g;
            self.places[kept % CHUNK] = place;
            kept += usize::from(holds(g));
        }
        self.len = kept;
    }

    /// Moves all keys on to their next group.
    pub(super) fn remix(&mut self) {
        self.g.iter_mut().take(self.len).for_each(|g| *g = remix(*g));
    }

    /// Answers yes for all keys that are left.
    pub(super) fn confirm(&self, answers: &mut [bool]) {
        for &place in self.places.iter().take(self.len) {
            if let Some(answer) = answers.get_mut(usize::from(place)) {
                *answer = true;
            }
        }
    }
}

/// For each key, whether it may be contained. `ask` gets the hashes of a chunk and its answers, all
/// no, and sets those that are yes.
#[inline]
pub(super) fn answer_all<K: AsRef<[u8]>>(
    keys: &[K],
    hash: impl Fn(&[u8]) -> u64,
    ask: impl Fn(&[u64], &mut [bool]),
) -> Vec<bool> {
    let mut answers = vec![false; keys.len()];
    let mut hashes = [0; CHUNK];
    for (keys, answers) in keys.chunks(CHUNK).zip(answers.chunks_mut(CHUNK)) {
        for (value, key) in hashes.iter_mut().zip(keys) {
            *value = hash(key.as_ref());
        }
        ask(&hashes[..keys.len()], answers);
    }
    answers
}
