//! Works on a store's files without opening the store.
//!
//! - [`inspect`]: reads any file and describes it.
//! - [`repair`]: makes a damaged store one that opens.
//! - `fuzz`: the functions that fuzz targets call.

#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzz;
pub mod inspect;
pub(crate) mod repair;
