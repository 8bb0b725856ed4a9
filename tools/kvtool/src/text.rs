//! Bytes as text and back.
//!
//! The *escaped form* shows printable characters as they are (any valid UTF-8, not only ASCII), a
//! backslash as `\\`, a tab as `\t`, a newline as `\n`, and every other byte as `\xNN`. The *hex
//! form* is two digits per byte.
//!
//! The *plain form* shows text unchanged, including backslashes, and anything else as `$'…'`
//! around the escaped form. These are the quotes of POSIX shells, so printed text can be pasted
//! into a command line. Text that looks quoted is quoted itself. Reading returns exactly the
//! printed bytes. No form prints a tab or a newline inside a key or value, so lines can be split
//! into columns. Command-line arguments are never quoted, because the shell has removed the quotes.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

/// How keys and values are printed and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Unchanged, or quoted.
    Plain,
    Escaped,
    Hex,
}

impl Form {
    pub(crate) fn write(self, out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
        match self {
            Form::Plain => write_plain(out, bytes),
            Form::Escaped => write_escaped(out, bytes),
            Form::Hex => bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}")),
        }
    }

    /// Writes the key at the beginning of a line. The empty key is quoted, because a line that
    /// begins with a tab has no key.
    pub(crate) fn write_key(self, out: &mut impl Write, key: &[u8]) -> io::Result<()> {
        match self {
            Form::Plain if key.is_empty() => out.write_all(EMPTY_KEY.as_bytes()),
            _ => self.write(out, key),
        }
    }

    /// A key at the beginning of a line.
    pub(crate) fn show_key(self, key: &[u8]) -> String {
        match (self, key) {
            (Form::Plain, b"") => EMPTY_KEY.to_owned(),
            _ => self.show(key),
        }
    }

    pub(crate) fn show(self, bytes: &[u8]) -> String {
        let mut out = Vec::new();
        // Writing to memory does not fail.
        let _ = self.write(&mut out, bytes);
        String::from_utf8(out).unwrap_or_default()
    }

    /// Shows `bytes` in at most about `limit` characters; cuts longer text and appends its length.
    pub(crate) fn show_short(self, bytes: &[u8], limit: usize) -> String {
        let shown = self.show(bytes);
        if shown.chars().count() <= limit {
            return shown;
        }
        let cut: String = shown.chars().take(limit).collect();
        format!("{cut}… ({} bytes)", count(bytes.len() as u64))
    }

    /// Decodes a command-line argument.
    pub(crate) fn parse_argument(self, text: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Form::Plain => Ok(text.to_vec()),
            Form::Escaped | Form::Hex => self.parse_field(text).map(Cow::into_owned),
        }
    }

    /// Decodes a key or value in a line of input.
    pub(crate) fn parse_field(self, text: &[u8]) -> Result<Cow<'_, [u8]>, String> {
        match self {
            Form::Plain => match quoted(text) {
                Some(escaped) => unescape(escaped).map(Cow::Owned),
                None => Ok(Cow::Borrowed(text)),
            },
            Form::Escaped if !text.contains(&b'\\') => Ok(Cow::Borrowed(text)),
            Form::Escaped => unescape(text).map(Cow::Owned),
            Form::Hex => parse_hex(text).map(Cow::Owned),
        }
    }

    /// The longest encoding of one byte in a line, without quotes.
    pub(crate) fn longest_byte(self) -> usize {
        match self {
            // `\xNN`
            Form::Plain | Form::Escaped => 4,
            Form::Hex => 2,
        }
    }
}

/// Length of the quotes.
pub(crate) const QUOTES: usize = 3;

/// The empty key at the beginning of a line.
pub(crate) const EMPTY_KEY: &str = "$''";

/// The text between the quotes, if `text` is quoted.
fn quoted(text: &[u8]) -> Option<&[u8]> {
    text.strip_prefix(b"$'")?.strip_suffix(b"'")
}

fn write_plain(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let is_plain = |text: &str| quoted(bytes).is_none() && text.chars().all(|c| c == '\\' || is_plain(c));
    if std::str::from_utf8(bytes).is_ok_and(is_plain) {
        return out.write_all(bytes);
    }
    out.write_all(b"$'")?;
    // A quote inside would end the shell's string.
    for (i, part) in bytes.split(|&byte| byte == b'\'').enumerate() {
        if i > 0 {
            out.write_all(br"\x27")?;
        }
        write_escaped(out, part)?;
    }
    out.write_all(b"'")
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
        let (special_text, after) = rest.split_at(special.len_utf8());
        out.write_all(before.as_bytes())?;
        match special {
            '\\' => out.write_all(b"\\\\")?,
            '\t' => out.write_all(b"\\t")?,
            '\n' => out.write_all(b"\\n")?,
            _ => write_as_hex_escapes(out, special_text.as_bytes())?,
        }
        plain = after;
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
        // The standard library decides what is printable; after a letter it accepts combining
        // marks.
        _ => {
            let mut buffer = *b"a\0\0\0\0";
            let len = 1 + c.encode_utf8(&mut buffer[1..]).len();
            std::str::from_utf8(&buffer[..len]).is_ok_and(|text| text.escape_debug().count() == 2)
        }
    }
}

