//! [`Table::refilter`]: copies a table with a new filter.
//!
//! Data blocks are copied in their stored form, compressed or not, to their old offsets, so that
//! the index is copied too. Only the checksums in their trailers are new, because they are bound to
//! the file's number. Each is computed after the old one has verified.
//!
//! The new checksums vouch for the data from here on. Therefore the copy checks every rule that
//! `verify` does, and the checksum of the whole file: only that detects a block that was replaced
//! together with its own checksum. Where the filter is damaged, which is a reason to copy, the
//! file's checksum proves nothing and is not checked.

use super::builder::TableFileWriter;
use super::fetch::ReadAhead;
use super::properties::Properties;
use super::resident::TableFilter;
use super::verify::{TableChecker, check_file_checksum, checksum_range};
use super::{Ingested, Origin, Table, TableMeta};
use crate::error::Result;
use crate::filter::FilterBuilder;
use crate::filter::{FilterPolicy, PrefixExtractor};
use crate::format::checksum::FileChecksum;
use crate::format::filename::FileKind;
use crate::format::header::FILE_HEADER_LEN;

impl Table {
    /// Bytes of the table's filter. 0 if there is none, or if the table cannot be opened: then none
    /// is in memory.
    pub fn filter_bytes(&self) -> u64 {
        let filter = self.resident().ok().and_then(|resident| resident.footer.filter);
        filter.map_or(0, |handle| handle.len.into())
    }

    /// Whether the table has the filter that `policy` and `prefix` call for, and can use it. Bits
    /// per key may differ by `tolerance` thousandths.
    pub fn has_filter(&self, policy: FilterPolicy, prefix: Option<PrefixExtractor>, tolerance: u32) -> Result<bool> {
        let resident = self.resident()?;
        let properties = &resident.properties;
        let usable = match &resident.filter {
            TableFilter::None => true,
            TableFilter::Usable(_) => resident.filter.prefixes() == prefix,
            TableFilter::Paged(filter) => filter.failure().is_none() && filter.outline.prefixes() == prefix,
            TableFilter::Degraded(_) => false,
        };
        Ok(usable
            && properties.filter_policy == u64::from(policy.code())
            && properties.filter_millibits.abs_diff(policy.millibits()) <= tolerance)
    }

    /// Writes and syncs a copy of this table as table `number`, with a filter by `policy` and
    /// `prefix`. The caller syncs the directory. `None` means cancelled. Unless the copy succeeds,
    /// its file is removed.
    pub fn refilter(
        &self,
        number: u64,
        policy: FilterPolicy,
        prefix: Option<PrefixExtractor>,
        origin: &Origin,
        write_len: usize,
        cancelled: &dyn Fn(usize) -> bool,
    ) -> Result<Option<TableMeta>> {
        let context = &self.fetcher().context;
        let mut output = TableFileWriter::create(context.fs(), FileKind::Table(number).path(context.dir()), number)?;
        output.set_write_len(write_len);
        let result = self.copy_to(output, number, policy, prefix, origin, cancelled);
        if !matches!(result, Ok(Some(_))) {
            let _ = context.fs().remove(&FileKind::Table(number).path(context.dir()));
        }
        result
    }

    fn copy_to(
        &self,
        mut output: TableFileWriter<'_>,
        number: u64,
        policy: FilterPolicy,
        prefix: Option<PrefixExtractor>,
        origin: &Origin,
        cancelled: &dyn Fn(usize) -> bool,
    ) -> Result<Option<TableMeta>> {
        let (fetcher, resident) = (self.fetcher(), self.resident()?);
        let properties = Properties {
            number,
            filter_policy: policy.code().into(),
            filter_millibits: policy.millibits(),
            filter_keys: 0,
            filter_hash: None,
            ..resident.properties.clone()
        }
        .without_numbers();
        let mut filter = FilterBuilder::new(policy, resident.footer.seed).with_prefixes(prefix);
        if !self.copy_blocks(&mut output, &mut filter, cancelled)? {
            return Ok(None);
        }
        let index = fetcher.meta_block(resident.footer.index)?;
        let origin = Origin { dead: fetcher.context.graveyard().numbers(), ..origin.clone() };
        let mut encoded = Vec::new();
        origin.encode(&mut encoded);
        let meta = output.complete(filter, properties, &encoded, &index)?;
        let ingested = self.meta().ingested.map(|of| Ingested { identity: number, ..of });
        let Some(Ingested { seqno, .. }) = ingested else { return Ok(Some(meta)) };
        Ok(Some(TableMeta { ingested, smallest_seqno: seqno, largest_seqno: seqno, ..meta }))
    }

    /// Copies the data blocks and adds their keys to the filter. Verifies the table meanwhile.
    /// Returns false if cancelled.
    fn copy_blocks(
        &self,
        output: &mut TableFileWriter<'_>,
        filter: &mut FilterBuilder,
        cancelled: &dyn Fn(usize) -> bool,
    ) -> Result<bool> {
        let (fetcher, resident) = (self.fetcher(), self.resident()?);
        let largest_block = resident.properties.largest_block;
        let index = resident.whole_index(fetcher)?;
        let mut checker = TableChecker::default();
        let data_end = index.data_end();
        let mut checksum = FileChecksum::default();
        checksum_range(&mut checksum, fetcher, 0..FILE_HEADER_LEN as u64)?;
        let mut ahead = ReadAhead::for_whole_table(data_end);
        for i in 0..index.len() {
            let handle = index.handle(i);
            // Read and written.
            let bytes = usize::try_from(2 * handle.stored_len()).unwrap_or(usize::MAX);
            if cancelled(bytes) {
                return Ok(false);
            }
            ahead.step_to(i);
            checksum.update(output.pad_to(handle.offset));
            let (compression, stored, block) =
                fetcher.data_block_to_copy(handle, largest_block, &mut ahead, &mut checksum)?;
            checker
                .check_block(resident, &index, i, &block, |key, hash| filter.add_key(key, hash))
                .map_err(|malformed| self.malformed_block(i, malformed))?;
            let copied = output.copy_block(&stored, compression)?;
            assert_eq!(copied, handle, "a copied block keeps its offset");
        }
        checker.check_end(self)?;
        if !matches!(resident.filter, TableFilter::Degraded(_)) {
            checksum_range(&mut checksum, fetcher, data_end..fetcher.size)?;
            check_file_checksum(self, checksum.finish())?;
        }
        Ok(true)
    }
}
