//! Copies out of mapped files that end with `false` where a page cannot be read.
//!
//! Where a page of a mapping cannot be brought into memory, because the device fails or somebody
//! has shortened the file, Linux sends SIGBUS to the thread that touches it. A thread notes here
//! from which mapping it is about to copy. If a signal names an address there, the handler marks
//! the mapping as broken, puts zeros in its place and returns: the copy goes on, and [`copy`]
//! returns `false`. Every other SIGBUS goes to the handler that was there before.
//!
//! The order is that of proof: the mark is set before the zeros appear. A thread that copied zeros,
//! even without a signal of its own, therefore finds the mark when it looks afterwards.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::io;
use std::mem::zeroed;
use std::ptr::{self, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering, compiler_fence, fence};

use libc::{SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART, SA_SIGINFO, SIG_BLOCK, SIG_DFL, SIG_IGN, SIGBUS};
use libc::{pthread_sigmask, sigaction, siginfo_t, sigismember, sigset_t};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use tamis_base::sync::{OnceLock, thread_local};

use super::mapped::Region;

/// The mapping from which a thread copies at the moment, with its mark; of no length if it copies
/// from none.
struct Copying {
    start: AtomicUsize,
    len: AtomicUsize,
    broken: AtomicPtr<AtomicBool>,
    /// The last signal that was passed on to the handler that was there before: where the kernel
    /// has put its description, and where the stack was.
    forwarded: [AtomicUsize; 2],
}

thread_local! {
    // Without a destructor or a lazy value: the signal handler reads it.
    static COPYING: Copying = const {
        Copying {
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            broken: AtomicPtr::new(null_mut()),
            forwarded: [const { AtomicUsize::new(0) }; 2],
        }
    };
}

/// The handler that was there before, and its flags.
static PREVIOUS: (AtomicUsize, AtomicI32) = (AtomicUsize::new(SIG_DFL), AtomicI32::new(0));

fn note_previous(action: &sigaction) {
    PREVIOUS.1.store(action.sa_flags, Ordering::SeqCst);
    PREVIOUS.0.store(action.sa_sigaction, Ordering::SeqCst);
}

/// Installs the handler, if this process has not done so yet. Returns whether it is in force for
/// this thread: the rest of the program may have replaced it, or have blocked the signal, and then
/// a fault would end the process.
pub(super) fn is_in_force() -> bool {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        if let Ok(mut previous) = current_action() {
            note_previous(&previous);
            // SAFETY: zeros are a valid value of this plain structure.
            let mut action: sigaction = unsafe { zeroed() };
            action.sa_sigaction = address(on_bus_error);
            // An earlier handler that leaves by a jump counts on its flags and mask.
            action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | previous.sa_flags & SA_NODEFER;
            action.sa_mask = previous.sa_mask;
            // SAFETY: the handler does only what a signal handler may, and the pointers are valid.
            if unsafe { sigaction(SIGBUS, &raw const action, &raw mut previous) } == 0 {
                note_previous(&previous);
            }
        }
    });
    current_action().is_ok_and(|action| action.sa_sigaction == address(on_bus_error)) && !is_blocked()
}

fn is_blocked() -> bool {
    // SAFETY: zeros are a valid value of this plain structure.
    let mut blocked: sigset_t = unsafe { zeroed() };
    // SAFETY: a null pointer changes nothing, and the others are valid.
    unsafe { pthread_sigmask(SIG_BLOCK, null(), &raw mut blocked) != 0 || sigismember(&raw const blocked, SIGBUS) != 0 }
}

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

fn address(handler: Handler) -> usize {
    handler as usize
}

