//! [`Rates`]: what a store did between two looks.

use serde_json::{Value, json};

use super::page::Page;
use super::source::Sample;

/// What a store did in each second between two looks, and how it is at the second.
pub(super) struct Rates {
    pub(super) seconds: f64,
    /// When the second look was, in seconds since 1970.
    pub(super) at: f64,
    /// Whether the process that has the store open published its figures. Otherwise those of reads,
    /// memory and background work are not known.
    pub(super) is_published: bool,
    pub(super) writes: f64,
    pub(super) log_bytes: f64,
    pub(super) flushed_bytes: f64,
    pub(super) compacted_read_bytes: f64,
    pub(super) compacted_written_bytes: f64,
    pub(super) blocks_cached: f64,
    pub(super) blocks_read: f64,
    pub(super) read_bytes: f64,
    pub(super) probes: f64,
    pub(super) negatives: f64,
    pub(super) false_positives: f64,
    /// Waits of writes by cause, and how long they were, in seconds.
    pub(super) stalls: Vec<(String, f64, f64)>,
    pub(super) pressure: f64,
    pub(super) debt: f64,
    pub(super) memory: f64,
    pub(super) memory_limit: f64,
    pub(super) size: f64,
    pub(super) is_failing: bool,
}

impl Rates {
    /// `None` if the second look saw what the first did, or another process.
    pub(super) fn between(first: &Sample, second: &Sample) -> Option<Rates> {
        let seconds = second.at - first.at;
        let is_later = seconds > 0.0 && first.is_published == second.is_published;
        // Counts begin with the process.
        let counts = |page: &Page| page.figure("tamis_log_written_bytes_total").unwrap_or_default();
        if !is_later || counts(&second.page) < counts(&first.page) {
            return None;
        }
        let (old, new) = (&first.page, &second.page);
        let now = |name| new.figure(name).unwrap_or_default();
        let rate = |name| (now(name) - old.figure(name).unwrap_or_default()).max(0.0) / seconds;
        let waited = new.by_label("tamis_stall_seconds_total", "cause");
        let before = |name, cause: &str| {
            old.by_label(name, "cause").into_iter().find(|(of, _)| *of == cause).map_or(0.0, |(_, value)| value)
        };
        let stalls =
            new.by_label("tamis_stalls_total", "cause").into_iter().zip(waited).map(|((cause, count), (_, time))| {
                let (counted, timed) =
                    (before("tamis_stalls_total", cause), before("tamis_stall_seconds_total", cause));
                (cause.to_owned(), (count - counted) / seconds, (time - timed) / seconds)
            });
        Some(Rates {
            seconds,
            at: second.at,
            is_published: second.is_published,
            writes: rate("tamis_last_seqno"),
            log_bytes: rate("tamis_log_written_bytes_total"),
            flushed_bytes: rate("tamis_flushed_bytes_total"),
            compacted_read_bytes: rate("tamis_compacted_read_bytes_total"),
            compacted_written_bytes: rate("tamis_compacted_written_bytes_total"),
            blocks_cached: rate("tamis_cache_hits_total"),
            blocks_read: rate("tamis_block_reads_total"),
            read_bytes: rate("tamis_block_read_bytes_total"),
            probes: rate("tamis_filter_probes_total"),
            negatives: rate("tamis_filter_negatives_total"),
            false_positives: rate("tamis_filter_false_positives_total"),
            stalls: stalls.collect(),
            pressure: now("tamis_write_pressure"),
            debt: now("tamis_compaction_debt_bytes"),
            memory: now("tamis_memory_used_bytes"),
            memory_limit: now("tamis_memory_limit_bytes"),
            size: now("tamis_size_bytes"),
            is_failing: now("tamis_background_failing") > 0.0,
        })
    }

    /// The share of blocks that were in memory.
    pub(super) fn cached_share(&self) -> Option<f64> {
        share(self.blocks_cached, self.blocks_cached + self.blocks_read)
    }

