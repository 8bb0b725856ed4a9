//! The operators that come with the store.

use super::{MergeError, MergeOperator};
use crate::format::coding::{Decoder, put_bytes};

/// The order of the bytes of an integer in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// The least significant byte first.
    Little,
    /// The most significant byte first. Unsigned integers in this order sort as their bytes do.
    Big,
}

/// Adds integers of 1 to 16 bytes, all of one length; signed ones are two's complement. A sum that
/// does not fit wraps around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Add(
    /// The order of the integers' bytes.
    pub ByteOrder,
);

impl Add {
    /// Adds little-endian integers.
    pub const LITTLE: Add = Add(ByteOrder::Little);
    /// Adds big-endian integers.
    pub const BIG: Add = Add(ByteOrder::Big);
}

/// Keeps the greatest operand, compared as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Max;

/// Keeps the least operand, compared as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Min;

/// Appends operands to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append;

/// Unites sets. A set is its members in ascending order, each once, each after its length as a
/// varint (LEB128): see [`Union::encode`] and [`Union::members`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Union;

impl Union {
    /// Encodes a set.
    ///
    /// ```
    /// # use tamis_sorted::operator::{MergeError, Union};
    /// let set = Union::encode(["pear", "apple", "pear"]);
    /// let members: Vec<&[u8]> = Union::members(&set).collect::<Result<_, _>>()?;
    /// assert_eq!(members, [&b"apple"[..], b"pear"]);
    /// # Ok::<(), MergeError>(())
    /// ```
    pub fn encode(members: impl IntoIterator<Item: AsRef<[u8]>>) -> Vec<u8> {
        let members: Vec<_> = members.into_iter().collect();
        let mut members: Vec<&[u8]> = members.iter().map(AsRef::as_ref).collect();
        members.sort_unstable();
        members.dedup();
        let mut out = Vec::new();
        members.iter().for_each(|member| put_bytes(&mut out, member));
        out
    }

    /// The members of an encoded set, in ascending order. Ends after an error.
    pub fn members(set: &[u8]) -> impl Iterator<Item = Result<&[u8], MergeError>> {
        let mut rest = Decoder::new(set);
        let mut last: Option<&[u8]> = None;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let member = match rest.bytes() {
                Ok(member) if last < Some(member) => Ok(member),
                Ok(_) => Err(MergeError::new("the members of a set are not in ascending order")),
                Err(malformed) => Err(MergeError::new(malformed.0)),
            };
            match &member {
                Ok(member) => last = Some(member),
                Err(_) => rest = Decoder::new(&[]),
            }
            Some(member)
        })
    }
}

impl MergeOperator for Add {
    fn name(&self) -> &str {
        match self.0 {
            ByteOrder::Little => "tamis.add.little",
            ByteOrder::Big => "tamis.add.big",
        }
    }

    fn check(&self, _key: &[u8], operand: &[u8]) -> Result<(), MergeError> {
        Sum::new(operand).map(drop)
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
        let Some((first, rest)) = operands.split_first() else { return Ok(()) };
        let mut sum = Sum::new(first)?;
        rest.iter().try_for_each(|operand| sum.add(operand, self.0))?;
        out.extend_from_slice(sum.bytes());
        Ok(())
    }
}

impl MergeOperator for Max {
    fn name(&self) -> &str {
        "tamis.max"
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
        out.extend_from_slice(operands.iter().max().unwrap_or(&&[][..]));
        Ok(())
    }
}

impl MergeOperator for Min {
    fn name(&self) -> &str {
        "tamis.min"
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
        out.extend_from_slice(operands.iter().min().unwrap_or(&&[][..]));
        Ok(())
    }
}

impl MergeOperator for Append {
    fn name(&self) -> &str {
        "tamis.append"
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
        operands.iter().for_each(|operand| out.extend_from_slice(operand));
        Ok(())
    }
}

impl MergeOperator for Union {
    fn name(&self) -> &str {
        "tamis.union"
    }

    fn check(&self, _key: &[u8], operand: &[u8]) -> Result<(), MergeError> {
        Union::members(operand).try_for_each(|member| member.map(drop))
    }

    fn merge(&self, _key: &[u8], operands: &[&[u8]], out: &mut Vec<u8>) -> Result<(), MergeError> {
        let mut members = Vec::new();
        for operand in operands {
            for member in Union::members(operand) {
                members.push(member?);
            }
        }
        members.sort_unstable();
        members.dedup();
        members.iter().for_each(|member| put_bytes(out, member));
        Ok(())
    }
}

/// An operator whose result is as long as an operand. A memtable applies it at once, so that a key
/// which is merged often has one entry to read and not a chain of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    Add(ByteOrder),
    Max,
    Min,
}

/// Longest integer of [`Add`].
const MAX_INTEGER_LEN: usize = size_of::<u128>();

/// The result of a [`Fold`].
pub enum FoldedOperand<'a> {
    Operand(&'a [u8]),
    Sum(Sum),
}

/// An integer as [`Add`] stores it.
#[derive(Clone, Copy)]
pub struct Sum {
    bytes: [u8; MAX_INTEGER_LEN],
    len: usize,
}

impl FoldedOperand<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            FoldedOperand::Operand(operand) => operand,
            FoldedOperand::Sum(sum) => sum.bytes(),
        }
    }
}