fn current_action() -> io::Result<sigaction> {
    // SAFETY: zeros are a valid value of this plain structure.
    let mut action: sigaction = unsafe { zeroed() };
    // SAFETY: the pointers are valid, and a null pointer changes nothing.
    match unsafe { sigaction(SIGBUS, null(), &raw mut action) } {
        0 => Ok(action),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Fills `to` with the bytes at `offset` of a mapping. `false` if they could not be read; `to` may
/// then hold anything, and so may later copies from the mapping, which all return `false`.
///
/// # Safety
///
/// The bytes lie in the region, into which no Rust reference points, and which has no mark but
/// `broken`. The handler is in force.
#[inline]
pub(super) unsafe fn copy(region: &Region, offset: usize, to: &mut [u8], broken: &AtomicBool) -> bool {
    COPYING.with(|copying| {
        copying.broken.store(ptr::from_ref(broken).cast_mut(), Ordering::Relaxed);
        copying.start.store(region.start().addr(), Ordering::Relaxed);
        copying.len.store(region.len(), Ordering::Relaxed);
        // The handler runs in this thread: the compiler must not move the copy.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the caller promises that the bytes are mapped, and `to` is memory of another
        // kind. Somebody may write to the file meanwhile; the bytes are looked at only as a copy,
        // whose checksum is verified.
        unsafe { ptr::copy_nonoverlapping(region.start().add(offset), to.as_mut_ptr(), to.len()) };
        compiler_fence(Ordering::SeqCst);
        copying.len.store(0, Ordering::Relaxed);
    });
    // Not before the copy.
    fence(Ordering::Acquire);
    !broken.load(Ordering::Relaxed)
}

extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid pointer to a handler with `SA_SIGINFO`.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // Otherwise another process has sent it, and there is no address.
    let is_fault = code > 0;
    if !(is_fault && replace_mapping(address)) {
        forward(signal, is_fault, info, context);
    }
}

/// Puts zeros in the place of the mapping at `address`, if this thread copies from there. All of it
/// at once: one page at a time, a dying device could use up the mappings that a process may have.
fn replace_mapping(address: usize) -> bool {
    COPYING.with(|copying| {
        let (start, len) = (copying.start.load(Ordering::Relaxed), copying.len.load(Ordering::Relaxed));
        if address < start || address - start >= len {
            return false;
        }
        // SAFETY: `copy` has stored a reference that is valid until it returns.
        let Some(broken) = (unsafe { copying.broken.load(Ordering::Relaxed).as_ref() }) else { return false };
        broken.store(true, Ordering::SeqCst);
        let start = ptr::without_provenance_mut(start);
        // SAFETY: this is the region from which `copy` reads, into which no reference points. It is
        // one system call.
        unsafe { mmap_anonymous(start, len, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED) }.is_ok()
    })
}

/// Does what would have been done without this handler. It may never return: a program's handler
/// may leave by a jump.
fn forward(signal: c_int, is_fault: bool, info: *mut siginfo_t, context: *mut c_void) {
    let (handler, flags) = (PREVIOUS.0.load(Ordering::SeqCst), PREVIOUS.1.load(Ordering::SeqCst));
    // The other one may forward to this one.
    let frame = 0u8;
    let handler = if is_forwarded(info, &raw const frame) { SIG_DFL } else { handler };
    if flags & SA_RESETHAND != 0 {
        PREVIOUS.0.store(SIG_DFL, Ordering::SeqCst);
    }
    match handler {
        SIG_IGN if !is_fault => {}
        SIG_DFL | SIG_IGN => {
            // SAFETY: zeros are a valid value: the default action.
            let default: sigaction = unsafe { zeroed() };
            // SAFETY: the pointers are valid. The signal is delivered when this handler returns.
            unsafe {
                sigaction(signal, &raw const default, null_mut());
                libc::raise(signal);
            }
        }
        // SAFETY: whoever installed it stated by the flag which of the two it is.
        handler if flags & SA_SIGINFO != 0 => unsafe {
            std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
        },
        // SAFETY: as above.
        handler => unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal) },
    }
    // The frame stays while the other handler runs, which is therefore called, and not jumped to.
    black_box(&raw const frame);
}

