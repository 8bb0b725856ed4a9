//! [`Saved`]: the reads that filters save, on look-ups of the user's own keys.
//!
//! Each look-up asks the filters and searches all tables nevertheless ([`FilterMode::Shadow`]): one
//! pass counts the blocks that are read with filters and without.

use std::path::Path;

use tamis::{Db, FilterAnswer, FilterMode, Found, Keyspace, ReadOptions};

use super::super::filter::advise::{Advice, Misses};
use super::super::formats::{Codec, Format};
use super::super::lines::Lines;
use super::super::progress::{Unit, bar};
use super::super::store::stats_of_keyspace;
use crate::failure::Result;
use crate::text::{Form, count};

/// Keys between two updates of the progress bar.
const PROGRESS_KEYS: u64 = 1000;
/// Characters shown of a key.
const KEY_WIDTH: usize = 40;
/// Failures that are kept; the others are counted.
const MOST_FAILURES: usize = 10;

#[derive(Default)]
pub(super) struct Saved {
    pub(super) keyspace: String,
    /// Where the keys are from.
    pub(super) source: String,
    /// Look-ups of keys that are there, and of those that are not.
    pub(super) present: Cost,
    pub(super) absent: Cost,
    /// Look-ups that failed: the first keys, and why.
    pub(super) failures: Vec<(String, String)>,
    pub(super) failed: u64,
    pub(super) misses: Misses,
}

/// Blocks that look-ups read.
#[derive(Clone, Copy, Default)]
pub(super) struct Cost {
    pub(super) look_ups: u64,
    pub(super) without_filters: u64,
    pub(super) with_filters: u64,
}

impl Saved {
    pub(super) fn measure(db: &Db, keyspace: &Keyspace, form: Form, file: &Path) -> Result<Saved> {
        let stats = stats_of_keyspace(db, keyspace);
        // Without it the look-ups are counted all the same.
        let advice = Advice::of(db.path(), &stats).ok();
        let source = if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() };
        let mut saved = Saved { keyspace: keyspace.name().to_owned(), source, ..Saved::default() };
        let progress = bar(Unit::Input, file.metadata().ok().filter(|file| file.is_file()).map(|file| file.len()));
        let limit = Codec { format: Format::Tsv, form }.longest_record();
        let mut asked = 0;
        let looked_up = Lines::open(Some(file), limit)?.each_key(form, |line, key| {
            saved.look_up(keyspace, advice.as_ref(), form, key)?;
            asked += 1;
            progress.inc(line.len() as u64 + 1);
            if asked % PROGRESS_KEYS == 0 {
                progress.set_message(count(asked));
            }
            Ok(())
        });
        looked_up.map(|()| saved)
    }

    fn look_up(&mut self, keyspace: &Keyspace, advice: Option<&Advice>, form: Form, key: &[u8]) -> Result<()> {
        let explained = keyspace.explain_with(key, ReadOptions::new().filters(FilterMode::Shadow))?;
        if let Some(advice) = advice {
            advice.count(&mut self.misses, &explained);
        }
        let cost = match &explained.outcome {
            Ok(Found::Value(_)) => &mut self.present,
            Ok(_) => &mut self.absent,
            Err(error) => {
                if !error.is_corruption() {
                    return explained.outcome.map(|_| ()).map_err(Into::into);
                }
                self.failed += 1;
                if self.failures.len() < MOST_FAILURES {
                    self.failures.push((form.show_short(key, KEY_WIDTH), error.to_string()));
                }
                return Ok(());
            }
        };
        cost.look_ups += 1;
        for step in &explained.steps {
            let blocks = step.blocks.len() as u64;
            cost.without_filters += blocks;
            if step.filter != Some(FilterAnswer::No) {
                cost.with_filters += blocks;
            }
        }
        Ok(())
    }

    pub(super) fn all(&self) -> Cost {
        let (a, b) = (self.present, self.absent);
        Cost {
            look_ups: a.look_ups + b.look_ups,
            without_filters: a.without_filters + b.without_filters,
            with_filters: a.with_filters + b.with_filters,
        }
    }
}

impl Cost {
    pub(super) fn share_saved(&self) -> Option<f64> {
        (self.without_filters > 0).then(|| 1.0 - self.with_filters as f64 / self.without_filters as f64)
    }
}
