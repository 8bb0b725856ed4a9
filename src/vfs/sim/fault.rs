//! Which calls fail, and how: counters of calls, one fault that is due at a count, and the power cut.

use std::io;

use super::crash::Rng;

/// A failure that [`SimFileSystem::set_fault`](super::SimFileSystem::set_fault) arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Counted from now, the call at which the fault is due; the next call is 1. Mutating calls are counted, or reads for
    /// [`FaultMode::ReadError`]. The fault strikes the first call from there on that its mode can befall.
    pub at: u64,
    /// What the call returns and leaves behind.
    pub mode: FaultMode,
    /// Whether every later call that the mode can befall fails too, instead of this one only.
    pub sticky: bool,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultMode {
    /// Any mutating call fails with `EIO`, but for stores, which cannot. An append leaves nothing, a part or all of its bytes in the
    /// file; so does `prepare` with its zeros.
    Io,
    /// The same with `ENOSPC`, but not of `remove` and `sync_dir`, and never after all bytes.
    NoSpace,
    /// An append leaves a part of its bytes (at least one, if it has more than one) and fails with `EIO`.
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
    /// Of bytes to a window.
    Store,
    Sync,
    SyncDir,
    Rename,
    Remove,
    CreateDir,
    Lock,
}

impl FaultMode {
    fn befalls(self, call: Call) -> bool {
        match self {
            FaultMode::Io => call != Call::Store,
            FaultMode::NoSpace => !matches!(call, Call::Store | Call::Remove | Call::SyncDir),
            FaultMode::ShortWrite => call == Call::Append,
            FaultMode::ReadError => false,
        }
    }
}

/// Why a call fails that would otherwise be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The power goes during this call.
    PowerCut,
    /// The power has gone before.
    PowerOff,
    /// A fault strikes the call of this number.
    Fault(FaultMode, u64),
}

impl Failure {
    /// How many of `len` bytes a failing append leaves in the file.
    pub(super) fn appended(self, len: usize) -> usize {
        match self {
            // In flight when the power went: any part of it may have reached the disk, which is for the crash to decide.
            Failure::PowerCut => len,
            Failure::PowerOff | Failure::Fault(FaultMode::ReadError, _) => 0,
            Failure::Fault(FaultMode::Io, call) => Rng::new(call, 0).below(len + 1),
            Failure::Fault(FaultMode::NoSpace, call) => Rng::new(call, 0).below(len),
            Failure::Fault(FaultMode::ShortWrite, call) => {
                let longest = len.saturating_sub(1);
                longest.min(1 + Rng::new(call, 0).below(longest))
            }
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> io::Error {
        match failure {
            Failure::Fault(FaultMode::NoSpace, _) => io::ErrorKind::StorageFull.into(),
            Failure::PowerCut | Failure::PowerOff | Failure::Fault(..) => {
                io::Error::other("simulated failure of the device")
            }
        }
    }
}

/// Counts calls and says which of them fail. A copy of a file system starts with none of it.
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
        // Disarming is how a test lets the disk heal; what happened before stays visible.
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

    /// Counts a mutating call; to be asked before the call does anything.
    pub(super) fn mutation(&mut self, call: Call) -> Result<(), Failure> {
        if self.power_is_off {
            return Err(Failure::PowerOff);
        }
        self.mutations += 1;
        if self.power_cut_at.is_some_and(|at| at <= self.mutations) {
            self.power_is_off = true;
            return Err(Failure::PowerCut);
        }
        self.strike(self.mutations, |mode| mode.befalls(call))
    }

    /// Counts a reading call.
    pub(super) fn read(&mut self) -> Result<(), Failure> {
        self.check_power()?;
        self.reads += 1;
        self.strike(self.reads, |mode| mode == FaultMode::ReadError)
    }

    /// For calls that are neither counted nor fail on cue.
    pub(super) fn check_power(&self) -> Result<(), Failure> {
        if self.power_is_off {
            return Err(Failure::PowerOff);
        }
        Ok(())
    }

    fn strike(&mut self, number: u64, befalls: impl Fn(FaultMode) -> bool) -> Result<(), Failure> {
        match &self.armed {
            Some(armed) if armed.due <= number && (armed.sticky || !self.hit) && befalls(armed.mode) => {
                self.hit = true;
                Err(Failure::Fault(armed.mode, number))
            }
            _ => Ok(()),
        }
    }
}
