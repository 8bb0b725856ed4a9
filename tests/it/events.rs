//! Is a listener told of what happens, once, in order, and after it is durable?

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tamis::operator::CompactionDecision;
use tamis::vfs::{Fault, FaultMode, FileSystem, SimFileSystem};
use tamis::{
    BackgroundWork, Change, CompactionReason, Db, Error, Event, Executor, IngestOptions, KeyspaceOptions, Options,
    Severity, SstWriter, StallCause, ThreadPool, Transaction,
};

use crate::support::{stepped_options, taken};

type Told = Arc<Mutex<Vec<Event>>>;

fn listening(options: Options) -> (Options, Told) {
    let told = Told::default();
    let listener = Arc::clone(&told);
    (options.on_event(move |event| listener.lock().push(event.clone())), told)
}

/// Each event in a word or two.
fn words(told: &Told) -> Vec<String> {
    let word = |event: &Event| match event {
        Event::FlushBegan { bytes } => format!("flush {}", if *bytes > 0 { "began" } else { "of nothing" }),
        Event::FlushEnded { outcome, .. } => format!("flush {}", if outcome.is_ok() { "ended" } else { "failed" }),
        Event::CompactionBegan(info) => format!("compaction {:?} began", info.reason),
        Event::CompactionEnded { compaction, outcome: Ok(_), .. } => {
            format!("compaction {:?} ended", compaction.reason)
        }
        Event::BackgroundFailed { work, .. } => format!("{work} fail"),
        Event::BackgroundRecovered { work, .. } => format!("{work} recovered"),
        Event::StallBegan { cause } => format!("{cause:?} began"),
        Event::StallEnded { cause, .. } => format!("{cause:?} ended"),
        Event::DiskFull { error } => format!("full: {}", error.is_no_space()),
        Event::DiskRecovered { .. } => "space".to_owned(),
        Event::RecoveryProgress { position, logs, operations, .. } => format!("log {position} of {logs}, {operations}"),
        event => event.to_string(),
    };
    told.lock().iter().map(word).collect()
}

#[test]
fn a_compaction_that_a_close_ends_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let mut ended = 0;
    for round in 0..100u64 {
        let (options, told) = listening(Options::new().memtable_size(256 << 10).table_size(256 << 10));
        let db = options.open(dir.path().join("db")).unwrap();
        for n in 0..10_000u64 {
            db.put((n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ round).to_be_bytes(), [7; 100]).unwrap();
        }
        db.close().unwrap();
        for event in told.lock().iter() {
            let is_ended = matches!(event, Event::CompactionEnded { outcome: Err(Error::Closed), .. });
            ended += u32::from(is_ended);
            assert!(
                !is_ended || event.severity() == Severity::Info && event.to_string().contains("goes on"),
                "{event}"
            );
            assert!(!event.to_string().contains("failed"), "{event}");
        }
        if ended > 0 {
            return;
        }
    }
    panic!("no close met a compaction");
}

#[test]
fn flushes_and_compactions_are_told_when_they_begin_and_end() {
    let fs = SimFileSystem::new();
    let (options, told) = listening(stepped_options(&fs).0);
    let db = options.open("/db").unwrap();
    for n in 0..100u32 {
        db.put(n.to_be_bytes(), [7; 100]).unwrap();
    }
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    db.close().unwrap();
    assert_eq!(
        words(&told),
        ["flush began", "flush ended", "compaction Requested began", "compaction Requested ended"]
    );
    let told = told.lock();
    let Event::CompactionEnded { compaction, outcome: Ok(bytes), .. } = &told[3] else { panic!("{:?}", told[3]) };
    assert_eq!((&*compaction.keyspace, compaction.from_level, compaction.tables), ("default", 0, 1));
    assert_eq!((compaction.reason, compaction.is_trivial), (CompactionReason::Requested, false));
    assert!(compaction.to_level > 0 && compaction.bytes > 10_000 && *bytes > 0, "{compaction:?}");
    assert!(told.iter().all(|event| event.to_string().len() > 20));
}

