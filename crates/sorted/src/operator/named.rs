//! [`NamedOperator`]: the merge operator of a keyspace.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{Add, Append, ByteOrder, Fold, Max, MergeError, MergeOperator, Min, Union};
use crate::error::{Error, Result};

/// Longest name of an operator, in bytes. Part of the format.
const MAX_NAME_LEN: usize = 255;

/// A merge operator by its name, and itself if it is known. Two are equal if their names are, and
/// both are known or neither.
#[derive(Clone)]
pub struct NamedOperator {
    name: Arc<str>,
    operator: Option<Arc<dyn MergeOperator>>,
    fold: Option<Fold>,
}

impl NamedOperator {
    pub fn new(operator: Arc<dyn MergeOperator>) -> NamedOperator {
        let named = NamedOperator::stored(operator.name());
        if named.operator.is_some() { named } else { NamedOperator { operator: Some(operator), ..named } }
    }

    /// The operator that a keyspace names. It is known if it comes with the store.
    pub fn stored(name: &str) -> NamedOperator {
        let all: [(Arc<dyn MergeOperator>, Option<Fold>); 6] = [
            (Arc::new(Add::LITTLE), Some(Fold::Add(ByteOrder::Little))),
            (Arc::new(Add::BIG), Some(Fold::Add(ByteOrder::Big))),
            (Arc::new(Max), Some(Fold::Max)),
            (Arc::new(Min), Some(Fold::Min)),
            (Arc::new(Append), None),
            (Arc::new(Union), None),
        ];
        let (operator, fold) = all.into_iter().find(|(operator, _)| operator.name() == name).unzip();
        NamedOperator { name: Arc::from(name), operator, fold: fold.flatten() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn is_known(&self) -> bool {
        self.operator.is_some()
    }

    /// What a memtable may do at once with an operand.
    pub fn fold(&self) -> Option<Fold> {
        self.fold
    }

    pub fn validate(&self) -> Result<()> {
        if self.name.starts_with("tamis.") && NamedOperator::stored(&self.name).operator.is_none() {
            return Err(Error::invalid("a merge operator's name must not begin with \"tamis.\""));
        }
        match self.name.len() {
            1..=MAX_NAME_LEN => Ok(()),
            len => Err(Error::invalid(format_args!("a merge operator's name takes 1 to 255 bytes, not {len}"))),
        }
    }

    /// Fails if the operator cannot read an operand, or panics. An operator that is not known
    /// reads everything.
    pub fn check(&self, key: &[u8], operand: &[u8]) -> Result<(), MergeError> {
        let Some(operator) = &self.operator else { return Ok(()) };
        let checked = catch_unwind(AssertUnwindSafe(|| operator.check(key, operand)));
        checked.unwrap_or_else(|_| Err(MergeError::new("the operator panicked")))
    }

    /// Makes one operand of at least two, oldest first. `None` if the operator is not known.
    pub fn merge(&self, key: &[u8], operands: &[&[u8]]) -> Option<Result<Vec<u8>, MergeError>> {
        let operator = self.operator.as_ref()?;
        let mut out = Vec::new();
        // Nothing that the call leaves half done is used after a panic.
        let result = catch_unwind(AssertUnwindSafe(|| operator.merge(key, operands, &mut out)));
        Some(match result {
            Ok(merged) => merged.map(|()| out),
            Err(_) => Err(MergeError::new("it panicked")),
        })
    }
}

impl PartialEq for NamedOperator {
    fn eq(&self, other: &NamedOperator) -> bool {
        self.name == other.name && self.is_known() == other.is_known()
    }
}

impl fmt::Debug for NamedOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
