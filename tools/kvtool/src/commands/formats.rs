//! [`Codec`]: a format of entries in files, with its two sides: the entry in a record that was
//! read, and the record of an entry to be written.
//!
//! TSV and JSON lines print any bytes as text. CSV and NUL-delimited pairs hold fields as they are,
//! in CSV between quotes where needed; the options `--escaped` and `--hex` turn fields into text
//! there too. Only a NUL byte in a NUL-delimited field cannot be held without them.
//!
//! CSV is read strictly (RFC 4180; lines end with LF or CRLF). A lenient reader takes `"a"b` for
//! `ab`: a value that nobody wrote.

use std::borrow::Cow;
use std::io::{self, Write};

use serde_json::{Map, Value, json};
use tamis::{Expiry, MAX_KEY_LEN, MAX_VALUE_LEN, Parts};

use super::definition::Definition;
use super::lines::{BYTE_ORDER_MARK, Framing, something_else, split_line};
pub(crate) use crate::args::Format;
use crate::json::Strict;
use crate::output::{SCHEMA, document, json_bytes, write_row};
use crate::text::{Form, QUOTES, parse_time, utc_or_unix};

/// A format, and the form of the fields in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codec {
    pub(crate) format: Format,
    pub(crate) form: Form,
}

/// An entry as a record holds it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) key: Cow<'a, [u8]>,
    /// `None` if there are only operands.
    pub(crate) value: Option<Cow<'a, [u8]>>,
    pub(crate) expiry: Expiry,
    /// Oldest first.
    pub(crate) operands: Vec<Vec<u8>>,
}

impl<'a> Entry<'a> {
    fn put(key: Cow<'a, [u8]>, value: Cow<'a, [u8]>) -> Entry<'a> {
        Entry { key, value: Some(value), expiry: Expiry::Default, operands: Vec::new() }
    }

    fn value_len(&self) -> usize {
        self.value.as_ref().map_or(0, |value| value.len())
    }

    /// Bytes of key, value and operands.
    pub(crate) fn len(&self) -> usize {
        self.key.len() + self.value_len() + self.operands.iter().map(Vec::len).sum::<usize>()
    }
}

/// What a record says.
#[derive(Debug)]
pub(crate) enum Record<'a> {
    Entry(Entry<'a>),
    /// The entries after it are of this keyspace.
    Keyspace(Box<Definition>),
    /// A blank line of JSON.
    Blank,
}

