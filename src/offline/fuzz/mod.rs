//! The functions that fuzz targets call: one for each decoder of bytes from a disk.
//!
//! Compiled under `cfg(fuzzing)`, which `cargo fuzz` sets, and in tests, which replay the seeds and
//! mutations of them (CONTRIBUTING.md has the commands). Not part of the library's interface.
//!
//! A function takes arbitrary bytes. If the first byte is even, checksums, hashes and other
//! redundant bytes are corrected, so that the rest is decoded rather than refused at once. The
//! function panics if a decoder panics or breaks a promise:
//!
//! - accepted input, encoded and decoded again, is equal;
//! - a cursor ends, both directions agree, and look-ups find what cursors show;
//! - input in which `verify` finds no fault is read without an error;
//! - an error is one that damage explains.
//!
//! It returns whether the bytes were accepted as sound, so that tests can check that mutations
//! yield both outcomes.
//!
//! Memory is bounded by a test that counts allocations, time by the length of the input.

mod logs;
mod store;
// The seeds hold tables with LZ4.
#[cfg(test)]
#[cfg(feature = "lz4")]
mod tests;

use crate::filter;
use crate::format::coding::get_u32;
use crate::sorted::{block, table};

/// A fuzz target; the flag says whether to correct checksums.
type FuzzTarget = fn(bool, &[u8]) -> bool;

/// All targets by name.
pub const TARGETS: [(&str, FuzzTarget); 19] = [
    ("current", logs::current),
    ("log_records", logs::log_records),
    ("log_replay", logs::log_replay),
    ("batch", logs::batch),
    ("manifest_edit", logs::manifest_edit),
    ("manifest", logs::manifest),
    ("data_block", block::fuzz::data_block),
    ("index", table::fuzz::index),
    ("properties", table::fuzz::properties),
    ("footer", table::fuzz::footer),
    ("filter_block", filter::fuzz::filter_block),
    ("bloom_filter", filter::fuzz::bloom_filter),
    ("fuse_filter", filter::fuzz::fuse_filter),
    ("scalable_filter", filter::fuzz::scalable_filter),
    ("range_filter", filter::fuzz::range_filter),
    ("ordered_filter", filter::fuzz::ordered_filter),
    ("table", table::fuzz::table),
    ("store", store::store),
    ("repair", store::repair),
];

/// Runs the target called `name` on `data`; returns whether `data` was accepted as sound.
///
/// # Panics
///
/// If there is no such target, or a decoder breaks a promise.
pub fn run(name: &str, data: &[u8]) -> bool {
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    let (_, decoder) = target.unwrap_or_else(|| panic!("there is no fuzz target {name}"));
    data.split_first().is_some_and(|(choice, data)| decoder(choice % 2 == 0, data))
}

/// Splits an archive into its files. Each file follows its kind (one byte), number (one byte) and
/// length (four bytes). The last file may be cut short.
fn files(mut data: &[u8]) -> Vec<(u8, u8, &[u8])> {
    let mut files = Vec::new();
    while let Some((&[kind, number, l0, l1, l2, l3], rest)) = data.split_first_chunk() {
        let len = get_u32(&[l0, l1, l2, l3]) as usize;
        let (file, rest) = rest.split_at(len.min(rest.len()));
        files.push((kind, number, file));
        data = rest;
    }
    files
}
