//! [`RepairReport`]: what a repair found, did, and could not save.

use std::fmt;
use std::path::PathBuf;

/// What a repair found, and what it did about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// What says which tables belong to the store.
    pub basis: RepairBasis,
    /// What is wrong, file by file. Without faults there was nothing to do.
    pub faults: Vec<RepairFault>,
    /// Which keys are affected. A key outside of all these ranges has the value that it had before
    /// the damage.
    pub losses: Vec<Loss>,
    /// What else there is to know.
    pub notes: Vec<String>,
    /// Files that were moved, in the order of their names.
    pub moved: Vec<MovedFile>,
    /// Tables that were good, and stay as they are.
    pub tables_kept: u64,
    /// Damaged tables of which the rest was written to a new one.
    pub tables_rewritten: u64,
    /// Entries that were read from the logs and written to new tables.
    pub entries_from_logs: u64,
    /// Number of the new manifest, 0 if there is none.
    pub manifest: u64,
}

/// What a repair went by to know which tables belong to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepairBasis {
    /// The manifest in force, all of it.
    #[default]
    Manifest,
    /// What is left of manifests, and what tables say of each other.
    DamagedManifest,
    /// What tables say of each other: there is no manifest.
    Tables,
}

/// One thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairFault {
    /// The file.
    pub file: PathBuf,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

/// A range of keys that may not show what it showed before the damage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// What is known of it.
    pub kind: LossKind,
    /// The file that it comes from, if there is one.
    pub file: Option<PathBuf>,
    /// The keyspace, if it is one only.
    pub keyspace: Option<String>,
    /// The first and the last key that may be affected; an open end is `None`.
    pub from: Option<Vec<u8>>,
    /// See `from`.
    pub to: Option<Vec<u8>>,
    /// Entries that are lost, if that is known.
    pub entries: Option<u64>,
    /// Bytes of the file that cannot be read.
    pub bytes: u64,
    /// What happened.
    pub why: String,
}

/// What is known of a [`Loss`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossKind {
    /// Entries are lost. A key in the range may be gone, or show an older value: the newest one, or
    /// a delete, may be among them.
    Lost,
    /// It cannot be known whether something is lost. A key in the range may show an older value, or
    /// one that was deleted.
    Uncertain,
    /// Of what the damage hides from every check: a table that is missing without a trace, or a
    /// compaction that left none. There is one such loss, of everything, whenever the manifest was
    /// not good; it is listed so that no other list seems complete.
    Unknowable,
}

/// A file that was moved out of the store, into a directory below it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MovedFile {
    /// Its name.
    pub name: String,
    /// Where it is now, relative to the store's directory.
    pub to: PathBuf,
}

impl RepairReport {
    /// Whether the store is in order, and nothing was or needs to be changed.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty() && self.moved.is_empty()
    }

    /// Whether some key may not show what it showed before the damage.
    pub fn has_losses(&self) -> bool {
        !self.losses.is_empty()
    }
}

impl Loss {
    /// A loss of which not more is known: any key of any keyspace.
    pub(super) fn anywhere(kind: LossKind, why: impl Into<String>) -> Loss {
        Loss { kind, file: None, keyspace: None, from: None, to: None, entries: None, bytes: 0, why: why.into() }
    }

    /// The loss, of keys from the first to the last of `bounds`, if they are known.
    pub(super) fn within(self, bounds: Option<(&[u8], &[u8])>) -> Loss {
        Loss { from: bounds.map(|(from, _)| from.to_vec()), to: bounds.map(|(_, to)| to.to_vec()), ..self }
    }

    /// Whether `key` of the keyspace called `keyspace` may be affected.
    pub fn covers(&self, keyspace: &str, key: &[u8]) -> bool {
        self.keyspace.as_ref().is_none_or(|name| name == keyspace)
            && self.from.as_ref().is_none_or(|from| from.as_slice() <= key)
            && self.to.as_ref().is_none_or(|to| key <= to.as_slice())
    }
}

impl fmt::Display for LossKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LossKind::Lost => "lost",
            LossKind::Uncertain => "uncertain",
            LossKind::Unknowable => "unknowable",
        })
    }
}

impl fmt::Display for RepairBasis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RepairBasis::Manifest => "manifest",
            RepairBasis::DamagedManifest => "damaged manifest",
            RepairBasis::Tables => "tables",
        })
    }
}

impl fmt::Display for RepairFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.file.display(), self.offset, self.what)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.kind)?;
        match &self.keyspace {
            Some(name) => write!(f, "keyspace {name:?}, ")?,
            None => f.write_str("all keyspaces, ")?,
        }
        match (&self.from, &self.to) {
            (None, None) => f.write_str("all keys")?,
            (from, to) => {
                let end = |key: &Option<Vec<u8>>, open: &str| match key {
                    Some(key) => format!("\"{}\"", key.escape_ascii()),
                    None => open.to_owned(),
                };
                write!(f, "keys {} to {}", end(from, "the first"), end(to, "the last"))?;
            }
        }
        if let Some(entries) = self.entries {
            write!(f, ", {entries} {}", if entries == 1 { "entry" } else { "entries" })?;
        }
        if self.bytes > 0 {
            write!(f, ", {} bytes", self.bytes)?;
        }
        if let Some(file) = &self.file {
            write!(f, " of {}", file.display())?;
        }
        write!(f, ": {}", self.why)
    }
}

/// The whole report, line by line, as it is kept beside the files that were moved.
impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rebuilt from: {}", self.basis)?;
        self.faults.iter().try_for_each(|fault| writeln!(f, "fault: {fault}"))?;
        self.losses.iter().try_for_each(|loss| writeln!(f, "{loss}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        writeln!(
            f,
            "tables: {} kept, {} written anew; entries from logs: {}",
            self.tables_kept, self.tables_rewritten, self.entries_from_logs
        )?;
        let mut moved = self.moved.iter();
        moved.try_for_each(|file| writeln!(f, "moved: {} to {}", file.name, file.to.display()))
    }
}
