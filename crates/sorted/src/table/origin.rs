//! [`Origin`]: where a table comes from, stored in its properties in case the manifest is lost.
//!
//! Only `repair` reads it; opening a table skips it. The module `repair` explains why these fields
//! suffice.
//!
//! | tag | content |
//! |---|---|
//! | 21 | name and options of the keyspace, as in tag 5 of a version edit |
//! | 22 | the level that the table was made for |
//! | 23 | sequence number: every entry up to it was in a table by then, or superseded by one |
//! | 24 | list of tables that no version named by then, and whose unlinking was not durable |
//! | 25 | list of input tables: difference × 2, plus 1 if the edit that adds this one removes it |
//! | 26 | first key for which the table replaces its inputs; absent: no lower bound |
//! | 27 | key before which that ends; absent: no upper bound |
//! | 28 | 1 if a repair made the table |

use crate::format::coding::{Decoder, put_field, put_varint, put_varint_field};
use crate::format::key::{MAX_SEQNO, SeqNo};
use crate::format::{Decoded, Malformed};

/// Tags of the properties. Part of the format.
mod tag {
    pub(super) const KEYSPACE: u64 = 21;
    pub(super) const LEVEL: u64 = 22;
    pub(super) const FLUSHED: u64 = 23;
    pub(super) const DEAD: u64 = 24;
    pub(super) const INPUTS: u64 = 25;
    pub(super) const FROM: u64 = 26;
    pub(super) const TO: u64 = 27;
    pub(super) const BY_REPAIR: u64 = 28;
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Name and options as the manifest encodes them; empty if unknown.
    pub keyspace: Vec<u8>,
    pub level: u8,
    pub flushed: SeqNo,
    /// Ascending.
    pub dead: Vec<u64>,
    /// Ascending by number.
    pub inputs: Vec<Input>,
    /// For keys in `from..to`, the table, or the lack of an entry in it, says everything that its
    /// inputs say. Only a table with inputs has bounds.
    pub from: Option<Vec<u8>>,
    pub to: Option<Vec<u8>>,
    pub by_repair: bool,
}

/// A table that this one was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Input {
    pub number: u64,
    /// Whether the edit that adds the new table removes this one.
    pub is_replaced: bool,
}

impl Origin {
    /// Appends the origin to an encoded properties block.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        if !self.keyspace.is_empty() {
            put_field(out, tag::KEYSPACE, &self.keyspace);
        }
        put_varint_field(out, tag::LEVEL, self.level.into());
        put_varint_field(out, tag::FLUSHED, self.flushed);
        let mut list = Vec::new();
        let mut put_list = |tag: u64, numbers: &mut dyn Iterator<Item = (u64, Option<bool>)>| {
            list.clear();
            let mut last = 0;
            for (number, mark) in numbers {
                let difference = number - last;
                put_varint(&mut list, mark.map_or(difference, |mark| difference << 1 | u64::from(mark)));
                last = number;
            }
            if !list.is_empty() {
                put_field(out, tag, &list);
            }
        };
        put_list(tag::DEAD, &mut self.dead.iter().map(|&number| (number, None)));
        put_list(tag::INPUTS, &mut self.inputs.iter().map(|input| (input.number, Some(input.is_replaced))));
        if !self.inputs.is_empty() {
            for (tag, key) in [(tag::FROM, &self.from), (tag::TO, &self.to)] {
                if let Some(key) = key {
                    put_field(out, tag, key);
                }
            }
        }
        if self.by_repair {
            put_varint_field(out, tag::BY_REPAIR, 1);
        }
    }

    /// Decodes the origin in a properties block. Tables of earlier versions have none.
    pub(super) fn decode(properties: &[u8]) -> Decoded<Origin> {
        let mut origin = Origin::default();
        let mut fields = Decoder::new(properties);
        while let Some((tag, mut content)) = fields.field()? {
            match tag {
                tag::KEYSPACE => origin.keyspace = rest(&mut content)?,
                tag::LEVEL => {
                    let level = u8::try_from(content.varint()?);
                    origin.level = level.map_err(|_| Malformed("a level exceeds 255"))?;
                }
                tag::FLUSHED => origin.flushed = next_number(0, content.varint()?)?,
                tag::DEAD => {
                    let mut last = 0;
                    while !content.is_empty() {
                        last = next_number(last, content.varint()?)?;
                        origin.dead.push(last);
                    }
                }
                tag::INPUTS => {
                    let mut last = 0;
                    while !content.is_empty() {
                        let marked = content.varint()?;
                        last = next_number(last, marked >> 1)?;
                        origin.inputs.push(Input { number: last, is_replaced: marked & 1 == 1 });
                    }
                }
                tag::FROM => origin.from = Some(rest(&mut content)?),
                tag::TO => origin.to = Some(rest(&mut content)?),
                tag::BY_REPAIR => origin.by_repair = content.varint()? == 1,
                _ => {}
            }
        }
        Ok(origin)
    }
}

fn rest(content: &mut Decoder<'_>) -> Decoded<Vec<u8>> {
    Ok(content.take(content.remaining())?.to_vec())
}

/// The number at distance `difference` after `last`.
fn next_number(last: u64, difference: u64) -> Decoded<u64> {
    let number = last.checked_add(difference).filter(|number| *number <= MAX_SEQNO);
    number.ok_or(Malformed("a number in the origin of a table exceeds 56 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Origin {
        let input = |number, is_replaced| Input { number, is_replaced };
        Origin {
            keyspace: b"\x07default".to_vec(),
            level: 6,
            flushed: 1 << 40,
            dead: vec![3, 4, 900_000],
            inputs: vec![input(5, true), input(6, false), input(7000, true)],
            from: Some(b"".to_vec()),
            to: Some(b"k".to_vec()),
            by_repair: true,
        }
    }

    fn encoded(origin: &Origin) -> Vec<u8> {
        let mut bytes = Vec::new();
        origin.encode(&mut bytes);
        bytes
    }

    #[test]
    fn origin_round_trips() {
        for origin in [sample(), Origin::default(), Origin { from: None, to: None, ..sample() }] {
            assert_eq!(Origin::decode(&encoded(&origin)), Ok(origin));
        }
    }

    #[test]
    fn an_input_takes_a_byte_or_two() {
        let inputs = (1..=5000).map(|n| Input { number: 1_000_000 + 20 * n, is_replaced: true }).collect();
        let origin = Origin { inputs, ..Origin::default() };
        assert!(encoded(&origin).len() < 5000 + 20);
        assert_eq!(Origin::decode(&encoded(&origin)), Ok(origin));
    }

    proptest! {
        #[test]
        fn decoding_a_damaged_origin_never_panics(at: prop::sample::Index, to: u8) {
            let mut bytes = encoded(&sample());
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _ = Origin::decode(&bytes);
            let _ = Origin::decode(&bytes[at..]);
        }
    }
}
