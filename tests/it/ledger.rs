//! The record of the writes to a store and of its promises in return. It determines what the store
//! may hold after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tamis::{Db, Keyspace, Result, SeqNo, Snapshot};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A keyspace from its creation to its drop; a later one of the same name is another.
pub type Incarnation = u32;

/// One operation of a write: keyspace, key, and what happens to it.
pub type LedgerOp = (Incarnation, Vec<u8>, Effect);

/// What an operation does to its key.
#[derive(Clone, Debug)]
pub enum Effect {
    Put(Vec<u8>),
    /// A put that expires at this time.
    PutUntil(Vec<u8>, u64),
    Delete,
    /// Deletes the keys from the operation's own up to this one.
    DeleteRange(Vec<u8>),
    /// The operand is appended to the value.
    Merge(Vec<u8>),
}

/// A write, which takes effect whole or not at all.
#[derive(Debug)]
struct Write {
    ops: Vec<LedgerOp>,
    /// Sequence number of its last operation.
    last: SeqNo,
}

/// A failed write is in doubt until the store is read again. So is a failed change to the set of
/// keyspaces. Such a change is durable when it is acknowledged, and has no place in the order of
/// writes.
#[derive(Clone)]
pub struct Ledger {
    /// Acknowledged, in order.
    writes: Vec<Arc<Write>>,
    write_in_doubt: Option<Arc<Write>>,
    keyspaces: BTreeMap<String, Incarnation>,
    /// A name, and the keyspace it may mean now instead of the one in `keyspaces`.
    change_in_doubt: Option<(String, Option<Incarnation>)>,
    incarnations: Incarnation,
    durable: SeqNo,
    /// What the store's clock shows, in milliseconds.
    pub now: u64,
}

/// What a key holds.
#[derive(Default)]
struct Held {
    value: Option<Vec<u8>>,
    /// When the value expires, and what has been merged into it, which stays then.
    expiry: Option<(u64, Option<Vec<u8>>)>,
}

impl Held {
    fn change(&mut self, effect: &Effect) {
        match effect {
            Effect::Put(value) => *self = Held { value: Some(value.clone()), expiry: None },
            Effect::PutUntil(value, deadline) => {
                *self = Held { value: Some(value.clone()), expiry: Some((*deadline, None)) };
            }
            Effect::Delete | Effect::DeleteRange(_) => *self = Held::default(),
            Effect::Merge(operand) => {
                self.value.get_or_insert_default().extend_from_slice(operand);
                if let Some((_, merged)) = &mut self.expiry {
                    merged.get_or_insert_default().extend_from_slice(operand);
                }
            }
        }
    }

    fn at(self, now: u64) -> Option<Vec<u8>> {
        match self.expiry {
            Some((deadline, merged)) if deadline <= now => merged,
            _ => self.value,
        }
    }
}

impl Ledger {
    /// For a store that does not exist yet.
    pub fn new() -> Ledger {
        Ledger {
            writes: Vec::new(),
            write_in_doubt: None,
            keyspaces: BTreeMap::from([("default".to_owned(), 0)]),
            change_in_doubt: None,
            incarnations: 1,
            durable: 0,
            now: 0,
        }
    }

    /// The last acknowledged write: a kill of the process must not lose it.
    pub fn acknowledged(&self) -> SeqNo {
        self.writes.last().map_or(0, |write| write.last)
    }

    /// The last write promised to survive a power cut.
    pub fn durable(&self) -> SeqNo {
        self.durable
    }

    pub fn keyspace_names(&self) -> Vec<String> {
        self.keyspaces.keys().cloned().collect()
    }

    pub fn incarnation(&self, name: &str) -> Option<Incarnation> {
        self.keyspaces.get(name).copied()
    }

    /// A write has returned.
    pub fn wrote(&mut self, ops: Vec<LedgerOp>, result: &Result<SeqNo>) {
        let last = self.acknowledged() + ops.len() as u64;
        let write = Arc::new(Write { ops, last });
        match result {
            Ok(seqno) => {
                assert_eq!(*seqno, last, "a write takes the next sequence numbers");
                self.write_in_doubt = None;
                self.writes.push(write);
            }
            // A store that is poisoned by a failed write does not begin this one.
            Err(tamis::Error::Poisoned(_)) if self.write_in_doubt.is_some() => {}
            Err(_) => self.write_in_doubt = Some(write),
        }
    }

    /// Everything up to `seqno` was promised to survive a power cut.
    pub fn promised(&mut self, seqno: SeqNo) {
        self.durable = self.durable.max(seqno);
    }

    /// Creating a keyspace has returned.
    pub fn created<T>(&mut self, name: &str, result: &Result<T>) {
        if self.keyspaces.contains_key(name) {
            return;
        }
        let new = self.incarnations;
        self.incarnations += 1;
        self.changed(name, Some(new), result.is_ok());
    }

    /// Dropping a keyspace has returned.
    pub fn dropped(&mut self, name: &str, result: &Result<bool>) {
        if let Ok(existed) = result {
            assert_eq!(*existed, self.keyspaces.contains_key(name));
        }
        self.changed(name, None, result.is_ok());
    }

