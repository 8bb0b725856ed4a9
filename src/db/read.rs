//! The read path: memtables, then tables, newest first.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::iter::{Cursor, HalfOpen, Iter};
use super::store::Store;
use super::view::{ReadView, Tree};
use crate::error::{Error, Result};
use crate::explain::ReadTrace;
use crate::filter::KeyHash;
use crate::format::key::SeqNo;
use crate::options::FilterMode;
use crate::table::{PointRead, PrefixProbe, ReadMode};
use crate::value::Value;

/// How a read is done.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReadOptions {
    /// How filters are treated: by point reads, by scans of a prefix, and by those of a range within one. Other ranges and cursors ask
    /// no filter. Default: [`FilterMode::Use`].
    pub filters: FilterMode,
    /// Whether blocks that are read from disk are kept in the cache. Default: true.
    pub fill_cache: bool,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions { filters: FilterMode::Use, fill_cache: true }
    }
}

impl ReadOptions {
    /// The defaults.
    pub fn new() -> ReadOptions {
        ReadOptions::default()
    }

    /// Sets how filters are treated.
    pub fn filters(mut self, filters: FilterMode) -> Self {
        self.filters = filters;
        self
    }

    /// Sets whether blocks that are read from disk are kept in the cache.
    pub fn fill_cache(mut self, fill_cache: bool) -> Self {
        self.fill_cache = fill_cache;
        self
    }
}

fn tree_of<'a>(view: &'a ReadView, keyspace: u32, name: &str) -> Result<&'a Tree> {
    view.tree(keyspace).ok_or_else(|| Error::KeyspaceDropped(name.to_owned()))
}

impl Store {
    /// Reads a key, and tells `trace` of its way.
    pub(super) fn get(
        &self,
        keyspace: u32,
        name: &str,
        key: &[u8],
        snapshot: Option<SeqNo>,
        options: ReadOptions,
        trace: &mut impl ReadTrace,
    ) -> Result<Option<Value>> {
        self.check_open()?;
        // The view first, the sequence number second: see `ReadView`.
        let view = self.view.load();
        let snapshot = snapshot.unwrap_or_else(|| self.visible.load(Ordering::Acquire));
        let mode = ReadMode { filters: options.filters, fill_cache: options.fill_cache };
        let read = PointRead { key, hash: KeyHash::new(self.seed, key), snapshot, mode };
        view.get(tree_of(&view, keyspace, name)?, &read, trace)
    }

    pub(super) fn cursor(
        &self,
        keyspace: u32,
        name: &str,
        snapshot: Option<SeqNo>,
        options: ReadOptions,
    ) -> Result<Cursor> {
        self.check_open()?;
        let view = self.view.load();
        let seqno = snapshot.unwrap_or_else(|| self.visible.load(Ordering::Acquire));
        let tree = tree_of(&view, keyspace, name)?;
        Ok(Cursor::new(view.cursor(tree, options.fill_cache, None), seqno))
    }

    pub(super) fn iter(
        &self,
        keyspace: u32,
        name: &str,
        range: HalfOpen,
        snapshot: Option<SeqNo>,
        options: ReadOptions,
    ) -> Iter {
        if let Err(error) = self.check_open() {
            return Iter::failed(error);
        }
        let view = self.view.load();
        let seqno = snapshot.unwrap_or_else(|| self.visible.load(Ordering::Acquire));
        let tree = match tree_of(&view, keyspace, name) {
            Ok(tree) => tree.clone(),
            Err(error) => return Iter::failed(error),
        };
        let probe = match (tree.options.prefix, options.filters) {
            (None, _) | (_, FilterMode::Ignore) => None,
            (Some(extractor), mode) => range
                .common_prefix(extractor)
                .map(|prefix| Arc::new(PrefixProbe::new(extractor, prefix, self.seed, mode))),
        };
        // No more of the view than this keyspace needs.
        let view = ReadView { active: Arc::clone(&view.active), sealed: view.sealed.clone(), trees: Vec::new() };
        Iter::new(range, Box::new(move || Cursor::new(view.cursor(&tree, options.fill_cache, probe.as_ref()), seqno)))
    }
}
