//! [`Format`] and [`Encoder`]: records as text that other stores load.
//!
//! | format | a record |
//! |---|---|
//! | `jsonl` | `{"key":"Zm9v","value":"YmFy","expires_ms":1795594500000}`, or `null` without one |
//! | `tsv` | `key TAB value TAB deadline`, the last one empty if there is none |
//! | `fdbcli` | `set key value`, between `begin` and `commit`, for FoundationDB's `fdbcli` |
//! | `resp` | the command `SET key value [PXAT deadline]`, for `redis-cli --pipe` |
//!
//! Keys and values in `jsonl` are in base64, that of RFC 4648 with padding.
//!
//! `tsv` and `fdbcli` write printable ASCII as it is, `\\` for a backslash and `\xNN` for other
//! bytes. That is what fdbcli reads ("help escaping" in its documentation: "To express a binary
//! value, encode each byte as a two-digit hex value, preceded by `\x`"). It also splits words at
//! spaces and commands at semicolons, and drops quotes: these are escaped, too, and an empty word
//! is `""`. Whatever need not be escaped is not: fdbcli moves the rest of the line for each escape.

use std::io::{self, Write};

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;

use crate::error::Misfit;
use crate::machine::Record;

/// "Keys cannot exceed 10,000 bytes in size. Values cannot exceed 100,000 bytes in size."
/// (FoundationDB, Known Limitations, "Large keys and values")
const FDB_KEY: usize = 10_000;
const FDB_VALUE: usize = 100_000;

/// "Transaction size cannot exceed 10,000,000 bytes of affected data. [...] If any single
/// transaction exceeds one megabyte of affected data, you should modify your design."
/// (FoundationDB, Known Limitations, "Large transactions")
const FDB_TRANSACTION: usize = 1_000_000;

/// Allowance for what FoundationDB adds to the affected data for each key: lengths and pointers.
/// The key counts three times, as itself and as both ends of a conflict range (FoundationDB's wiki,
/// "Transaction size limit").
const FDB_OVERHEAD: usize = 100;

/// Bytes that mean something to fdbcli.
const FDB_SPECIAL: &[u8] = b" ;\"";

/// What an export writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// JSON lines, with keys and values in base64
    Jsonl,
    /// Tab-separated values, with backslashes and bytes that are not printable ASCII escaped
    Tsv,
    /// A script for FoundationDB's fdbcli
    Fdbcli,
    /// Redis commands, for redis-cli --pipe
    Resp,
}

impl Format {
    /// What loads it, for errors.
    pub(super) fn target(self) -> &'static str {
        match self {
            Format::Jsonl => "a JSON line",
            Format::Tsv => "a line",
            Format::Fdbcli => "FoundationDB",
            Format::Resp => "Redis",
        }
    }

    /// Why the target cannot hold a record. That it expires comes last.
    pub(super) fn misfit(self, record: &Record) -> Option<Misfit> {
        let Record { key, value, deadline_ms } = record;
        match self {
            Format::Jsonl | Format::Tsv | Format::Resp => None,
            Format::Fdbcli if key.len() > FDB_KEY => Some(Misfit::LongKey { len: key.len(), limit: FDB_KEY }),
            Format::Fdbcli if value.len() > FDB_VALUE => Some(Misfit::LongValue { len: value.len(), limit: FDB_VALUE }),
            Format::Fdbcli if key.starts_with(b"\xff") => Some(Misfit::SystemKey),
            Format::Fdbcli => deadline_ms.map(Misfit::Deadline),
        }
    }
}

/// Writes records: `begin`, any number of `write`, `finish`.
pub(super) struct Encoder<W> {
    format: Format,
    out: W,
    /// Affected data of the transaction that is open.
    transaction: Option<usize>,
}

impl<W: Write> Encoder<W> {
    pub(super) fn new(format: Format, out: W) -> Encoder<W> {
        Encoder { format, out, transaction: None }
    }

    pub(super) fn begin(&mut self) -> io::Result<()> {
        match self.format {
            Format::Fdbcli => self.out.write_all(b"writemode on\n"),
            Format::Jsonl | Format::Tsv | Format::Resp => Ok(()),
        }
    }

