//! Commands of strings, with the replies and the errors of Redis.

use super::support::{command, encode, start};

#[tokio::test(flavor = "multi_thread")]
async fn strings_are_written_and_read() {
    let server = start().await;
    let mut client = server.client().await;
    client
        .check(&[
            ("get a", "nil"),
            ("set a 1", "+OK"),
            ("GET a", "\"1\""),
            ("set a 2 nx", "nil"),
            ("set a 2 xx get", "\"1\""),
            ("set b 2 xx", "nil"),
            ("set b 2 nx get", "nil"),
            ("set b 3 nx get", "\"2\""),
            ("get b", "\"2\""),
            ("setnx b 5", "0"),
            ("setnx c 5", "1"),
            ("getset c _", "\"5\""),
            ("get c", "\"\""),
            ("strlen c", "0"),
            ("strlen nosuch", "0"),
            ("append c abc", "3"),
            ("append c d", "4"),
            ("getdel c", "\"abcd\""),
            ("getdel c", "nil"),
            ("del b b", "1"),
            ("unlink a", "1"),
            ("exists a", "0"),
            ("type a", "+none"),
            ("mset {t}a 1 {t}b 2 {t}a 3", "+OK"),
            ("mget {t}a {t}b {t}c {t}a", "[\"3\" \"2\" nil \"3\"]"),
            ("exists {t}a {t}a {t}c", "2"),
            ("type {t}a", "+string"),
            ("dbsize", "2"),
            ("del {t}a {t}b {t}c", "2"),
            ("dbsize", "0"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_added_within_64_bits() {
    let server = start().await;
    let mut client = server.client().await;
    client
        .check(&[
            ("incr n", "1"),
            ("incrby n 41", "42"),
            ("decr n", "41"),
            ("decrby n 50", "-9"),
            ("get n", "\"-9\""),
            ("set n 9223372036854775807", "+OK"),
            ("incr n", "-ERR increment or decrement would overflow"),
            ("decrby n -1", "-ERR increment or decrement would overflow"),
            ("get n", "\"9223372036854775807\""),
            ("incrby n 9223372036854775808", "-ERR value is not an integer or out of range"),
            ("set n 007", "+OK"),
            ("incr n", "-ERR value is not an integer or out of range"),
            ("set n -9223372036854775808", "+OK"),
            ("decr n", "-ERR increment or decrement would overflow"),
            ("decrby n -9223372036854775808", "-ERR decrement would overflow"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_bytes_are_keys_and_values() {
    let server = start().await;
    let mut client = server.client().await;
    let every: Vec<u8> = (0..=255).collect();
    client.send(&encode(&[b"set", &every, &every])).await;
    assert_eq!(client.shown().await, "+OK");
    client.send(&encode(&[b"set", b"", b"\r\n$-1\r\n"])).await;
    assert_eq!(client.shown().await, "+OK");
    client.send(&encode(&[b"strlen", b""])).await;
    assert_eq!(client.shown().await, "7");
    client.send(&encode(&[b"get", &every])).await;
    assert_eq!(client.shown().await, format!("\"{}\"", every.escape_ascii()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_is_answered_in_order_and_reads_see_the_writes_before_them() {
    let server = start().await;
    let mut client = server.client().await;
    let mut lines = Vec::new();
    let mut expected = Vec::new();
    for i in 0..2000 {
        lines.push("incr n".to_owned());
        expected.push((i + 1).to_string());
        if i % 7 == 0 {
            lines.push("get n".to_owned());
            expected.push(format!("\"{}\"", i + 1));
        }
        if i % 11 == 0 {
            lines.push("nosuch".to_owned());
            expected.push("-ERR unknown command 'nosuch', with args beginning with: ".to_owned());
            lines.push(format!("echo {i}"));
            expected.push(format!("\"{i}\""));
        }
    }
    let bytes: Vec<u8> = lines.iter().flat_map(|line| command(line)).collect();
    let sent = client.send(&bytes);
    sent.await;
    for (line, expected) in lines.iter().zip(expected) {
        assert_eq!(client.shown().await, expected, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_tells_about_itself() {
    let server = start().await;
    let mut client = server.client().await;
    client
        .check(&[
            ("ping", "+PONG"),
            ("ping hi", "\"hi\""),
            ("echo hi", "\"hi\""),
            ("select 0", "+OK"),
            ("select 1", "-ERR SELECT is not allowed in cluster mode"),
            ("client getname", "nil"),
            ("client setname me", "+OK"),
            ("client getname", "\"me\""),
            ("client setinfo lib-name test", "+OK"),
            ("client id", "1"),
            ("config get sa*", "[\"save\" \"\"]"),
            ("config get nosuch", "[]"),
            ("command count", &kvd::command::COMMANDS.iter().filter(|spec| spec.is_top()).count().to_string()),
            ("command getkeys mset a 1 b 2", "[\"a\" \"b\"]"),
            ("command getkeys ping", "-ERR The command has no key arguments"),
            (
                "command info get nosuch",
                "[[\"get\" 2 [+readonly] 1 1 1 [+@read +@string] [] [] []] nil]",
            ),
            ("auth x", "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"),
            ("hello 4", "-NOPROTO unsupported protocol version"),
        ])
        .await;
    let hello = client.call("hello 3 setname you").await;
    assert!(hello.starts_with("{\"id\": 1, \"mode\": \"cluster\""), "{hello}");
    assert!(hello.contains("\"proto\": 3"), "{hello}");
    client
        .check(&[("client getname", "\"you\""), ("get nosuch", "nil"), ("config get save", "{\"save\": \"\"}")])
        .await;
    let info = client.call("info everything").await;
    for field in
        ["redis_mode:cluster", "cluster_enabled:1", "connected_clients:1", "cmdstat_ping:calls=2", "role:master"]
    {
        assert!(info.contains(field), "{field} in {info}");
    }
    assert!(info.starts_with("text "), "verbatim in RESP3");
    let server_section = client.call("info server").await;
    assert!(server_section.contains("redis_version") && !server_section.contains("connected_clients"));
    assert_eq!(client.call("quit").await, "+OK");
    assert_eq!(client.shown().await, "closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_may_type_commands() {
    let server = start().await;
    let mut client = server.client().await;
    client.send(b"SET k \"a b\"\r\n\r\nget k\nPING\r\n").await;
    assert_eq!(client.shown().await, "+OK");
    assert_eq!(client.shown().await, "\"a b\"");
    assert_eq!(client.shown().await, "+PONG");
}
