//! A time series with retention: readings of many sensors, kept for a week.
//!
//! `cargo run --example timeseries`
//!
//! A key is the sensor's name, a separator and the time as a big-endian integer, so that the
//! readings of one sensor lie together, in order of time. A span of time is a range; the latest
//! reading is the last key of the sensor's prefix; what came last before an outage is found by
//! seeking backwards. The keyspace's ttl is the retention: nobody deletes anything, and tables that
//! are a week old are dropped without being read.
#![allow(clippy::unwrap_used, reason = "an example")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tamis::{Error, Keyspace, KeyspaceOptions, Options, PrefixExtractor, WriteBatch};

const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;
const SENSORS: u64 = 20;

fn key(sensor: &str, seconds: u64) -> Vec<u8> {
    [sensor.as_bytes(), b"/", &seconds.to_be_bytes()].concat()
}

/// Lowest, mean and highest reading of a sensor in a span of time, in seconds.
fn summary(readings: &Keyspace, sensor: &str, span: std::ops::Range<u64>) -> Result<Option<[f64; 3]>, Error> {
    let (mut count, mut sum, mut low, mut high) = (0u32, 0.0, f64::INFINITY, f64::NEG_INFINITY);
    for value in readings.values(key(sensor, span.start)..key(sensor, span.end)) {
        let reading = f64::from_le_bytes((*value?).try_into().unwrap());
        (count, sum, low, high) = (count + 1, sum + reading, low.min(reading), high.max(reading));
    }
    Ok((count > 0).then(|| [low, sum / f64::from(count), high]))
}

/// The last reading of a sensor at or before `seconds`: its time and value.
fn reading_at(readings: &Keyspace, sensor: &str, seconds: u64) -> Result<Option<(u64, f64)>, Error> {
    let Some(entry) = readings.range(key(sensor, 0)..=key(sensor, seconds)).next_back() else { return Ok(None) };
    let (key, value) = entry?;
    let time = u64::from_be_bytes(key[sensor.len() + 1..].try_into().unwrap());
    Ok(Some((time, f64::from_le_bytes((*value).try_into().unwrap()))))
}

fn main() -> Result<(), Error> {
    // A clock that the example sets, so that ten days pass in a moment. Real stores have the
    // system's.
    let now = Arc::new(AtomicU64::new(0));
    let shown = Arc::clone(&now);
    let clock = move || SystemTime::UNIX_EPOCH + Duration::from_secs(shown.load(Ordering::Relaxed));
    let dir = tempfile::tempdir().unwrap();
    let db = Options::new().clock(clock).memtable_size(256 << 10).open(dir.path().join("db"))?;
    // Filters know the sensors too: a scan for one that does not exist reads nothing.
    let options = KeyspaceOptions::new().ttl(Duration::from_secs(7 * DAY)).prefix(PrefixExtractor::UpTo(b'/'));
    let readings = db.keyspace_with("readings", options)?;

    // Ten days, a batch of all sensors every ten minutes.
    for seconds in (0..10 * DAY / (10 * MINUTE)).map(|reading| reading * 10 * MINUTE) {
        now.store(seconds, Ordering::Relaxed);
        let mut batch = WriteBatch::new();
        for sensor in 0..SENSORS {
            let reading = 20.0 + sensor as f64 + (seconds as f64 / DAY as f64 * std::f64::consts::TAU).sin();
            batch.put_in(&readings, key(&format!("sensor{sensor:02}"), seconds), reading.to_le_bytes());
        }
        db.write(batch)?;
    }

    let [low, mean, high] = summary(&readings, "sensor07", 8 * DAY..9 * DAY)?.expect("yesterday's readings are there");
    println!("sensor07, yesterday: {low:.1} to {high:.1}, {mean:.1} on average");
    let (time, value) = reading_at(&readings, "sensor07", 9 * DAY + 99)?.expect("an earlier reading is there");
    println!("sensor07, a little after midnight: {value:.1}, read {} s before", 9 * DAY + 99 - time);
    assert_eq!((time, readings.prefix("sensor99/").next().is_none()), (9 * DAY, true));

    // What is older than a week is gone for readers at once, and from the disk after a while.
    assert_eq!(summary(&readings, "sensor07", 0..2 * DAY)?, None);
    assert_eq!(readings.keys(..).count() as u64, SENSORS * 7 * DAY / (10 * MINUTE));
    db.flush()?;
    now.store(20 * DAY, Ordering::Relaxed);
    assert!(readings.is_empty()?);
    readings.compact_range(..)?;
    println!("ten days later, {} bytes are left", readings.approximate_size(..)?);
    db.close()
}

#[test]
fn readings_are_kept_for_a_week() {
    main().unwrap();
}