type KeyValue<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// An entry that keeps to the limits of a store.
fn checked(entry: Entry<'_>) -> Result<Record<'_>, String> {
    match &entry {
        entry if entry.key.len() > MAX_KEY_LEN => Err(format!("a key has at most {MAX_KEY_LEN} bytes")),
        entry if entry.value_len() > MAX_VALUE_LEN => Err(format!("a value has at most {MAX_VALUE_LEN} bytes")),
        _ => Ok(Record::Entry(entry)),
    }
}

impl Codec {
    /// Where a record ends.
    pub(crate) fn framing(&self) -> Framing {
        match self.format {
            Format::Tsv | Format::Jsonl => Framing::Line,
            Format::Csv => Framing::QuotedLines,
            Format::Nul => Framing::NulPair,
        }
    }

    /// Upper bound on a valid record: the limits of key and value, and the longest encoding of a
    /// byte.
    pub(crate) fn longest_record(&self) -> usize {
        let per_byte = match (self.format, self.form) {
            // `\u0000`
            (Format::Jsonl, _) => 6,
            // A quote is doubled.
            (Format::Csv, Form::Plain) => 2,
            (Format::Nul, Form::Plain) => 1,
            _ => self.form.longest_byte(),
        };
        (MAX_KEY_LEN + MAX_VALUE_LEN) * per_byte + 2 * QUOTES + 1024
    }

    /// What a record says. The error says what is wrong with it.
    pub(crate) fn parse<'a>(&self, record: &'a [u8]) -> Result<Record<'a>, String> {
        let (key, value) = match self.format {
            Format::Tsv => self.parse_tsv(record)?,
            Format::Csv => self.parse_csv(record)?,
            Format::Nul => self.parse_pair(record)?,
            Format::Jsonl => return parse_json(record),
        };
        checked(Entry::put(key, value))
    }

    fn parse_tsv<'a>(&self, line: &'a [u8]) -> Result<KeyValue<'a>, String> {
        let (key, value) = split_line(line, self.form)?;
        Ok((self.form.parse_field(key)?, self.form.parse_field(value.unwrap_or_default())?))
    }

    fn parse_csv<'a>(&self, record: &'a [u8]) -> Result<KeyValue<'a>, String> {
        let (key, rest) = csv_field(record)?;
        let (value, rest) = match rest {
            Some(rest) => csv_field(rest)?,
            None => (Cow::Borrowed(&[][..]), None),
        };
        match rest {
            Some(_) => Err("it has more than two fields".into()),
            None => Ok((self.field(key)?, self.field(value)?)),
        }
    }

    fn parse_pair<'a>(&self, record: &'a [u8]) -> Result<KeyValue<'a>, String> {
        let at = record.iter().position(|&byte| byte == 0).ok_or("it has a key and no value")?;
        Ok((self.field(record[..at].into())?, self.field(record[at + 1..].into())?))
    }

    /// The bytes in a field of a format that holds any bytes: as they are, if no form is asked for.
    fn field<'a>(&self, field: Cow<'a, [u8]>) -> Result<Cow<'a, [u8]>, String> {
        match self.form {
            Form::Plain => Ok(field),
            _ => self.form.parse_field(&field).map(|bytes| Cow::Owned(bytes.into_owned())),
        }
    }

    /// Whether the format holds deadlines, operands and the options of keyspaces.
    pub(crate) fn holds_all(&self) -> bool {
        self.format == Format::Jsonl
    }

    /// Why the format cannot hold an entry, if it cannot.
    pub(crate) fn refuses(&self, key: &[u8], value: &[u8]) -> Option<String> {
        let held = (self.format, self.form) != (Format::Nul, Form::Plain);
        let what = match () {
            () if held => return None,
            () if key.contains(&0) => "key",
            () if value.contains(&0) => "value",
            () => return None,
        };
        Some(format!("its {what} has a NUL byte, which the format nul holds only with --escaped or --hex"))
    }

    /// Whether a file that begins with this entry needs a byte order mark before it: without one,
    /// a reader would take the entry's first bytes for one, or the file for something else.
    pub(crate) fn needs_mark(&self, key: &[u8], value: &[u8]) -> bool {
        let mut first = Vec::new();
        // Writing to memory does not fail.
        let _ = self.write(&mut first, key, value);
        first.starts_with(BYTE_ORDER_MARK) || something_else(&first, self.framing()).is_some()
    }

    /// Writes the record of an entry that the format does not refuse.
    pub(crate) fn write(&self, out: &mut impl Write, key: &[u8], value: &[u8]) -> io::Result<()> {
        match self.format {
            Format::Tsv => write_row(out, self.form, key, value),
            Format::Csv => {
                self.write_csv_field(out, key)?;
                out.write_all(b",")?;
                self.write_csv_field(out, value)?;
                out.write_all(b"\n")
            }
            Format::Jsonl => {
                let (key, value) = (json_bytes(self.form, key), json_bytes(self.form, value));
                writeln!(out, "{}", document(json!({ "key": key, "value": value })))
            }
            Format::Nul => {
                for field in [key, value] {
                    out.write_all(&self.shown(field))?;
                    out.write_all(b"\0")?;
                }
                Ok(())
            }
        }
    }

    /// Writes all of an entry, as JSON. With `has_ttl`, its keyspace gives deadlines to puts
    /// without one, so that of a value without a deadline it says so.
    pub(crate) fn write_parts(&self, out: &mut impl Write, parts: &Parts<'_>, has_ttl: bool) -> io::Result<()> {
        let mut entry = json!({ "key": json_bytes(self.form, parts.key) });
        if let Some(value) = parts.value {
            entry["value"] = json_bytes(self.form, value);
            match parts.deadline {
                Some(deadline) => entry["deadline"] = json!(utc_or_unix(deadline)),
                None if has_ttl => entry["deadline"] = Value::Null,
                None => {}
            }
        }
        if !parts.operands.is_empty() {
            entry["operands"] = parts.operands.iter().map(|operand| json_bytes(self.form, operand)).collect();
        }
        writeln!(out, "{}", document(entry))
    }

    fn write_csv_field(&self, out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
        let field = self.shown(bytes);
        // Other readers trim spaces, and take a byte order mark off the beginning of a file.
        let needs_quotes = field.iter().any(|byte| b",\"\r\n".contains(byte))
            || matches!(*field, [b' ' | b'\t' | b'\xef', ..] | [.., b' ' | b'\t']);
        if !needs_quotes {
            return out.write_all(&field);
        }
        out.write_all(b"\"")?;
        for (i, part) in field.split(|&byte| byte == b'"').enumerate() {
            if i > 0 {
                out.write_all(b"\"\"")?;
            }
            out.write_all(part)?;
        }
        out.write_all(b"\"")
    }

    fn shown<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match self.form {
            Form::Plain => Cow::Borrowed(bytes),
            form => Cow::Owned(form.show(bytes).into_bytes()),
        }
    }
}

