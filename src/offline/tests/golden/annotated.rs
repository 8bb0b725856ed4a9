//! Annotated hex of the files of a store.

use std::fmt::Write as _;

use crate::format::coding::Decoder;
use crate::inspect::*;

/// Annotated hex of a file, written from front to back.
struct Hex<'a> {
    bytes: &'a [u8],
    at: usize,
    text: String,
}

const SCALABLE_HEADER: [(usize, &str); 12] = [
    (4, "magic \"SBF1\""),
    (1, "format version"),
    (1, "growth"),
    (2, "zero"),
    (4, "number of filters"),
    (4, "zero"),
    (8, "keys of the first filter"),
    (8, "rate"),
    (8, "tightening"),
    (8, "length of all"),
    (8, "hash of the filters"),
    (8, "zero, checksum"),
];

const RANGE_HEADER: [(usize, &str); 13] = [
    (4, "magic \"RNG1\""),
    (1, "format version"),
    (1, "kind"),
    (2, "zero"),
    (8, "file number"),
    (8, "keys"),
    (4, "thousandths of bits per key"),
    (4, "blocks"),
    (4, "rate of fresh ranges in 10^-9"),
    (4, "rate of ranges near keys in 10^-9"),
    (8, "length"),
    (8, "hash of the codes"),
    (8, "zero, checksum"),
];

const FILTER_HEADER: [(usize, &str); 13] = [
    (4, "magic \"FLT1\""),
    (1, "format version"),
    (1, "policy"),
    (1, "hash function"),
    (1, "flags"),
    (8, "seed"),
    (8, "keys, 0 if not counted"),
    (4, "thousandths of bits per key"),
    (4, "probes, groups, prefix extractor"),
    (8, "probes per group"),
    (8, "lines"),
    (8, "hash of the lines"),
    (8, "rate in 10^-9, checksum"),
];

impl<'a> Hex<'a> {
    fn new(bytes: &'a [u8], what: &str) -> Hex<'a> {
        let text = format!("# {what}, format 1; `src/offline/tests/golden.rs` says how it is made.\n");
        Hex { bytes, at: 0, text }
    }

    /// Prints the next `len` bytes in rows, with the comment in the first row.
    fn put(&mut self, len: usize, comment: &str) {
        let end = self.at.saturating_add(len).min(self.bytes.len());
        let comment: String = comment.chars().take(56).collect();
        for (i, row) in self.bytes[self.at..end].chunks(20).enumerate() {
            let digits: String = row.iter().map(|byte| format!("{byte:02x}")).collect();
            let comment = if i == 0 { &comment } else { "" };
            let _ = writeln!(self.text, "{}", format!("{digits:<40} # {comment}").trim_end_matches([' ', '#']));
        }
        self.at = end;
    }

    fn to(&mut self, end: usize, comment: &str) {
        self.put(end.saturating_sub(self.at), comment);
    }

    fn title(&mut self, title: &str) {
        let _ = writeln!(self.text, "# {title}, at {}", self.at);
    }

    fn fields(&mut self, fields: &[(usize, &str)]) {
        fields.iter().for_each(|(len, comment)| self.put(*len, comment));
    }

    fn file_header(&mut self) {
        self.fields(&[
            (8, "magic"),
            (4, "format version"),
            (4, "required features"),
            (8, "file number"),
            (8, "first ordinal"),
            (8, "synced"),
            (8, "previous log"),
            (8, "its length"),
            (4, "zero"),
            (4, "checksum"),
        ]);
    }

    /// Prints a filter block that ends at `end` or with its lines.
    fn filter(&mut self, end: usize) {
        self.title("filter");
        let lines = self.bytes.get(self.at + 40..self.at + 48).and_then(|field| field.first_chunk());
        let lines = lines.map_or(0, |field| usize::try_from(u64::from_le_bytes(*field)).unwrap());
        self.fields(&FILTER_HEADER);
        self.to(end.min(self.at + 64 * lines), "lines");
    }

    fn tagged_fields(&mut self, end: usize) {
        while self.at < end {
            let mut fields = Decoder::new(&self.bytes[self.at..end]);
            let left = fields.remaining();
            let Ok(Some((tag, _))) = fields.field() else { return };
            self.put(left - fields.remaining(), &format!("tag {tag}"));
        }
    }
}

/// Annotated hex of a filter without a store.
pub(super) fn annotated_filter(name: &str, bytes: &[u8]) -> String {
    let mut hex = Hex::new(bytes, name);
    if name == "words.scalable" {
        hex.fields(&SCALABLE_HEADER);
    }
    if name == "words.ordered" {
        hex.fields(&RANGE_HEADER);
        hex.to(bytes.len(), "separators, codes");
    }
    while hex.at < bytes.len() {
        hex.filter(usize::MAX);
    }
    hex.text
}

pub(super) fn annotated(inspector: &Inspector, file: &StoreFile, bytes: &[u8]) -> String {
    let mut hex = Hex::new(bytes, &file.kind.name());
    match file.kind {
        FileKind::Wal(_) | FileKind::Manifest(_) => annotate_log(&mut hex, inspector, file),
        FileKind::Table(_) => annotate_table(&mut hex, &inspector.table(&file.path).unwrap()),
        FileKind::Values(_) => {
            hex.file_header();
            for record in inspector.values(&file.path).unwrap().map(|record| record.unwrap()) {
                assert_eq!(record.offset, hex.at as u64);
                let (end, key) = (hex.at + usize::try_from(record.len).unwrap(), record.key.escape_ascii());
                hex.put(4, "checksum of the record");
                hex.put(end - hex.at, &format!("length, keyspace, key \"{key}\", compression, value"));
            }
            hex.fields(&[(8, "number of records"), (8, "file length"), (4, "keyspace"), (4, "checksum"), (8, "magic")]);
        }
        _ => {
            let lines: Vec<usize> = bytes.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::len).collect();
            lines.into_iter().for_each(|len| {
                let line = String::from_utf8_lossy(&bytes[hex.at..hex.at + len]).trim_end().to_owned();
                hex.put(len, &line);
            });
        }
    }
    hex.to(bytes.len(), "zeros, prepared for more records");
    hex.text
}