    pub(super) fn write(&mut self, record: Record) -> io::Result<()> {
        match self.format {
            Format::Jsonl => self.write_json(record),
            Format::Tsv => self.write_line(record),
            Format::Fdbcli => self.write_set(record),
            Format::Resp => self.write_command(record),
        }
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.commit()?;
        self.out.flush()
    }

    fn write_json(&mut self, Record { key, value, deadline_ms }: Record) -> io::Result<()> {
        let (key, value) = (Base64Display::new(key, &STANDARD), Base64Display::new(value, &STANDARD));
        write!(self.out, "{{\"key\":\"{key}\",\"value\":\"{value}\",\"expires_ms\":")?;
        match deadline_ms {
            Some(deadline) => writeln!(self.out, "{deadline}}}"),
            None => writeln!(self.out, "null}}"),
        }
    }

    fn write_line(&mut self, Record { key, value, deadline_ms }: Record) -> io::Result<()> {
        write_escaped(&mut self.out, key, b"")?;
        self.out.write_all(b"\t")?;
        write_escaped(&mut self.out, value, b"")?;
        match deadline_ms {
            Some(deadline) => writeln!(self.out, "\t{deadline}"),
            None => writeln!(self.out, "\t"),
        }
    }

    fn write_set(&mut self, Record { key, value, .. }: Record) -> io::Result<()> {
        let affected = 3 * key.len() + value.len() + FDB_OVERHEAD;
        if self.transaction.is_some_and(|before| before + affected > FDB_TRANSACTION) {
            self.commit()?;
        }
        if self.transaction.is_none() {
            self.out.write_all(b"begin\n")?;
        }
        *self.transaction.get_or_insert(0) += affected;
        self.out.write_all(b"set")?;
        for word in [key, value] {
            self.out.write_all(if word.is_empty() { b" \"\"" } else { b" " })?;
            write_escaped(&mut self.out, word, FDB_SPECIAL)?;
        }
        self.out.write_all(b"\n")
    }

    fn commit(&mut self) -> io::Result<()> {
        match self.transaction.take() {
            Some(_) => self.out.write_all(b"commit\n"),
            None => Ok(()),
        }
    }

    fn write_command(&mut self, Record { key, value, deadline_ms }: Record) -> io::Result<()> {
        let deadline = deadline_ms.map(|deadline| deadline.to_string());
        let mut words = vec![b"SET", key, value];
        words.extend(deadline.iter().flat_map(|deadline| [b"PXAT", deadline.as_bytes()]));
        write!(self.out, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.out, "${}\r\n", word.len())?;
            self.out.write_all(word)?;
            self.out.write_all(b"\r\n")?;
        }
        Ok(())
    }
}

