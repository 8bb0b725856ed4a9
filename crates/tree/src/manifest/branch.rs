//! [`Branch`]: which copy of a store wrote a file.
//!
//! A copy goes on with the file numbers of its original, so that two stores write a file of each
//! number. Among all copies of a store, a file is known by its number and the branch that wrote it.
//! The first branch has the store's hash seed for an id, which is drawn when the store is created.
//!
//! ```text
//! original:  1 ............ 60 ....... 90      all of branch "seed"
//! its copy:  1 ............ 60 | 61 .. 75      from 61 on, of a branch that the copy has drawn
//! ```
//!
//! A copy is made with a branch that is not drawn yet. Opening it for writing draws the id, and the
//! first edit states it, in a new manifest. Copies of one copy therefore have branches of their
//! own, even if their files are the same bytes.

use crate::format::coding::{Decoder, put_u64, put_varint};
use crate::format::{Decoded, Malformed};

/// The files with numbers from `first` on, up to the next branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    pub first: u64,
    /// Random; 0 if it is not drawn yet.
    pub id: u64,
}

impl Branch {
    /// A branch that begins with file number `first`, whose id is not drawn yet.
    pub fn undrawn(first: u64) -> Branch {
        Branch { first, id: 0 }
    }

    pub(super) fn put(self, out: &mut Vec<u8>) {
        put_varint(out, self.first);
        put_u64(out, self.id);
    }

    pub(super) fn decode(content: &mut Decoder<'_>) -> Decoded<Branch> {
        Ok(Branch { first: content.varint()?, id: content.u64()? })
    }

    /// Appends `branch` to those of a store.
    pub(super) fn add(branches: &mut Vec<Branch>, branch: Branch) -> Decoded<()> {
        if branches.last().is_some_and(|last| last.id == 0 || last.first >= branch.first) {
            return Err(Malformed("a branch does not follow the last one"));
        }
        branches.push(branch);
        Ok(())
    }
}
