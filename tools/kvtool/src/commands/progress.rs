//! Progress bars on standard error, for commands that may take longer than a second. [`bar`] makes
//! all of them.

use std::ops::Deref;

use indicatif::{ProgressBar, ProgressStyle};
use tamis::ProgressListener;

/// Keys between two updates of a bar.
pub(crate) const KEYS: u64 = 1000;

/// What a bar counts, and what it shows beside that.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    /// Bytes of input, and as its message how many keys have been read.
    Input,
    Bytes,
    Keys,
    Tables,
}

/// A progress bar. It is cleared when it is dropped, so that a command that fails leaves none.
pub(crate) struct Bar(ProgressBar);

/// A bar for so many units, if that is known. Hidden when standard error is not a terminal.
pub(crate) fn bar(unit: Unit, len: Option<u64>) -> Bar {
    let bar = len.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template = match (unit, len) {
        (Unit::Input, None) => "{spinner} {bytes} read, {msg} keys, {bytes_per_sec}",
        (Unit::Input, Some(_)) => "{bar:40} {percent} %, {msg} keys, {bytes_per_sec}, {eta} left",
        (Unit::Bytes, _) => "{bar:40} {percent} %, {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        (Unit::Keys, _) => "{bar:40} {percent} %, {human_pos} keys, {eta} left",
        (Unit::Tables, _) => "{prefix} {bar:40} {pos} of {len} tables, {eta} left",
    };
    Bar(match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    })
}

impl Bar {
    /// A bar that nobody sees.
    pub(crate) fn hidden() -> Bar {
        Bar(ProgressBar::hidden())
    }

    /// Has the bar show what an operation of the library tells.
    pub(crate) fn listener(&self) -> ProgressListener {
        if self.is_hidden() {
            return ProgressListener::default();
        }
        let bar = self.0.clone();
        ProgressListener::new(move |progress| {
            bar.set_length(progress.total);
            bar.set_position(progress.done);
        })
    }
}

impl Deref for Bar {
    type Target = ProgressBar;

    fn deref(&self) -> &ProgressBar {
        &self.0
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
