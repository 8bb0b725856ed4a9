//! Merge operators by name, and operands as people write them.

use tamis::operator::{Add, Append, ByteOrder, Max, MergeError, MergeOperator, Min, Union};
use tamis::{Keyspace, KeyspaceOptions};

use crate::args::{Common, Operator};
use crate::failure::{Failure, Result};
use crate::text::Form;

/// Length of an integer for a key that has none yet.
const INTEGER_LEN: usize = 8;

impl Operator {
    const ALL: [Operator; 6] =
        [Operator::AddLittle, Operator::AddBig, Operator::Max, Operator::Min, Operator::Append, Operator::Union];

    fn implementation(self) -> &'static dyn MergeOperator {
        match self {
            Operator::AddLittle => &Add::LITTLE,
            Operator::AddBig => &Add::BIG,
            Operator::Max => &Max,
            Operator::Min => &Min,
            Operator::Append => &Append,
            Operator::Union => &Union,
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.implementation().name()
    }

    /// The order of the integers that it adds, if it does.
    fn adds(self) -> Option<ByteOrder> {
        match self {
            Operator::AddLittle => Some(ByteOrder::Little),
            Operator::AddBig => Some(ByteOrder::Big),
            Operator::Max | Operator::Min | Operator::Append | Operator::Union => None,
        }
    }

    /// The operator of a keyspace, which must have one that comes with the store.
    pub(super) fn of(keyspace: &Keyspace) -> Result<Operator> {
        let options = keyspace.options()?;
        let name = keyspace.name();
        let Some(operator) = options.merge_operator_name() else {
            return Err(Failure::usage(format_args!(
                "keyspace {name:?} has no merge operator; --operator gives it one"
            )));
        };
        Operator::ALL.into_iter().find(|known| known.name() == operator).ok_or_else(|| {
            Failure::usage(format_args!(
                "keyspace {name:?} has the merge operator {operator:?} of a program, which alone can tell what an operand is"
            ))
        })
    }

    /// The bytes of an operand. An integer gets the length of `value`, the value that the key has.
    pub(super) fn operand(self, common: &Common, text: &std::ffi::OsStr, value: Option<&[u8]>) -> Result<Vec<u8>> {
        let bytes = common.bytes("OPERAND", text)?;
        if common.form() != Form::Plain {
            return Ok(bytes);
        }
        match self.adds() {
            Some(order) => {
                let integer = integer(&bytes, value.map_or(INTEGER_LEN, <[u8]>::len), order);
                integer.map_err(|why| Failure::usage(format_args!("OPERAND: {why}; --hex takes bytes")))
            }
            None if matches!(self, Operator::Union) => Ok(Union::encode([bytes])),
            None => Ok(bytes),
        }
    }

    /// Fails if `operand` cannot be merged into `value`.
    pub(super) fn check(self, key: &[u8], value: Option<&[u8]>, operand: &[u8]) -> Result<(), MergeError> {
        self.implementation().check(key, operand)?;
        self.combine(key, value, &[operand]).map(drop)
    }

    /// What operands, oldest first, make of a value.
    pub(super) fn combine(
        self,
        key: &[u8],
        value: Option<&[u8]>,
        operands: &[impl AsRef<[u8]>],
    ) -> Result<Vec<u8>, MergeError> {
        let all: Vec<&[u8]> = value.into_iter().chain(operands.iter().map(AsRef::as_ref)).collect();
        let mut out = Vec::new();
        match all[..] {
            // An operator is given two at least.
            [only] => out.extend_from_slice(only),
            _ => self.implementation().merge(key, &all, &mut out)?,
        }
        Ok(out)
    }
}

/// An integer in decimal as `len` bytes, if it fits as a signed or an unsigned one.
fn integer(text: &[u8], len: usize, order: ByteOrder) -> Result<Vec<u8>, String> {
    let text = String::from_utf8_lossy(text);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(&text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{text:?} is not an integer in decimal"));
    }
    if !(1..=16).contains(&len) {
        return Err(format!("the key has a value of {len} bytes, which is no integer"));
    }
    let does_not_fit = || format!("{text} does not fit in {len} bytes, which the values of the key have");
    let magnitude: u128 = digits.parse().map_err(|_| does_not_fit())?;
    let is_negative = text.starts_with('-');
    let bits = u32::try_from(8 * len).unwrap_or(u32::MAX);
    let limit = match is_negative {
        true => 1 << (bits - 1),
        false => u128::MAX >> (128 - bits),
    };
    if magnitude > limit {
        return Err(does_not_fit());
    }
    let number = if is_negative { magnitude.wrapping_neg() } else { magnitude };
    Ok(match order {
        ByteOrder::Little => number.to_le_bytes()[..len].to_vec(),
        ByteOrder::Big => number.to_be_bytes()[16 - len..].to_vec(),
    })
}

/// An operator of which only the name is known. It combines nothing.
struct Foreign(String);

impl MergeOperator for Foreign {
    fn name(&self) -> &str {
        &self.0
    }

    fn merge(&self, _key: &[u8], _operands: &[&[u8]], _out: &mut Vec<u8>) -> Result<(), MergeError> {
        Err(MergeError::new("kvtool does not have the operator"))
    }
}

/// `options` with the operator of this name.
pub(super) fn with_operator(options: KeyspaceOptions, name: &str) -> KeyspaceOptions {
    match Operator::ALL.into_iter().find(|known| known.name() == name) {
        Some(Operator::AddLittle) => options.merge_operator(Add::LITTLE),
        Some(Operator::AddBig) => options.merge_operator(Add::BIG),
        Some(Operator::Max) => options.merge_operator(Max),
        Some(Operator::Min) => options.merge_operator(Min),
        Some(Operator::Append) => options.merge_operator(Append),
        Some(Operator::Union) => options.merge_operator(Union),
        None => options.merge_operator(Foreign(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_the_length_of_what_they_are_added_to() {
        let big = |text: &str, len| integer(text.as_bytes(), len, ByteOrder::Big);
        assert_eq!(big("1", 8).unwrap(), 1u64.to_be_bytes());
        assert_eq!(big("+258", 2).unwrap(), [1, 2]);
        assert_eq!(big("-1", 3).unwrap(), [0xff; 3]);
        assert_eq!((big("255", 1).unwrap(), big("-128", 1).unwrap()), (vec![0xff], vec![0x80]));
        assert_eq!(big("340282366920938463463374607431768211455", 16).unwrap(), [0xff; 16]);
        assert_eq!(big("-170141183460469231731687303715884105728", 16).unwrap(), i128::MIN.to_be_bytes());
        assert_eq!(integer(b"258", 4, ByteOrder::Little).unwrap(), [2, 1, 0, 0]);
        for (text, len) in [("", 8), ("-", 8), ("1.5", 8), ("0x1", 8), ("256", 1), ("-129", 1), ("1", 0), ("1", 17)] {
            assert!(big(text, len).is_err(), "{text} in {len} bytes");
        }
        assert!(big("340282366920938463463374607431768211456", 16).is_err());
    }

    #[test]
    fn operators_are_found_by_their_names() {
        for operator in Operator::ALL {
            let options = with_operator(KeyspaceOptions::new(), operator.name());
            assert_eq!(options.merge_operator_name(), Some(operator.name()));
        }
        assert_eq!(with_operator(KeyspaceOptions::new(), "mine").merge_operator_name(), Some("mine"));
    }
}
