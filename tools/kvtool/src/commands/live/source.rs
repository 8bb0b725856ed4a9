//! [`Source`]: where the figures of a store in use come from.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tamis::Db;

use super::page::Page;
use crate::failure::{Failure, Result};

/// Longest page that is read.
const LONGEST: u64 = 64 << 20;
/// A page is stale after so many of its intervals, and a second.
const MISSED: f64 = 3.0;

/// A look at a store.
#[derive(Clone)]
pub(super) struct Sample {
    /// When it was as the figures say, in seconds since 1970.
    pub(super) at: f64,
    /// Whether the process that has the store open published the figures.
    pub(super) is_published: bool,
    /// How often it does.
    pub(super) interval: Option<f64>,
    pub(super) page: Page,
}

/// The page that a store publishes, or else the store itself, read beside its process.
pub(super) struct Source {
    path: PathBuf,
    reader: Option<Db>,
}

impl Source {
    pub(super) fn new(path: &Path) -> Source {
        Source { path: path.to_owned(), reader: None }
    }

    pub(super) fn look(&mut self) -> Result<Sample> {
        match self.published()? {
            Some(sample) => {
                self.reader = None;
                Ok(sample)
            }
            None => self.read_beside(),
        }
    }

    /// The page, if there is one that is not stale.
    fn published(&self) -> Result<Option<Sample>> {
        let path = self.path.join("stats.prom");
        let mut text = String::new();
        match File::open(&path).and_then(|file| file.take(LONGEST).read_to_string(&mut text)) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Failure::Io { what: format!("cannot read {}", path.display()), source }),
        }
        // It is replaced as a whole: what is no page is not one that is being written.
        let page = Page::parse(&text).map_err(|why| Failure::usage(format_args!("{}: {why}", path.display())))?;
        let at = page.figure("tamis_page_time_seconds").unwrap_or_default();
        let interval = page.figure("tamis_page_interval_seconds").unwrap_or_default();
        let is_stale = (now() - at).abs() > MISSED * interval + 1.0;
        Ok((!is_stale).then_some(Sample { at, is_published: true, interval: Some(interval), page }))
    }

    fn read_beside(&mut self) -> Result<Sample> {
        let db = match self.reader.take() {
            // It may have been replaced by another store.
            Some(db) => match db.refresh() {
                Ok(_) => db,
                Err(_) => Db::open_read_only(&self.path)?,
            },
            None => Db::open_read_only(&self.path)?,
        };
        let text = db.stats().to_prometheus();
        self.reader = Some(db);
        let page = Page::parse(&text).map_err(Failure::usage)?;
        Ok(Sample { at: now(), is_published: false, interval: None, page })
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
