//! [`Arguments`]: a cursor over the words of a command.

use bytes::Bytes;

use crate::machine::{Reply, SLOTS, parse_integer};

pub(super) const SYNTAX: &str = "ERR syntax error";
pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// The words of a command that are not read yet.
pub(super) struct Arguments<'a> {
    words: &'a [Bytes],
}

impl<'a> Arguments<'a> {
    pub(super) fn new(words: &'a [Bytes]) -> Arguments<'a> {
        Arguments { words }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The next word, which must be there.
    pub(super) fn next(&mut self) -> Result<&'a Bytes, Reply> {
        let (word, rest) = self.words.split_first().ok_or(Reply::error(SYNTAX))?;
        self.words = rest;
        Ok(word)
    }

    /// The next word, owned.
    pub(super) fn bytes(&mut self) -> Result<Bytes, Reply> {
        self.next().cloned()
    }

    /// The next word in capitals: an option's name.
    pub(super) fn word(&mut self) -> Result<Vec<u8>, Reply> {
        Ok(self.next()?.to_ascii_uppercase())
    }

    /// The next word as a number.
    pub(super) fn integer(&mut self) -> Result<i64, Reply> {
        parse_integer(self.next()?).ok_or(Reply::error(NOT_AN_INTEGER))
    }

    /// The next word as a number that is not negative.
    pub(super) fn number(&mut self) -> Result<u64, Reply> {
        number(self.next()?)
    }

    /// The next word as the number of a slot.
    pub(super) fn slot(&mut self) -> Result<u16, Reply> {
        let slot = parse_integer(self.next()?).and_then(|slot| u16::try_from(slot).ok());
        slot.filter(|slot| *slot < SLOTS).ok_or(Reply::error("ERR Invalid slot"))
    }

    /// All words that are left.
    pub(super) fn rest(&mut self) -> &'a [Bytes] {
        std::mem::take(&mut self.words)
    }

    /// Refuses words that are left.
    pub(super) fn finish(&self) -> Result<(), Reply> {
        if self.is_empty() { Ok(()) } else { Err(Reply::error(SYNTAX)) }
    }
}

/// A number that is not negative.
pub(super) fn number(word: &[u8]) -> Result<u64, Reply> {
    parse_integer(word).and_then(|number| u64::try_from(number).ok()).ok_or(Reply::error(NOT_AN_INTEGER))
}
