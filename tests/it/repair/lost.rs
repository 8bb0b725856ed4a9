//! The directory `lost`, with files of earlier repairs; a lost table of range deletes.

use std::path::Path;
use std::sync::Arc;

use tamis::inspect::Inspector;
use tamis::vfs::FileSystem;
use tamis::{LossKind, RepairBasis};

use super::{
    check_usable, compacted, contents, key, known_losses, lose_manifests, manifests, of_kind, open, repaired, settled,
};

#[test]
fn numbers_in_lost_count_and_no_file_in_it_is_replaced() {
    let (fs, map) = compacted(100);
    let fs = settled(&fs);
    let path = of_kind(&fs, "sst").remove(0);
    let name = path.file_name().unwrap();
    fs.write(Path::new("/db/lost").join(name), *b"of an earlier repair").unwrap();
    fs.write("/db/lost/CURRENT-000300", *b"of an earlier repair too").unwrap();
    fs.write("/db/lost/72057594037927934.sst", *b"stray").unwrap();
    fs.corrupt(&path, 300, 1).unwrap();
    let report = repaired(&fs);
    assert!((301..1000).contains(&report.manifest), "{report}");
    assert_eq!(fs.read(Path::new("/db/lost").join(name)).unwrap(), b"of an earlier repair");
    assert!(report.moved.iter().any(|moved| Path::new(&moved.name) == name), "{report}");
    assert!(contents(&open(&fs)).len() < map.len());
}

#[test]
fn missing_table_of_ranges_is_reported_with_what_comes_back() {
    let (fs, map) = compacted(400);
    let tables = of_kind(&fs, "sst");
    let db = open(&fs);
    // It keeps the entries.
    let snapshot = db.snapshot();
    db.delete_range(key(10)..key(20)).unwrap();
    db.delete_range(key(300)..).unwrap();
    db.flush().unwrap();
    drop(snapshot);
    let fs = fs.kill();
    drop(db);
    assert_eq!(contents(&open(&fs.kill())).len(), 290);
    let mut ranges = of_kind(&fs, "sst");
    ranges.retain(|path| !tables.contains(path));
    let [path] = ranges.as_slice() else { panic!("{ranges:?}") };
    let name = path.file_name().unwrap().to_str().unwrap();
    // The manifest is sound, or has lost one of its records.
    let manifest = manifests(&fs).pop().unwrap();
    let mut log = Inspector::on(Arc::new(fs.clone())).log(&manifest).unwrap();
    let mut damage = vec![None];
    while let Some(record) = log.next_record().unwrap() {
        damage.push(Some(record.offset + 12));
    }
    let mut told = 0;
    for damaged in damage {
        let fs = fs.kill();
        if let Some(at) = damaged {
            fs.corrupt(&manifest, at, 1).unwrap();
        }
        let undamaged = fs.kill();
        fs.remove(path).unwrap();
        assert!(super::options(&fs).0.open("/db").is_err());
        let report = repaired(&fs);
        assert!(!known_losses(&report).is_empty(), "{report}");
        assert!(damaged.is_some() || report.basis == RepairBasis::Manifest);
        let is_known = report.basis == RepairBasis::Manifest;
        let kind = if is_known { LossKind::Lost } else { LossKind::Uncertain };
        let of_table = known_losses(&report).into_iter().find(|loss| loss.file.as_ref() == Some(path));
        if let Some(loss) = of_table {
            assert_eq!((loss.kind, &loss.from, &loss.to, loss.entries), (kind, &Some(key(10)), &None, None));
            assert!(report.notes.iter().any(|note| note.contains(name) && note.contains("range deletes")), "{report}");
            told += 1;
        }
        assert!(of_table.is_some() || damaged.is_some(), "{report}");
        assert_eq!(check_usable(&fs), map, "nothing else is lost");
        // With the table, nothing comes back, with a manifest or without.
        repaired(&undamaged);
        assert_eq!(contents(&open(&undamaged.kill())).len(), 290);
        lose_manifests(&undamaged);
        repaired(&undamaged);
        assert_eq!(check_usable(&undamaged).len(), 290);
    }
    assert!(told > 0);
}
