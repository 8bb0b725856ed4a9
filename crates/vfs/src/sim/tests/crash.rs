//! What a power cut takes and leaves.

use super::*;

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
    assert_eq!(outcomes(&fs), BTreeSet::from([outcome(&[]), with_file.clone()]));
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
fn removed_file_comes_back_when_only_its_creation_survives() {
    let fs = SimFileSystem::new();
    fs.create_dir(p("/other")).unwrap();
    fs.sync_dir(p("/")).unwrap();
    create_synced(&fs, "/a", b"x");
    fs.remove(p("/a")).unwrap();
    fs.sync_dir(p("/other")).unwrap();
    let expected = BTreeSet::from([outcome(&[]), outcome(&[("/a", "x")])]);
    assert_eq!(outcomes(&fs), expected);
    assert_eq!(outcomes(&fs.kill()), expected);
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
fn many_appends_are_often_kept_or_lost_together() {
    let fs = SimFileSystem::new();
    let file = create_synced(&fs, "/a", b"");
    fs.sync_dir(p("/")).unwrap();
    for byte in pattern(10_000) {
        file.append(&[byte]).unwrap();
    }
    let lens: Vec<_> = (0..SEEDS).map(|seed| fs.crash(seed).file_len("/a").unwrap()).collect();
    for extreme in [0, 10_000] {
        let count = lens.iter().filter(|&&len| len == extreme).count();
        assert!(count > lens.len() / 10, "{extreme}: {count}");
    }
}

#[test]
fn sectors_survive_out_of_order() {
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
            // An append in flight may leave the beginning of a sector.
            let written = left.iter().zip(all).skip(from).take_while(|(left, all)| left == all).count();
            assert!(left[left.len().min(from + written)..].iter().all(|&byte| byte == 0), "seed {seed}");
            mask |= u32::from(there) << i;
        }
        masks.insert(mask);
    }
    // More patterns than prefixes and runs could make.
    assert!(masks.len() > 45, "{}", masks.len());
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
    let expected = [outcome(&[("/a", "one ")]), outcome(&[("/a", "one \0\0\0\0")])];
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
    let before_sync =
        [outcome(&[old]), outcome(&[("/a", ""), old]), outcome(&[("/a", "\0"), old]), outcome(&[("/a", "1"), old])];
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

/// Prepared bytes are zeros, synced bytes stay, and between them sectors of stores and appends
/// survive or not.
#[test]
fn prepared_file_loses_what_was_written_over_its_zeros() {
    let fs = SimFileSystem::new();
    let all = pattern(3000);
    let file = create_synced(&fs, "/a", &all[..700]);
    fs.sync_dir(p("/")).unwrap();
    assert!(file.prepare(4000).unwrap());
    assert_eq!((fs.file_len("/a").unwrap(), fs.free_space(p("/")).unwrap()), (4000, u64::MAX));
    let lens: BTreeSet<usize> = outcomes(&fs).iter().map(|files| files[0].1.len()).collect();
    assert_eq!(lens, BTreeSet::from([700, 4000]));
    file.sync().unwrap();

    let mut window = file.window().unwrap().unwrap();
    assert!(window.append(&all[700..705], &all[705..1000]));
    file.append(&all[1000..1500]).unwrap();
    file.sync().unwrap();
    file.append(&all[1500..1700]).unwrap();
    assert!(window.append(&all[1700..1701], &all[1701..3000]));
    assert!(!window.append(&[1; 1000], &[1]));
    let mut found = BTreeSet::new();
    for files in outcomes(&fs) {
        let content = &files[0].1;
        assert_eq!((content.len(), &content[..1500]), (4000, &all[..1500]));
        assert!(content[3000..].iter().all(|&byte| byte == 0));
        let sectors = [1500..1536, 1536..2048, 2048..2560, 2560..3000];
        found.insert(sectors.map(|sector| {
            let bytes = &content[sector.clone()];
            assert!(bytes.iter().zip(&all[sector]).all(|(&left, &all)| left == all || left == 0));
            bytes.iter().all(|&byte| byte == 0)
        }));
    }
    // They reach the disk in any order.
    assert!(found.contains(&[false; 4]) && found.contains(&[true; 4]));
    assert!(found.contains(&[true, false, false, false]) && found.contains(&[false, false, false, true]));
    let whole = fs.kill().read("/a").unwrap();
    assert_eq!((whole.len(), &whole[..3000]), (4000, &all[..]));
}

