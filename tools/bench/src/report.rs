//! [`Report`]: the records of a run as tables, JSON and plots.

use std::fmt;
use std::path::Path;

use serde_json::{Value, json};

use crate::Result;
use crate::contest::{Contestant, Kind};
use crate::groups::Group;
use crate::plot;
use crate::record::Record;
use crate::targets::{Verdict, verdicts};
use crate::text::{bytes, rate, table, three_digits, time};

/// Version of the JSON document. It changes when a field is removed or changes its meaning.
const SCHEMA: u64 = 1;

pub(crate) struct Report {
    contestants: Vec<Contestant>,
    groups: Vec<&'static Group>,
    records: Vec<Record>,
}

impl Report {
    pub(crate) fn new(contestants: Vec<Contestant>, groups: Vec<&'static Group>) -> Report {
        Report { contestants, groups, records: Vec::new() }
    }

    pub(crate) fn add(&mut self, record: Record) {
        self.records.push(record);
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
            "machine": crate::cli::machine(),
            "engines": self.contestants.iter().map(|c| json!({ "name": c.name, "about": c.about })).collect::<Vec<_>>(),
            "records": self.records,
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

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for group in &self.groups {
            let workloads = self.workloads(group);
            if workloads.is_empty() {
                continue;
            }
            writeln!(f, "\n## {}: {}\n", group.name, group.about)?;
            match self.taking_part(group).collect::<Vec<_>>()[..] {
                [one] => self.write_alone(f, group, &workloads, one)?,
                _ => self.write_compared(f, group, &workloads)?,
            }
        }
        let verdicts = self.verdicts();
        if !verdicts.is_empty() {
            let met = verdicts.iter().filter(|verdict| verdict.met).count();
            writeln!(f, "\n## Targets: {met} of {} met\n", verdicts.len())?;
            let rows = verdicts.into_iter().map(|verdict| {
                let met = if verdict.met { "met" } else { "missed" };
                vec![verdict.group.into(), verdict.workload.into(), verdict.goal, verdict.reached, met.into()]
            });
            writeln!(f, "{}", table(5, &["group", "workload", "target", "reached", ""], rows))?;
        }
        Ok(())
    }
}

const STAR: &str = "`*`: time ran out before the workload was complete.";

impl Report {
    /// Writes one engine's figures as one table.
    fn write_alone(
        &self,
        f: &mut fmt::Formatter<'_>,
        group: &Group,
        workloads: &[&str],
        engine: &Contestant,
    ) -> fmt::Result {
        let heads = [
            "workload", "ops/s", "p50", "p99", "p99.9", "max", "CPU/op", "reads/op", "peak", "anon", "WA", "SA",
            "settling",
        ];
        let records: Vec<&Record> =
            workloads.iter().filter_map(|workload| self.record(group, workload, engine.name)).collect();
        let rows = records.iter().map(|record| {
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
            row
        });
        writeln!(f, "{}", table(1, &heads, rows))?;
        if records.iter().any(|record| record.capped) {
            writeln!(f, "\n{STAR}")?;
        }
        Ok(())
    }

