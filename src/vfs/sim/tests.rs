use std::collections::BTreeSet;

use super::*;

const SEEDS: u64 = 300;

fn p(path: &str) -> &Path {
    Path::new(path)
}

fn fault(at: u64, mode: FaultMode) -> Option<Fault> {
    let sticky = false;
    Some(Fault { at, mode, sticky })
}

/// Bytes without a zero, so that a zero in a file is one that a crash put there.
fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| u8::try_from(i % 251).unwrap() + 1)
        .collect()
}

/// A file whose content is synced and whose name is not.
fn create_synced(fs: &SimFileSystem, path: &str, content: &[u8]) -> Box<dyn WritableFile> {
    let file = fs.create(p(path)).unwrap();
    file.append(content).unwrap();
    file.sync().unwrap();
    file
}

/// All outcomes of a crash, each as the files with their contents.
fn outcomes(fs: &SimFileSystem) -> BTreeSet<Vec<(String, Vec<u8>)>> {
    (0..SEEDS).map(|seed| files(&fs.crash(seed))).collect()
}

fn files(fs: &SimFileSystem) -> Vec<(String, Vec<u8>)> {
    let file = |path: PathBuf| (path.display().to_string(), fs.read(&path).unwrap());
    fs.paths().into_iter().map(file).collect()
}

fn outcome(files: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
    let file = |(path, content): &(&str, &str)| (path.to_string(), content.as_bytes().to_vec());
    files.iter().map(file).collect()
}

#[test]
fn name_lasts_by_a_sync_of_its_directory_only() {
    let fs = SimFileSystem::new();
    create_synced(&fs, "/a", b"x");
    let with_name = outcome(&[("/a", "x")]);
    let either = BTreeSet::from([outcome(&[]), with_name.clone()]);
    assert_eq!(outcomes(&fs), either);
    fs.sync_dir(p("/")).unwrap();
    assert_eq!(outcomes(&fs), BTreeSet::from([with_name.clone()]));
    fs.remove(p("/a")).unwrap();
    assert_eq!(outcomes(&fs), either);
    fs.sync_dir(p("/")).unwrap();
    assert_eq!(outcomes(&fs), BTreeSet::from([outcome(&[])]));
}

#[test]
fn directory_lasts_by_a_sync_of_its_parent_only() {
    let fs = SimFileSystem::new();
    assert!(fs.create_dir(p("/a/b")).unwrap());
    assert!(!fs.create_dir(p("/a/b/")).unwrap());
    create_synced(&fs, "/a/b/c", b"x");
    fs.sync_dir(p("/a/b")).unwrap();
    fs.sync_dir(p("/")).unwrap();
    let with_file = outcome(&[("/a/b/c", "x")]);
    assert_eq!(
        outcomes(&fs),
        BTreeSet::from([outcome(&[]), with_file.clone()])
    );
    assert!((0..SEEDS).all(|seed| fs.crash(seed).list(p("/")).unwrap() == ["a"]));
    fs.sync_dir(p("/a")).unwrap();
    assert_eq!(outcomes(&fs), BTreeSet::from([with_file]));
}

#[test]
fn name_operations_survive_in_any_combination() {
    let fs = SimFileSystem::new();
    fs.write("/old", "o").unwrap();
    create_synced(&fs, "/a", b"");
    create_synced(&fs, "/b", b"");
    fs.remove(p("/old")).unwrap();
    assert_eq!(outcomes(&fs).len(), 8);
}

#[test]
fn operations_on_one_name_survive_in_order() {
    let fs = SimFileSystem::new();
    for content in ["1", "2"] {
        create_synced(&fs, "/tmp", content.as_bytes());
        fs.rename(p("/tmp"), p("/a")).unwrap();
    }
    let expected = [
        outcome(&[]),
        outcome(&[("/tmp", "1")]),
        outcome(&[("/a", "1")]),
        outcome(&[("/a", "1"), ("/tmp", "2")]),
        outcome(&[("/a", "2")]),
    ];
    assert_eq!(outcomes(&fs), BTreeSet::from(expected));
}

#[test]
fn rename_leaves_the_old_binding_or_the_new() {
    let fs = SimFileSystem::new();
    fs.write("/a", "old").unwrap();
    create_synced(&fs, "/tmp", b"new");
    fs.sync_dir(p("/")).unwrap();
    fs.rename(p("/tmp"), p("/a")).unwrap();
    assert_eq!(fs.read("/a").unwrap(), b"new");
    let before = outcome(&[("/a", "old"), ("/tmp", "new")]);
    let after = outcome(&[("/a", "new")]);
    assert_eq!(outcomes(&fs), BTreeSet::from([before, after.clone()]));
    fs.sync_dir(p("/")).unwrap();
    assert_eq!(outcomes(&fs), BTreeSet::from([after]));
}

