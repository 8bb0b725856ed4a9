//! Statistics as a flat list of named figures, for systems that collect them.

use std::fmt::Write;
use std::time::Duration;

use super::{KeyspaceStats, LevelStats, Stats};
use crate::environment::{EnvironmentStats, MemoryUsage};
use crate::filter::RangeFilterState;
use crate::report::stats::{FilterLedger, ReadStats};

/// A figure of [`Stats`], or of [`EnvironmentStats`], with a name; see [`Stats::metrics`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Metric {
    /// Its name, as Prometheus wants it: counters end in `_total`, and units are bytes and seconds.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// Whether it only grows while the store is open.
    pub is_counter: bool,
    /// Names and values of its labels: `keyspace`, `level`, `cause`, `purpose`.
    pub labels: Vec<(&'static str, String)>,
    /// The figure.
    pub value: f64,
}

/// Collects metrics.
struct MetricList {
    metrics: Vec<Metric>,
    labels: Vec<(&'static str, String)>,
}

impl MetricList {
    fn add(&mut self, name: &'static str, help: &'static str, value: f64) {
        let (is_counter, labels) = (name.ends_with("_total"), self.labels.clone());
        self.metrics.push(Metric { name, help, is_counter, labels, value });
    }

    fn count(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.add(name, help, value as f64);
    }

    fn seconds(&mut self, name: &'static str, help: &'static str, value: Duration) {
        self.add(name, help, value.as_secs_f64());
    }

    /// Adds what `add` adds, with a label.
    fn with(&mut self, label: &'static str, value: impl ToString, add: impl FnOnce(&mut MetricList)) {
        self.labels.push((label, value.to_string()));
        add(self);
        self.labels.pop();
    }
}

/// The metrics in Prometheus' text format.
fn prometheus_text(metrics: &[Metric]) -> String {
    let mut text = String::new();
    let mut names: Vec<&str> = Vec::new();
    for Metric { name, help, is_counter, .. } in metrics {
        if names.contains(name) {
            continue;
        }
        names.push(name);
        let kind = if *is_counter { "counter" } else { "gauge" };
        // Writing to a string cannot fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for Metric { labels, value, .. } in metrics.iter().filter(|metric| metric.name == *name) {
            let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let pairs: Vec<String> =
                labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
            let labels = if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) };
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    }
    text
}

impl MemoryUsage {
    fn add_to(&self, list: &mut MetricList, limit: &'static str, used: &'static str) {
        list.count(limit, "Limit of all memory.", self.limit as u64);
        for (purpose, bytes) in self.uses() {
            list.with("use", purpose, |list| {
                list.count(used, "Bytes of memory against the limit, by use.", bytes as u64);
            });
        }
    }
}

impl EnvironmentStats {
    /// All figures that are worth watching over time. Those of stores with this environment do not
    /// include them, so that sums over all stores count nothing twice.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut list = MetricList { metrics: Vec::new(), labels: Vec::new() };
        list.count("tamis_environment_stores", "Open stores.", self.stores as u64);
        let memory = [
            ("memtables", self.memtables),
            ("reader_memtables", self.reader_memtables),
            ("pool", self.idle_memtables),
            ("cache", self.cache),
            ("tables", self.idle_tables),
        ];
        for (purpose, bytes) in memory {
            list.with("purpose", purpose, |list| {
                list.count("tamis_environment_memory_bytes", "Bytes of memory, by purpose.", bytes as u64);
            });
        }
        self.usage.add_to(&mut list, "tamis_environment_memory_limit_bytes", "tamis_environment_memory_used_bytes");
        let limits = [
            ("tamis_environment_memtable_budget_bytes", "Budget for memtables.", self.memtable_budget),
            ("tamis_environment_cache_limit_bytes", "Limit of the block cache.", self.cache_limit),
            ("tamis_environment_open_files", "Files held open.", self.open_files),
            ("tamis_environment_open_files_limit", "The most files held open.", self.open_files_limit),
            ("tamis_environment_background_threads", "Threads for background work.", self.background_threads),
        ];
        limits.into_iter().for_each(|(name, help, value)| list.count(name, help, value as u64));
        list.count(
            "tamis_environment_sealed_early_total",
            "Memtables flushed before they were full.",
            self.sealed_early,
        );
        if let Some(rate) = self.rate_limit {
            list.add("tamis_environment_rate_limit_bytes", "Bytes a second for background work.", rate);
        }
        list.metrics
    }

    /// [`metrics`](EnvironmentStats::metrics) in Prometheus' text format, version 0.0.4.
    pub fn to_prometheus(&self) -> String {
        prometheus_text(&self.metrics())
    }
}

