//! [`Format`] and [`Encoder`]: records as text that other stores load.
//!
//! | format | a record |
//! |---|---|
//! | `jsonl` | `{"key":"Zm9v","value":"YmFy","expires_ms":1795594500000}`, or `null` without one |
//! | `tsv` | `key TAB value TAB deadline`, the last one empty if there is none |
//! | `resp` | the command `SET key value [PXAT deadline]`, for `redis-cli --pipe` |
//!
//! Keys and values in `jsonl` are in base64, that of RFC 4648 with padding.
//!
//! `tsv` writes printable ASCII as it is, `\\` for a backslash and `\xNN` for other bytes.

use std::io::{self, Write};

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;

use crate::machine::Record;

/// What an export writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// JSON lines, with keys and values in base64
    Jsonl,
    /// Tab-separated values, with backslashes and bytes that are not printable ASCII escaped
    Tsv,
    /// Redis commands, for redis-cli --pipe
    Resp,
}

/// Writes records: any number of `write`, then `finish`.
pub(super) struct Encoder<W> {
    format: Format,
    out: W,
}

impl<W: Write> Encoder<W> {
    pub(super) fn new(format: Format, out: W) -> Encoder<W> {
        Encoder { format, out }
    }

    pub(super) fn write(&mut self, record: Record) -> io::Result<()> {
        match self.format {
            Format::Jsonl => self.write_json(record),
            Format::Tsv => self.write_line(record),
            Format::Resp => self.write_command(record),
        }
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
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
        write_escaped(&mut self.out, key)?;
        self.out.write_all(b"\t")?;
        write_escaped(&mut self.out, value)?;
        match deadline_ms {
            Some(deadline) => writeln!(self.out, "\t{deadline}"),
            None => writeln!(self.out, "\t"),
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

/// Writes printable ASCII as it is, except for the backslash.
fn write_escaped(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    for byte in bytes {
        match byte {
            b'\\' => out.write_all(b"\\\\")?,
            b' '..=b'~' => out.write_all(&[*byte])?,
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
        check(Format::Resp, b"k", b"a\r\nb", None, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n");
        check(Format::Resp, b"k", b"", Some(12), "*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n$4\r\nPXAT\r\n$2\r\n12\r\n");
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
        }
    }
}