#[test]
fn rename_between_directories_is_atomic_and_settled_by_either() {
    for synced in ["/from", "/to"] {
        let fs = SimFileSystem::new();
        fs.create_dir(p("/from")).unwrap();
        fs.create_dir(p("/to")).unwrap();
        fs.sync_dir(p("/")).unwrap();
        create_synced(&fs, "/from/a", b"x");
        create_synced(&fs, "/from/unrelated", b"");
        fs.rename(p("/from/a"), p("/to/a")).unwrap();
        let places = |files: Vec<(String, Vec<u8>)>| {
            let mut places: Vec<_> = files.into_iter().map(|(path, _)| path).collect();
            places.retain(|path| path.ends_with("/a"));
            places
        };
        let found: BTreeSet<_> = outcomes(&fs).into_iter().map(places).collect();
        assert!(found.iter().all(|places| places.len() <= 1));
        assert_eq!(found.len(), 3);
        fs.sync_dir(p(synced)).unwrap();
        let found: BTreeSet<_> = outcomes(&fs).into_iter().map(places).collect();
        assert_eq!(found, BTreeSet::from([vec!["/to/a".to_owned()]]));
    }
}

#[test]
fn unsynced_data_suffers_every_kind_of_loss() {
    let fs = SimFileSystem::new();
    let all = pattern(5000);
    let file = create_synced(&fs, "/a", &all[..700]);
    fs.sync_dir(p("/")).unwrap();
    for append in [700..1500, 1500..1501, 1501..3100, 3100..5000] {
        file.append(&all[append]).unwrap();
    }
    let mut kinds = BTreeSet::new();
    for seed in 0..SEEDS {
        let left = fs.crash(seed).read("/a").unwrap();
        assert_eq!(left[..700], all[..700], "seed {seed}");
        assert!(left.iter().zip(&all).all(|(&l, &a)| l == a || l == 0));
        let zeros = left.iter().filter(|&&byte| byte == 0).count();
        let last_zero = left.iter().rposition(|&byte| byte == 0);
        kinds.insert(match (left.len(), zeros) {
            (700, _) => "lost",
            (5000, 0) => "whole",
            (1500 | 1501 | 3100, 0) => "some appends",
            (len, 0) if len % 512 == 0 => "torn",
            (len, _) if zeros == len - 700 => "length only",
            (len, _) if last_zero == Some(len - 1) => "zeros at the end",
            _ => "zeros before data",
        });
    }
    assert_eq!(kinds.len(), 7, "{kinds:?}");
}

#[test]
fn sectors_survive_whole_and_out_of_order() {
    let fs = SimFileSystem::new();
    let all = pattern(512 * 8);
    let file = create_synced(&fs, "/a", &all[..100]);
    fs.sync_dir(p("/")).unwrap();
    file.append(&all[100..]).unwrap();
    let mut masks = BTreeSet::new();
    for seed in 0..SEEDS {
        let left = fs.crash(seed).read("/a").unwrap();
        let mut mask = 0;
        for (i, (left, all)) in left.chunks(512).zip(all.chunks(512)).enumerate() {
            let from = if i == 0 { 100 } else { 0 };
            let there = left.len() > from && left[from..] == all[from..left.len()];
            assert!(
                there || left[from..].iter().all(|&byte| byte == 0),
                "seed {seed}"
            );
            mask |= u32::from(there) << i;
        }
        masks.insert(mask);
    }
    // More patterns than prefixes and runs could make.
    assert!(masks.len() > 60, "{}", masks.len());
}

#[test]
fn what_is_synced_is_exact_under_every_seed() {
    let all = pattern(3000);
    for synced in [0, 1, 511, 512, 513, 1024, 2999, 3000] {
        let fs = SimFileSystem::new();
        let file = create_synced(&fs, "/a", &all[..synced]);
        fs.sync_dir(p("/")).unwrap();
        file.append(&all[synced..]).unwrap();
        create_synced(&fs, "/b", b"");
        for seed in 0..SEEDS {
            let left = fs.crash(seed).read("/a").unwrap();
            assert_eq!(left[..synced], all[..synced], "seed {seed}");
        }
    }
}

#[test]
fn outcome_of_a_crash_lasts() {
    let fs = SimFileSystem::new();
    let file = fs.create(p("/a")).unwrap();
    file.append(&pattern(2000)).unwrap();
    for seed in 0..SEEDS {
        let crashed = fs.crash(seed);
        assert_eq!(files(&crashed), files(&fs.crash(seed)));
        assert_eq!(files(&crashed), files(&crashed.crash(seed + 1)));
    }
}

