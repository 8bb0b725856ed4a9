//! LevelDB, through its C interface.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};

use tamis_bench::contest::{Contestant, Kind};
use tamis_bench::engine::{Direction, Engine, Reader, Settings};
use tamis_bench::{Error, Result};

/// LevelDB's own defaults, except for the settings that all engines share and the number of open
/// files.
pub(crate) const LEVELDB: Contestant = Contestant::new::<LevelDb>(
    "leveldb",
    Kind::Lsm,
    "the system's LevelDB (Debian: 1.23), its own defaults; verifies checksums like the others; Snappy instead of LZ4",
);

/// The C interface, as leveldb/c.h declares it.
mod c {
    use super::{c_char, c_int, c_void};

    /// LevelDB's objects are opaque pointers.
    pub(super) type Object = *mut c_void;

    #[link(name = "leveldb")]
    unsafe extern "C" {
        pub(super) fn leveldb_open(options: Object, name: *const c_char, error: *mut *mut c_char) -> Object;
        pub(super) fn leveldb_close(db: Object);
        pub(super) fn leveldb_put(
            db: Object,
            options: Object,
            key: *const c_char,
            key_len: usize,
            value: *const c_char,
            value_len: usize,
            error: *mut *mut c_char,
        );
        pub(super) fn leveldb_delete(
            db: Object,
            options: Object,
            key: *const c_char,
            key_len: usize,
            error: *mut *mut c_char,
        );
        pub(super) fn leveldb_write(db: Object, options: Object, batch: Object, error: *mut *mut c_char);
        pub(super) fn leveldb_get(
            db: Object,
            options: Object,
            key: *const c_char,
            key_len: usize,
            value_len: *mut usize,
            error: *mut *mut c_char,
        ) -> *mut c_char;
        pub(super) fn leveldb_create_iterator(db: Object, options: Object) -> Object;
        pub(super) fn leveldb_compact_range(
            db: Object,
            start: *const c_char,
            start_len: usize,
            limit: *const c_char,
            limit_len: usize,
        );
        pub(super) fn leveldb_iter_destroy(iter: Object);
        pub(super) fn leveldb_iter_valid(iter: Object) -> u8;
        pub(super) fn leveldb_iter_seek_to_first(iter: Object);
        pub(super) fn leveldb_iter_seek_to_last(iter: Object);
        pub(super) fn leveldb_iter_seek(iter: Object, key: *const c_char, key_len: usize);
        pub(super) fn leveldb_iter_next(iter: Object);
        pub(super) fn leveldb_iter_prev(iter: Object);
        pub(super) fn leveldb_iter_key(iter: Object, len: *mut usize) -> *const c_char;
        pub(super) fn leveldb_iter_value(iter: Object, len: *mut usize) -> *const c_char;
        pub(super) fn leveldb_iter_get_error(iter: Object, error: *mut *mut c_char);
        pub(super) fn leveldb_writebatch_create() -> Object;
        pub(super) fn leveldb_writebatch_destroy(batch: Object);
        pub(super) fn leveldb_writebatch_put(
            batch: Object,
            key: *const c_char,
            key_len: usize,
            value: *const c_char,
            value_len: usize,
        );
        pub(super) fn leveldb_options_create() -> Object;
        pub(super) fn leveldb_options_destroy(options: Object);
        pub(super) fn leveldb_options_set_create_if_missing(options: Object, yes: u8);
        pub(super) fn leveldb_options_set_write_buffer_size(options: Object, bytes: usize);
        pub(super) fn leveldb_options_set_block_size(options: Object, bytes: usize);
        pub(super) fn leveldb_options_set_cache(options: Object, cache: Object);
        pub(super) fn leveldb_options_set_filter_policy(options: Object, filter: Object);
        pub(super) fn leveldb_options_set_max_open_files(options: Object, count: c_int);
        pub(super) fn leveldb_options_set_compression(options: Object, kind: c_int);
        pub(super) fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> Object;
        pub(super) fn leveldb_filterpolicy_destroy(filter: Object);
        pub(super) fn leveldb_cache_create_lru(bytes: usize) -> Object;
        pub(super) fn leveldb_cache_destroy(cache: Object);
        pub(super) fn leveldb_readoptions_create() -> Object;
        pub(super) fn leveldb_readoptions_destroy(options: Object);
        pub(super) fn leveldb_readoptions_set_verify_checksums(options: Object, yes: u8);
        pub(super) fn leveldb_writeoptions_create() -> Object;
        pub(super) fn leveldb_writeoptions_destroy(options: Object);
        pub(super) fn leveldb_writeoptions_set_sync(options: Object, yes: u8);
        pub(super) fn leveldb_free(pointer: *mut c_void);
    }
}

