//! [`Decoder`]: commands out of the bytes that a client sends.
//!
//! A command is an array of bulk strings, or a line of words, which people type. The decoder keeps
//! its place between calls, so that a long command that arrives in many pieces is read once. It
//! allocates for bytes that are there, never for lengths that are declared. General decoders of the
//! protocol do neither, and call themselves for nested arrays, which commands do not have.

use bytes::{Buf, Bytes, BytesMut};

use crate::machine::MAX_VALUE_LEN;

/// Longest line: lengths, and commands typed by people.
pub(super) const MAX_LINE_LEN: usize = 64 * 1024;

/// What a client may send before it is authenticated: enough for AUTH and HELLO.
const STRANGERS_WORDS: usize = 10;
const STRANGERS_LEN: usize = 16 * 1024;

/// What each word costs beside its bytes.
const WORD_COST: usize = size_of::<Bytes>();

/// Why bytes are no command. The connection cannot go on: nobody knows where the next one begins.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Protocol error: {0}")]
pub(super) struct ProtocolError(pub(super) String);

/// How long commands may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Most words of a command.
    pub words: usize,
    /// Most bytes of a command; those kept beside each word count.
    pub bytes: usize,
}

/// Takes commands from a buffer.
#[derive(Debug)]
pub(super) struct Decoder {
    limits: DecodeLimits,
    /// Longest word.
    value: usize,
    /// Whether the client must authenticate first.
    stranger: bool,
    words: Vec<Bytes>,
    /// Words that the array being read lacks.
    missing: usize,
    /// Length of the word being read, if it is known.
    word_len: Option<usize>,
    /// Bytes of the command so far.
    len: usize,
    /// How far the buffer was searched for the end of a line.
    searched: usize,
}

impl Decoder {
    /// A decoder at the beginning of a command.
    pub(super) fn new(limits: DecodeLimits) -> Decoder {
        let (words, missing, word_len, len, searched) = Default::default();
        Decoder { limits, value: MAX_VALUE_LEN, stranger: false, words, missing, word_len, len, searched }
    }

    /// Sets how long commands and their words may be from now on.
    pub(super) fn set_limits(&mut self, limits: DecodeLimits, value: usize) {
        (self.limits, self.value) = (limits, value.min(MAX_VALUE_LEN));
    }

    /// Sets whether the client must authenticate first: it may send short commands only.
    pub(super) fn set_stranger(&mut self, stranger: bool) {
        self.stranger = stranger;
    }

    /// Whether a command has begun.
    pub(super) fn is_inside(&self, buffer: &BytesMut) -> bool {
        self.missing > 0 || !buffer.is_empty()
    }

    /// How much of the command being read has arrived.
    pub(super) fn arrived(&self, buffer: &BytesMut) -> usize {
        self.len + buffer.len()
    }

    /// How much memory the command being read needs, as far as it is known.
    pub(super) fn needs(&self, buffer: &BytesMut) -> usize {
        self.len + self.word_len.unwrap_or(0).max(buffer.len())
    }

    /// Takes the next command out of the buffer. `None`: more bytes must come.
    pub(super) fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Vec<Bytes>>, ProtocolError> {
        loop {
            if self.missing == 0 {
                match buffer.first() {
                    None => return Ok(None),
                    Some(b'*') => {}
                    Some(_) => match self.line(buffer, "too big inline request")? {
                        None => return Ok(None),
                        Some(line) => match split_line(&line)? {
                            words if words.is_empty() => continue,
                            words => return Ok(Some(words)),
                        },
                    },
                }
                let Some(line) = self.line(buffer, "too big mbulk count string")? else { return Ok(None) };
                let most = i64::try_from(self.limits.words).unwrap_or(i64::MAX);
                match parse_len(&line[1..]) {
                    Some(count) if count <= 0 => continue,
                    Some(count) if self.stranger && count > STRANGERS_WORDS as i64 => {
                        return fail("unauthenticated multibulk length");
                    }
                    Some(count) if count <= most => self.missing = usize::try_from(count).unwrap_or(0),
                    _ => return fail("invalid multibulk length"),
                }
            }
            while self.missing > 0 {
                let Some(word) = self.word(buffer)? else { return Ok(None) };
                self.words.push(word);
                self.missing -= 1;
            }
            self.len = 0;
            return Ok(Some(std::mem::take(&mut self.words)));
        }
    }

