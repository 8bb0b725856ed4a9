//! Value files in a repair: which of them stay, and what becomes of entries that point to others.
//!
//! A value file stays if all of it is sound. A table stays if it points only to value files that
//! stay, and each of its pointers leads to a value of the entry's key. Other tables are rewritten:
//! values of files that do not stay go into them, and entries whose values cannot be read are left
//! out. As in a `verify`, every value is read twice: with its file, and by its pointer.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use super::manifests::note_damage;
use super::report::{Loss, LossKind, RepairFault};
use crate::error::{Error, Result};
use crate::format::filename::FileKind;
use crate::format::key::{SeqNo, ValueKind};
use crate::format::pointer::{ValuePointer, split_separate};
use crate::sorted::iter::{InternalCursor, MergeCursor, Stamped};
use crate::sorted::table::{References, SalvageCursor, SalvageTable, TableContext};
use crate::sorted::values::{SeparateValue, ValueFile, ValueFileMeta, ValueFiles, ValueScan};

/// Value files that verify, by number, with their keyspaces.
pub(super) type SoundValues = BTreeMap<u64, (u32, ValueFileMeta)>;

/// The value files of a store.
pub(super) struct FoundValues {
    dir: PathBuf,
    files: Arc<ValueFiles>,
    /// Those that stay.
    kept: HashSet<u64>,
    /// Keeps all of them readable.
    _held: Vec<Arc<ValueFile>>,
}

/// Reads all of the value files `numbers`: keyspace and metadata of those that are sound. The
/// others are faults.
pub(super) fn read_values(
    context: &Arc<TableContext>,
    numbers: &[u64],
    faults: &mut Vec<RepairFault>,
) -> Result<SoundValues> {
    let mut sound = BTreeMap::new();
    for &number in numbers {
        match scan(context.values(), number) {
            Ok(found) => _ = sound.insert(number, found),
            Err(Error::Io { path, source, .. }) if source.kind() == ErrorKind::NotFound => {
                faults.push(RepairFault { file: path, offset: 0, what: "there is no such file".into() });
            }
            Err(error) => note_damage(faults, error)?,
        }
    }
    Ok(sound)
}

impl FoundValues {
    /// Of the value files `numbers`, those that are `kept` stay.
    pub(super) fn new(context: &Arc<TableContext>, numbers: &[u64], kept: HashSet<u64>) -> FoundValues {
        let files = Arc::clone(context.values());
        let _held = numbers.iter().map(|number| files.hold(*number)).collect();
        FoundValues { dir: context.dir().to_owned(), files, kept, _held }
    }

    /// Whether entries point to files that stay, and to no others.
    pub(super) fn keeps(&self, references: &References) -> bool {
        references.iter().all(|reference| self.kept.contains(&reference.file))
    }

    /// The value of an entry that points to a value file. `None` if it is lost.
    fn read(&self, key: &[u8], pointer: &[u8]) -> Result<Option<SeparateValue>> {
        match self.files.read(key, pointer) {
            Ok(value) => Ok(Some(value)),
            Err(Error::Corruption { .. } | Error::Unsupported { .. }) => Ok(None),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The value files to which tables written from `cursor` will point: that of the newest version
    /// of each key, or those of all versions from its newest operands on.
    pub(super) fn used(cursor: &mut impl MergeCursor) -> Result<BTreeSet<u64>> {
        let (mut used, mut last, mut is_settled) = (BTreeSet::new(), None::<Vec<u8>>, false);
        cursor.seek_to_first()?;
        while cursor.valid() {
            if last.as_deref() != Some(cursor.key()) {
                (last, is_settled) = (Some(cursor.key().to_vec()), false);
            }
            if !is_settled && let Some((_, pointer)) = split_separate(cursor.kind(), cursor.value()) {
                used.extend(ValuePointer::decode(pointer).map(|pointer| pointer.file));
            }
            is_settled |= cursor.kind() != ValueKind::Merge;
            cursor.next()?;
        }
        Ok(used)
    }

    /// The loss of those entries of a table whose values cannot be read, if there are any.
    pub(super) fn loss(self: &Arc<Self>, table: &Arc<SalvageTable>) -> Result<Option<Loss>> {
        let mut cursor = RescuingCursor::new(SalvageCursor::new(vec![Arc::clone(table)]), self);
        cursor.seek_to_first()?;
        while cursor.valid() {
            cursor.next()?;
        }
        let Some((first, last)) = cursor.lost_keys else { return Ok(None) };
        let why = "the values cannot be read from their value files";
        let loss = Loss::anywhere(LossKind::Lost, why).within(Some((&first, &last)));
        let path = FileKind::Table(table.number()).path(&self.dir);
        Ok(Some(Loss { file: Some(path), entries: Some(cursor.lost), ..loss }))
    }
}

fn scan(files: &Arc<ValueFiles>, number: u64) -> Result<(u32, ValueFileMeta)> {
    let mut scan = ValueScan::new(files, number)?;
    while scan.next_record()?.is_some() {}
    Ok((scan.keyspace(), scan.finish()?))
}

/// The entries of a cursor, without those whose values cannot be read. Entries that point to value
/// files which do not stay have their values.
pub(super) struct RescuingCursor<C> {
    inner: C,
    values: Arc<FoundValues>,
    /// The value of the current entry, if its value file does not stay.
    value: Option<SeparateValue>,
    /// Number of entries left out, with the first and the last key among them.
    lost: u64,
    lost_keys: Option<(Vec<u8>, Vec<u8>)>,
}

impl<C: MergeCursor> RescuingCursor<C> {
    pub(super) fn new(inner: C, values: &Arc<FoundValues>) -> RescuingCursor<C> {
        RescuingCursor { inner, values: Arc::clone(values), value: None, lost: 0, lost_keys: None }
    }

    fn settle(&mut self) -> Result<()> {
        self.value = None;
        while self.inner.valid()
            && let Some((_, encoded)) = split_separate(self.inner.kind(), self.inner.value())
        {
            if let Some(value) = self.values.read(self.inner.key(), encoded)? {
                let stays = ValuePointer::decode(encoded).is_ok_and(|at| self.values.kept.contains(&at.file));
                self.value = Some(value).filter(|_| !stays);
                return Ok(());
            }
            self.lost += 1;
            let key = self.inner.key().to_vec();
            let first = self.lost_keys.take().map_or_else(|| key.clone(), |(first, _)| first);
            self.lost_keys = Some((first, key));
            self.inner.next()?;
        }
        Ok(())
    }
}

impl<C: MergeCursor> InternalCursor for RescuingCursor<C> {
    fn valid(&self) -> bool {
        self.inner.valid()
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.inner.seek(key, seqno)?;
        self.settle()
    }

    fn seek_to_last(&mut self) -> Result<()> {
        self.inner.seek_to_last()
    }

    fn next(&mut self) -> Result<()> {
        self.inner.next()?;
        self.settle()
    }

    fn prev(&mut self) -> Result<()> {
        self.inner.prev()
    }

    fn key(&self) -> &[u8] {
        self.inner.key()
    }

    fn stamp(&self) -> (SeqNo, ValueKind) {
        let (seqno, kind) = self.inner.stamp();
        (seqno, if self.value.is_some() { kind.whole() } else { kind })
    }

    fn value(&self) -> &[u8] {
        self.value.as_ref().map_or_else(|| self.inner.value(), SeparateValue::bytes)
    }
}

impl<C: MergeCursor> MergeCursor for RescuingCursor<C> {
    fn seek_to_first(&mut self) -> Result<()> {
        self.inner.seek_to_first()?;
        self.settle()
    }
}
