//! What is left when the power goes?
//!
//! `TAMIS_SEEDS` sets how many histories are cut, `TAMIS_SEED` runs one.

use tamis::SeqNo;
use tamis::vfs::SimFileSystem;

use crate::history::{History, Trouble};
use crate::ledger::Ledger;
use crate::support::{Scene, count_from_env, for_each_seed};

/// A history that ends when the power goes.
fn run(seed: u64, trouble: Trouble) -> History {
    let mut history = History::new(seed, trouble);
    for _ in 0..8 + seed % 32 {
        let result = history.step();
        if history.power_is_off() {
            // A dead disk acknowledges nothing. If it does, the write will be missed.
            let _ = history.write_synced();
            break;
        }
        result.unwrap();
    }
    history
}

/// Cuts the power, or kills the process, at every mutating call of a history, creation and reopenings included.
fn cut_everywhere(seed: u64) {
    let calls = run(seed, Trouble::None).calls();
    for call in 1..=calls {
        let _scene = Scene(format!("the power went at call {call} of {calls}"));
        let history = run(seed, Trouble::PowerCut(call));
        let point = history.fs.crash_point().expect("one seed is one history");
        let ledger = history.end();
        // The seeds take turns, so that each of these befalls every call.
        match (call + seed) % 16 {
            0 => cut_twice(&point, &ledger, ledger.acknowledged(), seed),
            8 => cut_twice(&point.crash(call), &ledger, ledger.durable(), seed),
            1 | 4 | 9 | 13 => check(&point, &ledger, ledger.acknowledged(), seed),
            _ => check(&point.crash(call ^ seed << 32), &ledger, ledger.durable(), seed),
        }
    }
}

/// The store opens, everything is there up to `floor`, and it takes writes that survive a power cut.
fn check(fs: &SimFileSystem, ledger: &Ledger, floor: SeqNo, seed: u64) {
    let mut history = History::on(fs, ledger.clone(), seed);
    history.open(floor).unwrap();
    history.step().unwrap();
    history.write_synced().unwrap();
    let crashed = history.fs.crash(seed);
    let ledger = history.end();
    reopen(&crashed, &ledger, ledger.durable(), seed);
}

fn reopen(fs: &SimFileSystem, ledger: &Ledger, floor: SeqNo, seed: u64) -> Ledger {
    let mut history = History::on(fs, ledger.clone(), seed);
    history.open(floor).unwrap();
    history.end()
}

/// Cuts the power at every mutating call of a recovery of `fs`. What is found after it is what is found without it: all that the
/// first cut left is on the disk, unless that was a kill.
fn cut_twice(fs: &SimFileSystem, ledger: &Ledger, floor: SeqNo, seed: u64) {
    let recovered = reopen(&fs.kill(), ledger, floor, seed);
    for call in 1.. {
        let _scene = Scene(format!("it went again at call {call} of the recovery"));
        let again = fs.kill();
        again.crash_at(Some(call));
        let mut history = History::on(&again, ledger.clone(), seed);
        let result = history.open(floor);
        let Some(point) = again.crash_point() else {
            return result.unwrap();
        };
        history.end();
        let found = reopen(&point, ledger, floor, seed);
        assert_eq!(found.acknowledged(), recovered.acknowledged());
        check(&point.crash(seed ^ call), ledger, ledger.durable(), seed);
    }
}

#[test]
fn power_cut_at_any_call_loses_nothing_durable() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 300), cut_everywhere);
}
