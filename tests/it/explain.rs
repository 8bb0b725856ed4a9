//! Does a store explain its reads correctly, and does it report filters that are wrong too often?

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tamis::filter::FilterState;
use tamis::inspect::{FileKind, Inspector};
use tamis::vfs::SimFileSystem;
use tamis::{
    Compression, Db, Event, Executor, Explanation, FilterAnswer, FilterMode, Found, KeyspaceOptions, Options,
    ReadOptions, ReadSource, ReadStep, ThreadPool,
};

use crate::support::stepped_options;

const DIR: &str = "/db";

fn options(fs: &SimFileSystem) -> Options {
    let uncompressed = KeyspaceOptions::new().compression(Compression::None);
    stepped_options(fs).0.default_keyspace(uncompressed)
}

/// `a` to `f` in the last level, `d` to `h` in level 0, and in memory `i` and the deleted `g`.
fn layered(fs: &SimFileSystem) -> Db {
    let db = options(fs).open(DIR).unwrap();
    for key in ["a", "b", "d", "f"] {
        db.put(key, "old").unwrap();
    }
    db.compact_range(..).unwrap();
    for key in ["d", "h"] {
        db.put(key, "newer").unwrap();
    }
    db.flush().unwrap();
    db.delete("g").unwrap();
    db.put("i", "newest").unwrap();
    db
}

/// Source, filter and finding of each step.
fn steps(explanation: &Explanation) -> Vec<(ReadSource, Option<FilterAnswer>, Option<Found>)> {
    explanation.steps.iter().map(|step| (step.source, step.filter, step.found)).collect()
}

fn blocks(step: &ReadStep) -> Vec<bool> {
    step.blocks.iter().map(|block| block.cached).collect()
}

fn is_of_filters(event: &Event) -> bool {
    matches!(event, Event::FilterDegraded { .. } | Event::FilterExcessive { .. })
}

#[test]
fn explain_lists_every_source_in_order_with_its_verdict() {
    let fs = SimFileSystem::new();
    let db = layered(&fs);
    let levels = &db.stats().keyspaces[0].levels;
    let numbers: Vec<u64> = levels.iter().flat_map(|level| &level.tables).map(|table| table.number).collect();
    let [upper, lower] = numbers[..] else { panic!("{numbers:?}") };
    let last = levels.iter().rposition(|level| !level.tables.is_empty()).unwrap();
    let (memtable, last_level) = (ReadSource::Memtable(0), ReadSource::Level(last));
    let upper = ReadSource::Table { level: 0, number: upper };
    let lower = ReadSource::Table { level: last, number: lower };
    let maybe = Some(FilterAnswer::Maybe);

    // In memory.
    let explained = db.explain("i").unwrap();
    assert_eq!(steps(&explained), [(memtable, None, Some(Found::Value(6)))]);
    assert_eq!(*explained.outcome.as_ref().unwrap(), Found::Value(6));
    let explained = db.explain("g").unwrap();
    assert_eq!(steps(&explained), [(memtable, None, Some(Found::Deleted))]);
    assert_eq!(explained.outcome.unwrap(), Found::Deleted);

    // In a table: first from its file, which is opened, then from the cache.
    for cached in [false, true] {
        let reads = fs.reads();
        let explained = db.explain("d").unwrap();
        let expected = [(memtable, None, Some(Found::Absent)), (upper, maybe, Some(Found::Value(5)))];
        assert_eq!(steps(&explained), expected);
        assert_eq!(blocks(&explained.steps[1]), [cached]);
        let block = explained.steps[1].blocks[0];
        assert_eq!(explained.block_bytes(), if cached { 0 } else { block.len });
        // A table of one block is read in whole: the opening reads everything but the block.
        let opening = explained.steps[1].opened;
        let path = FileKind::Table(numbers[0]).path(Path::new(DIR));
        let expected = (!cached).then(|| fs.file_len(path).unwrap() - block.len);
        assert_eq!(opening.map(|opening| opening.bytes), expected);
        assert_eq!(explained.bytes_read(), expected.map_or(0, |bytes| bytes + block.len));
        assert!(opening.map_or(Duration::ZERO, |opening| opening.time) + block.time <= explained.steps[1].time);
        // One read each for: opening the file, its length, header, footer, properties, index,
        // filter, and block.
        assert_eq!(fs.reads() - reads, if cached { 0 } else { 8 });
        let verdict = "filter said maybe, rightly: value of 5 bytes";
        let words = if cached { verdict.to_owned() } else { format!("table opened, {verdict}") };
        assert_eq!(explained.steps[1].to_string(), words);
        assert!(explained.steps.iter().map(|step| step.time).sum::<Duration>() <= explained.time);
    }

    // Out of range above, in a table below.
    let explained = db.explain("a").unwrap();
    let expected = [
        (memtable, None, Some(Found::Absent)),
        (upper, None, Some(Found::OutOfRange)),
        (lower, maybe, Some(Found::Value(3))),
    ];
    assert_eq!(steps(&explained), expected);

    // In no table: denied by a filter, out of a level's range.
    let explained = db.explain("e").unwrap();
    let no = Some(FilterAnswer::No);
    let expected =
        [(memtable, None, Some(Found::Absent)), (upper, no, Some(Found::Absent)), (lower, no, Some(Found::Absent))];
    assert_eq!(steps(&explained), expected);
    assert_eq!((explained.outcome.as_ref().unwrap(), explained.block_reads()), (&Found::Absent, 0));
    let explained = db.explain("z").unwrap();
    assert_eq!(
        steps(&explained)[1..],
        [(upper, None, Some(Found::OutOfRange)), (last_level, None, Some(Found::OutOfRange))]
    );

    // With filters ignored, one block of each table is searched.
    let explained = db.default_keyspace().explain_with("e", ReadOptions::new().filters(FilterMode::Ignore)).unwrap();
    assert!(explained.steps[1..].iter().all(|step| step.filter == Some(FilterAnswer::Skipped)));
    assert!(explained.steps[1..].iter().all(|step| step.blocks.len() == 1));
    assert_eq!(explained.steps[1].to_string(), "filter not asked: absent");

    // A snapshot does not see later writes.
    let snapshot = db.snapshot();
    db.put("a", "later").unwrap();
    db.flush().unwrap();
    let explained = snapshot.explain("a").unwrap();
    assert_eq!(explained.steps[0].found, Some(Found::Newer));
    assert_eq!(explained.outcome.unwrap(), Found::Value(3));
}

