//! What a program writes to its log, which is standard error.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;

/// The form of lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Time, level, module, message, and `name=value` for each field.
    #[default]
    Text,
    /// An object of JSON.
    Json,
}

/// Begins to write. `KVD_LOG` says what. A second call changes nothing.
pub(crate) fn start(format: Format) {
    let asked = std::env::var("KVD_LOG").ok().map(EnvFilter::try_new).transpose();
    let refused = asked.as_ref().err().map(ToString::to_string);
    let usual = || EnvFilter::new("warn,kvd=info,tamis_openraft=info,openraft=off");
    let filter = asked.ok().flatten().unwrap_or_else(usual);
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    let log = log.with_ansi(stderr().is_terminal());
    // What others have set up, as tests do, stays.
    let _ = match format {
        Format::Text => log.try_init(),
        Format::Json => log.json().flatten_event(true).try_init(),
    };
    if let Some(reason) = refused {
        tracing::warn!(reason, "KVD_LOG cannot be read, and counts as if it were not there");
    }
}

/// Between two lines about what strangers can bring about.
const PAUSE: Duration = Duration::from_secs(1);

/// Lets a line through once in a while: strangers must not fill the log.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<(Option<Instant>, u64)>);

impl Seldom {
    /// Whether to write a line now, and how many were left out since the last one.
    pub(crate) fn pass(&self) -> Option<u64> {
        let mut state = self.0.lock();
        if state.0.is_some_and(|last| last.elapsed() < PAUSE) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(Instant::now());
        Some(std::mem::take(&mut state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_strangers_are_few_and_say_how_many_there_were() {
        let seldom = Seldom::default();
        let passed: Vec<_> = (0..5).filter_map(|_| seldom.pass()).collect();
        assert_eq!(passed, [0]);
        seldom.0.lock().0 = Instant::now().checked_sub(2 * PAUSE);
        assert_eq!((seldom.pass(), seldom.pass()), (Some(4), None));
    }
}