/// `leveldb_no_compression` and `leveldb_snappy_compression`.
const NO_COMPRESSION: c_int = 0;
const SNAPPY: c_int = 1;
/// More than its number of 2 MiB tables: LevelDB closes files above its default of 1000.
const OPEN_FILES: c_int = 10_000;

/// A database and its options, cache and filter policy, which it uses until it is closed.
pub(crate) struct LevelDb {
    db: c::Object,
    options: c::Object,
    cache: c::Object,
    filter: c::Object,
    read: c::Object,
    write: c::Object,
    synced: c::Object,
}

// SAFETY: several threads may use a LevelDB database, and options that are not changed, without
// synchronisation (leveldb/db.h: "Concurrency").
unsafe impl Sync for LevelDb {}

/// Calls `call` with a pointer for an error message, and returns the message as an error.
fn checked<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T> {
    let mut message = null_mut();
    let result = call(&mut message);
    if message.is_null() {
        return Ok(result);
    }
    // SAFETY: LevelDB sets the pointer to a zero-terminated string that the caller owns. It is not
    // used after it is freed.
    let error = unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        c::leveldb_free(message.cast());
        Error::from(text)
    };
    Err(error)
}

/// A slice as a C pointer and length.
fn raw(bytes: &[u8]) -> (*const c_char, usize) {
    (bytes.as_ptr().cast(), bytes.len())
}

impl Engine for LevelDb {
    type Reader<'a> = LevelDbReader<'a>;

    fn open(dir: &Path, settings: &Settings) -> Result<LevelDb> {
        let path = CString::new(dir.as_os_str().as_bytes())?;
        // SAFETY: the objects are created here, passed to setters of their own kind, and live as
        // long as the database.
        let (mut this, opened) = unsafe {
            let this = LevelDb {
                db: null_mut(),
                options: c::leveldb_options_create(),
                cache: c::leveldb_cache_create_lru(settings.cache),
                filter: c::leveldb_filterpolicy_create_bloom(settings.bloom_bits.into()),
                read: c::leveldb_readoptions_create(),
                write: c::leveldb_writeoptions_create(),
                synced: c::leveldb_writeoptions_create(),
            };
            c::leveldb_options_set_create_if_missing(this.options, 1);
            c::leveldb_options_set_write_buffer_size(this.options, settings.memtable);
            c::leveldb_options_set_block_size(this.options, settings.block);
            c::leveldb_options_set_cache(this.options, this.cache);
            c::leveldb_options_set_filter_policy(this.options, this.filter);
            c::leveldb_options_set_max_open_files(this.options, OPEN_FILES);
            c::leveldb_options_set_compression(this.options, if settings.compress { SNAPPY } else { NO_COMPRESSION });
            c::leveldb_readoptions_set_verify_checksums(this.read, 1);
            c::leveldb_writeoptions_set_sync(this.synced, 1);
            let opened = checked(|error| c::leveldb_open(this.options, path.as_ptr(), error));
            (this, opened)
        };
        this.db = opened?;
        Ok(this)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(self.write, key, value)
    }

    fn put_sync(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(self.synced, key, value)
    }

    fn put_batch(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        // SAFETY: the batch is created here, copies its arguments, and is destroyed once, after its
        // last use.
        unsafe {
            let batch = c::leveldb_writebatch_create();
            for (key, value) in entries {
                let ((key, key_len), (value, value_len)) = (raw(key), raw(value));
                c::leveldb_writebatch_put(batch, key, key_len, value, value_len);
            }
            let written = checked(|error| c::leveldb_write(self.db, self.write, batch, error));
            c::leveldb_writebatch_destroy(batch);
            written
        }
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let (key, len) = raw(key);
        // SAFETY: the database is open, and the key is not used after the call.
        checked(|error| unsafe { c::leveldb_delete(self.db, self.write, key, len, error) })
    }

