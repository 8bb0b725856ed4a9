//! What tools ask of a table beyond look-ups: its footer, and its data blocks one by one.

use std::path::Path;
use std::sync::Arc;

use super::fetch::{Fetcher, ReadHint};
use super::footer::{BlockHandle, FOOTER_LEN, Footer};
use super::properties::Properties;
use super::reader::Counting;
use super::verify::file_checksum;
use super::{Ingested, Origin, Table, TableContext};
use crate::block::BlockCursor;
use crate::error::{Error, IoContext, Result};
use crate::filter::{NoRangeFilter, RangeBuilder, RangeFilterPolicy, RangeFilterState};
use crate::format::filename::FileKind;
use crate::format::header::{FILE_HEADER_LEN, FileHeader, IDENTITY_BIT, Magic};
use crate::vfs::FileSystem;

impl Ingested {
    /// What the file of table `number` itself tells of an ingested one: its identity. `None` if the
    /// file has the number in its name, or no sound header.
    pub(super) fn found(context: &TableContext, number: u64) -> Result<Option<Ingested>> {
        let identity = stated_number(context.fs(), &FileKind::Table(number).path(context.dir()))?;
        let identity = identity.filter(|identity| identity & IDENTITY_BIT != 0);
        Ok(identity.map(Ingested::unknown))
    }
}

/// The number that the file at `path` states, if it begins as a table does: that of a store's
/// table, or an [identity](IDENTITY_BIT).
pub fn stated_number(fs: &dyn FileSystem, path: &Path) -> Result<Option<u64>> {
    let mut header = [0; FILE_HEADER_LEN];
    let read = fs.open(path).and_then(|file| file.read_at(&mut header, 0)).during("open", path)?;
    Ok(FileHeader::sound_number(&header[..read], Magic::Table))
}

/// Description of one data block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    pub handle: BlockHandle,
    /// Code of the compression in the trailer.
    pub compression: u8,
    /// Bytes before compression.
    pub raw_len: u64,
    pub entries: u64,
    /// Length of the common prefix of all keys.
    pub prefix_len: u64,
    pub first_key: Vec<u8>,
    pub last_key: Vec<u8>,
}

impl Table {
    /// Opens a table without a manifest: its properties stand in for the manifest's record. No
    /// record then vouches for the file's checksum. It is computed if `checksum` is set, and 0
    /// otherwise.
    pub fn alone(context: Arc<TableContext>, number: u64, checksum: bool) -> Result<Table> {
        let path = FileKind::Table(number).path(context.dir());
        let size = context.fs().open(&path).and_then(|file| file.len()).during("open", &path)?;
        let ingested = Ingested::found(&context, number)?;
        let identity = Ingested::identity_of(ingested, number);
        let fetcher = Fetcher::new(Arc::clone(&context), number, size, ingested);
        let footer_offset = size.saturating_sub(FOOTER_LEN as u64);
        // The footer of a later version may be anything; the header states the version.
        if let Err(later @ Error::Unsupported { .. }) =
            FileHeader::decode(&fetcher.bytes(0, FILE_HEADER_LEN as u64)?, Magic::Table, identity, &path)
        {
            return Err(later);
        }
        let footer = Footer::decode(&fetcher.bytes(footer_offset, FOOTER_LEN as u64)?, identity, footer_offset, &path)?;
        let properties = Properties::decode(&fetcher.meta_block(footer.properties)?)
            .map_err(|malformed| fetcher.corrupt(footer.properties.offset, malformed))?;
        let checksum = if checksum { file_checksum(&fetcher)? } else { 0 };
        let holds_ranges = properties.ranges > 0;
        Ok(Table::new(context, properties.into_meta(number, size, checksum)).of_ranges(holds_ranges))
    }

    /// Whether the file has the length and checksum that the manifest records. Decodes nothing.
    pub fn is_as_written(&self) -> Result<bool> {
        let (meta, fetcher) = (self.meta(), self.fetcher());
        Ok(fetcher.file.len()? == meta.size && file_checksum(fetcher)? == meta.checksum)
    }

