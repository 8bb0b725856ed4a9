//! What is written of given entries, and to which tables.

use std::cell::Cell;
use std::path::Path;

use super::*;
use crate::sorted::files::WRITE_LEN;
use crate::sorted::iter::InternalCursor;
use crate::sorted::operator::Append;
use crate::sorted::table::{Input, SalvageTable, TableFilters};
use crate::vfs::{FileSystem, SimFileSystem};

type Entry = (Vec<u8>, SeqNo, ValueKind, usize);

/// A level below that holds the keys with an `h`, and wants a new table to begin with these.
struct Marked {
    cuts: &'static [&'static str],
    ended: usize,
}

impl LowerLevels for Marked {
    fn may_hold(&mut self, key: &[u8]) -> bool {
        key.contains(&b'h')
    }

    fn may_hold_since(&mut self, key: &[u8], _seqno: SeqNo) -> bool {
        key.contains(&b'i')
    }

    fn may_stay_above(&mut self, key: &[u8], _seqno: SeqNo) -> bool {
        key.contains(&b's')
    }

    fn cut_before(&mut self, key: &[u8]) -> bool {
        self.cuts.iter().any(|cut| cut.as_bytes() == key)
    }

    fn table_ended(&mut self) {
        self.ended += 1;
    }
}

const OPTIONS: TableOptions = TableOptions {
    filters: TableFilters::NONE,
    compression: Compression::None,
    block_size: 1024,
    seed: 0,
    keyspace: 0,
};

/// One table, and no snapshots.
const ALL: (u64, &[SeqNo]) = (u64::MAX, &[]);

fn put(key: impl AsRef<[u8]>, seqno: SeqNo, value_len: usize) -> Entry {
    (key.as_ref().to_vec(), seqno, ValueKind::Put, value_len)
}

/// An operand of one byte that stands for itself alone.
fn merge(key: &str, seqno: SeqNo) -> Entry {
    (key.as_bytes().to_vec(), seqno, ValueKind::Merge, 2)
}

fn delete(key: &str, seqno: SeqNo) -> Entry {
    (key.as_bytes().to_vec(), seqno, ValueKind::Delete, 0)
}

fn context() -> Arc<TableContext> {
    let fs = SimFileSystem::new();
    fs.create_dir(Path::new("/db")).unwrap();
    Arc::new(TableContext::new(Arc::new(fs), Path::new("/db"), 0, 8))
}

/// What is written of the table of `entries`, table by table; it is number 1.
fn written(
    tables: &Arc<TableContext>,
    entries: &[Entry],
    part: KeySpan<&[u8]>,
    limits: (u64, &[SeqNo]),
    below: &mut Marked,
    turn: &dyn Fn(usize) -> Turn,
) -> Option<Vec<Vec<Entry>>> {
    written_by(tables, entries, part, limits, below, turn, CompactionHook::default())
}