#[test]
fn what_an_event_reports_is_durable() {
    let fs = SimFileSystem::new();
    let (fs_of_listener, cut) = (fs.clone(), Arc::new(OnceLock::new()));
    let told = Arc::clone(&cut);
    let threads: Arc<dyn Executor> = Arc::new(ThreadPool::new(2));
    let options = stepped_options(&fs).0.executor(threads).on_event(move |event| {
        if let Event::FlushEnded { outcome: Ok(_), .. } = event {
            told.get_or_init(|| fs_of_listener.crash(7));
        }
    });
    let db = options.open("/db").unwrap();
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    let after = stepped_options(cut.get().unwrap()).0.open("/db").unwrap();
    assert_eq!(after.get("key").unwrap().unwrap(), b"value");
}

#[test]
fn a_full_disk_and_its_end_are_told_once() {
    let fs = SimFileSystem::new();
    let (options, told) = listening(stepped_options(&fs).0.memtable_size(64 << 10));
    let db = options.open("/db").unwrap();
    db.put("key", [7; 10_000]).unwrap();
    fs.set_capacity(Some(1 << 40));
    let used = (1 << 40) - fs.free_space("/".as_ref()).unwrap();
    fs.set_capacity(Some(used));
    for _ in 0..3 {
        assert!(db.flush().unwrap_err().is_no_space());
    }
    while db.put("more", [7; 10_000]).is_ok() {}
    fs.set_capacity(None);
    db.flush().unwrap();
    db.put("more", [7; 10_000]).unwrap();
    db.close().unwrap();
    let mut words = words(&told);
    words.retain(|word| !word.starts_with("flush "));
    assert_eq!(words, ["flushes fail", "full: true", "flushes recovered", "space"]);
}

#[test]
fn a_failure_that_ends_all_writes_is_told() {
    let fs = SimFileSystem::new();
    let (options, told) = listening(stepped_options(&fs).0);
    let db = options.open("/db").unwrap();
    db.put("key", "value").unwrap();
    fs.set_fault(Some(Fault { at: 1, mode: FaultMode::Io, sticky: true }));
    assert!(db.sync().is_err() && db.put("key", "value").is_err());
    assert!(db.close().is_err());
    let words = words(&told);
    assert_eq!(
        words.iter().filter(|word| word.starts_with("the store accepts no more writes")).count(),
        1,
        "{words:?}"
    );
}

#[test]
fn writers_that_wait_for_flushes_are_told() {
    let fs = SimFileSystem::new();
    let (options, told) = listening(stepped_options(&fs).0.memtable_size(4096));
    let db = options.open("/db").unwrap();
    for n in 0..200u32 {
        db.put(n.to_be_bytes(), [7; 200]).unwrap();
    }
    db.close().unwrap();
    let words = words(&told);
    let stalls: Vec<&String> = words.iter().filter(|word| word.starts_with("Flush ")).collect();
    assert!(stalls.len() >= 2, "{words:?}");
    assert!(stalls.chunks(2).all(|pair| pair == ["Flush began", "Flush ended"]), "{stalls:?}");
    assert_eq!(StallCause::Flush.to_string(), "stopped until a flush ends");
}

#[test]
fn a_recovery_tells_how_far_it_is() {
    let fs = SimFileSystem::new();
    let db = stepped_options(&fs).0.open("/db").unwrap();
    (0..10u32).for_each(|n| _ = db.put(n.to_be_bytes(), "value").unwrap());
    let fs = fs.kill();
    let db = stepped_options(&fs).0.open("/db").unwrap();
    (0..5u32).for_each(|n| _ = db.put(n.to_be_bytes(), "value").unwrap());
    let fs = fs.kill();
    let (options, told) = listening(stepped_options(&fs).0);
    options.open("/db").unwrap().close().unwrap();
    let words = words(&told);
    assert_eq!(words[..2], ["log 1 of 2, 0", "log 2 of 2, 10"], "{words:?}");
}