    fn reader(&self) -> Result<LevelDbReader<'_>> {
        Ok(LevelDbReader { db: self })
    }

    fn flush(&self) -> Result<()> {
        // Compacting any range first flushes the memtable. This range is empty.
        let (start, len) = raw(&[0xff; 300]);
        // SAFETY: the database is open, and the keys are not used after the call.
        unsafe { c::leveldb_compact_range(self.db, start, len, start, len) };
        Ok(())
    }

    fn compact(&self) -> Result<bool> {
        // SAFETY: the database is open; a null key means the end of the key range.
        unsafe { c::leveldb_compact_range(self.db, null(), 0, null(), 0) };
        Ok(true)
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

impl LevelDb {
    fn put_with(&self, options: c::Object, key: &[u8], value: &[u8]) -> Result<()> {
        let ((key, key_len), (value, value_len)) = (raw(key), raw(value));
        // SAFETY: the database is open, and key and value are not used after the call.
        checked(|error| unsafe { c::leveldb_put(self.db, options, key, key_len, value, value_len, error) })
    }
}

impl Drop for LevelDb {
    fn drop(&mut self) {
        // SAFETY: readers borrow the database, so none is left. Each object is destroyed once, the
        // database before the objects it uses.
        unsafe {
            if !self.db.is_null() {
                c::leveldb_close(self.db);
            }
            c::leveldb_writeoptions_destroy(self.synced);
            c::leveldb_writeoptions_destroy(self.write);
            c::leveldb_readoptions_destroy(self.read);
            c::leveldb_options_destroy(self.options);
            c::leveldb_filterpolicy_destroy(self.filter);
            c::leveldb_cache_destroy(self.cache);
        }
    }
}

/// A reader that sees every write that precedes the read.
pub(crate) struct LevelDbReader<'a> {
    db: &'a LevelDb,
}

impl Reader for LevelDbReader<'_> {
    fn get(&mut self, key: &[u8], look: impl FnOnce(&[u8])) -> Result<bool> {
        let ((key, key_len), mut len) = (raw(key), 0);
        // SAFETY: the database is open, and the key is not used after the call.
        let get = |error| unsafe { c::leveldb_get(self.db.db, self.db.read, key, key_len, &mut len, error) };
        let value = checked(get)?;
        if value.is_null() {
            return Ok(false);
        }
        // SAFETY: the value has `len` bytes, is owned here, and is not used after it is freed.
        unsafe {
            look(std::slice::from_raw_parts(value.cast(), len));
            c::leveldb_free(value.cast());
        }
        Ok(true)
    }

    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        // SAFETY: the database is open and outlives the iterator, which is destroyed once, after
        // its last use. Key and value come from a valid iterator and are not used after it has
        // moved.
        unsafe {
            let iter = c::leveldb_create_iterator(self.db.db, self.db.read);
            match (from, direction) {
                (None, Direction::Forward) => c::leveldb_iter_seek_to_first(iter),
                (None, Direction::Backward) => c::leveldb_iter_seek_to_last(iter),
                (Some(from), _) => {
                    let (key, len) = raw(from);
                    c::leveldb_iter_seek(iter, key, len);
                    if direction == Direction::Backward && slice(c::leveldb_iter_key, iter) != Some(from) {
                        step_back(iter);
                    }
                }
            }
            while let (Some(key), Some(value)) = (slice(c::leveldb_iter_key, iter), slice(c::leveldb_iter_value, iter))
            {
                if !visit(key, value) {
                    break;
                }
                match direction {
                    Direction::Forward => c::leveldb_iter_next(iter),
                    Direction::Backward => c::leveldb_iter_prev(iter),
                }
            }
            let status = checked(|error| c::leveldb_iter_get_error(iter, error));
            c::leveldb_iter_destroy(iter);
            status
        }
    }
}

/// Steps from the first key above the target to the last one below it.
///
/// # Safety
///
/// The iterator must not have been destroyed.
unsafe fn step_back(iter: c::Object) {
    // SAFETY: by this function's contract; only a valid iterator is moved.
    unsafe {
        if c::leveldb_iter_valid(iter) != 0 {
            c::leveldb_iter_prev(iter);
        } else {
            c::leveldb_iter_seek_to_last(iter);
        }
    }
}

/// The key or value at the iterator's position, if it is valid.
///
/// # Safety
///
/// `part` is `leveldb_iter_key` or `leveldb_iter_value`. The iterator must not have been destroyed,
/// and must not move while the slice is used.
unsafe fn slice<'a>(
    part: unsafe extern "C" fn(c::Object, *mut usize) -> *const c_char,
    iter: c::Object,
) -> Option<&'a [u8]> {
    let mut len = 0;
    // SAFETY: by this function's contract; a valid iterator has both.
    unsafe {
        if c::leveldb_iter_valid(iter) == 0 {
            return None;
        }
        let start = part(iter, &mut len);
        Some(std::slice::from_raw_parts(start.cast(), len))
    }
}
