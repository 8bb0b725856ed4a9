//! The progress of commands that read entries.

use indicatif::{ProgressBar, ProgressStyle};

/// Hidden when standard error is not a terminal.
pub(super) fn progress_bar(bytes: Option<u64>) -> ProgressBar {
    let (bar, template) = match bytes {
        Some(bytes) => (ProgressBar::new(bytes), "{bar:40} {percent} %, {msg} keys, {bytes_per_sec}, {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} read, {msg} keys, {bytes_per_sec}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
