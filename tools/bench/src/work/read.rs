//! Reading.

use super::{Bench, Limit, Tally, look_at, wrong};
use crate::Result;
use crate::engine::{Direction, Engine, Reader};
use crate::keys::KeyBuffer;

/// Keys of one call that looks several up.
const SEVERAL: usize = 100;
/// Entries of a scan whose time is taken together.
const STRIDE: u64 = 1000;

impl<E: Engine> Bench<'_, E> {
    fn read_limit(&self) -> Limit {
        Limit { steps: u64::MAX, seconds: self.seconds }
    }

    /// Keys that are there, at random among the first of `parts` parts of them, in so many threads.
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

    /// Looks a key up that is there.
    pub(super) fn must_be_there(&self, reader: &mut E::Reader<'_>, key: &[u8]) -> Result<()> {
        let mut right = false;
        reader.get(key, |value| right = look_at(value, self.value_len))?;
        if right { Ok(()) } else { Err(wrong("a key is not there, or its value is of a wrong length", key)) }
    }

    pub(super) fn read_missing(&self) -> Result<Tally> {
        let (mut rng, mut key) = (self.rng(20), self.keys.buffer());
        let mut reader = self.engine.reader()?;
        self.drive(self.read_limit(), |_| {
            let key = self.keys.missing(rng.u64(0..self.keys.count()), &mut key);
            if reader.get(key, |_| {})? {
                return Err(wrong("a key is there that was never written", key));
            }
            Ok(1)
        })
    }

    /// Everything, from one end to the other, again and again unless `only_once`. A pass that is not cut short must find all that is there.
    pub(super) fn read_all(&self, direction: Direction, only_once: bool) -> Result<Tally> {
        let mut sum = Tally::empty()?;
        while sum.seconds < self.seconds {
            let mut reader = self.engine.reader()?;
            let start = crate::clock::ticks();
            let deadline = start + self.rate.ticks(self.seconds - sum.seconds);
            let (mut entries, mut last, mut in_time) = (0, start, true);
            reader.scan(None, direction, |key, value| {
                std::hint::black_box((key, value));
                entries += 1;
                if entries % STRIDE == 0 {
                    let now = crate::clock::ticks();
                    // The histogram grows with what is recorded, so that this cannot fail.
                    let _ = sum.steps.record(now.saturating_sub(last) / STRIDE);
                    last = now;
                    in_time = now < deadline;
                }
                in_time
            })?;
            sum.seconds += self.rate.seconds(crate::clock::ticks() - start);
            sum.ops += entries;
            let present = self.present();
            if in_time && entries != present {
                return Err(format!("a scan of everything found {entries} entries, {present} are there").into());
            }
            if only_once {
                break;
            }
        }
        Ok(sum)
    }

    /// Seeks keys at random and goes on by so many steps. A seek with its steps is one operation.
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

    /// Many keys in one call, each an operation.
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
                Some(_) => Err(wrong("of several keys one is not there", keys[0])),
            }
        })
    }
}

/// The entries from a key on, which must be there, at most so many; returns how many there were.
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
    if right { Ok(found) } else { Err(wrong("a scan did not begin at a key that is there", key)) }
}
