//! What Ctrl-C does. One handler serves the process, as a shell runs many commands.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use crate::failure::{Failure, INTERRUPTED, Result};
use crate::output::say;

type Action = Box<dyn FnMut() + Send>;

static ACTION: Mutex<Option<Action>> = Mutex::new(None);

fn action() -> MutexGuard<'static, Option<Action>> {
    ACTION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Until it is dropped, Ctrl-C does what it was made with, and then what it did before.
pub(crate) struct OnInterrupt {
    before: Option<Action>,
}

/// Has Ctrl-C call `new`. If that is impossible, prints `otherwise` and why: Ctrl-C then ends the
/// process.
pub(crate) fn on_interrupt(otherwise: &str, new: impl FnMut() + Send + 'static) -> OnInterrupt {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        let handled = ctrlc::set_handler(|| match action().as_mut() {
            Some(action) => action(),
            None => exit(INTERRUPTED.into()),
        });
        if let Err(error) = handled {
            say(format_args!("kvtool: {otherwise}: {error}"));
        }
    });
    OnInterrupt { before: action().replace(Box::new(new)) }
}

/// Whether a command of a shell is to stop.
static IS_STOPPING: AtomicBool = AtomicBool::new(false);

/// Has Ctrl-C stop the command that runs, and the process if it is pressed again.
pub(crate) fn stop_on_interrupt() -> OnInterrupt {
    IS_STOPPING.store(false, Ordering::Relaxed);
    on_interrupt("Ctrl-C ends the shell", || {
        if IS_STOPPING.swap(true, Ordering::Relaxed) {
            exit(INTERRUPTED.into());
        }
    })
}

/// Fails if the command is to stop.
pub(crate) fn check() -> Result<()> {
    match IS_STOPPING.load(Ordering::Relaxed) {
        true => Err(Failure::Interrupted("interrupted".into())),
        false => Ok(()),
    }
}

impl Drop for OnInterrupt {
    fn drop(&mut self) {
        *action() = self.before.take();
    }
}
