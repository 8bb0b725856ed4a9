//! `checkpoint`: a copy of a store that shares its tables by hard links.

use serde_json::json;
use tamis::ImageFile;

use super::progress::{Unit, bar};
use super::store::{close, open_to_copy};
use crate::args::{Checkpoint, Common};
use crate::failure::Result;
use crate::output::{Output, say};
use crate::text::{counted, size};

pub(crate) fn run(common: &Common, args: Checkpoint) -> Result<()> {
    let db = open_to_copy(&args.db, common)?;
    let bar = bar(Unit::Bytes, Some(0));
    let made = db.checkpoint_with(&args.dir, &bar.listener())?;
    drop(bar);
    close(db, common)?;
    let bytes = made.files.iter().map(|file| file.size).sum();
    if common.json() {
        let mut output = Output::new();
        output.json(json!({
            "seqno": made.seqno,
            "flushed_seqno": made.flushed_seqno,
            "linked": made.linked,
            "files": made.files.iter().map(file_json).collect::<Vec<_>>(),
        }))?;
        output.finish()?;
    }
    say(format_args!(
        "{} as of number {}: {}, {}, {} of them linked",
        args.dir.display(),
        made.seqno,
        size(bytes),
        counted(made.files.len() as u64, "file"),
        made.linked
    ));
    Ok(())
}

fn file_json(file: &ImageFile) -> serde_json::Value {
    json!({
        "name": file.kind.name(),
        "bytes": file.size,
        "checksum": file.checksum.map(|checksum| format!("{checksum:08x}")),
    })
}
