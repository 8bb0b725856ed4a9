//! [`Target`]: the keyspaces into which an import writes.

use std::collections::HashSet;
use std::path::Path;

use tamis::{Db, Error, Expiry, Keyspace, KeyspaceOptions};

use super::definition::Definition;
use super::formats::Entry;
use super::store::{open_existing, open_or_create};
use crate::args::{Common, Operator};
use crate::failure::{Failure, Result};
use crate::output::say;

pub(super) struct Target {
    pub(super) db: Db,
    /// Of the entries that come before any definition, in each file.
    base: Keyspace,
    /// Of the entries that come now.
    current: Keyspace,
    /// Whether the command line names it: all entries go there then.
    is_named: bool,
    /// The keyspace that the input has named, if the command line names another for it.
    source: Option<String>,
    /// Keyspaces that keep their options.
    known: HashSet<String>,
    /// Whether the current keyspace has a merge operator, and that if it comes with the store.
    has_operator: bool,
    operator: Option<Operator>,
}

impl Target {
    /// Opens a store and the keyspace that the command line names; creates both if absent.
    pub(super) fn open(path: &Path, common: &Common) -> Result<Target> {
        let (db, known) = match open_existing(path, common) {
            Ok(db) => {
                let known = db.keyspace_names()?.into_iter().collect();
                (db, known)
            }
            Err(Failure::Store(Error::NotFound(_))) => (open_or_create(path, common)?, HashSet::new()),
            Err(failure) => return Err(failure),
        };
        let base = match &common.keyspace {
            Some(name) => db.keyspace(name)?,
            None => db.default_keyspace().clone(),
        };
        let is_named = common.keyspace.is_some();
        let (current, source) = (base.clone(), None);
        let mut target = Target { db, base, current, is_named, source, known, has_operator: false, operator: None };
        target.enter(target.base.clone())?;
        Ok(target)
    }

    pub(super) fn keyspace(&self) -> &Keyspace {
        &self.current
    }

    /// Begins a file: what an earlier one has defined does not hold for it.
    pub(super) fn begin_file(&mut self) -> Result<()> {
        self.enter(self.base.clone())
    }

    /// Goes to the keyspace that the input defines. A new one gets its options.
    pub(super) fn define(&mut self, definition: Definition) -> Result<(), String> {
        let Definition { keyspace, options } = definition;
        if self.is_named && *self.source.get_or_insert(keyspace.clone()) != keyspace {
            let first = self.source.take().unwrap_or_default();
            return Err(format!("--keyspace takes one keyspace, and after {first:?} the input has {keyspace:?}"));
        }
        let name = if self.is_named { self.base.name().to_owned() } else { keyspace };
        self.go_to(name, options).map_err(|failure| failure.message().unwrap_or_default())
    }

    fn go_to(&mut self, name: String, options: KeyspaceOptions) -> Result<()> {
        let keyspace = match self.known.contains(&name) {
            false => self.db.keyspace_with(&name, options)?,
            true => {
                let keyspace = self.db.keyspace(&name)?;
                let json = |options| Definition { keyspace: name.clone(), options }.json();
                let (ours, theirs) = (json(keyspace.options()?), json(options));
                if ours != theirs {
                    say(format_args!(
                        "kvtool: keyspace {name:?} is there and keeps its options; those in the input differ: {}",
                        difference(&ours["options"], &theirs["options"])
                    ));
                }
                keyspace
            }
        };
        self.known.insert(name);
        self.enter(keyspace)
    }

    fn enter(&mut self, keyspace: Keyspace) -> Result<()> {
        self.has_operator = keyspace.options()?.merge_operator_name().is_some();
        self.operator = if self.has_operator { Operator::of(&keyspace).ok() } else { None };
        self.current = keyspace;
        Ok(())
    }

    /// Why the keyspace cannot take an entry, if it cannot.
    pub(super) fn refuses(&self, entry: &Entry<'_>) -> Option<String> {
        if !entry.operands.is_empty() && !self.has_operator {
            return Some(format!("it has operands, and keyspace {:?} has no merge operator", self.current.name()));
        }
        let operator = self.operator?;
        let checks = entry.operands.iter().map(|operand| operator.check(&entry.key, None, operand));
        checks.filter_map(std::result::Result::err).next().map(|why| why.to_string())
    }

    /// `entry` with its operands combined into its value.
    pub(super) fn combined<'a>(&self, mut entry: Entry<'a>) -> Result<Entry<'a>, String> {
        if entry.operands.is_empty() {
            return Ok(entry);
        }
        let has_ttl = || self.current.options().is_ok_and(|options| options.ttl.is_some());
        let expires =
            matches!(entry.expiry, Expiry::At(_) | Expiry::After(_)) || entry.expiry == Expiry::Default && has_ttl();
        if entry.value.is_some() && expires {
            return Err("it has operands that stay when its value expires, which a table cannot hold; import it without --sorted".into());
        }
        let operator = self
            .operator
            .ok_or("kvtool does not have the operator that combines its operands; import it without --sorted")?;
        let value =
            operator.combine(&entry.key, entry.value.as_deref(), &entry.operands).map_err(|why| why.to_string())?;
        (entry.value, entry.operands) = (Some(value.into()), Vec::new());
        // What was merged into a key never expires, unless its value says so.
        entry.expiry = Expiry::Never;
        Ok(entry)
    }
}

/// The fields of `theirs` that `ours` does not have like that.
fn difference(ours: &serde_json::Value, theirs: &serde_json::Value) -> String {
    let fields = theirs.as_object().into_iter().flatten();
    let differing = fields.filter(|(name, value)| ours.get(name) != Some(value));
    differing.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}
