//! The read workloads.

use super::{Bench, Limit, Tally, look_at, wrong};
use crate::Result;
use crate::engine::{Direction, Engine, Reader};
use crate::keys::KeyBuffer;

/// Keys per multi-get.
const SEVERAL: usize = 100;
/// Entries of a scan that are timed together.
const STRIDE: u64 = 1000;

/// What a scan of the whole store visits.
#[derive(Clone, Copy)]
pub(super) enum What {
    Entries(Direction),
    Keys,
}

impl<E: Engine> Bench<'_, E> {
    fn read_limit(&self) -> Limit {
        Limit { steps: u64::MAX, seconds: self.seconds }
    }

    /// Gets random existing keys of the first of `parts` equal parts, in `threads` threads.
    pub(super) fn read_existing(&self, threads: u64, parts: u64) -> Result<Tally> {
        let count = self.keys.count().div_ceil(parts);
        let work = |thread| {
            let (mut rng, mut key) = (self.rng(100 * parts + 10 * threads + thread), self.keys.buffer());
            let mut reader = self.engine.reader()?;
            self.drive(self.read_limit(), |_| {
                let key = self.keys.existing(rng.u64(0..count), &mut key);
                self.must_be_there(&mut reader, key)?;
                Ok(1)
            })
        };
        if threads == 1 { work(0) } else { self.threads(threads, work) }
    }

    /// Looks up a key that must exist.
    pub(super) fn must_be_there(&self, reader: &mut E::Reader<'_>, key: &[u8]) -> Result<()> {
        let mut right = false;
        reader.get(key, |value| right = look_at(value, self.value_len))?;
        if right { Ok(()) } else { Err(wrong("a key is missing, or its value has the wrong length", key)) }
    }

    pub(super) fn read_missing(&self) -> Result<Tally> {
        let (mut rng, mut key) = (self.rng(20), self.keys.buffer());
        let mut reader = self.engine.reader()?;
        self.drive(self.read_limit(), |_| {
            let key = self.keys.missing(rng.u64(0..self.keys.count()), &mut key);
            if reader.get(key, |_| {})? {
                return Err(wrong("found a key that was never written", key));
            }
            Ok(1)
        })
    }

    /// Scans everything, repeatedly unless `only_once`. A pass that is not cut short must find all
    /// existing keys.
    pub(super) fn read_all(&self, what: What, only_once: bool) -> Result<Tally> {
        let mut sum = Tally::empty()?;
        while sum.seconds < self.seconds {
            let mut reader = self.engine.reader()?;
            let start = crate::clock::ticks();
            let deadline = start + self.rate.ticks(self.seconds - sum.seconds);
            let (mut entries, mut last, mut in_time) = (0, start, true);
            let mut visited = || {
                entries += 1;
                if entries % STRIDE == 0 {
                    let now = crate::clock::ticks();
                    // The histogram grows as needed, so this cannot fail.
                    let _ = sum.steps.record(now.saturating_sub(last) / STRIDE);
                    last = now;
                    in_time = now < deadline;
                }
                in_time
            };
            match what {
                What::Entries(direction) => reader.scan(None, direction, |key, value| {
                    std::hint::black_box((key, value));
                    visited()
                })?,
                What::Keys => reader.scan_keys(|key| {
                    std::hint::black_box(key);
                    visited()
                })?,
            }
            sum.seconds += self.rate.seconds(crate::clock::ticks() - start);
            sum.ops += entries;
            let present = self.present();
            if in_time && entries != present {
                return Err(format!("a full scan found {entries} entries, expected {present}").into());
            }
            if only_once {
                break;
            }
        }
        Ok(sum)
    }

    /// Seeks random keys and steps on `steps` times. A seek with its steps is one operation.
    pub(super) fn scan_random(&self, steps: u64) -> Result<Tally> {
        let (mut rng, mut key) = (self.rng(30), self.keys.buffer());
        let mut reader = self.engine.reader()?;
        self.drive(self.read_limit(), |_| {
            let i = rng.u64(0..self.keys.count());
            let key = self.keys.existing(i, &mut key);
            let found = scan_from(&mut reader, key, steps + 1)?;
            if found < (steps + 1).min(self.keys.count() - i) {
                return Err(wrong("a scan ended early", key));
            }
            Ok(1)
        })
    }

    /// Asks for the keys between an existing key and the next one. There are none.
    pub(super) fn empty_ranges(&self) -> Result<Tally> {
        let (mut rng, mut from, mut until) = (self.rng(35), self.keys.buffer(), self.keys.buffer());
        let mut reader = self.engine.reader()?;
        self.drive(self.read_limit(), |_| {
            let i = rng.u64(0..self.keys.count() - 1);
            let (from, until) = (self.keys.missing(i, &mut from), self.keys.existing(i + 1, &mut until));
            match reader.is_empty(from, until)? {
                true => Ok(1),
                false => Err(wrong("found a key that was never written, after", from)),
            }
        })
    }

    /// Looks up many keys per call; each key is an operation.
    pub(super) fn multi_get(&self) -> Result<Tally> {
        let mut rng = self.rng(40);
        let mut buffers: Vec<KeyBuffer> = (0..SEVERAL).map(|_| self.keys.buffer()).collect();
        let mut reader = self.engine.reader()?;
        self.drive(self.read_limit(), |_| {
            let mut keys = [&[][..]; SEVERAL];
            for (key, buffer) in keys.iter_mut().zip(&mut buffers) {
                *key = self.keys.existing(rng.u64(0..self.keys.count()), buffer);
            }
            let mut right = 0;
            let found = reader.multi_get(&keys, |value| right += u64::from(look_at(value, self.value_len)))?;
            match found {
                None => Err("this engine cannot look up several keys in one call".into()),
                Some(found) if found == SEVERAL as u64 && right == found => Ok(found),
                Some(_) => Err(wrong("a multi-get misses a key", keys[0])),
            }
        })
    }
}

/// Scans up to `limit` entries from an existing key on; returns their number.
pub(super) fn scan_from(reader: &mut impl Reader, key: &[u8], limit: u64) -> Result<u64> {
    let (mut found, mut right) = (0, false);
    reader.scan(Some(key), Direction::Forward, |at, value| {
        if found == 0 {
            right = at == key;
        }
        std::hint::black_box((at.last(), value.first(), value.last()));
        found += 1;
        found < limit
    })?;
    if right { Ok(found) } else { Err(wrong("a scan did not begin at an existing key", key)) }
}
