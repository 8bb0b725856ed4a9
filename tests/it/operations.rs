//! Does each handle have the operations that docs/guide/operations.md says it has?
//!
//! Each row below is called on each of its handles: a method that is missing does not compile. The
//! rows are those of the document, and every public method of the handles is a row or in a list of
//! those that are no operations.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

use tamis::operator::Append;
use tamis::{
    ByteOrder, Change, Db, Expiry, FilterPolicy, IngestOptions, Keyspace, KeyspaceOptions, Options, ReadOptions,
    Result, Snapshot, Stats, Transaction, TransactionKeyspace, WriteBatch, WriteOptions,
};

/// What a call returns: no error.
trait Outcome {
    fn check(self, row: &str);
}

impl<T> Outcome for Result<T> {
    fn check(self, row: &str) {
        assert!(self.is_ok(), "{row}: {}", self.err().unwrap());
    }
}

/// A number of entries.
impl Outcome for usize {
    fn check(self, row: &str) {
        assert!(self > 0, "{row} has found nothing");
    }
}

impl Outcome for () {
    fn check(self, _row: &str) {}
}

impl Outcome for Stats {
    fn check(self, _row: &str) {}
}

/// A store with an entry in each of two keyspaces, and handles for each row.
struct Stage {
    db: Db,
    other: Keyspace,
    transaction: Transaction,
}

fn options() -> KeyspaceOptions {
    KeyspaceOptions::new().merge_operator(Append)
}

fn stage() -> Stage {
    let db = Options::new().default_keyspace(options()).open_in_memory().unwrap();
    let other = db.keyspace_with("other", options()).unwrap();
    db.put("k", "v").unwrap();
    other.put("k", "v").unwrap();
    Stage { transaction: db.begin(), db, other }
}

/// The handles. That of a name with `View` is of another keyspace.
#[allow(non_snake_case, reason = "the names of the handles")]
impl Stage {
    fn Db(&self) -> Db {
        self.db.clone()
    }

    fn Keyspace(&self) -> Keyspace {
        self.other.clone()
    }

    fn Snapshot(&self) -> Snapshot {
        self.db.snapshot()
    }

    fn SnapshotView(&self) -> Snapshot {
        self.db.snapshot().keyspace(&self.other)
    }

    fn Transaction(&self) -> Transaction {
        self.db.begin()
    }

    fn TransactionView(&self) -> TransactionKeyspace<'_> {
        self.transaction.keyspace(&self.other)
    }

    fn WriteBatch(&self) -> WriteBatch {
        WriteBatch::new()
    }
}

/// Lists the rows, each with its handles, and calls them.
macro_rules! operations {
    (|$h:ident, $other:ident| $($name:ident [$($handle:ident)*] $call:expr;)*) => {
        const ROWS: &[(&str, &[&str])] = &[$((stringify!($name), &[$(stringify!($handle)),*])),*];

        /// Each cell has a store of its own.
        fn call_all() {
            $($({
                let stage = stage();
                #[allow(unused_variables, reason = "not every row names another keyspace")]
                let $other = &stage.other;
                #[allow(unused_mut, reason = "not every handle is changed")]
                let mut $h = stage.$handle();
                $call.check(concat!(stringify!($name), " of ", stringify!($handle)));
            })*)*
        }
    };
}

