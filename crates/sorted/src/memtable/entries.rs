//! [`EntryList`]: the entries of a memtable, in the order in which they were written.
//!
//! ```text
//! chunk  = entry* end?            a power of two of bytes; `end` only if there is room for it
//! entry  = skip? header bytes     8-byte aligned
//! header = sequence number << 8 | kind: u64, keyspace: u32, key length: u32,
//!          value length | OUTSIDE?: u32, older: u32
//! bytes  = key value              or, if they are outside of the chunk, their address
//! skip   = jump << 32 | depth << 8 | SKIP: u64
//! end    = END: u64
//! ```
//!
//! An entry's position is that of its header, in units of 8 bytes from the start of the first
//! chunk. `older` is the position of the key's next older version, 0 if there is none.
//!
//! A version with an older one has a skip word in front of its header. The versions of a key thus
//! form a list with a jump pointer in each node (E. W. Myers, "An applicative random-access stack",
//! 1983). A snapshot finds its version in logarithmically many steps, however often the key was
//! written.
//!
//! Invariants that the `unsafe` below rests on:
//! - One thread writes at a time, the holder of the `EntryWriter`. An entry is complete before a
//!   `Release` store (to the index, or to `end`) publishes its position, and never changes
//!   afterwards.
//! - Readers get positions only from such stores, and from entries reached that way. They see
//!   everything that happened before the store. Addresses of chunks therefore need no ordering of
//!   their own.
//! - Nothing is freed before the list is dropped, and a reader's reference keeps the list alive.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};
use std::time::Duration;

use super::bounds::KeyBounds;
use crate::format::key::{SeqNo, ValueKind, equal};
use crate::memory::pool::{CHUNK_LEN, MemtableChunk, MemtablePool};
use crate::memory::prefetch::prefetch;
use crate::sync::{Mutex, MutexGuard, OnceLock, time};

/// Positions count units of this many bytes.
const UNIT: usize = 8;
const HEADER_LEN: usize = size_of::<EntryHeader>();

const CACHE_LINE: usize = 64;
/// How many bytes ahead of its writes the writer prefetches: a few entries.
const WRITE_AHEAD: usize = 512;

/// The kind of a range delete, which is no entry of a key.
const DELETE_RANGE: u64 = 0xfd;
/// Low byte of a skip word, where a header has the kind.
const SKIP: u64 = 0xff;
/// The word after the last entry of a chunk.
const END: u64 = 0xfe;
/// Flag in the value length of an entry whose bytes are outside its chunk.
const OUTSIDE: u32 = 1 << 31;
/// Largest depth. Versions beyond it are passed one by one; it takes 16 M writes of a key to get
/// there.
const MAX_DEPTH: u32 = (1 << 24) - 1;

/// Smallest chunk.
const MIN_CHUNK_LEN: usize = 4 << 10;
/// Number of chunk addresses stored in the list itself. Those of later chunks are in tables of 64,
/// 128, 256 addresses and so on.
const FIRST_CHUNKS: usize = 64;
/// Enough tables for all positions, even with chunks of the smallest size.
const TABLES: usize = (1u64 << 32).ilog2() as usize - (MIN_CHUNK_LEN / UNIT * FIRST_CHUNKS).ilog2() as usize;

#[repr(C)]
struct EntryHeader {
    seqno_and_kind: u64,
    keyspace: u32,
    key_len: u32,
    value_len: u32,
    older: u32,
}

/// The position of an entry. Later entries have greater positions. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position(u32);

impl Position {
    /// The inverse of [`get`](Position::get); `None` for 0.
    pub(super) fn new(position: u32) -> Option<Position> {
        (position != 0).then_some(Position(position))
    }

    pub(super) fn get(self) -> u32 {
        self.0
    }
}

