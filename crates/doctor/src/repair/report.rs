//! [`RepairReport`]: what a repair found, did, and could not save.

use std::fmt;
use std::path::PathBuf;

/// What a repair found, and what it did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// How the repair knew which tables belong to the store.
    pub basis: RepairBasis,
    /// Every fault, file by file. Without faults there was nothing to repair.
    pub faults: Vec<RepairFault>,
    /// The affected keys. A key outside of all these ranges has its value from before the damage.
    pub losses: Vec<Loss>,
    /// Other remarks.
    pub notes: Vec<String>,
    /// Files that were moved, ordered by name.
    pub moved: Vec<MovedFile>,
    /// Good tables, which stay as they are.
    pub tables_kept: u64,
    /// Damaged tables whose readable entries were written to new tables.
    pub tables_rewritten: u64,
    /// Entries that were read from the logs and written to new tables.
    pub entries_from_logs: u64,
    /// Number of the new manifest; 0 if there is none.
    pub manifest: u64,
}

/// How a repair knew which tables belong to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepairBasis {
    /// From the manifest in force, which is complete.
    #[default]
    Manifest,
    /// From what is left of manifests, and from what tables state about each other.
    DamagedManifest,
    /// From what tables state about each other: there is no manifest.
    Tables,
}

/// A fault in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairFault {
    /// The file.
    pub file: PathBuf,
    /// Position in the file, in bytes.
    pub offset: u64,
    /// A description of the fault.
    pub what: String,
}

/// A range of keys that may read differently than before the damage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// What is known of the loss.
    pub kind: LossKind,
    /// The file that it comes from, if there is one.
    pub file: Option<PathBuf>,
    /// The keyspace; `None` if the loss may affect all of them.
    pub keyspace: Option<String>,
    /// The first key that may be affected; `None`: no lower bound.
    pub from: Option<Vec<u8>>,
    /// The last key that may be affected; `None`: no upper bound.
    pub to: Option<Vec<u8>>,
    /// Number of lost entries, if known.
    pub entries: Option<u64>,
    /// Unreadable bytes of the file.
    pub bytes: u64,
    /// What happened.
    pub why: String,
}

/// What is known of a [`Loss`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossKind {
    /// Entries are lost. A key in the range may be gone, or show an older value: its newest value,
    /// or a delete, may be among the lost entries.
    Lost,
    /// It is unknown whether entries are lost. A key in the range may show an older value, or a
    /// deleted one.
    Uncertain,
    /// Damage may hide losses from every check: a missing table, or a compaction that left no
    /// table, leaves no trace. Whenever the manifest was not good, one such loss covers all keys,
    /// so that no list of losses seems complete.
    Unknowable,
}

/// A file that was moved out of the store, into a directory below it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MovedFile {
    /// Its name.
    pub name: String,
    /// Its new path, relative to the store's directory.
    pub to: PathBuf,
}

impl RepairReport {
    /// Whether the store is in order, and nothing was or needs to be changed.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty() && self.moved.is_empty()
    }

    /// Whether some key may read differently than before the damage.
    pub fn has_losses(&self) -> bool {
        !self.losses.is_empty()
    }
}

impl Loss {
    /// A loss that may affect any key of any keyspace.
    pub(super) fn anywhere(kind: LossKind, why: impl Into<String>) -> Loss {
        Loss { kind, file: None, keyspace: None, from: None, to: None, entries: None, bytes: 0, why: why.into() }
    }

    /// Limits the loss to keys from the first to the last of `bounds`, if they are known.
    pub(super) fn within(self, bounds: Option<(&[u8], &[u8])>) -> Loss {
        Loss { from: bounds.map(|(from, _)| from.to_vec()), to: bounds.map(|(_, to)| to.to_vec()), ..self }
    }

    /// Whether the loss may affect `key` of `keyspace`.
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

/// The whole report, line by line, as it is written to `lost`.
impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rebuilt from: {}", self.basis)?;
        self.faults.iter().try_for_each(|fault| writeln!(f, "fault: {fault}"))?;
        self.losses.iter().try_for_each(|loss| writeln!(f, "{loss}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        writeln!(
            f,
            "tables: {} kept, {} rewritten; entries from logs: {}",
            self.tables_kept, self.tables_rewritten, self.entries_from_logs
        )?;
        let mut moved = self.moved.iter();
        moved.try_for_each(|file| writeln!(f, "moved: {} to {}", file.name, file.to.display()))
    }
}