pub(crate) fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
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

fn invalid_escape(after: &[u8]) -> String {
    let shown = &after[..after.len().min(3)];
    format!(r"invalid escape \{}; valid are \\, \t, \n and \xNN", String::from_utf8_lossy(shown))
}

fn parse_hex(text: &[u8]) -> Result<Vec<u8>, String> {
    let (pairs, rest) = text.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("odd number of hexadecimal digits".into());
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

/// A number with digits in groups of three.
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

/// A count with its noun in singular or plural: "1 table", "2 tables".
pub(crate) fn counted(n: u64, noun: &str) -> String {
    let number = count(n);
    match (n, noun.strip_suffix("ry")) {
        (1, _) => format!("{number} {noun}"),
        (_, Some(stem)) => format!("{number} {stem}ries"),
        _ if noun.ends_with("ch") => format!("{number} {noun}es"),
        _ => format!("{number} {noun}s"),
    }
}

/// A number of bytes with about three significant digits.
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

/// The lines of a sentence, of at most `width` characters where its words allow that.
pub(crate) fn wrapped(sentence: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(last) if line == 0 => last.push_str(word),
            Some(last) if line + 1 + word.chars().count() <= width => *last = format!("{last} {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A time in seconds since the beginning of 1970.
pub(crate) fn unix_time(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:03}", since.as_secs(), since.subsec_millis())
}

/// A time as `2026-11-25T08:15:00.250Z`.
pub(crate) fn utc(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Counted from the first of March of the year 0: leap days come last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + 400 * era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// A time as [`parse_time`] reads it, exact to the millisecond: that of [`utc`] up to the year
/// 9999, later ones in seconds since 1970.
pub(crate) fn utc_or_unix(time: SystemTime) -> String {
    let shown = utc(time);
    if shown.len() == "2026-11-25T08:15:00.250Z".len() { shown } else { unix_time(time) }
}

/// A time as [`utc`] writes it, with or without a fraction, or seconds since 1970.
pub(crate) fn parse_time(text: &str) -> Result<SystemTime, String> {
    let wrong = || format!("{text:?} is no time, like 2026-11-25T08:15:00Z or seconds since 1970");
    let (whole, fraction) = match text.trim_end_matches('Z').split_once('.') {
        Some((whole, fraction)) => (whole, fraction),
        None => (text.trim_end_matches('Z'), ""),
    };
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let millis: u64 = format!("{fraction:0<3}")[..3].parse().map_err(|_| wrong())?;
    let seconds = if let Ok(seconds) = whole.parse::<u64>() {
        seconds
    } else {
        if !text.ends_with('Z') {
            return Err(wrong());
        }
        let numbers: Option<Vec<u64>> = whole.split(['-', 'T', ':']).map(|number| number.parse().ok()).collect();
        let Some([year, month, day, hour, minute, second]) =
            numbers.as_deref().and_then(|all| <[u64; 6]>::try_from(all).ok())
        else {
            return Err(wrong());
        };
        let is_in_range = (1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
        if !is_in_range || hour > 23 || minute > 59 || second > 60 {
            return Err(wrong());
        }
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
        days * 86_400 + hour * 3600 + minute * 60 + second
    };
    let since = Duration::from_secs(seconds) + Duration::from_millis(millis);
    let time = SystemTime::UNIX_EPOCH.checked_add(since).ok_or_else(wrong)?;
    // No month has more days than it has.
    let is_a_day = !whole.contains('-') || whole.get(..10) == utc(time).get(..10);
    if is_a_day { Ok(time) } else { Err(wrong()) }
}

/// A share as a percentage, or a dash if there is none.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.2} %", share * 100.0))
}

/// A rate or ratio with a sensible number of digits.
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
    fn sentences_are_wrapped_between_words() {
        assert_eq!(wrapped("a bc def ghij", 4), ["a bc", "def", "ghij"]);
        assert_eq!(wrapped("abcdef g", 3), ["abcdef", "g"]);
        assert_eq!(wrapped("a  b", 80), ["a  b"]);
        assert_eq!(wrapped("", 80), [""]);
    }

    #[test]
    fn times_are_read_as_they_are_written() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("1999-12-31T23:59:59.000Z", 946_684_799),
            ("2000-02-29T12:00:00.000Z", 951_825_600),
            ("2026-11-25T08:15:00.000Z", 1_795_594_500),
            ("2100-03-01T00:00:00.000Z", 4_107_542_400),
        ] {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!((utc(time), parse_time(text)), (text.to_owned(), Ok(time)));
            assert_eq!(parse_time(&text.replace(".000", "")), Ok(time));
            assert_eq!(parse_time(&seconds.to_string()), Ok(time));
        }
        for day in 0..60_000 {
            let time = SystemTime::UNIX_EPOCH + Duration::from_millis(day * 86_400_123);
            assert_eq!(parse_time(&utc(time)), Ok(time));
        }
        assert_eq!(parse_time("12.25"), Ok(SystemTime::UNIX_EPOCH + Duration::from_millis(12_250)));
        for text in [
            "",
            "now",
            "-1",
            "2026-11-25",
            "2026-11-25T08:15:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-25T24:00:00Z",
            "1969-12-31T00:00:00Z",
            "1.2.3",
            "1.-5",
            "99999999999999999999",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

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
            assert_eq!(&*Form::Escaped.parse_field(text.as_bytes()).unwrap(), bytes);
        }
    }

    #[test]
    fn every_pair_of_bytes_round_trips_without_tab_or_newline() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                for form in [Form::Plain, Form::Escaped, Form::Hex] {
                    let shown = form.show(&[a, b]);
                    assert!(!shown.contains(['\t', '\n', '\r', '\0', '\x1b']));
                    assert_eq!(&*form.parse_field(shown.as_bytes()).unwrap(), [a, b]);
                }
            }
        }
    }

    #[test]
    fn plain_form_quotes_what_is_not_text_and_what_looks_quoted() {
        for (bytes, text) in [
            (&b"plain words"[..], "plain words"),
            (b"", ""),
            (br#"{"a":"x\ty"}"#, r#"{"a":"x\ty"}"#),
            (br"C:\new", r"C:\new"),
            (b"it's", "it's"),
            (b"$'", "$'"),
            (b"$'open", "$'open"),
            (b"$''", r"$'$\x27\x27'"),
            (b"$'x'", r"$'$\x27x\x27'"),
            (b"a\tb\nc", r"$'a\tb\nc'"),
            (b"it's\r", r"$'it\x27s\x0d'"),
            (b"\\\0", r"$'\\\x00'"),
            ("größe 你好 😀".as_bytes(), "größe 你好 😀"),
            (b"\xff", r"$'\xff'"),
        ] {
            assert_eq!(Form::Plain.show(bytes), text);
            assert_eq!(&*Form::Plain.parse_field(text.as_bytes()).unwrap(), bytes);
        }
        let raw = b"raw\ttab and \xff";
        assert_eq!(&*Form::Plain.parse_field(raw).unwrap(), raw, "what is not quoted is taken as it is");
        assert!(Form::Plain.parse_field(br"$'\q'").is_err());
        let mut empty = Vec::new();
        Form::Plain.write_key(&mut empty, b"").unwrap();
        assert_eq!(empty, EMPTY_KEY.as_bytes());
    }

    #[test]
    fn arguments_are_bytes_as_typed_unless_a_form_is_asked_for() {
        for typed in [&br#"{"a":"x\ty"}"#[..], br"C:\new", br#"say \"hi\""#, br"\q", b"$'x'", b"\xff"] {
            assert_eq!(Form::Plain.parse_argument(typed).unwrap(), typed);
        }
        assert_eq!(Form::Escaped.parse_argument(br"a\tb").unwrap(), b"a\tb");
        assert_eq!(Form::Hex.parse_argument(b"6109").unwrap(), b"a\t");
    }

    #[test]
    fn any_bytes_survive_every_form() {
        let seed = fastrand::get_seed();
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        // Favour bytes that have a meaning in some form.
        let special = b"$''\\\\tnx\t\n\r\0\xff\xc3\xa9 ";
        for _ in 0..20_000 {
            let len = random.usize(..12);
            let byte = |random: &mut fastrand::Rng| match random.bool() {
                true => special[random.usize(..special.len())],
                false => random.u8(..),
            };
            let bytes: Vec<u8> = (0..len).map(|_| byte(&mut random)).collect();
            for form in [Form::Plain, Form::Escaped, Form::Hex] {
                let shown = form.show(&bytes);
                assert!(!shown.contains(['\t', '\n', '\r', '\0']), "{shown}");
                assert_eq!(&*form.parse_field(shown.as_bytes()).unwrap(), bytes, "{form:?} {shown}");
            }
        }
    }

    #[test]
    fn nouns_agree_with_their_number() {
        let words =
            [(1, "table"), (2, "table"), (0, "entry"), (1000, "batch"), (2, "key")].map(|(n, noun)| counted(n, noun));
        assert_eq!(words, ["1 table", "2 tables", "0 entries", "1,000 batches", "2 keys"]);
    }

    #[test]
    fn invalid_escapes_are_refused() {
        for text in [r"\", r"a\", r"\q", r"\x", r"\x1", r"\xg0", r"\x0g", r"\X00", "\\\u{e9}"] {
            assert!(Form::Escaped.parse_field(text.as_bytes()).is_err(), "{text}");
        }
        for text in ["1", "0g", "abc", "0x00", " 1"] {
            assert!(Form::Hex.parse_field(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(&*Form::Hex.parse_field(b"00fFAb").unwrap(), [0, 0xff, 0xab]);
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
