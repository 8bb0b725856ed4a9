//! [`Record`]: what one workload took, as it goes from the process that measures to the one that reports, and into JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a workload took on an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The engine's name.
    pub engine: String,
    /// The group's name.
    pub group: String,
    /// The workload's name.
    pub workload: String,
    /// Operations done: entries of batches and scans count one by one where the workload's description says so.
    pub ops: u64,
    /// How long they took.
    pub seconds: f64,
    /// Operations per second.
    pub ops_per_second: f64,
    /// Whether time ran out before all operations were done that were planned.
    pub capped: bool,
    /// Nanoseconds per step of the workload: an operation, a batch, a scan.
    pub latency: Latency,
    /// Nanoseconds of processor time per operation, all threads; of writes also what they caused afterwards.
    pub cpu_per_op: f64,
    /// Peak resident memory meanwhile, with the pages of mapped files.
    pub peak_memory: u64,
    /// Resident memory afterwards, without mapped files.
    pub anonymous_memory: u64,
    /// What an engine may take by its settings: two memtables, the cache, filters, and an index of all blocks.
    pub configured_memory: u64,
    /// Per operation: calls that read, bytes that they brought, bytes that a device brought.
    pub reads_per_op: ReadsPerOp,
    /// Bytes that went to a device; of writes also what they caused afterwards.
    pub bytes_written: u64,
    /// Of a workload that only writes: what came afterwards.
    pub settled: Option<Settled>,
    /// What only some workloads have to tell.
    pub extra: BTreeMap<String, f64>,
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of the steps took no longer.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1000 took no longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// What reads asked of the system, per operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadsPerOp {
    /// System calls.
    pub calls: f64,
    /// Bytes that they brought.
    pub bytes: f64,
    /// Bytes that a device brought.
    pub device_bytes: f64,
}

/// The store after writes, when everything has been flushed and compaction has come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settled {
    /// Seconds until then.
    pub seconds: f64,
    /// Bytes that went to a device per byte of keys and values written.
    pub write_amplification: f64,
    /// Bytes on disk.
    pub disk: u64,
    /// Bytes on disk per byte of keys and values that are there; `None` when little is.
    pub space_amplification: Option<f64>,
}