    pub fn context(&self) -> &Arc<TableContext> {
        &self.fetcher().context
    }

    /// Where the table comes from, as it states.
    pub fn origin(&self) -> Result<Origin> {
        let handle = self.resident()?.footer.properties;
        let origin = Origin::decode(&self.fetcher().meta_block(handle)?);
        origin.map_err(|malformed| self.fetcher().corrupt(handle.offset, malformed))
    }

    /// State of the range filter.
    pub fn range_filter_state(&self) -> Result<RangeFilterState> {
        let resident = self.resident()?;
        Ok(resident.range_filter.state(&resident.properties))
    }

    /// State of the range filter, if the table is open.
    pub fn known_range_filter_state(&self) -> Option<RangeFilterState> {
        self.opened().map(|resident| resident.range_filter.state(&resident.properties))
    }

    /// The block of the range filter.
    pub fn range_filter_block(&self) -> Result<Option<BlockHandle>> {
        Ok(self.resident()?.range_filter.handle())
    }

    /// What range filters of each of these policies would be like. Reads the table, builds all of
    /// them in memory, and keeps none.
    pub fn range_filters_of(self: &Arc<Table>, policies: &[RangeFilterPolicy]) -> Result<Vec<RangeFilterState>> {
        let resident = self.resident()?;
        let index = resident.whole_index(self.fetcher())?;
        let builder = |policy: &RangeFilterPolicy| RangeBuilder::new(policy.bits_per_key(), resident.properties.number);
        let mut builders: Vec<_> =
            policies.iter().map(|policy| (policy.millibits() > 0).then(|| builder(policy))).collect();
        let mut cursor = self.cursor(false).uncounted();
        for i in 0..index.len() {
            cursor.visit_block(i, |entry| builders.iter_mut().flatten().for_each(|builder| builder.add(entry.key)))?;
            let separator = index.separator(i).to_vec();
            builders.iter_mut().flatten().for_each(|builder| builder.end_block(&separator));
        }
        let state = |builder: Option<RangeBuilder>| match builder.map(RangeBuilder::finish) {
            None => Ok(RangeFilterState::None),
            Some(Ok(block)) => Ok(RangeFilterState::Usable(block.info)),
            Some(Err(NoRangeFilter::Rates(rates))) => Ok(RangeFilterState::Declined(rates)),
            Some(Err(reason)) => Err(self.fetcher().corrupt(0, format_args!("no range filter: {reason:?}"))),
        };
        builders.into_iter().map(state).collect()
    }

    pub fn footer(&self) -> Result<Footer> {
        Ok(self.resident()?.footer)
    }

    /// Number of data blocks.
    pub fn block_count(&self) -> Result<usize> {
        Ok(self.resident()?.index.len())
    }

    /// Describes the data block at position `i`, which must be less than [`Table::block_count`].
    pub fn describe_block(&self, i: usize) -> Result<BlockInfo> {
        let resident = self.resident()?;
        let handle = resident.index.handle(self.fetcher(), i)?;
        let block = self.read_block(resident, i, false, Counting::Uncounted, ReadHint::None)?;
        let trailer = self.fetcher().bytes(handle.offset + u64::from(handle.len), 1)?;
        let mut cursor = BlockCursor::new(block.clone());
        let malformed = |malformed| self.malformed_block(i, malformed);
        cursor.seek_to_first().map_err(malformed)?;
        let first_key = cursor.key().to_vec();
        cursor.seek_to_last().map_err(malformed)?;
        let described = block.block();
        Ok(BlockInfo {
            handle,
            compression: trailer.first().copied().unwrap_or_default(),
            raw_len: described.bytes().len() as u64,
            entries: described.len() as u64,
            prefix_len: described.prefix().len() as u64,
            first_key,
            last_key: cursor.key().to_vec(),
        })
    }
}
