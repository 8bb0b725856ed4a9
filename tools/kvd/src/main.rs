//! The program `kvd`.

use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

/// Exit status of a node that is no member of its cluster any more.
const REMOVED: u8 = 3;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("KVD_LOG").unwrap_or_else(|_| EnvFilter::new("warn,kvd=info,openraft=off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
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