impl Stats {
    /// All figures that are worth watching over time, in a fixed order. Figures of keyspaces and
    /// levels have labels; those of single tables are left out. New versions may add some.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// db.put("apple", "red")?;
    /// db.flush()?;
    /// let metrics = db.stats().metrics();
    /// let flushes = metrics.iter().find(|metric| metric.name == "tamis_flushes_total");
    /// assert_eq!(flushes.map(|metric| metric.value), Some(1.0));
    /// # Ok(()) }
    /// ```
    pub fn metrics(&self) -> Vec<Metric> {
        let mut list = MetricList { metrics: Vec::new(), labels: Vec::new() };
        self.add_sizes(&mut list);
        self.add_writes(&mut list);
        self.keyspaces.iter().for_each(|keyspace| keyspace.add_to(&mut list));
        list.metrics
    }

    /// [`metrics`](Stats::metrics) in Prometheus' text format, version 0.0.4.
    ///
    /// ```
    /// # fn main() -> tamis::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = tamis::Db::open(dir.path().join("db"))?;
    /// let text = db.stats().to_prometheus();
    /// assert!(text.contains("# TYPE tamis_flushes_total counter\ntamis_flushes_total 0\n"));
    /// # Ok(()) }
    /// ```
    pub fn to_prometheus(&self) -> String {
        prometheus_text(&self.metrics())
    }

    /// Passes [`metrics`](Stats::metrics) to the recorder of the crate `metrics`: counters with
    /// their absolute values, all others as gauges. Call it every few seconds.
    #[cfg(feature = "metrics")]
    pub fn record(&self) {
        for Metric { name, is_counter, labels, value, .. } in self.metrics() {
            let labels: Vec<metrics::Label> =
                labels.into_iter().map(|(label, value)| metrics::Label::new(label, value)).collect();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters are not negative")]
            if is_counter && value.fract() == 0.0 {
                metrics::counter!(name, labels).absolute(value as u64);
            } else {
                metrics::gauge!(name, labels).set(value);
            }
        }
    }

    fn add_sizes(&self, list: &mut MetricList) {
        list.count("tamis_size_bytes", "Bytes of tables, value files and logs.", self.total_size());
        list.count("tamis_last_seqno", "Sequence number of the last write.", self.last_seqno);
        list.count("tamis_synced_seqno", "Writes up to this number survive a power cut.", self.synced_seqno);
        list.count("tamis_flushed_seqno", "Writes up to this number are in tables.", self.flushed_seqno);
        list.count("tamis_snapshots", "Live snapshots.", self.snapshots as u64);
        let memory = [
            ("memtables", self.memory.memtables),
            ("pool", self.memory.pool),
            ("cache", self.memory.cache),
            ("filters_and_indexes", self.memory.filters_and_indexes),
            ("held", self.held.memory),
        ];
        for (purpose, bytes) in memory {
            list.with("purpose", purpose, |list| {
                list.count("tamis_memory_bytes", "Bytes of memory, by purpose.", bytes as u64);
            });
        }
        self.memory.usage.add_to(list, "tamis_memory_limit_bytes", "tamis_memory_used_bytes");
        list.count("tamis_cache_limit_bytes", "Limit of the block cache.", self.memory.cache_limit as u64);
        list.count("tamis_held_disk_bytes", "Bytes of replaced tables that are still in use.", self.held.disk);
        list.count("tamis_log_files", "Log files.", self.log.files as u64);
        list.count("tamis_log_bytes", "Bytes of log files.", self.log.bytes);
        list.count("tamis_log_written_bytes_total", "Bytes written to logs.", self.log.written_bytes);
        let phases = [
            ("manifest", self.opening.manifest),
            ("logs", self.opening.logs),
            ("tables", self.opening.tables),
            ("files", self.opening.files),
        ];
        for (phase, time) in phases {
            list.with("phase", phase, |list| {
                list.seconds("tamis_opening_seconds", "Time that opening the store took, by phase.", time);
            });
        }
    }

