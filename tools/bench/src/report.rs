//! [`Report`]: the records of a run as tables, JSON and plots.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde_json::{Value, json};
use tamis_figures::Table;

use crate::Result;
use crate::contest::{Contestant, Kind};
use crate::groups::{Group, Workload};
use crate::plot;
use crate::program::Run;
use crate::record::{Latency, Record};
use crate::targets::{Verdict, verdicts};
use tamis_figures::text::{bytes, rate, three_digits, time};

/// Version of the JSON document. It changes when a field is removed or changes its meaning.
const SCHEMA: u64 = 1;

/// A figure of a record, as text.
type Figure = fn(&Record) -> Option<String>;

pub(crate) struct Report {
    /// Names the tables.
    program: &'static str,
    run: Run,
    contestants: Vec<Contestant>,
    groups: Vec<&'static Group>,
    /// Of all rounds.
    rounds: Vec<Record>,
    /// One for each group, workload and engine.
    records: Vec<Record>,
}

impl Report {
    /// A report on the records of one round or several.
    pub(crate) fn new(
        program: &'static str,
        contestants: Vec<Contestant>,
        groups: Vec<&'static Group>,
        run: Run,
        rounds: Vec<Record>,
    ) -> Report {
        let mut by_work: BTreeMap<_, Vec<&Record>> = BTreeMap::new();
        for record in &rounds {
            let work = (&record.group, &record.workload, &record.engine);
            by_work.entry(work).or_default().push(record);
        }
        let records = by_work.into_values().map(|rounds| Record::median(&rounds)).collect();
        Report { program, run, contestants, groups, rounds, records }
    }

    fn taking_part(&self, group: &Group) -> impl Iterator<Item = &Contestant> {
        self.contestants.iter().filter(|contestant| contestant.takes_part(group))
    }

    fn kind(&self, engine: &str) -> Option<Kind> {
        self.contestants.iter().find(|contestant| contestant.name == engine).map(|contestant| contestant.kind)
    }

    fn verdicts(&self) -> Vec<Verdict> {
        verdicts(&self.records, |engine| self.kind(engine))
    }

    /// The table of the targets of a group; `None` if it has none.
    fn targets(&self, group: &Group) -> Option<Table> {
        let mut verdicts = self.verdicts().into_iter().filter(|verdict| verdict.group == group.name).peekable();
        verdicts.peek()?;
        let heads = ["workload", "target", "reached", ""];
        let mut table = self.table(&format!("{} targets", group.name), &heads).text_columns(4);
        for verdict in verdicts {
            let met = if verdict.met { "met" } else { "missed" };
            table.row([verdict.workload, &verdict.goal, &verdict.reached, met]);
        }
        Some(table)
    }

    fn record(&self, group: &Group, workload: &str, engine: &str) -> Option<&Record> {
        let is =
            |record: &&Record| record.group == group.name && record.workload == workload && record.engine == engine;
        self.records.iter().find(is)
    }

    /// Names of a group's workloads that have results, in the group's order.
    fn workloads(&self, group: &Group) -> Vec<&'static str> {
        let has =
            |name: &&str| self.records.iter().any(|record| record.group == group.name && record.workload == *name);
        group.workloads().map(|workload| workload.name()).filter(has).collect()
    }

    pub(crate) fn json(&self) -> Value {
        let verdict = |verdict: Verdict| {
            let Verdict { group, workload, goal, reached, met } = verdict;
            json!({ "group": group, "workload": workload, "goal": goal, "reached": reached, "met": met })
        };
        json!({
            "schema": SCHEMA,
            "run": self.run,
            "engines": self.contestants.iter().map(|c| json!({ "name": c.name, "about": c.about })).collect::<Vec<_>>(),
            "records": self.rounds,
            "targets": self.verdicts().into_iter().map(verdict).collect::<Vec<_>>(),
        })
    }

    /// Writes a plot for each group, next to `path`: its name with the group's appended.
    pub(crate) fn plot(&self, path: &Path) -> Result<()> {
        for group in &self.groups {
            let workloads = self.workloads(group);
            if workloads.is_empty() {
                continue;
            }
            let rates = |engine: &str| -> Vec<Option<f64>> {
                let record = |workload: &&str| self.record(group, workload, engine).map(|record| record.ops_per_second);
                workloads.iter().map(record).collect()
            };
            let engines = self.taking_part(group).map(|contestant| (contestant.name, rates(contestant.name))).collect();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("bench");
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("svg");
            let path = path.with_file_name(format!("{stem}-{}.{extension}", group.name));
            plot::write(&path, &plot::Rates { title: group.name, about: group.about, workloads, engines })?;
        }
        Ok(())
    }
}

