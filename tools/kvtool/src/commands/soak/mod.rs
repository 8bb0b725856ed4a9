//! `soak`: puts a store under load, kills the process and injects faults, repeatedly, and checks
//! that no acknowledged write is lost.
//!
//! ```text
//! round = run a worker process until it is killed, a fault hits it, or it is done;
//!         open the store and check it
//! ```
//!
//! This process keeps the ledger: for each worker thread, the last step whose write was
//! acknowledged. A kill loses no acknowledged write, synced or not, because the system has it.
//! (Power cuts are tested in the library, on its simulated file system.) Each thread has one write
//! in flight, so the store holds its steps up to the last acknowledged one, or the one after. Each
//! batch notes its step, which tells the two apart. The expected content of the store then follows
//! from the seed.

mod faulty;
mod plan;
mod watch;
pub(crate) mod worker;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::json;
use tamis::Db;
use tamis::inspect::Inspector;

pub(crate) use faulty::FaultKind;
use plan::{Model, Step, THREADS, prefix};
use watch::{Usage, open_files};
use worker::{FAULT_HIT, options, progress};

use crate::args::{Common, Soak};
use crate::failure::{Attempt, Failure, Result};
use crate::output::{Output, say};
use crate::table::{Table, number, text};
use crate::text::{count, counted, size};

/// Steps of each worker thread in a round that is not ended early.
const STEPS: u64 = 600;
/// The kinds of faults, in the order of their rounds.
const FAULTS: [FaultKind; 4] = [FaultKind::Sync, FaultKind::Call, FaultKind::Full, FaultKind::Short];
/// A fault hits one of the first `FAULT_WITHIN` calls; syncs are rarer.
const FAULT_WITHIN: u64 = 400;
const FAILED_SYNC_WITHIN: u64 = 80;
/// One round in `VERIFIED` checks all files, like `verify`.
const VERIFIED: u64 = 4;
/// Interval between progress messages.
const SAID: Duration = Duration::from_secs(5);
/// Acknowledgements between two measurements of the worker's memory and files.
const WATCHED: u64 = 64;
/// Grace period for files that stay open after the last store was closed.
const CLOSE_GRACE: Duration = Duration::from_secs(10);
/// Limits on the worker, whose options are a cache of 1 MiB, three memtables of 256 KiB and 64 open
/// tables.
const MOST_MEMORY: u64 = 512 << 20;
const MOST_FILES: u64 = 64 + 64;

pub(crate) fn run(common: &Common, args: &Soak) -> Result<()> {
    let temporary = match &args.db {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("tamis-soak-").tempdir().attempt("cannot create a directory")?),
    };
    let path = match (&args.db, &temporary) {
        (Some(db), _) => db.clone(),
        (None, Some(dir)) => dir.path().join("db"),
        (None, None) => return Err(Failure::usage("a DB is needed")),
    };
    if Db::open_read_only(&path).is_ok() {
        return Err(Failure::usage(format_args!("{} is a store already; soak creates its own", path.display())));
    }
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    say(format_args!("seed {seed}, store in {}", path.display()));
    let mut soak = Ledger::new(&path, seed)?;
    let files_before = open_files();
    let (start, mut said) = (Instant::now(), Instant::now());
    let time = Duration::from_secs(args.seconds);
    let goes_on = |rounds: u64| args.rounds.map_or_else(|| rounds == 0 || start.elapsed() < time, |most| rounds < most);
    while goes_on(soak.rounds) && soak.lost.is_empty() {
        soak.round()?;
        if said.elapsed() >= SAID {
            said = Instant::now();
            say(soak.in_words());
        }
    }
    let leaked = leaked_files(files_before);
    if leaked > 0 {
        soak.lost.push(format!("{} left open after the store was closed", counted(leaked, "file")));
    }
    soak.report(common)?;
    if soak.lost.is_empty() {
        return Ok(());
    }
    if let Some(mut temporary) = temporary {
        temporary.disable_cleanup(true);
    }
    Err(Failure::Wrong(format!("seed {seed}: the store is kept in {}", path.display())))
}

