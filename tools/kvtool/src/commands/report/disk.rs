//! [`Disk`]: the files of a store's directory, by kind.

use std::collections::HashSet;
use std::path::Path;

use tamis::Stats;
use tamis::inspect::{FileKind, Inspector};

use crate::failure::Result;

#[derive(Default)]
pub(super) struct Disk {
    /// Tables of the store.
    pub(super) tables: Files,
    /// Tables of range deletes.
    pub(super) range_tables: Files,
    pub(super) values: Files,
    pub(super) logs: Files,
    pub(super) manifests: Files,
    /// Tables and value files that belong to the store no more, or not yet.
    pub(super) obsolete: Files,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Files {
    pub(super) count: u64,
    pub(super) bytes: u64,
}

impl Files {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }

    fn minus(self, count: u64, bytes: u64) -> Files {
        Files { count: self.count.saturating_sub(count), bytes: self.bytes.saturating_sub(bytes) }
    }
}

impl Disk {
    /// The files in `dir`, of which `stats` are, with the tables `live`.
    pub(super) fn of(dir: &Path, stats: &Stats, live: &HashSet<u64>) -> Result<Disk> {
        let (mut disk, mut others) = (Disk::list(dir, live)?, Files::default());
        // Range tables and value files are known by their number and size only.
        let ranges = stats.keyspaces.iter().map(|keyspace| keyspace.range_deletes);
        let (tables, bytes) = ranges.fold((0, 0), |(n, bytes), ranges| (n + ranges.tables, bytes + ranges.size));
        disk.range_tables = Files { count: tables, bytes };
        let values = stats.keyspaces.iter().map(|keyspace| keyspace.values);
        let (files, size) = values.fold((0, 0), |(n, bytes), values| (n + values.files, bytes + values.size));
        for left in [disk.obsolete.minus(tables, bytes), disk.values.minus(files, size)] {
            others = Files { count: others.count + left.count, bytes: others.bytes + left.bytes };
        }
        disk.values = Files { count: files, bytes: size };
        disk.obsolete = others;
        Ok(disk)
    }

    /// The files in `dir`, of which those of the tables `live` are tables, and other ones obsolete.
    pub(super) fn list(dir: &Path, live: &HashSet<u64>) -> Result<Disk> {
        let mut disk = Disk::default();
        for file in Inspector::new().files(dir)? {
            let files = match file.kind {
                FileKind::Table(number) if live.contains(&number) => &mut disk.tables,
                FileKind::Table(_) => &mut disk.obsolete,
                FileKind::Values(_) => &mut disk.values,
                FileKind::Wal(_) => &mut disk.logs,
                _ => &mut disk.manifests,
            };
            // A file may go while the directory is read.
            files.add(file.path.metadata().map_or(0, |file| file.len()));
        }
        Ok(disk)
    }
}
