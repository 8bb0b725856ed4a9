//! [`SstFormat`]: what the writer of a table must know of a keyspace.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::Malformed;
use crate::format::checksum::crc;
use crate::format::coding::{Decoder, get_u32, put_u32, put_u64, put_varint};
use crate::options::KeyspaceOptions;
use crate::sorted::table::{Origin, TableOptions};
use crate::tree::compaction::filters::fixed;
use crate::tree::manifest::{self, LEVEL_COUNT, decode_definition, encode_definition};
use crate::vfs::{FileSystem, OsFileSystem};

/// Describes the tables of a keyspace, so that a [`SstWriter`](crate::SstWriter) can write one:
/// compression, block size, filter policy and prefix extractor, the seed of the filters' hash, and
/// the name of the merge operator.
///
/// [`Keyspace::sst_format`](crate::Keyspace::sst_format) returns that of a keyspace, and
/// [`SstFormat::of_store`] reads it from a store that is not open. [`encode`](SstFormat::encode)
/// and [`decode`](SstFormat::decode) take it to another machine.
///
/// Tables written by it fit this keyspace in the store and in its copies, also if the options of
/// the keyspace have changed since. Only another prefix extractor or merge operator makes them
/// unfit. They fit no other keyspace, nor one of the same name that is created after a drop.
#[derive(Clone, PartialEq)]
pub struct SstFormat {
    seed: u64,
    keyspace: u32,
    name: String,
    options: KeyspaceOptions,
}

impl SstFormat {
    pub(crate) fn new(seed: u64, keyspace: u32, name: &str, options: KeyspaceOptions) -> SstFormat {
        SstFormat { seed, keyspace, name: name.to_owned(), options }
    }

    /// The format of a keyspace of the store in `dir`. Only its manifest is read: the store may be
    /// open in another process.
    ///
    /// Fails with [`Error::NotFound`] if there is no store, and with [`Error::InvalidArgument`] if
    /// it has no keyspace of that name.
    pub fn of_store(dir: impl AsRef<Path>, keyspace: &str) -> Result<SstFormat> {
        SstFormat::of_store_in(Arc::new(OsFileSystem::new()), dir, keyspace)
    }

    /// Like [`of_store`](SstFormat::of_store), for a store in `file_system`.
    pub fn of_store_in(file_system: Arc<dyn FileSystem>, dir: impl AsRef<Path>, keyspace: &str) -> Result<SstFormat> {
        let dir = dir.as_ref();
        let loaded = manifest::load(&*file_system, dir)?.ok_or_else(|| Error::NotFound(dir.to_owned()))?;
        let state = loaded.state;
        let found = state.keyspaces.iter().find(|(_, found)| found.name == keyspace);
        let (&id, found) =
            found.ok_or_else(|| Error::invalid(format_args!("the store has no keyspace called {keyspace:?}")))?;
        Ok(SstFormat::new(state.hash_seed, id, keyspace, found.options.clone()))
    }

    /// Name of the keyspace.
    pub fn keyspace(&self) -> &str {
        &self.name
    }

    /// Options of the keyspace.
    pub fn options(&self) -> &KeyspaceOptions {
        &self.options
    }

    /// The format as bytes, about 50 of them.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_u64(&mut out, self.seed);
        put_varint(&mut out, self.keyspace.into());
        out.extend(encode_definition(&self.name, &self.options));
        let crc = crc(&out);
        put_u32(&mut out, crc);
        out
    }

    /// The format that [`encode`](SstFormat::encode) has encoded. Fails with
    /// [`Error::InvalidArgument`] for other bytes.
    pub fn decode(bytes: &[u8]) -> Result<SstFormat> {
        let decode = || {
            let (content, sum) = bytes.split_last_chunk().ok_or(Malformed("they are too short"))?;
            if get_u32(sum) != crc(content) {
                return Err(Malformed("the checksum does not match"));
            }
            let mut fields = Decoder::new(content);
            let (seed, keyspace) = (fields.u64()?, fields.varint_u32()?);
            let (name, options) = decode_definition(fields.take(fields.remaining())?)?;
            Ok(SstFormat { seed, keyspace, name, options })
        };
        decode().map_err(|rule: Malformed| Error::invalid(format_args!("the bytes are no format of tables: {rule}")))
    }

    /// The keyspace, as a table states it.
    pub(super) fn origin(&self) -> Origin {
        Origin { keyspace: encode_definition(&self.name, &self.options), ..Origin::default() }
    }

    /// How a table is written: for the last level, where most of what is ingested goes.
    pub(super) fn table_options(&self) -> TableOptions {
        TableOptions {
            filters: fixed(&self.options, LEVEL_COUNT - 1),
            compression: self.options.compression,
            block_size: self.options.block_size,
            seed: self.seed,
            keyspace: self.keyspace,
        }
    }
}

impl fmt::Debug for SstFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SstFormat")
            .field("keyspace", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::PrefixExtractor;
    use crate::operator::Add;

    #[test]
    fn a_format_round_trips_and_every_flipped_bit_is_refused() {
        let options = KeyspaceOptions::new().prefix(PrefixExtractor::Fixed(4)).merge_operator(Add::LITTLE);
        let format = SstFormat::new(u64::MAX, 300, "words", options);
        let bytes = format.encode();
        assert_eq!(SstFormat::decode(&bytes).unwrap(), format);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(SstFormat::decode(&damaged), Err(Error::InvalidArgument(_))), "bit {bit}");
        }
        (0..bytes.len()).for_each(|len| assert!(SstFormat::decode(&bytes[..len]).is_err()));
    }
}
