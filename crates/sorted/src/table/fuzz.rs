//! Fuzz targets for the decoders of tables and their parts, for the module `fuzz`.

use std::path::Path;
use std::sync::Arc;

use super::extras::Extras;
use super::footer::{BlockHandle, FOOTER_LEN, Footer};
use super::index::{Index, IndexBuilder};
use super::properties::{Properties, filter_hash};
use super::{PointRead, ReadFlags, Table, TableContext, TableFilters};
use crate::block;
use crate::error::{Result, expect_typed};
use crate::files::WRITE_LEN;
use crate::filter::{self, FilterPolicy, KeyHash, RangeFilterPolicy};
use crate::format::checksum::bound_crc;
use crate::format::coding::{Decoder, get_u32, low_byte, set_u32, set_u64};
use crate::format::deadline::DEADLINE_LEN;
use crate::format::header::{FILE_HEADER_LEN, FileHeader, IDENTITY_BIT, Magic, features};
use crate::format::key::{MAX_SEQNO, SeqNo, ValueKind, Window, head8};
use crate::iter::{InternalCursor, MergeCursor, Stamped};
use crate::table::FilterMode;
use crate::trace::Untraced;
use crate::vfs::{FileSystem, SimFileSystem};

const NUMBER: u64 = 12;
/// Where a file states its number.
const NUMBER_OFFSET: usize = 16;

pub(super) type TableEntry = (Vec<u8>, SeqNo, ValueKind, Vec<u8>);

/// Decodes the properties block of a table.
pub fn properties(_sealed: bool, data: &[u8]) -> bool {
    let Ok(properties) = Properties::decode(data) else { return false };
    let bytes = properties.encode();
    assert_eq!(Properties::decode(&bytes).as_ref(), Ok(&properties));
    assert!(bytes.len() <= data.len(), "tamis writes the shortest encoding");
    true
}

/// Decodes the footer of a table.
pub fn footer(sealed: bool, data: &[u8]) -> bool {
    const OFFSET: u64 = 10_000;
    let mut bytes = data.to_vec();
    if sealed {
        seal_footer(&mut bytes, NUMBER, OFFSET);
    }
    let Ok(footer) = Footer::decode(&bytes, NUMBER, OFFSET, Path::new("000012.sst")) else { return false };
    // Offset 0 means no filter, whatever the length.
    let has_filter = footer.filter.is_some();
    assert!(footer.encode() == bytes[..FOOTER_LEN] || !has_filter);
    assert_eq!(
        Footer::decode(&footer.encode(), NUMBER, OFFSET, Path::new("000012.sst")).expect("what was encoded is decoded"),
        footer
    );
    true
}

fn seal_footer(bytes: &mut [u8], number: u64, offset: u64) {
    let Some(bytes) = bytes.first_chunk_mut::<FOOTER_LEN>() else { return };
    set_u64(bytes, 0, number);
    set_u64(bytes, 8, offset + FOOTER_LEN as u64);
    let known = get_u32(&[bytes[68], bytes[69], bytes[70], bytes[71]]) & features::KNOWN;
    bytes[68..80].fill(0);
    set_u32(bytes, 68, known);
    set_u32(bytes, 80, 1);
    let crc = bound_crc(number, offset, &bytes[..84]);
    set_u32(bytes, 84, crc);
    bytes[88..].copy_from_slice(b"tamisftr");
}

/// Decodes the index block of a table.
pub fn index(sealed: bool, data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    if sealed {
        seal_index(&mut bytes);
    }
    let Ok(index) = Index::decode(&bytes, None) else { return false };
    assert!(index.memory() <= size_of::<Index>() + 4 * bytes.len() + 4096, "{} of {}", index.memory(), bytes.len());
    let separators: Vec<Vec<u8>> = (0..index.len()).map(|i| index.separator(i).to_vec()).collect();
    for key in separators.iter().map(Vec::as_slice).chain([&b""[..], b"key5", &[0xff; 30]]) {
        assert!(index.find(key, |near| assert!(near.end <= index.len())) <= index.len());
    }
    let mut builder = IndexBuilder::default();
    for (i, separator) in separators.iter().enumerate() {
        assert!(index.compare_separator(i, separator).is_eq());
        builder.begin(separator);
        builder.end(index.handle(i));
    }
    // What `Table::verify` checks in addition.
    let is_sound = separators.is_sorted() && (0..index.len()).all(|i| index.head_is_right(i));
    if is_sound {
        for separator in &separators {
            let expected = separators.partition_point(|before| before < separator);
            assert_eq!(index.find(separator, |_| ()), expected);
        }
        let again = builder.finish().expect("it fitted before");
        let again = Index::decode(&again, None).expect("what was encoded is decoded");
        assert!(
            (0..index.len())
                .all(|i| again.separator(i).to_vec() == separators[i] && again.handle(i) == index.handle(i))
        );
        assert_eq!(again.len(), index.len());
    }
    is_sound
}