#[test]
fn explain_agrees_with_get_and_with_the_counters() {
    let fs = SimFileSystem::new();
    let db = options(&fs).memtable_size(8 << 10).table_size(8 << 10).open(DIR).unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..4_000 {
        db.put(format!("key{:05}", rng.u32(0..9_000) * 2), [rng.u8(..); 30]).unwrap();
    }
    db.flush().unwrap();
    db.compact_range("key10000".."key12000").unwrap();
    let (mut false_positives, mut found) = (0, 0);
    for n in 0..18_000 {
        let key = format!("key{n:05}");
        let before = db.stats().reads();
        let explained = db.explain(&key).unwrap();
        let counted = db.stats().reads() - before;
        let answers = |answer| explained.steps.iter().filter(|step| step.filter == Some(answer)).count() as u64;
        let wrong = explained.steps.iter().filter(|step| step.is_false_positive()).count() as u64;
        assert_eq!(counted.negatives, answers(FilterAnswer::No));
        assert_eq!(counted.true_positives + counted.false_positives, answers(FilterAnswer::Maybe));
        assert_eq!(counted.false_positives, wrong);
        assert_eq!(counted.block_reads, explained.block_reads() as u64);
        assert_eq!(counted.block_bytes, explained.block_bytes());
        let cost = explained.cost();
        assert_eq!((cost.blocks_read, cost.bytes_read), (counted.block_reads, explained.bytes_read()));
        assert_eq!(
            (cost.filters, cost.filters_negative, cost.filters_wrong),
            (counted.probes, counted.negatives, wrong)
        );
        assert_eq!(cost.blocks_cached + cost.blocks_read, counted.cache_hits + counted.block_reads);
        assert!(cost.tables >= counted.probes);
        let value = db.get(&key).unwrap();
        let expected = value.map_or(Found::Absent, |value| Found::Value(value.len()));
        assert_eq!(explained.outcome.unwrap(), expected);
        false_positives += wrong;
        found += u64::from(expected != Found::Absent);
    }
    assert!(false_positives > 20 && found > 3_000, "{false_positives} {found}");
}

fn table_paths(db: &Db) -> Vec<std::path::PathBuf> {
    let stats = db.stats();
    let tables = stats.keyspaces[0].levels.iter().flat_map(|level| &level.tables);
    tables.map(|table| FileKind::Table(table.number).path(Path::new(DIR))).collect()
}

