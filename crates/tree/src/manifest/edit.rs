//! [`VersionEdit`]: one change to the contents of a store, the payload of a manifest record.
//!
//! An edit is a sequence of fields `tag: varint, length: varint, bytes`. Integers inside are
//! varints unless stated otherwise; a key or a name is `length: varint, bytes`.
//!
//! | tag | content | meaning |
//! |---|---|---|
//! | 1 | n | file numbers and keyspace ids below n may have been used |
//! | 2 | n | logs below number n are no longer needed |
//! | 3 | s | every entry up to sequence number s is in a table, or superseded by one that is |
//! | 4 | seed: u64 | hash seed of the store's filters |
//! | 5 | id, name, options | a keyspace exists from here on, or its options change |
//! | 6 | id | the keyspace is dropped, and all its tables |
//! | 7 | keyspace id, level, table | a table is added |
//! | 8 | keyspace id, level, file number | a table is removed |
//! | 9 | file number, s | the log exists and holds entry s, the last one synced; see FORMAT.md |
//! | 10 | file number, s | no range delete up to s deletes an entry of a table, as in tag 12 |
//! | 11 | file number, references | of a table that an earlier tag 7 of this edit adds |
//! | 12 | file number, deadlines | of a table that an earlier tag 7 of this edit adds |
//! | 13 | deadline | everything whose deadline is not later counts as expired from here on |
//! | 14 | keyspace id, value file | a value file is added, before the tables that point to it |
//! | 15 | file number, identity, s | of an ingested table, as in tag 12: s numbers all entries |
//! | 16 | s | ingests numbered up to s have taken effect: the manifest has or had their tables |
//! | 17 | file number, key | of an ingested range table, as in tag 12: its last range's end |
//! | 64 | n, id: u64 | a branch begins with file number n; see `branch` |
//! | 65 | note | a compaction is unfinished; replaces an older note of this id; see `unfinished` |
//! | 66 | id | the compaction of this note is over |
//! | 67 | file number, n | as in tag 12: n hidden entries stayed although no snapshot needed them |
//!
//! Level 7 holds the range tables of a keyspace, which may overlap.
//!
//! Tags 1 to 4, 9, 13 and 16 occur at most once. A manifest with tag 12 or 13, or with field 4 of a
//! keyspace's options, requires feature bit 2 in its header; one with field 5, bit 3; one with tag
//! 10 or level 7, bit 0; one with tag 11 or 14, or with field 6, bit 4; one with tag 15, 16 or 17,
//! bit 5. Readers refuse unknown tags below 64 and skip others. The rules between edits are in
//! `state`.
//!
//! ```text
//! table      = file number, size, file checksum, entries, distinct user keys, tombstones,
//!              smallest seqno, largest seqno, smallest key, largest key
//! value file = file number, size, file checksum, records
//! ```
//!
//! The options of a keyspace are those of the module `definition`. An edit after which no table
//! points to a value file removes that file.

use super::branch::Branch;
use super::definition::{keyspace_name, options, put_options, set_once};
use super::table_fields::{add_fact, number, put_facts, put_table, table};
use super::tag;
use super::unfinished::{CONTRADICTION, UnfinishedTask};
use crate::format::coding::{
    Decoder, put_bytes, put_field_with, put_u64_field, put_varint, put_varint_field, put_varints,
};
use crate::format::deadline::Deadline;
use crate::format::header::features;
use crate::format::key::SeqNo;
use crate::format::{Decoded, Malformed};
use crate::log::wal::SyncedLog;
use crate::options::KeyspaceOptions;
use crate::sorted::table::TableMeta;
use crate::sorted::values::ValueFileMeta;

/// Number of levels of a keyspace. Part of the format.
pub const LEVEL_COUNT: usize = 7;
/// The level of a keyspace's range tables, after all others. Part of the format.
pub const RANGE_LEVEL: u8 = 7;

