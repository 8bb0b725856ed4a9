//! Tests of whole manifests, on files of the real file system.

use tempfile::TempDir;

use super::edit::tests::sample_table;
use super::*;
use crate::filter::FilterPolicy;
use crate::format::record::MARKER_LEN;
use crate::log::testing::{get_file, put_file, unhex};
use crate::log::wal::SyncedLog;
use crate::options::{Compression, KeyspaceOptions};
use crate::vfs::{Fault, FaultMode, OsFileSystem, SimFileSystem};

const MANIFEST: FileKind = FileKind::Manifest(3);
const GOLDEN: &str = include_str!("../../../../tests/golden/MANIFEST-000003.hex");

fn lz4_options() -> KeyspaceOptions {
    KeyspaceOptions::new().compression(Compression::Lz4).filter(FilterPolicy::Bloom { bits_per_key: 10.0 })
}

fn new_state() -> ManifestState {
    let mut state = ManifestState::new(0x1122_3344_5566_7788);
    state.add_default_keyspace(lz4_options());
    state.next_file_number = 4;
    state
}

/// The edits after the snapshot in the golden manifest.
fn edits() -> [VersionEdit; 3] {
    let words = KeyspaceOptions::new().compression(Compression::Zstd).filter(FilterPolicy::None).block_size(16_384);
    [
        VersionEdit { created: vec![(1, "words".into(), words)], ..VersionEdit::default() },
        VersionEdit {
            next_file_number: Some(300),
            min_log: Some(13),
            flushed_seqno: Some(40),
            added: vec![(1, 0, sample_table(12, (b"apple", b"pear")))],
            ..VersionEdit::default()
        },
        VersionEdit { synced_log: Some(SyncedLog { number: 13, seqno: 45 }), ..VersionEdit::default() },
    ]
}

/// A directory with the golden manifest, the state after its last edit, and the end offset of each
/// edit.
struct WrittenManifest {
    dir: TempDir,
    state: ManifestState,
    edit_ends: Vec<u64>,
}

/// Writes the golden manifest, and `CURRENT`.
fn write() -> WrittenManifest {
    let dir = tempfile::tempdir().unwrap();
    let mut state = new_state();
    let mut writer = ManifestWriter::create(&OsFileSystem, dir.path(), 3, &state).unwrap();
    let mut edit_ends = vec![writer.len() - MARKER_LEN as u64];
    for edit in edits() {
        writer.append(&edit).unwrap();
        state.apply(&edit).unwrap();
        edit_ends.push(writer.len() - MARKER_LEN as u64);
    }
    WrittenManifest { dir, state, edit_ends }
}

fn load_dir(dir: &TempDir) -> Result<Option<(ManifestState, u64)>> {
    Ok(load(&OsFileSystem, dir.path())?.map(|loaded| (loaded.state, loaded.number)))
}

#[track_caller]
fn check_corrupt(dir: &TempDir, file: FileKind, at: u64) {
    match load_dir(dir) {
        Err(Error::Corruption { file: path, offset, .. }) => {
            assert_eq!((path, offset), (file.path(dir.path()), at));
        }
        other => panic!("{other:?} is not corruption"),
    }
}

#[test]
fn golden_manifest_is_written_and_read() {
    let WrittenManifest { dir, state, .. } = write();
    let golden = unhex(GOLDEN);
    assert_eq!(get_file(&MANIFEST.path(dir.path())), golden);
    assert_eq!(load_dir(&dir).unwrap(), Some((state, 3)));
}

#[test]
fn an_edit_that_uses_a_feature_which_the_header_does_not_require_is_corruption() {
    let expired = VersionEdit { expired_by: Some(7), ..VersionEdit::default() };
    let mut state = new_state();
    state.expired_by = 5;
    let fs = SimFileSystem::new();
    let dir = Path::new("/");
    let mut writer = ManifestWriter::create(&fs, dir, 3, &state).unwrap();
    assert!(writer.admits(&expired));
    writer.append(&expired).unwrap();
    assert_eq!(load_number(&fs, dir, 3).unwrap().state.expired_by, 7);
    let path = MANIFEST.path(dir);
    let mut bytes = fs.read(&path).unwrap();
    let header = FileHeader { number: 3, first: FIRST_EDIT, ..FileHeader::default() };
    bytes[..FILE_HEADER_LEN].copy_from_slice(&header.encode(Magic::Manifest));
    fs.write(&path, bytes).unwrap();
    assert!(matches!(load_number(&fs, dir, 3), Err(Error::Corruption { offset: 0, .. })));
    let mut writer = ManifestWriter::create(&fs, dir, 4, &new_state()).unwrap();
    assert!(!writer.admits(&expired) && writer.append(&VersionEdit::default()).is_ok());
}

