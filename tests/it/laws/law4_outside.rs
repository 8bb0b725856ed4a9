//! Law 4: what comes from outside (paths, links, files, clocks, lengths) is not trusted by name.
#![allow(clippy::disallowed_methods, reason = "links and files are made as other programs make them")]

#[cfg(all(unix, not(miri)))]
mod directories;
#[cfg(all(unix, not(miri)))]
mod files;
mod refused;
