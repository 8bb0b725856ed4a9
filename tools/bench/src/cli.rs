//! The command line shared by all programs that run these workloads.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use serde_json::json;
use tamis_figures::Table;

use crate::Result;
use crate::contest::{Contestant, delegate, do_task};
use crate::groups::{GROUPS, Group, Plan, USUAL_KEYS, Workload, group_named};
use crate::keys::{Encoding, KEY_LENS};
use crate::plot;
use crate::program::{Program, Run};
use crate::record::Record;
use crate::report::Report;
use crate::scene::Task;
use tamis_figures::text::{rate, time};

/// Sizes, times, and the choice of groups, workloads and engines.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Groups of workloads to run; see --list
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "raw,compacted,incache,big,lz4", value_parser = group)]
    groups: Vec<&'static str>,
    /// Run only these workloads of the groups
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = workload)]
    workloads: Vec<&'static str>,
    /// Run only these engines
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    engines: Vec<String>,
    /// Number of keys of a store; caches scale with it
    #[arg(long, value_name = "N", default_value_t = USUAL_KEYS, value_parser = clap::value_parser!(u64).range(100..=10_000_000_000))]
    keys: u64,
    /// Length of a key in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16, value_parser = key_len)]
    key_len: usize,
    /// Length of a value in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value_len: usize,
    /// How numbers become keys
    #[arg(long, value_enum, default_value_t)]
    encoding: Encoding,
    /// Duration of each read workload in seconds
    #[arg(long, value_name = "S", default_value_t = 1.5, value_parser = seconds)]
    seconds: f64,
    /// Longest duration of each fill workload in seconds
    #[arg(long, value_name = "S", default_value_t = 15.0, value_parser = seconds)]
    fill_seconds: f64,
    /// Size of a memtable in MiB
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    memtable: usize,
    /// Size of the cache in MiB, instead of the groups' own
    #[arg(long, value_name = "MIB")]
    cache: Option<usize>,
    /// Seed of keys, values and choices
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
    /// Directory in which to create the stores, which are removed afterwards [default: the
    /// temporary directory]
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    /// Write all figures to a file as JSON; `-` prints the JSON instead of the tables
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Run everything N times, in turn, and report the median of each figure; of the longest
    /// latency and of memory, the greatest
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Run nothing; report on what --results has written
    #[arg(long, value_name = "FILE", conflicts_with = "rounds")]
    from: Option<PathBuf>,
    /// Plot the throughput of each group into a file whose name ends in -GROUP.svg or -GROUP.png;
    /// may be repeated
    #[arg(long, value_name = "FILE", value_parser = plot::plot_file)]
    plot: Vec<PathBuf>,
    /// List groups, workloads and engines
    #[arg(long)]
    list: bool,
    /// The task of a measuring process, as JSON
    #[arg(long, hide = true)]
    task: Option<String>,
}

fn group(name: &str) -> Result<&'static str, String> {
    let names = || GROUPS.iter().map(|group| group.name).collect::<Vec<_>>().join(", ");
    group_named(name).map(|group| group.name).ok_or_else(|| format!("groups are {}", names()))
}

fn workload(name: &str) -> Result<&'static str, String> {
    let names = || Workload::all().map(Workload::name).collect::<Vec<_>>().join(", ");
    Workload::named(name).map(Workload::name).ok_or_else(|| format!("workloads are {}", names()))
}

fn key_len(text: &str) -> Result<usize, String> {
    let len = text.parse().ok().filter(|len| KEY_LENS.contains(len));
    len.ok_or_else(|| format!("keys have {} to {} bytes", KEY_LENS.start(), KEY_LENS.end()))
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "it must be 0.001 to 3600 seconds".to_owned())
}

/// Runs the chosen workloads. `prefix` holds this program's arguments before the options: the
/// program starts itself for each measurement.
pub fn run(args: &RunArgs, program: Program, contestants: &[Contestant], prefix: &[&str]) -> Result<()> {
    if let Some(task) = &args.task {
        return do_task(task, contestants);
    }
    if args.list {
        print!("{}", list(contestants));
        return Ok(());
    }
    let contestants = chosen(args, contestants)?;
    let groups: Vec<&Group> = args.groups.iter().filter_map(|name| group_named(name)).collect();
    let measured = match &args.from {
        Some(path) => Measured::read(path)?,
        None => Measured::now(args, program, &contestants, &groups, prefix),
    };
    let Measured { run, plan, failures, records } = measured;
    let is_whole = failures.is_empty() && !run.command.contains("--workloads");
    let report = Report::new(program.name, contestants, groups, run, records);
    let document = || -> Result<String> {
        let mut document = report.json();
        document["plan"] = serde_json::to_value(plan)?;
        document["failures"] = json!(failures);
        Ok(format!("{document:#}\n"))
    };
    match &args.results {
        Some(path) if path.as_os_str() == "-" => print!("{}", document()?),
        Some(path) => {
            print!("{report}");
            std::fs::write(path, document()?)?;
        }
        None => print!("{report}"),
    }
    // Only whole groups take the place of others.
    if is_whole {
        report.all_tables().iter().try_for_each(Table::keep)?;
    }
    for path in &args.plot {
        report.plot(path)?;
    }
    match failures.first() {
        None => Ok(()),
        Some(failure) => Err(failure.clone().into()),
    }
}