    /// Writes several engines' figures, a table for each figure.
    fn write_compared(&self, f: &mut fmt::Formatter<'_>, group: &Group, workloads: &[&str]) -> fmt::Result {
        let mut heads = vec!["operations per second"];
        heads.extend(self.taking_part(group).map(|contestant| contestant.name));
        heads.extend(["tamis / best LSM", "tamis / LMDB"]);
        let rows = workloads.iter().map(|workload| {
            let mut row = self.row(group, workload, |record| Some(rate_of(record)));
            row.extend(self.ratios(group, workload));
            row
        });
        writeln!(f, "{}\n", table(1, &heads, rows))?;
        if self.records.iter().any(|record| record.group == group.name && record.capped) {
            writeln!(f, "{STAR}\n")?;
        }
        let latency = |record: &Record| {
            Some(
                [record.latency.p50, record.latency.p99, record.latency.p999, record.latency.max].map(time).join(" / "),
            )
        };
        self.write_figure(f, group, workloads, "p50 / p99 / p99.9 / max", latency)?;
        self.write_figure(f, group, workloads, "CPU per operation", |record| Some(time(record.cpu_per_op)))?;
        let memory =
            |record: &Record| Some([record.peak_memory, record.anonymous_memory].map(|n| bytes(n as f64)).join(" / "));
        self.write_figure(f, group, workloads, "peak memory / anonymous afterwards", memory)?;
        let settled = |record: &Record| {
            let settled = record.settled?;
            let space = settled.space_amplification.map_or("-".into(), three_digits);
            let written = three_digits(settled.write_amplification);
            Some(format!("{written} / {space} / {}", time(settled.seconds * 1e9)))
        };
        self.write_figure(f, group, workloads, "write / space amplification / settling", settled)?;
        let tables = |record: &Record| record.settled?.write_amplification_without_log.map(three_digits);
        self.write_figure(f, group, workloads, "write amplification without the log", tables)?;
        let conflicts = |record: &Record| {
            let conflicts = *record.extra.get("conflicts_per_op")?;
            (conflicts > 0.0).then(|| format!("{conflicts:.4}"))
        };
        self.write_figure(f, group, workloads, "conflicts per operation", conflicts)?;
        let reads = |record: &Record| {
            let reads = record.reads_per_op;
            (reads.calls >= 0.001 || reads.device_bytes >= 1.0)
                .then(|| format!("{:.3} / {} / {}", reads.calls, bytes(reads.bytes), bytes(reads.device_bytes)))
        };
        self.write_figure(f, group, workloads, "read calls / bytes / device bytes per operation", reads)
    }

    /// Writes the table of a figure, with the rows that have it.
    fn write_figure(
        &self,
        f: &mut fmt::Formatter<'_>,
        group: &Group,
        workloads: &[&str],
        head: &str,
        figure: impl Fn(&Record) -> Option<String>,
    ) -> fmt::Result {
        let mut heads = vec![head];
        heads.extend(self.taking_part(group).map(|contestant| contestant.name));
        let rows: Vec<Vec<String>> = workloads
            .iter()
            .map(|workload| self.row(group, workload, &figure))
            .filter(|row| row[1..].iter().any(|cell| cell != "-"))
            .collect();
        if rows.is_empty() { Ok(()) } else { writeln!(f, "{}\n", table(1, &heads, rows)) }
    }

    fn row(&self, group: &Group, workload: &str, figure: impl Fn(&Record) -> Option<String>) -> Vec<String> {
        let cell = |contestant: &Contestant| self.record(group, workload, contestant.name).and_then(&figure);
        let cells = self.taking_part(group).map(|contestant| cell(contestant).unwrap_or_else(|| "-".into()));
        std::iter::once(workload.to_owned()).chain(cells).collect()
    }

    /// The throughput of tamis relative to the best log-structured peer's, and to LMDB's.
    fn ratios(&self, group: &Group, workload: &str) -> [String; 2] {
        let rate_of = |engine: &str| self.record(group, workload, engine).map(|record| record.ops_per_second);
        let of_kind = |kind| {
            let names = self.taking_part(group).filter(move |contestant| contestant.kind == kind);
            names.filter_map(|contestant| rate_of(contestant.name)).max_by(f64::total_cmp)
        };
        let own = of_kind(Kind::Tamis);
        let ratio = |other: Option<f64>| match own.zip(other) {
            Some((own, other)) => format!("{}×", three_digits(own / other)),
            None => "-".to_owned(),
        };
        [ratio(of_kind(Kind::Lsm)), ratio(rate_of("lmdb"))]
    }
}

fn rate_of(record: &Record) -> String {
    format!("{}{}", rate(record.ops_per_second), if record.capped { "*" } else { "" })
}