#[test]
fn damage_is_part_of_the_explanation_and_a_damaged_filter_is_named() {
    let fs = SimFileSystem::new();
    let db = options(&fs).open(DIR).unwrap();
    for n in 0..100 {
        db.put(format!("key{n:03}"), "value").unwrap();
    }
    db.flush().unwrap();
    let path = table_paths(&db).remove(0);
    db.close().unwrap();
    let inspector = Inspector::on(Arc::new(fs.clone()));
    let filter = inspector.table(&path).unwrap().properties().filter_block.unwrap();
    fs.corrupt(&path, filter.offset + 80, 1).unwrap();

    // A listener may read, even from the table in the event.
    let told = Arc::new(Mutex::new(Vec::new()));
    let (listener, reader) = (Arc::clone(&told), Arc::new(OnceLock::<Db>::new()));
    let reads = Arc::clone(&reader);
    let listener = move |event: &Event| {
        if is_of_filters(event) {
            listener.lock().push(event.clone());
        }
        if let Some(db) = reads.get() {
            db.get("key008").unwrap();
        }
    };
    let db = options(&fs).on_event(listener).open(DIR).unwrap();
    reader.set(db.clone()).unwrap();
    let explained = db.explain("key007").unwrap();
    assert_eq!(explained.steps.last().unwrap().filter, Some(FilterAnswer::Degraded));
    assert_eq!(*explained.outcome.as_ref().unwrap(), Found::Value(5));
    // The listener's read is the second one.
    while db.stats().reads().degraded < 2 {
        std::thread::yield_now();
    }
    let stats = db.stats();
    let table = stats.keyspaces[0].levels.iter().flat_map(|level| &level.tables).next().unwrap();
    assert!(matches!(&table.filter, Some(FilterState::Degraded(rule)) if rule.contains("checksum")), "{table:?}");
    assert_eq!((stats.reads().degraded, stats.reads().probes), (2, 0));
    assert_eq!(stats.degraded_filters().count(), 1);
    match &told.lock()[..] {
        [Event::FilterDegraded { table, .. }] => assert_eq!(*table, path),
        events => panic!("{events:?}"),
    }

    // A damaged block as well.
    let block = inspector.table(&path).unwrap().blocks().next().unwrap().unwrap();
    fs.corrupt(&path, block.handle.offset + 9, 1).unwrap();
    db.close().unwrap();
    let db = options(&fs).open(DIR).unwrap();
    let explained = db.explain("key007").unwrap();
    assert!(explained.outcome.unwrap_err().is_corruption());
    let last = explained.steps.last().unwrap();
    assert_eq!((last.found, last.to_string()), (None, "table opened, filter is damaged: failed".to_owned()));
}

#[test]
fn too_many_false_positives_are_reported_once() {
    let fs = SimFileSystem::new();
    let events = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&events);
    let listener = move |event: &Event| {
        if is_of_filters(event) {
            listener.lock().push(event.clone());
        }
    };
    let db = options(&fs).on_event(listener).open(DIR).unwrap();
    for n in 0..20_000 {
        db.put(format!("key{n:05}"), "value").unwrap();
    }
    db.flush().unwrap();
    // Enough absent keys to be sure: the rate is as designed.
    let mut persistent = Vec::new();
    for n in 0..10_000 {
        let before = db.stats().reads().false_positives;
        let key = format!("key{n:05}/");
        db.get(&key).unwrap();
        if db.stats().reads().false_positives > before {
            persistent.push(key);
        }
    }
    assert!(persistent.len() > 40, "{}", persistent.len());
    let ledger = db.stats().ledger();
    assert!(!ledger.is_excessive(), "{ledger:?}");
    assert!(ledger.designed_rate().unwrap() < 0.0083 && ledger.expected_rate().unwrap() > 0.0070, "{ledger:?}");
    let (low, high) = ledger.reads.false_positive_interval().unwrap();
    assert!(low < ledger.expected_rate().unwrap() && ledger.expected_rate().unwrap() < high, "{ledger:?}");
    assert!(events.lock().is_empty());
    // Repeated false positives: a rate that no filter of this design should have.
    for _ in 0..100 {
        for key in &persistent {
            db.get(key).unwrap();
        }
    }
    assert!(db.stats().ledger().is_excessive());
    db.close().unwrap();
    match &events.lock()[..] {
        [event @ Event::FilterExcessive { ledger, .. }] => {
            assert!(ledger.is_excessive());
            assert!(event.to_string().contains("wrong for"), "{event}");
        }
        events => panic!("{events:?}"),
    }
}

