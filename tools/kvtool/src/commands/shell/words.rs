//! The words of a line, quoted as in a POSIX shell.
//!
//! Blanks divide words. `'…'` holds its text as it is; `"…"` takes `\"`, `\\`, `\$` and a
//! backslash before a backquote; `$'…'` takes the escapes in which kvtool prints keys; a
//! backslash outside of quotes takes the next character as it is, and before a newline joins
//! two lines. A word that begins with `#` begins a comment. Beyond that, a JSON object or
//! array that begins a word is one word, blanks and line breaks included. A newline elsewhere
//! ends the command.

use std::fmt;

use serde::de::IgnoredAny;

use crate::text::{Form, unescape};

/// A word of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) bytes: Vec<u8>,
    /// Where it begins in the line.
    pub(super) start: usize,
    /// Whether a part of it is quoted: then it is no flag.
    pub(super) is_quoted: bool,
}

/// Why a line has no words yet, or has none.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unsplit {
    /// Something is open: the words before it, and what there is of its word.
    Open {
        before: Vec<Word>,
        word: Word,
        what: Open,
    },
    Invalid(String),
}

/// What is open at the end of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Open {
    SingleQuote,
    DoubleQuote,
    Backslash,
    Json,
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Open::SingleQuote => "a single quote is not closed",
            Open::DoubleQuote => "a double quote is not closed",
            Open::Backslash => "nothing follows a backslash",
            Open::Json => "a JSON value is not closed",
        })
    }
}

/// Tells whether more text may close what is open, so that a long text need not be split again for
/// each of its lines.
pub(super) struct Closing {
    what: Open,
    /// Of a JSON value: how many brackets are open, and whether a string is.
    depth: i64,
    is_in_string: bool,
    is_escaped: bool,
}

impl Closing {
    /// Of a text that ends within something that begins with `open`.
    pub(super) fn new(what: Open, open: &str) -> Closing {
        let mut closing = Closing { what, depth: 0, is_in_string: false, is_escaped: false };
        closing.may_close(open);
        closing
    }

    pub(super) fn may_close(&mut self, more: &str) -> bool {
        match self.what {
            Open::SingleQuote => more.contains('\''),
            Open::DoubleQuote => more.contains('"'),
            Open::Backslash => true,
            Open::Json => {
                more.bytes().for_each(|byte| self.read(byte));
                self.depth <= 0
            }
        }
    }

    fn read(&mut self, byte: u8) {
        match (self.is_in_string, byte) {
            (true, _) if self.is_escaped => self.is_escaped = false,
            (true, b'\\') => self.is_escaped = true,
            (_, b'"') => self.is_in_string ^= true,
            (false, b'{' | b'[') => self.depth += 1,
            (false, b'}' | b']') => self.depth -= 1,
            _ => {}
        }
    }
}

const BLANKS: [char; 3] = [' ', '\t', '\r'];

/// The words of the first command in `text`, and where the next command begins.
pub(super) fn first_command(text: &str) -> Result<(Vec<Word>, usize), Unsplit> {
    let (mut words, mut at) = (Vec::new(), 0);
    loop {
        let rest = &text[at..];
        at += match rest.chars().next() {
            None => return Ok((words, at)),
            Some('\n') => return Ok((words, at + 1)),
            Some('#') => rest.find('\n').unwrap_or(rest.len()),
            Some('\\') if rest == "\\\n" => {
                let word = Word { bytes: Vec::new(), start: at, is_quoted: true };
                return Err(Unsplit::Open { before: words, word, what: Open::Backslash });
            }
            Some('\\') if rest[1..].starts_with('\n') => 2,
            Some(c) if BLANKS.contains(&c) => 1,
            Some(_) => match word(text, at) {
                Ok((word, end)) => {
                    words.push(word);
                    end - at
                }
                Err(Fault::Open(bytes, what)) => {
                    let word = Word { bytes, start: at, is_quoted: true };
                    return Err(Unsplit::Open { before: words, word, what });
                }
                Err(Fault::Invalid(why)) => return Err(Unsplit::Invalid(why)),
            },
        };
    }
}

enum Fault {
    /// Ends within something, which began with these bytes.
    Open(Vec<u8>, Open),
    Invalid(String),
}

