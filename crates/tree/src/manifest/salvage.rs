//! Reads the intact edits of a damaged manifest, for `repair`.

use std::path::Path;

use super::VersionEdit;
use super::state::ManifestState;
use crate::error::Result;
use crate::format::filename::FileKind;
use crate::format::header::{FILE_HEADER_LEN, Magic};
use crate::log::open_damaged;
use crate::vfs::FileSystem;

/// The edits of a manifest that verify.
#[derive(Debug)]
pub struct SalvagedManifest {
    /// Each edit, with whether everything between it and the edit before it was read.
    pub edits: Vec<(bool, VersionEdit)>,
    /// Whether the first edit of the file verifies and states a whole version.
    pub has_base: bool,
    /// The first offset that does not verify, and why.
    pub damage: Option<(u64, String)>,
}

/// Reads manifest `number`, skipping damaged parts.
pub fn salvage(fs: &dyn FileSystem, dir: &Path, number: u64) -> Result<SalvagedManifest> {
    let path = FileKind::Manifest(number).path(dir);
    let mut log = open_damaged(fs, &path, Magic::Manifest, number)?;
    let mut found = SalvagedManifest { edits: Vec::new(), has_base: false, damage: None };
    if let Err(rule) = log.header() {
        found.damage = Some((0, rule.to_owned()));
    }
    let mut next_offset = FILE_HEADER_LEN as u64;
    let mut follows = true;
    for span in log.spans()? {
        if span.offset > next_offset {
            follows = false;
            found.damage.get_or_insert((next_offset, "no record verifies here".into()));
        }
        next_offset = span.end;
        log.read_span(&span, 1, &mut |record| {
            if record.count == 0 {
                return Ok(());
            }
            match VersionEdit::decode(record.payload) {
                Ok(edit) => {
                    let is_first = record.offset == FILE_HEADER_LEN as u64;
                    found.has_base |= is_first && ManifestState::from_snapshot(&edit).is_ok();
                    found.edits.push((std::mem::replace(&mut follows, true), edit));
                }
                Err(rule) => {
                    follows = false;
                    found.damage.get_or_insert((record.offset, rule.0.to_owned()));
                }
            }
            Ok(())
        })?;
    }
    if next_offset < log.len() && log.states_durable_after(next_offset, 1)? {
        found.damage.get_or_insert((next_offset, "no record verifies from here on".into()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::format::checksum::crc;
    use crate::format::header::FileHeader;
    use crate::format::record::{MARKER_LEN, RecordHeader};
    use crate::log::{LogWriter, NewRecord};
    use crate::vfs::SimFileSystem;

    const NUMBER: u64 = 3;

    fn path() -> std::path::PathBuf {
        FileKind::Manifest(NUMBER).path(Path::new("/"))
    }

    fn edit(number: u64) -> VersionEdit {
        VersionEdit { next_file_number: Some(number), ..VersionEdit::default() }
    }

    /// A manifest of four edits, the first a whole version, and what each edit's end is.
    fn written() -> (SimFileSystem, [VersionEdit; 4], [u64; 4]) {
        let fs = SimFileSystem::new();
        let header = FileHeader { number: NUMBER, first: 1, ..FileHeader::default() };
        let mut log = LogWriter::create(&fs, &path(), Magic::Manifest, header).unwrap();
        let mut state = ManifestState::new(7);
        state.add_default_keyspace(crate::options::KeyspaceOptions::default());
        let edits = [state.snapshot_edit(), edit(20), edit(30), edit(40)];
        let ends = [0, 1, 2, 3].map(|i: usize| {
            let payload = edits[i].encode();
            log.append([NewRecord { payload: &payload, payload_crc: crc(&payload), count: 1 }], i as u64).unwrap();
            let end = log.len();
            log.append_marker(i as u64 + 1).unwrap();
            end
        });
        (fs, edits, ends)
    }

    /// Checks which edits are read, whether each follows the one before, and where damage begins.
    #[track_caller]
    fn check(fs: &SimFileSystem, edits: &[(bool, &VersionEdit)], has_base: bool, damage: Option<u64>) {
        let found = salvage(fs, Path::new("/"), NUMBER).unwrap();
        let read: Vec<_> = found.edits.iter().map(|(follows, edit)| (*follows, edit)).collect();
        assert_eq!(read, edits);
        assert_eq!((found.has_base, found.damage.map(|(offset, _)| offset)), (has_base, damage));
    }

    #[test]
    fn a_sound_manifest_is_read_whole() {
        let (fs, [a, b, c, d], _) = written();
        check(&fs, &[(true, &a), (true, &b), (true, &c), (true, &d)], true, None);
    }

    #[test]
    fn edits_around_a_damaged_one_are_read() {
        let marker = MARKER_LEN as u64;
        let header_len = FILE_HEADER_LEN as u64;
        let (fs, [a, b, c, d], [first, second, third, _]) = written();
        fs.corrupt(path(), second - 1, 1).unwrap();
        check(&fs, &[(true, &a), (false, &c), (true, &d)], true, Some(first + marker));
        // The first damage is told.
        fs.corrupt(path(), third + marker, 1).unwrap();
        check(&fs, &[(true, &a), (false, &c)], true, Some(first + marker));

        let (fs, ..) = written();
        fs.corrupt(path(), header_len, 1).unwrap();
        check(&fs, &[(false, &b), (true, &c), (true, &d)], false, Some(header_len));

        let (fs, ..) = written();
        fs.corrupt(path(), 20, 1).unwrap();
        check(&fs, &[(true, &a), (true, &b), (true, &c), (true, &d)], true, Some(0));
    }

    #[test]
    fn the_end_of_a_manifest_is_damaged_only_if_it_was_durable() {
        let (fs, [a, b, c, _], [.., third, fourth]) = written();
        let torn = third + MARKER_LEN as u64;
        // Its marker states that the last edit was durable.
        fs.corrupt(path(), fourth - 1, 1).unwrap();
        check(&fs, &[(true, &a), (true, &b), (true, &c)], true, Some(torn));
        fs.truncate(path(), torn + 5).unwrap();
        check(&fs, &[(true, &a), (true, &b), (true, &c)], true, None);
        // Of a fifth edit only the header is left, which may state that the fourth was durable.
        for (synced, damage) in [(0, None), (4, Some(torn))] {
            fs.truncate(path(), torn).unwrap();
            let header = RecordHeader { payload_len: 9, payload_crc: 0, count: 1, synced };
            let bytes = [&fs.read(path()).unwrap()[..], header.encode(NUMBER, torn).as_slice()].concat();
            fs.write(path(), bytes).unwrap();
            check(&fs, &[(true, &a), (true, &b), (true, &c)], true, damage);
        }
    }

    #[test]
    fn records_that_are_no_edits_are_damage() {
        let (fs, [a, ..], [first, ..]) = written();
        let at = first + MARKER_LEN as u64;
        fs.truncate(path(), at).unwrap();
        let mut bytes = fs.read(path()).unwrap();
        let mut push = |payload: &[u8]| {
            let payload_len = u32::try_from(payload.len()).unwrap();
            let header = RecordHeader { payload_len, payload_crc: crc(payload), count: 1, synced: 0 };
            bytes.extend_from_slice(header.encode(NUMBER, bytes.len() as u64).as_slice());
            bytes.extend_from_slice(payload);
        };
        push(b"\x3f\x00");
        push(&edit(20).encode());
        push(&edit(30).encode());
        fs.write(path(), bytes).unwrap();
        check(&fs, &[(true, &a), (false, &edit(20)), (true, &edit(30))], true, Some(at));
    }

    #[test]
    fn a_first_edit_that_is_no_whole_version_is_no_base() {
        let (fs, ..) = written();
        let mut bytes = fs.read(path()).unwrap();
        bytes.truncate(FILE_HEADER_LEN);
        for number in [20, 30] {
            let payload = edit(number).encode();
            let payload_len = u32::try_from(payload.len()).unwrap();
            let header = RecordHeader { payload_len, payload_crc: crc(&payload), count: 1, synced: 0 };
            bytes.extend_from_slice(header.encode(NUMBER, bytes.len() as u64).as_slice());
            bytes.extend_from_slice(&payload);
        }
        fs.write(path(), bytes).unwrap();
        check(&fs, &[(true, &edit(20)), (true, &edit(30))], false, None);
    }

    #[test]
    fn a_manifest_of_a_later_version_is_not_salvaged() {
        let (fs, ..) = written();
        let bytes = fs.read(path()).unwrap();
        let (header, records) = bytes.split_first_chunk().unwrap();
        let later = crate::format::header::of_version(*header, 2);
        fs.write(path(), [&later[..], records].concat()).unwrap();
        assert!(matches!(salvage(&fs, Path::new("/"), NUMBER), Err(Error::Unsupported { .. })));
    }
}
