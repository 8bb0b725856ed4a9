//! A row of `scan`: a key and its value.

use std::time::SystemTime;

use serde_json::json;

use crate::args::Common;
use crate::failure::Result;
use crate::output::{Output, json_bytes};
use crate::text::utc_or_unix;

/// Prints a key, with its value if that is given.
pub(super) fn print(
    output: &mut Output,
    common: &Common,
    key: &[u8],
    value: Option<&[u8]>,
    deadline: Option<SystemTime>,
) -> Result<()> {
    let form = common.form();
    match (common.json(), value) {
        (false, Some(value)) => output.row(form, key, value),
        (false, None) => output.key(form, key),
        (true, value) => {
            let mut document = json!({ "key": json_bytes(form, key) });
            if let Some(value) = value {
                document["value"] = json_bytes(form, value);
                if let Some(deadline) = deadline {
                    document["deadline"] = json!(utc_or_unix(deadline));
                }
            }
            output.json(document)
        }
    }
}