/// The word that begins at `start`, and where it ends.
fn word(text: &str, start: usize) -> Result<(Word, usize), Fault> {
    if let Some(len) = json(&text[start..])? {
        let end = start + len;
        return Ok((Word { bytes: text[start..end].into(), start, is_quoted: true }, end));
    }
    let (mut bytes, mut at, mut is_quoted) = (Vec::new(), start, false);
    while let Some(c) = text[at..].chars().next() {
        let after = &text[at + c.len_utf8()..];
        let (part, len) = match c {
            '\n' => break,
            c if BLANKS.contains(&c) => break,
            '\'' => single_quoted(after, &bytes)?,
            '"' => double_quoted(after, &bytes)?,
            '$' if after.starts_with('\'') => {
                let (part, len) = single_quoted(&after[1..], &bytes)?;
                (unescape(&part).map_err(Fault::Invalid)?, 1 + len)
            }
            '\\' => match after.chars().next() {
                Some('\n') if after.len() == 1 => return Err(Fault::Open(bytes, Open::Backslash)),
                Some('\n') => (Vec::new(), 1),
                Some(c) => (after[..c.len_utf8()].into(), c.len_utf8()),
                None => return Err(Fault::Open(bytes, Open::Backslash)),
            },
            _ => {
                let is_special = |c: char| BLANKS.contains(&c) || matches!(c, '\n' | '\'' | '"' | '$' | '\\');
                let end = after.find(is_special).unwrap_or(after.len());
                bytes.extend_from_slice(&text.as_bytes()[at..at + c.len_utf8() + end]);
                at += c.len_utf8() + end;
                continue;
            }
        };
        is_quoted = true;
        bytes.extend_from_slice(&part);
        at += c.len_utf8() + len;
    }
    Ok((Word { bytes, start, is_quoted }, at))
}

/// The text up to a single quote, and its length with the quote. `before` is what the word has.
fn single_quoted(text: &str, before: &[u8]) -> Result<(Vec<u8>, usize), Fault> {
    match text.split_once('\'') {
        Some((part, _)) => Ok((part.into(), part.len() + 1)),
        None => Err(Fault::Open([before, text.as_bytes()].concat(), Open::SingleQuote)),
    }
}

fn double_quoted(text: &str, before: &[u8]) -> Result<(Vec<u8>, usize), Fault> {
    let (mut part, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((part.into(), at + 1)),
            '\\' => match chars.next() {
                Some((_, c @ ('"' | '\\' | '$' | '`'))) => part.push(c),
                Some((_, '\n')) => {}
                Some((_, c)) => part.extend(['\\', c]),
                None => break,
            },
            c => part.push(c),
        }
    }
    Err(Fault::Open([before, part.as_bytes()].concat(), Open::DoubleQuote))
}

