//! What the process of one group and one engine does. For each scene it creates a store, prepares
//! it, runs the workloads, and reports the cost of each.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::clock::TickRate;
use crate::engine::{Direction, Engine, Reader, Settings, Variant};
use crate::groups::{Group, Plan, Preparation, Scene, Workload};
use crate::keys::{Keys, Permutation};
use crate::meter::{self, Moment};
use crate::record::{Latency, ReadsPerOp, Record, Settled};
use crate::values::Values;
use crate::work::{Bench, Tally, load};

/// Bytes of keys and values in the log when the process is killed.
const KILLED_BYTES: u64 = 40 << 20;
/// Runs of [`Preparation::Runs`].
const RUNS: u64 = 12;
/// Number of times that `open` closes and opens the store.
const OPENINGS: u32 = 7;
/// A warm-up ends when a round gains less than this share, or after `MOST_ROUNDS` rounds.
const LEAST_GAIN: f64 = 0.05;
const MOST_ROUNDS: u64 = 8;

/// The task of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The engine's name.
    pub(crate) engine: String,
    /// The group's name.
    pub(crate) group: String,
    /// The plan of the group.
    pub(crate) plan: Plan,
    /// The directory in which stores are created.
    pub(crate) dir: PathBuf,
    /// Names of the workloads to run; all if empty.
    pub(crate) workloads: Vec<String>,
    /// If set: write this many entries into the store in `dir`, report that, and wait to be killed.
    pub(crate) die_after: Option<u64>,
    /// Arguments of this program before `--task`.
    pub(crate) prefix: Vec<String>,
}

impl Task {
    fn wants(&self, workload: Workload) -> bool {
        self.workloads.is_empty() || self.workloads.iter().any(|name| name == workload.name())
    }

    /// The command that runs this program with this task.
    pub(crate) fn command(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&self.prefix).arg("--task").arg(serde_json::to_string(self)?);
        Ok(command)
    }
}

/// Performs a task, and passes each result to `report`.
pub(crate) fn perform<E: Engine>(
    variant: Variant,
    task: &Task,
    group: &Group,
    report: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<()> {
    let settings = Settings { variant, ..group.settings(&task.plan) };
    if let Some(entries) = task.die_after {
        return write_and_wait::<E>(task, &settings, entries);
    }
    for scene in group.scenes {
        let fill = scene.fill.filter(|&fill| !scene.unmeasured_fill && task.wants(fill));
        let work: Vec<Workload> = scene.work.iter().copied().filter(|&workload| task.wants(workload)).collect();
        if fill.is_none() && work.is_empty() {
            continue;
        }
        std::fs::create_dir_all(&task.dir)?;
        let dir = tempfile::Builder::new().prefix("tamis-bench-").tempdir_in(&task.dir)?;
        let durable = matches!(fill, Some(Workload::FillSync | Workload::FillSync8));
        let stage = Stage {
            task,
            dir: dir.path(),
            settings: Settings { durable, ..settings },
            keeps_runs: Cell::new(false),
            keys: task.plan.keys()?,
            rate: TickRate::measure(),
            present: AtomicU64::new(0),
        };
        stage.play::<E>(scene, fill, &work, report)?;
    }
    Ok(())
}

impl Plan {
    fn keys(&self) -> Result<Keys> {
        Keys::new(self.encoding, self.key_len, self.keys)
    }
}

/// The context of a scene: directory, settings, keys and clock.
struct Stage<'a> {
    task: &'a Task,
    dir: &'a Path,
    settings: Settings,
    /// For the next opening.
    keeps_runs: Cell<bool>,
    keys: Keys,
    rate: TickRate,
    present: AtomicU64,
}

