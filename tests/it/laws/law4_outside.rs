//! Law 4: what comes from outside (paths, links, files, clocks, lengths) is not trusted by name.

#[cfg(all(unix, not(miri)))]
mod directories;
#[cfg(all(unix, not(miri)))]
mod files;
mod refused;
