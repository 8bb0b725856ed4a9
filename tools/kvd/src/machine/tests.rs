//! The machine beside a plain model, beside itself, and after crashes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use tamis::vfs::SimFileSystem;

use super::*;

mod time;

fn open(file_system: &SimFileSystem) -> tamis::Db {
    tamis::Options::new().file_system(Arc::new(file_system.clone())).open("db").unwrap()
}

fn machine() -> Machine {
    Machine::open(&open(&SimFileSystem::new()), 0).unwrap()
}

/// Applies one operation at a time.
fn run(machine: &Machine, time_ms: u64, body: Body) -> Reply {
    apply(machine, time_ms, vec![Request::new(body)]).remove(0)
}

fn apply(machine: &Machine, time_ms: u64, requests: Vec<Request>) -> Vec<Reply> {
    machine.apply(&Entry { time_ms, requests }, &[]).unwrap()
}

fn get(machine: &Machine, key: &str, now_ms: u64) -> Reply {
    machine.read(&Query::Get(Bytes::from(key.to_owned())), now_ms).unwrap().reply
}

fn set(key: &str, value: &str, deadline: Deadline) -> Body {
    Body::Run(Operation::Set {
        key: Bytes::from(key.to_owned()),
        value: Bytes::from(value.to_owned()),
        condition: Condition::Always,
        deadline,
        answer: SetAnswer::Ok,
    })
}

fn expire_in(millis: i64) -> Deadline {
    Deadline::New(NewDeadline::In(millis))
}

