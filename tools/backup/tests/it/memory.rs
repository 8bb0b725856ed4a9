//! [`MemoryStorage`]: a storage without a lock that loses replies, fails on cue, and lets writers
//! take one step at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::SystemTime;

use tamis::vfs::FileLock;
use tamis::{Error, Result};
use tamis_backup::{Fill, Listed, Storage, Take};

/// What one call does instead of what it should.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trouble {
    /// It fails, and has done nothing.
    Nothing,
    /// It fails, and has been carried out.
    Done,
    /// A conditional write says that the object exists, and has done nothing; others fail.
    Conflict,
    /// A conditional write says that the object exists, and has written it; others fail.
    LostReply,
}

#[derive(Default)]
struct Inner {
    objects: BTreeMap<String, Vec<u8>>,
    calls: u64,
    trouble: Option<(u64, Trouble)>,
    is_hit: bool,
}

/// Clones share the objects.
#[derive(Clone, Default)]
pub(crate) struct MemoryStorage {
    inner: Arc<Mutex<Inner>>,
    /// Who calls, if calls are taken one at a time.
    turns: Option<(Arc<Turns>, usize)>,
    /// When objects were written, for all of them.
    modified: Option<SystemTime>,
}

impl MemoryStorage {
    /// One that says of all objects that they were written at this time.
    pub(crate) fn written_at(time: SystemTime) -> MemoryStorage {
        MemoryStorage { modified: Some(time), ..MemoryStorage::default() }
    }

    pub(crate) fn of_writer(&self, turns: &Arc<Turns>, writer: usize) -> MemoryStorage {
        MemoryStorage { turns: Some((Arc::clone(turns), writer)), ..self.clone() }
    }

    /// Has the call of this number from now (1 is the next) go wrong.
    pub(crate) fn set_trouble(&self, at: u64, trouble: Trouble) {
        let mut inner = self.inner.lock().unwrap();
        inner.is_hit = false;
        inner.trouble = Some((inner.calls + at, trouble));
    }

    /// Ends the trouble; returns whether it came.
    pub(crate) fn end_trouble(&self) -> bool {
        let mut inner = self.inner.lock().unwrap();
        inner.trouble = None;
        inner.is_hit
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.inner.lock().unwrap().objects.keys().cloned().collect()
    }

    /// Changes an object, or removes it if `change` says `None`.
    pub(crate) fn spoil(&self, name: &str, change: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>) {
        let mut inner = self.inner.lock().unwrap();
        let object = inner.objects.remove(name).unwrap();
        inner.objects.extend(change(object).map(|object| (name.to_owned(), object)));
    }

    /// Carries out a call, or goes wrong.
    fn call<T>(
        &self,
        name: &str,
        refusal: impl FnOnce() -> Option<T>,
        work: impl FnOnce(&mut Inner) -> Result<T>,
    ) -> Result<T> {
        if let Some((turns, writer)) = &self.turns {
            turns.wait(*writer);
        }
        let mut inner = self.inner.lock().unwrap();
        inner.calls += 1;
        let trouble = inner.trouble.filter(|(at, _)| *at == inner.calls).map(|(_, trouble)| trouble);
        let Some(trouble) = trouble else { return work(&mut inner) };
        inner.is_hit = true;
        if matches!(trouble, Trouble::Done | Trouble::LostReply) {
            drop(work(&mut inner)?);
        }
        let refusal = refusal().filter(|_| matches!(trouble, Trouble::Conflict | Trouble::LostReply));
        refusal.ok_or_else(|| self.error(name, io::ErrorKind::Other))
    }

    fn error(&self, name: &str, kind: io::ErrorKind) -> Error {
        Error::Io { operation: "reach", path: self.path(name), source: Arc::new(kind.into()) }
    }
}