/// A field, and what follows its comma, if there is one.
type CsvField<'a> = (Cow<'a, [u8]>, Option<&'a [u8]>);

/// The first field of a CSV record, and what follows the comma after it, if there is one.
fn csv_field(record: &[u8]) -> Result<CsvField<'_>, String> {
    let Some(quoted) = record.strip_prefix(b"\"") else {
        let end = record.iter().position(|&byte| byte == b',').unwrap_or(record.len());
        let (field, rest) = record.split_at(end);
        return match field.iter().find(|byte| b"\"\r".contains(byte)) {
            Some(b'"') => {
                Err("a field has a quote and is not in quotes; write \"\" for a quote in a quoted field".into())
            }
            Some(_) => Err("a field has a carriage return and is not in quotes".into()),
            None => Ok((field.into(), rest.strip_prefix(b","))),
        };
    };
    let (mut end, mut doubled) = (0, false);
    loop {
        let quote = quoted[end..].iter().position(|&byte| byte == b'"');
        end += quote.ok_or("a quote is not closed")?;
        if quoted.get(end + 1) != Some(&b'"') {
            break;
        }
        doubled = true;
        end += 2;
    }
    let (field, rest) = (&quoted[..end], &quoted[end + 1..]);
    if !(rest.is_empty() || rest.starts_with(b",")) {
        return Err("a field goes on after its closing quote; write \"\" for a quote in a quoted field".into());
    }
    let field = if doubled { Cow::Owned(without_doubled_quotes(field)) } else { Cow::Borrowed(field) };
    Ok((field, rest.strip_prefix(b",")))
}

fn without_doubled_quotes(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.iter();
    while let Some(&byte) = rest.next() {
        bytes.push(byte);
        if byte == b'"' {
            rest.next();
        }
    }
    bytes
}

/// A line of JSON. What it does not understand, it refuses: it may be what was meant.
fn parse_json(line: &[u8]) -> Result<Record<'static>, String> {
    if line.trim_ascii().is_empty() {
        return Ok(Record::Blank);
    }
    let Strict(value) = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let Value::Object(mut object) = value else { return Err("it is not a JSON object".into()) };
    if object.remove("schema").is_some_and(|schema| schema != json!(SCHEMA)) {
        return Err(format!("its schema is not {SCHEMA}; a newer kvtool may read it"));
    }
    let record = match object.remove("keyspace") {
        Some(keyspace) => {
            let definition = Definition::parse(&keyspace, object.remove("options"))?;
            Record::Keyspace(Box::new(definition))
        }
        None => checked(parse_entry(&mut object)?)?,
    };
    match object.keys().next() {
        Some(name) => Err(format!("it has a field {name:?}, of which kvtool does not know what it means here")),
        None => Ok(record),
    }
}

