//! [`Repository::restore`]: makes a store of a generation.

use std::path::Path;
use std::sync::Arc;

use tamis::{Result, StoreCopy};
use xxhash_rust::xxh3::Xxh3;

use crate::Repository;
use crate::backup::compare;
use crate::record::Generation;

impl Repository {
    /// Makes a store of a generation in `dir`, which must be absent or empty, or hold a restore
    /// that was interrupted. When this returns, the store survives a power cut. Until then, opening
    /// it fails with [`Error::Incomplete`](tamis::Error::Incomplete).
    ///
    /// Every file is compared with its hash. If one differs, the restore fails with
    /// [`Error::Corruption`](tamis::Error::Corruption), and leaves nothing.
    pub fn restore(&self, number: u64, dir: impl AsRef<Path>) -> Result<Generation> {
        let generation = self.generation(number)?;
        StoreCopy::make(Arc::clone(&self.fs), dir, |copy| self.put_files(&generation, copy))?;
        Ok(generation)
    }

    fn put_files(&self, generation: &Generation, copy: &StoreCopy) -> Result<()> {
        for file in &generation.files {
            copy.write(file.kind, |put| {
                let (mut hash, mut len) = (Xxh3::new(), 0);
                self.storage.read(&file.name, &mut |bytes| {
                    hash.update(bytes);
                    len += bytes.len() as u64;
                    put(bytes)
                })?;
                compare(&*self.storage, file, (hash.digest(), len))
            })?;
        }
        Ok(())
    }
}
