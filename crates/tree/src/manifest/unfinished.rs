//! [`UnfinishedTask`]: a compaction that goes on when the store is opened again.
//!
//! A compaction in stages replaces its inputs stage by stage, but an input above the output level
//! stays until no later stage reads it. Without a note, a later compaction would begin with the
//! first key again. Therefore the edit of each stage but the last says where the next one begins,
//! and closing the store adds the tables that the stage has finished so far. They belong to no
//! version yet: reads, copies of the store and repairs do not see them. A store that drops the note
//! removes them and loses no entry.
//!
//! From the opening on, the note claims its inputs as a running compaction does. Until it is
//! done, no other task moves an older entry below these inputs, or a newer one past them: what has
//! been left out of the finished tables may still be left out.
//!
//! ```text
//! note = id, keyspace id, first level, output level,
//!        count, (level, file number)...      inputs that are left
//!        span                                the stage
//!        count, span...                      what is finished of it, ascending
//!        edit                                the tables and value files in which that is
//! span = lower end, upper end                each a byte 0 if open, or a byte 1 and a key
//! ```
//!
//! The edit, length first, has tags 7, 11, 12, 10 and 14 only.

use crate::format::coding::{Decoder, put_bytes, put_varint};
use crate::format::filename::FileKind;
use crate::format::key::MAX_KEY_LEN;
use crate::format::span::KeySpan;
use crate::format::{Decoded, Malformed};
use crate::sorted::table::TableMeta;
use crate::sorted::values::ValueFileMeta;

/// What is left of a compaction, and what it has written that no version has yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnfinishedTask {
    /// A file number that no file has.
    pub id: u64,
    pub keyspace: u32,
    pub start_level: u8,
    pub output_level: u8,
    /// Levels and numbers of the inputs that are left, ascending.
    pub inputs: Vec<(u8, u64)>,
    /// The stage to go on with.
    pub stage: KeySpan<Vec<u8>>,
    /// What of the stage is in `tables`, ascending.
    pub done: Vec<KeySpan<Vec<u8>>>,
    pub tables: Vec<TableMeta>,
    pub values: Vec<ValueFileMeta>,
}

pub(super) const CONTRADICTION: Malformed = Malformed("the note of an unfinished compaction contradicts itself");

impl UnfinishedTask {
    /// Writes all but the files, which follow as an edit.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.id);
        put_varint(out, self.keyspace.into());
        put_varint(out, self.start_level.into());
        put_varint(out, self.output_level.into());
        put_varint(out, self.inputs.len() as u64);
        for &(level, number) in &self.inputs {
            put_varint(out, level.into());
            put_varint(out, number);
        }
        put_span(out, &self.stage);
        put_varint(out, self.done.len() as u64);
        self.done.iter().for_each(|span| put_span(out, span));
    }

    /// Decodes what [`put`](UnfinishedTask::put) has written: a note without files.
    pub(super) fn decode(content: &mut Decoder<'_>) -> Decoded<UnfinishedTask> {
        let (id, keyspace) = (content.varint()?, content.varint_u32()?);
        let (start_level, output_level) = (level(content)?, level(content)?);
        let (mut inputs, mut done) = (Vec::new(), Vec::new());
        for _ in 0..content.varint()? {
            inputs.push((level(content)?, content.varint()?));
        }
        let stage = span(content)?;
        for _ in 0..content.varint()? {
            done.push(span(content)?);
        }
        let is_sound = start_level <= output_level
            && inputs.is_sorted_by(|a, b| a < b)
            && inputs.iter().all(|(level, _)| (start_level..=output_level).contains(level))
            && done.is_sorted_by(|a: &KeySpan<Vec<u8>>, b| a.upper.is_some() && a.upper <= b.lower);
        let (tables, values) = Default::default();
        let note = UnfinishedTask { id, keyspace, start_level, output_level, inputs, stage, done, tables, values };
        if is_sound { Ok(note) } else { Err(CONTRADICTION) }
    }

    /// The files that it has written.
    pub fn files(&self) -> impl Iterator<Item = FileKind> {
        let tables = self.tables.iter().map(|table| FileKind::Table(table.number));
        tables.chain(self.values.iter().map(|file| FileKind::Values(file.number)))
    }

    /// Whether table `number` is one that it has written.
    pub(super) fn has_table(&self, number: u64) -> bool {
        self.tables.iter().any(|table| table.number == number)
    }

    /// Whether value file `number` is one that it has written.
    pub(super) fn has_values(&self, number: u64) -> bool {
        self.values.iter().any(|file| file.number == number)
    }
}

fn level(content: &mut Decoder<'_>) -> Decoded<u8> {
    match u8::try_from(content.varint()?) {
        Ok(level) => Ok(level),
        Err(_) => Err(Malformed("an unfinished compaction is of a level beyond the last one")),
    }
}

fn put_span(out: &mut Vec<u8>, span: &KeySpan<Vec<u8>>) {
    for end in [&span.lower, &span.upper] {
        put_varint(out, end.is_some().into());
        if let Some(key) = end {
            put_bytes(out, key);
        }
    }
}

fn span(content: &mut Decoder<'_>) -> Decoded<KeySpan<Vec<u8>>> {
    let mut end = || match content.varint()? {
        0 => Ok(None),
        1 => match content.bytes()? {
            key if key.len() <= MAX_KEY_LEN => Ok(Some(key.to_vec())),
            _ => Err(Malformed("a key is longer than 1 MiB")),
        },
        _ => Err(Malformed("the end of a range of keys is neither open nor a key")),
    };
    Ok(KeySpan { lower: end()?, upper: end()? })
}
