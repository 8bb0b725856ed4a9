//! The words of a line, quoted as in a POSIX shell.
//!
//! Blanks divide words. `'…'` holds its text as it is, `"…"` takes `\"` and `\\`, `$'…'`
//! takes the escapes in which kvtool prints keys, and a backslash outside of quotes takes
//! the next character as it is. A JSON object or array that begins a word is one word,
//! blanks and line breaks included. A newline elsewhere ends the command. `#` at the
//! beginning of a line begins a comment.

use serde::de::IgnoredAny;

use crate::text::{Form, unescape};

/// A word of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) bytes: Vec<u8>,
    /// Where it begins in the line.
    pub(super) start: usize,
}

/// Why a line has no words yet, or has none.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unsplit {
    /// A quote or JSON value is open: the words before it, and what there is of it.
    Open {
        before: Vec<Word>,
        word: Word,
        what: &'static str,
    },
    Invalid(String),
}

/// The words of the first command in `text`, and where the next command begins.
pub(super) fn first_command(text: &str) -> Result<(Vec<Word>, usize), Unsplit> {
    let (mut words, mut at) = (Vec::new(), 0);
    loop {
        let rest = &text[at..];
        match rest.chars().next() {
            None => return Ok((words, at)),
            Some('\n') => return Ok((words, at + 1)),
            Some('#') if words.is_empty() => at += rest.find('\n').unwrap_or(rest.len()),
            Some(c) if c.is_whitespace() => at += c.len_utf8(),
            Some(_) => match word(text, at) {
                Ok((word, end)) => {
                    words.push(word);
                    at = end;
                }
                Err(Fault::Open(bytes, what)) => {
                    return Err(Unsplit::Open { before: words, word: Word { bytes, start: at }, what });
                }
                Err(Fault::Invalid(why)) => return Err(Unsplit::Invalid(why)),
            },
        }
    }
}

enum Fault {
    /// Ends within something, which began with these bytes.
    Open(Vec<u8>, &'static str),
    Invalid(String),
}

/// The word that begins at `start`, and where it ends.
fn word(text: &str, start: usize) -> Result<(Word, usize), Fault> {
    let (mut bytes, mut at) = (Vec::new(), start);
    if let Some(len) = json(&text[start..])? {
        let end = start + len;
        return Ok((Word { bytes: text[start..end].into(), start }, end));
    }
    while let Some(c) = text[at..].chars().next() {
        let after = &text[at + c.len_utf8()..];
        let (part, len) = match c {
            c if c.is_whitespace() => break,
            '\'' => single_quoted(after, &bytes)?,
            '"' => double_quoted(after, &bytes)?,
            '$' if after.starts_with('\'') => {
                let (part, len) = single_quoted(&after[1..], &bytes)?;
                (unescape(&part).map_err(Fault::Invalid)?, 1 + len)
            }
            '\\' => match after.chars().next() {
                Some(c) => (after[..c.len_utf8()].into(), c.len_utf8()),
                None => return Err(Fault::Open(bytes, "a backslash")),
            },
            c => (text[at..at + c.len_utf8()].into(), 0),
        };
        bytes.extend_from_slice(&part);
        at += c.len_utf8() + len;
    }
    Ok((Word { bytes, start }, at))
}

/// The text up to a single quote, and its length with the quote. `before` is what the word has.
fn single_quoted(text: &str, before: &[u8]) -> Result<(Vec<u8>, usize), Fault> {
    match text.split_once('\'') {
        Some((part, _)) => Ok((part.into(), part.len() + 1)),
        None => Err(Fault::Open([before, text.as_bytes()].concat(), "a single quote")),
    }
}

fn double_quoted(text: &str, before: &[u8]) -> Result<(Vec<u8>, usize), Fault> {
    let (mut part, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((part.into(), at + 1)),
            '\\' => match chars.next() {
                Some((_, c @ ('"' | '\\'))) => part.push(c),
                Some((_, c)) => part.extend(['\\', c]),
                None => break,
            },
            c => part.push(c),
        }
    }
    Err(Fault::Open([before, part.as_bytes()].concat(), "a double quote"))
}

/// The length of the JSON object or array that begins `text` and is a word, if there is one.
fn json(text: &str) -> Result<Option<usize>, Fault> {
    if !text.starts_with(['{', '[']) {
        return Ok(None);
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    match values.next() {
        Some(Ok(_)) => {
            let end = values.byte_offset();
            let is_word = text[end..].chars().next().is_none_or(char::is_whitespace);
            Ok(is_word.then_some(end))
        }
        Some(Err(error)) if error.is_eof() => Err(Fault::Open(text.into(), "a JSON value")),
        _ => Ok(None),
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
        assert_eq!(words("get #a"), [&b"get"[..], b"#a"]);
        assert!(matches!(first_command(r"get $'\q'"), Err(Unsplit::Invalid(_))));
    }

    #[test]
    fn json_is_a_word_over_lines() {
        assert_eq!(words("put k {\"a\": [1,\n 2]}"), [&b"put"[..], b"k", b"{\"a\": [1,\n 2]}"]);
        // Not JSON, or not alone in its word: ordinary words.
        assert_eq!(words("put {a b} [x"), [&b"put"[..], b"{a", b"b}", b"[x"]);
        assert_eq!(words("put {}b"), [&b"put"[..], b"{}b"]);
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
            ("get 'a b", 4, &b"a b"[..], "a single quote"),
            ("get a\"b", 4, b"ab", "a double quote"),
            ("put k {\"a\":", 6, b"{\"a\":", "a JSON value"),
            ("get a\\", 4, b"a", "a backslash"),
        ] {
            let Err(Unsplit::Open { word, what: open, .. }) = first_command(text) else { panic!("{text}") };
            assert_eq!((word.start, word.bytes.as_slice(), open), (start, so_far, what), "{text}");
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
