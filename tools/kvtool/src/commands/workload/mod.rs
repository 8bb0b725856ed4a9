//! A workload with known answers: keys to load and look up, a store of them with several levels,
//! and the cost of the look-ups. Shared by `demo` and `bench`.

pub(crate) mod keys;
pub(crate) mod load;
pub(crate) mod measure;
pub(crate) mod process;

use serde_json::{Value, json};
use tamis::LevelStats;

/// A level's content, as JSON.
pub(crate) fn level_json(level: &LevelStats) -> Value {
    json!({
        "level": level.level,
        "tables": level.tables.len(),
        "entries": level.entries(),
        "bytes": level.size(),
    })
}