#[test]
fn a_compaction_that_fails_is_told_with_its_keyspace() {
    let fs = SimFileSystem::new();
    let (options, told) = listening(stepped_options(&fs).0);
    let db = options.open("/db").unwrap();
    let keyspace = db.keyspace("words").unwrap();
    keyspace.put("key", "value").unwrap();
    keyspace.flush().unwrap();
    let table = fs.paths().into_iter().find(|path| path.extension().is_some_and(|end| end == "sst")).unwrap();
    fs.corrupt(&table, 70, 1).unwrap();
    assert!(keyspace.compact_range(..).is_err());
    db.close().unwrap();
    let failed = |event: &Event| match event {
        Event::BackgroundFailed { work: BackgroundWork::Compaction { keyspace }, error } => {
            assert!(error.is_corruption());
            Some(keyspace.to_string())
        }
        _ => None,
    };
    assert_eq!(told.lock().iter().filter_map(failed).collect::<Vec<_>>(), ["words"]);
}

/// Nothing of it would have succeeded any more: writers went on looking for what to retry, and the
/// next full disk was not told.
#[test]
fn what_fails_ends_with_its_keyspace() {
    let fs = SimFileSystem::new();
    let (options, told) = listening(stepped_options(&fs).0);
    let db = options.open("/db").unwrap();
    for _ in 0..2 {
        let short = db.keyspace("short-lived").unwrap();
        for _ in 0..2 {
            (0..100u32).for_each(|n| _ = short.put(n.to_be_bytes(), [7; 100]).unwrap());
            db.flush().unwrap();
        }
        fs.set_capacity(Some(taken(&fs) + 6_000));
        assert!(short.compact_range(..).unwrap_err().is_no_space());
        assert!(db.stats().background_error.is_some_and(|error| error.is_no_space()));
        db.drop_keyspace("short-lived").unwrap();
        assert!(db.stats().background_error.is_none());
        fs.set_capacity(None);
    }
    // All is told by then.
    db.close().unwrap();
    let mut words = words(&told);
    words.retain(|word| !word.starts_with("flush ") && !word.starts_with("compaction "));
    let expected = [
        "compactions of keyspace short-lived fail",
        "full: true",
        "compactions of keyspace short-lived recovered",
        "space",
    ];
    assert_eq!(words, expected.repeat(2));
}

/// A requested compaction that failed is not tried again, so writers must not look for it for ever.
#[test]
fn what_fails_and_is_not_due_is_forgotten_by_the_next_writes() {
    let fs = SimFileSystem::new();
    let (options, told) = listening(stepped_options(&fs).0);
    let db = options.open("/db").unwrap();
    for _ in 0..2 {
        (0..100u32).for_each(|n| _ = db.put(n.to_be_bytes(), [7; 100]).unwrap());
        db.flush().unwrap();
    }
    fs.set_capacity(Some(taken(&fs) + 6_000));
    assert!(db.compact_range(..).unwrap_err().is_no_space());
    fs.set_capacity(None);
    // After a back-off.
    let mut writes = 0;
    while db.stats().background_error.is_some() {
        db.put("key", "value").unwrap();
        std::thread::sleep(Duration::from_millis(1));
        writes += 1;
        assert!(writes < 60_000, "the failure is not forgotten");
    }
    db.close().unwrap();
    let mut words = words(&told);
    words.retain(|word| !word.starts_with("flush ") && !word.starts_with("compaction "));
    let expected =
        ["compactions of keyspace default fail", "full: true", "compactions of keyspace default recovered", "space"];
    assert_eq!(words, expected);
}

/// What an idle store cannot do goes on to fail while the store is not idle.
#[test]
fn a_failure_that_waits_for_the_store_to_be_idle_is_not_recovered() {
    let (options, executor) = stepped_options(&SimFileSystem::new());
    let (options, told) = listening(options);
    let filter = |_: &[u8], _: &[u8]| -> CompactionDecision { panic!("a panic that is part of the test") };
    let keyspace = KeyspaceOptions::new().compaction_filter(filter);
    let db = options.memtable_size(4096).default_keyspace(keyspace).open("/db").unwrap();
    for n in 0..4u32 {
        (0..30u32).for_each(|key| _ = db.put((key * 7919 + n).to_be_bytes(), [7; 100]).unwrap());
        db.flush().unwrap();
    }
    while executor.step() {}
    assert!(db.stats().background_error.is_some());
    for _ in 0..20 {
        db.put("key", "value").unwrap();
        // Longer than a back-off, in all.
        std::thread::sleep(Duration::from_millis(10));
        while executor.step() {}
    }
    assert!(db.stats().background_error.is_some());
    db.close().unwrap();
    let recovered = words(&told).iter().any(|word| word.contains("recovered"));
    assert!(!recovered, "{:?}", words(&told));
}

