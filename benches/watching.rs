//! The cost of being watched: `cargo bench --bench watching [-- DIRECTORY [PROGRAM]]`.
//!
//! Puts, gets and scans of a store without a listener; with one; with `slow_operation` as well;
//! and, if PROGRAM is this benchmark built with the features `metrics` and `tracing`, with a
//! recorder and a subscriber:
//!
//! ```sh
//! cargo bench --bench watching --features metrics,tracing --no-run     # prints PROGRAM
//! cargo bench --bench watching -- /tmp PROGRAM
//! ```
//!
//! Each figure is the median over rounds in which all kinds take turns, each in a process and a
//! store of its own, so that a slow phase of the machine affects all. Memtables are small, so that
//! there are hundreds of events. DIRECTORY should be on the device to measure. No figure makes this
//! program fail.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "a benchmark"
)]

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tamis::{Db, Options};
use tamis_figures::median;

const ROUNDS: usize = 9;
const KEYS: u64 = 400_000;
const SCANS: u64 = 5;
const KINDS: [&str; 4] = ["nothing", "listener", "slow operations", "features"];
const WORKS: [&str; 3] = ["put", "get", "scan, per key"];
/// Makes this program measure one kind and print its figures.
const ONE: &str = "--one";

fn key(n: u64) -> [u8; 16] {
    let mut key = *b"0000000000000000";
    let digits = (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24).to_string();
    key[16 - digits.len()..].copy_from_slice(digits.as_bytes());
    key
}

/// Nanoseconds per operation.
fn per_op(ops: u64, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e9 / ops as f64
}

fn measure(db: &Db) -> [f64; WORKS.len()] {
    let puts = per_op(KEYS, || (0..KEYS).for_each(|n| _ = db.put(key(n), [7; 100]).unwrap()));
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    let gets = per_op(KEYS, || (0..KEYS).for_each(|n| _ = black_box(db.get(key(n)).unwrap().unwrap())));
    let scans = per_op(SCANS * KEYS, || {
        (0..SCANS).for_each(|_| assert_eq!(db.iter().filter(|entry| entry.is_ok()).count() as u64, KEYS));
    });
    [puts, gets, scans]
}

#[cfg(feature = "metrics")]
mod recorder {
    use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts what it is told.
    #[derive(Default)]
    pub(super) struct Counting(Arc<Count>);

    #[derive(Default)]
    struct Count(AtomicU64);

    impl HistogramFn for Count {
        fn record(&self, _value: f64) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Recorder for Counting {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(Arc::clone(&self.0))
        }
    }
}

#[cfg(feature = "tracing")]
mod subscriber {
    use std::sync::atomic::{AtomicU64, Ordering};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    /// Counts events.
    #[derive(Default)]
    pub(super) struct Counting(AtomicU64);

    impl Subscriber for Counting {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }
}

/// Measures one kind of watching and prints its figures.
fn measure_one(dir: &Path, kind: &str) {
    let events = Arc::new(AtomicU64::new(0));
    let mut options = Options::new().memtable_size(1 << 20);
    if kind == KINDS[1] || kind == KINDS[2] {
        let events = Arc::clone(&events);
        options = options.on_event(move |event| {
            black_box(event.to_string());
            events.fetch_add(1, Ordering::Relaxed);
        });
    }
    if kind == KINDS[2] {
        options = options.slow_operation(Duration::from_millis(100));
    }
    if kind == KINDS[3] {
        #[cfg(feature = "metrics")]
        metrics::set_global_recorder(recorder::Counting::default()).ok().unwrap();
        #[cfg(feature = "tracing")]
        tracing::subscriber::set_global_default(subscriber::Counting::default()).unwrap();
        let has_features = cfg!(feature = "metrics") && cfg!(feature = "tracing");
        assert!(has_features, "PROGRAM was built without the features");
    }
    let path = dir.join("db");
    let db = options.open(&path).unwrap();
    let figures = measure(&db);
    db.close().unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    let [puts, gets, scans] = figures;
    println!("{puts} {gets} {scans} {}", events.load(Ordering::Relaxed));
}

/// The figures of one kind, and the number of events, from a process of its own.
fn run(program: &Path, dir: &Path, kind: &str) -> Vec<f64> {
    let output = Command::new(program).args([ONE, dir.to_str().unwrap(), kind]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(|figure| figure.parse().unwrap()).collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [one, dir, kind] = &arguments[..]
        && one == ONE
    {
        return measure_one(Path::new(dir), kind);
    }
    let dir = arguments.first().map_or_else(tempfile::tempdir, tempfile::tempdir_in).unwrap();
    let this = std::env::current_exe().unwrap();
    let mut programs = vec![&*this; 3];
    programs.extend(arguments.get(1).map(Path::new));
    let mut figures = vec![Vec::new(); programs.len()];
    for _ in 0..ROUNDS {
        for ((program, kind), figures) in programs.iter().zip(KINDS).zip(&mut figures) {
            figures.push(run(program, dir.path(), kind));
        }
    }
    let of = |kind: usize, at: usize| median(figures[kind].iter().map(|figures| figures[at]));
    println!("{:16} {}", "ns per operation", KINDS.map(|kind| format!("{kind:>24}")).concat());
    for (at, work) in WORKS.iter().enumerate() {
        let row = (0..programs.len()).map(|kind| {
            let (figure, percent) = (of(kind, at), 100.0 * (of(kind, at) / of(0, at) - 1.0));
            format!("{figure:15.1} {percent:+6.1} %")
        });
        println!("{work:16} {}", row.collect::<String>());
    }
    println!("{:16} {}", "events", (0..3).map(|kind| format!("{:24.0}", of(kind, WORKS.len()))).collect::<String>());
}