/// Writes printable ASCII as it is, except for `special` and the backslash.
fn write_escaped(out: &mut impl Write, bytes: &[u8], special: &[u8]) -> io::Result<()> {
    for byte in bytes {
        match byte {
            b'\\' => out.write_all(b"\\\\")?,
            b' '..=b'~' if !special.contains(byte) => out.write_all(&[*byte])?,
            byte => write!(out, "\\x{byte:02x}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    type Pair = (Vec<u8>, Vec<u8>, Option<u64>);

    fn encoded(format: Format, records: &[Pair]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(format, &mut out);
        encoder.begin().unwrap();
        for (key, value, deadline_ms) in records {
            encoder.write(Record { key, value, deadline_ms: *deadline_ms }).unwrap();
        }
        encoder.finish().unwrap();
        out
    }

    fn check(format: Format, key: &[u8], value: &[u8], deadline: Option<u64>, expected: &str) {
        let out = encoded(format, &[(key.to_vec(), value.to_vec(), deadline)]);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn records_look_as_documented() {
        check(
            Format::Jsonl,
            b"foo",
            b"bar",
            Some(1_795_594_500_000),
            "{\"key\":\"Zm9v\",\"value\":\"YmFy\",\"expires_ms\":1795594500000}\n",
        );
        check(Format::Jsonl, b"\xff", b"", None, "{\"key\":\"/w==\",\"value\":\"\",\"expires_ms\":null}\n");
        check(Format::Tsv, b"a\tb\\", b" \"\n\xc3\xa9", None, "a\\x09b\\\\\t \"\\x0a\\xc3\\xa9\t\n");
        check(Format::Tsv, b"k", b"", Some(7), "k\t\t7\n");
        let script = |set: &str| format!("writemode on\nbegin\n{set}\ncommit\n");
        check(Format::Fdbcli, b"a b", b"\"x\";\\\0", None, &script("set a\\x20b \\x22x\\x22\\x3b\\\\\\x00"));
        check(Format::Fdbcli, b"", b"", None, &script("set \"\" \"\""));
        check(Format::Resp, b"k", b"a\r\nb", None, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n");
        check(Format::Resp, b"k", b"", Some(12), "*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n$4\r\nPXAT\r\n$2\r\n12\r\n");
    }

    #[test]
    fn nothing_is_written_for_nothing_but_what_switches_fdbcli_to_writing() {
        for format in [Format::Jsonl, Format::Tsv, Format::Resp] {
            assert_eq!(encoded(format, &[]), b"");
        }
        assert_eq!(encoded(Format::Fdbcli, &[]), b"writemode on\n");
    }

    #[test]
    fn what_foundationdb_cannot_hold_is_a_misfit() {
        let misfit = |key: &[u8], value: &[u8], deadline_ms| {
            assert_eq!(Format::Resp.misfit(&Record { key, value, deadline_ms }), None);
            Format::Fdbcli.misfit(&Record { key, value, deadline_ms })
        };
        let (key, value) = (vec![b'k'; FDB_KEY + 1], vec![b'v'; FDB_VALUE + 1]);
        assert_eq!(misfit(&key[1..], &value[1..], None), None);
        assert_eq!(misfit(&key, b"", Some(1)), Some(Misfit::LongKey { len: 10_001, limit: 10_000 }));
        assert_eq!(misfit(b"", &value, Some(1)), Some(Misfit::LongValue { len: 100_001, limit: 100_000 }));
        assert_eq!(misfit(b"\xff", b"", Some(1)), Some(Misfit::SystemKey));
        assert_eq!(misfit(b"k\xff", b"", Some(1)), Some(Misfit::Deadline(1)));
    }

    #[test]
    fn transactions_stay_below_the_limit_of_foundationdb() {
        let records: Vec<Pair> =
            (0..400).map(|at: usize| (vec![b'k'; at * 25], vec![b'v'; (400 - at) * 250], None)).collect();
        let script = String::from_utf8(encoded(Format::Fdbcli, &records)).unwrap();
        let (mut affected, mut sets, mut commits) = (None, 0, 0);
        for line in script.lines().skip(1) {
            match fdb_words(line).unwrap().as_slice() {
                [begin] if begin == b"begin" => assert_eq!(affected.replace(0), None),
                [commit] if commit == b"commit" => {
                    assert!(affected.take().unwrap() <= 1_000_000);
                    commits += 1;
                }
                [set, key, value] if set == b"set" => {
                    *affected.as_mut().unwrap() += 3 * key.len() + value.len();
                    sets += 1;
                }
                words => panic!("{words:?}"),
            }
        }
        assert_eq!((affected, sets), (None, 400));
        assert!((25..50).contains(&commits), "{commits}");
    }

    /// The words of a line with one command, by the rules of fdbcli's `parseLine`.
    fn fdb_words(line: &str) -> Option<Vec<Vec<u8>>> {
        let (mut words, mut word, mut quoted) = (Vec::new(), None::<Vec<u8>>, false);
        let mut rest = line.bytes();
        while let Some(byte) = rest.next() {
            match byte {
                b'"' => {
                    quoted = !quoted;
                    word.get_or_insert_default();
                }
                b';' if !quoted => return None,
                b' ' if !quoted => words.extend(word.take()),
                b'\\' => {
                    let byte = match rest.next()? {
                        byte @ (b'"' | b'\\' | b' ' | b';') => byte,
                        b'x' => hex([rest.next()?, rest.next()?])?,
                        _ => return None,
                    };
                    word.get_or_insert_default().push(byte);
                }
                byte => word.get_or_insert_default().push(byte),
            }
        }
        words.extend(word);
        (!quoted).then_some(words)
    }

    fn hex(digits: [u8; 2]) -> Option<u8> {
        u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()
    }

    fn unescaped(field: &str) -> Vec<u8> {
        let (mut bytes, mut rest) = (Vec::new(), field.bytes());
        while let Some(byte) = rest.next() {
            assert!((b' '..=b'~').contains(&byte), "{field}");
            bytes.push(match byte {
                b'\\' => match rest.next().unwrap() {
                    b'x' => hex([rest.next().unwrap(), rest.next().unwrap()]).unwrap(),
                    byte => byte,
                },
                byte => byte,
            });
        }
        bytes
    }

    /// The records in an export.
    fn decoded(format: Format, bytes: &[u8]) -> Vec<Pair> {
        if format == Format::Resp {
            return decoded_commands(bytes);
        }
        let text = std::str::from_utf8(bytes).unwrap();
        let mut records = Vec::new();
        for line in text.split_terminator('\n') {
            match format {
                Format::Jsonl => {
                    let line: serde_json::Value = serde_json::from_str(line).unwrap();
                    let field = |name: &str| STANDARD.decode(line[name].as_str().unwrap()).unwrap();
                    records.push((field("key"), field("value"), line["expires_ms"].as_u64()));
                }
                Format::Tsv => {
                    let fields: Vec<&str> = line.split('\t').collect();
                    let [key, value, deadline] = fields[..] else { panic!("{line}") };
                    records.push((unescaped(key), unescaped(value), deadline.parse().ok()));
                }
                Format::Fdbcli => match &fdb_words(line).unwrap()[..] {
                    [set, key, value] if set == b"set" => records.push((key.clone(), value.clone(), None)),
                    words => assert!(words.len() == 1 || line == "writemode on", "{line}"),
                },
                Format::Resp => unreachable!(),
            }
        }
        records
    }

    fn decoded_commands(mut bytes: &[u8]) -> Vec<Pair> {
        use redis_protocol::resp2::decode::decode;
        use redis_protocol::resp2::types::OwnedFrame;
        let mut records = Vec::new();
        while let Some((OwnedFrame::Array(words), len)) = decode(bytes).unwrap() {
            let words: Vec<Vec<u8>> = words
                .into_iter()
                .map(|word| match word {
                    OwnedFrame::BulkString(word) => word,
                    other => panic!("{other:?}"),
                })
                .collect();
            let (pair, deadline) = words[1..].split_at(2);
            let deadline = match deadline {
                [] => None,
                [pxat, deadline] if pxat == b"PXAT" => Some(std::str::from_utf8(deadline).unwrap().parse().unwrap()),
                other => panic!("{other:?}"),
            };
            assert_eq!(words[0], b"SET");
            records.push((pair[0].clone(), pair[1].clone(), deadline));
            bytes = &bytes[len..];
        }
        assert!(bytes.is_empty());
        records
    }

    /// Bytes that mean something to a format, and any others.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let special = prop::sample::select(&b" ;\"\\\t\r\n\0x20$*{}'u\x7f\x80\xff"[..]);
        vec(prop_oneof![special, any::<u8>()], 0..40)
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(
            records in vec((bytes(), bytes(), prop::option::of(1u64..)), 0..20),
        ) {
            for format in [Format::Jsonl, Format::Tsv, Format::Resp] {
                prop_assert_eq!(&decoded(format, &encoded(format, &records)), &records, "{:?}", format);
            }
            let without: Vec<Pair> = records.into_iter().map(|(key, value, _)| (key, value, None)).collect();
            prop_assert_eq!(decoded(Format::Fdbcli, &encoded(Format::Fdbcli, &without)), without);
        }
    }
}