    fn add_writes(&self, list: &mut MetricList) {
        list.count("tamis_flushes_total", "Flushes.", self.flushes);
        list.count("tamis_flushed_bytes_total", "Bytes written by flushes.", self.flushed_bytes);
        list.count("tamis_compactions_total", "Compactions that rewrote tables.", self.compactions);
        list.count("tamis_compacted_read_bytes_total", "Bytes read by compactions.", self.compacted_bytes_in);
        list.count("tamis_compacted_written_bytes_total", "Bytes written by compactions.", self.compacted_bytes_out);
        list.count("tamis_moves_total", "Compactions that only moved tables.", self.moves);
        list.count("tamis_expired_tables_total", "Tables dropped unread, as they had expired.", self.expired_tables);
        list.count("tamis_covered_tables_total", "Tables dropped unread after range deletes.", self.covered_tables);
        list.count("tamis_value_reads_total", "Values read from value files.", self.value_reads);
        list.count("tamis_value_read_bytes_total", "Bytes read from value files.", self.value_bytes_read);
        list.count("tamis_compaction_debt_bytes", "Bytes that compactions are behind.", self.compaction_debt);
        list.add("tamis_write_pressure", "How far compaction is behind; at 1 writes stop.", self.write_pressure);
        let limited = self.rate_limited_time;
        list.seconds("tamis_rate_limited_seconds_total", "Time that compactions waited for the rate limit.", limited);
        list.count("tamis_lost_events_total", "Events that the listener was too slow to take.", self.lost_events);
        let failing = u64::from(self.background_error.is_some());
        list.count("tamis_background_failing", "1 while background work fails.", failing);
        for (cause, stall) in self.write_stalls.by_cause() {
            list.with("cause", cause, |list| {
                list.count("tamis_stalls_total", "Waits of writes, by cause.", stall.count);
                list.seconds("tamis_stall_seconds_total", "Time that writes have waited, by cause.", stall.total);
            });
        }
    }
}

impl KeyspaceStats {
    fn add_to(&self, list: &mut MetricList) {
        list.with("keyspace", &self.name, |list| {
            list.count(
                "tamis_range_deletes",
                "Range deletes in memory.",
                self.range_deletes.in_memory + self.range_deletes.in_tables,
            );
            list.count("tamis_value_files", "Value files.", self.values.files);
            list.count("tamis_value_file_bytes", "Bytes of value files.", self.values.size);
            list.count("tamis_value_live_bytes", "Bytes of values to which tables point.", self.values.live);
            let passed = self.reads().tombstones_passed;
            list.count("tamis_tombstones_passed_total", "Tombstones that scans stepped over.", passed);
            for level in self.levels.iter().filter(|level| level.has_figures()) {
                list.with("level", level.level, |list| level.add_to(list));
            }
        });
    }
}

impl LevelStats {
    /// Whether the level has, or had, tables.
    fn has_figures(&self) -> bool {
        !self.tables.is_empty() || self.written_bytes > 0 || self.retired.reads != ReadStats::default()
    }

