//! The directory `lost`, with files of earlier repairs.

use std::path::Path;

use super::{compacted, contents, of_kind, open, repaired, settled};

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
