//! [`Checkpoint`]: a copy of a store that shares its files by hard links.
//!
//! A checkpoint is an image (`image`) put into a directory (`copy`), with links in place of copies
//! of tables and value files where the file system has them. Backups (`tools/backup`) read the
//! image themselves, without space beside the store, and restore through [`StoreCopy`].

use std::path::Path;

use super::StoreCopy;
use super::image::{ImageFile, StoreImage};
use crate::error::Result;
use crate::format::filename::FileKind;
use crate::format::key::SeqNo;
use crate::report::progress::ProgressListener;

/// What [`Db::checkpoint`](crate::Db::checkpoint) has made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The sequence number of the last write in it.
    pub seqno: SeqNo,
    /// Of keyspaces without a log it has the writes up to this sequence number.
    pub flushed_seqno: SeqNo,
    /// Its files, all with their checksums.
    pub files: Vec<ImageFile>,
    /// How many of them share the original's content by a hard link. The others are copies.
    pub linked: usize,
}

impl StoreImage {
    /// Makes a store of the image in `dir`, in the store's file system.
    pub(crate) fn put_into(&self, dir: &Path, listener: &ProgressListener) -> Result<Checkpoint> {
        StoreCopy::make(self.store().tables.shared_fs(), dir, |copy| {
            let meter = listener.meter(self.files().map(|file| file.size).sum());
            let (mut files, mut linked) = (Vec::new(), 0);
            for file in self.files() {
                let may_link = self.keeps_names() && is_immutable(file.kind);
                let is_linked = may_link && copy.link(file.kind, &file.kind.path(self.store().dir()));
                let checksum = match file.checksum.filter(|_| is_linked) {
                    Some(checksum) => checksum,
                    None => self.copy_file(file, copy)?,
                };
                meter.add(file.size);
                linked += usize::from(is_linked);
                files.push(ImageFile { checksum: Some(checksum), ..file.clone() });
            }
            self.check_source()?;
            Ok(Checkpoint { seqno: self.seqno(), flushed_seqno: self.flushed_seqno(), files, linked })
        })
    }

    fn copy_file(&self, file: &ImageFile, copy: &StoreCopy) -> Result<u32> {
        self.store().check_space_in(copy.dir(), file.size)?;
        copy.write(file.kind, |put| self.read(file.kind, put))
    }
}

/// Whether nothing is ever added to a file of this kind.
fn is_immutable(kind: FileKind) -> bool {
    matches!(kind, FileKind::Table(_) | FileKind::Values(_))
}
