//! [`StoredStore`] and [`Base`]: several stores in one repository.
//!
//! A store is known by its branch (see [`StoreImage::branch`](tamis::StoreImage::branch)): a copy
//! that has been written to is another store than its original. Backups of one keyspace count as a
//! store of their own, whose id is made of the branch and the keyspace's name. Generations of one
//! store are kept, pruned and restored apart from those of the others; the files that they share,
//! because one is a copy of the other, stay until no generation of any store names them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use tamis::Result;

use crate::record::{Generation, StoreId};
use crate::{Repository, invalid};

/// What a restore begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Base {
    /// The one store of the repository. With several, the restore fails and lists them.
    #[default]
    OnlyStore,
    /// This store.
    Store(StoreId),
    /// The generation of this number.
    Generation(u64),
}

/// A store, or one keyspace of a store, of which a repository has generations.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredStore {
    /// Its id.
    pub id: StoreId,
    /// Where it was at its last backup, special characters escaped; empty if no record says so.
    pub path: String,
    /// The keyspace of it that the generations are of, if they are of one alone.
    pub keyspace: Option<String>,
    /// How many generations of it there are.
    pub generations: usize,
    /// The last one.
    pub last: u64,
    /// When that was made.
    pub time: SystemTime,
}

impl fmt::Display for StoredStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoredStore { id, path, keyspace, generations, last, .. } = self;
        let path = if path.is_empty() { "of an unknown path" } else { path };
        let keyspace = keyspace.as_ref().map_or_else(String::new, |name| format!("keyspace {name} of "));
        write!(f, "{id} ({keyspace}{path}, generations: {generations}, the last one {last})")
    }
}

impl Repository {
    /// The stores of which the repository has generations, by id.
    pub fn stores(&self) -> Result<Vec<StoredStore>> {
        Ok(stores_of(&self.generations()?))
    }

    /// The last generation of a store, or the one that is named.
    pub fn last(&self, base: Base) -> Result<Generation> {
        let last = self.candidates(base)?.pop();
        last.ok_or_else(|| invalid(format_args!("{} has no generation", self.path().display())))
    }

    /// The generations of one store with which a restore may begin, oldest first.
    pub(crate) fn candidates(&self, base: Base) -> Result<Vec<Generation>> {
        if let Base::Generation(number) = base {
            return Ok(vec![self.generation(number)?]);
        }
        let mut generations = self.generations()?;
        let stores = stores_of(&generations);
        let list = || stores.iter().map(StoredStore::to_string).collect::<Vec<_>>().join(", ");
        match base {
            Base::Store(id) if stores.iter().all(|store| store.id != id) => {
                let path = self.path();
                return Err(invalid(format_args!("{} has no store {id}; it has {}", path.display(), list())));
            }
            Base::Store(id) => generations.retain(|generation| generation.store == id),
            _ if stores.len() > 1 => {
                let path = self.path();
                return Err(invalid(format_args!(
                    "{} has generations of several stores; choose one of {}",
                    path.display(),
                    list()
                )));
            }
            _ => {}
        }
        Ok(generations)
    }
}

fn stores_of(generations: &[Generation]) -> Vec<StoredStore> {
    let mut stores: BTreeMap<StoreId, StoredStore> = BTreeMap::new();
    for Generation { number, time, store: id, path, keyspace, .. } in generations {
        let before = stores.get(id).map_or(0, |store| store.generations);
        let (path, keyspace, generations) = (path.clone(), keyspace.clone(), before + 1);
        stores.insert(*id, StoredStore { id: *id, path, keyspace, generations, last: *number, time: *time });
    }
    stores.into_values().collect()
}