#[test]
fn every_probe_is_in_one_class_under_eight_threads_while_tables_are_replaced() {
    let fs = SimFileSystem::new();
    let threads: Arc<dyn Executor> = Arc::new(ThreadPool::new(2));
    let db = options(&fs).executor(threads).cache_size(16 << 10).open(DIR).unwrap();
    for n in 0..3_000 {
        db.put(format!("key{:05}", n * 2), [7; 30]).unwrap();
    }
    db.compact_range(..).unwrap();
    // A single table, replaced over and over.
    let before = db.stats().reads();
    let (asked, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..8)
            .map(|thread| {
                let (db, asked) = (&db, &asked);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(thread);
                    for _ in 0..4_000 {
                        let n = rng.u32(0..5_998);
                        assert_eq!(db.get(format!("key{n:05}")).unwrap().is_some(), n.is_multiple_of(2));
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let remade = db.default_keyspace().remake_filters(|_| {}).unwrap();
                assert_eq!(remade.replaced, 1);
            }
        });
        // A replaced table is neither forgotten nor counted twice.
        scope.spawn(|| {
            let mut last = before;
            while !done.load(Ordering::Relaxed) {
                let least = asked.load(Ordering::Relaxed);
                let reads = db.stats().reads();
                let most = asked.load(Ordering::Relaxed) + 8;
                let counted = (reads - before).look_ups();
                assert!((least..=most).contains(&counted), "{least} {counted} {most}");
                assert!(reads.look_ups() >= last.look_ups());
                last = reads;
            }
        });
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    let counted = db.stats().reads() - before;
    // No count is lost with a table that was replaced during a read, nor with a keyspace.
    assert_eq!(counted.look_ups(), asked.into_inner());
    assert_eq!(counted.probes, counted.negatives + counted.true_positives + counted.false_positives);
    assert_eq!((counted.degraded, counted.skipped), (0, 0));
    let other = db.keyspace("other").unwrap();
    other.put("key", "value").unwrap();
    db.flush().unwrap();
    assert!(other.get("key").unwrap().is_some());
    let before = db.stats().reads();
    db.drop_keyspace("other").unwrap();
    assert_eq!(db.stats().reads(), before);
    assert_eq!(db.stats().dropped_keyspaces.reads.look_ups(), 1);
}

/// Without the duration, which a line ends with.
fn displayed(text: &str) -> Vec<String> {
    let times =
        |line: &str| line.rsplit_once(", ").filter(|(_, last)| last.ends_with(" µs")).map(|(rest, _)| rest.to_owned());
    text.lines().map(|line| times(line).unwrap_or_else(|| line.to_owned())).collect()
}

#[test]
fn explanations_are_displayed_with_their_steps_reads_and_result() {
    let fs = SimFileSystem::new();
    let db = layered(&fs);
    let levels = db.stats().keyspaces[0].levels.clone();
    let last = levels.len() - 1;
    let [upper, lower] = [0, last].map(|level| levels[level].tables[0].number);
    let found = db.explain("b").unwrap();
    let block = &found.steps.last().unwrap().blocks[0];
    let bytes = found.bytes_read();
    assert_eq!(
        displayed(&found.to_string()),
        [
            "memtable: absent".to_owned(),
            format!("level 0, table {upper}: out of range"),
            format!("level {last}, table {lower}: table opened, filter said maybe, rightly: value of 3 bytes"),
            format!("    opened by reading {} bytes", found.steps.last().unwrap().opened.unwrap().bytes),
            format!("    block at {}, {} bytes from disk", block.offset, block.len),
            format!("value of 3 bytes: 1 table opened, 1 block read, {bytes} bytes"),
        ]
    );
    let scan = db.explain_range("a".."e", 10).unwrap();
    let text = displayed(&scan.to_string());
    assert_eq!(
        text.last().unwrap(),
        &format!(
            "3 entries: {} table opened, {} block read, {} bytes",
            scan.tables_opened(),
            scan.block_reads(),
            scan.bytes_read()
        )
    );
    assert_eq!(text.iter().filter(|line| line.starts_with("level ")).count(), 2);
    assert_eq!(text.iter().filter(|line| line.starts_with("    block at ")).count(), scan.blocks_entered());
}
