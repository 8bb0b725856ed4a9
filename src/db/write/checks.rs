//! What is checked before a write is encoded.

use crate::batch::WriteBatch;
use crate::db::store::Store;
use crate::error::{Error, Result};
use crate::operator::NamedOperator;

fn check_operand(operator: Option<&NamedOperator>, key: &[u8], operand: &[u8]) -> Result<()> {
    let checked = operator.map_or(Ok(()), |operator| operator.check(key, operand));
    checked.map_err(|reason| Error::invalid(format_args!("an operand of key {}: {reason}", key.escape_ascii())))
}

impl Store {
    /// Fails if the batch cannot be written.
    pub(crate) fn check_batch(&self, batch: &WriteBatch) -> Result<()> {
        self.check_form(batch)?;
        let mut last = None;
        batch.merges().try_for_each(|(keyspace, key, operand)| {
            if last.as_ref().is_none_or(|(of, _)| *of != keyspace) {
                last = Some((keyspace, self.operator_of(keyspace)?));
            }
            check_operand(last.as_ref().and_then(|(_, operator)| operator.as_ref()), key, operand)
        })
    }

    /// Fails if the batch cannot be written whatever its operands are.
    pub(crate) fn check_form(&self, batch: &WriteBatch) -> Result<()> {
        self.gate.check_writable()?;
        batch.validate(self.gate.id())?;
        self.check_keyspaces(batch.keyspaces())
    }

    /// Fails if the keyspace has no merge operator, or that refuses the operand.
    pub(super) fn check_operand(&self, keyspace: u32, key: &[u8], operand: &[u8]) -> Result<()> {
        check_operand(self.operator_of(keyspace)?.as_ref(), key, operand)
    }

    pub(super) fn check_keyspaces(&self, keyspaces: &[u32]) -> Result<()> {
        if keyspaces.is_empty() {
            return Ok(());
        }
        let view = self.shape.view();
        match keyspaces.iter().find(|id| view.tree(**id).is_none()) {
            Some(&id) => Err(self.shape.keyspace_dropped(id)),
            None => Ok(()),
        }
    }

    /// The merge operator of a keyspace, `None` if the keyspace is gone. Fails unless it is known:
    /// what nobody can read is not written.
    fn operator_of(&self, keyspace: u32) -> Result<Option<NamedOperator>> {
        self.shape.with_view(|view, _| {
            let Some(tree) = view.tree(keyspace) else { return Ok(None) };
            match &tree.options.merge_operator {
                Some(operator) if operator.is_known() => Ok(Some(operator.clone())),
                Some(operator) => Err(Error::MergeOperatorMissing {
                    keyspace: tree.name.to_string(),
                    operator: operator.name().to_owned(),
                }),
                None => Err(Error::invalid(format_args!("the keyspace {:?} has no merge operator", tree.name))),
            }
        })
    }
}