fn written_by(
    tables: &Arc<TableContext>,
    entries: &[Entry],
    part: KeySpan<&[u8]>,
    (table_size, snapshots): (u64, &[SeqNo]),
    below: &mut Marked,
    turn: &dyn Fn(usize) -> Turn,
    hook: CompactionHook,
) -> Option<Vec<Vec<Entry>>> {
    let mut builder = TableBuilder::new(tables.fs(), tables.dir(), 1, OPTIONS).unwrap();
    for (key, seqno, kind, value_len) in entries {
        // The first byte of a stored operand says what it stands for.
        let value = [&vec![0; usize::from(*kind == ValueKind::Merge)][..], &vec![7; *value_len]].concat();
        builder.add(key, *seqno, *kind, &value[..*value_len]).unwrap();
    }
    let cursor_over = |meta: TableMeta| Arc::new(Table::new(Arc::clone(tables), meta)).cursor(false);
    let mut cursor = cursor_over(builder.finish().unwrap());
    let last_number = Cell::new(1);
    let context = OutputContext {
        tables,
        options: OPTIONS,
        table_size,
        table_memory: usize::MAX,
        reserved: 0,
        write_len: WRITE_LEN,
        snapshots: snapshots.to_vec(),
        ranges: Vec::new(),
        cleared: 0,
        operator: Some(NamedOperator::new(Arc::new(Append))),
        hook,
        now: 0,
        values: ValuePolicy::of(&KeyspaceOptions::new()),
        keyspace: "ks",
        new_number: &|| last_number.replace(last_number.get() + 1) + 1,
        turn,
        paranoid: true,
        origin: Origin { inputs: vec![Input { number: 1, is_replaced: true }], ..Origin::default() },
    };
    let metas = write_run(&mut cursor, part, &context, below).unwrap()?.tables;
    let tables = metas.into_iter().map(|meta| {
        let mut cursor = cursor_over(meta);
        let mut entries = Vec::new();
        cursor.seek_to_first().unwrap();
        while cursor.valid() {
            entries.push((cursor.key().to_vec(), cursor.seqno(), cursor.kind(), cursor.value().len()));
            cursor.next().unwrap();
        }
        entries
    });
    Some(tables.collect())
}

fn marked(cuts: &'static [&'static str]) -> Marked {
    Marked { cuts, ended: 0 }
}

#[test]
fn a_table_ends_when_it_is_full_or_a_level_below_wants_it_and_never_amid_a_key() {
    // Two versions of each letter, of 600 bytes: a table of 4 KiB takes four letters.
    let entries: Vec<Entry> =
        ('a'..='t').flat_map(|key| [put(key.to_string(), 9, 600), put(key.to_string(), 5, 600)]).collect();
    let first_keys = |table_size: u64, below: &mut Marked| -> String {
        let tables =
            written(&context(), &entries, KeySpan::default(), (table_size, &[5]), below, &|_| Turn::GoOn).unwrap();
        assert_eq!(tables.concat(), entries);
        assert_eq!(below.ended + 1, tables.len(), "each end but the last is told");
        tables.iter().map(|table| char::from(table[0].0[0])).collect()
    };
    assert_eq!(first_keys(u64::MAX, &mut marked(&[])), "a");
    assert_eq!(first_keys(4096, &mut marked(&[])), "aeimq");
    assert_eq!(first_keys(u64::MAX, &mut marked(&["c", "n"])), "acn");
    // From a cut on, the next table is as long as any.
    assert_eq!(first_keys(4096, &mut marked(&["c"])), "acgkos");
}

#[test]
fn a_tombstone_goes_unless_it_hides_something_in_the_output_or_below() {
    let entries = [
        delete("a", 30),
        put("a", 20, 1),
        delete("a", 10),
        delete("b", 31),
        delete("c", 32),
        put("c", 22, 1),
        put("d", 23, 1),
        delete("h", 33),
        put("h", 24, 1),
    ];
    let kept = |snapshots: &[SeqNo]| {
        let limits = (u64::MAX, snapshots);
        let tables = written(&context(), &entries, KeySpan::default(), limits, &mut marked(&[]), &|_| Turn::GoOn);
        tables.unwrap().concat()
    };
    assert_eq!(kept(&[]), [put("d", 23, 1), delete("h", 33)]);
    // The snapshot sees what the tombstones of `a` and `c` hide from later reads.
    let seen = [delete("a", 30), put("a", 20, 1), delete("c", 32), put("c", 22, 1), put("d", 23, 1)];
    assert_eq!(kept(&[25]), [&seen[..], &[delete("h", 33), put("h", 24, 1)]].concat());
    // It sees that `a` was deleted, and so do all others: nothing of the key is left.
    assert_eq!(kept(&[15])[0], put("d", 23, 1));
}