/// Everything a keyspace holds.
fn bytes_of(machine: &Machine) -> Vec<(Vec<u8>, Vec<u8>)> {
    let entries = machine.keyspace().iter().map(|entry| entry.unwrap());
    entries.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// What a machine should do, said as plainly as possible.
#[derive(Default, Clone)]
struct Model {
    time_ms: u64,
    keys: BTreeMap<Bytes, (Bytes, Option<u64>)>,
}

impl Model {
    fn pass(&mut self, time_ms: u64) {
        self.time_ms = self.time_ms.max(time_ms);
        let now = self.time_ms;
        self.keys.retain(|_, (_, deadline)| deadline.is_none_or(|deadline| deadline > now));
    }

    fn deadline(&self, new: NewDeadline) -> u64 {
        let at = match new {
            NewDeadline::In(millis) => i128::from(self.time_ms) + i128::from(millis),
            NewDeadline::At(at) => i128::from(at),
        };
        u64::try_from(at.clamp(0, i128::from(i64::MAX))).unwrap()
    }

    fn run(&mut self, operation: &Operation) -> Reply {
        let reply = self.change(operation);
        self.pass(0);
        reply
    }

    fn change(&mut self, operation: &Operation) -> Reply {
        let bulk = |value: Option<Bytes>| value.map_or(Reply::Nil, Reply::Bulk);
        match operation.clone() {
            Operation::Set { key, value, condition, deadline, answer } => {
                let old = self.keys.get(&key).cloned();
                let writes = match condition {
                    Condition::Always => true,
                    Condition::IfAbsent => old.is_none(),
                    Condition::IfPresent => old.is_some(),
                    Condition::IfEqual(expected) => old.as_ref().is_some_and(|(value, _)| *value == expected),
                };
                if writes {
                    let deadline = match deadline {
                        Deadline::None => None,
                        Deadline::Keep => old.as_ref().and_then(|(_, deadline)| *deadline),
                        Deadline::New(new) => Some(self.deadline(new)),
                    };
                    self.keys.insert(key, (value, deadline));
                }
                match answer {
                    SetAnswer::Old => bulk(old.map(|(value, _)| value)),
                    SetAnswer::Integer => Reply::Integer(i64::from(writes)),
                    SetAnswer::Ok => {
                        if writes {
                            Reply::OK
                        } else {
                            Reply::Nil
                        }
                    }
                }
            }
            Operation::SetMany(pairs) => {
                self.keys.extend(pairs.into_iter().map(|(key, value)| (key, (value, None))));
                Reply::OK
            }
            Operation::Delete(keys) => Reply::count(keys.iter().filter_map(|key| self.keys.remove(key)).count()),
            Operation::Take(key) => bulk(self.keys.remove(&key).map(|(value, _)| value)),
            Operation::Add { key, delta } => {
                let (old, deadline) = self.keys.get(&key).cloned().unwrap_or((Bytes::from("0"), None));
                let text = std::str::from_utf8(&old).unwrap_or("no number");
                let Some(old) = text.parse::<i64>().ok().filter(|number| number.to_string() == text) else {
                    return Reply::error("ERR value is not an integer or out of range");
                };
                let Ok(sum) = i64::try_from(i128::from(old) + i128::from(delta)) else {
                    return Reply::error("ERR increment or decrement would overflow");
                };
                self.keys.insert(key, (Bytes::from(sum.to_string()), deadline));
                Reply::Integer(sum)
            }
            Operation::Append { key, suffix } => {
                let (old, deadline) = self.keys.get(&key).cloned().unwrap_or_default();
                let value = Bytes::from([old, suffix].concat());
                let len = value.len();
                self.keys.insert(key, (value, deadline));
                Reply::count(len)
            }
            Operation::Expire { key, deadline, condition } => {
                let new = self.deadline(deadline);
                let Some((_, old)) = self.keys.get_mut(&key) else { return Reply::Integer(0) };
                let infinite = old.unwrap_or(u64::MAX);
                let holds = (!condition.none || old.is_none())
                    && (!condition.some || old.is_some())
                    && (!condition.later || new > infinite)
                    && (!condition.earlier || new < infinite);
                if holds {
                    *old = Some(new);
                }
                Reply::Integer(i64::from(holds))
            }
            Operation::Persist(key) => {
                let deadline = self.keys.get_mut(&key).and_then(|(_, deadline)| deadline.take());
                Reply::Integer(i64::from(deadline.is_some()))
            }
            Operation::Swap { key, expected, new } => {
                if self.keys.get(&key).map(|(value, _)| value) != expected.as_ref() {
                    return Reply::Integer(0);
                }
                self.keys.remove(&key);
                self.keys.extend(new.map(|value| (key, (value, None))));
                Reply::Integer(1)
            }
            Operation::SetManyIfAbsent(pairs) => {
                if pairs.iter().any(|(key, _)| self.keys.contains_key(key)) {
                    return Reply::Integer(0);
                }
                self.keys.extend(pairs.into_iter().map(|(key, value)| (key, (value, None))));
                Reply::Integer(1)
            }
            Operation::GetExpiring { key, deadline } => {
                let deadline = deadline.map(|new| self.deadline(new));
                let Some((value, old)) = self.keys.get_mut(&key) else { return Reply::Nil };
                *old = deadline;
                Reply::Bulk(value.clone())
            }
            Operation::AddDecimal { key, delta } => {
                let (old, deadline) = self.keys.get(&key).cloned().unwrap_or((Bytes::from("0"), None));
                let Some(old) = Decimal::parse(&old) else { return Reply::error("ERR value is not a valid float") };
                let Some(sum) = old.plus(delta) else {
                    return Reply::error("ERR increment would produce NaN or Infinity");
                };
                let sum = Bytes::from(sum.to_string());
                self.keys.insert(key, (sum.clone(), deadline));
                Reply::Bulk(sum)
            }
            Operation::Overwrite { key, offset, part } => {
                let (old, deadline) = self.keys.get(&key).cloned().unwrap_or_default();
                if part.is_empty() {
                    return Reply::count(old.len());
                }
                let start = usize::try_from(offset).unwrap();
                let byte = |at: usize| match at.checked_sub(start) {
                    Some(at) if at < part.len() => part[at],
                    _ => old.get(at).copied().unwrap_or(0),
                };
                let value: Bytes = (0..old.len().max(start + part.len())).map(byte).collect();
                let len = value.len();
                self.keys.insert(key, (value, deadline));
                Reply::count(len)
            }
            // The fields have tests of their own; here, one sets a byte.
            Operation::Bits { key, fields, .. } => {
                let FieldAction::Set(new, _) = fields[0].action else { panic!("generated: SET") };
                let at = usize::try_from(fields[0].offset / 8).unwrap();
                let (old, deadline) = self.keys.get(&key).cloned().unwrap_or_default();
                let mut value = old.to_vec();
                value.resize(value.len().max(at + 1), 0);
                let old = std::mem::replace(&mut value[at], u8::try_from(new).unwrap());
                self.keys.insert(key, (value.into(), deadline));
                Reply::Integer(i64::from(old))
            }
            Operation::Combine { to, from, .. } => {
                let values: Vec<_> = from.iter().filter_map(|key| self.keys.get(key)).map(|(value, _)| value).collect();
                let len = values.iter().map(|value| value.len()).max().unwrap_or(0);
                let or = |at: usize| values.iter().filter_map(|value| value.get(at)).fold(0, |all, byte| all | byte);
                let combined: Bytes = (0..len).map(or).collect();
                self.keys.remove(&to);
                self.keys.extend((len > 0).then_some((to, (combined, None))));
                Reply::count(len)
            }
            Operation::Copy { from, to, replace, keep } => {
                let Some(value) = self.keys.get(&from).cloned() else {
                    return if keep { Reply::Integer(0) } else { Reply::error("ERR no such key") };
                };
                if !replace && self.keys.contains_key(&to) {
                    return Reply::Integer(0);
                }
                if !keep {
                    self.keys.remove(&from);
                }
                self.keys.insert(to, value);
                if replace && !keep { Reply::OK } else { Reply::Integer(1) }
            }
            Operation::Clear => {
                self.keys.clear();
                Reply::OK
            }
        }
    }

    fn read(&self, query: &Query, now_ms: u64) -> Reply {
        let mut seen = self.clone();
        seen.pass(now_ms);
        let value = |key: &Bytes| seen.keys.get(key).map_or(Reply::Nil, |(value, _)| Reply::Bulk(value.clone()));
        match query {
            Query::Get(key) => value(key),
            Query::GetMany(keys) => Reply::Array(keys.iter().map(value).collect()),
            Query::Exists(keys) => Reply::count(keys.iter().filter(|key| seen.keys.contains_key(*key)).count()),
            Query::Length(key) => Reply::count(seen.keys.get(key).map_or(0, |(value, _)| value.len())),
            Query::MillisLeft(key) => Reply::Integer(match seen.keys.get(key) {
                None => -2,
                Some((_, None)) => -1,
                Some((_, Some(deadline))) => i64::try_from(deadline - seen.time_ms).unwrap(),
            }),
            Query::Range { start, end, limit, values } if start < end => {
                let entries = seen.keys.range(start.clone()..end.clone()).take(*limit as usize);
                let reply = |(key, (value, _)): (&Bytes, &(Bytes, Option<u64>))| {
                    let value = values.then(|| Reply::Bulk(value.clone()));
                    std::iter::once(Reply::Bulk(key.clone())).chain(value).collect::<Vec<_>>()
                };
                Reply::Array(entries.flat_map(reply).collect())
            }
            Query::Range { .. } => Reply::Array(Vec::new()),
            // In the order of slots: all keys here have one.
            Query::Keys { limit, .. } => {
                let limit = usize::try_from(*limit).unwrap();
                Reply::Array(seen.keys.keys().take(limit).cloned().map(Reply::Bulk).collect())
            }
            Query::Size => Reply::count(self.keys.len()),
            other => unreachable!("not generated: {other:?}"),
        }
    }
}

fn key() -> impl Strategy<Value = Bytes> {
    prop::sample::select(vec!["{t}a", "{t}b", "{t}b0", "{t}c", "{t}"]).prop_map(Bytes::from)
}

fn value() -> impl Strategy<Value = Bytes> {
    let texts = vec!["", "0", "41", "-7", "text", "9223372036854775807"];
    prop::sample::select(texts).prop_map(Bytes::from)
}

fn new_deadline() -> impl Strategy<Value = NewDeadline> {
    prop_oneof![
        (-5..40i64).prop_map(NewDeadline::In),
        (-5..400i64).prop_map(NewDeadline::At),
        prop::sample::select(vec![i64::MAX, i64::MIN, 0]).prop_map(NewDeadline::In),
        prop::sample::select(vec![i64::MAX, i64::MIN, 0]).prop_map(NewDeadline::At),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let condition = prop_oneof![
        prop::sample::select(vec![Condition::Always, Condition::IfAbsent, Condition::IfPresent]),
        value().prop_map(Condition::IfEqual),
    ];
    let answer = prop::sample::select(vec![SetAnswer::Ok, SetAnswer::Old, SetAnswer::Integer]);
    let deadline = prop_oneof![Just(Deadline::None), Just(Deadline::Keep), new_deadline().prop_map(Deadline::New)];
    let expire = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>())
        .prop_map(|(none, some, later, earlier)| ExpireCondition { none, some, later, earlier });
    prop_oneof![
        3 => (key(), value(), condition, deadline, answer).prop_map(|(key, value, condition, deadline, answer)| {
            Operation::Set { key, value, condition, deadline, answer }
        }),
        1 => prop::collection::vec((key(), value()), 0..4).prop_map(Operation::SetMany),
        1 => prop::collection::vec(key(), 0..4).prop_map(Operation::Delete),
        1 => key().prop_map(Operation::Take),
        2 => (key(), prop::sample::select(vec![1, -1, i64::MAX, i64::MIN]))
            .prop_map(|(key, delta)| Operation::Add { key, delta }),
        1 => (key(), value()).prop_map(|(key, suffix)| Operation::Append { key, suffix }),
        2 => (key(), new_deadline(), expire)
            .prop_map(|(key, deadline, condition)| Operation::Expire { key, deadline, condition }),
        1 => key().prop_map(Operation::Persist),
        1 => (key(), prop::option::of(value()), prop::option::of(value()))
            .prop_map(|(key, expected, new)| Operation::Swap { key, expected, new }),
        1 => prop::collection::vec((key(), value()), 1..3).prop_map(Operation::SetManyIfAbsent),
        1 => (key(), prop::option::of(new_deadline()))
            .prop_map(|(key, deadline)| Operation::GetExpiring { key, deadline }),
        1 => (key(), prop::sample::select(vec!["1.5", "-41.25", "999999999999999999999"]))
            .prop_map(|(key, delta)| Operation::AddDecimal { key, delta: Decimal::parse(delta.as_bytes()).unwrap() }),
        1 => (key(), 0..9u64, value()).prop_map(|(key, offset, part)| Operation::Overwrite { key, offset, part }),
        1 => (key(), 0..9u64, 0..256i64).prop_map(|(key, byte, new)| {
            let action = FieldAction::Set(new, Overflow::Wrap);
            Operation::Bits { key, fields: vec![BitField { offset: byte * 8, bits: 8, signed: false, action }], single: true }
        }),
        1 => (key(), prop::collection::vec(key(), 1..4))
            .prop_map(|(to, from)| Operation::Combine { to, operator: BitOperator::Or, from }),
        2 => (key(), key(), any::<bool>(), any::<bool>())
            .prop_map(|(from, to, replace, keep)| Operation::Copy { from, to, replace, keep }),
        1 => Just(Operation::Clear),
    ]
}

fn query() -> impl Strategy<Value = Query> {
    prop_oneof![
        key().prop_map(Query::Get),
        prop::collection::vec(key(), 0..4).prop_map(Query::GetMany),
        prop::collection::vec(key(), 0..4).prop_map(Query::Exists),
        key().prop_map(Query::Length),
        key().prop_map(Query::MillisLeft),
        (0..4u64).prop_map(|limit| Query::Keys { first: 0, end: SLOTS, pattern: None, limit }),
        (key(), key(), 0..4u32, any::<bool>()).prop_map(|(start, end, limit, values)| Query::Range {
            start,
            end,
            limit,
            values
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![2 => operation().prop_map(Step::Write), 1 => query().prop_map(Step::Read)]
}

#[derive(Debug, Clone)]
enum Event {
    /// An entry after a time, with transactions and single operations.
    Apply(u64, Vec<Result<Operation, Vec<Step>>>),
    /// Goes back in time by so much; the log does not.
    Back(u64),
    Read(Query, u64),
    Flush,
    /// Crashes, and applies again what was lost.
    Crash(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let body = prop_oneof![
        4 => operation().prop_map(Ok),
        1 => prop::collection::vec(step(), 0..4).prop_map(Err),
    ];
    prop_oneof![
        8 => (0..30u64, prop::collection::vec(body, 0..4)).prop_map(|(after, bodies)| Event::Apply(after, bodies)),
        1 => (0..50u64).prop_map(Event::Back),
        6 => (query(), 0..20u64).prop_map(|(query, after)| Event::Read(query, after)),
        1 => Just(Event::Flush),
        1 => any::<u64>().prop_map(Event::Crash),
    ]
}

/// Opens what a crash has left and applies the entries that it lacks, as a node does with its log.
fn recover(file_system: &SimFileSystem, log: &[Entry]) -> (tamis::Db, Machine) {
    let db = open(file_system);
    let machine = Machine::open(&db, 0).unwrap();
    let applied =
        machine.meta(b"applied").unwrap().map_or(0, |index| String::from_utf8(index).unwrap().parse().unwrap());
    for (index, entry) in log.iter().enumerate().skip(applied) {
        apply_indexed(&machine, index, entry);
    }
    (db, machine)
}

fn apply_indexed(machine: &Machine, index: usize, entry: &Entry) -> Vec<Reply> {
    let mut encoded = Vec::new();
    entry.encode(&mut encoded);
    let entry = Entry::decode(&encoded).unwrap();
    machine.apply(&entry, &[(b"applied", (index + 1).to_string().as_bytes())]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_machine_does_what_the_model_says_and_a_second_one_holds_equal_bytes(
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut file_system = SimFileSystem::new();
        let (mut db, mut machine) = recover(&file_system, &[]);
        let (mut model, mut clock, mut log) = (Model::default(), 1000, Vec::new());
        for event in events {
            match event {
                Event::Apply(after, bodies) => {
                    clock += after;
                    model.pass(clock);
                    let expected: Vec<_> = bodies.iter().map(|body| match body {
                        Ok(operation) => model.run(operation),
                        Err(steps) => Reply::Array(steps.iter().map(|step| match step {
                            Step::Write(operation) => model.run(operation),
                            Step::Read(query) => model.read(query, 0),
                        }).collect()),
                    }).collect();
                    let requests = bodies.into_iter().map(|body| Request::new(match body {
                        Ok(operation) => Body::Run(operation),
                        Err(steps) => Body::Transaction { watched: Vec::new(), steps },
                    }));
                    let entry = Entry { time_ms: clock, requests: requests.collect() };
                    prop_assert_eq!(apply_indexed(&machine, log.len(), &entry), expected);
                    log.push(entry);
                }
                Event::Back(by) => clock -= by,
                Event::Read(query, after) => {
                    let now = machine.time_ms() + after;
                    let reading = machine.read(&query, now).unwrap();
                    let expected = model.read(&query, now);
                    prop_assert_eq!(&reading.reply, &expected);
                    // What was not hidden by the reader's clock alone is what the log says.
                    if !reading.ahead_of_log && !matches!(query, Query::MillisLeft(_)) {
                        prop_assert_eq!(expected, model.read(&query, 0));
                    }
                }
                Event::Flush => db.flush().unwrap(),
                Event::Crash(seed) => {
                    let before = bytes_of(&machine);
                    file_system = file_system.crash(seed);
                    (db, machine) = recover(&file_system, &log);
                    prop_assert_eq!(bytes_of(&machine), before);
                }
            }
        }
        let keys = model.keys.len() as u64;
        prop_assert_eq!(machine.read(&Query::Size, 0).unwrap().reply, Reply::Integer(keys as i64));
        let (_db, second) = recover(&SimFileSystem::new(), &log);
        prop_assert_eq!(bytes_of(&second), bytes_of(&machine));
    }

    #[test]
    fn damaged_entries_are_refused_and_never_panic(
        steps in prop::collection::vec(step(), 0..4), at in any::<prop::sample::Index>(), flip in 1..=255u8, cut in any::<bool>(),
    ) {
        let body = Body::Transaction { watched: vec![(Bytes::from("k"), 7)], steps };
        let entry = Entry { time_ms: 5, requests: vec![Request::new(body), Request::new(Body::OpenSession)] };
        let mut encoded = Vec::new();
        entry.encode(&mut encoded);
        prop_assert_eq!(&Entry::decode(&encoded).unwrap(), &entry);
        let at = at.index(encoded.len());
        if cut {
            prop_assert!(Entry::decode(&encoded[..at]).is_err());
        } else {
            encoded[at] ^= flip;
            prop_assert_ne!(Entry::decode(&encoded).ok(), Some(entry));
        }
    }
}

#[test]
fn an_entry_of_declared_lengths_beyond_its_bytes_allocates_nothing() {
    // A time, and 2^63 requests.
    let bytes = [1, 5, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    assert!(matches!(Entry::decode(&bytes), Err(DecodeError::Damaged(_))));
    assert!(matches!(Entry::decode(&[3, 0, 0]), Err(DecodeError::Version(version)) if version.number() == 3));
    assert!(matches!(Entry::decode(&[]), Err(DecodeError::Damaged(_))));
}

#[test]
fn expiry_goes_by_the_time_of_entries_and_readers_know_when_they_are_ahead() {
    let machine = machine();
    run(&machine, 1000, set("k", "v", expire_in(100)));
    assert_eq!(machine.next_deadline_ms().unwrap(), Some(1100));
    let reading = |now| machine.read(&Query::Get("k".into()), now).unwrap();
    assert_eq!(reading(1099), Reading { reply: Reply::bulk("v"), ahead_of_log: false });
    assert_eq!(reading(1100), Reading { reply: Reply::Nil, ahead_of_log: true });
    // The log has not passed the deadline, so a write still finds the key.
    let renewed = run(&machine, 1099, Body::Run(Operation::Persist("k".into())));
    assert_eq!(renewed, Reply::Integer(1));
    assert_eq!(reading(5000).reply, Reply::bulk("v"));
    run(&machine, 2000, set("k", "v", expire_in(100)));
    run(&machine, 2100, Body::Tick);
    assert_eq!(reading(0), Reading { reply: Reply::Nil, ahead_of_log: false });
    assert_eq!(machine.next_deadline_ms().unwrap(), None);
    assert_eq!(machine.read(&Query::Size, 0).unwrap().reply, Reply::Integer(0));
}

#[test]
fn expired_keys_are_removed_a_part_at_a_time_and_stay_hidden_until_then() {
    let machine = machine();
    let keys = MAX_REMOVALS * 2 + 5;
    let requests = (0..keys).map(|i| Request::new(set(&format!("k{i}"), "v", expire_in(10)))).collect();
    apply(&machine, 1000, requests);
    for left in [keys - MAX_REMOVALS, keys - 2 * MAX_REMOVALS, 0] {
        run(&machine, 2000, Body::Tick);
        assert_eq!(machine.read(&Query::Size, 0).unwrap().reply, Reply::count(left));
        assert!((0..keys).all(|i| get(&machine, &format!("k{i}"), 0) == Reply::Nil));
    }
    let left = bytes_of(&machine);
    assert_eq!(left.len(), 1, "the counters: {left:?}");
}

#[test]
fn a_session_applies_each_request_once_and_answers_a_retry_as_before() {
    let file_system = SimFileSystem::new();
    let db = open(&file_system);
    let machine = Machine::open(&db, 0).unwrap();
    let Reply::Integer(session) = run(&machine, 1, Body::OpenSession) else { panic!("a number") };
    let session = session as u64;
    let add = |machine: &Machine, session, serial| {
        let body = Body::Run(Operation::Add { key: "n".into(), delta: 1 });
        apply(machine, 1, vec![Request { session: Some(Serial { session, serial }), body }]).remove(0)
    };
    assert_eq!(add(&machine, session, 1), Reply::Integer(1));
    assert_eq!(add(&machine, session, 1), Reply::Integer(1), "not applied again");
    assert_eq!(add(&machine, session, 9), Reply::Integer(2), "numbers may be left out");
    let text = |reply: &Reply| match reply {
        Reply::Error(text) => text.split(' ').next().unwrap().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(text(&add(&machine, session, 8)), "OLDSERIAL");
    assert_eq!(text(&add(&machine, session + 1, 1)), "NOSESSION");
    assert_eq!(get(&machine, "n", 0), Reply::bulk("2"));
    // A retry of a request whose reply is long says that it was applied.
    let long = |serial| {
        let body = Body::Run(Operation::Take("long".into()));
        apply(&machine, 1, vec![Request { session: Some(Serial { session, serial }), body }]).remove(0)
    };
    run(&machine, 1, set("long", &"x".repeat(5000), Deadline::None));
    assert_eq!(long(10), Reply::bulk("x".repeat(5000)));
    assert_eq!(text(&long(10)), "NOREPLY");
    // Reopening keeps sessions.
    db.flush().unwrap();
    let machine = Machine::open(&open(&file_system.crash(1)), 0).unwrap();
    assert_eq!(text(&add(&machine, session, 10)), "NOREPLY");
    assert_eq!(add(&machine, session, 11), Reply::Integer(3));
}

#[test]
fn the_session_used_least_recently_gives_way() {
    let machine = machine();
    let open = |count: u64| {
        let requests = (0..count).map(|_| Request::new(Body::OpenSession)).collect();
        apply(&machine, 1, requests)
    };
    let sessions: Vec<_> = (0..MAX_SESSIONS / 1024).flat_map(|_| open(1024)).collect();
    assert_eq!(sessions.len() as u64, MAX_SESSIONS);
    let touch = |index: usize| {
        let Reply::Integer(session) = sessions[index] else { panic!("a number") };
        let serial =
            Some(Serial { session: session as u64, serial: machine.keyspace().counters().unwrap().last_number });
        apply(&machine, 1, vec![Request { session: serial, body: Body::Tick }]).remove(0)
    };
    assert_eq!(touch(0), Reply::OK);
    open(2);
    assert_eq!(touch(0), Reply::OK, "used since");
    assert!(touch(1).is_error() && touch(2).is_error(), "closed");
    assert_eq!(touch(3), Reply::OK);
    assert_eq!(machine.keyspace().counters().unwrap().sessions, MAX_SESSIONS);
}

#[test]
fn a_transaction_applies_unless_a_watched_key_has_changed() {
    let machine = machine();
    run(&machine, 1, set("k", "v", Deadline::None));
    let version = |key: &str| match machine.read(&Query::Versions(vec![Bytes::from(key.to_owned())]), 1).unwrap().reply
    {
        Reply::Array(versions) => match versions[0] {
            Reply::Integer(version) => version as u64,
            _ => panic!("a number"),
        },
        _ => panic!("an array"),
    };
    let transaction = |watched: &[(&str, u64)]| {
        let watched = watched.iter().map(|(key, version)| (Bytes::from((*key).to_owned()), *version)).collect();
        let add = Step::Write(Operation::Add { key: "n".into(), delta: 1 });
        run(&machine, 1, Body::Transaction { watched, steps: vec![add, Step::Read(Query::Get("n".into()))] })
    };
    let (old, absent) = (version("k"), version("none"));
    assert_eq!((old > 0, absent), (true, 0));
    assert_eq!(transaction(&[("k", old), ("none", 0)]), Reply::Array(vec![Reply::Integer(1), Reply::bulk("1")]));
    run(&machine, 1, set("k", "v", Deadline::None));
    assert_eq!(transaction(&[("k", old)]), Reply::NilArray, "written again, if with an equal value");
    run(&machine, 1, Body::Run(Operation::Delete(vec!["k".into()])));
    run(&machine, 1, set("k", "v", Deadline::None));
    assert_ne!(version("k"), old, "a version is never used twice");
    assert_eq!(get(&machine, "n", 0), Reply::bulk("1"));
}

#[test]
fn a_failed_write_leaves_the_machine_as_it_was() {
    let file_system = SimFileSystem::new();
    let db = open(&file_system);
    let machine = Machine::open(&db, 0).unwrap();
    run(&machine, 1, set("k", "v", Deadline::None));
    db.flush().unwrap();
    let before = bytes_of(&machine);
    db.close().unwrap();
    let add = Body::Run(Operation::Add { key: "n".into(), delta: 1 });
    let error = machine.apply(&Entry { time_ms: 99, requests: vec![Request::new(add)] }, &[]);
    assert!(matches!(error, Err(Error::Store(_))), "{error:?}");
    assert_eq!(machine.time_ms(), 1);
    let machine = Machine::open(&open(&file_system), 0).unwrap();
    assert_eq!(bytes_of(&machine), before);
}

#[test]
fn replies_of_an_entry_and_of_a_read_are_bounded() {
    let machine = machine();
    let value = "x".repeat(MAX_VALUE_LEN);
    run(&machine, 1, set("k", &value, Deadline::None));
    let appended = run(&machine, 1, Body::Run(Operation::Append { key: "k".into(), suffix: "y".into() }));
    assert!(appended.is_error(), "a value has a greatest length");
    let count = MAX_REPLY_LEN / MAX_VALUE_LEN + 2;
    let many = machine.read(&Query::GetMany(vec!["k".into(); count]), 1).unwrap().reply;
    assert!(many.is_error());
    let steps = vec![Step::Read(Query::Get("k".into())); count];
    let Reply::Array(replies) = run(&machine, 1, Body::Transaction { watched: Vec::new(), steps }) else {
        panic!("an array")
    };
    assert!(!replies[0].is_error() && replies[count - 1].is_error());
    let names: Vec<String> = (0..count).map(|i| format!("k{i}")).collect();
    names.iter().for_each(|name| _ = run(&machine, 1, set(name, &value, Deadline::None)));
    let take = |name: &String| Request::new(Body::Run(Operation::Take(Bytes::from(name.clone()))));
    let replies = apply(&machine, 1, names.iter().map(take).collect());
    assert_eq!((replies[0].weight(), replies[count - 1].is_error()), (MAX_VALUE_LEN, true));
    let length = machine.read(&Query::Length(names[count - 1].clone().into()), 1).unwrap().reply;
    assert_eq!(length, Reply::count(MAX_VALUE_LEN), "refused, rather than applied without a reply");
}

/// Sets `count` keys to the longest value, one per entry.
fn set_long_values(machine: &Machine, count: usize) -> Vec<Bytes> {
    let value = "x".repeat(MAX_VALUE_LEN);
    let names: Vec<String> = (0..count).map(|i| format!("{{t}}{i}")).collect();
    names.iter().for_each(|name| assert_eq!(run(machine, 1, set(name, &value, Deadline::None)), Reply::OK));
    names.into_iter().map(Bytes::from).collect()
}

fn expire(key: &Bytes) -> Operation {
    Operation::Expire { key: key.clone(), deadline: NewDeadline::In(50), condition: ExpireCondition::default() }
}

fn kind(reply: &Reply) -> &str {
    match reply {
        Reply::Error(text) => text.split(' ').next().unwrap(),
        _ => "no error",
    }
}

#[test]
fn what_an_entry_rewrites_is_bounded_and_what_is_refused_can_be_sent_again() {
    let machines = [machine(), machine()];
    let fit = view::MAX_CHANGE / (MAX_VALUE_LEN + 10);
    for machine in &machines {
        let keys = set_long_values(machine, fit + 2);
        let session = run(machine, 1, Body::OpenSession);
        let Reply::Integer(session) = session else { panic!("a number") };
        let mut requests: Vec<_> = keys.iter().map(|key| Request::new(Body::Run(expire(key)))).collect();
        let serial = Some(Serial { session: session as u64, serial: 1 });
        requests[fit].session = serial;
        requests.push(Request::new(set("{t}short", "v", Deadline::None)));
        let replies = apply(machine, 1, requests.clone());
        let (applied, refused) = replies.split_at(fit);
        assert!(applied.iter().all(|reply| *reply == Reply::Integer(1)), "{applied:?}");
        assert_eq!(refused.iter().map(kind).collect::<Vec<_>>(), ["TRYAGAIN", "TRYAGAIN", "no error"]);
        let left = |key: &Bytes| machine.read(&Query::MillisLeft(key.clone()), 1).unwrap().reply;
        assert_eq!((left(&keys[fit - 1]), left(&keys[fit])), (Reply::Integer(50), Reply::Integer(-1)));
        // Refused, so that the session's number may be used again.
        assert_eq!(apply(machine, 1, vec![requests[fit].clone()]), [Reply::Integer(1)]);
        assert_eq!(left(&keys[fit]), Reply::Integer(50));
        assert_eq!(machine.read(&Query::Size, 1).unwrap().reply, Reply::count(fit + 3));
    }
    assert_eq!(bytes_of(&machines[0]), bytes_of(&machines[1]));
}

#[test]
fn a_transaction_that_rewrites_too_much_does_nothing() {
    let machine = machine();
    let keys = set_long_values(&machine, view::MAX_CHANGE / MAX_VALUE_LEN + 1);
    let before = bytes_of(&machine);
    let steps = |count: usize| {
        let add = Step::Write(Operation::Add { key: "{t}n".into(), delta: 1 });
        let gone = Step::Write(Operation::Delete(vec!["{t}0".into()]));
        let again = Step::Write(Operation::Append { key: "{t}0".into(), suffix: "x".into() });
        let expiring = keys[1..count].iter().map(|key| Step::Write(expire(key)));
        Body::Transaction { watched: Vec::new(), steps: [add, gone, again].into_iter().chain(expiring).collect() }
    };
    let all = steps(keys.len());
    assert_eq!(kind(&run(&machine, 1, all.clone())), "ERR", "it would never fit");
    assert_eq!(bytes_of(&machine), before);
    let replies = apply(&machine, 1, vec![Request::new(set("{t}a", "b", Deadline::None)), Request::new(all)]);
    assert_eq!(replies.iter().map(kind).collect::<Vec<_>>(), ["no error", "TRYAGAIN"]);
    assert_eq!(machine.read(&Query::Size, 1).unwrap().reply, Reply::count(keys.len() + 1));
    let Reply::Array(replies) = run(&machine, 1, steps(keys.len() - 1)) else { panic!("an array") };
    assert!(replies.iter().all(|reply| *reply == Reply::Integer(1)), "{replies:?}");
}

#[test]
fn a_scan_meets_every_key_once_while_others_come_and_go() {
    let machine = machine();
    let names: Vec<_> = (0..3000).map(|i| format!("key{i}")).chain((0..500).map(|i| format!("{{t}}{i}"))).collect();
    apply(&machine, 1, names.iter().map(|name| Request::new(set(name, "v", Deadline::None))).collect());
    let (mut from, mut found, mut round) = (0, Vec::new(), 0);
    loop {
        let query = Query::Scan { from, count: 100, pattern: None };
        let Reply::Array(mut parts) = machine.read(&query, 1).unwrap().reply else { panic!("an array") };
        let (Some(Reply::Array(keys)), Some(Reply::Bulk(next))) = (parts.pop(), parts.pop()) else { panic!("a pair") };
        found.extend(keys.into_iter().map(|key| match key {
            Reply::Bulk(key) => String::from_utf8(key.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        }));
        from = parse_integer(&next).unwrap() as u64;
        round += 1;
        run(&machine, 1, set(&format!("new{round}"), "v", Deadline::None));
        run(&machine, 1, Body::Run(Operation::Delete(vec![format!("new{}", round - 1).into()])));
        if from == 0 {
            break;
        }
    }
    found.retain(|name| !name.starts_with("new"));
    found.sort();
    let mut expected = names.clone();
    expected.sort();
    assert_eq!(found, expected);
    assert!(round >= names.len() / 200, "{round} calls");
    let query = Query::Scan { from: 0, count: 10_000, pattern: Some("{t}4?".into()) };
    let Reply::Array(parts) = machine.read(&query, 1).unwrap().reply else { panic!("an array") };
    assert!(matches!(&parts[..], [_, Reply::Array(keys)] if keys.len() == 10));
}

#[test]
fn groups_in_one_store_share_nothing() {
    let db = open(&SimFileSystem::new());
    let (first, second) = (Machine::open(&db, 0).unwrap(), Machine::open(&db, 1).unwrap());
    run(&first, 1, set("k", "v", Deadline::None));
    first.apply(&Entry { time_ms: 1, requests: Vec::new() }, &[(b"applied", b"1")]).unwrap();
    assert_eq!((get(&second, "k", 0), second.meta(b"applied").unwrap()), (Reply::Nil, None));
}

#[test]
fn damaged_records_are_reported_with_their_key() {
    let machine = machine();
    machine.keyspace().put(layout::data_key(b"k"), b"\x09").unwrap();
    let error = machine.read(&Query::Get("k".into()), 1).unwrap_err();
    assert!(matches!(&error, Error::Damaged { keyspace, .. } if keyspace == "group-0"), "{error}");
    machine.keyspace().put(layout::COUNTERS, b"short").unwrap();
    assert!(matches!(Machine::open(&machine.db, 0), Err(Error::Damaged { .. })));
}