impl Fold {
    /// Combines two operands.
    pub fn apply<'a>(self, older: &'a [u8], newer: &'a [u8]) -> Result<FoldedOperand<'a>, MergeError> {
        Ok(match self {
            Fold::Add(order) => {
                let mut sum = Sum::new(older)?;
                sum.add(newer, order)?;
                FoldedOperand::Sum(sum)
            }
            Fold::Max => FoldedOperand::Operand(older.max(newer)),
            Fold::Min => FoldedOperand::Operand(older.min(newer)),
        })
    }
}

impl Sum {
    fn new(integer: &[u8]) -> Result<Sum, MergeError> {
        let mut bytes = [0; MAX_INTEGER_LEN];
        match bytes.get_mut(..integer.len()) {
            Some(start) if !integer.is_empty() => start.copy_from_slice(integer),
            _ => return Err(MergeError::new(format_args!("an integer has {} bytes, not 1 to 16", integer.len()))),
        }
        Ok(Sum { bytes, len: integer.len() })
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn add(&mut self, integer: &[u8], order: ByteOrder) -> Result<(), MergeError> {
        if integer.len() != self.len {
            let (found, expected) = (integer.len(), self.len);
            return Err(MergeError::new(format_args!("an integer of {found} bytes is added to one of {expected}")));
        }
        let mut carry = 0;
        for i in 0..self.len {
            let at = match order {
                ByteOrder::Little => i,
                ByteOrder::Big => self.len - 1 - i,
            };
            let (digit, first) = self.bytes[at].overflowing_add(integer[at]);
            let (digit, second) = digit.overflowing_add(carry);
            (self.bytes[at], carry) = (digit, u8::from(first | second));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn merged(operator: &dyn MergeOperator, operands: &[&[u8]]) -> Result<Vec<u8>, MergeError> {
        let mut out = Vec::new();
        operator.merge(b"key", operands, &mut out).map(|()| out)
    }

    proptest! {
        #[test]
        fn integers_of_every_length_add_up_in_both_orders_and_wrap(numbers in vec(any::<u128>(), 2..6), len in 1usize..=16) {
            let sum = numbers.iter().fold(0u128, |sum, number| sum.wrapping_add(*number));
            let little: Vec<Vec<u8>> = numbers.iter().map(|n| n.to_le_bytes()[..len].to_vec()).collect();
            let operands: Vec<&[u8]> = little.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(merged(&Add::LITTLE, &operands).unwrap(), &sum.to_le_bytes()[..len]);
            let big: Vec<Vec<u8>> = numbers.iter().map(|n| n.to_be_bytes()[16 - len..].to_vec()).collect();
            let operands: Vec<&[u8]> = big.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(merged(&Add::BIG, &operands).unwrap(), &sum.to_be_bytes()[16 - len..]);
        }

        #[test]
        fn every_operator_is_associative(
            operands in vec(vec(vec(any::<u8>(), 0..3), 0..4), 3..6),
            first in 1usize..3,
        ) {
            let sets: Vec<Vec<u8>> = operands.iter().map(Union::encode).collect();
            let numbers: Vec<Vec<u8>> = sets.iter().map(|set| (set.len() as u64).to_be_bytes().to_vec()).collect();
            let operators: [(&dyn MergeOperator, &[Vec<u8>]); 6] = [
                (&Add::LITTLE, &numbers), (&Add::BIG, &numbers), (&Max, &sets), (&Min, &sets), (&Append, &sets), (&Union, &sets),
            ];
            for (operator, operands) in operators {
                let operands: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
                let whole = merged(operator, &operands).unwrap();
                let rest = merged(operator, &operands[first - 1..=first]).unwrap();
                let grouped = [&operands[..first - 1], &[&rest], &operands[first + 1..]].concat();
                prop_assert_eq!(merged(operator, &grouped).unwrap(), whole, "{}", operator.name());
            }
        }
    }

    #[test]
    fn each_operator_does_what_its_name_says() {
        let operands: [&[u8]; 3] = [b"b", b"ab", b"c"];
        assert_eq!(merged(&Max, &operands).unwrap(), b"c");
        assert_eq!(merged(&Min, &operands).unwrap(), b"ab");
        assert_eq!(merged(&Append, &operands).unwrap(), b"babc");
        let sets = [Union::encode(["x", "", "x"]), Union::encode(["a"]), Union::encode([""; 0])];
        assert_eq!(sets[0], b"\0\x01x");
        let united = merged(&Union, &[&sets[0], &sets[1], &sets[2]]).unwrap();
        assert_eq!(united, Union::encode(["", "a", "x"]));
    }

    #[test]
    fn operands_that_an_operator_cannot_read_are_errors() {
        assert!(merged(&Add::BIG, &[&[1, 2], &[1]]).is_err());
        assert!(merged(&Add::BIG, &[b"", b""]).is_err());
        assert!(merged(&Add::BIG, &[&[0; 17], &[0; 17]]).is_err());
        assert!(merged(&Union, &[b"\x05a", b""]).is_err());
        assert!(merged(&Union, &[b"\x01b\x01a", b""]).is_err());
        assert_eq!(Union::members(b"\x05a").count(), 1, "it ends after an error");
    }
}
