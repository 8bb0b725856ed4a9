//! [`Value`]: bytes that a read returns.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A key or value read from a store: owned, cheap to clone, and valid for as long as it is kept.
///
/// Short values are copied out of the store's memory; a value of 4 KiB and more keeps the block that holds it alive
/// instead.
#[derive(Clone)]
pub struct Value(Repr);

/// From this length on a value is not copied. Below it a copy is cheaper than a reference count that several readers share.
pub(crate) const PIN_FROM: usize = 4096;

#[derive(Clone)]
enum Repr {
    Owned(Arc<[u8]>),
    Pinned { owner: Arc<dyn AsRef<[u8]> + Send + Sync>, start: usize, len: usize },
}

impl Value {
    pub(crate) fn copy_of(bytes: &[u8]) -> Value {
        Value(Repr::Owned(Arc::from(bytes)))
    }

    /// The `len` bytes from `start` on of what `owner` holds, copied if they are few.
    pub(crate) fn part_of<O>(owner: &Arc<O>, start: usize, len: usize) -> Value
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        let bytes = (**owner).as_ref().get(start..start + len).unwrap_or_default();
        if bytes.len() < PIN_FROM {
            return Value::copy_of(bytes);
        }
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::<O>::clone(owner);
        Value(Repr::Pinned { owner, start, len })
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Owned(bytes) => bytes,
            Repr::Pinned { owner, start, len } => (**owner).as_ref().get(*start..start + len).unwrap_or_default(),
        }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Vec<u8> {
        value.to_vec()
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Value {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Value) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Value) -> std::cmp::Ordering {
        (**self).cmp(other)
    }
}

impl std::hash::Hash for Value {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl std::borrow::Borrow<[u8]> for Value {
    fn borrow(&self) -> &[u8] {
        self
    }
}

/// As a byte string literal: `b"apple\x00"`.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_pin_their_owner_and_short_ones_do_not() {
        let owner = Arc::new(vec![7u8; 2 * PIN_FROM]);
        let short = Value::part_of(&owner, 1, 10);
        assert_eq!(Arc::strong_count(&owner), 1);
        let long = Value::part_of(&owner, 1, PIN_FROM);
        assert_eq!(Arc::strong_count(&owner), 2);
        assert_eq!(short, [7; 10]);
        assert_eq!(long, [7; PIN_FROM]);
        assert_eq!(long, long.clone());
    }

    #[test]
    fn debug_form_is_a_byte_string() {
        assert_eq!(format!("{:?}", Value::copy_of(b"a\0\"")), r#"b"a\x00\"""#);
    }
}
