//! [`Values`]: values that compress to about half, like those of `db_bench`.

/// Size of the pool from which values are cut. As in `db_bench`: large enough that successive
/// values differ, small enough to stay in the processor's caches.
const POOL: usize = 1 << 20;
/// Length of a piece of the pool: half random bytes, half their repetition.
const PIECE: usize = 100;

/// A pool and the position of the next value.
#[derive(Clone)]
pub(crate) struct Values {
    pool: Vec<u8>,
    at: usize,
    len: usize,
}

impl Values {
    /// Values of `len` bytes each, determined by the seed.
    pub(crate) fn new(len: usize, seed: u64) -> Values {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut pool = Vec::with_capacity(POOL.max(len) + PIECE);
        while pool.len() < POOL.max(len) {
            let random: [u8; PIECE / 2] = std::array::from_fn(|_| rng.u8(b' '..=b'~'));
            pool.extend(random);
            pool.extend(random);
        }
        Values { pool, at: 0, len }
    }

    /// The next value.
    pub(crate) fn next(&mut self) -> &[u8] {
        if self.at + self.len > self.pool.len() {
            self.at = 0;
        }
        let value = &self.pool[self.at..self.at + self.len];
        self.at += self.len;
        value
    }

    /// The next `count` values.
    pub(crate) fn several(&mut self, count: usize) -> impl Iterator<Item = &[u8]> {
        let starts: Vec<usize> = (0..count)
            .map(|_| {
                self.next();
                self.at - self.len
            })
            .collect();
        starts.into_iter().map(|start| &self.pool[start..start + self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_follow_from_the_seed_and_differ() {
        let mut values = Values::new(100, 1);
        let first = values.next().to_vec();
        assert_eq!(first, Values::new(100, 1).next());
        assert_ne!(first, Values::new(100, 2).next());
        assert_ne!(first, values.next());
        assert_eq!(first[..50], first[50..], "half of a value is a repetition");
    }

    #[test]
    fn several_values_are_the_next_ones() {
        let mut values = Values::new(300_000, 1);
        let mut twin = values.clone();
        let several: Vec<Vec<u8>> = values.several(5).map(<[u8]>::to_vec).collect();
        let single: Vec<Vec<u8>> = (0..5).map(|_| twin.next().to_vec()).collect();
        assert_eq!(several, single);
        assert_eq!(Values::new(3 << 20, 1).next().len(), 3 << 20);
    }
}
