//! [`Load`]: many clients that ask without pause.

use std::fmt;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::servers::Servers;

/// Before a measurement begins.
const WARM_UP: Duration = Duration::from_millis(500);
/// Nanoseconds: what takes longer counts as this.
const LONGEST: u64 = 60_000_000_000;
/// Requests of one flight while the keys are written.
const FILL: usize = 100;

#[derive(Clone, Copy)]
pub(crate) enum Work {
    Set,
    Get,
}

impl fmt::Display for Work {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Work::Set => "set",
            Work::Get => "get",
        })
    }
}

pub(crate) struct Load {
    pub(crate) keys: u64,
    pub(crate) value: usize,
}

pub(crate) struct Figures {
    pub(crate) per_second: f64,
    /// Of a whole pipeline.
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// Processors that all nodes together kept busy.
    pub(crate) cores: f64,
    /// Of each node.
    pub(crate) memory: Vec<u64>,
}

pub(crate) fn key(number: u64) -> String {
    format!("key:{number:012}")
}

/// Bytes that do not compress.
fn value(len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    fastrand::fill(&mut value);
    value
}

impl Load {
    /// Writes all keys.
    pub(crate) async fn fill(&self, servers: &Servers) {
        self.write(servers, 0..self.keys).await;
    }

    /// Writes keys by one client.
    pub(crate) async fn write(&self, servers: &Servers, numbers: std::ops::Range<u64>) {
        let mut client = Client::connect(servers).await;
        for first in numbers.clone().step_by(FILL) {
            let keys: Vec<String> = (first..numbers.end.min(first + FILL as u64)).map(key).collect();
            client.set(&keys, &value(self.value)).await;
        }
    }

    pub(crate) async fn run(
        &self,
        servers: &Servers,
        work: Work,
        pipeline: usize,
        clients: usize,
        time: Duration,
    ) -> Figures {
        let begin = Instant::now() + WARM_UP;
        let end = begin + time;
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let (mut client, keys, value) = (Client::connect(servers).await, self.keys, value(self.value));
            tasks.spawn(async move {
                let mut times = Histogram::<u64>::new_with_max(LONGEST, 3).unwrap();
                loop {
                    let keys: Vec<String> = (0..pipeline).map(|_| key(fastrand::u64(0..keys))).collect();
                    let asked = Instant::now();
                    match work {
                        Work::Set => client.set(&keys, &value).await,
                        Work::Get => client.get(&keys).await,
                    }
                    let answered = Instant::now();
                    if answered >= end {
                        return times;
                    }
                    if asked >= begin {
                        times.saturating_record(u64::try_from((answered - asked).as_nanos()).unwrap());
                    }
                }
            });
        }
        tokio::time::sleep_until(begin.into()).await;
        let busy = servers.busy();
        tokio::time::sleep_until(end.into()).await;
        let busy = servers.busy() - busy;
        let memory = servers.memory();
        let mut all = Histogram::<u64>::new_with_max(LONGEST, 3).unwrap();
        while let Some(times) = tasks.join_next().await {
            all.add(times.unwrap()).unwrap();
        }
        Figures {
            per_second: (all.len() * pipeline as u64) as f64 / time.as_secs_f64(),
            p50: Duration::from_nanos(all.value_at_quantile(0.5)),
            p99: Duration::from_nanos(all.value_at_quantile(0.99)),
            cores: busy.as_secs_f64() / time.as_secs_f64(),
            memory,
        }
    }
}