#[test]
fn a_listener_may_write_and_close_the_store() {
    let fs = SimFileSystem::new();
    let handle = Arc::new(OnceLock::<Db>::new());
    let own = Arc::clone(&handle);
    let threads: Arc<dyn Executor> = Arc::new(ThreadPool::new(2));
    let options = stepped_options(&fs).0.executor(threads).on_event(move |event| {
        if let (Event::FlushEnded { .. }, Some(db)) = (event, own.get()) {
            let _ = db.put("from the listener", "value");
            let _ = db.clone().close();
        }
    });
    let db = options.open("/db").unwrap();
    handle.set(db.clone()).unwrap();
    db.put("key", "value").unwrap();
    let _ = db.flush();
    db.close().unwrap();
    let db = stepped_options(&fs).0.open("/db").unwrap();
    assert!(db.contains_key("key").unwrap());
}

#[test]
fn slow_operations_and_long_closures_are_told() {
    let fs = SimFileSystem::new();
    let (options, told) = listening(stepped_options(&fs).0);
    // Everything takes longer than nothing.
    let db = options.slow_operation(Duration::ZERO).open("/db").unwrap();
    let keyspace = db.keyspace("words").unwrap();
    keyspace.put("key", "value").unwrap();
    keyspace.get("key").unwrap();
    keyspace.multi_get(&["key"]).unwrap();
    db.sync().unwrap();
    db.close().unwrap();
    let mut told_words = words(&told);
    told_words.retain(|word| word.contains(" took "));
    let names: Vec<&str> = told_words.iter().map(|word| word.split(" took ").next().unwrap()).collect();
    assert_eq!(names, ["write", "get in keyspace words", "multi_get in keyspace words", "sync"]);

    let (options, told) = listening(stepped_options(&fs).0);
    let limit = Duration::from_millis(500);
    let db = options.slow_operation(limit).open("/db").unwrap();
    let keyspace = db.keyspace("words").unwrap();
    let pause = |_: &[u8]| std::thread::sleep(limit);
    keyspace.read("key", pause).unwrap();
    keyspace.get("key").unwrap();
    let change = |_: Option<&[u8]>| {
        pause(&[]);
        Change::Keep
    };
    keyspace.update("key", change).unwrap();
    let work = |tx: &mut Transaction| {
        pause(&[]);
        tx.get("key").map(drop)
    };
    db.transact(work).unwrap();
    db.close().unwrap();
    let closures = told
        .lock()
        .iter()
        .filter_map(|event| match event {
            Event::LongClosure { operation, duration } => Some((*operation, *duration >= limit)),
            _ => None,
        })
        .collect::<Vec<_>>();
    assert_eq!(closures, [("read", true), ("update", true), ("transact", true)]);
}

#[test]
fn an_ingest_is_told() {
    let fs = SimFileSystem::new();
    let (options, told) = listening(stepped_options(&fs).0);
    let db = options.open("/db").unwrap();
    let shared: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let format = db.sst_format().unwrap();
    let mut writer = SstWriter::create_in(shared, "/new.sst", &format).unwrap();
    writer.put("key", "value").unwrap();
    writer.finish().unwrap();
    let seqno = db.ingest(["/new.sst"], IngestOptions::new()).unwrap().seqno;
    db.close().unwrap();
    let ingested = |event: &Event| match event {
        Event::Ingested { seqno, tables, .. } => Some((*seqno, *tables)),
        _ => None,
    };
    assert_eq!(told.lock().iter().filter_map(ingested).collect::<Vec<_>>(), [(seqno, 1)]);
}