/// The tables, by groups.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for group in &self.groups {
            let tables = self.tables(group);
            if tables.is_empty() {
                continue;
            }
            writeln!(f, "\n## {}: {}\n", group.name, group.about)?;
            tables.iter().try_for_each(|table| writeln!(f, "{table}\n"))?;
            if self.records.iter().any(|record| record.group == group.name && record.capped) {
                writeln!(f, "{STAR}\n")?;
            }
        }
        let verdicts = self.verdicts();
        if !verdicts.is_empty() {
            let met = verdicts.iter().filter(|verdict| verdict.met).count();
            writeln!(f, "Targets: {met} of {} met.", verdicts.len())?;
        }
        Ok(())
    }
}

/// The workloads of the table of README.md.
const SUMMARY: [Workload; 6] = [
    Workload::FillRandom,
    Workload::ReadRandom,
    Workload::ReadMissing,
    Workload::SeekRandom,
    Workload::ReadSeq,
    Workload::YcsbA,
];

const STAR: &str = "`*`: time ran out before the workload was complete.";

impl Report {
    /// All tables, to be kept.
    pub(crate) fn all_tables(&self) -> Vec<Table> {
        self.groups.iter().flat_map(|group| self.tables(group)).collect()
    }

    /// The tables of a group.
    fn tables(&self, group: &Group) -> Vec<Table> {
        let workloads = self.workloads(group);
        let figures = match self.taking_part(group).collect::<Vec<_>>()[..] {
            _ if workloads.is_empty() => Vec::new(),
            [one] => vec![self.alone(group, &workloads, one)],
            _ => self.compared(group, &workloads),
        };
        figures.into_iter().chain(self.targets(group)).collect()
    }

    /// A table without rows, named after the program and the table.
    fn table(&self, name: &str, heads: &[&str]) -> Table {
        let Run { command, date, machine } = self.run.clone();
        Table::new(&format!("{}/{name}", self.program), &command, heads).measured(date, machine)
    }

    /// One engine's figures as one table.
    fn alone(&self, group: &Group, workloads: &[&str], engine: &Contestant) -> Table {
        let heads = [
            "workload", "ops/s", "p50", "p99", "p99.9", "max", "CPU/op", "reads/op", "peak", "anon", "WA", "SA",
            "settling",
        ];
        let mut table = self.table(group.name, &heads);
        for record in workloads.iter().filter_map(|workload| self.record(group, workload, engine.name)) {
            let settled =
                |figure: &dyn Fn(&crate::record::Settled) -> String| record.settled.as_ref().map_or("-".into(), figure);
            let Record { latency, .. } = record;
            let mut row = vec![record.workload.clone(), rate_of(record)];
            row.extend([latency.p50, latency.p99, latency.p999, latency.max, record.cpu_per_op].map(time));
            row.push(format!("{:.4}", record.reads_per_op.calls));
            row.extend([record.peak_memory, record.anonymous_memory].map(|n| bytes(n as f64)));
            row.push(settled(&|settled| three_digits(settled.write_amplification)));
            row.push(settled(&|settled| settled.space_amplification.map_or("-".into(), three_digits)));
            row.push(settled(&|settled| time(settled.seconds * 1e9)));
            table.row(row);
        }
        table
    }

