//! [`Record`]: the result of one workload, sent from the measuring process to the reporting one and
//! written to JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tamis_figures::median;

/// The result of a workload on an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The engine's name.
    pub engine: String,
    /// The group's name.
    pub group: String,
    /// The workload's name.
    pub workload: String,
    /// Operations done. Entries of batches and scans count one by one where the workload's
    /// description says so.
    pub ops: u64,
    /// Their duration in seconds.
    pub seconds: f64,
    /// Operations per second.
    pub ops_per_second: f64,
    /// Whether time ran out before all planned operations were done.
    pub capped: bool,
    /// Latencies of the workload's steps: an operation, a batch, a scan.
    pub latency: Latency,
    /// Processor time of all threads in nanoseconds per operation; for write workloads including
    /// the background work they caused.
    pub cpu_per_op: f64,
    /// Peak resident memory during the workload, including mapped files.
    pub peak_memory: u64,
    /// Resident memory after the workload, without mapped files.
    pub anonymous_memory: u64,
    /// Memory that the settings allow: two memtables, the cache, filters, and an index of all
    /// blocks.
    pub configured_memory: u64,
    /// Reads from the system, per operation.
    pub reads_per_op: ReadsPerOp,
    /// Bytes written to a device; for write workloads including the background work they caused.
    pub bytes_written: u64,
    /// The store after background work; only for workloads that only write.
    pub settled: Option<Settled>,
    /// Figures that only some workloads have.
    pub extra: BTreeMap<String, f64>,
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Maximum.
    pub max: f64,
}

/// Reads from the system, per operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadsPerOp {
    /// System calls that read.
    pub calls: f64,
    /// Bytes that these calls returned.
    pub bytes: f64,
    /// Bytes read from a device.
    pub device_bytes: f64,
}

/// The store after writes, once everything is flushed and compaction is idle.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settled {
    /// Seconds until then.
    pub seconds: f64,
    /// Bytes written to a device per byte of keys and values written.
    pub write_amplification: f64,
    /// Bytes that flushes and compactions wrote per byte of keys and values written; `None` if the
    /// engine does not tell.
    pub write_amplification_without_log: Option<f64>,
    /// Bytes on disk.
    pub disk: u64,
    /// Bytes on disk per byte of live keys and values; `None` if few are live.
    pub space_amplification: Option<f64>,
}

impl Record {
    /// The medians of the figures of several rounds; of the longest latency, of memory and of bytes
    /// written, the greatest.
    pub(crate) fn median(rounds: &[&Record]) -> Record {
        let of = |figure: &dyn Fn(&Record) -> f64| median(rounds.iter().map(|round| figure(round)));
        let most = |figure: fn(&Record) -> u64| rounds.iter().map(|round| figure(round)).max().unwrap_or(0);
        let settled = |figure: fn(&Settled) -> f64| of(&|round| round.settled.as_ref().map_or(f64::NAN, figure));
        let first = rounds[0].clone();
        let extra = first.extra.keys().map(|name| {
            let figure = |round: &Record| round.extra.get(name).copied().unwrap_or(f64::NAN);
            (name.clone(), of(&figure))
        });
        Record {
            ops: most(|round| round.ops),
            seconds: of(&|round| round.seconds),
            ops_per_second: of(&|round| round.ops_per_second),
            capped: rounds.iter().any(|round| round.capped),
            latency: Latency {
                p50: of(&|round| round.latency.p50),
                p99: of(&|round| round.latency.p99),
                p999: of(&|round| round.latency.p999),
                max: rounds.iter().map(|round| round.latency.max).fold(0.0, f64::max),
            },
            cpu_per_op: of(&|round| round.cpu_per_op),
            peak_memory: most(|round| round.peak_memory),
            anonymous_memory: most(|round| round.anonymous_memory),
            reads_per_op: ReadsPerOp {
                calls: of(&|round| round.reads_per_op.calls),
                bytes: of(&|round| round.reads_per_op.bytes),
                device_bytes: of(&|round| round.reads_per_op.device_bytes),
            },
            bytes_written: most(|round| round.bytes_written),
            settled: first.settled.map(|first| Settled {
                seconds: settled(|settled| settled.seconds),
                write_amplification: settled(|settled| settled.write_amplification),
                write_amplification_without_log: first
                    .write_amplification_without_log
                    .map(|_| settled(|settled| settled.write_amplification_without_log.unwrap_or(f64::NAN))),
                disk: most(|round| round.settled.as_ref().map_or(0, |settled| settled.disk)),
                space_amplification: first
                    .space_amplification
                    .map(|_| settled(|settled| settled.space_amplification.unwrap_or(f64::NAN))),
            }),
            extra: extra.collect(),
            ..first
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rate: f64, longest: f64) -> Record {
        let latency = Latency { p50: rate, p99: 0.0, p999: 0.0, max: longest };
        let settled = Settled {
            seconds: rate,
            write_amplification: 10.0 - rate,
            write_amplification_without_log: None,
            disk: 0,
            space_amplification: Some(rate),
        };
        Record {
            engine: "tamis".to_owned(),
            group: "raw".to_owned(),
            workload: "fillrandom".to_owned(),
            ops: 1,
            seconds: 1.0,
            ops_per_second: rate,
            capped: false,
            latency,
            cpu_per_op: 0.0,
            peak_memory: 0,
            anonymous_memory: 0,
            configured_memory: 0,
            reads_per_op: ReadsPerOp::default(),
            bytes_written: 0,
            settled: Some(settled),
            extra: BTreeMap::from([("conflicts".to_owned(), rate)]),
        }
    }

    #[test]
    fn each_figure_has_its_own_median() {
        let rounds = [record(1.0, 7.0), record(3.0, 9.0), record(2.0, 8.0)];
        let median = Record::median(&rounds.iter().collect::<Vec<_>>());
        assert_eq!((median.ops_per_second, median.latency.p50, median.latency.max), (2.0, 2.0, 9.0));
        let settled = median.settled.expect("settled");
        assert_eq!((settled.write_amplification, settled.space_amplification), (8.0, Some(2.0)));
        assert_eq!(settled.write_amplification_without_log, None);
        assert_eq!(median.extra["conflicts"], 2.0);
        // One round is itself.
        assert_eq!(Record::median(&[&rounds[0]]), rounds[0]);
    }
}