pub(super) struct EntryList {
    pool: Arc<MemtablePool>,
    /// log2 of the units in a chunk.
    chunk_bits: u32,
    /// Entries before this position are complete.
    end: AtomicU32,
    /// Bytes of entries stored outside of the chunks.
    outside: AtomicUsize,
    /// Bytes taken from the pool.
    allocated: AtomicUsize,
    first_chunks: [AtomicPtr<u8>; FIRST_CHUNKS],
    /// Table `n` has 64 · 2^n addresses.
    tables: [OnceLock<Box<[AtomicPtr<u8>]>>; TABLES],
    append_state: Mutex<AppendState>,
}

/// State that only the writer needs.
struct AppendState {
    /// All memory of the list: chunks, and the bytes stored outside of them.
    owned: Vec<MemtableChunk>,
    /// Number of chunks.
    chunks: usize,
    /// Where the next entry begins, in units.
    next: usize,
    bounds: KeyBounds,
}

/// An entry to be appended.
#[derive(Clone, Copy)]
pub(super) struct NewEntry<'a> {
    pub(super) keyspace: u32,
    pub(super) key: &'a [u8],
    pub(super) seqno: SeqNo,
    /// `None` for a range delete, whose value is its end.
    pub(super) kind: Option<ValueKind>,
    pub(super) value: &'a [u8],
}

impl EntryList {
    /// An empty list with chunks suited to about `size` bytes.
    pub(super) fn new(size: usize, pool: &Arc<MemtablePool>) -> EntryList {
        let chunk_len = (size / 4).next_power_of_two().clamp(MIN_CHUNK_LEN, CHUNK_LEN);
        EntryList {
            pool: Arc::clone(pool),
            chunk_bits: (chunk_len / UNIT).ilog2(),
            end: AtomicU32::new(0),
            outside: AtomicUsize::new(0),
            allocated: AtomicUsize::new(0),
            first_chunks: [const { AtomicPtr::new(ptr::null_mut()) }; FIRST_CHUNKS],
            tables: [const { OnceLock::new() }; TABLES],
            append_state: Mutex::new(AppendState {
                owned: Vec::new(),
                chunks: 0,
                next: 0,
                bounds: KeyBounds::default(),
            }),
        }
    }

    /// Locks the list for appending.
    pub(super) fn writer(&self) -> EntryWriter<'_> {
        EntryWriter { list: self, state: self.append_state.lock(), waited: Duration::ZERO }
    }

    /// Whether all keys of a keyspace come before `end` in a direction; see
    /// [`KeyBounds::end_before`]. Waits for the writer.
    pub(super) fn end_before(&self, keyspace: u32, end: Option<&[u8]>, forward: bool) -> bool {
        end.is_none() || self.append_state.lock().bounds.end_before(keyspace, end, forward)
    }

    /// Bytes that the entries take.
    pub(super) fn used(&self) -> usize {
        self.end.load(Relaxed) as usize * UNIT + self.outside.load(Relaxed)
    }

    /// Bytes taken from the pool.
    pub(super) fn allocated(&self) -> usize {
        self.allocated.load(Relaxed)
    }

    fn chunk_len(&self) -> usize {
        UNIT << self.chunk_bits
    }

    /// The address of a unit in an existing chunk.
    #[inline]
    fn address(&self, unit: usize) -> *mut u8 {
        let chunk = unit >> self.chunk_bits;
        // Relaxed: see the module's second invariant.
        let start = match self.first_chunks.get(chunk) {
            Some(chunk) => chunk.load(Relaxed),
            None => self.later_chunk(chunk).load(Relaxed),
        };
        start.wrapping_add((unit & ((1 << self.chunk_bits) - 1)) * UNIT)
    }

    fn table(&self, table: usize) -> &[AtomicPtr<u8>] {
        self.tables[table].get_or_init(|| (0..FIRST_CHUNKS << table).map(|_| AtomicPtr::default()).collect())
    }

    #[cold]
    fn later_chunk(&self, chunk: usize) -> &AtomicPtr<u8> {
        let (table, at) = locate_in_tables(chunk);
        &self.table(table)[at]
    }

    /// The entry at a position of this list.
    pub(super) fn entry(&self, position: Position) -> EntryRef<'_> {
        EntryRef { header: self.address(position.0 as usize).cast_const().cast(), list: PhantomData }
    }

    /// Prefetches the entry at a position of this list: one of usual length, with its value. With
    /// two lines, a scan that copies values of 100 bytes took a third longer.
    pub(super) fn prefetch(&self, position: Position) {
        let header = self.address(position.0 as usize);
        (0..3).for_each(|line| prefetch(header.wrapping_add(line * CACHE_LINE)));
    }

    /// The newest version that `snapshot` sees, among `entry` and the older versions of its key.
    pub(super) fn version<'a>(&'a self, entry: EntryRef<'a>, snapshot: SeqNo) -> Option<EntryRef<'a>> {
        let mut entry = entry;
        while entry.seqno() > snapshot {
            let older = self.entry(entry.older()?);
            let jump = self.entry(entry.skip()?.0);
            // The versions that a jump skips are newer than its target.
            entry = if jump.seqno() > snapshot { jump } else { older };
        }
        Some(entry)
    }

    /// The jump target of the version at `position`, and how many older versions the key has.
    fn skip(&self, position: Position) -> (Position, u32) {
        self.entry(position).skip().unwrap_or((position, 0))
    }

    /// Where the complete entries end.
    pub(super) fn end(&self) -> u32 {
        self.end.load(Acquire)
    }

    /// Iterates over the complete entries from `start` on, which is 0 or the
    /// [end](EntryList::end) at an earlier time.
    pub(super) fn walk(&self, start: u32) -> Walk<'_> {
        Walk { list: self, at: start, end: self.end() }
    }
}