    /// Several engines' figures, a table for each figure that a record has.
    fn compared(&self, group: &Group, workloads: &[&str]) -> Vec<Table> {
        let mut heads = vec!["operations per second"];
        heads.extend(self.taking_part(group).map(|contestant| contestant.name));
        heads.extend(["tamis / best LSM", "tamis / LMDB"]);
        let mut rates = self.table(&format!("{} rates", group.name), &heads);
        for workload in workloads {
            let row = self.row(group, workload, |record| Some(rate_of(record)));
            rates.row(row.into_iter().chain(self.ratios(group, workload)));
        }
        let figures: [(&str, &str, Figure); 7] = [
            ("latencies", "p50 / p99 / p99.9 / max", |record| {
                let Latency { p50, p99, p999, max } = record.latency;
                Some([p50, p99, p999, max].map(time).join(" / "))
            }),
            ("processor", "CPU per operation", |record| Some(time(record.cpu_per_op))),
            ("memory", "peak memory / anonymous afterwards", |record| {
                Some([record.peak_memory, record.anonymous_memory].map(|n| bytes(n as f64)).join(" / "))
            }),
            ("amplification", "write / space amplification / settling", |record| {
                let settled = record.settled?;
                let space = settled.space_amplification.map_or("-".into(), three_digits);
                let written = three_digits(settled.write_amplification);
                Some(format!("{written} / {space} / {}", time(settled.seconds * 1e9)))
            }),
            ("tables written", "write amplification without the log", |record| {
                record.settled?.write_amplification_without_log.map(three_digits)
            }),
            ("conflicts", "conflicts per operation", |record| {
                let conflicts = *record.extra.get("conflicts_per_op")?;
                (conflicts > 0.0).then(|| format!("{conflicts:.4}"))
            }),
            ("reads", "read calls / bytes / device bytes per operation", |record| {
                let reads = record.reads_per_op;
                (reads.calls >= 0.001 || reads.device_bytes >= 1.0)
                    .then(|| format!("{:.3} / {} / {}", reads.calls, bytes(reads.bytes), bytes(reads.device_bytes)))
            }),
        ];
        let others =
            figures.iter().filter_map(|(name, head, figure)| self.figure(group, workloads, name, head, *figure));
        let summary = (group.name == "raw").then(|| self.summary(group));
        std::iter::once(rates).chain(others).chain(summary).collect()
    }

    /// How many times the throughput of the best log-structured peer some workloads reach.
    fn summary(&self, group: &Group) -> Table {
        let own = self.taking_part(group).filter(|contestant| contestant.name.starts_with("tamis"));
        let own: Vec<&str> = own.map(|contestant| contestant.name).collect();
        let heads: Vec<&str> =
            std::iter::once("times the best log-structured peer").chain(own.iter().copied()).collect();
        let mut table = self.table(&format!("{} summary", group.name), &heads);
        for workload in SUMMARY {
            let ratio = |engine: &&str| self.ratio(group, workload.name(), engine, Kind::Lsm);
            table.row(std::iter::once(workload.name().to_owned()).chain(own.iter().map(ratio)));
        }
        table
    }

    /// The table of a figure, with the rows that have it; `None` if no row has.
    fn figure(&self, group: &Group, workloads: &[&str], name: &str, head: &str, figure: Figure) -> Option<Table> {
        let mut heads = vec![head];
        heads.extend(self.taking_part(group).map(|contestant| contestant.name));
        let rows = workloads.iter().map(|workload| self.row(group, workload, figure));
        let mut rows = rows.filter(|row| row[1..].iter().any(|cell| cell != "-")).peekable();
        rows.peek()?;
        let mut table = self.table(&format!("{} {name}", group.name), &heads);
        rows.for_each(|row| table.row(row));
        Some(table)
    }

    fn row(&self, group: &Group, workload: &str, figure: Figure) -> Vec<String> {
        let cell = |contestant: &Contestant| self.record(group, workload, contestant.name).and_then(figure);
        let cells = self.taking_part(group).map(|contestant| cell(contestant).unwrap_or_else(|| "-".into()));
        std::iter::once(workload.to_owned()).chain(cells).collect()
    }

    /// The throughput of tamis relative to the best log-structured peer's, and to LMDB's.
    fn ratios(&self, group: &Group, workload: &str) -> [String; 2] {
        let own = self.taking_part(group).find(|contestant| contestant.kind == Kind::Tamis);
        let own = own.map_or("", |contestant| contestant.name);
        [self.ratio(group, workload, own, Kind::Lsm), self.ratio(group, workload, own, Kind::Other)]
    }

    /// An engine's throughput relative to that of the best of a kind; of other stores, to LMDB's.
    fn ratio(&self, group: &Group, workload: &str, engine: &str, kind: Kind) -> String {
        let rate_of = |engine: &str| self.record(group, workload, engine).map(|record| record.ops_per_second);
        let counts = |contestant: &&Contestant| match kind {
            Kind::Other => contestant.name == "lmdb",
            kind => contestant.kind == kind,
        };
        let others = self.taking_part(group).filter(counts).filter_map(|contestant| rate_of(contestant.name));
        match rate_of(engine).zip(others.max_by(f64::total_cmp)) {
            Some((own, other)) => format!("{}×", three_digits(own / other)),
            None => "-".to_owned(),
        }
    }
}

fn rate_of(record: &Record) -> String {
    format!("{}{}", rate(record.ops_per_second), if record.capped { "*" } else { "" })
}
