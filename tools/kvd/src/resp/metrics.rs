//! [`Metrics`]: what the server counts, and the text in which Prometheus reads it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::command::{COMMANDS, Spec};
use crate::machine::Reply;

/// Most kinds of errors that are counted apart.
const ERROR_KINDS: usize = 64;

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
    /// Of each command in [`COMMANDS`].
    commands: Vec<CommandCounts>,
    /// Errors by their first word.
    error_kinds: Mutex<BTreeMap<String, u64>>,
    /// What INFO counts from.
    reset: Mutex<Counts>,
    /// How long writes took, from the command to its reply.
    pub writes: Durations,
    /// How long linearizable reads took, the barrier included.
    pub reads: Durations,
}

/// What is counted of a command.
#[derive(Debug, Default)]
struct CommandCounts {
    calls: AtomicU64,
    micros: AtomicU64,
    /// Calls with arguments that it does not take.
    rejected: AtomicU64,
    /// Calls that were answered with an error.
    failed: AtomicU64,
}

/// What a command's counters were at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CommandCount {
    pub(super) calls: u64,
    pub(super) micros: u64,
    pub(super) rejected: u64,
    pub(super) failed: u64,
}

/// What INFO tells of counters, by their names.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    pub(super) plain: BTreeMap<&'static str, u64>,
    pub(super) commands: BTreeMap<&'static str, CommandCount>,
    pub(super) errors: BTreeMap<String, u64>,
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
            commands: COMMANDS.iter().map(|_| CommandCounts::default()).collect(),
            error_kinds: Mutex::default(),
            reset: Mutex::default(),
            writes: Durations::default(),
            reads: Durations::default(),
        }
    }
}

impl Metrics {
    /// Counts a command that was answered.
    pub(super) fn count_call(&self, spec: &Spec, took: Duration, failed: bool) {
        if let Some(counts) = self.commands.get(spec.index) {
            counts.calls.fetch_add(1, Relaxed);
            counts.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
            counts.failed.fetch_add(u64::from(failed), Relaxed);
        }
    }

    /// Counts a command that was refused for its arguments.
    pub(super) fn count_rejected(&self, spec: &Spec) {
        if let Some(counts) = self.commands.get(spec.index) {
            counts.rejected.fetch_add(1, Relaxed);
        }
    }

    /// Counts an error that a client gets.
    pub(super) fn count_error(&self, reply: &Reply) {
        let Reply::Error(text) = reply else { return };
        self.errors.fetch_add(1, Relaxed);
        let kind = text.split(' ').next().unwrap_or_default();
        let mut kinds = self.error_kinds.lock();
        if let Some(count) = kinds.get_mut(kind) {
            *count += 1;
        } else if kinds.len() < ERROR_KINDS {
            kinds.insert(kind.to_owned(), 1);
        }
    }

    /// Commands and their calls, those that were called.
    fn calls(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let calls = COMMANDS.iter().zip(&self.commands).map(|(spec, counts)| (spec.name, counts.calls.load(Relaxed)));
        calls.filter(|(_, calls)| *calls > 0)
    }

    /// What INFO tells: what was counted since [`reset`](Metrics::reset).
    pub(super) fn since_reset(&self) -> Counts {
        let (now, reset) = (self.now(), self.reset.lock().clone());
        let minus = |now: u64, reset: Option<&u64>| now - reset.copied().unwrap_or(0).min(now);
        let commands = now.commands.into_iter().map(|(name, now)| {
            let reset = reset.commands.get(name).copied().unwrap_or_default();
            let count = CommandCount {
                calls: minus(now.calls, Some(&reset.calls)),
                micros: minus(now.micros, Some(&reset.micros)),
                rejected: minus(now.rejected, Some(&reset.rejected)),
                failed: minus(now.failed, Some(&reset.failed)),
            };
            (name, count)
        });
        let errors = now.errors.into_iter().map(|(kind, now)| {
            let count = minus(now, reset.errors.get(&kind));
            (kind, count)
        });
        Counts {
            plain: now.plain.into_iter().map(|(name, now)| (name, minus(now, reset.plain.get(name)))).collect(),
            commands: commands.filter(|(_, count)| *count != CommandCount::default()).collect(),
            errors: errors.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// CONFIG RESETSTAT. What Prometheus reads only grows.
    pub(super) fn reset(&self) {
        *self.reset.lock() = self.now();
    }

    fn now(&self) -> Counts {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        let commands = COMMANDS.iter().zip(&self.commands).map(|(spec, counts)| {
            let CommandCounts { calls, micros, rejected, failed } = counts;
            let count = CommandCount {
                calls: load(calls),
                micros: load(micros),
                rejected: load(rejected),
                failed: load(failed),
            };
            (spec.name, count)
        });
        let commands: BTreeMap<_, _> = commands.collect();
        let plain = [
            ("total_connections_received", load(&self.accepted)),
            ("total_commands_processed", commands.values().map(|count| count.calls).sum()),
            ("total_net_input_bytes", load(&self.bytes_in)),
            ("total_net_output_bytes", load(&self.bytes_out)),
            ("rejected_connections", load(&self.rejected)),
            ("keyspace_hits", load(&self.hits)),
            ("keyspace_misses", load(&self.misses)),
            ("total_error_replies", load(&self.errors)),
            ("unknown_outcomes", load(&self.unknown)),
            ("protocol_errors", load(&self.protocol_errors)),
            ("auth_failures", load(&self.auth_failures)),
            ("stalled_clients", load(&self.stalled)),
        ];
        Counts { plain: plain.into_iter().collect(), commands, errors: self.error_kinds.lock().clone() }
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
    use crate::command::find;

    #[test]
    fn durations_fall_into_the_bucket_whose_bound_they_do_not_exceed() {
        let metrics = Metrics::default();
        for micros in [0, 50, 51, 5_000_000, 5_000_001, u64::MAX / 2] {
            metrics.writes.record(Duration::from_micros(micros));
        }
        metrics.count_call(find(b"append").unwrap(), Duration::ZERO, false);
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
    }

    #[test]
    fn a_reset_is_for_info_alone() {
        let metrics = Metrics::default();
        let get = find(b"get").unwrap();
        let count = |metrics: &Metrics| {
            let counts = metrics.since_reset();
            (
                counts.commands.get("get").copied().unwrap_or_default(),
                counts.plain["total_error_replies"],
                counts.errors,
            )
        };
        metrics.count_call(get, Duration::from_micros(7), true);
        metrics.count_error(&Reply::error("ERR no"));
        let counted = CommandCount { calls: 1, micros: 7, failed: 1, rejected: 0 };
        assert_eq!(count(&metrics), (counted, 1, BTreeMap::from([("ERR".to_owned(), 1)])));
        metrics.reset();
        assert_eq!(count(&metrics), (CommandCount::default(), 0, BTreeMap::new()));
        metrics.count_rejected(get);
        assert_eq!(count(&metrics).0.rejected, 1);
        let mut text = String::new();
        metrics.write_prometheus(&mut text);
        assert!(text.contains("kvd_errors_total 1\n"), "{text}");
    }
}