/// The table of a later chunk, and the chunk's index in it: table `n` begins with chunk 64 · 2^n.
fn locate_in_tables(chunk: usize) -> (usize, usize) {
    let table = (chunk / FIRST_CHUNKS).ilog2();
    (table as usize, chunk - (FIRST_CHUNKS << table))
}

/// The exclusive right to append to a list. Walks see the appended entries once it is dropped.
pub(super) struct EntryWriter<'a> {
    list: &'a EntryList,
    state: MutexGuard<'a, AppendState>,
    waited: Duration,
}

impl EntryWriter<'_> {
    /// Time that this writer has waited for memory.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    /// As [`EntryList::used`], including this writer's appends.
    pub(super) fn used(&self) -> usize {
        self.state.next * UNIT + self.list.outside.load(Relaxed)
    }

    /// Appends an entry whose next older version is at `older`. Returns its position.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "lengths are within the limits of the format, positions are checked"
    )]
    #[inline]
    pub(super) fn append(&mut self, entry: NewEntry<'_>, older: Option<Position>) -> Position {
        if older.is_none() && entry.kind.is_some() {
            self.state.bounds.add(entry.keyspace, entry.key);
        }
        let len = entry.key.len() + entry.value.len();
        let outside = len > self.list.chunk_len() / 8;
        let inside_len = if outside { size_of::<*const u8>() } else { len };
        let skip_units = usize::from(older.is_some());
        let units = skip_units + (HEADER_LEN + inside_len).div_ceil(UNIT);
        let start = self.reserve(units);
        let position = Position((start + skip_units) as u32);
        let header = self.list.address(position.0 as usize).cast::<EntryHeader>();
        // SAFETY: `reserve` returned units that are not published yet. The skip word, the header
        // and the bytes fit into them and are aligned to 8 bytes.
        unsafe {
            if let Some(older) = older {
                header.cast::<u64>().sub(1).write(self.skip_word(older));
            }
            header.write(EntryHeader {
                seqno_and_kind: entry.seqno << 8 | entry.kind.map_or(DELETE_RANGE, |kind| kind as u64),
                keyspace: entry.keyspace,
                key_len: entry.key.len() as u32,
                value_len: entry.value.len() as u32 | if outside { OUTSIDE } else { 0 },
                older: older.map_or(0, Position::get),
            });
            let mut bytes = header.add(1).cast::<u8>();
            if outside {
                let chunk = self.allocate(len);
                self.list.outside.fetch_add(len, Relaxed);
                header.add(1).cast::<*mut u8>().write(chunk);
                bytes = chunk;
            }
            bytes.copy_from_nonoverlapping(entry.key.as_ptr(), entry.key.len());
            bytes.add(entry.key.len()).copy_from_nonoverlapping(entry.value.as_ptr(), entry.value.len());
        }
        position
    }

    /// The skip word of a new version whose next older one is `older`. If the jump of `older` and
    /// the next jump have the same length, the new version jumps over both; otherwise it jumps to
    /// `older`.
    fn skip_word(&self, older: Position) -> u64 {
        let (jump, depth) = self.list.skip(older);
        let (next_jump, jump_depth) = self.list.skip(jump);
        let (_, next_depth) = self.list.skip(next_jump);
        let target = if depth - jump_depth == jump_depth - next_depth { next_jump } else { older };
        let depth = (depth + 1).min(MAX_DEPTH);
        u64::from(target.0) << 32 | u64::from(depth) << 8 | SKIP
    }

    /// Reserves `units` contiguous units in one chunk; returns the first.
    fn reserve(&mut self, units: usize) -> usize {
        let bits = self.list.chunk_bits;
        let state = &mut *self.state;
        let chunk_end = state.chunks << bits;
        if state.next + units > chunk_end {
            if state.next < chunk_end {
                // SAFETY: the unit is in the newest chunk, after its last entry.
                unsafe { self.list.address(state.next).cast::<u64>().write(END) };
            }
            // Position 0 is reserved for "none".
            state.next = chunk_end.max(1);
            self.add_chunk();
        }
        let start = self.state.next;
        self.state.next += units;
        // The following units are written soon, in order.
        for ahead in [0, 1, 2] {
            prefetch(self.list.address(start).wrapping_add(WRITE_AHEAD + ahead * CACHE_LINE));
        }
        start
    }

    fn add_chunk(&mut self) {
        let list = self.list;
        let start = self.allocate(list.chunk_len());
        let chunk = self.state.chunks;
        // A memtable of the largest size plus a largest batch of the smallest entries stays far
        // below this.
        assert!(chunk + 1 < 1 << (32 - list.chunk_bits), "positions in a memtable take 32 bits");
        self.state.chunks += 1;
        if let Some(first) = list.first_chunks.get(chunk) {
            return first.store(start, Relaxed);
        }
        list.later_chunk(chunk).store(start, Relaxed);
    }

    /// Allocates memory that is freed with the list.
    fn allocate(&mut self, len: usize) -> *mut u8 {
        let begun = time::now();
        let chunk = self.list.pool.take(len);
        let start = chunk.start().as_ptr();
        // First touch: the system populates new memory now, often a whole chunk at once.
        // SAFETY: the chunk has at least one byte and belongs to this writer alone.
        unsafe { start.write_volatile(0) };
        self.waited += time::since(begun);
        self.list.allocated.fetch_add(chunk.len(), Relaxed);
        self.state.owned.push(chunk);
        start
    }
}

