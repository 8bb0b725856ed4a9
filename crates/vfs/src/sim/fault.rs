//! Which calls fail, and how: counters of calls, one armed fault, and the power cut.

use std::io;

use super::crash::Rng;

/// A failure that [`SimFileSystem::set_fault`](super::SimFileSystem::set_fault) arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The call at which the fault is due, counted from now; the next call is 1. Mutating calls
    /// count, or reads for [`FaultMode::ReadError`]. From there on, the fault strikes the first
    /// call to which its mode applies.
    pub at: u64,
    /// What the call returns and leaves behind.
    pub mode: FaultMode,
    /// Whether every later call to which the mode applies fails, too.
    pub sticky: bool,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultMode {
    /// Any mutating call fails with `EIO`, except stores, which cannot. An append leaves none, a
    /// part or all of its bytes in the file; `prepare` likewise with its zeros.
    Io,
    /// Like [`Io`](FaultMode::Io) with `ENOSPC`, but never for `remove` and `sync_dir`, and never
    /// after all bytes.
    NoSpace,
    /// An append leaves a part of its bytes (at least one, if it has more than one) and fails with
    /// `EIO`.
    ShortWrite,
    /// Any reading call fails with `EIO`.
    ReadError,
}

/// The mutating calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Create,
    Append,
    Prepare,
    /// An append to a window.
    Store,
    Sync,
    SyncDir,
    Rename,
    Link,
    Remove,
    CreateDir,
    Lock,
}

impl FaultMode {
    fn applies_to(self, call: Call) -> bool {
        match self {
            FaultMode::Io => call != Call::Store,
            FaultMode::NoSpace => !matches!(call, Call::Store | Call::Remove | Call::SyncDir),
            FaultMode::ShortWrite => call == Call::Append,
            FaultMode::ReadError => false,
        }
    }
}

/// Why a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFailure {
    /// The power is cut during this call.
    PowerCut,
    /// The power was cut before.
    PowerOff,
    /// A fault strikes the call of this number.
    Fault(FaultMode, u64),
}

impl CallFailure {
    /// How many of `len` bytes a failing append leaves in the file.
    pub(super) fn appended(self, len: usize) -> usize {
        match self {
            // In flight at the power cut: any part may have reached the disk. The crash decides.
            CallFailure::PowerCut => len,
            CallFailure::PowerOff | CallFailure::Fault(FaultMode::ReadError, _) => 0,
            CallFailure::Fault(FaultMode::Io, call) => Rng::new(call, 0).below(len + 1),
            CallFailure::Fault(FaultMode::NoSpace, call) => Rng::new(call, 0).below(len),
            CallFailure::Fault(FaultMode::ShortWrite, call) => {
                let longest = len.saturating_sub(1);
                longest.min(1 + Rng::new(call, 0).below(longest))
            }
        }
    }
}

impl From<CallFailure> for io::Error {
    fn from(failure: CallFailure) -> io::Error {
        match failure {
            CallFailure::Fault(FaultMode::NoSpace, _) => io::ErrorKind::StorageFull.into(),
            CallFailure::PowerCut | CallFailure::PowerOff | CallFailure::Fault(..) => {
                io::Error::other("simulated failure of the device")
            }
        }
    }
}

/// Counts calls and decides which of them fail. A copy of a file system starts with a new one.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) mutations: u64,
    pub(super) reads: u64,
    armed: Option<Armed>,
    hit: bool,
    power_cut_at: Option<u64>,
    power_is_off: bool,
}

struct Armed {
    mode: FaultMode,
    sticky: bool,
    /// Absolute number of the call.
    due: u64,
}

impl Faults {
    pub(super) fn arm(&mut self, fault: Option<Fault>) {
        self.armed = fault.map(|Fault { at, mode, sticky }| {
            let calls = match mode {
                FaultMode::ReadError => self.reads,
                FaultMode::Io | FaultMode::NoSpace | FaultMode::ShortWrite => self.mutations,
            };
            let due = calls.saturating_add(at);
            Armed { mode, sticky, due }
        });
        // Disarming lets the disk heal; past strikes stay visible.
        self.hit &= fault.is_none();
    }

    pub(super) fn hit(&self) -> bool {
        self.hit
    }

    pub(super) fn cut_power_at(&mut self, at: Option<u64>) {
        self.power_cut_at = at.map(|at| self.mutations.saturating_add(at));
    }

    pub(super) fn power_is_off(&self) -> bool {
        self.power_is_off
    }

    /// Counts a mutating call. To be called before the call has any effect.
    pub(super) fn mutation(&mut self, call: Call) -> Result<(), CallFailure> {
        if self.power_is_off {
            return Err(CallFailure::PowerOff);
        }
        self.mutations += 1;
        if self.power_cut_at.is_some_and(|at| at <= self.mutations) {
            self.power_is_off = true;
            return Err(CallFailure::PowerCut);
        }
        self.strike(self.mutations, |mode| mode.applies_to(call))
    }

    /// Counts a reading call.
    pub(super) fn read(&mut self) -> Result<(), CallFailure> {
        self.check_power()?;
        self.reads += 1;
        self.strike(self.reads, |mode| mode == FaultMode::ReadError)
    }

    /// For calls that are neither counted nor struck by a fault.
    pub(super) fn check_power(&self) -> Result<(), CallFailure> {
        if self.power_is_off {
            return Err(CallFailure::PowerOff);
        }
        Ok(())
    }

    fn strike(&mut self, number: u64, applies_to: impl Fn(FaultMode) -> bool) -> Result<(), CallFailure> {
        match &self.armed {
            Some(armed) if armed.due <= number && (armed.sticky || !self.hit) && applies_to(armed.mode) => {
                self.hit = true;
                Err(CallFailure::Fault(armed.mode, number))
            }
            _ => Ok(()),
        }
    }
}
