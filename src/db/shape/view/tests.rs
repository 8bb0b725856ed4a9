//! Law 3: what a read needs is there, whatever happens between the moments at which it loads its
//! view and its number.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::db::Change;
use crate::db::ingest::IngestOptions;
use crate::db::keyspace::Keyspace;
use crate::options::Options;
use crate::sorted::trace::Found;
use crate::sorted::value::Value;
use crate::sst::SstWriter;
use crate::vfs::MemoryFileSystem;
use crate::{Db, ReadOptions};

/// What happens at such a moment. Returns whether it happens again at the next one.
type Meanwhile = Box<dyn FnMut() -> bool>;

thread_local! {
    static MEANWHILE: Cell<Option<Meanwhile>> = const { Cell::new(None) };
}

/// Called by a read that has loaded its view and loads its number next.
pub(super) fn between_view_and_number() {
    // Reads that it makes itself are not interrupted.
    if let Some(mut meanwhile) = MEANWHILE.take()
        && meanwhile()
    {
        MEANWHILE.set(Some(meanwhile));
    }
}

/// Calls `meanwhile` between view and number of the reads of this thread, as long as it returns
/// true.
pub(in crate::db) fn between_views_and_numbers(meanwhile: Meanwhile) {
    MEANWHILE.set(Some(meanwhile));
}

type State = BTreeMap<&'static str, &'static str>;

const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Into another keyspace.
    Ingest,
    Flush,
    DeleteRange(&'static str, &'static str),
    Put(&'static str, &'static str),
}

/// What may follow an ingest or a flush.
const LATER: [Event; 4] =
    [Event::Flush, Event::DeleteRange("b", "c"), Event::DeleteRange("b", "d"), Event::Put("b", "2")];