    /// Takes a bulk string.
    fn word(&mut self, buffer: &mut BytesMut) -> Result<Option<Bytes>, ProtocolError> {
        let len = match self.word_len {
            Some(len) => len,
            None => {
                if let Some(&byte) = buffer.first().filter(|byte| **byte != b'$') {
                    return fail(format!("expected '$', got '{}'", byte.escape_ascii()));
                }
                let Some(line) = self.line(buffer, "too big bulk count string")? else { return Ok(None) };
                let len = parse_len(&line[1..]).and_then(|len| usize::try_from(len).ok());
                let len = match len {
                    Some(len) if self.stranger && len > STRANGERS_LEN => {
                        return fail("unauthenticated bulk length");
                    }
                    Some(len) if len <= self.value => len,
                    _ => return fail("invalid bulk length"),
                };
                if self.len + len + WORD_COST > self.limits.bytes {
                    return fail(format!("the command is longer than {} bytes", self.limits.bytes));
                }
                self.word_len = Some(len);
                len
            }
        };
        if buffer.len() < len + 2 {
            return Ok(None);
        }
        if &buffer[len..len + 2] != b"\r\n" {
            return fail("a bulk string is longer than its length says");
        }
        let word = buffer.split_to(len).freeze();
        buffer.advance(2);
        self.len += len + WORD_COST;
        self.word_len = None;
        Ok(Some(word))
    }

    /// Takes a line, without its end.
    fn line(&mut self, buffer: &mut BytesMut, too_long: &str) -> Result<Option<Bytes>, ProtocolError> {
        match buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
            Some(position) if self.searched + position > MAX_LINE_LEN => fail(too_long),
            Some(position) => {
                let line = buffer.split_to(self.searched + position).freeze();
                buffer.advance(1);
                self.searched = 0;
                let end = line.len() - usize::from(line.ends_with(b"\r"));
                Ok(Some(line.slice(..end)))
            }
            None if buffer.len() > MAX_LINE_LEN => fail(too_long),
            None => {
                self.searched = buffer.len();
                Ok(None)
            }
        }
    }
}

fn fail<T>(text: impl Into<String>) -> Result<T, ProtocolError> {
    Err(ProtocolError(text.into()))
}

fn parse_len(text: &[u8]) -> Option<i64> {
    crate::machine::parse_integer(text)
}

/// Splits a line into words, which may be quoted.
fn split_line(line: &[u8]) -> Result<Vec<Bytes>, ProtocolError> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let mut word = Vec::new();
        while let [byte, after @ ..] = rest {
            match byte {
                b'"' | b'\'' => rest = take_quoted(&rest[1..], *byte, &mut word)?,
                byte if byte.is_ascii_whitespace() => break,
                byte => {
                    word.push(*byte);
                    rest = after;
                }
            }
        }
        words.push(Bytes::from(word));
        rest = rest.trim_ascii_start();
    }
    Ok(words)
}