#[test]
fn torn_manifest_loses_only_edits_that_were_not_acknowledged() {
    let WrittenManifest { dir, state: last, edit_ends } = write();
    let mut states = vec![new_state()];
    for edit in edits() {
        let mut state = states.last().unwrap().clone();
        state.apply(&edit).unwrap();
        states.push(state);
    }
    assert_eq!(states.last(), Some(&last));
    let bytes = get_file(&MANIFEST.path(dir.path()));
    for len in 0..=bytes.len() {
        put_file(&MANIFEST.path(dir.path()), &bytes[..len]);
        let whole = edit_ends.iter().filter(|&&end| end <= len as u64).count();
        match whole {
            // Its first edit was durable before it came into force.
            0 => check_corrupt(&dir, MANIFEST, FILE_HEADER_LEN as u64),
            _ => assert_eq!(load_dir(&dir).unwrap(), Some((states[whole - 1].clone(), 3))),
        }
    }
}

#[test]
fn flipped_byte_in_a_durable_edit_is_corruption() {
    let WrittenManifest { dir, state, .. } = write();
    let bytes = get_file(&MANIFEST.path(dir.path()));
    for i in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[i] ^= 4;
        put_file(&MANIFEST.path(dir.path()), &damaged);
        match load_dir(&dir) {
            Err(Error::Corruption { .. }) => {}
            // Only the last sync marker may be missing. Earlier markers are implied by the edits
            // after them.
            loaded => {
                assert_eq!(loaded.unwrap(), Some((state.clone(), 3)), "byte {i}");
                assert!(i >= bytes.len() - MARKER_LEN);
            }
        }
    }
}

#[test]
fn a_manifest_is_durable_if_it_ends_with_a_statement_of_that() {
    let WrittenManifest { dir, .. } = write();
    let bytes = get_file(&MANIFEST.path(dir.path()));
    for (cut, is_durable) in [(0, true), (1, false), (MARKER_LEN, false)] {
        put_file(&MANIFEST.path(dir.path()), &bytes[..bytes.len() - cut]);
        assert_eq!(load(&OsFileSystem, dir.path()).unwrap().unwrap().is_durable, is_durable, "{cut}");
    }
}

#[test]
fn a_manifest_that_cannot_be_read_is_not_taken_for_a_missing_one() {
    let fs = SimFileSystem::new();
    let dir = Path::new("/");
    ManifestWriter::create(&fs, dir, 3, &new_state()).unwrap();
    for at in 1.. {
        fs.set_fault(Some(Fault { at, mode: FaultMode::ReadError, sticky: false }));
        let loaded = load_number(&fs, dir, 3);
        if !fs.fault_hit() {
            assert!(at > 1 && loaded.is_ok());
            break;
        }
        assert!(matches!(loaded, Err(Error::Io { .. })), "{loaded:?}");
    }
}

#[test]
fn edit_that_breaks_a_rule_is_corruption_at_its_record() {
    for payload in [&b"\x3f\x00"[..], b"\x06\x01\x05", b"\x06\x01"] {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = ManifestWriter::create(&OsFileSystem, dir.path(), 3, &new_state()).unwrap();
        let at = writer.len();
        let record = NewRecord { payload, payload_crc: crc(payload), count: 1 };
        writer.log.append([record], 1).unwrap();
        check_corrupt(&dir, MANIFEST, at);
    }
}

#[test]
fn newest_manifest_in_force_counts() {
    let WrittenManifest { dir, mut state, .. } = write();
    state.next_file_number = 301;
    ManifestWriter::create(&OsFileSystem, dir.path(), 300, &state).unwrap();
    assert_eq!(load_dir(&dir).unwrap(), Some((state, 300)));
    OsFileSystem.remove(&FileKind::Manifest(300).path(dir.path())).unwrap();
    check_corrupt(&dir, FileKind::Manifest(300), 0);
}

#[test]
fn store_without_current_is_one_only_if_it_has_data() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(load(&OsFileSystem, &dir.path().join("absent")).unwrap(), None);
    assert_eq!(load_dir(&dir).unwrap(), None);
    // Creation was interrupted.
    put_file(&MANIFEST.path(dir.path()), b"tami");
    put_file(&FileKind::CurrentTemp.path(dir.path()), b"half");
    put_file(&FileKind::Lock.path(dir.path()), b"1\n");
    put_file(&FileKind::Wal(4).path(dir.path()), &[0; FILE_HEADER_LEN]);
    assert_eq!(load_dir(&dir).unwrap(), None);
    for kind in [FileKind::Wal(5), FileKind::Table(6)] {
        let path = kind.path(dir.path());
        put_file(&path, &[0; FILE_HEADER_LEN + 1]);
        check_corrupt(&dir, FileKind::Current, 0);
        OsFileSystem.remove(&path).unwrap();
    }
}