impl Drop for EntryWriter<'_> {
    #[inline]
    fn drop(&mut self) {
        #[expect(clippy::cast_possible_truncation, reason = "`add_chunk` checks that positions have room")]
        self.list.end.store(self.state.next as u32, Release);
    }
}

/// An entry of a list that lives at least as long as `'a`.
#[derive(Clone, Copy)]
pub(super) struct EntryRef<'a> {
    header: *const EntryHeader,
    list: PhantomData<&'a EntryList>,
}

impl<'a> EntryRef<'a> {
    fn header(self) -> &'a EntryHeader {
        // SAFETY: the entry is complete, never changes, and lives as long as the list; see the
        // module's invariants.
        unsafe { &*self.header }
    }

    pub(super) fn seqno(self) -> SeqNo {
        self.header().seqno_and_kind >> 8
    }

    /// The kind of an entry of a key.
    #[inline]
    pub(super) fn kind(self) -> ValueKind {
        let Ok(kind) = ValueKind::decode(self.header().seqno_and_kind & 0xff) else {
            unreachable!("positions of range deletes are in their tree alone")
        };
        kind
    }

    /// The end of a range delete, empty if it has none; `None` for an entry of a key.
    pub(super) fn range_end(self) -> Option<&'a [u8]> {
        (self.header().seqno_and_kind & 0xff == DELETE_RANGE).then(|| self.value())
    }

    pub(super) fn keyspace(self) -> u32 {
        self.header().keyspace
    }

    pub(super) fn older(self) -> Option<Position> {
        Position::new(self.header().older)
    }

    /// The jump target of this version, and how many older versions the key has; `None` if there is
    /// none.
    fn skip(self) -> Option<(Position, u32)> {
        self.older()?;
        // SAFETY: an entry with an older version has a skip word before its header.
        let word = unsafe { *self.header.cast::<u64>().sub(1) };
        #[expect(clippy::cast_possible_truncation, reason = "the parts are cut out")]
        let (jump, depth) = ((word >> 32) as u32, (word as u32) >> 8);
        Some((Position(jump), depth))
    }

    /// The key, followed by the value.
    fn bytes(self) -> *const u8 {
        // SAFETY: the header is followed by the bytes or their address.
        unsafe {
            let bytes = self.header.add(1);
            if self.header().value_len & OUTSIDE == 0 { bytes.cast() } else { *bytes.cast::<*const u8>() }
        }
    }

    pub(super) fn key(self) -> &'a [u8] {
        // SAFETY: as in `header`; the key has this length.
        unsafe { std::slice::from_raw_parts(self.bytes(), self.header().key_len as usize) }
    }

    pub(super) fn value(self) -> &'a [u8] {
        let len = (self.header().value_len & !OUTSIDE) as usize;
        // SAFETY: as in `key`; the value follows the key.
        unsafe { std::slice::from_raw_parts(self.bytes().add(self.header().key_len as usize), len) }
    }

    /// Whether this is a version of `key` in `keyspace`.
    pub(super) fn is_of(self, keyspace: u32, key: &[u8]) -> bool {
        self.keyspace() == keyspace && equal(self.key(), key)
    }
}

