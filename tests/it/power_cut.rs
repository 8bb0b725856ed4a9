//! What is left when the power goes?
//!
//! `TAMIS_SEEDS` sets how many histories are cut, `TAMIS_SEED` runs one.

use tamis::vfs::SimFileSystem;

use crate::history::{History, Trouble};
use crate::ledger::Ledger;
use crate::support::{count_from_env, for_each_seed};

/// A history that ends when the power goes.
fn run(seed: u64, trouble: Trouble) -> History {
    let mut history = History::new(seed, trouble);
    for _ in 0..10 + seed % 30 {
        let result = history.step();
        if history.power_is_off() {
            // A dead disk acknowledges nothing; if it does, the write will be missed.
            let _ = history.write_synced();
            break;
        }
        result.unwrap();
    }
    history
}

/// Cuts the power at every mutating call of a history, creation and reopenings included.
fn cut_everywhere(seed: u64) {
    let calls = run(seed, Trouble::None).calls();
    for call in 1..=calls {
        let history = run(seed, Trouble::PowerCut(call));
        let point = history.fs.crash_point().expect("one seed is one history");
        let ledger = history.end();
        let at = |what: &str| format!("{what} at call {call} of {calls}, TAMIS_SEED={seed}");
        check_killed(&point, &ledger, seed, &at("kill"));
        for outcome in 0..2 {
            let crash_seed = seed ^ (call << 20) ^ (outcome << 40);
            check_crashed(&point.crash(crash_seed), &ledger, crash_seed, (call + outcome) % 16 == 0);
        }
    }
}

/// After the end of the process everything is there that was acknowledged.
fn check_killed(fs: &SimFileSystem, ledger: &Ledger, seed: u64, _what: &str) {
    let mut history = History::on(fs, ledger.clone(), seed);
    history.open().unwrap();
    history.end();
}

/// After a power cut everything is there that was durable, and the store takes writes.
fn check_crashed(fs: &SimFileSystem, ledger: &Ledger, seed: u64, twice: bool) {
    let mut history = History::on(&fs.kill(), ledger.clone(), seed);
    history.open_after_power_cut().unwrap();
    if twice {
        cut_recovery_everywhere(fs, &history.ledger, seed);
    }
    history.step().unwrap();
    history.write_synced().unwrap();
    let crashed = history.fs.crash(seed);
    let ledger = history.end();
    let mut history = History::on(&crashed, ledger, seed);
    history.open_after_power_cut().unwrap();
    history.end();
}

/// Cuts the power at every mutating call of the recovery of `fs`. What the first recovery found is what every later one must find.
fn cut_recovery_everywhere(fs: &SimFileSystem, recovered: &Ledger, seed: u64) {
    for call in 1.. {
        let again = fs.kill();
        again.crash_at(Some(call));
        let mut history = History::on(&again, recovered.clone(), seed);
        let result = history.open();
        let Some(point) = again.crash_point() else {
            return result.unwrap();
        };
        history.end();
        let mut history = History::on(&point.crash(seed ^ call), recovered.clone(), seed);
        history.open().unwrap();
        history.end();
    }
}

#[test]
fn power_cut_at_any_call_loses_nothing_durable() {
    for_each_seed(count_from_env("TAMIS_SEEDS", 300), cut_everywhere);
}