impl Event {
    fn run(self, fs: &Arc<MemoryFileSystem>, db: &Db, keyspace: &Keyspace, state: &mut State) {
        match self {
            Event::Ingest => {
                let path = Path::new("/new.sst");
                let other = db.keyspace("other").unwrap();
                let mut writer = SstWriter::create_in(fs.clone(), path, &other.sst_format().unwrap()).unwrap();
                writer.put("key", "").unwrap();
                writer.finish().unwrap();
                other.ingest([path], IngestOptions::new().mode(crate::IngestMode::Move)).unwrap();
            }
            Event::Flush => db.flush().unwrap(),
            Event::DeleteRange(from, to) => {
                keyspace.delete_range(from..to).unwrap();
                state.retain(|key, _| *key < from || to <= *key);
            }
            Event::Put(key, value) => {
                keyspace.put(key, value).unwrap();
                state.insert(key, value);
            }
        }
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// What a reading function returns, and what it should return of a state.
struct Reader {
    name: &'static str,
    read: fn(&Keyspace) -> String,
    expected: fn(&State) -> String,
}

fn value_of_b(state: &State) -> String {
    format!("{:?}", state.get("b"))
}

fn presence_of_b(state: &State) -> String {
    state.contains_key("b").to_string()
}

fn entries(state: &State) -> String {
    state.iter().map(|(key, value)| format!("{key}={value} ")).collect()
}

fn backward(state: &State) -> String {
    state.iter().rev().map(|(key, value)| format!("{key}={value} ")).collect()
}

fn shown(value: Option<Value>) -> String {
    format!("{:?}", value.as_deref().map(text))
}

fn scanned(entries: impl Iterator<Item = crate::Result<(Value, Value)>>) -> String {
    let entry = |(key, value): (Value, Value)| format!("{}={} ", text(&key), text(&value));
    entries.map(|found| entry(found.unwrap())).collect()
}

const READERS: [Reader; 18] = [
    Reader { name: "get", read: |keyspace| shown(keyspace.get("b").unwrap()), expected: value_of_b },
    Reader {
        name: "get_with",
        read: |keyspace| shown(keyspace.get_with("b", ReadOptions::new().fill_cache(false)).unwrap()),
        expected: value_of_b,
    },
    Reader {
        name: "get_into",
        read: |keyspace| {
            let mut value = Vec::new();
            let found = keyspace.get_into("b", &mut value).unwrap();
            format!("{:?}", found.then(|| text(&value)))
        },
        expected: value_of_b,
    },
    Reader { name: "read", read: |keyspace| format!("{:?}", keyspace.read("b", text).unwrap()), expected: value_of_b },
    Reader {
        name: "contains_key",
        read: |keyspace| keyspace.contains_key("b").unwrap().to_string(),
        expected: presence_of_b,
    },
    Reader {
        name: "explain",
        read: |keyspace| matches!(keyspace.explain("b").unwrap().outcome.unwrap(), Found::Value(_)).to_string(),
        expected: presence_of_b,
    },
    Reader {
        name: "multi_get",
        read: |keyspace| {
            let values = keyspace.multi_get(&KEYS).unwrap();
            KEYS.iter().zip(values).filter_map(|(key, value)| Some(format!("{key}={} ", text(&value?)))).collect()
        },
        expected: entries,
    },
    Reader { name: "iter", read: |keyspace| scanned(keyspace.iter()), expected: entries },
    Reader { name: "range", read: |keyspace| scanned(keyspace.range("a".."z")), expected: entries },
    Reader { name: "range, backward", read: |keyspace| scanned(keyspace.range("a"..).rev()), expected: backward },
    Reader { name: "prefix", read: |keyspace| scanned(keyspace.prefix("")), expected: entries },
    Reader {
        name: "keys",
        read: |keyspace| keyspace.keys(..).map(|key| text(&key.unwrap())).collect(),
        expected: |state| state.keys().copied().collect(),
    },
    Reader {
        name: "values",
        read: |keyspace| keyspace.values(..).map(|value| text(&value.unwrap())).collect(),
        expected: |state| state.values().copied().collect(),
    },
    Reader {
        name: "cursor",
        read: |keyspace| {
            let mut cursor = keyspace.cursor().unwrap();
            cursor.seek("b").unwrap();
            format!("{:?}", cursor.key().map(text))
        },
        expected: |state| format!("{:?}", state.range("b"..).next().map(|(key, _)| key)),
    },
    Reader {
        name: "first",
        read: |keyspace| format!("{:?}", keyspace.range("b"..).next().map(|found| text(&found.unwrap().0))),
        expected: |state| format!("{:?}", state.range("b"..).next().map(|(key, _)| key)),
    },
    Reader {
        name: "last",
        read: |keyspace| format!("{:?}", keyspace.last().unwrap().map(|(key, _)| text(&key))),
        expected: |state| format!("{:?}", state.keys().next_back()),
    },
    Reader {
        name: "is_empty",
        read: |keyspace| keyspace.is_empty().unwrap().to_string(),
        expected: |state| state.is_empty().to_string(),
    },
    Reader {
        name: "update",
        read: |keyspace| shown(keyspace.update("b", |_| Change::Keep).unwrap().before),
        expected: value_of_b,
    },
];

/// Whatever three events come between the view and the number of a read, it sees the store as it
/// was before one of them or after them. The first of the keys was deleted before it began.
#[test]
fn a_read_sees_one_moment_whatever_happens_between_its_view_and_its_number() {
    let [flush, range, wider, put] = LATER;
    let pairs = LATER.iter().flat_map(|b| LATER.map(|c| [*b, c]));
    let in_writer = pairs.flat_map(|[b, c]| [([Event::Ingest, b, c], false), ([Event::Flush, b, c], false)]);
    let in_follower =
        [[range, range], [range, wider], [flush, range], [put, range]].map(|[b, c]| [Event::Ingest, b, c]);
    for (events, follows) in in_writer.chain(in_follower.map(|events| (events, true))) {
        let fs = Arc::new(MemoryFileSystem::new());
        let options = Options::new().file_system(fs.clone());
        let db = options.clone().open("/db").unwrap();
        for reader in &READERS {
            if follows && reader.name == "update" {
                continue;
            }
            let keyspace = db.keyspace(reader.name).unwrap();
            KEYS.iter().for_each(|key| _ = keyspace.put(key, "1").unwrap());
            keyspace.delete_range("b".."c").unwrap();
            let mut state: State = KEYS.iter().filter(|key| **key != "b").map(|key| (*key, "1")).collect();
            let follower = follows.then(|| options.clone().open_read_only("/db").unwrap());
            let read_in = follower.as_ref().map_or(keyspace.clone(), |db| db.keyspace(reader.name).unwrap());
            let states = Arc::new(Mutex::new(vec![state.clone()]));
            let meanwhile = {
                let (fs, db, keyspace, states) = (fs.clone(), db.clone(), keyspace.clone(), Arc::clone(&states));
                move || {
                    for event in events {
                        event.run(&fs, &db, &keyspace, &mut state);
                        follower.iter().for_each(|follower| _ = follower.refresh().unwrap());
                        states.lock().unwrap().push(state.clone());
                    }
                    false
                }
            };
            between_views_and_numbers(Box::new(meanwhile));
            let found = (reader.read)(&read_in);
            assert!(MEANWHILE.take().is_none(), "{} loads no number", reader.name);
            let states = states.lock().unwrap();
            let expected: Vec<String> = states.iter().map(reader.expected).collect();
            assert!(expected.contains(&found), "{} among {events:?}: {found}, not {expected:?}", reader.name);
        }
    }
}