/// One atomic change; absent fields keep their value. Drops take effect before creations, and
/// removals before additions. Therefore one edit can pass a name to another keyspace or move a
/// table to another level.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VersionEdit {
    /// File numbers and keyspace ids below it may have been used.
    pub next_file_number: Option<u64>,
    /// Logs with lower numbers are obsolete.
    pub min_log: Option<u64>,
    /// Every entry up to it is in a table, or superseded by an entry in one.
    pub flushed_seqno: Option<SeqNo>,
    pub hash_seed: Option<u64>,
    /// A log that must exist from here on, until it is obsolete.
    pub synced_log: Option<SyncedLog>,
    /// Everything whose deadline is not later counts as expired, whatever the clock says.
    pub expired_by: Option<Deadline>,
    /// Ingests numbered up to it need no log any more.
    pub ingested: Option<SeqNo>,
    /// Keyspaces created, or whose options change: id, name, options.
    pub created: Vec<(u32, String, KeyspaceOptions)>,
    pub dropped: Vec<u32>,
    /// Value files added: keyspace id, file.
    pub values: Vec<(u32, ValueFileMeta)>,
    /// Tables added: keyspace id, level, table.
    pub added: Vec<(u32, u8, TableMeta)>,
    /// Tables removed: keyspace id, level, file number.
    pub removed: Vec<(u32, u8, u64)>,
    /// Branches that begin.
    pub branches: Vec<Branch>,
    /// Compactions to go on with later, in place of what was known of them.
    pub unfinished: Vec<UnfinishedTask>,
    /// The ids of those that have ended.
    pub ended: Vec<u64>,
}

impl VersionEdit {
    /// The ids of the keyspaces that it is about, some of them more than once.
    pub fn keyspaces(&self) -> impl Iterator<Item = u32> {
        let defined = self.created.iter().map(|(id, ..)| *id).chain(self.dropped.iter().copied());
        let tables = self.added.iter().map(|(id, ..)| *id).chain(self.removed.iter().map(|(id, ..)| *id));
        defined.chain(tables).chain(self.values.iter().map(|(id, _)| *id))
    }

    /// The [`features`] that a reader of the edit needs.
    pub fn features(&self) -> u32 {
        let expires = self.expired_by.is_some()
            || self.added.iter().any(|(.., table)| table.deadlines.count > 0)
            || self.created.iter().any(|(.., options)| options.ttl.is_some());
        let is_unlogged = self.created.iter().any(|(.., options)| !options.wal);
        let added = || self.added.iter();
        let has_ranges = added().any(|(_, level, table)| *level == RANGE_LEVEL || table.cleared > 0)
            || self.removed.iter().any(|(_, level, _)| *level == RANGE_LEVEL);
        let separates = !self.values.is_empty()
            || added().any(|(.., table)| !table.references.is_empty())
            || self.created.iter().any(|(.., options)| options.separate_values.is_some());
        let ingests = self.ingested.is_some() || added().any(|(.., table)| table.ingested.is_some());
        let values = if separates { features::VALUES } else { 0 };
        let ingest = if ingests { features::INGEST } else { 0 };
        let expiry = if expires { features::EXPIRY } else { 0 };
        let unlogged = if is_unlogged { features::UNLOGGED } else { 0 };
        expiry | unlogged | values | ingest | if has_ranges { features::RANGE_DELETE } else { 0 }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put_numbers(&mut out);
        for &id in &self.dropped {
            put_varint_field(&mut out, tag::DROPPED, id.into());
        }
        for (id, name, options) in &self.created {
            put_field_with(&mut out, tag::CREATED, |content| {
                put_varint(content, (*id).into());
                put_bytes(content, name.as_bytes());
                put_options(content, options);
            });
        }
        for &(id, level, number) in &self.removed {
            put_field_with(&mut out, tag::REMOVED, |content| put_varints(content, [id.into(), level.into(), number]));
        }
        for &(id, ValueFileMeta { number, size, checksum, count }) in &self.values {
            let numbers = [id.into(), number, size, checksum.into(), count];
            put_field_with(&mut out, tag::VALUES, |content| put_varints(content, numbers));
        }
        for (id, level, table) in &self.added {
            put_field_with(&mut out, tag::ADDED, |content| {
                put_varints(content, [(*id).into(), (*level).into()]);
                put_table(content, table);
            });
            put_facts(&mut out, table);
        }
        for branch in &self.branches {
            put_field_with(&mut out, tag::BRANCH, |content| branch.put(content));
        }
        for note in &self.unfinished {
            put_field_with(&mut out, tag::UNFINISHED, |content| {
                note.put(content);
                put_bytes(content, &files_of(note).encode());
            });
        }
        for &id in &self.ended {
            put_varint_field(&mut out, tag::ENDED, id);
        }
        out
    }