    /// The share of a filter's wrong answers among those that could be wrong.
    pub(super) fn false_share(&self) -> Option<f64> {
        share(self.false_positives, self.negatives + self.false_positives)
    }

    /// The share of time that writes waited; above 1 if several did at once.
    pub(super) fn stalled(&self) -> f64 {
        self.stalls.iter().map(|(_, _, seconds)| seconds).sum()
    }

    pub(super) fn json(&self) -> Value {
        let known = |value: f64| if self.is_published { json!(value) } else { Value::Null };
        let stalls = self.stalls.iter().map(|(cause, count, seconds)| {
            (cause.clone(), json!({ "per_second": known(*count), "seconds_per_second": known(*seconds) }))
        });
        json!({
            "time": self.at,
            "seconds": self.seconds,
            "published": self.is_published,
            "writes_per_second": self.writes,
            "log_bytes_per_second": known(self.log_bytes),
            "flushed_bytes_per_second": known(self.flushed_bytes),
            "compacted_read_bytes_per_second": known(self.compacted_read_bytes),
            "compacted_written_bytes_per_second": known(self.compacted_written_bytes),
            "blocks_cached_per_second": known(self.blocks_cached),
            "blocks_read_per_second": known(self.blocks_read),
            "read_bytes_per_second": known(self.read_bytes),
            "filter_probes_per_second": known(self.probes),
            "filter_negatives_per_second": known(self.negatives),
            "filter_false_positives_per_second": known(self.false_positives),
            "stalls": serde_json::Map::from_iter(stalls),
            "write_pressure": known(self.pressure),
            "compaction_debt_bytes": known(self.debt),
            "memory_bytes": known(self.memory),
            "memory_limit_bytes": known(self.memory_limit),
            "size_bytes": self.size,
            "background_failing": known(f64::from(u8::from(self.is_failing))),
        })
    }
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: f64, is_published: bool, text: &str) -> Sample {
        Sample { at, is_published, interval: None, page: Page::parse(text).unwrap() }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let before = "tamis_last_seqno 100\ntamis_log_written_bytes_total 1000\n\
                      tamis_cache_hits_total{level=\"0\"} 5\ntamis_block_reads_total{level=\"0\"} 1\n\
                      tamis_stalls_total{cause=\"sync\"} 1\ntamis_stall_seconds_total{cause=\"sync\"} 0.5\n";
        let after = "tamis_last_seqno 300\ntamis_log_written_bytes_total 5000\n\
                     tamis_cache_hits_total{level=\"0\"} 9\ntamis_cache_hits_total{level=\"1\"} 2\n\
                     tamis_block_reads_total{level=\"0\"} 3\ntamis_write_pressure 0.25\n\
                     tamis_stalls_total{cause=\"sync\"} 5\ntamis_stall_seconds_total{cause=\"sync\"} 0.9\n";
        let rates = Rates::between(&sample(10.0, true, before), &sample(12.0, true, after)).unwrap();
        assert_eq!((rates.writes, rates.log_bytes, rates.pressure), (100.0, 2000.0, 0.25));
        assert_eq!((rates.blocks_cached, rates.blocks_read, rates.cached_share()), (3.0, 1.0, Some(0.75)));
        assert_eq!(rates.stalls[0].0, "sync");
        assert!(rates.stalls[0].1 == 2.0 && (rates.stalled() - 0.2).abs() < 1e-9);
        assert_eq!((rates.false_share(), rates.json()["writes_per_second"].as_f64()), (None, Some(100.0)));
    }

    #[test]
    fn there_are_none_across_processes_or_without_time() {
        let (old, new) = ("tamis_log_written_bytes_total 9\n", "tamis_log_written_bytes_total 1\n");
        assert!(Rates::between(&sample(1.0, true, old), &sample(2.0, true, new)).is_none());
        assert!(Rates::between(&sample(1.0, true, old), &sample(1.0, true, old)).is_none());
        assert!(Rates::between(&sample(1.0, false, old), &sample(2.0, true, old)).is_none());
        assert!(Rates::between(&sample(1.0, false, old), &sample(2.0, false, old)).is_some());
    }
}
