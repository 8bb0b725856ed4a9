//! [`Extras`]: the blocks between a table's filter and its properties. A reader can do without each
//! of them, and skips those of kinds that it does not know.
//!
//! Per block, in the order of the file: its kind and its length without the trailer, as varints.
//! Kind 1 is the range filter.

use super::footer::BlockHandle;
use crate::format::coding::{Decoder, put_varint};
use crate::format::{Decoded, Malformed};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras(Vec<(u64, u32)>);

impl Extras {
    /// Most blocks. More are not written, and refused.
    pub(super) const MAX: usize = 64;
    /// The kind of a range filter. Part of the format.
    pub(super) const RANGE_FILTER: u64 = 1;

    /// These, and after them a block of `kind`.
    pub(super) fn with(mut self, kind: u64, len: u32) -> Extras {
        self.0.push((kind, len));
        self
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The blocks, by kind, where they follow each other from `start` on.
    pub(super) fn handles(&self, start: u64) -> impl Iterator<Item = (u64, BlockHandle)> {
        self.0.iter().scan(Some(start), |offset, &(kind, len)| {
            let handle = BlockHandle { offset: (*offset)?, len };
            *offset = handle.end();
            Some((kind, handle))
        })
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        for &(kind, len) in &self.0 {
            put_varint(out, kind);
            put_varint(out, len.into());
        }
    }

    pub(super) fn decode(content: &mut Decoder<'_>) -> Decoded<Extras> {
        let mut extras = Extras::default();
        while !content.is_empty() {
            let (kind, len) = (content.varint()?, content.varint_u32()?);
            if extras.0.len() == Extras::MAX || extras.0.iter().any(|&(other, _)| other == kind) {
                return Err(Malformed("the extra blocks of a table are too many, or two are of one kind"));
            }
            extras = extras.with(kind, len);
        }
        Ok(extras)
    }
}
