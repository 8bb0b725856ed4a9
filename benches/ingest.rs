//! Loading sorted data: puts, batches of puts, and tables that are written apart and ingested:
//! `cargo bench --bench ingest [-- DIRECTORY [ENTRIES]]`.
//!
//! The ways take turns, round by round, each in a store of its own. Keys are 16 bytes and ascend,
//! values 100 bytes. The time of a way ends when the data are durable and no compaction is due;
//! that of an ingest includes writing the tables, on one thread or on two. Figures are medians over
//! the rounds. DIRECTORY should be on the device to measure.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark")]

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tamis::{Db, IngestMode, IngestOptions, SstFormat, SstWriter, WriteBatch};
use tamis_figures::{Table, command, median};

const ROUNDS: usize = 5;
const ENTRIES: u64 = 4_000_000;
/// Bytes of a table, as compactions write them.
const TABLE_SIZE: u64 = 64 << 20;

fn key(n: u64) -> [u8; 16] {
    let mut key = *b"0000000000000000";
    let digits = n.to_string();
    key[16 - digits.len()..].copy_from_slice(digits.as_bytes());
    key
}

/// Values that compress by about half.
fn value(n: u64) -> [u8; 100] {
    let mut value = [b'v'; 100];
    let mut state = n;
    for chunk in value[..48].chunks_mut(8) {
        state = state.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31) ^ n;
        chunk.copy_from_slice(&state.to_le_bytes());
    }
    value
}

fn puts(db: &Db, entries: u64) {
    for n in 0..entries {
        db.put(key(n), value(n)).unwrap();
    }
}

fn batches(db: &Db, entries: u64) {
    let mut batch = WriteBatch::new();
    for n in 0..entries {
        batch.put(key(n), value(n));
        if batch.len() == 100 {
            db.write(std::mem::take(&mut batch)).unwrap();
        }
    }
    db.write(batch).unwrap();
}

/// Writes tables on several threads; returns them.
fn build(db: &Db, dir: &Path, entries: u64, threads: u64) -> Vec<PathBuf> {
    let format = db.sst_format().unwrap();
    let part = |i: u64| entries * i / threads..entries * (i + 1) / threads;
    std::thread::scope(|scope| {
        let build = |i| build_part(&format, dir, part(i));
        let builders: Vec<_> = (0..threads).map(|i| scope.spawn(move || build(i))).collect();
        builders.into_iter().flat_map(|builder| builder.join().unwrap()).collect()
    })
}

fn build_part(format: &SstFormat, dir: &Path, numbers: Range<u64>) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    let mut writer: Option<SstWriter> = None;
    for n in numbers {
        let open = match &mut writer {
            Some(open) => open,
            none => {
                let path = dir.join(format!("{n}.sst"));
                files.push(path.clone());
                none.insert(SstWriter::create(path, format).unwrap())
            }
        };
        open.put(key(n), value(n)).unwrap();
        if open.estimated_size() >= TABLE_SIZE {
            writer.take().unwrap().finish().unwrap();
        }
    }
    if let Some(last) = writer {
        last.finish().unwrap();
    }
    files
}

/// Seconds until the data are durable and in their places, and seconds of the ingest alone.
fn load(way: usize, dir: &Path, entries: u64) -> (f64, f64) {
    let db = Db::open(dir.join("db")).unwrap();
    let start = Instant::now();
    let mut ingested = Duration::ZERO;
    match way {
        0 => puts(&db, entries),
        1 => batches(&db, entries),
        _ => {
            let files = build(&db, dir, entries, if way == 4 { 2 } else { 1 });
            let begin = Instant::now();
            let mode = if way == 3 { IngestMode::Copy } else { IngestMode::Move };
            db.ingest(files, IngestOptions::new().mode(mode)).unwrap();
            ingested = begin.elapsed();
        }
    }
    db.flush().unwrap();
    db.wait_for_compactions().unwrap();
    let seconds = start.elapsed().as_secs_f64();
    assert!(db.get(key(entries - 1)).unwrap().is_some() && db.get(key(entries / 2)).unwrap().is_some());
    (seconds, ingested.as_secs_f64())
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let parent = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let entries = args.next().map_or(ENTRIES, |text| text.parse().unwrap());
    let ways = [
        "puts",
        "batches of 100 puts",
        "tables written by one thread, then moved into the store",
        "likewise, copied into the store",
        "tables written by two threads, then moved",
    ];
    let mut figures = vec![(Vec::new(), Vec::new()); ways.len()];
    for _ in 0..ROUNDS {
        for (way, (seconds, ingests)) in figures.iter_mut().enumerate() {
            let dir = tempfile::tempdir_in(&parent).unwrap();
            let (all, ingest) = load(way, dir.path(), entries);
            seconds.push(all);
            ingests.push(ingest);
        }
    }
    let heads = ["", "seconds", "entries per second", "× puts", "ingest alone, seconds"];
    let mut table = Table::new("ingest/ways", &command("cargo bench --bench ingest", &[]), &heads);
    let base = median(figures[0].0.clone());
    for (name, (seconds, ingests)) in ways.iter().zip(figures) {
        let (seconds, ingest) = (median(seconds), median(ingests));
        let rate = format!("{:.0} k", entries as f64 / seconds / 1e3);
        let times = format!("{:.2}×", base / seconds);
        table.row([name.to_string(), format!("{seconds:.2}"), rate, times, format!("{ingest:.3}")]);
    }
    table.show();
}
