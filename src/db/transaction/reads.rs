//! The reads of a transaction, defined once for the default keyspace and for any other.

/// Implements the reads of `Transaction` and of `TransactionKeyspace`. The handle must have
/// `reads()`, the transaction and the keyspace that it reads. Iterators live as long as `'t`, the
/// borrow of the transaction: a lifetime of the handle or of the call.
macro_rules! transaction_reads {
    ($self:ident, $handle:ident [$($of_handle:lifetime)?], [$($of_call:lifetime)?]) => {
        impl<$($of_handle)?> $handle<$($of_handle)?> {
            /// Returns the value of a key, or `None` if the key is absent.
            pub fn get(&$self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
                let (transaction, of) = $self.reads();
                transaction.get_of(of, key.as_ref(), &mut LeastDeadline::default())
            }

            /// Returns the value of a key and the time at which it expires, if it does; see
            /// [`Db::get_with_expiry`].
            pub fn get_with_expiry(&$self, key: impl AsRef<[u8]>) -> Result<Option<(Value, Option<SystemTime>)>> {
                let (transaction, of) = $self.reads();
                let mut deadline = LeastDeadline::default();
                let found = transaction.get_of(of, key.as_ref(), &mut deadline)?;
                Ok(found.map(|value| (value, deadline.time())))
            }

            /// Reads the value of a key into `value`. Returns whether the key is present; if not,
            /// `value` is left empty.
            pub fn get_into(&$self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
                value.clear();
                Ok($self.read(key, |found| value.extend_from_slice(found))?.is_some())
            }

            /// Calls `read` with the value of a key and returns its result; `None` if the key is
            /// absent.
            pub fn read<R>(&$self, key: impl AsRef<[u8]>, read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
                Ok($self.get(key)?.map(|value| read(&value)))
            }

            /// Returns the values of many keys, in the order of the keys. Like one `get` per key.
            pub fn multi_get<K: AsRef<[u8]>>(&$self, keys: &[K]) -> Result<Vec<Option<Value>>> {
                keys.iter().map(|key| $self.get(key)).collect()
            }

            /// Returns whether a key is present.
            pub fn contains_key(&$self, key: impl AsRef<[u8]>) -> Result<bool> {
                let (transaction, of) = $self.reads();
                transaction.contains_key_of(of, key.as_ref())
            }

            /// Iterates over all entries in key order, from both ends.
            pub fn iter<$($of_call)?>(&$($of_call)? $self) -> TransactionIter<'t> {
                $self.range(..)
            }

            /// Iterates over the entries of a range of keys, from both ends.
            pub fn range<$($of_call)?>(&$($of_call)? $self, range: impl KeyRange) -> TransactionIter<'t> {
                let (transaction, of) = $self.reads();
                transaction.iter_of(of, KeySpan::of(range.into_bounds()))
            }

            /// Iterates over the entries whose keys begin with `prefix`.
            pub fn prefix<$($of_call)?>(&$($of_call)? $self, prefix: impl AsRef<[u8]>) -> TransactionIter<'t> {
                let (transaction, of) = $self.reads();
                transaction.iter_of(of, KeySpan::of_prefix(prefix.as_ref()))
            }

            /// Iterates over the keys of a range.
            pub fn keys<$($of_call)?>(&$($of_call)? $self, range: impl KeyRange) -> TransactionKeys<'t> {
                TransactionKeys($self.range(range))
            }

            /// Iterates over the values of a range, in the order of their keys.
            pub fn values<$($of_call)?>(&$($of_call)? $self, range: impl KeyRange) -> TransactionValues<'t> {
                TransactionValues($self.range(range))
            }

            /// Returns the entry with the least key, or `None` if there is none.
            pub fn first(&$self) -> Result<Option<(Value, Value)>> {
                $self.iter().next().transpose()
            }

            /// Returns the entry with the greatest key, or `None` if there is none.
            pub fn last(&$self) -> Result<Option<(Value, Value)>> {
                $self.iter().next_back().transpose()
            }

            /// Returns whether there is no entry. Takes as long as finding the first one.
            pub fn is_empty(&$self) -> Result<bool> {
                Ok($self.first()?.is_none())
            }
        }
    };
}
pub(super) use transaction_reads;