/// Takes an entry out of an object.
fn parse_entry(object: &mut Map<String, Value>) -> Result<Entry<'static>, String> {
    let mut field = |name: &str| {
        let hex_name = format!("{name}_hex");
        match (object.remove(name), object.remove(&hex_name)) {
            (Some(_), Some(_)) => Err(format!("it has both {name} and {hex_name}")),
            (Some(value), None) => json_field(name, value).map(Some),
            (None, Some(Value::String(hex))) => parse_hex(&hex).map(Some),
            (None, Some(_)) => Err(format!("{hex_name} is not a string")),
            (None, None) => Ok(None),
        }
    };
    let (key, value) = (field("key")?.ok_or("it has no key")?, field("value")?);
    let operands = match object.remove("operands") {
        None => Vec::new(),
        Some(Value::Array(operands)) => {
            operands.into_iter().map(|operand| json_field("an operand", operand)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err("operands is not an array".into()),
    };
    let expiry = match object.remove("deadline") {
        None => Expiry::Default,
        Some(Value::Null) => Expiry::Never,
        Some(Value::String(time)) => Expiry::At(parse_time(&time)?),
        Some(_) => return Err("deadline is neither a time nor null".into()),
    };
    let value = value.or_else(|| operands.is_empty().then(Vec::new)).map(Cow::Owned);
    if value.is_none() && expiry != Expiry::Default {
        return Err("it has a deadline and operands, and no value that could expire".into());
    }
    Ok(Entry { key: key.into(), value, expiry, operands })
}

fn parse_hex(digits: &str) -> Result<Vec<u8>, String> {
    Form::Hex.parse_field(digits.as_bytes()).map(Cow::into_owned)
}

/// A string, or `{"hex": "…"}`.
fn json_field(name: &str, value: Value) -> Result<Vec<u8>, String> {
    match value {
        Value::String(text) => Ok(text.into_bytes()),
        Value::Object(object) => match object.get("hex") {
            Some(Value::String(hex)) if object.len() == 1 => parse_hex(hex),
            _ => Err(format!("{name} is an object that is not of the form {{\"hex\": \"…\"}}")),
        },
        _ => Err(format!("{name} is not a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(format: Format, form: Form, record: &[u8]) -> Result<Entry<'_>, String> {
        match (Codec { format, form }).parse(record)? {
            Record::Entry(entry) => Ok(entry),
            other => panic!("{other:?}"),
        }
    }

    fn tsv(form: Form, line: &[u8]) -> Result<Entry<'_>, String> {
        parse(Format::Tsv, form, line)
    }

    fn csv(record: &[u8]) -> Result<Entry<'_>, String> {
        parse(Format::Csv, Form::Plain, record)
    }

    fn jsonl(line: &str) -> Result<Entry<'_>, String> {
        parse(Format::Jsonl, Form::Plain, line.as_bytes())
    }

    fn entry(key: &'static [u8], value: &'static [u8]) -> Result<Entry<'static>, String> {
        Ok(Entry::put(key.into(), value.into()))
    }

    #[test]
    fn tsv_fields_are_bytes_unless_they_are_quoted_or_a_form_is_given() {
        assert_eq!(tsv(Form::Plain, b"a\\b\tc\td\r"), entry(b"a\\b", b"c\td\r"));
        assert_eq!(tsv(Form::Plain, b"word"), entry(b"word", b""));
        assert_eq!(tsv(Form::Plain, br"$'a\tb'	$'\n'"), entry(b"a\tb", b"\n"));
        assert_eq!(tsv(Form::Plain, b"$''\tv"), entry(b"", b"v"));
        assert_eq!(tsv(Form::Escaped, br"a\\b\t	\x00"), entry(b"a\\b\t", b"\0"));
        assert_eq!(tsv(Form::Hex, b"00ff\t41"), entry(b"\0\xff", b"A"));
        assert!(tsv(Form::Escaped, br"\q").is_err());
        assert!(tsv(Form::Plain, br"$'\q'").is_err());
    }

    #[test]
    fn a_line_without_a_key_is_refused_where_people_write_lines() {
        for line in [&b"\t"[..], b"\tvalue"] {
            assert!(tsv(Form::Plain, line).unwrap_err().contains("no key"));
        }
        assert_eq!(tsv(Form::Escaped, b"\tv"), entry(b"", b"v"));
        assert_eq!(tsv(Form::Hex, b"\t41"), entry(b"", b"A"));
    }

    #[test]
    fn csv_fields_are_bytes_between_quotes_or_without() {
        assert_eq!(csv(b"k,v"), entry(b"k", b"v"));
        assert_eq!(csv(b"k"), entry(b"k", b""));
        assert_eq!(csv(b","), entry(b"", b""));
        assert_eq!(csv(b"\"\""), entry(b"", b""));
        assert_eq!(csv(b"$'a', b \xff\0"), entry(b"$'a'", b" b \xff\0"));
        assert_eq!(csv(b"\"a,\"\"b\"\"\r\n\",\"\"\"\""), entry(b"a,\"b\"\r\n", b"\""));
        assert_eq!(parse(Format::Csv, Form::Hex, b"\"6b\",00"), entry(b"k", b"\0"));
        assert_eq!(parse(Format::Csv, Form::Escaped, br#"k,"""\x00,""#), entry(b"k", b"\"\0,"));
        for (record, why) in [
            (&b"a,b,c"[..], "more than two"),
            (b"a,b,", "more than two"),
            (b"\"a", "not closed"),
            (b"a,\"b\"\"", "not closed"),
            (b"\"a\"b,c", "after its closing quote"),
            (b"a\"b\",c", "not in quotes"),
            (b"a\rb", "carriage return"),
        ] {
            assert!(csv(record).unwrap_err().contains(why), "{record:?}");
        }
        assert!(parse(Format::Csv, Form::Hex, b"6,00").is_err());
    }

    #[test]
    fn pairs_need_a_value_and_refuse_what_they_cannot_hold() {
        let pair = |record| parse(Format::Nul, Form::Plain, record);
        assert_eq!(pair(b"k\0\t\n$''"), entry(b"k", b"\t\n$''"));
        assert_eq!(pair(b"\0"), entry(b"", b""));
        assert!(pair(b"k").unwrap_err().contains("no value"));
        let plain = Codec { format: Format::Nul, form: Form::Plain };
        assert_eq!(plain.refuses(b"k", b"v"), None);
        assert!(plain.refuses(b"\0", b"").unwrap().contains("its key"));
        assert!(plain.refuses(b"k", b"v\0").unwrap().contains("its value"));
        assert_eq!(Codec { form: Form::Escaped, ..plain }.refuses(b"\0", b"\0"), None);
    }

    #[test]
    fn json_fields_are_strings_or_hex() {
        for line in [
            r#"{"key": "k", "value": "v", "schema": 1}"#,
            r#"{"key_hex": "6b", "value_hex": "76"}"#,
            r#" {"key": {"hex": "6b"}, "value": {"hex": "76"}} "#,
        ] {
            assert_eq!(jsonl(line), entry(b"k", b"v"), "{line}");
        }
        assert_eq!(jsonl(r#"{"key": ""}"#), entry(b"", b""));
        assert!(matches!(parse_json(b" \r"), Ok(Record::Blank)));
        for line in [
            "{",
            "[]",
            r#"{"value": "v"}"#,
            r#"{"key": 1}"#,
            r#"{"key": "k", "key_hex": "6b"}"#,
            r#"{"key": "k", "key": "k"}"#,
            r#"{"key_hex": "6"}"#,
            r#"{"key": "k", "value": null}"#,
            r#"{"key": {"hex": "6b", "more": 1}}"#,
            r#"{"key": {"hex": "6b", "hex": "6c"}}"#,
            r#"{"key": "k", "valeu": "v"}"#,
            r#"{"schema": 2, "key": "k"}"#,
            r#"{"key": "k", "deadline": 1}"#,
            r#"{"key": "k", "deadline": "soon"}"#,
            r#"{"key": "k", "operands": ["a"], "deadline": null}"#,
            r#"{"key": "k", "operands": "a"}"#,
            r#"{"key": "k", "keyspace": "s"}"#,
        ] {
            assert!(parse_json(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn json_holds_deadlines_operands_and_keyspaces() {
        let codec = Codec { format: Format::Jsonl, form: Form::Plain };
        let deadline = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1_795_594_500_250);
        let far = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1 << 52);
        let operands = [b"a".to_vec(), b"\xff".to_vec()];
        for (value, deadline, operands, has_ttl, expiry) in [
            (Some(&b"v"[..]), None, &[][..], false, Expiry::Default),
            (Some(b"v"), None, &[], true, Expiry::Never),
            (Some(b""), Some(deadline), &operands[..], false, Expiry::At(deadline)),
            (Some(b""), Some(far), &[], true, Expiry::At(far)),
            (None, None, &operands[..], true, Expiry::Default),
        ] {
            let mut line = Vec::new();
            codec.write_parts(&mut line, &parts(value, deadline, operands), has_ttl).unwrap();
            let read = jsonl(std::str::from_utf8(&line).unwrap()).unwrap();
            assert_eq!(read.value.as_deref(), value);
            assert_eq!((&*read.key, read.expiry, &read.operands[..]), (&b"k"[..], expiry, operands));
        }
        let line = r#"{"schema":1,"keyspace":"s","options":{"ttl_ms":5}}"#;
        assert!(matches!(parse_json(line.as_bytes()), Ok(Record::Keyspace(of)) if of.keyspace == "s"));
    }

    /// The parts of an entry `k`.
    fn parts<'a>(
        value: Option<&'a [u8]>,
        deadline: Option<std::time::SystemTime>,
        operands: &'a [Vec<u8>],
    ) -> Parts<'a> {
        let mut parts = Parts::new(b"k", value);
        (parts.deadline, parts.operands) = (deadline, operands);
        parts
    }

    #[test]
    fn keys_beyond_the_limit_are_refused_before_they_are_written() {
        assert!(tsv(Form::Plain, &[b'k'; MAX_KEY_LEN]).is_ok());
        assert!(tsv(Form::Plain, &[b'k'; MAX_KEY_LEN + 1]).is_err());
        assert!(csv(&[b'k'; MAX_KEY_LEN + 1]).is_err());
    }
}
