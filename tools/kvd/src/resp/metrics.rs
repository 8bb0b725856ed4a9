//! [`Metrics`]: what the server counts, and the text in which Prometheus reads it.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::command::{COMMANDS, Spec};

/// Upper bounds of the buckets of durations, in microseconds.
const BUCKETS: [u64; 14] =
    [50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];

/// Counters of a server. All only grow, except [`connections`](Metrics::connections).
#[derive(Debug)]
pub struct Metrics {
    /// Connections that are open.
    pub connections: AtomicU64,
    /// Connections accepted since the start.
    pub accepted: AtomicU64,
    /// Connections refused because there were too many.
    pub rejected: AtomicU64,
    /// Connections closed because the client sent or took nothing for too long.
    pub stalled: AtomicU64,
    /// Connections closed because what the client sent was no command.
    pub protocol_errors: AtomicU64,
    /// Refused names and passwords.
    pub auth_failures: AtomicU64,
    /// Bytes from clients.
    pub bytes_in: AtomicU64,
    /// Bytes to clients.
    pub bytes_out: AtomicU64,
    /// GETs of keys that were there.
    pub hits: AtomicU64,
    /// GETs of keys that were not.
    pub misses: AtomicU64,
    /// Commands answered with an error.
    pub errors: AtomicU64,
    /// Commands answered with a redirection to another node.
    pub moved: AtomicU64,
    /// Writes whose outcome is not known.
    pub unknown: AtomicU64,
    /// Replies left out because the memory for long ones was used up.
    pub out_of_memory: AtomicU64,
    /// Calls of each command in [`COMMANDS`].
    calls: Vec<AtomicU64>,
    /// How long writes took, from the command to its reply.
    pub writes: Durations,
    /// How long linearizable reads took, the barrier included.
    pub reads: Durations,
}

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Durations {
    /// Durations up to each bound, the last one without bound; not summed up.
    buckets: [AtomicU64; BUCKETS.len() + 1],
    sum_us: AtomicU64,
}

impl Durations {
    /// Counts a duration.
    pub fn record(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS.partition_point(|bound| *bound < micros);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Relaxed);
        }
        self.sum_us.fetch_add(micros, Relaxed);
    }

    fn write(&self, name: &str, help: &str, out: &mut String) {
        header(name, "histogram", help, out);
        let mut count = 0;
        for (index, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Relaxed);
            let bound = BUCKETS.get(index).map_or("+Inf".to_owned(), |micros| seconds(*micros));
            line(out, format_args!("{name}_bucket{{le=\"{bound}\"}} {count}"));
        }
        line(out, format_args!("{name}_sum {}", seconds(self.sum_us.load(Relaxed))));
        line(out, format_args!("{name}_count {count}"));
    }
}

fn seconds(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

fn line(out: &mut String, text: std::fmt::Arguments) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{text}");
}

fn header(name: &str, kind: &str, help: &str, out: &mut String) {
    line(out, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
}

impl Default for Metrics {
    fn default() -> Metrics {
        let zero = AtomicU64::default;
        Metrics {
            connections: zero(),
            accepted: zero(),
            rejected: zero(),
            stalled: zero(),
            protocol_errors: zero(),
            auth_failures: zero(),
            bytes_in: zero(),
            bytes_out: zero(),
            hits: zero(),
            misses: zero(),
            errors: zero(),
            moved: zero(),
            unknown: zero(),
            out_of_memory: zero(),
            calls: COMMANDS.iter().map(|_| zero()).collect(),
            writes: Durations::default(),
            reads: Durations::default(),
        }
    }
}

impl Metrics {
    /// Counts a call of a command.
    pub fn count_call(&self, spec: &Spec) {
        if let Some(calls) = self.calls.get(spec.index()) {
            calls.fetch_add(1, Relaxed);
        }
    }

    /// Commands and their calls, those that were called.
    pub fn calls(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let calls = COMMANDS.iter().zip(&self.calls).map(|(spec, calls)| (spec.name, calls.load(Relaxed)));
        calls.filter(|(_, calls)| *calls > 0)
    }

    /// All calls together.
    pub fn all_calls(&self) -> u64 {
        self.calls.iter().map(|calls| calls.load(Relaxed)).sum()
    }

    /// Appends all counters in the text format of Prometheus.
    pub fn write_prometheus(&self, out: &mut String) {
        let counters = [
            ("kvd_connections_accepted_total", "Connections accepted.", &self.accepted),
            ("kvd_connections_rejected_total", "Connections refused because there were too many.", &self.rejected),
            ("kvd_connections_stalled_total", "Connections closed because the client stood still.", &self.stalled),
            ("kvd_protocol_errors_total", "Connections closed for what is no command.", &self.protocol_errors),
            ("kvd_auth_failures_total", "Refused names and passwords.", &self.auth_failures),
            ("kvd_client_bytes_received_total", "Bytes from clients.", &self.bytes_in),
            ("kvd_client_bytes_sent_total", "Bytes to clients.", &self.bytes_out),
            ("kvd_hits_total", "GETs of keys that were there.", &self.hits),
            ("kvd_misses_total", "GETs of keys that were not there.", &self.misses),
            ("kvd_errors_total", "Commands answered with an error.", &self.errors),
            ("kvd_moved_total", "Commands answered with another node's address.", &self.moved),
            ("kvd_unknown_outcomes_total", "Writes whose outcome is not known.", &self.unknown),
            ("kvd_out_of_memory_total", "Replies left out for lack of memory.", &self.out_of_memory),
        ];
        for (name, help, counter) in counters {
            header(name, "counter", help, out);
            line(out, format_args!("{name} {}", counter.load(Relaxed)));
        }
        header("kvd_connections", "gauge", "Connections that are open.", out);
        line(out, format_args!("kvd_connections {}", self.connections.load(Relaxed)));
        header("kvd_commands_total", "counter", "Calls of commands.", out);
        for (name, calls) in self.calls() {
            line(out, format_args!("kvd_commands_total{{command=\"{name}\"}} {calls}"));
        }
        self.writes.write("kvd_write_seconds", "Time from a write to its reply.", out);
        self.reads.write("kvd_read_seconds", "Time from a linearizable read to its reply.", out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_bucket_whose_bound_they_do_not_exceed() {
        let metrics = Metrics::default();
        for micros in [0, 50, 51, 5_000_000, 5_000_001, u64::MAX / 2] {
            metrics.writes.record(Duration::from_micros(micros));
        }
        metrics.count_call(&COMMANDS[0]);
        let mut text = String::new();
        metrics.write_prometheus(&mut text);
        for expected in [
            "kvd_write_seconds_bucket{le=\"0.000050\"} 2",
            "kvd_write_seconds_bucket{le=\"0.000100\"} 3",
            "kvd_write_seconds_bucket{le=\"5.000000\"} 4",
            "kvd_write_seconds_bucket{le=\"+Inf\"} 6",
            "kvd_write_seconds_count 6",
            "kvd_commands_total{command=\"append\"} 1",
            "# TYPE kvd_connections gauge",
        ] {
            assert!(text.lines().any(|line| line == expected), "{expected} in\n{text}");
        }
        assert_eq!(metrics.all_calls(), 1);
    }
}
