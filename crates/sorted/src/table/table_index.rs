//! [`TableIndex`]: the index of an open table, in memory as a whole or in [`Pages`].
//!
//! Of an index in pages, the rows above its heads stay in memory, half a byte per data block. A
//! look-up needs the page of one node of heads, and that of the block's handle if the block is not
//! in the cache.

use std::cmp::Ordering;

use super::fetch::Fetcher;
use super::footer::{BlockHandle, HANDLE_LEN};
use super::index::{END_LEN, HeadsNode, Index, UpperRows, WIDTH};
use super::pages::{Pages, Whole, WholeBlock};
use crate::cache::BlockSlots;
use crate::error::Result;
use crate::format::coding::{get_u32, get_u64};
use crate::format::key::{HEAD8_LEN, compare, head8, strip};
use crate::iter::KeyBound;
use crate::memory::budget::MemoryUse;
use crate::report::stats::ReadEvent;

/// See the module.
pub(super) struct TableIndex {
    /// Number of data blocks, at least 1.
    len: usize,
    /// Offset just past the last data block.
    data_end: u64,
    form: Form,
}

enum Form {
    Whole(Index),
    Paged(Box<PagedIndex>),
}

struct PagedIndex {
    len: usize,
    rows: UpperRows,
    prefix: Box<[u8]>,
    pages: Pages<Index>,
}

impl Whole for Index {
    const USE: MemoryUse = MemoryUse::Indexes;
    const EVENT: ReadEvent = ReadEvent::IndexRead;
    const RULE: &str = "a page of the index is not as it was when the table was opened";

    fn decode(fetcher: &Fetcher, _seed: u64, block: &[u8]) -> Option<Index> {
        Index::decode(block, Some(&fetcher.context.memory)).ok()
    }

    fn memory(&self) -> usize {
        Index::memory(self)
    }
}

impl TableIndex {
    /// An index that stays in memory.
    pub(super) fn whole(index: Index) -> TableIndex {
        TableIndex { len: index.len(), data_end: index.data_end(), form: Form::Whole(index) }
    }

    /// `block` is the verified block at `handle`, which was decoded to `index`.
    pub(super) fn paged(fetcher: &Fetcher, number: u64, handle: BlockHandle, block: &[u8], index: Index) -> TableIndex {
        let (len, data_end, prefix) = (index.len(), index.data_end(), index.prefix().into());
        let pages = Pages::new(fetcher, number, 0, handle, block, index.memory());
        TableIndex {
            len,
            data_end,
            form: Form::Paged(Box::new(PagedIndex { len, rows: index.into_upper(), prefix, pages })),
        }
    }

    #[inline]
    fn form(&self) -> Result<&Index, &PagedIndex> {
        match &self.form {
            Form::Whole(index) => Ok(index),
            Form::Paged(paged) => paged.pages.whole().ok_or(paged),
        }
    }

    /// The index, if it is in memory from the beginning.
    #[inline]
    pub(super) fn resident(&self) -> Option<&Index> {
        match &self.form {
            Form::Whole(index) => Some(index),
            Form::Paged(_) => None,
        }
    }

    /// The index, if all of it is in memory. Once it is, it stays.
    pub(super) fn known(&self) -> Option<&Index> {
        self.form().ok()
    }