    /// Encodes what it says of the store as a whole.
    fn put_numbers(&self, out: &mut Vec<u8>) {
        let put = |out: &mut Vec<u8>, tag, number: Option<u64>| {
            number.into_iter().for_each(|number| put_varint_field(out, tag, number));
        };
        put(out, tag::NEXT_FILE_NUMBER, self.next_file_number);
        put(out, tag::MIN_LOG, self.min_log);
        put(out, tag::FLUSHED_SEQNO, self.flushed_seqno);
        if let Some(seed) = self.hash_seed {
            put_u64_field(out, tag::HASH_SEED, seed);
        }
        if let Some(SyncedLog { number, seqno }) = self.synced_log {
            put_field_with(out, tag::SYNCED_LOG, |content| put_varints(content, [number, seqno]));
        }
        put(out, tag::EXPIRED_BY, self.expired_by);
        put(out, tag::INGESTED, self.ingested);
    }

    pub fn decode(payload: &[u8]) -> Decoded<VersionEdit> {
        VersionEdit::decode_with(payload, |content| {
            let note = UnfinishedTask::decode(content)?;
            with_files(note, VersionEdit::decode_plain(content.bytes()?)?)
        })
    }

    /// Decodes an edit that has no note of an unfinished compaction.
    fn decode_plain(payload: &[u8]) -> Decoded<VersionEdit> {
        VersionEdit::decode_with(payload, |_| Err(Malformed("a note of an unfinished compaction is in another one")))
    }

