//! Do iterators that are moved to a key return what a window over a map returns?

use std::collections::BTreeMap;

use tamis::vfs::SimFileSystem;
use tamis::{Iter, Keys, Result, TransactionIter, Value};

use crate::support::{Scene, count_from_env, for_each_seed, open_plain, tiny_options};

type Entry = (Vec<u8>, Vec<u8>);

/// What an iterator over `lower..upper` of a map still returns.
struct Window<'a> {
    map: &'a BTreeMap<Vec<u8>, Vec<u8>>,
    bounds: (Vec<u8>, Vec<u8>),
    lower: Vec<u8>,
    upper: Vec<u8>,
    done: bool,
}

impl Window<'_> {
    fn step(&mut self, forward: bool) -> Option<Entry> {
        let mut within = self.map.iter().filter(|(key, _)| **key >= self.lower && **key < self.upper);
        let found = if forward { within.next() } else { within.next_back() };
        let Some((key, value)) = found.filter(|_| !self.done) else {
            self.done = true;
            return None;
        };
        let entry = (key.clone(), value.clone());
        if forward {
            self.lower = [&key[..], &[0]].concat();
        } else {
            self.upper = key.clone();
        }
        Some(entry)
    }

    fn seek(&mut self, key: &[u8], forward: bool) {
        let (lower, upper) = self.bounds.clone();
        if forward {
            self.lower = key.to_vec().max(lower);
            self.upper = if self.done { upper } else { self.upper.clone() };
        } else {
            self.upper = [key, &[0]].concat().min(upper);
            self.lower = if self.done { lower } else { self.lower.clone() };
        }
        self.done = false;
    }
}

/// The iterators that can be moved.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
enum Moved<'t> {
    Plain(Iter),
    Keys(Keys),
    Transaction(TransactionIter<'t>),
}

impl Moved<'_> {
    fn step(&mut self, forward: bool) -> Option<Result<(Value, Option<Value>)>> {
        fn of<E>(iter: &mut impl DoubleEndedIterator<Item = E>, forward: bool) -> Option<E> {
            if forward { iter.next() } else { iter.next_back() }
        }
        let entry = |entry: Result<(Value, Value)>| entry.map(|(key, value)| (key, Some(value)));
        match self {
            Moved::Plain(iter) => of(iter, forward).map(entry),
            Moved::Keys(iter) => of(iter, forward).map(|key| key.map(|key| (key, None))),
            Moved::Transaction(iter) => of(iter, forward).map(entry),
        }
    }

    fn seek(&mut self, key: &[u8], forward: bool) {
        match (self, forward) {
            (Moved::Plain(iter), true) => iter.seek(key),
            (Moved::Plain(iter), false) => iter.seek_back(key),
            (Moved::Keys(iter), true) => iter.seek(key),
            (Moved::Keys(iter), false) => iter.seek_back(key),
            (Moved::Transaction(iter), true) => iter.seek(key),
            (Moved::Transaction(iter), false) => iter.seek_back(key),
        }
    }
}

fn key(rng: &mut fastrand::Rng) -> Vec<u8> {
    (0..rng.usize(0..4)).map(|_| rng.u8(b'a'..b'e')).collect()
}

