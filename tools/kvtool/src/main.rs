//! Command line of the tamis key-value store.

fn main() {}