impl Stage<'_> {
    fn play<E: Engine>(
        &self,
        scene: &Scene,
        fill: Option<Workload>,
        work: &[Workload],
        report: &mut dyn FnMut(Record) -> Result<()>,
    ) -> Result<()> {
        meter::settle_file_system(self.dir)?;
        let mut engine = self.open::<E>()?;
        if let Some(fill) = fill {
            report(self.measure(&engine, fill)?)?;
        }
        if work.is_empty() {
            return engine.close();
        }
        if let Some(fill) = scene.fill {
            self.make_whole(&engine, fill, scene)?;
        }
        match scene.preparation {
            Preparation::AsFilled => {}
            Preparation::Settled => self.settle(&engine)?,
            Preparation::Compacted => {
                engine.compact()?;
                self.settle(&engine)?;
            }
            Preparation::Runs => engine = self.make_runs(engine)?,
        }
        if scene.preparation != Preparation::AsFilled {
            self.warm_up(&engine)?;
        }
        for &workload in work {
            if workload.is_cold() {
                engine.close()?;
                meter::drop_pages(self.dir)?;
                engine = self.open()?;
            }
            let record = match workload {
                Workload::Open => {
                    let (reopened, record) = self.measure_open(engine)?;
                    engine = reopened;
                    record
                }
                Workload::OpenKilled => self.measure_open_killed::<E>()?,
                Workload::MultiGet100 | Workload::MultiGet100Cold if !has_multi_get(&engine)? => continue,
                _ => self.measure(&engine, workload)?,
            };
            // An engine without compaction does no operation; that is not a result.
            if record.ops > 0 {
                report(record)?;
            }
            if workload.writes() {
                self.settle(&engine)?;
            }
        }
        engine.close()
    }

    fn open<E: Engine>(&self) -> Result<E> {
        let dir = self.dir.join("store");
        std::fs::create_dir_all(&dir)?;
        E::open(&dir, &Settings { keeps_runs: self.keeps_runs.get(), ..self.settings })
    }

    /// See [`Preparation::Runs`].
    fn make_runs<E: Engine>(&self, engine: E) -> Result<E> {
        let (mut key, plan) = (self.keys.buffer(), &self.task.plan);
        let (mut values, order) = (Values::new(plan.value_len, plan.seed), Permutation::new(plan.keys, plan.seed));
        let mut put = |engine: &E, numbers: std::ops::Range<u64>| {
            for i in numbers {
                engine.put(self.keys.existing(order.at(i), &mut key), values.next())?;
            }
            engine.flush()
        };
        engine.compact()?;
        self.settle(&engine)?;
        put(&engine, 0..plan.keys / 10)?;
        self.settle(&engine)?;
        engine.close()?;
        self.keeps_runs.set(true);
        let engine = self.open::<E>()?;
        for run in 0..RUNS {
            let first = plan.keys / 10 + run * (plan.keys / 100);
            put(&engine, first..first + plan.keys / 100)?;
        }
        Ok(engine)
    }

    fn bench<'a, E: Engine>(&'a self, engine: &'a E) -> Bench<'a, E> {
        let plan = &self.task.plan;
        Bench {
            engine,
            keys: self.keys,
            value_len: plan.value_len,
            seed: plan.seed,
            rate: self.rate,
            seconds: plan.seconds,
            fill_seconds: plan.fill_seconds,
            present: &self.present,
        }
    }

    /// Loads the keys that the fill did not reach, or all keys if the fill is not measured. A store
    /// to be read fresh is filled like a measured one.
    fn make_whole<E: Engine>(&self, engine: &E, fill: Workload, scene: &Scene) -> Result<()> {
        let bench = self.bench(engine);
        if scene.preparation == Preparation::AsFilled && scene.unmeasured_fill {
            bench.run(fill)?;
        }
        load(&bench, self.present.load(Ordering::Relaxed))
    }

    fn settle<E: Engine>(&self, engine: &E) -> Result<()> {
        engine.flush()?;
        meter::wait_until_idle();
        Ok(())
    }

    /// Warms the caches: scans everything once, then reads at random until that gets no faster.
    fn warm_up<E: Engine>(&self, engine: &E) -> Result<()> {
        engine.reader()?.scan(None, Direction::Forward, |key, value| {
            std::hint::black_box((key, value));
            true
        })?;
        let mut fastest = 0.0;
        for round in 1..=MOST_ROUNDS {
            // Draws must differ from the measured ones, or the caches would hold exactly the next
            // keys.
            let bench = self.bench(engine);
            let tally = Bench { seed: bench.seed.wrapping_add(round), ..bench }.run(Workload::ReadRandom)?;
            let rate = tally.ops as f64 / tally.seconds;
            if rate < fastest * (1.0 + LEAST_GAIN) {
                break;
            }
            fastest = rate;
        }
        Ok(())
    }

    /// Runs a workload and returns its record.
    fn measure<E: Engine>(&self, engine: &E, workload: Workload) -> Result<Record> {
        meter::reset_peak_memory();
        let table_bytes = engine.table_bytes();
        let mut tally = match workload {
            Workload::Compact => self.compact(engine)?,
            Workload::Ingest => self.bench(engine).ingest(&self.dir.join("tables"))?,
            _ => self.bench(engine).run(workload)?,
        };
        let mut after = tally.ended.unwrap_or_else(Moment::now);
        let mut settling = 0.0;
        if workload.only_writes() {
            engine.flush()?;
            settling = after.at.elapsed().as_secs_f64() + meter::wait_until_idle().as_secs_f64();
            after = Moment::now();
        }
        if workload.includes_settling() {
            tally.extra.push(("ops_per_second_before_settling", tally.ops as f64 / tally.seconds));
            tally.seconds += settling;
        }
        let mut record = self.record(workload, &tally, after);
        if workload.only_writes() {
            let table_bytes = engine.table_bytes().zip(table_bytes).map(|(after, before)| after - before);
            record.settled = Some(self.settled(&tally, settling, record.bytes_written, table_bytes)?);
        }
        Ok(record)
    }

    /// Compacts everything; each entry counts as an operation. No operations if the engine has no
    /// compaction.
    fn compact<E: Engine>(&self, engine: &E) -> Result<Tally> {
        let mut tally = Tally::empty()?;
        let start = Instant::now();
        let ops = if engine.compact()? { self.keys.count() } else { 0 };
        tally.step(self.rate, start, ops)?;
        Ok(tally)
    }

    fn settled(&self, tally: &Tally, seconds: f64, written: u64, table_bytes: Option<u64>) -> Result<Settled> {
        let disk = meter::disk_usage(self.dir)?;
        let entry = (self.keys.key_len() + self.task.plan.value_len) as u64;
        let live = self.present.load(Ordering::Relaxed) * entry;
        let enough = live * 5 > self.keys.count() * entry;
        let amplification = |bytes: u64| bytes as f64 / tally.user_bytes.max(1) as f64;
        Ok(Settled {
            seconds,
            write_amplification: amplification(written),
            write_amplification_without_log: table_bytes.map(amplification),
            disk,
            space_amplification: enough.then(|| disk as f64 / live as f64),
        })
    }

    fn record(&self, workload: Workload, tally: &Tally, after: Moment) -> Record {
        let per_op = |sum: f64| sum / tally.ops.max(1) as f64;
        let nanos = |ticks: u64| self.rate.seconds(ticks) * 1e9;
        let quantile = |q: f64| nanos(tally.steps.value_at_quantile(q));
        let io = after.io.since(tally.begun.io);
        Record {
            engine: self.task.engine.clone(),
            group: self.task.group.clone(),
            workload: workload.name().to_owned(),
            ops: tally.ops,
            seconds: tally.seconds,
            ops_per_second: tally.ops as f64 / tally.seconds.max(1e-9),
            capped: tally.capped && workload.is_finite(),
            latency: Latency {
                p50: quantile(0.5),
                p99: quantile(0.99),
                p999: quantile(0.999),
                max: nanos(tally.steps.max()),
            },
            cpu_per_op: per_op((after.cpu - tally.begun.cpu).as_secs_f64() * 1e9),
            peak_memory: meter::peak_memory(),
            anonymous_memory: meter::anonymous_memory(),
            configured_memory: self.configured_memory(),
            reads_per_op: ReadsPerOp {
                calls: per_op(io.read_calls as f64),
                bytes: per_op(io.bytes_read as f64),
                device_bytes: per_op(io.device_read as f64),
            },
            bytes_written: io.written(),
            settled: None,
            extra: tally.extra.iter().map(|&(name, figure)| (name.to_owned(), figure)).collect(),
        }
    }

    fn configured_memory(&self) -> u64 {
        let Settings { memtable, cache, block, bloom_bits, .. } = self.settings;
        let (keys, key_len) = (self.keys.count(), self.keys.key_len() as u64);
        let blocks = keys * (key_len + self.task.plan.value_len as u64) / block as u64;
        // Per block: a key, an offset and a length.
        let indexes = blocks * (key_len + 16);
        (2 * memtable + cache) as u64 + keys * u64::from(bloom_bits) / 8 + indexes
    }

    /// Measures opening the store, several times.
    fn measure_open<E: Engine>(&self, mut engine: E) -> Result<(E, Record)> {
        meter::reset_peak_memory();
        let mut tally = Tally::empty()?;
        for _ in 0..OPENINGS {
            engine.close()?;
            let start = Instant::now();
            engine = self.open()?;
            tally.step(self.rate, start, 1)?;
        }
        let record = self.record(Workload::Open, &tally, Moment::now());
        Ok((engine, record))
    }

    /// Starts a process that writes into a store of its own, kills it, opens the store, and counts
    /// the entries.
    fn measure_open_killed<E: Engine>(&self) -> Result<Record> {
        let plan = self.task.plan;
        let entries = (KILLED_BYTES / (plan.key_len + plan.value_len) as u64).clamp(1, plan.keys);
        let dir = self.dir.join("killed");
        std::fs::create_dir_all(&dir)?;
        let task = Task { dir: dir.clone(), die_after: Some(entries), ..self.task.clone() };
        let mut child = task.command()?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().ok_or("the child has no output")?;
        BufReader::new(output).read_line(&mut line)?;
        child.kill()?;
        child.wait()?;
        if line.trim() != entries.to_string() {
            return Err(format!("the process to be killed ended early: {line:?}").into());
        }

        meter::reset_peak_memory();
        let mut tally = Tally::empty()?;
        let start = Instant::now();
        let engine = E::open(&dir, &self.settings)?;
        tally.step(self.rate, start, 1)?;
        let after = Moment::now();
        let (mut reader, mut key) = (engine.reader()?, self.keys.buffer());
        let order = Permutation::new(plan.keys, plan.seed);
        let mut recovered: u64 = 0;
        for i in 0..entries {
            recovered += u64::from(reader.get(self.keys.existing(order.at(i), &mut key), |_| {})?);
        }
        drop(reader);
        engine.close()?;
        tally.extra = vec![("entries", entries as f64), ("recovered", recovered as f64 / entries as f64)];
        Ok(self.record(Workload::OpenKilled, &tally, after))
    }
}

fn has_multi_get<E: Engine>(engine: &E) -> Result<bool> {
    Ok(engine.reader()?.multi_get(&[&[0]], |_| {})?.is_some())
}

/// What the killed process does: writes, reports that, and waits.
fn write_and_wait<E: Engine>(task: &Task, settings: &Settings, entries: u64) -> Result<()> {
    let engine = E::open(&task.dir, settings)?;
    let keys = task.plan.keys()?;
    let order = Permutation::new(keys.count(), task.plan.seed);
    let (mut key, mut values) = (keys.buffer(), Values::new(task.plan.value_len, task.plan.seed));
    for i in 0..entries {
        engine.put(keys.existing(order.at(i), &mut key), values.next())?;
    }
    println!("{entries}");
    // Normally this process is killed here. Standard input ends if its parent has died.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Err("this process was not killed".into())
}
