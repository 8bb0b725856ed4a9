//! A store's files without the store: looked at, repaired, forged.
//!
//! - [`inspect`]: any file, in words.
//! - [`repair`]: makes a damaged store one that opens.
//! - `fuzz`: what fuzz targets call.

#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzz;
pub mod inspect;
pub(crate) mod repair;