#[test]
fn operands_are_combined_within_stripes_unless_they_are_below_as_well() {
    let kept = |entries: &[Entry], snapshots: &[SeqNo]| {
        let limits = (u64::MAX, snapshots);
        let tables = written(&context(), entries, KeySpan::default(), limits, &mut marked(&[]), &|_| Turn::GoOn);
        tables.unwrap().concat()
    };
    let combined = |key: &str, seqno: SeqNo, len: usize| (key.as_bytes().to_vec(), seqno, ValueKind::Merge, len);
    // Nothing is below `a`: its operands are its value.
    assert_eq!(kept(&[merge("a", 9), merge("a", 7)], &[]), [put("a", 9, 2)]);
    assert_eq!(kept(&[merge("a", 9), put("a", 7, 5), put("a", 3, 1)], &[]), [put("a", 9, 6)]);
    assert_eq!(kept(&[merge("a", 9), delete("a", 7), put("a", 3, 1)], &[]), [put("a", 9, 1)]);
    assert_eq!(kept(&[delete("a", 9), merge("a", 7)], &[]), []);
    // The level below holds keys with `h`, and versions as new as these of keys with `i`.
    assert_eq!(kept(&[merge("h", 9), merge("h", 7)], &[]), [combined("h", 9, 3)]);
    assert_eq!(kept(&[merge("h", 9), put("h", 7, 5)], &[]), [put("h", 9, 6)]);
    let below = [merge("hi", 9), merge("hi", 7), merge("hi", 5)];
    assert_eq!(kept(&below, &[]), below);
    assert_eq!(kept(&[&below[..], &[put("hi", 3, 1)]].concat(), &[]), [put("hi", 9, 4)]);
    // A snapshot sees the older operands alone.
    let entries = [merge("h", 9), merge("h", 8), merge("h", 7), merge("h", 6), put("h", 5, 1), put("h", 4, 1)];
    assert_eq!(kept(&entries, &[7]), [combined("h", 9, 3), put("h", 7, 3)]);
}

#[test]
fn a_compaction_filter_decides_about_the_newest_value_of_a_key_unless_it_stays_above() {
    let decide = |_: &[u8], value: &[u8]| match value.len() {
        1 => CompactionDecision::Drop,
        2 => CompactionDecision::Replace(vec![7; 3]),
        _ => CompactionDecision::Keep,
    };
    let kept = |entries: &[Entry], snapshots: &[SeqNo]| {
        let (limits, hook) = ((u64::MAX, snapshots), CompactionHook::new(decide));
        let tables = context();
        written_by(&tables, entries, KeySpan::default(), limits, &mut marked(&[]), &|_| Turn::GoOn, hook)
            .unwrap()
            .concat()
    };
    let values = [put("a", 9, 1), put("b", 9, 2), put("c", 9, 5), put("s", 9, 1)];
    assert_eq!(kept(&values, &[]), [put("b", 9, 3), put("c", 9, 5), put("s", 9, 1)]);
    assert_eq!(kept(&values, &[9]), values, "a snapshot sees them");
    assert_eq!(kept(&[put("h", 9, 1)], &[]), [delete("h", 9)], "an older version may be below");
    assert_eq!(kept(&[put("a", 9, 1), put("a", 7, 1)], &[8]), [delete("a", 9), put("a", 7, 1)]);
    assert_eq!(kept(&[put("a", 9, 5), put("a", 7, 1)], &[8]), [put("a", 9, 5), put("a", 7, 1)], "not the newest");
    assert_eq!(kept(&[merge("a", 9), put("a", 7, 1)], &[]), [put("a", 9, 3)], "combined");
}

