//! `diff`: the entries in which two stores differ.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::io::{IsTerminal, stdout};
use std::time::SystemTime;

use serde_json::{Value, json};
use tamis::{Cursor, Db, ReadOptions, Snapshot};

use super::progress::{Bar, KEYS, Unit, bar};
use super::range::KeyRange;
use super::store::open_read_only;
use crate::args::{Common, Diff};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output::{Output, json_bytes, say};
use crate::text::{Form, count, utc_or_unix};

/// What is different about a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Removed,
    Added,
    Changed,
}

#[derive(Default)]
struct Counts {
    equal: u64,
    removed: u64,
    added: u64,
    changed: u64,
    /// Keyspaces that one store alone has.
    keyspaces: u64,
}

impl Counts {
    fn differences(&self) -> u64 {
        self.removed + self.added + self.changed
    }
}

/// A store as of one moment. The snapshot alone does not keep it open.
struct Side {
    db: Db,
    snapshot: Snapshot,
}

impl Side {
    fn new(db: Db) -> Side {
        Side { snapshot: db.snapshot(), db }
    }

    /// A cursor at the first entry of a range, if there is such a keyspace.
    fn entries(&self, keyspace: &str, range: &KeyRange) -> Result<Option<Cursor>> {
        let Some(keyspace) = self.db.existing_keyspace(keyspace)? else { return Ok(None) };
        // Each block is used once.
        let mut cursor = self.snapshot.keyspace(&keyspace).cursor_with(ReadOptions::new().fill_cache(false))?;
        range.seek_to_first(&mut cursor)?;
        Ok(Some(cursor))
    }

    /// About how many keys a range of a keyspace has.
    fn about(&self, keyspace: &str, range: &KeyRange) -> Result<u64> {
        let keyspace = self.db.existing_keyspace(keyspace)?;
        Ok(keyspace.map_or(Ok(0), |keyspace| keyspace.approximate_len(range.bounds()))?)
    }
}

pub(crate) fn run(common: &Common, args: Diff) -> Result<()> {
    let range = KeyRange::of(common, &args.range)?;
    let (old, new) = (open_read_only(&args.db, common)?, Db::open_read_only(&args.other)?);
    let (old, new) = (Side::new(old), Side::new(new));
    let mut names: BTreeSet<String> = old.db.keyspace_names()?.into_iter().chain(new.db.keyspace_names()?).collect();
    if let Some(name) = &common.keyspace {
        names.retain(|known| known == name);
        if names.is_empty() {
            return Err(super::store::no_such_keyspace(name));
        }
    }
    let mut printer = Printer {
        common,
        output: Output::new(),
        // Of one keyspace, its name goes without saying.
        shows_keyspace: names.len() > 1,
        is_quiet: args.count,
        counts: Counts::default(),
        // Not among the lines that are printed on a terminal.
        bar: if args.count || !stdout().is_terminal() { bar(Unit::Keys, Some(0)) } else { Bar::hidden() },
        left: args.limit.unwrap_or(u64::MAX),
    };
    for name in &names {
        let (is_old, is_new) = (old.db.existing_keyspace(name)?.is_some(), new.db.existing_keyspace(name)?.is_some());
        if is_old != is_new {
            let side = if is_old { "first" } else { "second" };
            say(format_args!("keyspace {} is only in the {side} store", Form::Plain.show(name.as_bytes())));
            printer.counts.keyspaces += 1;
        }
        if !printer.bar.is_hidden() {
            printer.bar.inc_length(old.about(name, &range)?.max(new.about(name, &range)?));
        }
        let (old, new) = (old.entries(name, &range)?, new.entries(name, &range)?);
        compare(name, &range, old, new, &mut printer)?;
    }
    printer.finish()
}

/// The entry at a cursor, if it is in the range.
fn entry<'a>(cursor: Option<&'a Cursor>, range: &KeyRange) -> Option<Entry<'a>> {
    let cursor = cursor?;
    let (key, value) = (cursor.key()?, cursor.value()?);
    range.contains(key).then(|| Entry { key, value, deadline: cursor.deadline() })
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry<'a> {
    key: &'a [u8],
    value: &'a [u8],
    deadline: Option<SystemTime>,
}