fn annotate_log(hex: &mut Hex<'_>, inspector: &Inspector, file: &StoreFile) {
    hex.file_header();
    let mut log = inspector.log(&file.path).unwrap();
    let mut records = Vec::new();
    while let Some(record) = log.next_record().unwrap() {
        records.push(record);
    }
    for (i, record) in records.iter().enumerate() {
        let payload = usize::try_from(record.payload_len).unwrap();
        let start = usize::try_from(record.offset).unwrap();
        assert_eq!(start, hex.at);
        hex.title(&format!(
            "record {i}, first ordinal {}, count {}, synced {}",
            record.first, record.count, record.synced
        ));
        hex.put(4, "checksum of the header");
        hex.put(4, "checksum of the payload");
        let mut fields = Decoder::new(&hex.bytes[hex.at..]);
        let left = fields.remaining();
        let stated = fields.varint().unwrap() & 1 == 1;
        fields.varint().unwrap();
        hex.put(left - fields.remaining(), "count and statement, length of the payload");
        if stated {
            hex.fields(&[(8, "file number"), (8, "synced")]);
        }
        let end = hex.at + payload;
        match &record.content {
            Content::Edit(_) => hex.tagged_fields(end),
            Content::Batch(operations) => {
                let keys: Vec<_> = operations.iter().map(|op| op.key.escape_ascii().to_string()).collect();
                hex.put(payload, &format!("operations on {keys:?}"));
            }
            _ => {}
        }
        assert_eq!(hex.at, end);
    }
}

fn annotate_table(hex: &mut Hex<'_>, table: &TableFile) {
    let properties = table.properties();
    let place = |handle: Handle| {
        let start = usize::try_from(handle.offset).unwrap();
        (start, start + handle.len as usize)
    };
    hex.file_header();
    for (i, block) in table.blocks().map(Result::unwrap).enumerate() {
        let (start, end) = place(block.handle);
        hex.to(start, "zeros up to a page");
        hex.title(&format!("data block {i} of {} entries", block.entries));
        hex.to(end, &format!("{:?}", block.compression));
        hex.put(5, "trailer");
    }
    if let Some(filter) = properties.filter_block {
        hex.filter(place(filter).1);
        hex.put(5, "trailer");
    }
    if let Some(filter) = properties.range_filter_block {
        let end = place(filter).1;
        hex.title("range filter");
        hex.fields(&RANGE_HEADER);
        hex.to(end, "codes");
        hex.put(5, "trailer");
    }
    hex.title("properties");
    hex.tagged_fields(place(properties.properties_block).1);
    hex.put(5, "trailer");
    hex.title("index");
    hex.to(place(properties.index_block).1, "");
    hex.put(5, "trailer");
    hex.title("footer");
    hex.fields(&[
        (8, "file number"),
        (8, "file size"),
        (8, "entries"),
        (8, "hash seed"),
        (12, "index"),
        (12, "filter"),
        (12, "properties"),
        (12, "zero"),
        (4, "format version"),
        (4, "checksum"),
        (8, "magic \"tamisftr\""),
    ]);
}
