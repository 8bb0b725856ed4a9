//! [`Keys`] and [`Values`]: scans that copy one half of each entry.

use super::iter::Iter;
use super::read::cursor::Cursor;
use crate::error::Result;
use crate::sorted::value::Value;

macro_rules! half {
    ($(#[$doc:meta])* $name:ident, $get:ident) => {
        $(#[$doc])*
        pub struct $name(pub(super) Iter);

        impl $name {
            /// Moves the front to the first entry whose key is `key` or greater; see
            /// [`Iter::seek`].
            pub fn seek(&mut self, key: impl AsRef<[u8]>) {
                self.0.seek(key);
            }

            /// Moves the back to the last entry whose key is `key` or less; see
            /// [`Iter::seek_back`].
            pub fn seek_back(&mut self, key: impl AsRef<[u8]>) {
                self.0.seek_back(key);
            }

            fn copy(cursor: &Cursor) -> Option<Value> {
                cursor.$get().map(Value::copy_of)
            }
        }

        impl Iterator for $name {
            type Item = Result<Value>;

            fn next(&mut self) -> Option<Result<Value>> {
                self.0.step(true, $name::copy)
            }
        }

        impl DoubleEndedIterator for $name {
            fn next_back(&mut self) -> Option<Result<Value>> {
                self.0.step(false, $name::copy)
            }
        }

        impl std::iter::FusedIterator for $name {}
    };
}

half! {
    /// Iterates over the keys of a range, from both ends, and copies no values. Otherwise like
    /// [`Iter`].
    Keys, key
}

half! {
    /// Iterates over the values of a range in the order of their keys, from both ends, and copies
    /// no keys. Otherwise like [`Iter`].
    Values, value
}
