//! Bytes as text and back.
//!
//! The *escaped form* shows printable characters as they are (any valid UTF-8, not only ASCII), a backslash as `\\`, a tab as `\t`,
//! a newline as `\n`, and every other byte as `\xNN`. It never contains a tab or a newline, so that lines and columns can be cut
//! apart, and it can be pasted back. The *hex form* is two digits per byte.

use std::fmt;
use std::io::{self, Write};

/// How keys and values are shown and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Escaped,
    Hex,
}

impl Form {
    pub(crate) fn write(self, out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
        match self {
            Form::Escaped => write_escaped(out, bytes),
            Form::Hex => bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}")),
        }
    }

    pub(crate) fn show(self, bytes: &[u8]) -> String {
        let mut out = Vec::new();
        // Writing to memory does not fail.
        let _ = self.write(&mut out, bytes);
        String::from_utf8(out).unwrap_or_default()
    }

    /// Shows `bytes` in at most about `limit` characters; longer ones are cut, with their length behind.
    pub(crate) fn show_short(self, bytes: &[u8], limit: usize) -> String {
        let shown = self.show(bytes);
        if shown.chars().count() <= limit {
            return shown;
        }
        let cut: String = shown.chars().take(limit).collect();
        format!("{cut}… ({} bytes)", count(bytes.len() as u64))
    }

    pub(crate) fn parse(self, text: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Form::Escaped => unescape(text),
            Form::Hex => parse_hex(text),
        }
    }
}

fn write_escaped(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    for chunk in bytes.utf8_chunks() {
        write_valid(out, chunk.valid())?;
        write_as_hex_escapes(out, chunk.invalid())?;
    }
    Ok(())
}

fn write_valid(out: &mut impl Write, text: &str) -> io::Result<()> {
    let mut plain = text;
    while let Some((at, special)) = plain.char_indices().find(|&(_, c)| !is_plain(c)) {
        let (before, rest) = plain.split_at(at);
        let (special_text, behind) = rest.split_at(special.len_utf8());
        out.write_all(before.as_bytes())?;
        match special {
            '\\' => out.write_all(b"\\\\")?,
            '\t' => out.write_all(b"\\t")?,
            '\n' => out.write_all(b"\\n")?,
            _ => write_as_hex_escapes(out, special_text.as_bytes())?,
        }
        plain = behind;
    }
    out.write_all(plain.as_bytes())
}

fn write_as_hex_escapes(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    bytes.iter().try_for_each(|byte| write!(out, "\\x{byte:02x}"))
}

/// Whether the escaped form shows a character as it is.
fn is_plain(c: char) -> bool {
    match c {
        '\\' => false,
        ' '..='~' => true,
        '\0'..='\u{9f}' => false,
        // The standard library knows what is printable; behind a letter it lets combining marks pass.
        _ => {
            let mut buffer = *b"a\0\0\0\0";
            let len = 1 + c.encode_utf8(&mut buffer[1..]).len();
            std::str::from_utf8(&buffer[..len]).is_ok_and(|text| text.escape_debug().count() == 2)
        }
    }
}

fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (unescaped, taken) = match *rest {
            [b'\\', ..] => (b'\\', 1),
            [b't', ..] => (b'\t', 1),
            [b'n', ..] => (b'\n', 1),
            [b'x', high, low, ..] => match (digit(high), digit(low)) {
                (Some(high), Some(low)) => (high << 4 | low, 3),
                _ => return Err(invalid_escape(rest)),
            },
            _ => return Err(invalid_escape(rest)),
        };
        bytes.push(unescaped);
        rest = &rest[taken..];
    }
    Ok(bytes)
}

fn invalid_escape(behind: &[u8]) -> String {
    let shown = &behind[..behind.len().min(3)];
    format!(r"invalid escape \{}; there are \\, \t, \n and \xNN", String::from_utf8_lossy(shown))
}

fn parse_hex(text: &[u8]) -> Result<Vec<u8>, String> {
    let (pairs, rest) = text.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("hexadecimal digits come in pairs".into());
    }
    let byte = |&[high, low]: &[u8; 2]| match (digit(high), digit(low)) {
        (Some(high), Some(low)) => Ok(high << 4 | low),
        _ => Err(format!("{} is not a hexadecimal byte", Form::Escaped.show(&[high, low]))),
    };
    pairs.iter().map(byte).collect()
}

fn digit(c: u8) -> Option<u8> {
    match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        b'A'..=b'F' => Some(c - b'A' + 10),
        _ => None,
    }
}

/// Two hexadecimal digits per byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    Form::Hex.show(bytes)
}

/// A number with its digits in groups of three.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of bytes with three significant digits or so.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A share as a percentage, or a dash if there is none.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.2} %", share * 100.0))
}

/// A rate or ratio with as many digits as make sense.
pub(crate) struct Decimal(pub(crate) f64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            x if x == 0.0 || x.abs() >= 100.0 => write!(f, "{x:.0}"),
            x if x.abs() >= 10.0 => write!(f, "{x:.1}"),
            x if x.abs() >= 1.0 => write!(f, "{x:.2}"),
            x => write!(f, "{x:.4}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_form_shows_what_is_printable_and_escapes_the_rest() {
        for (bytes, text) in [
            (&b"plain words"[..], "plain words"),
            (b"", ""),
            (b"a\\b\tc\nd", r"a\\b\tc\nd"),
            (b"\x00\x1f\x7f\r", r"\x00\x1f\x7f\x0d"),
            ("größe 你好 😀".as_bytes(), "größe 你好 😀"),
            ("e\u{301} \u{915}\u{93f}".as_bytes(), "e\u{301} \u{915}\u{93f}"),
            (b"\xff\xfe ok \xc3", r"\xff\xfe ok \xc3"),
            (
                "\u{85}\u{202e}\u{200b}\u{2028}\u{e000}".as_bytes(),
                r"\xc2\x85\xe2\x80\xae\xe2\x80\x8b\xe2\x80\xa8\xee\x80\x80",
            ),
        ] {
            assert_eq!(Form::Escaped.show(bytes), text);
            assert_eq!(Form::Escaped.parse(text.as_bytes()).unwrap(), bytes);
        }
    }

    #[test]
    fn every_pair_of_bytes_round_trips_without_tab_or_newline() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                for form in [Form::Escaped, Form::Hex] {
                    let shown = form.show(&[a, b]);
                    assert!(!shown.contains(['\t', '\n', '\r', '\0', '\x1b']));
                    assert_eq!(form.parse(shown.as_bytes()).unwrap(), [a, b]);
                }
            }
        }
    }

    #[test]
    fn invalid_escapes_are_refused() {
        for text in [r"\", r"a\", r"\q", r"\x", r"\x1", r"\xg0", r"\x0g", r"\X00", "\\\u{e9}"] {
            assert!(Form::Escaped.parse(text.as_bytes()).is_err(), "{text}");
        }
        for text in ["1", "0g", "abc", "0x00", " 1"] {
            assert!(Form::Hex.parse(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(Form::Hex.parse(b"00fFAb").unwrap(), [0, 0xff, 0xab]);
    }

    #[test]
    fn long_text_is_cut_with_its_length() {
        assert_eq!(Form::Escaped.show_short(b"abc", 3), "abc");
        assert_eq!(Form::Escaped.show_short(&[b'a'; 2000], 3), "aaa… (2,000 bytes)");
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1024, 1 << 20, u64::MAX].map(size), ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "16.0 EiB"]);
        assert_eq!(size((1 << 20) - 1), "1.0 MiB");
    }
}
