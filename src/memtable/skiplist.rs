//! A skip list of entries in an arena: one writer at a time, any number of readers without a lock.
//!
//! Invariants that the `unsafe` below rests on:
//! - A node is written completely before a `Release` store links it, and never changes afterwards but for its tower.
//! - Nothing is freed before the list is dropped, and a reader's reference to the list keeps it from being dropped.
//! - Only the holder of the writer's lock links nodes, so that a predecessor found under it stays one.
//!
//! Shape and probabilities are those of William Pugh, "Skip Lists" (CACM 1990), with a branching of 4.

use std::cmp::Ordering;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use parking_lot::{Mutex, MutexGuard};

use super::arena::Arena;
use crate::format::key::{SeqNo, ValueKind};

const MAX_HEIGHT: usize = 12;
const BRANCHING: u32 = 4;

/// What a node begins with. Its tower of `height` links, its key and its value follow.
#[repr(C)]
struct Node {
    seqno: SeqNo,
    keyspace: u32,
    key_len: u32,
    value_len: u32,
    height: u16,
    kind: ValueKind,
}

const TOWER_OFFSET: usize = size_of::<Node>().next_multiple_of(align_of::<AtomicPtr<Node>>());

/// Position of an entry in the order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub(super) keyspace: u32,
    pub(super) key: &'a [u8],
    pub(super) seqno: SeqNo,
}

impl Place<'_> {
    fn cmp(&self, other: &Place<'_>) -> Ordering {
        self.keyspace
            .cmp(&other.keyspace)
            .then_with(|| self.key.cmp(other.key))
            .then_with(|| other.seqno.cmp(&self.seqno))
    }
}

/// A node of a list that the holder keeps alive. Null is the end of the list.
#[derive(Clone, Copy)]
pub(super) struct NodeRef(*const Node);

impl NodeRef {
    pub(super) const END: NodeRef = NodeRef(ptr::null());

    pub(super) fn is_end(self) -> bool {
        self.0.is_null()
    }

    /// Where the key begins.
    fn bytes(self) -> *const u8 {
        // SAFETY: a node is followed by its tower, its key and its value in one allocation.
        unsafe { self.0.cast::<u8>().add(TOWER_OFFSET + usize::from((*self.0).height) * size_of::<AtomicPtr<Node>>()) }
    }

    fn link(self, level: usize) -> *const AtomicPtr<Node> {
        // SAFETY: callers pass a level below the node's height; see `bytes`.
        unsafe { self.0.cast::<u8>().add(TOWER_OFFSET).cast::<AtomicPtr<Node>>().add(level) }
    }
}

/// What the writer needs beside the list itself.
struct Writer {
    arena: Arena,
    random: u32,
}

pub(super) struct SkipList {
    head: NonNull<Node>,
    writer: Mutex<Writer>,
}

// SAFETY: nodes are immutable once linked but for their atomic links; the rest is behind the mutex.
unsafe impl Send for SkipList {}
// SAFETY: as above.
unsafe impl Sync for SkipList {}

impl SkipList {
    pub(super) fn new(chunk_len: usize) -> SkipList {
        let mut arena = Arena::new(chunk_len);
        let place = Place { keyspace: 0, key: &[], seqno: 0 };
        let head = new_node(&mut arena, MAX_HEIGHT, place, ValueKind::Delete, &[]);
        SkipList { head, writer: Mutex::new(Writer { arena, random: 0x9e37_79b9 }) }
    }