    fn changed(&mut self, name: &str, to: Option<Incarnation>, ok: bool) {
        if !ok {
            self.change_in_doubt.get_or_insert((name.to_owned(), to));
            return;
        }
        self.change_in_doubt = None;
        match to {
            Some(to) => self.keyspaces.insert(name.to_owned(), to),
            None => self.keyspaces.remove(name),
        };
    }

    /// Resolves the doubts by what a reopened store shows: the writes up to some moment, and at
    /// least those up to `floor`. [`Ledger::check`] checks its contents.
    pub fn settle(&mut self, db: &Db, floor: SeqNo) {
        let last = db.last_seqno();
        assert!(last >= floor, "writes up to {floor} were promised to be there, but they end with {last}");
        self.writes.extend(self.write_in_doubt.take());
        self.writes.retain(|write| write.last <= last);
        assert_eq!(self.acknowledged(), last, "the store ends inside of a write, or behind all of them");
        assert!(db.synced_seqno() <= last);
        self.durable = db.synced_seqno();
        if let Some((name, to)) = self.change_in_doubt.take() {
            let happened = db.keyspace_names().unwrap().contains(&name) == to.is_some();
            self.changed(&name, to.filter(|_| happened).or(self.incarnation(&name).filter(|_| !happened)), true);
        }
    }

    /// Checks that the open store shows everything acknowledged, and a failed write whole or not at
    /// all.
    pub fn check(&self, db: &Db) -> Result<()> {
        let visible = db.last_seqno();
        let in_doubt = self.write_in_doubt.iter().map(|write| write.last);
        let mut allowed = in_doubt.chain([self.acknowledged()]);
        assert!(allowed.any(|last| last == visible), "{visible} is not the end of a write");
        assert!(db.synced_seqno() <= visible);
        let names: BTreeSet<String> = db.keyspace_names()?.into_iter().collect();
        let expected: BTreeSet<String> = self.keyspaces.keys().cloned().collect();
        let in_doubt = self.change_in_doubt.as_ref().map(|(name, _)| name);
        let wrong: Vec<_> = names.symmetric_difference(&expected).filter(|name| Some(*name) != in_doubt).collect();
        assert!(wrong.is_empty(), "keyspaces are missing or came back: {wrong:?}");
        let contents = self.contents(visible, self.now);
        for (name, incarnation) in self.keyspaces.iter().filter(|(name, _)| names.contains(*name)) {
            let keyspace = db.existing_keyspace(name)?.expect("it is among the names");
            check_keyspace(&keyspace, contents.get(incarnation).unwrap_or(&Map::new()))?;
        }
        Ok(())
    }

    /// Checks that a snapshot shows the store at its creation; keyspaces dropped since do not
    /// count.
    pub fn check_snapshot(&self, db: &Db, snapshot: &Snapshot, taken: &Ledger) -> Result<()> {
        let contents = self.contents(snapshot.seqno(), taken.now);
        let still_there = |(name, incarnation): &(&String, &Incarnation)| self.incarnation(name) == Some(**incarnation);
        for (name, incarnation) in taken.keyspaces.iter().filter(still_there) {
            let Some(keyspace) = db.existing_keyspace(name)? else { continue };
            let entries = collect(snapshot.keyspace(&keyspace).iter())?;
            let expected = contents.get(incarnation).cloned().unwrap_or_default();
            assert_eq!(keys(&entries), keys(&expected), "keys of a snapshot of {name}");
            assert!(entries == expected, "values of a snapshot of {name}");
        }
        Ok(())
    }

    /// The entries of every keyspace that ever existed, after the writes up to `seqno`, without
    /// what had expired at `now`.
    fn contents(&self, seqno: SeqNo, now: u64) -> BTreeMap<Incarnation, Map> {
        let mut held = BTreeMap::<(Incarnation, Vec<u8>), Held>::new();
        let writes = self.writes.iter().chain(&self.write_in_doubt).filter(|write| write.last <= seqno);
        for (incarnation, key, effect) in writes.flat_map(|write| &write.ops) {
            if let Effect::DeleteRange(end) = effect {
                let is_within = |of: &Incarnation, other: &Vec<u8>| of == incarnation && key <= other && other < end;
                held.retain(|(of, other), _| !is_within(of, other));
                continue;
            }
            held.entry((*incarnation, key.clone())).or_default().change(effect);
        }
        let mut contents = BTreeMap::<Incarnation, Map>::new();
        for ((incarnation, key), held) in held {
            if let Some(value) = held.at(now) {
                contents.entry(incarnation).or_default().insert(key, value);
            }
        }
        contents
    }
}

fn check_keyspace(keyspace: &Keyspace, expected: &Map) -> Result<()> {
    let entries = collect(keyspace.iter())?;
    assert_eq!(keys(&entries), keys(expected), "keys of {}", keyspace.name());
    assert!(entries == *expected, "values of {}", keyspace.name());
    // Point reads take another path than iterators, through the filters.
    for (key, value) in expected {
        assert_eq!(keyspace.get(key)?.as_deref(), Some(value.as_slice()));
    }
    assert_eq!(keyspace.get("absent")?.as_deref(), None);
    Ok(())
}

fn collect(iter: tamis::Iter) -> Result<Map> {
    iter.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec()))).collect()
}

fn keys(map: &Map) -> Vec<String> {
    map.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}
