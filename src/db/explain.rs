//! `explain`: a point read that reports its steps.
//!
//! It is the ordinary read with a trace that writes down what it is told (`report::explain`).

use std::time::{Duration, Instant};

use super::read::{ReadOptions, ReadTarget};
use super::store::Store;
use crate::error::Result;
use crate::filter::KeyHash;
use crate::format::deadline::{Deadline, time_of};
use crate::report::explain::{BlockVisit, Explanation, FilterAnswer, Found, Opening, ReadSource, ReadStep, ReadTrace};

/// Collects the steps that a read reports, with their times.
struct Recorder {
    steps: Vec<ReadStep>,
    /// Time of the last event, and start of the current step.
    last: Instant,
    entered: Instant,
}

impl Recorder {
    fn new() -> Recorder {
        let now = Instant::now();
        Recorder { steps: Vec::new(), last: now, entered: now }
    }

    /// Returns the time since the last event.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.last, now)
    }
}

impl ReadTrace for Recorder {
    fn enter(&mut self, source: ReadSource) {
        self.lap();
        self.entered = self.last;
        let (blocks, time) = (Vec::new(), Duration::ZERO);
        self.steps.push(ReadStep { source, opened: None, filter: None, found: None, blocks, time });
    }

    fn opened(&mut self, bytes: u64) {
        let time = self.lap();
        if let Some(step) = self.steps.last_mut() {
            step.opened = Some(Opening { bytes, time });
        }
    }

    fn filter(&mut self, answer: FilterAnswer) {
        self.lap();
        if let Some(step) = self.steps.last_mut() {
            step.filter = Some(answer);
        }
    }

    fn block(&mut self, offset: u64, len: u64, cached: bool) {
        let time = self.lap();
        if let Some(step) = self.steps.last_mut() {
            step.blocks.push(BlockVisit { offset, len, cached, time });
        }
    }

    fn leave(&mut self, found: Found) {
        self.lap();
        if let Some(step) = self.steps.last_mut() {
            step.found = Some(found);
            step.time = self.last - self.entered;
        }
    }

    fn deadline(&mut self, deadline: Deadline, is_past: bool) {
        if let Some(step) = self.steps.last_mut().filter(|_| is_past) {
            step.found = Some(Found::Expired(time_of(deadline)));
        }
    }
}

impl Store {
    /// Reads a key like `get`, and reports how. Returns only errors that are not about the key;
    /// others are part of the explanation.
    pub(super) fn explain(&self, target: ReadTarget<'_>, key: &[u8], options: ReadOptions) -> Result<Explanation> {
        let mut recorder = Recorder::new();
        let start = recorder.last;
        let read = self.get(target, key, options.mode(), &mut recorder, |value| value.bytes().len());
        let time = start.elapsed();
        let outcome = match read {
            Ok(Some(len)) => Ok(Found::Value(len)),
            Ok(None) => match recorder.steps.last().and_then(|step| step.found) {
                Some(found @ (Found::Deleted | Found::DeletedByRange | Found::Expired(_))) => Ok(found),
                _ => Ok(Found::Absent),
            },
            // Without a step the read never began.
            Err(error) if recorder.steps.is_empty() => return Err(error),
            Err(error) => Err(error),
        };
        Ok(Explanation { hash: KeyHash::new(self.seed, key).value(), steps: recorder.steps, outcome, time })
    }
}
