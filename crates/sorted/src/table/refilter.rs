//! [`Table::refilter`]: copies a table with new filters.
//!
//! Data blocks are copied in their stored form, compressed or not, to their old offsets, so that
//! the index is copied too. Only the checksums in their trailers are new, because they are bound to
//! the file's number. Each is computed after the old one has verified.
//!
//! The new checksums vouch for the data from here on. Therefore the copy checks every rule that
//! `verify` does, and the checksum of the whole file: only that detects a block that was replaced
//! together with its own checksum. Where a filter is damaged, which is a reason to copy, the file's
//! checksum proves nothing and is not checked.

use super::builder::TableFileWriter;
use super::fetch::ReadAhead;
use super::filters::{FiltersBuilder, TableFilters};
use super::properties::Properties;
use super::resident::TableFilter;
use super::verify::{TableChecker, check_file_checksum, checksum_range};
use super::{Ingested, Origin, Table, TableMeta};
use crate::error::Result;
use crate::format::checksum::FileChecksum;
use crate::format::filename::FileKind;
use crate::format::header::FILE_HEADER_LEN;

impl Table {
    /// Bytes of the table's filters. 0 if there are none, or if the table cannot be opened: then
    /// none are in memory.
    pub fn filter_bytes(&self) -> u64 {
        let Ok(resident) = self.resident() else { return 0 };
        let blocks = [resident.footer.filter, resident.range_filter.handle()];
        blocks.into_iter().flatten().map(|handle| u64::from(handle.len)).sum()
    }

    /// Whether the table has these filters, and can use them. Bits per key of the filter for
    /// look-ups may differ by `tolerance` thousandths. A range filter that the builder declined
    /// would be declined again.
    pub fn has_filters(&self, filters: TableFilters, tolerance: u32) -> Result<bool> {
        let TableFilters { points: policy, prefix, ranges } = filters;
        let resident = self.resident()?;
        let properties = &resident.properties;
        let usable = match &resident.filter {
            TableFilter::None => true,
            TableFilter::Usable(_) => resident.filter.prefixes() == prefix,
            TableFilter::Paged(filter) => filter.failure().is_none() && filter.outline.prefixes() == prefix,
            TableFilter::Degraded(_) => false,
        };
        let requested = properties.range_filter.map_or(0, |request| request.millibits);
        Ok(usable
            && resident.range_filter.failure().is_none()
            && requested == ranges.millibits()
            && properties.filter_policy == u64::from(policy.code())
            && properties.filter_millibits.abs_diff(policy.millibits()) <= tolerance)
    }

    /// Writes and syncs a copy of this table as table `number`, with these filters. The
    /// caller syncs the directory. `None` means cancelled. Unless the copy succeeds, its file is
    /// removed.
    pub fn refilter(
        &self,
        number: u64,
        filters: TableFilters,
        origin: &Origin,
        write_len: usize,
        cancelled: &dyn Fn(usize) -> bool,
    ) -> Result<Option<TableMeta>> {
        let context = &self.fetcher().context;
        let mut output = TableFileWriter::create(context.fs(), FileKind::Table(number).path(context.dir()), number)?;
        output.set_write_len(write_len);
        let result = self.copy_to(output, number, filters, origin, cancelled);
        if !matches!(result, Ok(Some(_))) {
            let _ = context.fs().remove(&FileKind::Table(number).path(context.dir()));
        }
        result
    }

    fn copy_to(
        &self,
        mut output: TableFileWriter<'_>,
        number: u64,
        filters: TableFilters,
        origin: &Origin,
        cancelled: &dyn Fn(usize) -> bool,
    ) -> Result<Option<TableMeta>> {
        let (fetcher, resident) = (self.fetcher(), self.resident()?);
        let mut properties = Properties { number, ..resident.properties.clone() }.without_numbers();
        let mut filters = FiltersBuilder::new(filters, resident.footer.seed, number);
        if !self.copy_blocks(&mut output, &mut filters, cancelled)? {
            return Ok(None);
        }
        let index = fetcher.meta_block(resident.footer.index)?;
        let origin = Origin { dead: fetcher.context.graveyard().numbers(), ..origin.clone() };
        let mut encoded = Vec::new();
        origin.encode(&mut encoded);
        let filters = output.finish_filters(filters, &mut properties)?;
        let meta = output.complete(filters, properties, &encoded, &index)?;
        let ingested = self.meta().ingested.map(|of| Ingested { identity: number, ..of });
        let Some(Ingested { seqno, .. }) = ingested else { return Ok(Some(meta)) };
        Ok(Some(TableMeta { ingested, smallest_seqno: seqno, largest_seqno: seqno, ..meta }))
    }

    /// Copies the data blocks and adds their keys to the filters. Verifies the table meanwhile.
    /// Returns false if cancelled.
    fn copy_blocks(
        &self,
        output: &mut TableFileWriter<'_>,
        filters: &mut FiltersBuilder,
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
                .check_block(resident, &index, i, &block, |key, hash| {
                    filters.add_key(key, hash);
                    filters.add_to_block(key);
                })
                .map_err(|malformed| self.malformed_block(i, malformed))?;
            filters.end_block(&index.separator(i).to_vec());
            let copied = output.copy_block(&stored, compression)?;
            assert_eq!(copied, handle, "a copied block keeps its offset");
        }
        checker.check_end(self)?;
        if !matches!(resident.filter, TableFilter::Degraded(_)) && resident.range_filter.failure().is_none() {
            checksum_range(&mut checksum, fetcher, data_end..fetcher.size)?;
            check_file_checksum(self, checksum.finish())?;
        }
        Ok(true)
    }
}