    fn decode_with(
        payload: &[u8],
        decode_note: impl Fn(&mut Decoder<'_>) -> Decoded<UnfinishedTask>,
    ) -> Decoded<VersionEdit> {
        let mut edit = VersionEdit::default();
        let mut fields = Decoder::new(payload);
        while let Some((tag, mut content)) = fields.field()? {
            match tag {
                tag::NEXT_FILE_NUMBER => set_once(&mut edit.next_file_number, number(&mut content)?)?,
                tag::MIN_LOG => set_once(&mut edit.min_log, number(&mut content)?)?,
                tag::FLUSHED_SEQNO => set_once(&mut edit.flushed_seqno, number(&mut content)?)?,
                tag::HASH_SEED => set_once(&mut edit.hash_seed, content.u64()?)?,
                tag::SYNCED_LOG => {
                    let synced = SyncedLog { number: number(&mut content)?, seqno: number(&mut content)? };
                    set_once(&mut edit.synced_log, synced)?;
                }
                tag::CREATED => {
                    let (id, name) = (content.varint_u32()?, keyspace_name(&mut content)?);
                    edit.created.push((id, name, options(&mut content)?));
                }
                tag::CLEARED | tag::REFERENCES | tag::DEADLINES | tag::INGESTED_TABLE | tag::RANGE_END | tag::KEPT => {
                    let table = edit.added_table(number(&mut content)?)?;
                    add_fact(table, tag, &mut content)?;
                }
                tag::VALUES => edit.values.push((content.varint_u32()?, value_file(&mut content)?)),
                tag::INGESTED => set_once(&mut edit.ingested, number(&mut content)?)?,
                tag::EXPIRED_BY => set_once(&mut edit.expired_by, content.varint()?)?,
                tag::DROPPED => edit.dropped.push(content.varint_u32()?),
                tag::ADDED => {
                    let (id, level) = (content.varint_u32()?, level(&mut content)?);
                    edit.added.push((id, level, table(&mut content)?));
                }
                tag::REMOVED => {
                    let (id, level) = (content.varint_u32()?, level(&mut content)?);
                    edit.removed.push((id, level, number(&mut content)?));
                }
                tag::BRANCH => edit.branches.push(Branch::decode(&mut content)?),
                tag::UNFINISHED => edit.unfinished.push(decode_note(&mut content)?),
                tag::ENDED => edit.ended.push(number(&mut content)?),
                other if other >= tag::OPTIONAL => continue,
                _ => return Err(Malformed("a version edit has a field of an unknown kind")),
            }
            content.finish()?;
        }
        Ok(edit)
    }

    /// The table of this number that the edit adds.
    fn added_table(&mut self, number: u64) -> Decoded<&mut TableMeta> {
        let mut added = self.added.iter_mut().rev().map(|(.., table)| table);
        added.find(|table| table.number == number).ok_or(Malformed("a field about a table that the edit does not add"))
    }
}

/// The edit that adds what an unfinished compaction has written.
fn files_of(note: &UnfinishedTask) -> VersionEdit {
    let (keyspace, level) = (note.keyspace, note.output_level);
    VersionEdit {
        added: note.tables.iter().map(|table| (keyspace, level, table.clone())).collect(),
        values: note.values.iter().map(|file| (keyspace, *file)).collect(),
        ..VersionEdit::default()
    }
}

/// A note with the files that an edit adds, which must say nothing else.
fn with_files(note: UnfinishedTask, written: VersionEdit) -> Decoded<UnfinishedTask> {
    let tables = written.added.iter().map(|(.., table)| table.clone()).collect();
    let values = written.values.iter().map(|(_, file)| *file).collect();
    let note = UnfinishedTask { tables, values, ..note };
    match files_of(&note) == written && usize::from(note.output_level) < LEVEL_COUNT {
        true => Ok(note),
        false => Err(CONTRADICTION),
    }
}

fn value_file(content: &mut Decoder<'_>) -> Decoded<ValueFileMeta> {
    Ok(ValueFileMeta {
        number: number(content)?,
        size: number(content)?,
        checksum: content.varint_u32()?,
        count: number(content)?,
    })
}

fn level(content: &mut Decoder<'_>) -> Decoded<u8> {
    match u8::try_from(content.varint()?) {
        Ok(level) if level <= RANGE_LEVEL => Ok(level),
        _ => Err(Malformed("a level is beyond the last one")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::super::definition::{decode_definition, encode_definition};
    use super::*;
    use crate::filter::{FINGERPRINT_BITS, FilterPolicy, PrefixExtractor, RangeFilterPolicy};
    use crate::format::coding::put_field;
    use crate::format::key::{MAX_KEY_LEN, MAX_SEQNO};
    use crate::format::span::KeySpan;
    use crate::options::{BudgetLimit, Compression, FilterBudget, LevelFilters};
    use crate::sorted::table::{Deadlines, Ingested, References};
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    pub(in crate::manifest) fn sample_table(number: u64, range: (&[u8], &[u8])) -> TableMeta {
        TableMeta {
            number,
            size: 4096,
            checksum: 0x89ab_cdef,
            entries: 30,
            keys: 28,
            tombstones: 2,
            deadlines: Deadlines::default(),
            references: Default::default(),
            smallest_seqno: 5,
            largest_seqno: 40,
            cleared: 0,
            ingested: None,
            range_end: None,
            kept: 0,
            smallest: range.0.into(),
            largest: range.1.into(),
        }
    }

    fn any_policy() -> impl Strategy<Value = FilterPolicy> {
        (0u8..3, 1000u16..=24_000).prop_map(|(kind, millibits)| {
            let bits_per_key = f32::from(millibits) / 1000.0;
            match kind {
                0 => FilterPolicy::None,
                1 => FilterPolicy::Bloom { bits_per_key },
                _ => FilterPolicy::BinaryFuse { fingerprint_bits: FINGERPRINT_BITS[usize::from(millibits) % 8] },
            }
        })
    }

    fn any_level_filters() -> impl Strategy<Value = LevelFilters> {
        let limit = prop_oneof![
            (1u16..=24_000).prop_map(|millibits| BudgetLimit::BitsPerKey(f32::from(millibits) / 1000.0)),
            any::<u64>().prop_map(BudgetLimit::Bytes),
        ];
        let budget =
            (limit, 0u16..=1000).prop_map(|(limit, absent)| FilterBudget { limit, absent: f32::from(absent) / 1000.0 });
        prop_oneof![
            Just(LevelFilters::Uniform),
            vec(any_policy(), 1..8).prop_map(LevelFilters::Each),
            budget.prop_map(LevelFilters::Budget),
        ]
    }

    fn any_options() -> impl Strategy<Value = KeyspaceOptions> {
        let compression = prop::sample::select(vec![Compression::None, Compression::Lz4, Compression::Zstd]);
        let prefix = option::of(prop_oneof![
            (1u16..4096).prop_map(PrefixExtractor::Fixed),
            any::<u8>().prop_map(PrefixExtractor::UpTo),
        ]);
        let ranges = prop_oneof![Just(0u64), 3000u64..=18_000];
        (any_policy(), any_level_filters(), compression, 256u32..=1 << 20, prefix, ranges).prop_map(
            |(filter, level_filters, compression, block_size, prefix, ranges)| {
                // A budget needs a filter policy.
                let filter = match (&level_filters, filter) {
                    (LevelFilters::Budget(_), FilterPolicy::None) => FilterPolicy::DEFAULT,
                    (_, filter) => filter,
                };
                let range_filter = RangeFilterPolicy::of_millibits(ranges).unwrap();
                let defaults = KeyspaceOptions { range_filter, ..KeyspaceOptions::default() };
                KeyspaceOptions { filter, level_filters, compression, block_size, prefix, ..defaults }
            },
        )
    }

    fn any_table() -> impl Strategy<Value = TableMeta> {
        let key = || vec(any::<u8>(), 0..40);
        let number = || 0..=MAX_SEQNO;
        ([number(), number()], any::<u32>(), [1..=MAX_SEQNO, number()], [number(), number()], [key(), key()]).prop_map(
            |([number, size], checksum, [entries, tombstones], mut seqnos, mut keys)| {
                seqnos.sort();
                keys.sort();
                let [smallest, largest] = keys;
                TableMeta {
                    number,
                    size,
                    checksum,
                    entries,
                    keys: tombstones % entries + 1,
                    tombstones: tombstones % entries,
                    deadlines: Deadlines {
                        count: (u64::from(checksum) % 3).min(entries),
                        first: 7 * (u64::from(checksum) % 3).min(1),
                        quarter: u64::MAX * (u64::from(checksum) % 3).min(1),
                        last: 9 * (u64::from(checksum) % 3).min(1),
                    },
                    references: References::default(),
                    smallest_seqno: seqnos[usize::from(checksum % 5 == 0)],
                    largest_seqno: seqnos[1],
                    cleared: 0,
                    ingested: (checksum % 5 == 0).then_some(Ingested { identity: !number, seqno: seqnos[1] }),
                    kept: tombstones % entries,
                    range_end: (checksum % 10 == 0).then(|| [&*largest, b"\0"].concat().into()),
                    smallest: smallest.into(),
                    largest: largest.into(),
                }
            },
        )
    }

    fn any_value_file() -> impl Strategy<Value = ValueFileMeta> {
        let number = || 0..=MAX_SEQNO;
        (number(), number(), any::<u32>(), number()).prop_map(|(number, size, checksum, count)| ValueFileMeta {
            number,
            size,
            checksum,
            count,
        })
    }

    fn any_note() -> impl Strategy<Value = UnfinishedTask> {
        let keys = vec(vec(any::<u8>(), 0..9), 4).prop_map(|mut keys| {
            keys.sort();
            keys
        });
        let files = (vec(any_table(), 0..3), vec(any_value_file(), 0..2));
        (any::<u64>(), any::<u32>(), (0u8..7, 0u8..7), 0..=MAX_SEQNO, keys, files).prop_map(
            |(id, keyspace, (a, b), number, keys, (tables, values))| UnfinishedTask {
                id,
                keyspace,
                start_level: a.min(b),
                output_level: a.max(b),
                inputs: vec![(a.min(b), number), (a.max(b), number + 1)],
                stage: KeySpan { lower: None, upper: keys.last().cloned() },
                done: vec![
                    KeySpan { lower: None, upper: Some(keys[0].clone()) },
                    KeySpan { lower: Some(keys[1].clone()), upper: Some(keys[2].clone()) },
                ],
                tables,
                values,
            },
        )
    }

    prop_compose! {
        fn any_edit()(
            next_file_number in option::of(0..=MAX_SEQNO),
            min_log in option::of(0..=MAX_SEQNO),
            flushed_seqno in option::of(0..=MAX_SEQNO),
            hash_seed: Option<u64>,
            synced_log in option::of((0..=MAX_SEQNO, 0..=MAX_SEQNO)),
            expired_by: Option<u64>,
            ingested in option::of(0..=MAX_SEQNO),
            created in vec((any::<u32>(), "\\PC{1,60}", any_options()), 0..4),
            dropped in vec(any::<u32>(), 0..4),
            added in vec((any::<u32>(), 0u8..7, any_table()), 0..4),
            removed in vec((any::<u32>(), 0u8..7, 0..=MAX_SEQNO), 0..4),
            values in vec((any::<u32>(), any_value_file()), 0..4),
            branches in vec((any::<u64>(), any::<u64>()), 0..3),
            unfinished in vec(any_note(), 0..2),
            ended in vec(0..=MAX_SEQNO, 0..3),
        ) -> VersionEdit {
            VersionEdit {
                synced_log: synced_log.map(|(number, seqno)| SyncedLog { number, seqno }),
                next_file_number, min_log, flushed_seqno, hash_seed, created, dropped, added, removed,
                expired_by, ingested, values, unfinished, ended,
                branches: branches.into_iter().map(|(first, id)| Branch { first, id }).collect(),
            }
        }
    }

    proptest! {
        #[test]
        fn edit_round_trips(edit in any_edit()) {
            for (_, name, options) in &edit.created {
                let definition = decode_definition(&encode_definition(name, options));
                prop_assert_eq!(definition, Ok((name.clone(), options.clone())));
            }
            prop_assert_eq!(VersionEdit::decode(&edit.encode()), Ok(edit));
        }

        #[test]
        fn damaged_edit_never_panics(edit in any_edit(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
            let mut bytes = edit.encode();
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
                let _ = VersionEdit::decode(&bytes);
                let _ = VersionEdit::decode(&bytes[..cut.index(bytes.len())]);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = VersionEdit::decode(&bytes);
        }
    }

    #[track_caller]
    fn check_refused(edit: &VersionEdit, rule: &str) {
        let error = VersionEdit::decode(&edit.encode()).unwrap_err();
        assert!(error.0.contains(rule), "{error}");
    }

    #[test]
    fn edit_out_of_bounds_is_refused() {
        let good = sample_table(9, (b"a", b"m"));
        let with_table = |table: TableMeta| VersionEdit { added: vec![(0, 1, table)], ..VersionEdit::default() };
        let with_name = |name: &str| VersionEdit {
            created: vec![(1, name.to_owned(), KeyspaceOptions::new())],
            ..VersionEdit::default()
        };
        let with_options = |options: KeyspaceOptions| VersionEdit {
            created: vec![(1, "a".to_owned(), options)],
            ..VersionEdit::default()
        };
        check_refused(&with_table(sample_table(9, (b"n", b"m"))), "smallest key");
        check_refused(&with_table(TableMeta { tombstones: 31, ..good.clone() }), "tombstones");
        check_refused(
            &with_table(TableMeta { smallest_seqno: 41, ..good.clone() }),
            "sequence number exceeds its largest",
        );
        check_refused(&with_table(TableMeta { largest_seqno: MAX_SEQNO + 1, ..good.clone() }), "56 bits");
        check_refused(&with_table(TableMeta { largest: vec![b'z'; MAX_KEY_LEN + 1].into(), ..good.clone() }), "1 MiB");
        check_refused(&with_name(""), "1 to 255");
        check_refused(&with_name(&"a".repeat(256)), "1 to 255");
        check_refused(&with_options(KeyspaceOptions::new().block_size(255)), "block size");
        let filter = FilterPolicy::Bloom { bits_per_key: 24.5 };
        check_refused(&with_options(KeyspaceOptions::new().filter(filter)), "bits per key");
        let fuse = FilterPolicy::BinaryFuse { fingerprint_bits: 9 };
        check_refused(&with_options(KeyspaceOptions::new().filter(fuse)), "fingerprints");
        let with_levels = |level_filters| with_options(KeyspaceOptions::new().level_filters(level_filters));
        let budget = |bits, absent| LevelFilters::Budget(FilterBudget::bits_per_key(bits).absent(absent));
        check_refused(&with_levels(LevelFilters::Each(Vec::new())), "missing");
        check_refused(&with_levels(LevelFilters::Each(vec![FilterPolicy::None; 8])), "bytes follow the last field");
        check_refused(&with_levels(LevelFilters::Each(vec![filter])), "bits per key");
        check_refused(&with_levels(budget(24.1, 1.0)), "24 bits per key");
        check_refused(&with_levels(budget(0.0, 1.0)), "24 bits per key");
        check_refused(&with_levels(budget(10.0, 1.1)), "share");
        let no_filter = KeyspaceOptions::new().filter(FilterPolicy::None).level_filters(budget(10.0, 1.0));
        check_refused(&with_options(no_filter), "no filter");
        let removed = VersionEdit { removed: vec![(0, 8, 9)], ..VersionEdit::default() };
        check_refused(&removed, "level");
    }

    #[test]
    fn edit_at_the_bounds_is_taken() {
        let key = vec![b'k'; MAX_KEY_LEN];
        let table = TableMeta {
            entries: 3,
            keys: 3,
            tombstones: 3,
            smallest_seqno: MAX_SEQNO,
            largest_seqno: MAX_SEQNO,
            ..sample_table(MAX_SEQNO, (&key, &key))
        };
        let edit = VersionEdit { added: vec![(u32::MAX, 6, table)], ..VersionEdit::default() };
        assert_eq!(VersionEdit::decode(&edit.encode()), Ok(edit));
    }

    #[test]
    fn optional_fields_of_options_are_checked() {
        let with_field = |tag: u64, value: u64, times: usize| {
            let mut content = vec![1];
            put_bytes(&mut content, b"a");
            put_options(&mut content, &KeyspaceOptions::new());
            (0..times).for_each(|_| put_varint_field(&mut content, tag, value));
            let mut payload = Vec::new();
            put_field(&mut payload, tag::CREATED, &content);
            VersionEdit::decode(&payload).map(|edit| edit.created[0].2.prefix)
        };
        assert_eq!(with_field(2, 0x1004, 0), Ok(None));
        assert_eq!(with_field(2, 0x1004, 1), Ok(Some(PrefixExtractor::Fixed(4))));
        assert_eq!((with_field(4, 1, 1), with_field(4, 0, 1).is_err()), (Ok(None), true), "a ttl is not 0");
        assert_eq!(with_field(64, 7, 2), Ok(None), "a field of a later version that may be skipped");
        assert_eq!(with_field(7, 12_000, 1), Ok(None), "a range filter");
        let bad_ranges = [(7, 12_000, 2), (7, 2999, 1), (7, 18_001, 1)];
        let bad = [(2, 0x1004, 2), (2, 0, 1), (2, 0x3000, 1), (2, 1 << 16, 1), (63, 0, 1)];
        for (tag, value, times) in bad.into_iter().chain(bad_ranges) {
            assert!(with_field(tag, value, times).is_err(), "{tag} {value}");
        }
    }

    #[test]
    fn a_filter_policy_of_an_unknown_kind_is_refused() {
        let with_code = |code: u8| {
            let mut bytes = encode_definition("a", &KeyspaceOptions::new());
            // Behind the name, the block size and the compression.
            assert_eq!(bytes[5], FilterPolicy::DEFAULT.code());
            bytes[5] = code;
            decode_definition(&bytes).map(|(_, options)| options.filter)
        };
        assert_eq!(with_code(1), Ok(FilterPolicy::DEFAULT));
        for code in [2, 3, 5, 127] {
            assert_eq!(with_code(code), Err(Malformed("a filter policy is of an unknown kind")), "{code}");
        }
    }

    #[test]
    fn what_expires_is_stored_as_these_bytes() {
        let mut table = sample_table(12, (b"a", b"b"));
        table.deadlines = Deadlines { count: 3, first: 5, quarter: 6, last: 300 };
        let edit = VersionEdit { expired_by: Some(4), added: vec![(1, 0, table.clone())], ..VersionEdit::default() };
        assert_eq!(edit.features(), features::EXPIRY);
        let bytes = edit.encode();
        assert!(bytes.starts_with(&[13, 1, 4, 7]), "{bytes:?}");
        assert!(bytes.ends_with(&[12, 6, 12, 3, 5, 6, 0xac, 2]), "{bytes:?}");
        assert_eq!(VersionEdit::decode(&bytes), Ok(edit));
        // Deadlines belong to a table of the edit, once, and not to more entries than it has.
        let with = |number: u64, count: u64, times: usize| {
            let edit = VersionEdit { added: vec![(1, 0, sample_table(12, (b"a", b"b")))], ..VersionEdit::default() };
            let (mut payload, mut content) = (edit.encode(), Vec::new());
            put_varint(&mut content, number);
            Deadlines { count, ..table.deadlines }.put(&mut content);
            (0..times).for_each(|_| put_field(&mut payload, tag::DEADLINES, &content));
            VersionEdit::decode(&payload).is_ok()
        };
        assert!(with(12, 30, 1) && !with(12, 31, 1) && !with(11, 3, 1) && !with(12, 3, 2));
        let mut options = Vec::new();
        put_options(&mut options, &KeyspaceOptions::new().ttl(Duration::from_millis(300)));
        assert!(options.ends_with(&[4, 2, 0xac, 2]), "{options:?}");
    }

    #[test]
    fn name_must_be_utf8() {
        let mut content = vec![1];
        put_bytes(&mut content, b"\xff\xfe");
        put_options(&mut content, &KeyspaceOptions::new());
        let mut payload = Vec::new();
        put_field(&mut payload, tag::CREATED, &content);
        assert!(VersionEdit::decode(&payload).is_err());
    }

    #[test]
    fn unknown_field_is_skipped_from_tag_64_on_only() {
        for (tag, known) in [(0, false), (9, false), (63, false), (68, true), (999, true)] {
            let mut payload = Vec::new();
            put_field(&mut payload, tag, b"whatever");
            assert_eq!(VersionEdit::decode(&payload).is_ok(), known, "tag {tag}");
        }
    }

    #[test]
    fn number_stated_twice_or_with_bytes_left_over_is_refused() {
        let mut payload = Vec::new();
        put_varint_field(&mut payload, tag::MIN_LOG, 7);
        assert!(VersionEdit::decode(&payload).is_ok());
        put_varint_field(&mut payload, tag::MIN_LOG, 7);
        assert!(VersionEdit::decode(&payload).is_err());
        assert!(VersionEdit::decode(&[2, 2, 7, 0]).is_err());
    }
}
