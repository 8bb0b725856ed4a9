//! [`Record`]: the result of one workload, sent from the measuring process to the reporting one and
//! written to JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
