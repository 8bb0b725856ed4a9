//! [`Decimal`]: numbers with a point, added exactly and therefore equally on every node.
//!
//! Redis adds in the processor's 80-bit format and writes 17 digits behind the point. A decimal of
//! 128 bits with these 17 digits gives the same texts, and 0.1 + 0.2 is 0.3.

use serde::{Deserialize, Serialize};

/// Digits behind the point.
const DIGITS: u32 = 17;

const ONE: i128 = 10_i128.pow(DIGITS);

/// A number of units of 10⁻¹⁷. Its magnitude is below 10²¹.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decimal(i128);

const LIMIT: i128 = ONE * 10_i128.pow(21);

impl Decimal {
    /// Parses digits with a sign, a point and an exponent, each of which may be lacking. Digits
    /// beyond the 17th behind the point round the last one. `None`: this is no number, or one that
    /// is too large.
    pub fn parse(text: &[u8]) -> Option<Decimal> {
        let text = std::str::from_utf8(text).ok()?;
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (negative, unsigned) = match mantissa.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, mantissa.strip_prefix('+').unwrap_or(mantissa)),
        };
        let (whole, part) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        if whole.len() + part.len() == 0 || !whole.bytes().chain(part.bytes()).all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        // The digit before the point of the result.
        let point = i64::try_from(whole.len()).ok()? + i64::from(exponent);
        let mut number = 0_i128;
        let mut digits = whole.bytes().chain(part.bytes()).map(|byte| i128::from(byte - b'0'));
        let kept = point.saturating_add(i64::from(DIGITS));
        for _ in 0..kept {
            number = match digits.next() {
                Some(digit) => number.checked_mul(10)?.checked_add(digit)?,
                None if number == 0 => break,
                None => number.checked_mul(10)?,
            };
        }
        if kept >= 0 && digits.next().is_some_and(|digit| digit >= 5) {
            number += 1;
        }
        Decimal(if negative { -number } else { number }).bounded()
    }

    fn bounded(self) -> Option<Decimal> {
        (self.0.abs() < LIMIT).then_some(self)
    }

    /// The sum. `None`: it is too large.
    pub fn plus(self, other: Decimal) -> Option<Decimal> {
        Decimal(self.0.checked_add(other.0)?).bounded()
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        let (number, sign) = (self.0.unsigned_abs(), if self.0 < 0 { "-" } else { "" });
        let one = ONE.unsigned_abs();
        let part = format!("{:017}", number % one);
        match part.trim_end_matches('0') {
            "" => write!(out, "{sign}{}", number / one),
            part => write!(out, "{sign}{}.{part}", number / one),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<String> {
        Decimal::parse(text.as_bytes()).map(|number| number.to_string())
    }

    #[test]
    fn numbers_are_read_and_written() {
        for (text, expected) in [
            ("0", "0"),
            ("-0", "0"),
            ("1.50", "1.5"),
            ("-.5", "-0.5"),
            ("5.", "5"),
            ("+3", "3"),
            ("5e3", "5000"),
            ("5.25E-3", "0.00525"),
            ("0.000000000000000005", "0.00000000000000001"),
            ("0.0000000000000000049", "0"),
            ("1e-400000000", "0"),
            ("0e2000000000", "0"),
            ("999999999999999999999", "999999999999999999999"),
        ] {
            assert_eq!(parsed(text).as_deref(), Some(expected), "{text}");
        }
        for text in
            ["", "-", ".", "e5", "1e", "1e99", "1000000000000000000000", "abc", "1 ", " 1", "0x10", "inf", "nan", "1\0"]
        {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn sums_are_exact() {
        let sum = |a: &str, b: &str| {
            let number = |text: &str| Decimal::parse(text.as_bytes()).unwrap();
            number(a).plus(number(b)).map(|sum| sum.to_string())
        };
        assert_eq!(sum("0.1", "0.2").as_deref(), Some("0.3"));
        assert_eq!(sum("1", "-1.1").as_deref(), Some("-0.1"));
        assert_eq!(sum("17179869184", "1.5").as_deref(), Some("17179869185.5"));
        assert_eq!(sum("999999999999999999999", "1"), None);
    }
}
