//! Damaged files: the right answer or an error, never a wrong answer and never a panic.

use super::*;
use crate::filter::FilterBuilder;
use crate::format::checksum::bound_crc;
use crate::report::delivery::{Delivery, Listener};
use crate::table::properties::filter_hash;
use crate::vfs::{Fault, FaultMode};

/// Distinct keys of the small table, each in two versions.
const KEYS: u64 = 14;

/// A small table with several blocks, and its entries.
fn small(filter: FilterPolicy, compression: Compression) -> (SimFileSystem, TableMeta, Vec<TableEntry>) {
    let entries: Vec<TableEntry> = (0..KEYS)
        .flat_map(|i| {
            let key = format!("key{i:04}");
            [put(&key, i + 50, format!("new{i}")), put(&key, i + 1, "old old old old")]
        })
        .collect();
    let filters = TableFilters::of_points(filter);
    let options = TableOptions { filters, compression, block_size: 256, ..options() };
    let fs = file_system();
    let meta = build(&fs, options, &entries);
    (fs, meta, entries)
}

/// Reads everything. Every answer is right or an error of damage; returns whether one failed.
fn check_damaged(fs: &SimFileSystem, meta: &TableMeta, entries: &[TableEntry]) -> bool {
    let table = open(fs, meta, 0);
    let expect = |error: &Error| {
        assert!(matches!(error, Error::Corruption { .. } | Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("000012.sst"), "{error}");
    };
    let mut failed = false;
    for (key, seqno, _, value) in entries.iter().step_by(3) {
        match get(&table, key, *seqno) {
            Ok(hit) => assert_eq!(hit.unwrap().value, value),
            Err(error) => {
                expect(&error);
                failed = true;
            }
        }
    }
    match get(&table, "key0007a", MAX_SEQNO) {
        Ok(hit) => assert_eq!(hit, None),
        Err(error) => expect(&error),
    }
    match entries_of(&table, false) {
        Ok(read) => assert_eq!(read, entries),
        Err(error) => {
            expect(&error);
            failed = true;
        }
    }
    expect(&table.verify().unwrap_err());
    failed
}

#[test]
fn every_flipped_byte_gives_the_right_answer_or_an_error() {
    let lz4 = Some(Compression::Lz4).filter(|lz4| lz4.is_available());
    for compression in [Some(Compression::None), lz4].into_iter().flatten() {
        let (fs, meta, entries) = small(FilterPolicy::DEFAULT, compression);
        let table = open(&fs, &meta, 0);
        let filter = table.resident().unwrap().footer.filter.unwrap();
        let filter = filter.offset..filter.end().unwrap();
        for offset in 0..meta.size {
            let xor = if offset % 2 == 0 { 0x01 } else { 0xa0 };
            fs.corrupt(PATH, offset, xor).unwrap();
            let failed = check_damaged(&fs, &meta, &entries);
            assert_eq!(failed, !filter.contains(&offset), "offset {offset}");
            fs.corrupt(PATH, offset, xor).unwrap();
        }
        table.verify().unwrap();
    }
}

#[test]
fn every_truncation_is_an_error() {
    let (fs, meta, entries) = small(FilterPolicy::DEFAULT, Compression::None);
    let bytes = fs.read(PATH).unwrap();
    for len in 0..bytes.len() {
        fs.write(PATH, &bytes[..len]).unwrap();
        assert!(check_damaged(&fs, &meta, &entries), "{len} bytes");
        // Also when the manifest agrees with the length.
        let shorter = TableMeta { size: len as u64, ..meta.clone() };
        assert!(check_damaged(&fs, &shorter, &entries), "{len} bytes");
    }
}

#[test]
fn a_damaged_filter_means_maybe_and_is_reported() {
    let (fs, meta, entries) = small(FilterPolicy::DEFAULT, Compression::None);
    let table = open(&fs, &meta, 0);
    assert!(matches!(table.filter_state().unwrap(), FilterState::Usable(_)));
    let handle = table.resident().unwrap().footer.filter.unwrap();
    fs.corrupt(PATH, handle.offset + 70, 0xff).unwrap();

    let told = Arc::new(Mutex::new(Vec::new()));
    let events = {
        let told = Arc::clone(&told);
        Delivery::default().connect(&Listener::new(move |event| told.lock().push(event.to_string())))
    };
    let context = TableContext::new(Arc::new(fs.clone()), Path::new("/db"), 0, 8).with_events(events.clone());
    let table = Arc::new(Table::new(Arc::new(context), meta));
    assert_eq!(table.known_filter_state(), None);
    let rule = "the checksum of a block does not match";
    assert_eq!(table.filter_state().unwrap(), FilterState::Degraded(rule.to_owned()));
    for (key, seqno, ..) in &entries {
        let hit = look_up(&table, &point_read(key, *seqno, FilterMode::Use), &mut Untraced);
        assert_eq!(hit.unwrap().unwrap().seqno, *seqno);
    }
    let stats = table.ledger().reads;
    assert_eq!((stats.degraded, stats.probes, stats.skipped), (entries.len() as u64, 0, 0));
    // Once, not for every look-up.
    events.finish();
    let told = told.lock().clone();
    assert!(told.len() == 1 && told[0].contains("means \"maybe\"") && told[0].contains(rule), "{told:?}");
    let error = table.verify().unwrap_err();
    assert!(matches!(error, Error::Corruption { offset, .. } if offset == handle.offset), "{error}");
}

/// Number of keys of the small table that reads with filters find.
fn found_by_filter(table: &Table) -> u64 {
    let is_found = |i: &u64| {
        let key = format!("key{i:04}");
        let read = point_read(key.as_bytes(), MAX_SEQNO, FilterMode::Use);
        look_up(table, &read, &mut Untraced).unwrap().is_some()
    };
    (0..KEYS).filter(is_found).count() as u64
}

/// Issue 13, fault 20. The other filter is sound and matches everything else that the table states.
#[test]
fn the_filter_of_another_table_with_as_many_keys_means_maybe() {
    let policy = FilterPolicy::DEFAULT;
    let (fs, meta, _) = small(policy, Compression::None);
    let handle = open(&fs, &meta, 0).resident().unwrap().footer.filter.unwrap();
    let mut other = FilterBuilder::new(policy, SEED);
    (0..KEYS).for_each(|i| other.add(KeyHash::new(SEED, &i.to_le_bytes())));
    let mut bytes = fs.read(PATH).unwrap();
    put_block(&mut bytes, handle, &other.finish().unwrap().bytes);
    fs.write(PATH, &bytes[..]).unwrap();
    let meta = TableMeta { checksum: file_checksum(&bytes), ..meta };

    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let events = Delivery::default().connect(&Listener::new(move |event| listener.lock().push(event.to_string())));
    let context = TableContext::new(Arc::new(fs.clone()), Path::new("/db"), 0, 8).with_events(events.clone());
    let table = Table::new(Arc::new(context), meta.clone());
    assert_eq!(found_by_filter(&table), KEYS);
    let rule = "the hash of the filter is not the one in the properties";
    assert_eq!(table.filter_state().unwrap(), FilterState::Degraded(rule.to_owned()));
    assert_eq!(table.ledger().reads.degraded, KEYS);
    events.finish();
    assert!(told.lock().len() == 1 && told.lock()[0].contains(rule), "{:?}", told.lock());
    let error = table.verify().unwrap_err();
    assert!(error.to_string().contains(rule), "{error}");

    // A rebuild of the filter makes the table sound again.
    assert!(!table.has_filters(POINTS, 0).unwrap());
    let copy = table.refilter(13, POINTS, &Origin::default(), WRITE_LEN, &|_| false).unwrap().unwrap();
    let copy = open(&fs, &copy, 0);
    copy.verify().unwrap();
    assert_eq!((found_by_filter(&copy), copy.has_filters(POINTS, 0).unwrap()), (KEYS, true));
}

/// A table of an older version opens, and its filter is trusted.
#[test]
fn a_table_need_not_say_the_hash_of_its_filter() {
    let (fs, meta, _) = small(FilterPolicy::DEFAULT, Compression::None);
    let handle = open(&fs, &meta, 0).resident().unwrap().footer.properties;
    let mut bytes = fs.read(PATH).unwrap();
    let start = usize::try_from(handle.offset).unwrap();
    let block = bytes[start..start + handle.len as usize].to_vec();
    let at = block.windows(2).position(|field| field == [20, 8]).unwrap();
    // Replace the tag by an unknown one.
    let renamed = [&block[..at], &[60], &block[at + 1..]].concat();
    put_block(&mut bytes, handle, &renamed);
    fs.write(PATH, &bytes[..]).unwrap();
    let table = open(&fs, &TableMeta { checksum: file_checksum(&bytes), ..meta }, 0);
    assert_eq!(found_by_filter(&table), KEYS);
    assert_eq!(table.ledger().reads.degraded, 0);
    table.verify().unwrap();
}

/// The properties hold the filter's hash, so they must not come from the other table either.
#[test]
fn the_filter_and_properties_of_another_table_are_refused() {
    let (fs, meta, _) = small(FilterPolicy::DEFAULT, Compression::None);
    let resident_footer = open(&fs, &meta, 0).footer().unwrap();
    let sound = fs.read(PATH).unwrap();
    let keys: Vec<TableEntry> = (0..KEYS)
        .flat_map(|i| {
            let key = format!("yek{i:04}");
            [put(&key, i + 50, format!("new{i}")), put(&key, i + 1, "old old old old")]
        })
        .collect();
    let other_fs = file_system();
    let other_options = TableOptions { block_size: 256, ..options() };
    for (number, rule) in [(NUMBER + 1, "properties are those of another table"), (NUMBER, "range of keys")] {
        let mut builder = TableBuilder::new(&other_fs, Path::new("/db"), number, other_options).unwrap();
        for (key, seqno, kind, value) in &keys {
            builder.add(key, *seqno, *kind, value).unwrap();
        }
        let other = open(&other_fs, &builder.finish().unwrap(), 0);
        let (footer, mut bytes) = (other.footer().unwrap(), sound.clone());
        let pairs = [
            (footer.filter.unwrap(), resident_footer.filter.unwrap()),
            (footer.properties, resident_footer.properties),
        ];
        for (from, to) in pairs {
            put_block(&mut bytes, to, &other.fetcher().meta_block(from).unwrap());
        }
        fs.write(PATH, &bytes[..]).unwrap();
        let meta = TableMeta { checksum: file_checksum(&bytes), ..meta.clone() };
        let error = get(&open(&fs, &meta, 0), "key0001", MAX_SEQNO).unwrap_err();
        assert!(error.to_string().contains(rule), "{error}");
    }
}

/// A filter of other keys with a matching hash: a bug in the writer.
#[test]
fn a_filter_that_denies_a_key_is_found_by_shadow_reads_and_by_verify() {
    let mut other = FilterBuilder::new(FilterPolicy::DEFAULT, SEED);
    (KEYS..2 * KEYS).for_each(|i| other.add(KeyHash::new(SEED, &i.to_le_bytes())));
    let (fs, meta, _) = small(FilterPolicy::DEFAULT, Compression::None);
    let (fs, meta) = with_filter(&fs, &meta, other, |_| {});

    let table = open(&fs, &meta, 0);
    let errors = (0..KEYS)
        .filter_map(|i| get(&table, format!("key{i:04}"), MAX_SEQNO).err())
        .inspect(|error| assert!(error.to_string().contains("denies"), "{error}"))
        .count();
    assert!(errors as u64 > KEYS / 2);
    let error = table.verify().unwrap_err();
    assert!(error.to_string().contains("denies"), "{error}");
}

#[test]
fn a_filter_that_denies_a_prefix_is_found_by_shadow_scans_and_by_verify() {
    let extractor = crate::filter::PrefixExtractor::Fixed(6);
    let fs = file_system();
    let keys: Vec<String> = (0..KEYS).map(|i| format!("key{i:04}")).collect();
    let entries: Vec<TableEntry> = keys.iter().map(|key| put(key, 1, "")).collect();
    let meta =
        build(&fs, TableOptions { filters: TableFilters { prefix: Some(extractor), ..POINTS }, ..options() }, &entries);
    // All keys, but with other prefixes.
    let mut other = FilterBuilder::new(FilterPolicy::DEFAULT, SEED).with_prefixes(Some(extractor));
    for (i, key) in keys.iter().enumerate() {
        other.add_key(format!("not{i:04}").as_bytes(), KeyHash::new(SEED, key.as_bytes()));
    }
    let (fs, meta) = with_filter(&fs, &meta, other, |_| {});

    let table = open(&fs, &meta, 0);
    let probe = |mode| table.may_hold_prefix(&PrefixProbe::new(extractor, b"key000", SEED, mode));
    assert!(!probe(FilterMode::Use).unwrap());
    let error = probe(FilterMode::Shadow).unwrap_err();
    assert!(error.to_string().contains("denies the prefix"), "{error}");
    let error = table.verify().unwrap_err();
    assert!(error.to_string().contains("or its prefix"), "{error}");
}

/// Copies a table with another filter.
fn with_filter(
    fs: &SimFileSystem,
    meta: &TableMeta,
    filter: FilterBuilder,
    change: impl FnOnce(&mut Properties),
) -> (SimFileSystem, TableMeta) {
    copy_with(fs, meta, |properties, filters| {
        let filter = filter.finish();
        properties.filter_keys = filter.as_ref().map_or(0, |filter| filter.info.keys);
        properties.filter_hash = filter.as_ref().map(|filter| filter_hash(&filter.bytes));
        filters.points = filter.map(|filter| filter.bytes);
        change(properties);
    })
}

/// A filter of another table is sound in itself and may deny every key.
#[test]
fn a_filter_that_contradicts_the_table_is_not_believed() {
    let filter = |policy, keys: u64| {
        let mut filter = FilterBuilder::new(policy, SEED);
        (0..keys).for_each(|i| filter.add(KeyHash::new(SEED, &i.to_le_bytes())));
        filter
    };
    let bloom = |bits_per_key| FilterPolicy::Bloom { bits_per_key };
    let (policy, keys) = (FilterPolicy::DEFAULT, KEYS);
    type Case = (FilterBuilder, fn(&mut Properties), Option<&'static str>);
    let cases: [Case; 7] = [
        (filter(policy, keys), |_| {}, None),
        (filter(bloom(12.0), keys), |_| {}, Some("properties describe")),
        (filter(policy, keys), |properties| properties.filter_policy = 2, Some("properties describe")),
        (filter(policy, 0), |_| {}, Some("properties describe")),
        (filter(policy, 0), |properties| properties.filter_policy = 255, Some("number of keys")),
        (filter(policy, keys - 1), |_| {}, Some("number of keys")),
        (filter(policy, keys + 1), |_| {}, Some("number of keys")),
    ];
    for (filter, change, expected) in cases {
        let (fs, meta, _) = small(FilterPolicy::DEFAULT, Compression::None);
        let (fs, meta) = with_filter(&fs, &meta, filter, change);
        let table = open(&fs, &meta, 0);
        let found = found_by_filter(&table);
        let verified = table.verify().unwrap_err().to_string();
        match expected {
            // A consistent filter is trusted; only verify and shadow reads detect that it is wrong.
            None => assert!(found < KEYS && verified.contains("denies"), "{found} {verified}"),
            Some(rule) => {
                assert_eq!(found, KEYS, "{rule}");
                let FilterState::Degraded(reason) = table.filter_state().unwrap() else { panic!("{rule}") };
                assert!(reason.contains(rule) && verified.contains(&reason), "{reason} {verified}");
                assert!(!table.has_filters(POINTS, 0).unwrap());
            }
        }
    }
}

/// A value changed together with its block's checksum. Only the file's checksum detects it, and no
/// copy may get valid checksums from it.
#[test]
fn a_copy_refuses_a_block_that_the_file_s_checksum_refutes() {
    let (fs, meta, entries) = small(FilterPolicy::DEFAULT, Compression::None);
    let sound = fs.read(PATH).unwrap();
    let table = open(&fs, &meta, 0);
    let (block, filter) = (all_handles(&fs, &meta)[1], table.resident().unwrap().footer.filter.unwrap());
    let mut changed = sound.clone();
    let start = usize::try_from(block.offset).unwrap();
    let value = changed[start..].windows(3).position(|bytes| bytes == b"old").unwrap();
    changed[start + value] = b'O';
    reseal(&mut changed, block);
    let refilter = |number| open(&fs, &meta, 0).refilter(number, POINTS, &Origin::default(), WRITE_LEN, &|_| false);

    fs.write(PATH, changed).unwrap();
    let error = refilter(13).unwrap_err();
    assert!(error.to_string().contains("checksum of the file"), "{error}");
    assert!(fs.read("/db/000013.sst").is_err());
    // A damaged filter makes that check impossible, but must not prevent its own repair.
    fs.write(PATH, sound).unwrap();
    fs.corrupt(PATH, filter.offset + 70, 1).unwrap();
    let copy = refilter(13).unwrap().unwrap();
    let copy = open(&fs, &copy, 0);
    copy.verify().unwrap();
    assert_eq!(entries_of(&copy, false).unwrap(), entries);
}

/// Replaces a block by one of equal length and corrects its checksum.
fn put_block(bytes: &mut [u8], handle: BlockHandle, block: &[u8]) {
    assert_eq!(block.len(), handle.len as usize);
    let start = usize::try_from(handle.offset).unwrap();
    bytes[start..][..block.len()].copy_from_slice(block);
    reseal(bytes, handle);
}

fn reseal(bytes: &mut [u8], handle: BlockHandle) {
    let start = usize::try_from(handle.offset).unwrap();
    let end = start + handle.len as usize + 1;
    let crc = bound_crc(NUMBER, handle.offset, &bytes[start..end]);
    bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
}

fn all_handles(fs: &SimFileSystem, meta: &TableMeta) -> Vec<BlockHandle> {
    let table = open(fs, meta, 0);
    let resident = table.resident().unwrap();
    let footer = resident.footer;
    (0..resident.index.resident().unwrap().len())
        .map(|i| resident.index.resident().unwrap().handle(i))
        .chain(footer.filter)
        .chain([footer.properties, footer.index])
        .collect()
}

/// Changes each byte of every block and trailer and corrects the checksum, as a writer's bug or
/// malice would.
#[test]
fn rules_are_checked_behind_right_checksums() {
    let lz4 = Some(Compression::Lz4).filter(|lz4| lz4.is_available());
    for compression in [Some(Compression::None), lz4].into_iter().flatten() {
        let (fs, meta, entries) = small(FilterPolicy::DEFAULT, compression);
        let bytes = fs.read(PATH).unwrap();
        for handle in all_handles(&fs, &meta) {
            for at in 0..=u64::from(handle.len) {
                let mut damaged = bytes.clone();
                let at = usize::try_from(handle.offset + at).unwrap();
                damaged[at] ^= if at % 3 == 0 { 0x80 } else { 0x05 };
                reseal(&mut damaged, handle);
                let meta = TableMeta { checksum: file_checksum(&damaged), ..meta.clone() };
                fs.write(PATH, damaged).unwrap();
                let table = open(&fs, &meta, 0);
                for (key, seqno, ..) in entries.iter().step_by(9) {
                    let _ = get(&table, key, *seqno);
                }
                let _ = entries_of(&table, true);
                let _ = table.verify();
            }
        }
    }
}

#[test]
fn verify_finds_what_only_it_can_find() {
    let (fs, meta, _) = small(FilterPolicy::DEFAULT, Compression::None);
    let bytes = fs.read(PATH).unwrap();
    let handle = all_handles(&fs, &meta)[1];
    let start = usize::try_from(handle.offset).unwrap();
    let n = usize::from(bytes[start + 4]);
    // A fingerprint, an entry offset, the last byte of the last head: each with a right checksum.
    for (at, rule) in [(start + 16, "fingerprint"), (start + 16 + n, "gap"), (start + 16 + n * 3, "head")] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        reseal(&mut damaged, handle);
        let meta = TableMeta { checksum: file_checksum(&damaged), ..meta.clone() };
        fs.write(PATH, damaged).unwrap();
        let error = open(&fs, &meta, 0).verify().unwrap_err();
        assert!(matches!(error, Error::Corruption { offset, .. } if offset == handle.offset), "{rule}: {error}");
    }
}

#[test]
fn a_table_that_is_not_as_the_manifest_says_is_refused() {
    let (fs, meta, _) = small(FilterPolicy::DEFAULT, Compression::None);
    let wrong: [fn(&mut TableMeta); 7] = [
        |meta| meta.size += 1,
        |meta| meta.entries += 1,
        |meta| meta.tombstones += 1,
        |meta| meta.smallest_seqno += 1,
        |meta| meta.largest_seqno += 1,
        |meta| meta.smallest = b"key0000a".as_slice().into(),
        |meta| meta.largest = b"key".as_slice().into(),
    ];
    for change in wrong {
        let mut meta = meta.clone();
        change(&mut meta);
        let error = get(&open(&fs, &meta, 0), "key0001", MAX_SEQNO).unwrap_err();
        assert!(error.is_corruption(), "{error}");
    }
    let renamed = TableMeta { number: 13, ..meta };
    fs.write("/db/000013.sst", fs.read(PATH).unwrap()).unwrap();
    let error = get(&open(&fs, &renamed, 0), "key0001", MAX_SEQNO).unwrap_err();
    assert!(error.is_corruption(), "{error}");
}

#[test]
fn a_compression_that_is_not_built_in_is_named() {
    let (fs, meta, _) = small(FilterPolicy::None, Compression::None);
    let handle = all_handles(&fs, &meta)[0];
    let mut bytes = fs.read(PATH).unwrap();
    bytes[usize::try_from(handle.offset).unwrap() + handle.len as usize] = 9;
    reseal(&mut bytes, handle);
    fs.write(PATH, bytes).unwrap();
    let error = get(&open(&fs, &meta, 0), "key0000", MAX_SEQNO).unwrap_err();
    let named = matches!(error, Error::Unsupported { what: "block compression", found: 9, .. });
    assert!(named, "{error}");
}

/// Fails the k-th read, for every k: an error, or an answer without the filter. Afterwards all
/// reads work.
#[test]
fn read_errors_are_reported_and_not_remembered() {
    let (fs, meta, entries) = small(FilterPolicy::DEFAULT, Compression::None);
    for at in 1.. {
        let table = open(&fs, &meta, 0);
        fs.set_fault(Some(Fault { at, mode: FaultMode::ReadError, sticky: false }));
        let hit = get(&table, "key0010", MAX_SEQNO);
        let read = entries_of(&table, false);
        let struck = fs.fault_hit();
        fs.set_fault(None);
        for error in [hit.as_ref().err(), read.as_ref().err()].into_iter().flatten() {
            assert!(matches!(error, Error::Io { operation, .. } if ["open", "read"].contains(operation)));
        }
        assert!(get(&table, "key0010", MAX_SEQNO).unwrap().is_some());
        assert_eq!(entries_of(&table, false).unwrap(), entries);
        if !struck {
            assert!(at > 10);
            break;
        }
    }
}

/// Fails the k-th write of a build, for every k: an error, and no file.
#[test]
fn a_build_that_fails_leaves_no_file() {
    let entries: Vec<TableEntry> = (0..20).map(|i| put([i], 1, vec![i; 100_000])).collect();
    for mode in [FaultMode::Io, FaultMode::NoSpace, FaultMode::ShortWrite] {
        for at in 1.. {
            let fs = file_system();
            let sticky = false;
            fs.set_fault(Some(Fault { at, mode, sticky }));
            match try_build(&fs, options(), &entries) {
                Ok(meta) if !fs.fault_hit() => {
                    open(&fs, &meta, 0).verify().unwrap();
                    assert!(at > 3);
                    break;
                }
                Ok(_) => panic!("{mode:?} at {at} went unnoticed"),
                Err(error) => {
                    assert!(matches!(error, Error::Io { .. }), "{error}");
                    assert_eq!(fs.paths(), Vec::<std::path::PathBuf>::new());
                }
            }
        }
    }
}
