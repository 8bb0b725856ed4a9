//! [`Parts`]: what the value of a key is made of.

use std::time::SystemTime;

/// A key, the value that was put, and the operands merged into it, not combined: what a copy needs
/// to stay equal when the value expires, and what can be read when operands cannot be combined.
/// From [`Cursor::parts`](crate::Cursor::parts) and
/// [`SalvageIter::next_parts`](crate::SalvageIter::next_parts).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parts<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value that was put; `None` if there are only operands.
    pub value: Option<&'a [u8]>,
    /// When the value expires, if it does.
    pub deadline: Option<SystemTime>,
    /// What was merged into the value, oldest first. Operands that the store has combined already
    /// are one.
    pub operands: &'a [Vec<u8>],
}

impl<'a> Parts<'a> {
    /// An entry without deadline and operands.
    pub fn new(key: &'a [u8], value: Option<&'a [u8]>) -> Parts<'a> {
        Parts { key, value, deadline: None, operands: &[] }
    }
}

/// A value that was put, and the operands that change it, oldest first.
pub(super) type ValueAndOperands = (Option<Vec<u8>>, Vec<Vec<u8>>);

/// What a cursor keeps of a merged key in place of its value.
#[derive(Default)]
pub(super) struct Apart {
    pub(super) key: Vec<u8>,
    pub(super) parts: ValueAndOperands,
}
