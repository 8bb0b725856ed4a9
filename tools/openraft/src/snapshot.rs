//! A group's state on its way to another node.
//!
//! All groups share a store, so that a checkpoint of it would hold all of them. A snapshot of one
//! group is therefore a [`View`] of its keyspace, sent pair by pair, and costs the sender no space.
//! The receiver writes the pairs to a new keyspace ([`Staging`]); the group's state stays in use
//! meanwhile. One synced write of the new keyspace's generation then replaces it. What a crash
//! leaves of an unfinished staging is in no use, and the next start removes it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tamis::{Keyspace, WriteBatch};

use crate::error::{Error, Result};
use crate::store::Store;

/// About how many bytes of pairs one piece holds.
const PIECE: usize = 256 << 10;
/// Before the bytes of a pair: the lengths of key and value, little-endian.
const LENGTHS: usize = 8;

/// The state of a group at one log index, in one of two places.
pub enum SnapshotData {
    /// In this node's store.
    View(View),
    /// On its way to this node's store.
    Staging(Staging),
}

/// What a sender sends, one after the other.
#[derive(Debug, Serialize, Deserialize)]
pub enum Piece {
    /// Pairs, each as two lengths, key and value.
    Pairs(Bytes),
    /// There are no more; so many pairs were sent.
    End(u64),
}

/// A consistent view of a group's keyspace.
pub struct View(tamis::Snapshot);

impl View {
    /// A view of `keyspace` as it is now.
    pub fn new(store: &Store, keyspace: &Keyspace) -> View {
        View(store.db.snapshot().keyspace(keyspace))
    }

    /// The pieces in which it is sent.
    pub fn pieces(&self) -> Pieces {
        Pieces { pairs: self.0.iter(), sent: 0, ended: false }
    }
}

/// Iterator over the pieces of a [`View`].
pub struct Pieces {
    pairs: tamis::Iter,
    sent: u64,
    ended: bool,
}

impl Iterator for Pieces {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        let mut bytes = Vec::new();
        while !self.ended && bytes.len() < PIECE {
            let (key, value) = match self.pairs.next() {
                Some(Ok(pair)) => pair,
                Some(Err(error)) => return Some(Err(error.into())),
                None => break,
            };
            for len in [key.len(), value.len()] {
                let Ok(len) = u32::try_from(len) else {
                    return Some(Err(Error::Encode("a pair of the state is too long".to_owned())));
                };
                bytes.extend(len.to_le_bytes());
            }
            bytes.extend_from_slice(&key);
            bytes.extend_from_slice(&value);
            self.sent += 1;
        }
        match (bytes.is_empty(), self.ended) {
            (false, _) => Some(Ok(Piece::Pairs(bytes.into()))),
            (true, false) => {
                self.ended = true;
                Some(Ok(Piece::End(self.sent)))
            }
            (true, true) => None,
        }
    }
}

/// A state that is being received, in a keyspace of its own. Dropped, it removes the keyspace.
pub struct Staging {
    store: Store,
    generation: u64,
    name: String,
    keyspace: Keyspace,
    received: u64,
    is_whole: bool,
    is_kept: bool,
}

impl Staging {
    /// Makes an empty state beside the one in use.
    pub fn begin(store: &Store, group: u32, generation: u64) -> Result<Staging> {
        let name = Store::keyspace_name(group, generation);
        let (keyspace, store) = (store.state(&name)?, store.clone());
        Ok(Staging { store, generation, name, keyspace, received: 0, is_whole: false, is_kept: false })
    }

    /// Adds the next piece.
    pub fn add(&mut self, piece: &Piece) -> Result<()> {
        let broken = |rule: String| Error::Decode { place: "a snapshot", rule };
        let mut rest: &[u8] = match piece {
            _ if self.is_whole => return Err(broken("something follows its end".to_owned())),
            Piece::End(sent) if *sent == self.received => {
                self.is_whole = true;
                return Ok(());
            }
            Piece::End(sent) => return Err(broken(format!("{sent} pairs sent, {} received", self.received))),
            Piece::Pairs(pairs) => pairs,
        };
        let mut batch = WriteBatch::new();
        while !rest.is_empty() {
            let (key, value) = take_pair(&mut rest).ok_or_else(|| broken("a length is too great".to_owned()))?;
            batch.put_in(&self.keyspace, key, value);
            self.received += 1;
        }
        self.store.db.write(batch)?;
        Ok(())
    }

    /// Copies a view; afterwards the staging is whole.
    pub fn copy(&mut self, view: &View) -> Result<()> {
        view.pieces().try_for_each(|piece| self.add(&piece?))
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Pairs received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Fails unless all was received.
    pub fn check(&self) -> Result<()> {
        let rule = "its end is missing".to_owned();
        if self.is_whole { Ok(()) } else { Err(Error::Decode { place: "a snapshot", rule }) }
    }

    /// The state that is being received.
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// Gives up ownership of the keyspace: the group's state is in it now. Returns its name.
    pub fn keep(mut self) -> String {
        self.is_kept = true;
        std::mem::take(&mut self.name)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(error) = self.store.db.drop_keyspace(&self.name)
        {
            tracing::warn!(keyspace = self.name, %error, "what was received of a snapshot is still there");
        }
    }
}

fn take_pair<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (lengths, bytes) = rest.split_first_chunk::<LENGTHS>()?;
    let [a, b, c, d, value_len @ ..] = *lengths;
    let (key, bytes) = bytes.split_at_checked(u32::from_le_bytes([a, b, c, d]) as usize)?;
    let (value, bytes) = bytes.split_at_checked(u32::from_le_bytes(value_len) as usize)?;
    *rest = bytes;
    Some((key, value))
}
