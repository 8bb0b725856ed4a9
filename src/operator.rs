//! Code of the caller that decides what values become: merge operators and compaction filters.
//!
//! A merge operator lets a write say how a value changes, without reading it.
//! `merge(key, operand)` writes an *operand*. A read combines the operands of a key with the value
//! that was put before them, if any; flushes and compactions combine them for good. What combining
//! means is the keyspace's [`MergeOperator`], set by
//! [`KeyspaceOptions::merge_operator`](crate::KeyspaceOptions::merge_operator).
//!
//! ```
//! # fn main() -> tamis::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let db = tamis::Db::open(dir.path().join("db"))?;
//! use tamis::{KeyspaceOptions, operator::Add};
//!
//! let views = db.keyspace_with("views", KeyspaceOptions::new().merge_operator(Add::LITTLE))?;
//! for _ in 0..3 {
//!     views.merge("page 1", 1u64.to_le_bytes())?;
//! }
//! assert_eq!(views.get("page 1")?.as_deref(), Some(&3u64.to_le_bytes()[..]));
//! # Ok(()) }
//! ```
//!
//! Operators of one's own implement [`MergeOperator`]:
//!
//! ```
//! use tamis::operator::{MergeError, MergeOperator};
//!
//! /// Values are numbers as decimal digits, and add up.
//! struct Decimal;
//!
//! impl MergeOperator for Decimal {
//!     fn name(&self) -> &str {
//!         "example.decimal"
//!     }
//!
//!     fn merge(
//!         &self,
//!         _key: &[u8],
//!         operands: &[&[u8]],
//!         out: &mut Vec<u8>,
//!     ) -> Result<(), MergeError> {
//!         let number = |bytes: &&[u8]| std::str::from_utf8(bytes).ok()?.parse::<u64>().ok();
//!         let numbers = operands.iter().map(number).collect::<Option<Vec<u64>>>();
//!         let sum: u64 = numbers.ok_or_else(|| MergeError::new("not a number"))?.iter().sum();
//!         out.extend_from_slice(sum.to_string().as_bytes());
//!         Ok(())
//!     }
//! }
//! ```
//!
//! A compaction filter drops or replaces values while they are rewritten. Any function from key and
//! value to a [`CompactionDecision`] is one:
//!
//! ```
//! # fn main() -> tamis::Result<()> {
//! # let dir = tempfile::tempdir().expect("a temporary directory");
//! # let db = tamis::Db::open(dir.path().join("db"))?;
//! use tamis::KeyspaceOptions;
//! use tamis::operator::CompactionDecision;
//!
//! let drafts = |_: &[u8], value: &[u8]| match value {
//!     b"draft" => CompactionDecision::Drop,
//!     _ => CompactionDecision::Keep,
//! };
//! let options = KeyspaceOptions::new().compaction_filter(drafts);
//! let pages = db.keyspace_with("pages", options)?;
//! pages.put("a", "draft")?;
//! pages.put("b", "final")?;
//! pages.compact_range(..)?;
//! assert_eq!(pages.get("a")?, None);
//! assert!(pages.contains_key("b")?);
//! # Ok(()) }
//! ```

#[doc(inline)]
pub use tamis_sorted::operator::{
    Add, Append, ByteOrder, CompactionDecision, CompactionFilter, Max, MergeError, MergeOperator, Min, Union,
};
pub(crate) use tamis_sorted::operator::{
    Answer, CompactionHook, Fold, NamedOperator, ReadValue, oldest_of_operand, put_operand,
};