/// Whether this signal has been forwarded before, and the other handler has called this one: then
/// `frame` is further down the stack. Another signal may be described at the same place, where the
/// last handler has left by a jump, but its frame is there, too.
fn is_forwarded(info: *mut siginfo_t, frame: *const u8) -> bool {
    let (info, stack) = (info.addr(), frame.addr());
    COPYING.with(|copying| {
        let [former_info, former_stack] = &copying.forwarded;
        let is_same = former_info.swap(info, Ordering::Relaxed) == info;
        let former_stack = former_stack.swap(stack, Ordering::Relaxed);
        is_same && stack < former_stack
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    use super::*;
    use crate::os::mapped::Region;

    /// Runs the test below in a process of its own.
    fn run(case: &str) -> ExitStatus {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "--ignored", "os::guard::tests::a_process_with_a_fault_elsewhere"]);
        test.env("TAMIS_FAULT", case).output().unwrap().status
    }

    #[test]
    fn a_signal_for_others_has_its_own_effect() {
        assert_eq!(run("fault, their handler").code(), Some(42));
        assert_eq!(run("fault, their old handler").code(), Some(43));
        assert_eq!(run("fault, no handler").signal(), Some(SIGBUS));
        assert_eq!(run("kill, no handler").signal(), Some(SIGBUS));
        assert_eq!(run("kill, ignored").code(), Some(0));
        assert_eq!(run("fault, ignored").signal(), Some(SIGBUS));
        assert_eq!(run("replaced").code(), Some(0));
        assert_eq!(run("fault, their handler that calls back").signal(), Some(SIGBUS));
        if cfg!(target_env = "gnu") {
            assert_eq!(run("faults, their handler that jumps").code(), Some(0));
        }
    }

    extern "C" fn exit_42(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: a signal handler may call it.
        unsafe { libc::_exit(42) }
    }

    extern "C" fn exit_43(_: c_int) {
        // SAFETY: as above.
        unsafe { libc::_exit(43) }
    }

    extern "C" fn call_back(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        on_bus_error(signal, info, context);
    }

    /// Where the program goes on after a fault.
    #[cfg(target_env = "gnu")]
    static mut PLACE: std::mem::MaybeUninit<libc::ucontext_t> = std::mem::MaybeUninit::uninit();

    #[cfg(target_env = "gnu")]
    extern "C" fn jump(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: the place has been noted, in a function that has not returned.
        unsafe { libc::setcontext((&raw const PLACE).cast()) };
    }

    /// Faults three times at one place.
    #[cfg(target_env = "gnu")]
    fn fault_and_jump() {
        static FAULTS: AtomicUsize = AtomicUsize::new(0);
        // SAFETY: no other thread uses the place.
        assert_eq!(unsafe { libc::getcontext((&raw mut PLACE).cast()) }, 0);
        if FAULTS.fetch_add(1, Ordering::SeqCst) < 3 {
            fault();
        }
    }

    /// Touches a page that is not in its file any more.
    fn fault() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1).unwrap();
        let region = Region::new(&file).unwrap();
        file.set_len(0).unwrap();
        // SAFETY: none; this faults.
        unsafe { region.start().read_volatile() };
    }

    fn install(handler: usize, flags: c_int) {
        // SAFETY: zeros are a valid value, and the handlers do only what they may.
        unsafe {
            let mut action: sigaction = zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler, flags);
            assert_eq!(sigaction(SIGBUS, &raw const action, null_mut()), 0);
        }
    }

    #[test]
    #[ignore = "part of another test, which runs it in a process of its own"]
    fn a_process_with_a_fault_elsewhere() {
        let case = std::env::var("TAMIS_FAULT").unwrap();
        let (cause, handler) = case.split_once(", ").unwrap_or((&case, ""));
        match handler {
            "their handler" => install(address(exit_42), SA_SIGINFO),
            "their handler that calls back" => install(address(call_back), SA_SIGINFO),
            #[cfg(target_env = "gnu")]
            "their handler that jumps" => install(address(jump), SA_SIGINFO),
            "their old handler" => install(exit_43 as extern "C" fn(c_int) as usize, 0),
            "ignored" => install(SIG_IGN, 0),
            _ => install(SIG_DFL, 0),
        }
        assert!(is_in_force());
        match cause {
            // SAFETY: a plain system call.
            "kill" => drop(unsafe { libc::raise(SIGBUS) }),
            "fault" => fault(),
            #[cfg(target_env = "gnu")]
            "faults" => fault_and_jump(),
            _ => {
                install(address(on_bus_error), SA_SIGINFO);
                assert!(is_in_force());
                // SAFETY: plain system calls.
                unsafe {
                    let mut all: sigset_t = zeroed();
                    libc::sigfillset(&raw mut all);
                    pthread_sigmask(SIG_BLOCK, &raw const all, null_mut());
                    assert!(!is_in_force());
                    pthread_sigmask(libc::SIG_UNBLOCK, &raw const all, null_mut());
                }
                assert!(is_in_force());
                install(SIG_DFL, 0);
                assert!(!is_in_force());
            }
        }
    }
}
