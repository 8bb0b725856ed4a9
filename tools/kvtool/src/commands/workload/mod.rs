//! A workload whose answers are known: keys to load and to ask for, a store of them with several levels, and what asking takes.
//! Shared by `demo` and `bench`.

pub(crate) mod keys;
pub(crate) mod load;
pub(crate) mod measure;
pub(crate) mod process;

use serde_json::{Value, json};
use tamis::LevelStats;

/// What a level holds.
pub(crate) fn level_json(level: &LevelStats) -> Value {
    json!({
        "level": level.level,
        "tables": level.tables.len(),
        "entries": level.entries(),
        "bytes": level.size(),
    })
}