/// Sets the heads to those of the separators, and makes the handles contiguous.
fn seal_index(bytes: &mut [u8]) {
    let mut header = Decoder::new(bytes);
    let (Ok(n), Ok(prefix_len)) = (header.u32(), header.u16()) else { return };
    let (n, prefix_len) = (n as usize, usize::from(prefix_len));
    let Some(rests) = n.checked_mul(24).and_then(|len| len.checked_add(12 + prefix_len)) else { return };
    if n == 0 || rests > bytes.len() {
        return;
    }
    let word = |bytes: &[u8], at: usize| Decoder::new(&bytes[at..]).u32().expect("within the block");
    let mut offset = FILE_HEADER_LEN as u64;
    for i in 0..n {
        let handle = 8 + 8 * n + 12 * i;
        set_u64(bytes, handle, offset);
        offset = offset.saturating_add(u64::from(word(bytes, handle + 8)) + 5);
        let ends = 8 + 20 * n + 4 * i;
        let (start, end) = (word(bytes, ends) as usize, word(bytes, ends + 4) as usize);
        if let Some(rest) = bytes[rests..].get(start..end) {
            let head = head8(rest);
            set_u64(bytes, 8 + 8 * i, head);
        }
    }
}

/// Overwrites the table's number and the filter's hash in encoded properties. Encoding them anew
/// would change lengths: a table states its origin relative to its number.
fn patch_properties(mut fields: &mut [u8], number: u64, filter_hash: u64) {
    while let [tag, len, rest @ ..] = fields {
        // No field before these two has a longer length.
        let len = usize::from(*len);
        if len > 127 || len > rest.len() {
            return;
        }
        let (content, rest) = rest.split_at_mut(len);
        match (*tag, content) {
            (1, [only]) if number < 128 => *only = low_byte(number),
            (20, hash) if hash.len() == 8 => set_u64(hash, 0, filter_hash),
            _ => {}
        }
        fields = rest;
    }
}

/// The extra blocks of a table whose properties are at `place`: they end where those begin.
fn extras_of(bytes: &[u8], footer: &Footer, place: Option<(usize, usize)>) -> Vec<(u64, BlockHandle)> {
    let Some((start, end)) = place else { return Vec::new() };
    let Ok(properties) = Properties::decode(&bytes[start..end]) else { return Vec::new() };
    let len: u64 = properties.extras.handles(0).map(|(_, handle)| handle.stored_len()).sum();
    let at = footer.properties.offset.checked_sub(len);
    at.map_or(Vec::new(), |at| properties.extras.handles(at).collect())
}

/// Sets the table's number to `number` and corrects all checksums and hashes, as far as its
/// structures can be found.
pub fn seal_table(bytes: &mut [u8], number: u64) {
    let Some(footer_offset) = bytes.len().checked_sub(FOOTER_LEN).filter(|&at| at >= FILE_HEADER_LEN) else { return };
    // An ingested table keeps its identity.
    let stated = bytes[NUMBER_OFFSET..].first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
    let number = if stated & IDENTITY_BIT == 0 { number } else { stated };
    let header = FileHeader { number, ..FileHeader::default() };
    bytes[..FILE_HEADER_LEN].copy_from_slice(&header.encode(Magic::Table));
    let path = Path::new("sealed");
    seal_footer(&mut bytes[footer_offset..], number, footer_offset as u64);
    let decoded = Footer::decode(&bytes[footer_offset..], number, footer_offset as u64, path);
    let Ok(footer) = decoded else { return };
    let find = |handle: BlockHandle| {
        let start = usize::try_from(handle.offset).ok()?;
        let end = start.checked_add(handle.len as usize)?;
        (start >= FILE_HEADER_LEN && end.checked_add(5)? <= footer_offset).then_some((start, end))
    };
    let seal_block = |bytes: &mut [u8], handle: BlockHandle, (start, end): (usize, usize)| {
        let crc = bound_crc(number, handle.offset, &bytes[start..=end]);
        set_u32(bytes, end + 1, crc);
    };
    let mut stated_hash = 0;
    if let Some((handle, (start, end))) = footer.filter.and_then(|handle| Some((handle, find(handle)?))) {
        filter::fuzz::seal(&mut bytes[start..end]);
        stated_hash = filter_hash(&bytes[start..end]);
        bytes[end] = 0;
        seal_block(bytes, handle, (start, end));
    }
    if let Some((start, end)) = find(footer.properties) {
        patch_properties(&mut bytes[start..end], number, stated_hash);
        bytes[end] = 0;
        seal_block(bytes, footer.properties, (start, end));
    }
    for (kind, handle) in extras_of(bytes, &footer, find(footer.properties)) {
        if let Some((start, end)) = find(handle) {
            if kind == Extras::RANGE_FILTER {
                filter::fuzz::seal_range_of(&mut bytes[start..end], number);
            }
            bytes[end] = 0;
            seal_block(bytes, handle, (start, end));
        }
    }
    let Some((start, end)) = find(footer.index) else { return };
    bytes[end] = 0;
    seal_block(bytes, footer.index, (start, end));
    let Ok(index) = Index::decode(&bytes[start..end], None) else { return };
    for handle in (0..index.len()).map(|i| index.handle(i)) {
        if let Some((start, end)) = find(handle) {
            if bytes[end] == 0 {
                block::fuzz::seal(&mut bytes[start..end], footer.seed);
            }
            seal_block(bytes, handle, (start, end));
        }
    }
}

