//! What a compaction has finished, so that it goes on from there when the store is opened again.
//! See [`UnfinishedTask`].
//!
//! Closing the store ends the running parts of a stage at their next key and notes their tables,
//! which no version has yet. The next opening claims the inputs before it picks anything, and
//! merges what is left of the stage. So that every opening gets on, the thread that leads a stage
//! first merges an eighth of a table where it has less. In level 0, where each part becomes a run,
//! that is twice the mean size of an input (`least_part` in `compact`).

use std::sync::Arc;

use crate::db::store::Store;
use crate::error::Result;
use crate::format::deadline::Deadline;
use crate::format::span::KeySpan;
use crate::tree::compaction::Written;
use crate::tree::compaction::task::Task;
use crate::tree::manifest::{UnfinishedTask, VersionEdit};

/// How far a task has come.
pub(super) struct TaskProgress {
    /// The inputs that no stage has removed.
    left: Vec<(u8, u64)>,
    /// What the manifest says of it, if it says anything.
    note: Option<UnfinishedTask>,
}

impl TaskProgress {
    /// Of a task that begins, or goes on from `note`.
    pub(super) fn new(task: &Task, note: Option<UnfinishedTask>) -> TaskProgress {
        TaskProgress { left: task.inputs.clone(), note }
    }

    /// Where the first stage to be run ends, if an earlier process has chosen that.
    pub(super) fn first_stage(&self) -> Option<KeySpan<Vec<u8>>> {
        self.note.as_ref().map(|note| note.stage.clone())
    }

    /// What is finished of the stage that is being run.
    pub(super) fn done(&self) -> &[KeySpan<Vec<u8>>] {
        self.note.as_ref().map_or(&[], |note| &note.done)
    }

    /// Adds what is finished of the stage to `written`, which is the rest of it.
    pub(super) fn complete(&self, written: &mut Written) {
        if let Some(note) = &self.note {
            written.tables.extend(note.tables.iter().cloned());
            written.values.extend(note.values.iter().copied());
        }
    }

    /// Notes in the edit of a stage, which removes inputs, that the task goes on with the stage
    /// `next`, or that it is over. Returns the note that holds when the edit is durable.
    pub(super) fn note_stage(
        &mut self,
        edit: &mut VersionEdit,
        keyspace: u32,
        task: &Task,
        next: Option<KeySpan<Vec<u8>>>,
        new_id: impl FnOnce() -> u64,
    ) -> Option<UnfinishedTask> {
        self.left.retain(|(level, number)| !edit.removed.contains(&(keyspace, *level, *number)));
        let Some(stage) = next else {
            edit.ended.extend(self.note.as_ref().map(|note| note.id));
            return None;
        };
        let note = self.begin_note(keyspace, task, stage, new_id);
        edit.unfinished.push(note.clone());
        Some(note)
    }

    /// The edit of a stage is durable: from now on `note` holds.
    pub(super) fn go_on(&mut self, note: Option<UnfinishedTask>) {
        self.note = note;
    }

    fn begin_note(
        &self,
        keyspace: u32,
        task: &Task,
        stage: KeySpan<Vec<u8>>,
        new_id: impl FnOnce() -> u64,
    ) -> UnfinishedTask {
        UnfinishedTask {
            id: self.note.as_ref().map_or_else(new_id, |note| note.id),
            keyspace,
            start_level: task.start_level,
            output_level: task.output_level,
            inputs: self.left.clone(),
            stage,
            ..UnfinishedTask::default()
        }
    }
}

impl Store {
    /// Makes the work of earlier processes due that they have not finished.
    pub(crate) fn adopt_unfinished(self: &Arc<Self>) -> Result<()> {
        let notes: Vec<UnfinishedTask> = self.shape.catalog().lock()?.state.unfinished.values().cloned().collect();
        notes.iter().for_each(|note| self.resume_later(note));
        Ok(())
    }

    /// Has the rest of a compaction begun as soon as one may begin.
    fn resume_later(&self, note: &UnfinishedTask) {
        let view = self.shape.view();
        let task = view.tree(note.keyspace).and_then(|tree| Task::resumed(note, &tree.version.metas()));
        if let Some(task) = task {
            self.workers.background.lock().claim_later(note.keyspace, task);
        }
    }

    /// What the manifest says of the task that `task` resumes.
    pub(super) fn note_of(&self, task: &Task) -> Result<Option<UnfinishedTask>> {
        let Some(id) = task.resumes else { return Ok(None) };
        Ok(self.shape.catalog().lock()?.state.unfinished.get(&id).cloned())
    }

    /// Notes that a task does not go on from where it is. If that fails, it does go on: a task that
    /// the manifest knows has its inputs.
    pub(super) fn forget(&self, progress: &TaskProgress) -> Result<()> {
        let Some(note) = &progress.note else { return Ok(()) };
        let forgotten = self.install(VersionEdit { ended: vec![note.id], ..VersionEdit::default() }, |_| ());
        forgotten.inspect_err(|_| self.resume_later(note))
    }

