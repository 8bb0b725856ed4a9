//! What does the store do when a call fails?
//!
//! `TAMIS_SEEDS` sets how many histories are struck, `TAMIS_SEED` runs one.

use tamis::vfs::{Fault, FaultMode, SimFileSystem};
use tamis::{Error, SeqNo};

use crate::history::{History, Trouble};
use crate::ledger::Ledger;
use crate::support::{Scene, count_from_env, for_each_seed};
use crate::trace::{Call, Event};

const MODES: [FaultMode; 4] = [FaultMode::Io, FaultMode::NoSpace, FaultMode::ShortWrite, FaultMode::ReadError];

/// One fault at every k-th call of a history, k = 1, 2, … until it runs through.
fn strike_everywhere(seed: u64) {
    let [mode, sticky] = [seed % 4, seed / 4 % 2].map(|n| usize::try_from(n).unwrap());
    for at in 1.. {
        let fault = Fault { at, mode: MODES[mode], sticky: sticky == 1 };
        let _scene = Scene(format!("{fault:?}"));
        let mut history = History::new(seed, Trouble::Fault(fault));
        for _ in 0..8 + seed % 32 {
            if let Err(error) = history.step() {
                assert!(matches!(error, Error::Io { .. } | Error::Poisoned(_)), "{error}");
            }
        }
        history.fs.set_fault(None);
        if !history.fs.fault_hit() {
            return;
        }
        check_states(&history, seed);
        match history.db {
            Some(_) => check_open(&mut history),
            None => history.open(history.ledger.acknowledged()).unwrap(),
        }
        check_states(&history, seed);
    }
}

/// Another process finds everything acknowledged, and after a power cut everything durable.
fn check_states(history: &History, seed: u64) {
    let check = |fs: &SimFileSystem, floor: SeqNo| {
        let mut next = History::on(fs, history.ledger.clone(), seed);
        next.open(floor).unwrap();
        next.write_synced().unwrap();
        next.end();
    };
    check(&history.fs.kill(), history.ledger.acknowledged());
    check(&history.fs.crash(seed), history.ledger.durable());
}

/// The fault is over: reads are right, and writes are refused if what was struck makes writes durable, and otherwise taken.
fn check_open(history: &mut History) {
    let db = history.db.clone().unwrap();
    history.ledger.check(&db).unwrap();
    let events = history.events();
    let synced = db.synced_seqno();
    match events.iter().find(|event| !event.ok && makes_durable(event)) {
        Some(first) => {
            let error = history.write_synced().unwrap_err();
            let Error::Poisoned(cause) = &error else { panic!("{error} after {first:?}") };
            assert!(cause.to_string().contains(&first.name), "{cause} after {first:?}");
            assert!(matches!(db.sync(), Err(Error::Poisoned(_))));
            assert!(matches!(db.flush(), Err(Error::Poisoned(_))));
            assert!(matches!(db.keyspace("new"), Err(Error::Poisoned(_))));
            assert_eq!(db.synced_seqno(), synced);
        }
        None => {
            history.write_synced().unwrap();
            db.flush().unwrap();
        }
    }
    history.ledger.check(&db).unwrap();
}

/// Whether the call was to write or sync a log or a manifest, or to make names durable.
fn makes_durable(event: &Event) -> bool {
    let is_log = event.name.ends_with(".wal") || event.name.starts_with("MANIFEST");
    event.call == Call::SyncDir || is_log && matches!(event.call, Call::Append | Call::Sync)
}

#[test]
fn fault_at_any_call_loses_nothing_acknowledged() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 64), strike_everywhere);
}