/// Opens and reads a whole table.
pub fn table(sealed: bool, data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    if sealed {
        seal_table(&mut bytes, NUMBER);
    }
    let len = bytes.len();
    let fs = SimFileSystem::new();
    fs.create_dir(Path::new("/db")).expect("a directory");
    fs.write("/db/000012.sst", bytes).expect("a file");
    let context = Arc::new(TableContext::new(Arc::new(fs), Path::new("/db"), 1 << 16, 4));
    let Some(table) = expect_typed(Table::alone(context, NUMBER, true)) else { return false };
    let table = Arc::new(table);
    let verified = expect_typed(table.verify()).is_some();
    let (forward, backward) = (expect_typed(walk(&table, true, len)), expect_typed(walk(&table, false, len)));
    for key in [&b""[..], b"key", b"key0005", &[0xff; 20]] {
        let _ = expect_typed(get(&table, key, MAX_SEQNO, FilterMode::Shadow));
        let _ = expect_typed(get(&table, key, MAX_SEQNO, FilterMode::Use));
        let _ = expect_typed(table.cursor(true).seek(key, MAX_SEQNO));
    }
    for i in 0..table.block_count().unwrap_or_default() {
        let _ = expect_typed(table.describe_block(i));
    }
    if !verified {
        return false;
    }
    let (entries, mut backward) = (forward.expect("it verified"), backward.expect("it verified"));
    backward.reverse();
    assert_eq!(entries, backward);
    assert_eq!(entries.len() as u64, table.meta().entries);
    for (key, seqno, kind, value) in &entries {
        let found = get(&table, key, *seqno, FilterMode::Use).expect("it verified");
        let expected = match kind {
            // The value file is not there, and its value not wanted. The deadline stays.
            ValueKind::SeparatePut => (ValueKind::Put, Vec::new()),
            ValueKind::SeparateExpiringPut => (ValueKind::ExpiringPut, value[..DEADLINE_LEN].to_vec()),
            kind => (*kind, value.clone()),
        };
        assert_eq!(found, Some(expected), "{key:?} at {seqno}");
    }
    if table.holds_ranges() {
        // They get no filter. The target for stores loads them.
        return true;
    }
    let filters = TableFilters { ranges: RangeFilterPolicy::ORDERED, ..TableFilters::of_points(FilterPolicy::DEFAULT) };
    let copy = table
        .refilter(NUMBER + 1, filters, &crate::table::Origin::default(), WRITE_LEN, &|_| false)
        .expect("it verified");
    let copy = Table::new(Arc::clone(&table.fetcher().context), copy.expect("not cancelled"));
    copy.verify().expect("a copy of what verified");
    assert_eq!(walk(&Arc::new(copy), true, len).expect("it verified"), entries);
    true
}

fn get(table: &Table, key: &[u8], snapshot: SeqNo, filters: FilterMode) -> Result<Option<(ValueKind, Vec<u8>)>> {
    let seed = table.footer()?.seed;
    let mode = ReadFlags { filters, fill_cache: true, values: false };
    let read = PointRead { key, hash: KeyHash::new(seed, key), window: Window::up_to(snapshot), mode };
    table.fetcher().context.epoch().pin(|pin| {
        let hit = table.get(&read, table.expects_hit(), pin, &mut Untraced)?;
        Ok(hit.map(|hit| (hit.kind, hit.value.into_value().to_vec())))
    })
}

/// All entries in one direction. Asserts that there are no more than the file can hold, even if all
/// of it is compressed.
fn walk(table: &Arc<Table>, forward: bool, len: usize) -> Result<Vec<TableEntry>> {
    let mut entries = Vec::new();
    let mut cursor = table.cursor(true);
    if forward {
        cursor.seek_to_first()?
    } else {
        cursor.seek_to_last()?
    }
    while cursor.valid() {
        entries.push((cursor.key().to_vec(), cursor.seqno(), cursor.kind(), cursor.value().to_vec()));
        assert!(entries.len() <= 256 * len, "a cursor ends");
        if forward { cursor.next()? } else { cursor.prev()? }
    }
    Ok(entries)
}
