//! Single calls: kills, handles, locks, faults, capacity, damage.

use super::*;

#[test]
fn kill_keeps_everything_and_syncs_nothing() {
    let fs = SimFileSystem::new();
    let file = fs.create(p("/a")).unwrap();
    file.append(b"x").unwrap();
    let lock = fs.lock(p("/LOCK")).unwrap();
    let killed = fs.kill();
    drop(file);
    assert_eq!(killed.read("/a").unwrap(), b"x");
    assert!(killed.lock(p("/LOCK")).unwrap().is_some());
    assert!((0..SEEDS).any(|seed| killed.crash(seed).paths().is_empty()));
    assert!((0..SEEDS).any(|seed| killed.crash(seed).read("/a").is_ok_and(|a| a.is_empty())));
    drop(lock);
}

#[test]
fn handles_stay_with_the_file_system_they_were_opened_in() {
    let fs = SimFileSystem::new();
    let file = create_synced(&fs, "/a", b"1");
    fs.sync_dir(p("/")).unwrap();
    let copies = [fs.crash(0), fs.kill()];
    file.append(b"2").unwrap();
    file.sync().unwrap();
    fs.remove(p("/a")).unwrap();
    for copy in copies {
        assert_eq!(copy.read("/a").unwrap(), b"1");
        copy.remove(p("/a")).unwrap();
    }
    file.append(b"3").unwrap();
}

#[test]
fn nothing_is_replaced_but_by_rename() {
    let fs = SimFileSystem::new();
    fs.create_dir(p("/d")).unwrap();
    fs.write("/a", "x").unwrap();
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(fs.create(p("/a")).map(drop)), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.create(p("/d")).map(drop)), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.create(p("/no/a")).map(drop)), ErrorKind::NotFound);
    assert_eq!(kind(fs.create(p("/a/b")).map(drop)), ErrorKind::NotADirectory);
    assert_eq!(kind(fs.create_dir(p("/a")).map(drop)), ErrorKind::NotADirectory);
    assert_eq!(kind(fs.create(p("/")).map(drop)), ErrorKind::InvalidInput);
    assert_eq!(kind(fs.rename(p("/a"), p("/d"))), ErrorKind::IsADirectory);
    assert_eq!(kind(fs.rename(p("/no"), p("/a"))), ErrorKind::NotFound);
    assert_eq!(kind(fs.remove(p("/d"))), ErrorKind::IsADirectory);
    assert_eq!(kind(fs.open(p("/no")).map(drop)), ErrorKind::NotFound);
    fs.rename(p("/a"), p("/a")).unwrap();
    assert_eq!(fs.list(p("")).unwrap(), ["a", "d"]);
}

#[test]
fn file_without_a_name_lives_until_its_last_handle_goes() {
    let fs = SimFileSystem::new();
    let file = fs.create(p("/a")).unwrap();
    let reader = fs.open(p("/a")).unwrap();
    fs.remove(p("/a")).unwrap();
    fs.sync_dir(p("/")).unwrap();
    file.append(b"abc").unwrap();
    file.sync().unwrap();
    let mut buf = [0; 8];
    assert_eq!(reader.read_at(&mut buf, 1).unwrap(), 2);
    assert_eq!(buf[..2], *b"bc");
    assert_eq!(reader.read_at(&mut buf, u64::MAX).unwrap(), 0);
    drop((file, reader));
    fs.sync_dir(p("/")).unwrap();
    assert_eq!(fs.inner.lock().disk.files.len(), 0);
}

#[test]
fn a_linked_file_lives_as_long_as_one_of_its_names() {
    let fs = SimFileSystem::new();
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    fs.create_dir(p("/d")).unwrap();
    fs.sync_dir(p("/")).unwrap();
    let file = create_synced(&fs, "/a", b"abc");
    assert_eq!(kind(fs.hard_link(p("/no"), p("/b"))), ErrorKind::NotFound);
    assert_eq!(kind(fs.hard_link(p("/a"), p("/d"))), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.hard_link(p("/d"), p("/b"))), ErrorKind::IsADirectory);
    fs.hard_link(p("/a"), p("/d/b")).unwrap();
    assert_eq!(kind(fs.hard_link(p("/a"), p("/d/b"))), ErrorKind::AlreadyExists);
    // Each name is as durable as its directory.
    let before = outcomes(&fs);
    let (a, b) = (("/a", "abc"), ("/d/b", "abc"));
    for names in [&[][..], &[a], &[b], &[a, b]] {
        assert!(before.contains(&outcome(names)), "{names:?}");
    }
    fs.sync_dir(p("/d")).unwrap();
    assert_eq!(outcomes(&fs), BTreeSet::from([outcome(&[b]), outcome(&[a, b])]));
    file.append(b"d").unwrap();
    fs.remove(p("/a")).unwrap();
    fs.sync_dir(p("/")).unwrap();
    drop(file);
    assert_eq!(fs.read("/d/b").unwrap(), b"abcd");
    fs.set_capacity(Some(10));
    assert_eq!(fs.free_space(p("/")).unwrap(), 6, "it counts once");
    fs.remove(p("/d/b")).unwrap();
    fs.sync_dir(p("/d")).unwrap();
    assert_eq!((fs.free_space(p("/")).unwrap(), fs.inner.lock().disk.files.len()), (10, 0));
}

