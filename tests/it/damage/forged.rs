//! Damage that checksums do not find: bytes are changed, and every checksum over them is made to
//! match.
//!
//! Reads may then return wrong data, but without a panic, an endless loop, or an allocation by a
//! forged length. The checksum of the whole file, in the manifest, reveals forged tables.

use super::*;

/// The checksum that docs/FORMAT.md calls bound.
fn bound_crc(number: u64, offset: usize, bytes: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(&(offset as u64).to_le_bytes());
    hasher.update(bytes);
    hasher.finalize().to_le_bytes()
}

/// The number in a file's name.
fn number_of(path: &Path) -> u64 {
    let name = path.file_name().unwrap().to_str().unwrap();
    name.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// The varint at `at`, and the offset of its end.
fn varint_at(bytes: &[u8], at: usize) -> (usize, usize) {
    let end = at + 1 + bytes[at..].iter().take_while(|&&byte| byte >= 0x80).count();
    let value = bytes[at..end].iter().rev().fold(0, |value, byte| value << 7 | usize::from(byte & 0x7f));
    (value, end)
}

fn u64_at(bytes: &[u8], at: usize) -> usize {
    usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap()
}

/// A checked part of a file, and its checksum.
struct CheckedPart {
    checked: Range<usize>,
    crc_at: usize,
    /// The offset to which the checksum is bound, if it is bound.
    bound_at: Option<usize>,
}

impl CheckedPart {
    fn seal(&self, number: u64, bytes: &mut [u8]) {
        let checked = &bytes[self.checked.clone()];
        let crc = match self.bound_at {
            Some(at) => bound_crc(number, at, checked),
            None => crc32fast::hash(checked).to_le_bytes(),
        };
        bytes[self.crc_at..self.crc_at + 4].copy_from_slice(&crc);
    }
}

/// Header, blocks and footer of a table.
fn parts_of_table(bytes: &[u8]) -> Vec<CheckedPart> {
    let footer = bytes.len() - 96;
    let block = |handle: &[u8]| {
        let (start, len) = (u64_at(handle, 0), u32_at(handle, 8));
        CheckedPart { checked: start..start + len + 1, crc_at: start + len + 1, bound_at: Some(start) }
    };
    let index = block(&bytes[footer + 32..]);
    let entries = &bytes[index.checked.clone()];
    let n = u32_at(entries, 0);
    let mut parts: Vec<CheckedPart> = (0..n).map(|i| block(&entries[8 + 8 * n + 12 * i..])).collect();
    parts.extend([footer + 44, footer + 56].map(|at| block(&bytes[at..])));
    parts.push(index);
    parts.push(CheckedPart { checked: footer..footer + 84, crc_at: footer + 84, bound_at: Some(footer) });
    parts.push(CheckedPart { checked: 0..60, crc_at: 60, bound_at: Some(0) });
    parts
}

/// Header, and payload and header of each record. The payload comes first, since the header covers
/// its checksum.
fn parts_of_log(bytes: &[u8]) -> Vec<Vec<CheckedPart>> {
    let mut parts = vec![vec![CheckedPart { checked: 0..60, crc_at: 60, bound_at: Some(0) }]];
    let mut at = 64;
    while at < bytes.len() {
        let (marked_count, len_at) = varint_at(bytes, at + 8);
        let (payload_len, header_end) = varint_at(bytes, len_at);
        let payload = header_end + if marked_count % 2 == 1 { 16 } else { 0 };
        let end = payload + payload_len;
        parts.push(vec![
            CheckedPart { checked: payload..end, crc_at: at + 4, bound_at: None },
            CheckedPart { checked: at + 4..payload, crc_at: at, bound_at: Some(at) },
        ]);
        at = end;
    }
    parts
}

/// Opens the store and reads everything, with any result.
fn survive(fs: &SimFileSystem, what: &str) {
    within_memory(fs, &what, || {
        let Ok(db) = options(fs).open_read_only(DIR) else { return };
        for name in KEYSPACES {
            let Ok(Some(keyspace)) = db.existing_keyspace(name) else { continue };
            for n in (0..600).step_by(31) {
                let _ = keyspace.get(format!("key{n:03}"));
            }
            // Entries out of order may form a cycle, but none that is longer than the store.
            let _ = keyspace.iter().take(20_000).count();
            let _ = keyspace.iter().rev().take(20_000).count();
            if let Ok(cursor) = keyspace.cursor_with(ReadOptions::new().fill_cache(false)) {
                let _ = CursorWalk(Some(cursor)).take(20_000).count();
            }
        }
    });
}

const VALUES: [u8; 5] = [0x00, 0x01, 0x7f, 0x80, 0xff];

#[test]
fn forged_tables_do_no_harm_and_fail_verification() {
    let sound = Sound::new();
    let mut rng = fastrand::Rng::with_seed(5);
    for path in sound.files().iter().filter(|path| is_table(path)) {
        let (good, number) = (sound.fs.read(path).unwrap(), number_of(path));
        let parts = parts_of_table(&good);
        for _ in 0..count_from_env("TAMIS_CASES", 120) {
            // Prefers the last parts, which state most about the table.
            let part = &parts[rng.usize(0..parts.len()).max(rng.usize(0..parts.len()))];
            let mut bytes = good.clone();
            let changes: Vec<(usize, u8)> = (0..rng.usize(1..4))
                .map(|_| {
                    let near = part.checked.len().min(if rng.bool() { 32 } else { usize::MAX });
                    (part.checked.start + rng.usize(0..near), VALUES[rng.usize(0..VALUES.len())])
                })
                .collect();
            changes.iter().for_each(|&(at, value)| bytes[at] = value);
            part.seal(number, &mut bytes);
            let what = format!("{} with {changes:?}", path.display());
            let fs = sound.fs.kill();
            fs.write(path, bytes.clone()).unwrap();
            survive(&fs, &what);
            let opened = options(&fs).paranoid(true).open_read_only(DIR);
            assert!(opened.is_err() || bytes == good, "{what}: not found on verification");
        }
    }
}

#[test]
fn forged_logs_and_manifests_do_no_harm() {
    // Logs whose records reach up to the end of the file.
    let sound = Sound::with_log(WalMode::Write);
    let mut rng = fastrand::Rng::with_seed(6);
    for path in sound.files().iter().filter(|path| !is_table(path) && !path.ends_with("CURRENT")) {
        let (good, number) = (sound.fs.read(path).unwrap(), number_of(path));
        let parts = parts_of_log(&good);
        for _ in 0..count_from_env("TAMIS_CASES", 600) {
            let parts = &parts[rng.usize(0..parts.len())];
            let mut bytes = good.clone();
            let part = &parts[rng.usize(0..parts.len())];
            if part.checked.is_empty() {
                continue;
            }
            let changes: Vec<(usize, u8)> = (0..rng.usize(1..4))
                .map(|_| (rng.usize(part.checked.clone()), VALUES[rng.usize(0..VALUES.len())]))
                .collect();
            changes.iter().for_each(|&(at, value)| bytes[at] = value);
            parts.iter().for_each(|part| part.seal(number, &mut bytes));
            let what = format!("{} with {changes:?}", path.display());
            let fs = sound.fs.kill();
            fs.write(path, bytes).unwrap();
            survive(&fs, &what);
            // A write may be refused, but must not panic either.
            if let Ok(db) = options(&fs).open(DIR) {
                let _ = db.put("key", "value").and_then(|_| db.flush());
                let _ = db.compact_range(..);
            }
        }
    }
}
