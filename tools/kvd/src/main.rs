//! The program `kvd`.

use std::process::ExitCode;

/// Exit status of a node that is no member of its cluster any more.
const REMOVED: u8 = 3;

/// Has the allocator map each long buffer on its own, and so give it back to the system when it is
/// freed. By default, glibc learns from the first long ones to keep those that follow, up to 64 MiB
/// in each thread: after 72 replies of 8 MiB, 262 MB stayed, and now 14 MB.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_memory_back() {
    const LONG: libc::c_int = 128 << 10;
    const KEPT: libc::c_int = 1 << 20;
    // SAFETY: the call sets numbers of the allocator, and no other thread runs yet. What it refuses
    // stays as it was.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LONG);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_memory_back() {}

fn main() -> ExitCode {
    give_memory_back();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("kvd: cannot start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(kvd::cli::run(std::env::args_os().collect())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvd: {error}");
            // A node that was removed must not be started again.
            if matches!(error, kvd::Error::Removed(_)) { ExitCode::from(REMOVED) } else { ExitCode::FAILURE }
        }
    }
}