    /// The whole index, read anew if only pages of it are in memory.
    pub(super) fn read_whole(&self, fetcher: &Fetcher, handle: BlockHandle) -> Result<WholeBlock<'_, Index>> {
        match self.form() {
            Ok(index) => Ok(WholeBlock::Resident(index)),
            Err(_) => {
                let index = Index::decode(&fetcher.meta_block(handle)?, None);
                let index = index.map_err(|malformed| fetcher.corrupt(handle.offset, malformed))?;
                Ok(WholeBlock::Read(Box::new(index)))
            }
        }
    }

    /// Number of data blocks, at least 1.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Offset just past the last data block.
    pub(super) fn data_end(&self) -> u64 {
        self.data_end
    }

    /// [`Index::find`].
    #[cold]
    #[inline(never)]
    pub(super) fn find(&self, fetcher: &Fetcher, key: &[u8]) -> Result<usize> {
        match self.form() {
            Ok(index) => Ok(index.find(key, |_| ())),
            Err(paged) => paged.find(fetcher, key),
        }
    }

    /// Prefetches what [`TableIndex::find`] will read.
    #[inline]
    pub(super) fn prefetch(&self, key: &[u8]) {
        if let Ok(index) = self.form() {
            index.prefetch(key);
        }
    }

    /// [`Index::handle`].
    #[inline]
    pub(super) fn handle(&self, fetcher: &Fetcher, i: usize) -> Result<BlockHandle> {
        match self.form() {
            Ok(index) => Ok(index.handle(i)),
            Err(paged) => Ok(paged.handle(fetcher, i, true)?.unwrap_or_default()),
        }
    }

    /// [`Index::handle`], if it is in memory: for hints, which must not read.
    pub(super) fn known_handle(&self, fetcher: &Fetcher, i: usize) -> Option<BlockHandle> {
        match self.form() {
            Ok(index) => Some(index.handle(i)),
            Err(paged) => paged.handle(fetcher, i, false).ok()?,
        }
    }

    /// [`Index::compare_separator`].
    pub(super) fn compare_separator(&self, fetcher: &Fetcher, i: usize, key: &[u8]) -> Result<Ordering> {
        match self.form() {
            Ok(index) => Ok(index.compare_separator(i, key)),
            Err(paged) => match strip(key, &paged.prefix) {
                Some(rest) => Ok(compare(&paged.rest(fetcher, i)?, rest)),
                None => Ok(compare(&paged.prefix, key)),
            },
        }
    }

    /// [`Index::separator`].
    pub(super) fn separator(&self, fetcher: &Fetcher, i: usize) -> Result<Vec<u8>> {
        match self.form() {
            Ok(index) => Ok(index.separator(i).to_vec()),
            Err(paged) => Ok([&*paged.prefix, &paged.rest(fetcher, i)?].concat()),
        }
    }

    /// Whether `key` is greater than all of block `i`; false also if that is not known without a
    /// read.
    pub(super) fn is_after(&self, i: usize, key: &[u8]) -> bool {
        self.form().is_ok_and(|index| index.compare_separator(i, key).is_lt())
    }

    /// [`Index::separator`], if the whole index is in memory.
    pub(super) fn known_separator(&self, i: usize) -> Option<KeyBound<'_>> {
        self.known().map(|index| index.separator(i))
    }

    /// The pages in the cache.
    pub(super) fn slots(&self) -> Option<&BlockSlots> {
        match &self.form {
            Form::Whole(_) => None,
            Form::Paged(paged) => Some(paged.pages.slots()),
        }
    }

    /// Bytes of memory without those of the cache.
    pub(super) fn memory(&self) -> usize {
        match &self.form {
            Form::Whole(index) => index.memory(),
            Form::Paged(paged) => {
                size_of::<PagedIndex>() + paged.rows.memory() + paged.prefix.len() + paged.pages.memory()
            }
        }
    }
}

/// Offset of the heads in the block; `index` has the table.
const HEADS_AT: usize = 8;

impl PagedIndex {
    fn find(&self, fetcher: &Fetcher, key: &[u8]) -> Result<usize> {
        let Some(rest) = strip(key, &self.prefix) else {
            return Ok(if compare(key, &self.prefix).is_lt() { 0 } else { self.len });
        };
        let head = head8(rest);
        let (start, found) = self.first_from(fetcher, head)?;
        if found != Some(head) {
            return Ok(start);
        }
        let end = head.checked_add(1).map(|next| self.first_from(fetcher, next)).transpose()?;
        let mut ties = start..end.map_or(self.len, |(end, _)| end);
        while !ties.is_empty() {
            let middle = ties.start + ties.len() / 2;
            if compare(&self.rest(fetcher, middle)?, rest).is_lt() {
                ties.start = middle + 1;
            } else {
                ties.end = middle;
            }
        }
        Ok(ties.start)
    }

    /// Position of the first head that is not less than `head`, and that head.
    fn first_from(&self, fetcher: &Fetcher, head: u64) -> Result<(usize, Option<u64>)> {
        let first = self.rows.descend(head).map_or(self.len, |node| node * WIDTH);
        let mut bytes = [0; WIDTH * HEAD8_LEN];
        let bytes = &mut bytes[..self.len.saturating_sub(first).min(WIDTH) * HEAD8_LEN];
        self.pages.copy(fetcher, HEADS_AT + first * HEAD8_LEN, bytes, true)?;
        let (heads, _) = bytes.as_chunks();
        let count = HeadsNode::of(heads.iter().map(get_u64)).count_less(head);
        Ok(((first + count).min(self.len), heads.get(count).map(get_u64)))
    }

    #[cold]
    #[inline(never)]
    fn handle(&self, fetcher: &Fetcher, i: usize, may_read: bool) -> Result<Option<BlockHandle>> {
        let mut bytes = [0; HANDLE_LEN];
        let at = HEADS_AT + self.len * HEAD8_LEN + i * HANDLE_LEN;
        let is_copied = self.pages.copy(fetcher, at, &mut bytes, may_read)?;
        Ok(is_copied.then(|| BlockHandle::from_bytes(&bytes)))
    }

    /// What follows the prefix in the separator after block `i`.
    fn rest(&self, fetcher: &Fetcher, i: usize) -> Result<Vec<u8>> {
        let ends_at = HEADS_AT + self.len * (HEAD8_LEN + HANDLE_LEN);
        let mut bytes = [0; 2 * END_LEN];
        self.pages.copy(fetcher, ends_at + i * END_LEN, &mut bytes, true)?;
        let [start, end] = [[bytes[0], bytes[1], bytes[2], bytes[3]], [bytes[4], bytes[5], bytes[6], bytes[7]]];
        let [start, end] = [start, end].map(|end| get_u32(&end) as usize);
        let mut rest = vec![0; end.saturating_sub(start)];
        let rests_at = ends_at + (self.len + 1) * END_LEN + self.prefix.len();
        self.pages.copy(fetcher, rests_at + start, &mut rest, true)?;
        Ok(rest)
    }
}