/// The length of the JSON object or array that begins `text` and is a word, if there is one. A word
/// that begins like one and has a string in it must be one: its quotes would be lost.
fn json(text: &str) -> Result<Option<usize>, Fault> {
    if !text.starts_with(['{', '[']) {
        return Ok(None);
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let why = match values.next() {
        Some(Ok(_)) => {
            let end = values.byte_offset();
            if text[end..].chars().next().is_none_or(|c| c == '\n' || BLANKS.contains(&c)) {
                return Ok(Some(end));
            }
            format!("something follows it at byte {end}")
        }
        Some(Err(error)) if error.is_eof() => return Err(Fault::Open(text.into(), Open::Json)),
        Some(Err(error)) => error.to_string(),
        None => return Ok(None),
    };
    let end = text.find(|c| c == '\n' || BLANKS.contains(&c)).unwrap_or(text.len());
    match text[..end].contains('"') {
        true => {
            Err(Fault::Invalid(format!("{} is not JSON: {why}; other words with quotes are in quotes", &text[..end])))
        }
        false => Ok(None),
    }
}

/// A word that reads as `bytes`.
pub(super) fn quoted(bytes: &[u8]) -> String {
    let is_simple = |c: char| c.is_alphanumeric() || "_-./:@%+=,~^!?*;&|<>()".contains(c);
    let shown = Form::Plain.show(bytes);
    match std::str::from_utf8(bytes) {
        // A word that begins with it is a flag.
        Ok(text) if !text.is_empty() && text.chars().all(is_simple) && !text.starts_with('-') => text.to_owned(),
        Ok(text) if shown == text && !text.contains('\'') && !text.starts_with('-') => format!("'{text}'"),
        _ => format!("$'{}'", Form::Escaped.show(bytes).replace('\'', r"\x27")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<u8>> {
        let (words, end) = first_command(text).unwrap_or_else(|fault| panic!("{text}: {fault:?}"));
        assert_eq!(end, text.len(), "{text}");
        words.into_iter().map(|word| word.bytes).collect()
    }

    #[test]
    fn words_are_those_of_a_shell() {
        assert_eq!(words("  put a\tb "), [b"put", &b"a"[..], b"b"]);
        assert_eq!(words(r#"put 'a b' "c \"d\\ \n""#), [&b"put"[..], b"a b", br#"c "d\ \n"#]);
        assert_eq!(words(r"put $'a\tb\xff' \'\ x"), [&b"put"[..], b"a\tb\xff", b"' x"]);
        assert_eq!(words("put '' a''b"), [&b"put"[..], b"", b"ab"]);
        assert_eq!(words("# get a"), Vec::<Vec<u8>>::new());
        assert_eq!(words("get a#b # the rest"), [&b"get"[..], b"a#b"]);
        assert_eq!(words(r"get \#a"), [&b"get"[..], b"#a"]);
        assert_eq!(words("get a\\\nb \\\n c"), [&b"get"[..], b"ab", b"c"]);
        assert_eq!(words("get a\r"), [&b"get"[..], b"a"]);
        assert_eq!(words("get a\u{a0}b"), [&b"get"[..], "a\u{a0}b".as_bytes()]);
        assert_eq!(words(r#"get "a\$b""#), [&b"get"[..], b"a$b"]);
        assert!(matches!(first_command(r"get $'\q'"), Err(Unsplit::Invalid(_))));
    }

    #[test]
    fn json_is_a_word_over_lines() {
        assert_eq!(words("put k {\"a\": [1,\n 2]}"), [&b"put"[..], b"k", b"{\"a\": [1,\n 2]}"]);
        // Not JSON: ordinary words, unless they would lose their quotes.
        assert_eq!(words("put {a b} [x"), [&b"put"[..], b"{a", b"b}", b"[x"]);
        assert_eq!(words("put {}b"), [&b"put"[..], b"{}b"]);
        for text in [r#"put {"a":1,}"#, r#"put {"a":NaN}"#, r#"put {"a":1}{"b":2}"#] {
            assert!(matches!(first_command(text), Err(Unsplit::Invalid(_))), "{text}");
        }
    }

    #[test]
    fn a_command_ends_at_a_newline_outside_of_words() {
        let text = "put a 'x\ny'\n# done\nget a";
        let (first, end) = first_command(text).unwrap();
        assert_eq!(first.last().unwrap().bytes, b"x\ny");
        assert_eq!(&text[end..], "# done\nget a");
    }

    #[test]
    fn what_is_open_takes_another_line() {
        for (text, start, so_far, what) in [
            ("get 'a b", 4, &b"a b"[..], Open::SingleQuote),
            ("get a\"b", 4, b"ab", Open::DoubleQuote),
            ("put k {\"a\":", 6, b"{\"a\":", Open::Json),
            ("get a\\", 4, b"a", Open::Backslash),
            ("get a\\\n", 4, b"a", Open::Backslash),
            ("get \\\n", 4, b"", Open::Backslash),
        ] {
            let Err(Unsplit::Open { word, what: open, .. }) = first_command(text) else { panic!("{text}") };
            assert_eq!((word.start, word.bytes.as_slice(), open), (start, so_far, what), "{text}");
        }
    }

    #[test]
    fn what_may_close_is_known_without_splitting_again() {
        for (text, more, closes) in [
            ("put k 'a", "b\n", false),
            ("put k 'a", "b' c\n", true),
            ("put k {\"a\": [", "1, \"]}\\\"]\",\n", false),
            ("put k {\"a\": [", "2]\n", false),
            ("put k {\"a\": [", "2]}\n", true),
        ] {
            let Err(Unsplit::Open { word, what, .. }) = first_command(text) else { panic!("{text}") };
            assert_eq!(Closing::new(what, &text[word.start..]).may_close(more), closes, "{text} {more}");
        }
    }

    #[test]
    fn quoted_words_read_as_they_were() {
        for bytes in
            [&b""[..], b"a", b"a b", b"it's", b"-v", b"{}", b"#x", b"\xff\0", b"$'a'", b"a\\b", "ä:1".as_bytes()]
        {
            let line = format!("get {}", quoted(bytes));
            assert_eq!(words(&line), [b"get", bytes], "{line}");
        }
        assert_eq!(quoted(b"user:1"), "user:1");
        assert_eq!(quoted(b"a b"), "'a b'");
    }
}