/// Iterates over the entries in write order.
pub(super) struct Walk<'a> {
    list: &'a EntryList,
    at: u32,
    end: u32,
}

impl Walk<'_> {
    /// The `start` of a walk that continues after this one.
    pub(super) fn end(&self) -> u32 {
        self.end
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = (Position, EntryRef<'a>);

    fn next(&mut self) -> Option<(Position, EntryRef<'a>)> {
        self.at = self.at.max(1);
        while self.at < self.end {
            // SAFETY: a position before `end` holds the first word of an entry or the end of a
            // chunk.
            let word = unsafe { *self.list.address(self.at as usize).cast::<u64>() };
            match word & 0xff {
                END => self.at = ((self.at >> self.list.chunk_bits) + 1) << self.list.chunk_bits,
                SKIP => self.at += 1,
                _ => {
                    let position = Position(self.at);
                    let entry = self.list.entry(position);
                    let header = entry.header();
                    let inside_len = match header.value_len & OUTSIDE {
                        0 => header.key_len as usize + header.value_len as usize,
                        _ => size_of::<*const u8>(),
                    };
                    #[expect(clippy::cast_possible_truncation, reason = "it fits into a chunk")]
                    let units = (HEADER_LEN + inside_len).div_ceil(UNIT) as u32;
                    self.at += units;
                    return Some((position, entry));
                }
            }
        }
        None
    }
}