    /// Takes the right to insert.
    pub(super) fn writer(&self) -> SkipListWriter<'_> {
        SkipListWriter { list: self, writer: self.writer.lock() }
    }

    fn head(&self) -> NodeRef {
        NodeRef(self.head.as_ptr())
    }

    fn next_at(&self, node: NodeRef, level: usize) -> NodeRef {
        // SAFETY: `node` is of this list and at least `level + 1` high.
        NodeRef(unsafe { (*node.link(level)).load(Acquire) })
    }

    pub(super) fn next(&self, node: NodeRef) -> NodeRef {
        self.next_at(node, 0)
    }

    pub(super) fn first(&self) -> NodeRef {
        self.next_at(self.head(), 0)
    }

    /// The last entry before `place`, or the end if there is none; and, through `visit`, the predecessor on each level.
    fn find_before(&self, place: &Place<'_>, mut visit: impl FnMut(usize, NodeRef)) -> NodeRef {
        let mut node = self.head();
        for level in (0..MAX_HEIGHT).rev() {
            loop {
                let next = self.next_at(node, level);
                if next.is_end() || self.place(next).cmp(place) != Ordering::Less {
                    break;
                }
                node = next;
            }
            visit(level, node);
        }
        if ptr::eq(node.0, self.head.as_ptr()) { NodeRef::END } else { node }
    }

    /// The first entry at or behind `place`.
    pub(super) fn seek(&self, place: &Place<'_>) -> NodeRef {
        let before = self.find_before(place, |_, _| {});
        if before.is_end() { self.first() } else { self.next(before) }
    }

    /// The last entry before `place`.
    pub(super) fn before(&self, place: &Place<'_>) -> NodeRef {
        self.find_before(place, |_, _| {})
    }

    pub(super) fn place(&self, node: NodeRef) -> Place<'_> {
        // SAFETY: `node` is a linked node of this list, which `self` keeps alive, and its key follows its tower.
        unsafe {
            Place {
                keyspace: (*node.0).keyspace,
                key: std::slice::from_raw_parts(node.bytes(), (*node.0).key_len as usize),
                seqno: (*node.0).seqno,
            }
        }
    }

    pub(super) fn kind(&self, node: NodeRef) -> ValueKind {
        // SAFETY: as in `place`.
        unsafe { (*node.0).kind }
    }

    pub(super) fn value(&self, node: NodeRef) -> &[u8] {
        // SAFETY: as in `place`; the value follows the key.
        unsafe {
            let start = node.bytes().add((*node.0).key_len as usize);
            std::slice::from_raw_parts(start, (*node.0).value_len as usize)
        }
    }

    /// Bytes taken from the system.
    pub(super) fn allocated(&self) -> usize {
        self.writer.lock().arena.allocated()
    }
}

/// The right to insert into a list.
pub(super) struct SkipListWriter<'a> {
    list: &'a SkipList,
    writer: MutexGuard<'a, Writer>,
}

impl SkipListWriter<'_> {
    /// Adds an entry; no entry may stand at `place` yet. Returns the bytes it takes.
    pub(super) fn insert(&mut self, place: Place<'_>, kind: ValueKind, value: &[u8]) -> usize {
        let height = self.random_height();
        let node = new_node(&mut self.writer.arena, height, place, kind, value);
        let new = NodeRef(node.as_ptr());
        let mut before = [self.list.head(); MAX_HEIGHT];
        self.list.find_before(&place, |level, node| before[level] = node);
        for (level, before) in before.iter().enumerate().take(height) {
            // SAFETY: `before[level]` is higher than `level` because it was found there; `new` is `height` high. Relaxed, because
            // readers reach the new node only through the Release store behind it.
            unsafe {
                let next = (*before.link(level)).load(Relaxed);
                (*new.link(level)).store(next, Relaxed);
                (*before.link(level)).store(node.as_ptr(), Release);
            }
        }
        node_len(height, place.key.len(), value.len())
    }

    fn random_height(&mut self) -> usize {
        // xorshift32 (George Marsaglia, 2003).
        let random = &mut self.writer.random;
        let mut height = 1;
        loop {
            *random ^= *random << 13;
            *random ^= *random >> 17;
            *random ^= *random << 5;
            if height == MAX_HEIGHT || !random.is_multiple_of(BRANCHING) {
                return height;
            }
            height += 1;
        }
    }
}

fn node_len(height: usize, key_len: usize, value_len: usize) -> usize {
    TOWER_OFFSET + height * size_of::<AtomicPtr<Node>>() + key_len + value_len
}

/// A node that is not linked yet. Lengths are within the limits of keys and values, which fit 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "lengths and heights are bounded by the limits of the format")]
fn new_node(arena: &mut Arena, height: usize, place: Place<'_>, kind: ValueKind, value: &[u8]) -> NonNull<Node> {
    let (key_len, value_len) = (place.key.len(), value.len());
    let node = arena.alloc(node_len(height, key_len, value_len)).cast::<Node>();
    // SAFETY: the piece is large enough for the node, its tower, its key and its value, aligned for all of them, and nobody else
    // knows it yet.
    unsafe {
        node.write(Node {
            seqno: place.seqno,
            keyspace: place.keyspace,
            key_len: key_len as u32,
            value_len: value_len as u32,
            height: height as u16,
            kind,
        });
        let new = NodeRef(node.as_ptr());
        for level in 0..height {
            new.link(level).cast_mut().write(AtomicPtr::new(ptr::null_mut()));
        }
        let bytes = new.bytes().cast_mut();
        bytes.copy_from_nonoverlapping(place.key.as_ptr(), key_len);
        bytes.add(key_len).copy_from_nonoverlapping(value.as_ptr(), value_len);
    }
    node
}