/// What `--results` writes, beside what follows from it.
#[derive(Deserialize)]
struct Measured {
    run: Run,
    plan: Plan,
    failures: Vec<String>,
    records: Vec<Record>,
}

impl Measured {
    /// What an earlier run has written.
    fn read(path: &Path) -> Result<Measured> {
        let of_file = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read(path).map_err(|error| of_file(&error))?;
        Ok(serde_json::from_slice(&text).map_err(|error| of_file(&error))?)
    }

    /// Runs all rounds; a failure of one task is noted, and the others still run.
    fn now(
        args: &RunArgs,
        program: Program,
        contestants: &[Contestant],
        groups: &[&'static Group],
        prefix: &[&str],
    ) -> Measured {
        let (mut records, mut failures) = (Vec::new(), Vec::new());
        let tasks = groups.iter().flat_map(|group| {
            let contestants = contestants.iter().filter(|contestant| contestant.takes_part(group));
            contestants.map(|contestant| (*group, contestant))
        });
        for (round, (group, contestant)) in
            (1..=args.rounds).flat_map(|round| tasks.clone().map(move |task| (round, task)))
        {
            let task = task(args, group, contestant, prefix);
            let done = delegate(&task, |record| {
                let (half, longest) = (time(record.latency.p50), time(record.latency.max));
                let what = format!("{round}: {}, {}: {}", group.name, contestant.name, record.workload);
                eprintln!("{what} {}/s, p50 {half}, max {longest}", rate(record.ops_per_second));
                records.push(record);
            });
            if let Err(error) = done {
                eprintln!("{error}");
                failures.push(error.to_string());
            }
        }
        Measured { run: Run::now(program, prefix), plan: args.plan(), failures, records }
    }
}

impl RunArgs {
    fn plan(&self) -> Plan {
        Plan {
            keys: self.keys,
            key_len: self.key_len,
            value_len: self.value_len,
            encoding: self.encoding,
            seconds: self.seconds,
            fill_seconds: self.fill_seconds,
            memtable: self.memtable,
            cache: self.cache,
            seed: self.seed,
        }
    }
}

fn task(args: &RunArgs, group: &Group, contestant: &Contestant, prefix: &[&str]) -> Task {
    Task {
        engine: contestant.name.to_owned(),
        group: group.name.to_owned(),
        plan: group.plan(&args.plan()),
        dir: args.dir.clone().unwrap_or_else(std::env::temp_dir),
        workloads: args.workloads.iter().map(|&name| name.to_owned()).collect(),
        die_after: None,
        prefix: prefix.iter().map(|&argument| argument.to_owned()).collect(),
    }
}

fn chosen(args: &RunArgs, contestants: &[Contestant]) -> Result<Vec<Contestant>> {
    let named = |name: &String| contestants.iter().find(|contestant| contestant.name == name).copied();
    if args.engines.is_empty() {
        return Ok(contestants.to_vec());
    }
    let names = contestants.iter().map(|contestant| contestant.name).collect::<Vec<_>>().join(", ");
    let chosen = args.engines.iter().map(|name| named(name).ok_or(format!("engines are {names}")));
    Ok(chosen.collect::<Result<_, _>>()?)
}

fn list(contestants: &[Contestant]) -> String {
    let mut text = String::from("Groups\n");
    // Writing to a string cannot fail.
    for group in GROUPS {
        let _ = writeln!(text, "  {:<12}{}", group.name, group.about);
        let _ = writeln!(text, "  {:<12}{}", "", group.workloads().map(Workload::name).collect::<Vec<_>>().join(" "));
    }
    let _ = writeln!(text, "\nEngines");
    for contestant in contestants {
        let only = contestant.only_in.map_or(String::new(), |group| format!(" (only group {group})"));
        let _ = writeln!(text, "  {:<20}{}{only}", contestant.name, contestant.about);
    }
    text
}