#[test]
fn a_part_holds_its_first_key_and_not_the_one_at_its_end() {
    let entries: Vec<Entry> = ('a'..='j').map(|key| put(key.to_string(), 1, 1)).collect();
    let keys = |from: Option<&str>, to: Option<&str>| -> String {
        let part = KeySpan { lower: from.map(str::as_bytes), upper: to.map(str::as_bytes) };
        let tables = written(&context(), &entries, part, ALL, &mut marked(&[]), &|_| Turn::GoOn);
        tables.unwrap().concat().iter().map(|entry| char::from(entry.0[0])).collect()
    };
    assert_eq!(keys(None, None), "abcdefghij");
    assert_eq!(keys(Some("c"), Some("f")), "cde");
    assert_eq!(keys(Some("cc"), Some("ff")), "def");
    assert_eq!(keys(None, Some("c")), "ab");
    assert_eq!(keys(Some("j"), None), "j");
    assert_eq!(keys(Some("k"), None), "");
}

#[test]
fn who_waits_is_asked_for_at_even_intervals_and_at_the_end() {
    // Keys and values count with what an entry costs: 128 bytes, and 1024.
    for (value_len, count, calls) in [(0, 3 * 2048, 4), (0, 2047, 1), (896, 4 * 256, 5), (896, 255, 1)] {
        let entries: Vec<Entry> = (0..count).map(|i| put(format!("{i:064}"), 1, value_len)).collect();
        let called = Cell::new(0);
        let turn = |_| {
            called.set(called.get() + 1);
            Turn::GoOn
        };
        let tables = context();
        let whole = written(&tables, &entries, KeySpan::default(), ALL, &mut marked(&[]), &turn);
        assert_eq!((whole.unwrap().concat().len(), called.get()), (count, calls));
    }
}

#[test]
fn what_is_abandoned_or_fails_leaves_no_file() {
    let entries: Vec<Entry> = (0..1000).map(|i| put(format!("{i:04}"), 1, 1000)).collect();
    let files = |tables: &TableContext| tables.fs().list(tables.dir()).unwrap().len();
    let small: (u64, &[SeqNo]) = (64 << 10, &[]);
    let (tables, left) = (context(), Cell::new(2));
    let turn = |_| if left.replace(left.get() - 1) == 1 { Turn::Abandon } else { Turn::GoOn };
    assert!(written(&tables, &entries, KeySpan::default(), small, &mut marked(&[]), &turn).is_none());
    assert_eq!((left.get(), files(&tables)), (0, 1), "the input alone");
    assert!(
        written(&context(), &entries, KeySpan::default(), small, &mut marked(&[]), &|_| Turn::GoOn).unwrap().len() > 10
    );
}

#[test]
fn the_ranges_that_tables_stand_for_meet_at_short_keys_and_fill_the_part() {
    let entries = ["ab", "abc", "abdzz", "abdzzx", "b"].map(|key| put(key, 1, 1));
    let ranges = |part: KeySpan<&[u8]>, cuts| -> Vec<(String, String)> {
        let tables = context();
        let written = written(&tables, &entries, part, ALL, &mut marked(cuts), &|_| Turn::GoOn).unwrap();
        let text = |key: &Option<Vec<u8>>| key.as_ref().map_or("-".into(), |key| String::from_utf8_lossy(key).into());
        let range = |number: u64| {
            let table = SalvageTable::open(&tables, number, None).unwrap();
            (text(&table.origin().from), text(&table.origin().to))
        };
        (2..).take(written.len()).map(range).collect()
    };
    let pairs = |ranges: &[(&str, &str)]| -> Vec<(String, String)> {
        ranges.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect()
    };
    assert_eq!(ranges(KeySpan::default(), &[]), pairs(&[("-", "-")]));
    assert_eq!(ranges(KeySpan::default(), &["abdzz", "b"]), pairs(&[("-", "abd"), ("abd", "b"), ("b", "-")]));
    // The bound is the key itself where the last key is its beginning.
    assert_eq!(ranges(KeySpan::default(), &["abdzzx"]), pairs(&[("-", "abdzzx"), ("abdzzx", "-")]));
    let part = KeySpan { lower: Some(&b"aba"[..]), upper: Some(&b"az"[..]) };
    assert_eq!(ranges(part, &["abdzz"]), pairs(&[("aba", "abd"), ("abd", "az")]));
}
