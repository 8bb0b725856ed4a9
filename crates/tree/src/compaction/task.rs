//! [`Task`]: one compaction.

use std::sync::Arc;

use crate::format::key::SeqNo;
use crate::format::span::KeySpan;
use crate::manifest::UnfinishedTask;
use crate::report::event::{CompactionInfo, CompactionReason};
use crate::sorted::table::TableMeta;
use crate::version::LevelMetas;

/// One compaction to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub start_level: u8,
    pub output_level: u8,
    /// Levels and numbers of the input tables, ascending.
    pub inputs: Vec<(u8, u64)>,
    /// The key range of the inputs.
    pub keys: KeySpan<Vec<u8>>,
    /// Bytes of the inputs.
    pub bytes: u64,
    /// Whether the tables only change their level, without a rewrite.
    pub is_move: bool,
    /// Whether the tables go without being read: all that they hold has expired, and they hide
    /// nothing.
    pub is_drop: bool,
    /// The oldest and the newest of the inputs in level 0, by largest sequence number; 0 if there
    /// are none.
    pub runs: (SeqNo, SeqNo),
    /// Why it was picked. Only what empties a value file fails if it cannot read a value.
    pub reason: CompactionReason,
    /// The note of an earlier task that this one finishes.
    pub resumes: Option<u64>,
}

/// A run of level 0 or a whole level below it, ordered as reads visit them.
type ReadPosition = (u8, std::cmp::Reverse<SeqNo>);

impl Task {
    /// A claim on one table, to remove it.
    pub fn of_table(level: u8, table: &TableMeta) -> Task {
        Task {
            start_level: level,
            output_level: level,
            inputs: vec![(level, table.number)],
            keys: KeySpan::closed(&table.smallest, &table.largest),
            bytes: table.size,
            is_move: false,
            is_drop: true,
            runs: if level == 0 { (table.largest_seqno, table.largest_seqno) } else { (0, 0) },
            reason: CompactionReason::Expired,
            resumes: None,
        }
    }

    /// The rest of an unfinished task; `None` if an input is gone.
    pub fn resumed(note: &UnfinishedTask, levels: &LevelMetas<'_>) -> Option<Task> {
        let input = |&(level, number): &(u8, u64)| {
            let mut tables = levels.get(usize::from(level))?.iter().map(|table| (level, *table));
            tables.find(|(_, table)| table.number == number)
        };
        let inputs = note.inputs.iter().map(input).collect::<Option<Vec<(u8, &TableMeta)>>>()?;
        let tables = || inputs.iter().map(|(_, table)| *table);
        let runs = || inputs.iter().filter(|(level, _)| *level == 0).map(|(_, table)| table.largest_seqno);
        let smallest = tables().map(|table| &table.smallest).min()?;
        Some(Task {
            start_level: note.start_level,
            output_level: note.output_level,
            inputs: note.inputs.clone(),
            keys: KeySpan::closed(smallest, tables().map(|table| &table.largest).max()?),
            bytes: tables().map(|table| table.size).sum(),
            is_move: false,
            is_drop: false,
            runs: (runs().min().unwrap_or(0), runs().max().unwrap_or(0)),
            reason: CompactionReason::Resumed,
            resumes: Some(note.id),
        })
    }

    pub fn because(self, reason: CompactionReason) -> Task {
        Task { reason, ..self }
    }

    /// What a listener is told of it.
    pub fn info(&self, keyspace: Arc<str>) -> CompactionInfo {
        let levels = [self.start_level.into(), self.output_level.into()];
        let is_trivial = self.is_move || self.is_drop;
        CompactionInfo::new(keyspace, self.reason, levels, self.inputs.len(), self.bytes, is_trivial)
    }

    pub fn takes(&self, level: usize, number: u64) -> bool {
        u8::try_from(level).is_ok_and(|level| self.inputs.binary_search(&(level, number)).is_ok())
    }

    /// The first read position of the inputs, and the last one, which receives the output.
    fn read_span(&self) -> (ReadPosition, ReadPosition) {
        let position = |level: u8, run: SeqNo| (level, std::cmp::Reverse(if level == 0 { run } else { 0 }));
        (position(self.start_level, self.runs.1), position(self.output_level, self.runs.0))
    }

    pub fn conflicts(&self, other: &Task) -> bool {
        let ((first, last), (other_first, other_last)) = (self.read_span(), other.read_span());
        first <= other_last && other_first <= last && self.keys.meets(&other.keys)
    }
}
