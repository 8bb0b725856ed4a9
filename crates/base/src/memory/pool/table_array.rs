//! [`TableArray`]: what an open table keeps in memory; written once, read for long.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::table_memory::{ALIGN, TableMemory, TablePiece};

/// Shorter arrays gain little from huge pages, and would waste much of their last page.
const SHORTEST: usize = 4 * ALIGN;

/// A shared slice like `Arc<[T]>`, in table memory if it is long. Its values need no drop.
pub struct TableArray<T> {
    /// The first of `len` values in `memory`.
    start: NonNull<T>,
    len: usize,
    /// `None` if there are no values.
    memory: Option<Arc<Memory>>,
}

/// The memory of the values.
enum Memory {
    Table(#[expect(dead_code, reason = "dropping it gives the memory back")] TablePiece),
    Allocated(NonNull<u8>, Layout),
}

// SAFETY: allocated memory has this one owner.
unsafe impl Send for Memory {}
// SAFETY: the memory is accessible only through the arrays that own it.
unsafe impl Sync for Memory {}

// SAFETY: arrays share values as references do.
unsafe impl<T: Send + Sync> Send for TableArray<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for TableArray<T> {}

impl Memory {
    fn new(memory: Option<&Arc<TableMemory>>, layout: Layout) -> (Memory, NonNull<u8>) {
        if layout.size() >= SHORTEST
            && let Some(memory) = memory
            && let Some(piece) = memory.take(layout.size())
        {
            let start = piece.start();
            return (Memory::Table(piece), start);
        }
        // SAFETY: the layout's size is not 0.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        (Memory::Allocated(start, layout), start)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Memory::Allocated(start, layout) = *self {
            // SAFETY: allocated with this layout in `new`, and freed only here.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

impl<T> TableArray<T> {
    /// An array of `values`, in table memory if that is given and the array is long enough.
    pub fn new(memory: Option<&Arc<TableMemory>>, values: impl ExactSizeIterator<Item = T>) -> TableArray<T> {
        let array = TableArray::unjoined(memory, values);
        if let (Some(Memory::Table(_)), Some(memory)) = (array.memory.as_deref(), memory) {
            memory.join_pages();
        }
        array
    }

    /// As [`TableArray::new`], in small pages.
    fn unjoined(memory: Option<&Arc<TableMemory>>, values: impl ExactSizeIterator<Item = T>) -> TableArray<T> {
        const { assert!(!std::mem::needs_drop::<T>() && size_of::<T>() > 0 && align_of::<T>() <= ALIGN) };
        let capacity = values.len();
        let layout = match Layout::array::<T>(capacity) {
            Ok(layout) if layout.size() > 0 => layout,
            Ok(_) => return TableArray::default(),
            Err(_) => handle_alloc_error(Layout::new::<T>()),
        };
        let (held, start) = Memory::new(memory, layout);
        let start = start.cast::<T>();
        let mut len = 0;
        for (i, value) in (0..capacity).zip(values) {
            // SAFETY: the memory holds `capacity` values, is aligned for them, and nothing else
            // knows of it yet.
            unsafe { start.add(i).write(value) };
            len = i + 1;
        }
        TableArray { start, len, memory: Some(Arc::new(held)) }
    }
}

impl TableArray<u8> {
    /// An array of `len` bytes that `fill` writes, and what that returns. For bytes that are needed
    /// for a moment: an allocator would keep memory between pieces that stay.
    pub fn filled<R>(memory: &Arc<TableMemory>, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> (TableArray<u8>, R) {
        let array = TableArray::unjoined(Some(memory), std::iter::repeat_n(0, len));
        // SAFETY: these are the array's bytes, and nobody else knows of them yet.
        let result = fill(unsafe { std::slice::from_raw_parts_mut(array.start.as_ptr(), array.len) });
        (array, result)
    }
}

impl<T> Default for TableArray<T> {
    fn default() -> TableArray<T> {
        TableArray { start: NonNull::dangling(), len: 0, memory: None }
    }
}

impl<T> Clone for TableArray<T> {
    fn clone(&self) -> TableArray<T> {
        TableArray { start: self.start, len: self.len, memory: self.memory.clone() }
    }
}

impl<T> Deref for TableArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` values were written when the array was made, and they live as long as any
        // clone. They change only as shared values may.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: fmt::Debug> fmt::Debug for TableArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&**self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[repr(align(128))]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Wide([u64; 16]);

    /// An array of `len` values.
    fn array<T>(memory: Option<&Arc<TableMemory>>, len: u16, value: impl Fn(u16) -> T) -> TableArray<T> {
        TableArray::new(memory, (0..len).map(value))
    }

    #[test]
    fn values_are_found_in_either_memory() {
        let memory = TableMemory::with_chunks(1);
        for memory in [None, Some(&memory)] {
            for len in [0, 1, 3, 31, 32, 33, if cfg!(miri) { 150 } else { 5000 }] {
                let pairs = array(memory, len, |i| Wide([i.into(); 16]));
                let other = pairs.clone();
                let bytes = array(memory, len * 10, |i| i.to_le_bytes()[0]);
                drop(pairs);
                assert!(other.iter().zip(0..len).all(|(pair, i)| pair.0 == [i.into(); 16]), "{len}");
                assert!(bytes.iter().zip(0..).all(|(byte, i): (_, u16)| *byte == i.to_le_bytes()[0]), "{len}");
                assert_eq!((other.len(), bytes.len()), (len.into(), 10 * usize::from(len)));
            }
        }
        assert!(TableArray::<u64>::default().is_empty());
    }

    #[test]
    fn bytes_are_those_that_were_filled_in() {
        let memory = TableMemory::with_chunks(1);
        for len in [0, 1, 70_000, 3] {
            let (bytes, filled) = TableArray::filled(&memory, len, |bytes| {
                assert!(bytes.iter().all(|&byte| byte == 0));
                bytes.fill(7);
                bytes.len()
            });
            assert_eq!((filled, &bytes[..]), (len, &vec![7; len][..]));
        }
    }

    /// An iterator that lies about its length.
    struct Lie(u32, usize);

    impl Iterator for Lie {
        type Item = u32;

        fn next(&mut self) -> Option<u32> {
            self.0 = self.0.checked_sub(1)?;
            Some(self.0)
        }

        fn size_hint(&self) -> (usize, Option<usize>) {
            (self.1, Some(self.1))
        }
    }

    impl ExactSizeIterator for Lie {}

    #[test]
    fn a_wrong_length_hint_neither_exposes_nor_overruns_memory() {
        assert_eq!(TableArray::new(None, Lie(5, 3))[..], [4, 3, 2]);
        assert_eq!(TableArray::new(None, Lie(2, 300))[..], [1, 0]);
    }

    /// Arrays come and go and, like slots, are written to. No write is lost, whatever the system
    /// does with the pages.
    #[test]
    fn threads_share_arrays_and_the_last_gives_them_back() {
        let memory = TableMemory::with_chunks(2);
        let (kept_at_most, rounds, longest): (usize, u16, u16) =
            if cfg!(miri) { (3, 5, 4000) } else { (40, 300, 30_000) };
        std::thread::scope(|scope| {
            for thread in 0..3u16 {
                let memory = &memory;
                scope.spawn(move || {
                    let mut kept: Vec<TableArray<AtomicU64>> = Vec::new();
                    for round in 0..rounds {
                        let array =
                            array(Some(memory), 500 + round.wrapping_mul(7919).wrapping_add(thread) % longest, |_| {
                                AtomicU64::new(0)
                            });
                        let other = array.clone();
                        scope.spawn(move || other.iter().for_each(|value| _ = value.fetch_add(1, Ordering::Relaxed)));
                        array.iter().for_each(|value| _ = value.fetch_add(2, Ordering::Relaxed));
                        kept.push(array);
                        if kept.len() > kept_at_most {
                            let array = kept.swap_remove(usize::from(round) % kept_at_most);
                            // The other thread may have added all, part or none.
                            assert!(array.iter().all(|value| matches!(value.load(Ordering::Relaxed), 2 | 3)));
                        }
                    }
                });
            }
        });
        // All went back, each to its place.
        assert!(memory.settled().iter().all(|joined| !joined));
    }
}