    fn add_to(&self, list: &mut MetricList) {
        let reads = self.reads();
        list.count("tamis_level_tables", "Tables of a level.", self.tables.len() as u64);
        list.count("tamis_level_bytes", "Bytes of the tables of a level.", self.size());
        list.count("tamis_level_entries", "Entries of a level, tombstones included.", self.entries());
        let tombstones = self.tables.iter().map(|table| table.tombstones).sum();
        list.count("tamis_level_tombstones", "Tombstones of a level.", tombstones);
        list.count("tamis_level_written_bytes_total", "Bytes written to a level.", self.written_bytes);
        list.count(
            "tamis_level_compacted_bytes_total",
            "Bytes of a level that compactions took.",
            self.compacted_bytes,
        );
        list.count("tamis_filter_probes_total", "Point reads that asked a filter.", reads.probes);
        list.count("tamis_filter_negatives_total", "Point reads that a filter ended.", reads.negatives);
        list.count("tamis_filter_false_positives_total", "Point reads that a filter misled.", reads.false_positives);
        list.count(
            "tamis_unfiltered_reads_total",
            "Point reads without a usable filter.",
            reads.degraded + reads.skipped,
        );
        list.count("tamis_cache_hits_total", "Data blocks found in memory.", reads.cache_hits);
        list.count("tamis_block_reads_total", "Data blocks read from files.", reads.block_reads);
        list.count("tamis_filter_page_reads_total", "Pages of filters read from files.", reads.filter_reads);
        list.count("tamis_index_page_reads_total", "Pages of indexes read from files.", reads.index_reads);
        let unused = "Data blocks that scans entered and took nothing from.";
        list.count("tamis_scan_blocks_unused_total", unused, reads.scan_blocks_unused);
        let unused = "Data blocks that scans read from files and took nothing from.";
        list.count("tamis_scan_reads_unused_total", unused, reads.scan_reads_unused);
        list.count("tamis_block_read_bytes_total", "Bytes of data blocks read from files.", reads.block_bytes);
        if self.has_range_filters() || reads.range_probes > 0 {
            self.add_range_filters(list);
        }
    }

    /// Whether an open table has, or was to have, a range filter.
    fn has_range_filters(&self) -> bool {
        self.tables.iter().any(|table| !matches!(table.range_filter, None | Some(RangeFilterState::None)))
    }

    fn add_range_filters(&self, list: &mut MetricList) {
        let FilterLedger { reads, expected_range_false_positives, .. } = self.ledger();
        let asked = "Scans and seeks that asked a range filter.";
        list.count("tamis_range_filter_probes_total", asked, reads.range_probes);
        let ended = "Scans and seeks that a range filter kept from a table.";
        list.count("tamis_range_filter_negatives_total", ended, reads.range_negatives);
        let misled = "Scans and seeks that a range filter misled to a block.";
        list.count("tamis_range_filter_false_positives_total", misled, reads.range_false_positives);
        let predicted = "False positives of range filters that their builders predicted.";
        list.add("tamis_range_filter_predicted_false_positives_total", predicted, expected_range_false_positives);
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use std::sync::Arc;

    use crate::sync::Mutex;
    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };

    use super::*;

    /// What was recorded: name, labels, value.
    #[derive(Clone, Default)]
    struct Notes(Arc<Mutex<Vec<(String, usize, f64)>>>);

    struct Announcement(Notes, Key);

    impl Announcement {
        fn add(&self, value: f64) {
            self.0.0.lock().push((self.1.name().to_owned(), self.1.labels().count(), value));
        }
    }

    impl CounterFn for Announcement {
        fn increment(&self, _: u64) {}

        fn absolute(&self, value: u64) {
            self.add(value as f64);
        }
    }

    impl GaugeFn for Announcement {
        fn increment(&self, _: f64) {}

        fn decrement(&self, _: f64) {}

        fn set(&self, value: f64) {
            self.add(value);
        }
    }

    impl Recorder for Notes {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(Arc::new(Announcement(self.clone(), key.clone())))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(Arc::new(Announcement(self.clone(), key.clone())))
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn every_metric_reaches_the_recorder() {
        let stats = Stats { last_seqno: 7, flushes: 3, ..Stats::default() };
        let notes = Notes::default();
        metrics::with_local_recorder(&notes, || stats.record());
        let notes = notes.0.lock();
        let expected: Vec<(String, usize, f64)> = stats
            .metrics()
            .into_iter()
            .map(|metric| (metric.name.to_owned(), metric.labels.len(), metric.value))
            .collect();
        assert_eq!(*notes, expected);
        assert!(notes.contains(&("tamis_flushes_total".to_owned(), 0, 3.0)));
    }
}