#[test]
fn lock_is_exclusive_and_ends_with_its_holder() {
    let fs = SimFileSystem::new();
    let lock = fs.lock(p("/LOCK")).unwrap();
    assert!(lock.is_some());
    let id = format!("{}\n", std::process::id());
    assert_eq!(fs.read("/LOCK").unwrap(), id.as_bytes());
    assert!(fs.clone().lock(p("/LOCK")).unwrap().is_none());
    drop(lock);
    assert!(fs.lock(p("/LOCK")).unwrap().is_some());
}

#[test]
fn capacity_bounds_appends_and_removing_gives_space_back() {
    let fs = SimFileSystem::new();
    fs.set_capacity(Some(10));
    let a = create_synced(&fs, "/a", b"12345678");
    assert_eq!(fs.free_space(p("/")).unwrap(), 2);
    assert_eq!(a.append(b"9abc").unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(fs.read("/a").unwrap(), b"123456789a");
    let b = fs.create(p("/b")).unwrap();
    assert!(b.append(b"x").is_err());
    fs.remove(p("/a")).unwrap();
    assert_eq!(fs.free_space(p("/")).unwrap(), 0);
    drop(a);
    assert_eq!(fs.free_space(p("/")).unwrap(), 10);
    b.append(b"x").unwrap();
    assert_eq!(fs.kill().free_space(p("/")).unwrap(), 9);
    fs.set_capacity(None);
    b.append(&pattern(100)).unwrap();
}

/// Makes one mutating call of each kind but `sync`; returns those that failed.
fn one_of_each(fs: &SimFileSystem) -> Vec<&'static str> {
    let file = fs.create(p("/spare"));
    let mut failed = Vec::new();
    let mut check = |call, result: io::Result<()>| {
        if result.is_err() {
            failed.push(call);
        }
    };
    if let Ok(file) = &file {
        check("append", file.append(b"12345678"));
    }
    check("create", file.map(drop));
    check("create_dir", fs.create_dir(p("/dir")).map(drop));
    check("lock", fs.lock(p("/LOCK")).map(drop));
    check("rename", fs.rename(p("/a"), p("/b")));
    check("remove", fs.remove(p("/b")));
    check("sync_dir", fs.sync_dir(p("/")));
    failed
}

#[test]
fn fault_strikes_the_kth_call_once_or_from_there_on() {
    let run = |at, mode, sticky| {
        let fs = SimFileSystem::new();
        fs.write("/a", "").unwrap();
        fs.write("/b", "").unwrap();
        fs.set_fault(Some(Fault { at, mode, sticky }));
        let failed = one_of_each(&fs);
        assert_eq!(fs.fault_hit(), !failed.is_empty());
        fs.set_fault(None);
        assert_eq!(fs.fault_hit(), !failed.is_empty());
        failed
    };
    let calls = ["append", "create_dir", "lock", "rename", "remove", "sync_dir"];
    assert_eq!(run(1, FaultMode::Io, false), ["create"]);
    for (i, call) in (2..).zip(calls) {
        assert_eq!(run(i, FaultMode::Io, false), [call]);
    }
    assert_eq!(run(8, FaultMode::Io, false), [""; 0]);
    assert_eq!(run(5, FaultMode::Io, true), calls[3..]);
    assert_eq!(run(4, FaultMode::NoSpace, true), calls[2..4]);
    assert_eq!(run(6, FaultMode::NoSpace, false), [""; 0]);
    assert_eq!(run(1, FaultMode::ShortWrite, true), ["append"]);
    assert_eq!(run(3, FaultMode::ShortWrite, false), [""; 0]);
    assert_eq!(run(1, FaultMode::ReadError, true), [""; 0]);
}