/// Appends what stands before the closing quote. Returns what is behind it, which is white space.
fn take_quoted<'a>(mut rest: &'a [u8], quote: u8, word: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [] => return fail("unbalanced quotes in request"),
            [b'\\', b'x', high, low, after @ ..] if quote == b'"' && hex(*high, *low).is_some() => {
                word.extend(hex(*high, *low));
                after
            }
            [b'\\', escaped, after @ ..] if quote == b'"' => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                after
            }
            [b'\\', b'\'', after @ ..] if quote == b'\'' => {
                word.push(b'\'');
                after
            }
            [byte, after @ ..] if *byte == quote => {
                return match after.first() {
                    Some(next) if !next.is_ascii_whitespace() => fail("unbalanced quotes in request"),
                    _ => Ok(after),
                };
            }
            [byte, after @ ..] => {
                word.push(*byte);
                after
            }
        };
    }
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redis_protocol::resp2::decode::decode_bytes;
    use redis_protocol::resp2::types::BytesFrame;

    use super::*;

    const LIMITS: DecodeLimits = DecodeLimits { words: 1024, bytes: 1 << 20 };

    fn encode(words: &[Vec<u8>]) -> Vec<u8> {
        let mut out = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            out.extend(format!("${}\r\n", word.len()).bytes());
            out.extend(word);
            out.extend(b"\r\n");
        }
        out
    }

    /// Feeds bytes in pieces and returns all commands, and the error if there is one.
    fn decode_all(bytes: &[u8], piece: usize) -> (Vec<Vec<Bytes>>, Option<ProtocolError>) {
        let (mut decoder, mut buffer, mut commands) = (Decoder::new(LIMITS), BytesMut::new(), Vec::new());
        for piece in bytes.chunks(piece) {
            buffer.extend_from_slice(piece);
            loop {
                match decoder.decode(&mut buffer) {
                    Ok(Some(command)) => commands.push(command),
                    Ok(None) => break,
                    Err(error) => return (commands, Some(error)),
                }
            }
        }
        (commands, None)
    }

    fn check_error(bytes: &[u8], expected: &str) {
        for piece in [1, 3, bytes.len()] {
            let (_, error) = decode_all(bytes, piece);
            assert_eq!(error, Some(ProtocolError(expected.to_owned())), "{}", bytes.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn commands_are_read_as_sent_however_they_are_cut(
            commands in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..5), 0..5),
            piece in 1..50usize,
        ) {
            let bytes: Vec<u8> = commands.iter().flat_map(|words| encode(words)).collect();
            let (decoded, error) = decode_all(&bytes, piece);
            prop_assert_eq!(error, None);
            prop_assert_eq!(&decoded, &commands);
            // The crate redis-protocol reads the same.
            let mut rest = Bytes::from(bytes);
            for command in commands {
                let (frame, len) = decode_bytes(&rest).unwrap().unwrap();
                rest.advance(len);
                let words = command.into_iter().map(|word| BytesFrame::BulkString(word.into())).collect();
                prop_assert_eq!(frame, BytesFrame::Array(words));
            }
        }

        #[test]
        fn any_bytes_are_decoded_or_refused_alike_in_one_piece_and_in_many(
            bytes in prop::collection::vec(prop_oneof![
                Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'2'), Just(b'"'), any::<u8>(),
            ], 0..200),
            piece in 1..20usize,
        ) {
            prop_assert_eq!(decode_all(&bytes, piece), decode_all(&bytes, bytes.len().max(1)));
        }

        #[test]
        fn damaged_commands_never_panic(
            words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..5),
            at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut bytes = encode(&words);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            prop_assert_eq!(decode_all(&bytes, 7), decode_all(&bytes, bytes.len()));
        }
    }

    #[test]
    fn errors_are_those_of_redis() {
        check_error(b"*1\r\n:1\r\n", "expected '$', got ':'");
        check_error(b"*x\r\n", "invalid multibulk length");
        check_error(b"*1025\r\n", "invalid multibulk length");
        check_error(b"*9223372036854775808\r\n", "invalid multibulk length");
        check_error(b"*1\r\n$-1\r\n", "invalid bulk length");
        check_error(b"*1\r\n$16777217\r\n", "invalid bulk length");
        check_error(b"*1\r\n$9223372036854775807\r\n", "invalid bulk length");
        check_error(b"get \"a\r\n", "unbalanced quotes in request");
        check_error(b"get 'a'b\r\n", "unbalanced quotes in request");
        check_error(&[b'x'; MAX_LINE_LEN + 2], "too big inline request");
        check_error(&[&b"*"[..], &[b'1'; MAX_LINE_LEN + 1]].concat(), "too big mbulk count string");
        check_error(&[&b"*1\r\n$"[..], &[b'1'; MAX_LINE_LEN + 1]].concat(), "too big bulk count string");
        let longest = [&[b'x'; MAX_LINE_LEN][..], b"\n"].concat();
        assert_eq!(decode_all(&longest, 1000).0.len(), 1);
        check_error(&[b"x", &longest[..]].concat(), "too big inline request");
        check_error(b"*1\r\n$3\r\nabcde", "a bulk string is longer than its length says");
    }

    #[test]
    fn a_command_is_bounded_in_all_and_words_count_beside_their_bytes() {
        let half = vec![b'x'; LIMITS.bytes / 2];
        assert_eq!(decode_all(&encode(std::slice::from_ref(&half)), 4096).0.len(), 1);
        let error = "the command is longer than 1048576 bytes";
        check_error(&encode(&[half.clone(), half]), error);
        let mut decoder = Decoder::new(DecodeLimits { words: 1_000_000, bytes: 1 << 20 });
        let mut buffer = BytesMut::from(&encode(&vec![Vec::new(); 100_000])[..]);
        assert_eq!(decoder.decode(&mut buffer), Err(ProtocolError(error.to_owned())));
    }

    #[test]
    fn declared_lengths_take_no_memory_and_are_known_before_the_bytes_come() {
        let mut decoder = Decoder::new(LIMITS);
        let mut buffer = BytesMut::from(&b"*1000\r\n$900000\r\nabc"[..]);
        assert_eq!(decoder.decode(&mut buffer), Ok(None));
        assert!(buffer.capacity() < 1000 && decoder.words.capacity() == 0);
        assert_eq!(decoder.needs(&buffer), 900_000);
        assert!(decoder.is_inside(&buffer));
    }

    #[test]
    fn strangers_may_send_short_commands_only() {
        let mut decoder = Decoder::new(LIMITS);
        decoder.set_stranger(true);
        let mut decode = |bytes: &[u8]| decoder.decode(&mut BytesMut::from(bytes));
        assert_eq!(decode(b"*2\r\n$4\r\nAUTH\r\n$1\r\nx\r\n"), Ok(Some(vec!["AUTH".into(), "x".into()])));
        assert_eq!(decode(b"*11\r\n"), fail("unauthenticated multibulk length"));
        assert_eq!(decode(b"*1\r\n$16385\r\n"), fail("unauthenticated bulk length"));
    }

    #[test]
    fn lines_are_split_as_people_quote_them() {
        let check = |line: &str, expected: &[&[u8]]| {
            assert_eq!(split_line(line.as_bytes()).unwrap(), expected, "{line}");
        };
        check("set  a\tb ", &[b"set", b"a", b"b"]);
        check(r#"set a "x y\n\x41\"z""#, &[b"set", b"a", b"x y\nA\"z"]);
        check(r"set a 'it\'s \n'", &[b"set", b"a", b"it's \\n"]);
        check(r#"get """#, &[b"get", b""]);
        check("   ", &[]);
        assert_eq!(decode_all(b"\r\n\r\nPING\r\n*0\r\n*-1\r\nPING\n", 1).0.len(), 2);
    }
}