    /// Notes which parts of a stage are finished, in `written`, for the next opening. `now` is the
    /// time by which something has been dropped.
    pub(super) fn note_parts(
        &self,
        keyspace: u32,
        task: &Task,
        stage: &KeySpan<Vec<u8>>,
        progress: &TaskProgress,
        parts: Vec<(KeySpan<Vec<u8>>, Written)>,
        now: Deadline,
    ) -> Result<()> {
        let mut note = progress.begin_note(keyspace, task, stage.clone(), || self.shape.catalog().new_file_number());
        let mut finished = Written::default();
        progress.complete(&mut finished);
        note.done.extend_from_slice(progress.done());
        for (span, written) in parts {
            note.done.push(span);
            finished.append(written);
        }
        note.done = joined(note.done);
        (note.tables, note.values) = (finished.tables, finished.values);
        self.sync_dir()?;
        let expired_by = (now > 0).then_some(now);
        self.install(VersionEdit { expired_by, unfinished: vec![note], ..VersionEdit::default() }, |_| ())
    }
}

/// Spans in order, of which those that touch are one.
fn joined(mut spans: Vec<KeySpan<Vec<u8>>>) -> Vec<KeySpan<Vec<u8>>> {
    spans.sort_by(|a, b| a.lower.cmp(&b.lower));
    spans.dedup_by(|next, last| {
        let touches = last.upper.is_some() && last.upper == next.lower;
        if touches {
            last.upper = next.upper.take();
        }
        touches
    });
    spans
}

/// What of `spans`, which touch, is not in `done`. Both are ascending.
pub(super) fn remaining(spans: &[KeySpan<&[u8]>], done: &[KeySpan<Vec<u8>>]) -> Vec<KeySpan<Vec<u8>>> {
    let mut remaining = Vec::new();
    for span in spans {
        let mut lower = span.lower.map(<[u8]>::to_vec);
        let mut is_over = false;
        let is_met = |done: &&KeySpan<Vec<u8>>| {
            let begins_later = done.lower.as_deref().is_some_and(|from| span.upper.is_some_and(|upper| from >= upper));
            let ends_before = done.upper.as_deref().is_some_and(|to| span.lower.is_some_and(|lower| to <= lower));
            !begins_later && !ends_before
        };
        for done in done.iter().filter(is_met) {
            if done.lower > lower {
                remaining.push(KeySpan { lower: lower.clone(), upper: done.lower.clone() });
            }
            match &done.upper {
                Some(upper) if span.upper.is_none_or(|end| **upper < *end) => lower = Some(upper.clone()),
                _ => is_over = true,
            }
        }
        if !is_over {
            remaining.push(KeySpan { lower, upper: span.upper.map(<[u8]>::to_vec) });
        }
    }
    remaining
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::event::CompactionReason;

    fn span(lower: u8, upper: u8) -> KeySpan<Vec<u8>> {
        let end = |at: u8| (at != b'.').then(|| vec![at]);
        KeySpan { lower: end(lower), upper: end(upper) }
    }

    /// If the edit is refused, the note is to be forgotten.
    #[test]
    fn a_note_holds_until_the_edit_that_ends_it_is_durable() {
        let task = Task {
            start_level: 1,
            output_level: 2,
            inputs: vec![(1, 5)],
            keys: KeySpan::default(),
            bytes: 0,
            is_move: false,
            is_drop: false,
            runs: (0, 0),
            reason: CompactionReason::LevelSize,
            resumes: None,
        };
        let (mut progress, mut edit) = (TaskProgress::new(&task, None), VersionEdit::default());
        let first = progress.note_stage(&mut edit, 3, &task, Some(span(b'c', b'.')), || 9);
        assert!(progress.note.is_none() && edit.unfinished.len() == 1);
        progress.go_on(first);
        let mut last = VersionEdit { removed: vec![(3, 1, 5)], ..VersionEdit::default() };
        let none = progress.note_stage(&mut last, 3, &task, None, || unreachable!("the note has an id"));
        assert_eq!((last.ended, progress.note.as_ref().map(|note| note.id)), (vec![9], Some(9)));
        progress.go_on(none);
        assert!(progress.note.is_none());
    }

    #[test]
    fn what_is_done_and_what_remains_are_the_whole_and_do_not_meet() {
        // Ends between letters, and the open ones.
        for cuts in 0_u32..1 << 5 {
            let bounds: Vec<u8> = (0..5).filter(|bit| cuts & (1 << bit) != 0).map(|bit| b'b' + bit * 2).collect();
            let ends: Vec<u8> = [b'.'].into_iter().chain(bounds).chain([b'.']).collect();
            let spans: Vec<KeySpan<Vec<u8>>> = ends.windows(2).map(|pair| span(pair[0], pair[1])).collect();
            let borrowed: Vec<KeySpan<&[u8]>> = spans.iter().map(KeySpan::borrowed).collect();
            for bits in 0_u32..1 << 6 {
                // Letters a to l in pairs; the first and the last have an open end.
                let pairs = [
                    span(b'.', b'c'),
                    span(b'c', b'e'),
                    span(b'e', b'g'),
                    span(b'g', b'i'),
                    span(b'i', b'k'),
                    span(b'k', b'.'),
                ];
                let done = pairs.into_iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0);
                let done = joined(done.map(|(_, span)| span).collect());
                let left = remaining(&borrowed, &done);
                for key in b'a'..=b'm' {
                    let holds =
                        |spans: &[KeySpan<Vec<u8>>]| spans.iter().filter(|span| span.overlaps(&[key], &[key])).count();
                    assert_eq!(holds(&done) + holds(&left), 1, "{} of {done:?} and {left:?}", key as char);
                }
                assert!(left.iter().chain(&done).all(|span| !span.is_empty()), "{left:?}");
            }
        }
    }
}