#[test]
fn failed_append_leaves_a_prefix() {
    let all = pattern(9);
    let mut lens = BTreeSet::new();
    for mode in [FaultMode::Io, FaultMode::NoSpace, FaultMode::ShortWrite] {
        let fs = SimFileSystem::new();
        for i in 0..100 {
            let path = format!("/{i}");
            let file = fs.create(p(&path)).unwrap();
            fs.set_fault(fault(1, mode));
            let error = file.append(&all).unwrap_err();
            assert_eq!(error.kind() == ErrorKind::StorageFull, mode == FaultMode::NoSpace);
            let left = fs.read(&path).unwrap();
            assert_eq!(left, all[..left.len()]);
            lens.insert((format!("{mode:?}"), left.len()));
        }
    }
    let of = |mode: &str| lens.iter().filter(|(m, _)| m == mode).map(|&(_, len)| len).collect();
    let [io, no_space, short]: [Vec<usize>; 3] = ["Io", "NoSpace", "ShortWrite"].map(of);
    assert_eq!(io, Vec::from_iter(0..=9));
    assert_eq!(no_space, Vec::from_iter(0..9));
    assert_eq!(short, Vec::from_iter(1..9));
}

#[test]
fn read_fault_counts_reads_only() {
    let fs = SimFileSystem::new();
    fs.write("/a", "abc").unwrap();
    fs.set_fault(fault(2, FaultMode::ReadError));
    let file = fs.open(p("/a")).unwrap();
    fs.sync_dir(p("/")).unwrap();
    assert!(file.read_at(&mut [0], 0).is_err());
    assert!(fs.fault_hit());
    assert_eq!(file.read_at(&mut [0], 0).unwrap(), 1);
    assert_eq!((fs.reads(), fs.mutations()), (3, 1));
}

#[test]
fn damage_is_durable() {
    let fs = SimFileSystem::new();
    let all = pattern(2000);
    let file = create_synced(&fs, "/a", &all[..600]);
    fs.sync_dir(p("/")).unwrap();
    file.append(&all[600..1000]).unwrap();
    file.append(&all[1000..]).unwrap();
    fs.corrupt("/a", 5, 0x80).unwrap();
    assert!(fs.corrupt("/a", 2000, 1).is_err());
    fs.truncate("/a", 5000).unwrap();
    assert_eq!(fs.file_len("/a").unwrap(), 2000);
    fs.truncate("/a", 1200).unwrap();
    let lens: BTreeSet<_> = (0..SEEDS).map(|seed| fs.crash(seed).file_len("/a").unwrap()).collect();
    assert_eq!(lens, BTreeSet::from([600, 1000, 1024, 1200]));
    fs.truncate("/a", 10).unwrap();
    let mut expected = all[..10].to_vec();
    expected[5] ^= 0x80;
    assert!((0..SEEDS).all(|seed| fs.crash(seed).read("/a").unwrap() == expected));

    fs.write("/new/dir/b", "content").unwrap();
    fs.write("/new/dir/b", "other").unwrap();
    assert!((0..SEEDS).all(|seed| fs.crash(seed).read("/new/dir/b").unwrap() == b"other"));
    assert_eq!(fs.paths(), [p("/a"), p("/new/dir/b")]);
}

#[test]
fn new_content_and_truncation_forget_failed_syncs() {
    let fs = SimFileSystem::new();
    let file = create_synced(&fs, "/a", b"12");
    fs.sync_dir(p("/")).unwrap();
    let fail_sync = || {
        file.append(b"34").unwrap();
        fs.set_fault(fault(1, FaultMode::Io));
        assert!(file.sync().is_err());
    };
    let sync_more = || {
        file.append(b"56").unwrap();
        file.sync().unwrap();
    };
    fail_sync();
    fs.truncate("/a", 1).unwrap();
    assert_eq!(outcomes(&fs), BTreeSet::from([outcome(&[("/a", "1")])]));
    sync_more();
    assert_eq!(outcomes(&fs), BTreeSet::from([outcome(&[("/a", "156")])]));
    fail_sync();
    fs.write("/a", "abcde").unwrap();
    sync_more();
    assert_eq!(outcomes(&fs), BTreeSet::from([outcome(&[("/a", "abcde56")])]));
}
