//! MULTI, EXEC and WATCH.

use super::support::start;

#[tokio::test(flavor = "multi_thread")]
async fn queued_commands_are_applied_together() {
    let server = start().await;
    let mut client = server.client().await;
    client
        .check(&[
            ("exec", "-ERR EXEC without MULTI"),
            ("discard", "-ERR DISCARD without MULTI"),
            ("multi", "+OK"),
            ("multi", "-ERR MULTI calls can not be nested"),
            ("incr {t}n", "+QUEUED"),
            ("get {t}n", "+QUEUED"),
            ("ping", "+QUEUED"),
            ("incr {t}n", "+QUEUED"),
            ("mget {t}n {t}x", "+QUEUED"),
            ("kvd.range {t} {t}~ values", "+QUEUED"),
            ("unwatch", "+QUEUED"),
            ("set {t}n x", "+QUEUED"),
            ("incr {t}n", "+QUEUED"),
            ("set {t}n 7", "+QUEUED"),
        ])
        .await;
    let error = "-ERR value is not an integer or out of range";
    let replies = format!("[1 \"1\" +PONG 2 [\"2\" nil] [\"{{t}}n\" \"2\"] +OK +OK {error} +OK]");
    client
        .check(&[
            ("exec", &replies),
            ("get {t}n", "\"7\""),
            ("multi", "+OK"),
            ("set {t}n 8", "+QUEUED"),
            ("discard", "+OK"),
            ("get {t}n", "\"7\""),
            ("multi", "+OK"),
            ("exec", "[]"),
            ("multi", "+OK"),
            ("ping", "+QUEUED"),
            ("exec", "[+PONG]"),
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_command_ends_a_transaction() {
    let server = start().await;
    let mut client = server.client().await;
    let refused = [
        ("nosuch", "-ERR unknown command 'nosuch', with args beginning with: "),
        ("get", "-ERR wrong number of arguments for 'get' command"),
        ("set b 1", "-CROSSSLOT Keys in request don't hash to the same slot"),
        ("scan 0", "-ERR Command not allowed inside a transaction"),
        ("dbsize", "-ERR Command not allowed inside a transaction"),
    ];
    for (line, error) in refused {
        client
            .check(&[
                ("multi", "+OK"),
                ("set a 1", "+QUEUED"),
                (line, error),
                ("exec", "-EXECABORT Transaction discarded because of previous errors."),
                ("get a", "nil"),
            ])
            .await;
    }
    // What is not queued does no harm.
    client.check(&[("multi", "+OK"), ("watch a", "-ERR WATCH inside MULTI is not allowed")]).await;
    client.check(&[("set a 1", "+QUEUED"), ("exec", "[+OK]")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_fails_if_a_watched_key_was_written() {
    let server = start().await;
    server.replica.set_time(1000);
    let (mut client, mut other) = (server.client().await, server.client().await);
    client.check(&[("set {t}k 1", "+OK"), ("watch {t}k {t}absent", "+OK")]).await;
    other.check(&[("set {t}k 1", "+OK")]).await;
    client.check(&[("multi", "+OK"), ("incr {t}k", "+QUEUED"), ("exec", "nil"), ("get {t}k", "\"1\"")]).await;
    // EXEC has forgotten what was watched.
    client.check(&[("multi", "+OK"), ("incr {t}k", "+QUEUED"), ("exec", "[2]")]).await;

    client.check(&[("watch {t}absent", "+OK")]).await;
    other.check(&[("set {t}absent 1", "+OK")]).await;
    client.check(&[("multi", "+OK"), ("exec", "nil")]).await;

    client.check(&[("watch {t}k", "+OK")]).await;
    other.check(&[("incr {t}k", "3")]).await;
    client.check(&[("unwatch", "+OK"), ("multi", "+OK"), ("incr {t}k", "+QUEUED"), ("exec", "[4]")]).await;

    client.check(&[("watch {t}k", "+OK"), ("watch {t}k", "+OK")]).await;
    client.check(&[("set {t}k 9", "+OK"), ("multi", "+OK"), ("exec", "nil")]).await;

    // A key that expires has changed, too.
    client.check(&[("set {t}k 1 px 50", "+OK"), ("watch {t}k", "+OK")]).await;
    server.replica.set_time(1050);
    client.check(&[("multi", "+OK"), ("ping", "+QUEUED"), ("exec", "nil")]).await;

    client.check(&[("watch a", "+OK"), ("watch b", "-CROSSSLOT Keys in request don't hash to the same slot")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_under_watch_lose_no_increment() {
    let server = start().await;
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let connecting = tokio::net::TcpStream::connect(server.address);
            tokio::spawn(async move {
                let mut client = super::support::Client::new(connecting.await.unwrap());
                let mut done = 0;
                while done < 25 {
                    assert_eq!(client.call("watch n").await, "+OK");
                    let old = client.call("get n").await;
                    let old: u64 = old.trim_matches('"').parse().unwrap_or(0);
                    assert_eq!(client.call("multi").await, "+OK");
                    assert_eq!(client.call(&format!("set n {}", old + 1)).await, "+QUEUED");
                    done += u64::from(client.call("exec").await == "[+OK]");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(server.client().await.call("get n").await, "\"100\"");
}
