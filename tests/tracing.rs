//! Does a subscriber of the crate `tracing` get a store's events, each with its severity?
#![allow(clippy::disallowed_types, reason = "locks of tests are their own")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tamis::Options;
use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

/// Notes the level of each event of this crate.
struct Levels(Arc<Mutex<Vec<Level>>>);

impl Subscriber for Levels {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tamis"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        self.0.lock().unwrap().push(*event.metadata().level());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_subscriber_gets_events_with_their_severity() {
    let levels = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::set_global_default(Levels(Arc::clone(&levels))).unwrap();
    let fs = SimFileSystem::new();
    let options = Options::new().file_system(Arc::new(fs.clone()));
    let db = options.slow_operation(Duration::ZERO).open("/db").unwrap();
    db.put("key", "value").unwrap();
    db.flush().unwrap();
    fs.set_fault(Some(Fault { at: 1, mode: FaultMode::Io, sticky: true }));
    assert!(db.put("key", "value").is_err() || db.sync().is_err());
    drop(db.close());
    let levels = levels.lock().unwrap();
    for level in [Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR] {
        assert!(levels.contains(&level), "no event of level {level} among {levels:?}");
    }
}