operations! {
    |h, other|
    get [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.get("k");
    get_with_expiry [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.get_with_expiry("k");
    get_into [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.get_into("k", &mut Vec::new());
    read [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.read("k", |value| value.len());
    multi_get [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.multi_get(&["k", "absent"]);
    contains_key [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.contains_key("k");
    iter [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.iter().rev().count();
    range [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.range("k"..).rev().count();
    prefix [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.prefix("k").rev().count();
    keys [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.keys(..).rev().count();
    values [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.values(..).rev().count();
    first [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.first();
    last [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.last();
    is_empty [Db Keyspace Snapshot SnapshotView Transaction TransactionView] h.is_empty();
    get_with [Db Keyspace Snapshot SnapshotView] h.get_with("k", ReadOptions::new());
    multi_get_with [Db Keyspace Snapshot SnapshotView] h.multi_get_with(&["k"], ReadOptions::new());
    range_with [Db Keyspace Snapshot SnapshotView] h.range_with(.., ReadOptions::new()).count();
    prefix_with [Db Keyspace Snapshot SnapshotView] h.prefix_with("k", ReadOptions::new()).count();
    cursor [Db Keyspace Snapshot SnapshotView] h.cursor();
    cursor_with [Db Keyspace Snapshot SnapshotView] h.cursor_with(ReadOptions::new());
    explain [Db Keyspace Snapshot SnapshotView] h.explain("k");
    explain_with [Db Keyspace Snapshot SnapshotView] h.explain_with("k", ReadOptions::new());
    explain_range [Db Keyspace Snapshot SnapshotView] h.explain_range(.., 1);
    explain_range_with [Db Keyspace Snapshot SnapshotView] h.explain_range_with(.., 1, ReadOptions::new());
    approximate_len [Db Keyspace] h.approximate_len(..);
    approximate_size [Db Keyspace] h.approximate_size(..);
    salvage [Db Keyspace] h.salvage(..);

    put [Db Keyspace Transaction WriteBatch] h.put("a", "b");
    put_in [Transaction WriteBatch] h.put_in(other, "a", "b");
    put_with_expiry [Db Keyspace Transaction WriteBatch] h.put_with_expiry("a", "b", SystemTime::now());
    put_with_expiry_in [Transaction WriteBatch] h.put_with_expiry_in(other, "a", "b", SystemTime::now());
    put_with_ttl [Db Keyspace Transaction] h.put_with_ttl("a", "b", Duration::ZERO);
    put_with_ttl_in [Transaction] h.put_with_ttl_in(other, "a", "b", Duration::ZERO);
    put_with [Db Keyspace] h.put_with("a", "b", WriteOptions::new());
    delete [Db Keyspace Transaction WriteBatch] h.delete("a");
    delete_in [Transaction WriteBatch] h.delete_in(other, "a");
    delete_with [Db Keyspace] h.delete_with("a", WriteOptions::new());
    delete_range [Db Keyspace Transaction WriteBatch] h.delete_range("a"..);
    delete_range_in [Transaction WriteBatch] h.delete_range_in(other, "a"..);
    delete_range_with [Db Keyspace] h.delete_range_with("a".., WriteOptions::new());
    delete_prefix [Db Keyspace Transaction WriteBatch] h.delete_prefix("a");
    delete_prefix_in [Transaction WriteBatch] h.delete_prefix_in(other, "a");
    clear [Db Keyspace] h.clear();
    merge [Db Keyspace Transaction WriteBatch] h.merge("a", "b");
    merge_in [Transaction WriteBatch] h.merge_in(other, "a", "b");
    merge_with [Db Keyspace] h.merge_with("a", "b", WriteOptions::new());

    update [Db Keyspace Transaction] h.update("k", |_| Change::Delete);
    update_in [Transaction] h.update_in(other, "k", |_| Change::Delete);
    update_with [Db Keyspace] h.update_with("k", WriteOptions::new(), |_| Change::Delete);
    compare_and_swap [Db Keyspace] h.compare_and_swap("k", Some("v"), Some("w"));
    compare_and_swap_with [Db Keyspace] h.compare_and_swap_with("k", Some("v"), Some("w"), WriteOptions::new());
    put_if_absent [Db Keyspace] h.put_if_absent("a", "b");
    put_if_absent_with [Db Keyspace] h.put_if_absent_with("a", "b", WriteOptions::new());
    fetch_add [Db Keyspace] h.fetch_add("a", 1u8, ByteOrder::Big);
    fetch_add_with [Db Keyspace] h.fetch_add_with("a", 1u8, ByteOrder::Big, WriteOptions::new());
    set_expiry [Db Keyspace] h.set_expiry("k", Expiry::Never);
    pop_first [Db Keyspace Transaction] h.pop_first();
    pop_first_in [Transaction] h.pop_first_in(other);
    pop_last [Db Keyspace Transaction] h.pop_last();
    pop_last_in [Transaction] h.pop_last_in(other);
    guard [Transaction] h.guard("a");
    guard_in [Transaction] h.guard_in(other, "a");
    guard_range [Transaction] h.guard_range("a"..);
    guard_range_in [Transaction] h.guard_range_in(other, "a"..);

    snapshot [Db Keyspace Transaction] h.snapshot().iter().count();
    flush [Db Keyspace] h.flush();
    compact_range [Db Keyspace] h.compact_range(..);
    rebuild_filters [Db Keyspace] h.rebuild_filters(FilterPolicy::DEFAULT, |_| {});
    renew_filters [Db Keyspace] h.renew_filters(|_| {});
    remake_filters [Db Keyspace] h.remake_filters(|_| {});
    sst_format [Db Keyspace] h.sst_format();
    ingest [Db Keyspace] Result::<bool>::Ok(h.ingest([""; 0], IngestOptions::new()).is_err());
    stats [Db Keyspace] h.stats();
}

#[test]
fn every_handle_has_its_operations() {
    call_all();
}

/// The handles of each operation in the document.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/operations.md");
    #[allow(clippy::disallowed_methods, reason = "reads a document of this repository")]
    let text = std::fs::read_to_string(path).unwrap();
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect::<Vec<_>>();
    let (mut heads, mut found) = (Vec::new(), BTreeMap::new());
    for line in text.lines().filter(|line| line.starts_with('|')) {
        let cells = cells(line);
        match cells[1].as_str() {
            "method" => heads = cells,
            name if heads.is_empty() || name.starts_with("---") => {}
            name => {
                let handles = heads.iter().zip(&cells).filter(|(_, cell)| *cell == "✓");
                let handles = handles.map(|(head, _)| head.clone()).collect();
                assert!(found.insert(name.to_owned(), handles).is_none(), "{name} stands there twice");
            }
        }
    }
    found
}

/// Writes of a transaction and a batch name another keyspace; reads go through a view.
#[test]
fn the_document_lists_the_operations_of_every_handle() {
    let mut expected = BTreeMap::<String, BTreeSet<String>>::new();
    let handles_of = |name: &str| ROWS.iter().find(|(row, _)| *row == name).map(|(_, handles)| *handles);
    for (name, handles) in ROWS {
        let row = name.strip_suffix("_in").unwrap_or(name);
        let documented = handles.iter().filter(|handle| !handle.ends_with("View")).map(|handle| (*handle).to_owned());
        expected.entry(row.to_owned()).or_default().extend(documented);
        let of_others = handles_of(&format!("{name}_in")).unwrap_or_default();
        for handle in ["Snapshot", "Transaction", "WriteBatch"] {
            let has_view = handles.contains(&format!("{handle}View").as_str());
            let is_reached = has_view || of_others.contains(&handle) || *name == "snapshot" || name.ends_with("_in");
            assert!(!handles.contains(&handle) || is_reached, "{name} of {handle} in another keyspace");
        }
    }
    assert_eq!(documented(), expected);
}

/// Public methods that are no operations on entries: what opens, closes, names and configures
/// handles, and the engine's own.
const OTHERS: &[&str] = &[
    "append",
    "begin",
    "byte_size",
    "changes_since",
    "checkpoint",
    "checkpoint_with",
    "close",
    "commit",
    "commit_with",
    "copy_keyspace",
    "default_keyspace",
    "drop_keyspace",
    "drop_keyspaces",
    "existing_keyspace",
    "flushed_seqno",
    "follow",
    "id",
    "image",
    "is_read_only",
    "iter",
    "keyspace",
    "keyspace_names",
    "keyspace_with",
    "keyspaces",
    "keyspaces_with",
    "last_seqno",
    "len",
    "name",
    "new",
    "open",
    "open_in_memory",
    "open_read_only",
    "open_to_copy",
    "options",
    "path",
    "pin_log",
    "refresh",
    "rename_keyspace",
    "rollback_to",
    "savepoint",
    "seqno",
    "set_rate_limit",
    "sync",
    "synced_seqno",
    "transact",
    "transact_with",
    "wait_for_compactions",
    "write",
    "write_with",
];

/// A method that is added to a handle gets a row.
#[test]
fn every_public_method_of_a_handle_is_a_row() {
    let mut unlisted = Vec::new();
    for file in [
        "batch.rs",
        "db/keyspace.rs",
        "db/mod.rs",
        "db/read/estimate.rs",
        "db/reads.rs",
        "db/snapshot.rs",
        "db/transaction.rs",
        "db/transaction/reads.rs",
        "db/update.rs",
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src").join(file);
        #[allow(clippy::disallowed_methods, reason = "reads the sources of this repository")]
        let text = std::fs::read_to_string(path).unwrap();
        for after in text.split("pub fn ").skip(1) {
            let name = after.split(['(', '<']).next().unwrap();
            let is_row = ROWS.iter().any(|(row, _)| *row == name);
            if !is_row && !OTHERS.contains(&name) {
                unlisted.push(format!("{name} of {file}"));
            }
        }
    }
    assert!(unlisted.is_empty(), "neither rows nor among the others: {unlisted:?}");
}