/// Goes through both keyspaces at once, in the order of keys.
fn compare(
    keyspace: &str,
    range: &KeyRange,
    mut old: Option<Cursor>,
    mut new: Option<Cursor>,
    printer: &mut Printer<'_>,
) -> Result<()> {
    while printer.left > 0 {
        interrupt::check()?;
        printer.show_progress();
        let (a, b) = (entry(old.as_ref(), range), entry(new.as_ref(), range));
        let order = match (&a, &b) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.key.cmp(b.key),
        };
        match order {
            Ordering::Less => printer.print(keyspace, Change::Removed, a, None)?,
            Ordering::Greater => printer.print(keyspace, Change::Added, None, b)?,
            Ordering::Equal if a == b => printer.counts.equal += 1,
            Ordering::Equal => printer.print(keyspace, Change::Changed, a, b)?,
        }
        if let Some(cursor) = old.as_mut().filter(|_| order.is_le()) {
            cursor.next()?;
        }
        if let Some(cursor) = new.as_mut().filter(|_| order.is_ge()) {
            cursor.next()?;
        }
    }
    Ok(())
}

struct Printer<'a> {
    common: &'a Common,
    output: Output,
    shows_keyspace: bool,
    /// Whether only their number is printed.
    is_quiet: bool,
    counts: Counts,
    bar: Bar,
    left: u64,
}

impl Printer<'_> {
    fn show_progress(&self) {
        let passed = self.counts.equal + self.counts.differences();
        if passed.is_multiple_of(KEYS) {
            self.bar.set_position(passed);
        }
    }

    fn print(&mut self, keyspace: &str, change: Change, old: Option<Entry<'_>>, new: Option<Entry<'_>>) -> Result<()> {
        match change {
            Change::Removed => self.counts.removed += 1,
            Change::Added => self.counts.added += 1,
            Change::Changed => self.counts.changed += 1,
        }
        self.left -= 1;
        if self.is_quiet {
            return Ok(());
        }
        if self.common.json() {
            let key = old.or(new).map_or(&b""[..], |entry| entry.key);
            let side = |entry: Option<Entry<'_>>| match entry {
                Some(Entry { value, deadline, .. }) => {
                    json!({ "value": json_bytes(self.common.form(), value), "deadline": deadline.map(utc_or_unix) })
                }
                None => Value::Null,
            };
            let key = json_bytes(self.common.form(), key);
            return self.output.json(json!({ "keyspace": keyspace, "key": key, "old": side(old), "new": side(new) }));
        }
        let form = self.common.form();
        for (sign, entry) in [("-", old), ("+", new)] {
            let Some(Entry { key, value, deadline }) = entry else { continue };
            let keyspace = match self.shows_keyspace {
                true => format!("{}\t", Form::Plain.show_key(keyspace.as_bytes())),
                false => String::new(),
            };
            self.output.write(format!("{sign}\t{keyspace}").as_bytes())?;
            let until = deadline.map_or_else(String::new, |at| format!("\tuntil {}", utc_or_unix(at)));
            self.output.line(format_args!("{}\t{}{until}", form.show_key(key), form.show(value)))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        let Counts { equal, removed, added, changed, keyspaces } = self.counts;
        let summary = json!({ "equal": equal, "removed": removed, "added": added, "changed": changed, "keyspaces_in_one": keyspaces });
        match (self.is_quiet, self.common.json()) {
            (_, true) => self.output.json(json!({ "summary": summary }))?,
            (true, false) => self.output.line(self.counts.differences())?,
            (false, false) => {}
        }
        self.output.finish()?;
        drop(self.bar);
        let more = if self.left == 0 { ", and perhaps more" } else { "" };
        say(format_args!(
            "{} equal, {} removed, {} added, {} changed{more}",
            count(equal),
            count(removed),
            count(added),
            count(changed)
        ));
        match removed + added + changed + keyspaces {
            0 => Ok(()),
            _ => Err(Failure::NotFound),
        }
    }
}