#[test]
fn a_moved_iterator_returns_what_a_moved_window_shows() {
    for_each_seed(count_from_env("TAMIS_CASES", 60), |seed| {
        let _scene = Scene(format!("seed {seed}"));
        let mut rng = fastrand::Rng::with_seed(seed);
        let fs = SimFileSystem::new();
        let (options, executor) = tiny_options(&fs, &mut rng);
        let db = options.open("/db").unwrap();
        let mut map = BTreeMap::new();
        for i in 0..rng.u32(0..400) {
            let key = key(&mut rng);
            if rng.u8(0..3) > 0 {
                let value = [i.to_string().into_bytes(), vec![0; rng.usize(0..60)]].concat();
                db.put(&key, &value).unwrap();
                map.insert(key, value);
            } else {
                db.delete(&key).unwrap();
                map.remove(&key);
            }
            if rng.u8(0..4) == 0 {
                executor.step();
            }
        }
        for _ in 0..20 {
            let (mut transaction, mut map) = (db.begin(), map.clone());
            let (lower, upper) = (key(&mut rng), [key(&mut rng), vec![b'c']].concat());
            let kind = rng.u8(0..3);
            for _ in 0..if kind == 2 { rng.u8(0..6) } else { 0 } {
                let key = key(&mut rng);
                if rng.bool() {
                    transaction.put(&key, "own");
                    map.insert(key, b"own".to_vec());
                } else {
                    transaction.delete(&key);
                    map.remove(&key);
                }
            }
            let mut iter = match kind {
                0 => Moved::Plain(db.range(&*lower..&*upper)),
                1 => Moved::Keys(db.keys(&*lower..&*upper)),
                _ => Moved::Transaction(transaction.range(&*lower..&*upper)),
            };
            let bounds = (lower.clone(), upper.clone());
            let mut window = Window { map: &map, bounds, lower, upper, done: false };
            for _ in 0..rng.u8(0..40) {
                let forward = rng.bool();
                if rng.u8(0..4) == 0 {
                    let to = key(&mut rng);
                    iter.seek(&to, forward);
                    window.seek(&to, forward);
                    continue;
                }
                let expected = window.step(forward);
                let found = iter.step(forward).map(Result::unwrap);
                assert_eq!(found.as_ref().map(|(key, _)| &**key), expected.as_ref().map(|(key, _)| &**key));
                if let Some((_, Some(value))) = found {
                    assert_eq!(Some(&*value), expected.as_ref().map(|(_, value)| &**value));
                }
            }
        }
    });
}

#[test]
fn an_iterator_without_bounds_can_be_moved_anywhere_and_back() {
    let (db, _) = open_plain(&SimFileSystem::new()).unwrap();
    for key in ["a", "c", "e", "g"] {
        db.put(key, key).unwrap();
    }
    let mut iter = db.iter();
    let mut next = |seek: Option<&str>, forward: bool| {
        match (seek, forward) {
            (Some(key), true) => iter.seek(key),
            (Some(key), false) => iter.seek_back(key),
            (None, _) => {}
        }
        let entry = if forward { iter.next() } else { iter.next_back() };
        entry.map(|entry| String::from_utf8(entry.unwrap().0.to_vec()).unwrap())
    };
    assert_eq!(next(None, false).as_deref(), Some("g"));
    assert_eq!(next(Some("d"), true).as_deref(), Some("e"));
    assert_eq!(next(None, true), None, "the back has returned g");
    assert_eq!(next(Some("b"), true).as_deref(), Some("c"));
    assert_eq!(next(Some("f"), true).as_deref(), Some("g"), "after the end, the back is at its bound again");
    assert_eq!(next(Some("c"), false), None, "the front is behind that");
    assert_eq!(next(Some("c"), false).as_deref(), Some("c"));
    assert_eq!(next(None, false).as_deref(), Some("a"));
    assert_eq!(next(Some("z"), true), None);
}

#[test]
fn what_a_transaction_seeks_past_does_not_conflict() {
    for (written, conflicts) in [("a", true), ("b", false), ("e", true), ("f", false)] {
        let (db, _) = open_plain(&SimFileSystem::new()).unwrap();
        for key in ["a", "c", "e", "g"] {
            db.put(key, key).unwrap();
        }
        let mut transaction = db.begin();
        let mut iter = transaction.range(..);
        assert_eq!(&*iter.next().unwrap().unwrap().0, b"a");
        iter.seek("d");
        assert_eq!(&*iter.next().unwrap().unwrap().0, b"e");
        drop(iter);
        transaction.put("z", "");
        db.put(written, "other").unwrap();
        assert_eq!(transaction.commit().is_err(), conflicts, "{written}");
    }
}
