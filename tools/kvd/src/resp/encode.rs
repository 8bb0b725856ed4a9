//! Replies as bytes, in RESP2 and RESP3.

use std::io::Write;

use bytes::{BufMut, BytesMut};

use crate::machine::Reply;

/// Version of the protocol that a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Version {
    /// RESP2, which every client understands.
    #[default]
    Resp2,
    /// RESP3, which a client asks for by HELLO 3.
    Resp3,
}

/// Appends a reply.
pub(super) fn encode(reply: &Reply, version: Version, out: &mut BytesMut) {
    let resp3 = version == Version::Resp3;
    match reply {
        Reply::Nil | Reply::NilArray if resp3 => out.put_slice(b"_\r\n"),
        Reply::Nil => out.put_slice(b"$-1\r\n"),
        Reply::NilArray => out.put_slice(b"*-1\r\n"),
        Reply::Status(text) => line(b'+', text, out),
        Reply::Error(text) => line(b'-', text, out),
        Reply::Integer(number) => number_line(b':', *number, out),
        Reply::Bulk(bytes) => bulk(bytes, out),
        Reply::Text(text) if resp3 => {
            len_line(b'=', text.len() + 4, out);
            out.put_slice(b"txt:");
            out.put_slice(text.as_bytes());
            out.put_slice(b"\r\n");
        }
        Reply::Text(text) => bulk(text.as_bytes(), out),
        Reply::Array(items) => {
            len_line(b'*', items.len(), out);
            items.iter().for_each(|item| encode(item, version, out));
        }
        Reply::Map(pairs) => {
            if resp3 {
                len_line(b'%', pairs.len(), out);
            } else {
                len_line(b'*', 2 * pairs.len(), out);
            }
            for (key, value) in pairs {
                encode(key, version, out);
                encode(value, version, out);
            }
        }
    }
}

fn bulk(bytes: &[u8], out: &mut BytesMut) {
    len_line(b'$', bytes.len(), out);
    out.put_slice(bytes);
    out.put_slice(b"\r\n");
}

/// A line of text. Texts may quote what a client sent, so line ends become spaces.
fn line(kind: u8, text: &str, out: &mut BytesMut) {
    out.put_u8(kind);
    out.extend(text.bytes().map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }));
    out.put_slice(b"\r\n");
}

fn len_line(kind: u8, len: usize, out: &mut BytesMut) {
    number_line(kind, i64::try_from(len).unwrap_or(i64::MAX), out);
}

fn number_line(kind: u8, number: i64, out: &mut BytesMut) {
    // Writing to memory does not fail.
    let _ = write!(out.writer(), "{}{number}\r\n", char::from(kind));
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use redis_protocol::resp2::decode::decode_bytes as decode2;
    use redis_protocol::resp2::types::BytesFrame as Frame2;
    use redis_protocol::resp3::decode::complete::decode_bytes as decode3;
    use redis_protocol::resp3::types::{BytesFrame as Frame3, VerbatimStringFormat};

    use super::*;

    fn encoded(reply: &Reply, version: Version) -> Bytes {
        let mut out = BytesMut::new();
        encode(reply, version, &mut out);
        out.freeze()
    }

    fn frame2(reply: &Reply) -> Frame2 {
        match reply {
            Reply::Nil | Reply::NilArray => Frame2::Null,
            Reply::Status(text) => Frame2::SimpleString(Bytes::from(text.to_string())),
            Reply::Error(text) => Frame2::Error(text.to_string().into()),
            Reply::Integer(number) => Frame2::Integer(*number),
            Reply::Bulk(bytes) => Frame2::BulkString(bytes.clone()),
            Reply::Text(text) => Frame2::BulkString(Bytes::from(text.clone())),
            Reply::Array(items) => Frame2::Array(items.iter().map(frame2).collect()),
            Reply::Map(pairs) => Frame2::Array(pairs.iter().flat_map(|(a, b)| [frame2(a), frame2(b)]).collect()),
        }
    }

    fn frame3(reply: &Reply) -> Frame3 {
        let attributes = None;
        match reply {
            Reply::Nil | Reply::NilArray => Frame3::Null,
            Reply::Status(text) => Frame3::SimpleString { data: Bytes::from(text.to_string()), attributes },
            Reply::Error(text) => Frame3::SimpleError { data: text.to_string().into(), attributes },
            Reply::Integer(data) => Frame3::Number { data: *data, attributes },
            Reply::Bulk(bytes) => Frame3::BlobString { data: bytes.clone(), attributes },
            Reply::Text(text) => Frame3::VerbatimString {
                data: Bytes::from(text.clone()),
                format: VerbatimStringFormat::Text,
                attributes,
            },
            Reply::Array(items) => Frame3::Array { data: items.iter().map(frame3).collect(), attributes },
            Reply::Map(pairs) => {
                let data = pairs.iter().map(|(key, value)| (frame3(key), frame3(value))).collect();
                Frame3::Map { data, attributes }
            }
        }
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let leaf = prop_oneof![
            Just(Reply::Nil),
            Just(Reply::NilArray),
            Just(Reply::OK),
            "[A-Z]{1,9} [a-z ]{0,20}".prop_map(Reply::error),
            any::<i64>().prop_map(Reply::Integer),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Reply::Bulk(bytes.into())),
            "[a-z\r\n]{0,20}".prop_map(Reply::Text),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            let bulk = prop::collection::vec(any::<u8>(), 0..9).prop_map(|bytes| Reply::Bulk(bytes.into()));
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Reply::Array),
                prop::collection::vec((bulk, inner), 0..4).prop_map(|mut pairs| {
                    pairs.sort_by(|(a, _), (b, _)| format!("{a:?}").cmp(&format!("{b:?}")));
                    pairs.dedup_by(|(a, _), (b, _)| a == b);
                    Reply::Map(pairs)
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn another_decoder_reads_what_was_meant(reply in reply()) {
            let bytes = encoded(&reply, Version::Resp2);
            prop_assert_eq!(decode2(&bytes).unwrap(), Some((frame2(&reply), bytes.len())));
            let bytes = encoded(&reply, Version::Resp3);
            prop_assert_eq!(decode3(&bytes).unwrap(), Some((frame3(&reply), bytes.len())));
        }
    }

    #[test]
    fn a_line_end_in_a_text_ends_no_reply() {
        let bytes = encoded(&Reply::error("ERR unknown command 'a\r\n+OK\r\n'"), Version::Resp2);
        assert_eq!(&bytes[..], b"-ERR unknown command 'a  +OK  '\r\n");
    }

    #[test]
    fn the_absent_array_differs_from_the_absent_value_in_resp2_only() {
        assert_eq!(&encoded(&Reply::Nil, Version::Resp2)[..], b"$-1\r\n");
        assert_eq!(&encoded(&Reply::NilArray, Version::Resp2)[..], b"*-1\r\n");
        assert_eq!(&encoded(&Reply::NilArray, Version::Resp3)[..], b"_\r\n");
    }
}