/// Stores to memory since the last sync: each sector, or each page, shows a moment of its own,
/// possibly within a store.
#[test]
fn mapped_sectors_show_moments_of_their_own() {
    const STORES: usize = 60;
    const LEN: usize = 200;
    let fs = SimFileSystem::new();
    let file = create_synced(&fs, "/a", b"");
    fs.sync_dir(p("/")).unwrap();
    file.prepare(16 << 10).unwrap();
    file.sync().unwrap();
    let mut window = None;
    for _ in 0..STORES {
        let store = |window: &mut Box<dyn Window>| window.append(&[b'h'; 10], &[b'b'; LEN - 10]);
        if !window.as_mut().is_some_and(store) {
            window = file.window().unwrap();
            assert!(store(window.as_mut().unwrap()));
        }
    }
    let (mut amid, mut newer_before_older, mut pages, mut headless) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let left = fs.crash(seed).read("/a").unwrap();
        assert_eq!(left.len(), 16 << 10);
        let there = |at: usize| left[at] != 0;
        assert!((0..left.len()).all(|at| match at {
            _ if at >= STORES * LEN => !there(at),
            _ if at % LEN < 10 => matches!(left[at], 0 | b'h'),
            _ => matches!(left[at], 0 | b'b'),
        }));
        for sector in (0..STORES * LEN).step_by(512) {
            // Within a sector, stores arrive in order, the body of each first.
            let end = (sector + 512).min(STORES * LEN);
            let order = |at: usize| (at / LEN, at % LEN < 10, at);
            let mut bytes: Vec<usize> = (sector..end).collect();
            bytes.sort_by_key(|&at| order(at));
            let written = bytes.iter().take_while(|&&at| there(at)).count();
            assert!(bytes[written..].iter().all(|&at| !there(at)), "seed {seed}, sector {sector}");
            amid += usize::from(
                written > 0 && written < bytes.len() && order(bytes[written]).0 == order(bytes[written - 1]).0,
            );
            headless += usize::from(written < bytes.len() && bytes[written].is_multiple_of(LEN));
            newer_before_older += usize::from(written < bytes.len() && (end..STORES * LEN).any(there));
        }
        let whole_pages = (0..STORES * LEN / 4096).filter(|page| (page * 4096..(page + 1) * 4096).all(there)).count();
        pages += usize::from(whole_pages == 1);
    }
    assert!(
        amid > 20 && newer_before_older > 100 && headless > 5 && pages > 10,
        "{amid} {newer_before_older} {headless} {pages}"
    );
}

#[test]
fn preparation_fails_on_cue_and_for_lack_of_space() {
    let fs = SimFileSystem::new();
    let file = create_synced(&fs, "/a", &pattern(100));
    fs.set_fault(fault(1, FaultMode::Io));
    assert!(file.prepare(1000).is_err());
    assert_eq!(fs.read("/a").unwrap()[..100], pattern(100));
    fs.set_capacity(Some(1500));
    assert!(file.prepare(2000).is_err());
    assert_eq!(fs.file_len("/a").unwrap(), 1500);
    // Prepared bytes need no further space.
    let mut window = file.window().unwrap().unwrap();
    assert!(window.append(&[1; 700], &[2; 700]));
    assert!(file.append(&[3; 1]).is_err());
}

#[test]
fn power_may_go_during_a_store() {
    let fs = SimFileSystem::new();
    let file = create_synced(&fs, "/a", b"x");
    fs.sync_dir(p("/")).unwrap();
    file.prepare(10).unwrap();
    file.sync().unwrap();
    let mut window = file.window().unwrap().unwrap();
    fs.crash_at(Some(1));
    // Such a store cannot report the power cut.
    assert!(window.append(b"", b"y"));
    assert!(!window.append(b"", b"z"));
    assert!(file.append(b"z").is_err());
    let left = outcomes(&fs.crash_point().unwrap());
    let expected = ["x\0\0\0\0\0\0\0\0\0", "xy\0\0\0\0\0\0\0\0"].map(|content| outcome(&[("/a", content)]));
    assert_eq!(left, BTreeSet::from(expected));
}