impl Storage for MemoryStorage {
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("memory:").join(name)
    }

    fn prepare(&self) -> Result<()> {
        Ok(())
    }

    fn begin(&self) -> Result<Option<Box<dyn FileLock>>> {
        Ok(None)
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>> {
        self.call(
            folder,
            || None,
            |inner| {
                let objects = inner.objects.iter().filter(|(name, _)| name.starts_with(&format!("{folder}/")));
                let listed = |(name, object): (&String, &Vec<u8>)| Listed {
                    name: name.clone(),
                    size: object.len() as u64,
                    modified: Some(self.modified.unwrap_or_else(SystemTime::now)),
                };
                Ok(objects.map(listed).collect())
            },
        )
    }

    fn read(&self, name: &str, take: &mut Take<'_>) -> Result<()> {
        let object = self.call(
            name,
            || None,
            |inner| inner.objects.get(name).cloned().ok_or_else(|| self.error(name, io::ErrorKind::NotFound)),
        )?;
        object.chunks(1000).try_for_each(take)
    }

    fn put(&self, name: &str, fill: &mut Fill<'_>) -> Result<()> {
        let mut object = Vec::new();
        fill(&mut |bytes| {
            object.extend_from_slice(bytes);
            Ok(())
        })?;
        self.call(
            name,
            || None,
            |inner| {
                // A second writer of an object writes the bytes of the first.
                assert!(inner.objects.get(name).is_none_or(|former| *former == object), "{name} was overwritten");
                inner.objects.insert(name.to_owned(), object);
                Ok(())
            },
        )
    }

    fn put_new(&self, name: &str, content: &[u8]) -> Result<bool> {
        self.call(
            name,
            || Some(false),
            |inner| {
                let is_new = !inner.objects.contains_key(name);
                if is_new {
                    inner.objects.insert(name.to_owned(), content.to_vec());
                }
                Ok(is_new)
            },
        )
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        // Each takes a step, as a process may stall between any two.
        names.iter().try_for_each(|name| {
            self.call(
                name,
                || None,
                |inner| {
                    inner.objects.remove(name);
                    Ok(())
                },
            )
        })
    }
}

impl fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStorage")
    }
}

/// Lets one of several threads run at a time, from call to call.
#[derive(Default)]
pub(crate) struct Turns {
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct TurnState {
    waiting: BTreeSet<usize>,
    running: Option<usize>,
    ended: usize,
}

impl Turns {
    fn wait(&self, writer: usize) {
        let mut state = self.state.lock().unwrap();
        state.waiting.insert(writer);
        state.running = state.running.filter(|running| *running != writer);
        self.changed.notify_all();
        while state.running != Some(writer) {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// A value that a writer drops when it ends, or panics.
    pub(crate) fn writer(&self, writer: usize) -> impl Drop {
        Writing(self, writer)
    }

    /// Waits until all `count` writers wait or have ended.
    pub(crate) fn settle(&self, count: usize) -> MutexGuard<'_, TurnState> {
        let state = self.state.lock().unwrap();
        let is_moving = |state: &mut TurnState| state.running.is_some() || state.waiting.len() + state.ended < count;
        self.changed.wait_while(state, is_moving).unwrap()
    }

    /// Once all `count` writers have settled, has one go on, which `choose` picks.
    /// Returns `false` when all have ended.
    pub(crate) fn step(&self, count: usize, choose: impl FnOnce(&[usize]) -> usize) -> bool {
        let mut state = self.settle(count);
        let waiting: Vec<usize> = state.waiting.iter().copied().collect();
        if waiting.is_empty() {
            return false;
        }
        let chosen = choose(&waiting);
        state.waiting.remove(&chosen);
        state.running = Some(chosen);
        self.changed.notify_all();
        true
    }
}

struct Writing<'a>(&'a Turns, usize);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let Writing(turns, writer) = *self;
        let mut state = turns.state.lock().unwrap();
        state.ended += 1;
        state.running = state.running.filter(|running| *running != writer);
        turns.changed.notify_all();
    }
}