#[test]
fn failed_sync_loses_its_data_for_good() {
    let fs = SimFileSystem::new();
    let file = create_synced(&fs, "/a", b"one ");
    fs.sync_dir(p("/")).unwrap();
    file.append(b"two ").unwrap();
    fs.set_fault(fault(1, FaultMode::Io));
    assert!(file.sync().is_err());
    file.sync().unwrap();
    assert_eq!(fs.read("/a").unwrap(), b"one two ");
    let expected = [
        outcome(&[("/a", "one ")]),
        outcome(&[("/a", "one \0\0\0\0")]),
    ];
    assert_eq!(outcomes(&fs), BTreeSet::from(expected));

    file.append(b"three").unwrap();
    file.sync().unwrap();
    assert_eq!(fs.read("/a").unwrap(), b"one two three");
    assert_eq!(fs.kill().read("/a").unwrap(), b"one two three");
    let expected = outcome(&[("/a", "one \0\0\0\0three")]);
    assert_eq!(outcomes(&fs), BTreeSet::from([expected.clone()]));
    assert_eq!(outcomes(&fs.kill()), BTreeSet::from([expected]));
}

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
    assert_eq!(
        kind(fs.create(p("/a/b")).map(drop)),
        ErrorKind::NotADirectory
    );
    assert_eq!(
        kind(fs.create_dir(p("/a")).map(drop)),
        ErrorKind::NotADirectory
    );
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
    assert_eq!(fs.inner.lock().state.files.len(), 0);
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
    assert_eq!(
        a.append(b"9abc").unwrap_err().kind(),
        ErrorKind::StorageFull
    );
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

/// Makes one mutating call of each kind but `sync` and says which failed.
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
    let calls = [
        "append",
        "create_dir",
        "lock",
        "rename",
        "remove",
        "sync_dir",
    ];
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
            assert_eq!(
                error.kind() == ErrorKind::StorageFull,
                mode == FaultMode::NoSpace
            );
            let left = fs.read(&path).unwrap();
            assert_eq!(left, all[..left.len()]);
            lens.insert((format!("{mode:?}"), left.len()));
        }
    }
    let of = |mode: &str| {
        lens.iter()
            .filter(|(m, _)| m == mode)
            .map(|&(_, len)| len)
            .collect()
    };
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
fn power_cut_takes_the_call_in_flight_and_all_after_it() {
    let run = |k| {
        let fs = SimFileSystem::new();
        fs.write("/old", "").unwrap();
        fs.crash_at(Some(k));
        let _ = (|| {
            let file = fs.create(p("/a"))?;
            file.append(b"1")?;
            file.sync()?;
            fs.sync_dir(p("/"))?;
            fs.remove(p("/old"))
        })();
        fs
    };
    let old = ("/old", "");
    let before_sync = [
        outcome(&[old]),
        outcome(&[("/a", ""), old]),
        outcome(&[("/a", "\0"), old]),
        outcome(&[("/a", "1"), old]),
    ];
    let after_sync = [outcome(&[old]), outcome(&[("/a", "1"), old])];
    let expected = [
        BTreeSet::from([outcome(&[old])]),
        BTreeSet::from(before_sync.clone()),
        BTreeSet::from(before_sync),
        BTreeSet::from(after_sync),
        BTreeSet::from([outcome(&[("/a", "1"), old])]),
    ];
    for (k, expected) in (1..).zip(expected) {
        let fs = run(k);
        assert_eq!(outcomes(&fs.crash_point().unwrap()), expected, "k = {k}");
        assert_eq!(fs.mutations(), k);
        for result in [fs.list(p("/")).map(drop), fs.create(p("/b")).map(drop)] {
            assert!(result.is_err());
        }
        assert_eq!((fs.mutations(), fs.reads()), (k, 0));
        assert!(fs.crash_point().unwrap().create(p("/b")).is_ok());
    }
    assert!(run(6).crash_point().is_none());
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
    let lens: BTreeSet<_> = (0..SEEDS)
        .map(|seed| fs.crash(seed).file_len("/a").unwrap())
        .collect();
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
fn truncation_forgets_lost_ranges_behind_it() {
    let fs = SimFileSystem::new();
    let file = create_synced(&fs, "/a", b"12");
    fs.sync_dir(p("/")).unwrap();
    file.append(b"34").unwrap();
    fs.set_fault(fault(1, FaultMode::Io));
    assert!(file.sync().is_err());
    fs.truncate("/a", 2).unwrap();
    file.append(b"56").unwrap();
    file.sync().unwrap();
    assert_eq!(outcomes(&fs), BTreeSet::from([outcome(&[("/a", "1256")])]));
}