/// How many more files are open than before. A background thread may close a store's files a moment
/// after `close` has returned; therefore this waits for up to [`CLOSE_GRACE`].
fn leaked_files(before: Option<u64>) -> u64 {
    let start = Instant::now();
    loop {
        let leaked = open_files().zip(before).map_or(0, |(after, before)| after.saturating_sub(before));
        if leaked == 0 || start.elapsed() > CLOSE_GRACE {
            return leaked;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What was acknowledged, what was found, and the counters of the report.
struct Ledger<'a> {
    path: &'a Path,
    seed: u64,
    random: Rng,
    rounds: u64,
    /// By thread: the last step acknowledged, or found in the store.
    acknowledged: [u64; THREADS as usize],
    /// By thread: the step found last, and the expected content after it.
    models: Vec<(u64, Model)>,
    operations: u64,
    synced: u64,
    kills: u64,
    faults: BTreeMap<FaultKind, u64>,
    reopens: u64,
    usage: Usage,
    /// Violations: lost or invented entries, unexpected failures, exceeded limits.
    lost: Vec<String>,
}

impl<'a> Ledger<'a> {
    fn new(path: &'a Path, seed: u64) -> Result<Ledger<'a>> {
        // The store exists from the start, so that the first worker may die at any moment.
        Db::open(path)?.close()?;
        Ok(Ledger {
            path,
            seed,
            random: Rng::with_seed(seed),
            rounds: 0,
            acknowledged: [0; THREADS as usize],
            models: vec![(0, Model::new()); THREADS as usize],
            operations: 0,
            synced: 0,
            kills: 0,
            faults: FAULTS.map(|kind| (kind, 0)).into(),
            reopens: 0,
            usage: Usage::default(),
            lost: Vec::new(),
        })
    }

    fn round(&mut self) -> Result<()> {
        self.rounds += 1;
        // Every other round ends in a kill; the others take the kinds of faults in turn.
        let turn = usize::try_from(self.rounds / 2).unwrap_or(0) % FAULTS.len();
        let fault = self.rounds.is_multiple_of(2).then(|| FAULTS[turn]);
        let most = STEPS * u64::from(THREADS);
        let kill_at = fault.is_none().then(|| self.random.u64(1..most));
        let mut command = Command::new(std::env::current_exe().attempt("cannot find this program")?);
        command.args(["soak-worker", "--seed", &self.seed.to_string(), "--steps", &STEPS.to_string()]);
        if let Some(fault) = fault {
            let name = format!("{fault:?}").to_lowercase();
            let within = if fault == FaultKind::Sync { FAILED_SYNC_WITHIN } else { FAULT_WITHIN };
            command.args(["--fault", &name, "--at", &self.random.u64(1..within).to_string()]);
        }
        command.arg(self.path).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut worker = command.spawn().attempt("cannot start a worker")?;
        let killed = self.listen(&mut worker, kill_at)?;
        let status = worker.wait().attempt("cannot wait for a worker")?;
        match (status.code(), fault) {
            (Some(FAULT_HIT), Some(fault)) => *self.faults.entry(fault).or_default() += 1,
            (Some(0), _) => {}
            _ if killed => self.kills += 1,
            _ => self.lost.push(format!("a worker ended with {status}")),
        }
        self.check()
    }

    /// Records the worker's messages, and kills it once it has acknowledged `kill_at` writes.
    /// Returns whether it reached that number.
    fn listen(&mut self, worker: &mut Child, kill_at: Option<u64>) -> Result<bool> {
        let Some(output) = worker.stdout.take() else { return Ok(false) };
        let mut heard = 0;
        for line in BufReader::new(output).lines() {
            let line = line.attempt("cannot read from a worker")?;
            if let Some(complaint) = line.strip_prefix("! ") {
                self.lost.push(complaint.to_owned());
                continue;
            }
            let mut fields = line.split(' ').map(|field| field.parse::<u64>().ok());
            let mut field = || fields.next().flatten();
            let (Some(thread), Some(step), Some(operations), Some(synced)) = (field(), field(), field(), field())
            else {
                self.lost.push(format!("unexpected line from a worker: {line:?}"));
                continue;
            };
            if let Some(acknowledged) =
                usize::try_from(thread).ok().and_then(|thread| self.acknowledged.get_mut(thread))
            {
                *acknowledged = step;
            }
            self.operations += operations;
            self.synced += synced;
            heard += 1;
            if heard % WATCHED == 1 {
                self.usage.note(worker.id());
            }
            if Some(heard) == kill_at {
                // Killing fails if the worker has ended already.
                let _ = worker.kill();
            }
        }
        Ok(kill_at.is_some_and(|at| heard >= at))
    }

    /// Opens the store and compares it with the ledger.
    fn check(&mut self) -> Result<()> {
        self.reopens += 1;
        let db = options().open(self.path)?;
        for (thread, model) in (0..).zip(&mut self.models) {
            let acknowledged = &mut self.acknowledged[thread as usize];
            let found = progress(&db, thread)?;
            if !(*acknowledged..=*acknowledged + 1).contains(&found) {
                self.lost.push(format!(
                    "thread {thread}: step {acknowledged} was acknowledged, but the store holds step {found}"
                ));
                continue;
            }
            *acknowledged = found;
            for number in model.0 + 1..=found {
                Step::new(self.seed, thread, number).apply(&mut model.1);
            }
            model.0 = found;
            if let Some(difference) = difference(&db, thread, &model.1)? {
                self.lost.push(format!("thread {thread}, step {found}: {difference}"));
            }
        }
        db.close()?;
        if self.rounds.is_multiple_of(VERIFIED) {
            let lost = &mut self.lost;
            Inspector::new().verify(self.path, &mut |fault| {
                if fault.kind.is_damage() || fault.kind.is_unchecked() {
                    lost.push(fault.to_string());
                }
            })?;
        }
        if self.usage.memory > MOST_MEMORY || self.usage.files > MOST_FILES {
            self.lost.push(format!("a worker took {}", self.usage));
        }
        Ok(())
    }

    fn in_words(&self) -> String {
        let faults: u64 = self.faults.values().sum();
        format!(
            "{}, {} ({} synced writes), {}, {}, {}, lost: {}",
            counted(self.rounds, "round"),
            counted(self.operations, "operation"),
            count(self.synced),
            counted(self.kills, "kill"),
            counted(faults, "fault"),
            self.usage,
            self.lost.len()
        )
    }

    fn report(&self, common: &Common) -> Result<()> {
        let name = |kind: &FaultKind| format!("{kind:?}").to_lowercase();
        let mut output = Output::new();
        if common.json() {
            let faults: serde_json::Map<_, _> = self.faults.iter().map(|(kind, n)| (name(kind), json!(n))).collect();
            output.json(json!({
                "seed": self.seed,
                "rounds": self.rounds,
                "operations": self.operations,
                "synced_writes": self.synced,
                "kills": self.kills,
                "faults": faults,
                "reopens": self.reopens,
                "resident_memory": self.usage.memory,
                "open_files": self.usage.files,
                "lost": self.lost,
            }))?;
            return output.finish();
        }
        let mut rows = vec![
            ("operations acknowledged".to_owned(), count(self.operations)),
            ("synced writes among them".to_owned(), count(self.synced)),
            ("kills".to_owned(), count(self.kills)),
        ];
        rows.extend(self.faults.iter().map(|(kind, n)| (format!("faults: {}", name(kind)), count(*n))));
        rows.extend([
            ("reopens".to_owned(), count(self.reopens)),
            ("resident memory, at most".to_owned(), size(self.usage.memory)),
            ("open files, at most".to_owned(), count(self.usage.files)),
            ("lost".to_owned(), self.lost.len().to_string()),
        ]);
        output.table(common, &Table::of_pairs([text("soak"), number("")], rows))?;
        for lost in &self.lost {
            output.line(format_args!("lost: {lost}"))?;
        }
        output.finish()
    }
}

/// The first difference between the entries of `thread` and the expected ones.
fn difference(db: &Db, thread: u32, model: &Model) -> Result<Option<String>> {
    let mut expected = model.iter();
    for entry in db.prefix(prefix(thread)) {
        let (key, value) = entry?;
        let next = expected.next();
        if next.is_none_or(|(expected, _)| *expected != *key) {
            let expected = next.map_or("nothing".to_owned(), |(key, _)| key.escape_ascii().to_string());
            return Ok(Some(format!("found {}, expected {expected}", key.escape_ascii())));
        }
        if next.is_none_or(|(_, expected)| *expected != *value) {
            return Ok(Some(format!("{} has another value", key.escape_ascii())));
        }
    }
    // The scan found these keys; a get must find them too.
    for (key, value) in model.iter().step_by(37) {
        if db.get(key)?.as_deref() != Some(&value[..]) {
            return Ok(Some(format!("get does not find {}", key.escape_ascii())));
        }
    }
    Ok(expected.next().map(|(key, _)| format!("{} is missing", key.escape_ascii())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store in which thread 0 has done `steps` steps, and a ledger with `acknowledged` of them.
    fn ledger(path: &Path, steps: u64, acknowledged: u64) -> Ledger<'_> {
        let mut ledger = Ledger::new(path, 7).unwrap();
        let db = Db::open(path).unwrap();
        for number in 1..=steps {
            db.write(Step::new(7, 0, number).batch(0, number)).unwrap();
        }
        db.close().unwrap();
        ledger.acknowledged[0] = acknowledged;
        ledger
    }

    #[test]
    fn what_was_acknowledged_and_one_write_in_flight_may_be_there() {
        for (acknowledged, lost) in [(48, 1), (49, 0), (50, 0), (51, 1)] {
            let dir = tempfile::tempdir().unwrap();
            let mut ledger = ledger(dir.path(), 50, acknowledged);
            ledger.check().unwrap();
            assert_eq!(ledger.lost.len(), lost, "{acknowledged}: {:?}", ledger.lost);
        }
    }

    #[test]
    fn a_lost_an_invented_and_a_changed_key_are_found() {
        let changes: [fn(&Db, &[u8]) -> tamis::SeqNo; 3] = [
            |db, key| db.delete(key).unwrap(),
            |db, key| db.put([key, b"+"].concat(), "1:").unwrap(),
            |db, key| db.put(key, "1:other").unwrap(),
        ];
        for change in changes {
            let dir = tempfile::tempdir().unwrap();
            let mut ledger = ledger(dir.path(), 50, 50);
            ledger.check().unwrap();
            assert_eq!(ledger.lost, Vec::<String>::new());
            let db = Db::open(dir.path()).unwrap();
            let key = ledger.models[0].1.keys().nth(5).unwrap().clone();
            change(&db, &key);
            db.close().unwrap();
            ledger.check().unwrap();
            assert_eq!(ledger.lost.len(), 1, "{:?}", ledger.lost);
        }
    }
}
