//! Iterators that are moved to a key.

use tamis::vfs::SimFileSystem;

use crate::support::open_plain;

#[test]
fn an_iterator_without_bounds_can_be_moved_anywhere_and_back() {
    let (db, _) = open_plain(&SimFileSystem::new()).unwrap();
    for key in ["a", "c", "e", "g"] {
        db.put(key, key).unwrap();
    }
    let mut iter = db.iter();
    let mut next = |seek: Option<&str>, forward: bool| {
        match (seek, forward) {
            (Some(key), true) => iter.seek(key),
            (Some(key), false) => iter.seek_back(key),
            (None, _) => {}
        }
        let entry = if forward { iter.next() } else { iter.next_back() };
        entry.map(|entry| String::from_utf8(entry.unwrap().0.to_vec()).unwrap())
    };
    assert_eq!(next(None, false).as_deref(), Some("g"));
    assert_eq!(next(Some("d"), true).as_deref(), Some("e"));
    assert_eq!(next(None, true), None, "the back has returned g");
    assert_eq!(next(Some("b"), true).as_deref(), Some("c"));
    assert_eq!(next(Some("f"), true).as_deref(), Some("g"), "after the end, the back is at its bound again");
    assert_eq!(next(Some("c"), false), None, "the front is behind that");
    assert_eq!(next(Some("c"), false).as_deref(), Some("c"));
    assert_eq!(next(None, false).as_deref(), Some("a"));
    assert_eq!(next(Some("z"), true), None);
}

#[test]
fn what_a_transaction_seeks_past_does_not_conflict() {
    for (written, conflicts) in [("a", true), ("b", false), ("e", true), ("f", false)] {
        let (db, _) = open_plain(&SimFileSystem::new()).unwrap();
        for key in ["a", "c", "e", "g"] {
            db.put(key, key).unwrap();
        }
        let mut transaction = db.begin();
        let mut iter = transaction.range(..);
        assert_eq!(&*iter.next().unwrap().unwrap().0, b"a");
        iter.seek("d");
        assert_eq!(&*iter.next().unwrap().unwrap().0, b"e");
        drop(iter);
        transaction.put("z", "");
        db.put(written, "other").unwrap();
        assert_eq!(transaction.commit().is_err(), conflicts, "{written}");
    }
}
