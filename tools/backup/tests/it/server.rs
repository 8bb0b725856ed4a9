//! Servers for the tests of buckets: moto, and proxies that spoil requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) const BUCKET: &str = "backups";

/// A server of the S3 protocol, with one bucket.
pub(crate) struct Server {
    child: Child,
    /// Open as long as it runs: it may say more.
    _output: BufReader<ChildStdout>,
    pub(crate) port: u16,
}

impl Server {
    /// Starts one, if it is installed. `TAMIS_S3=required` makes its absence a failure.
    pub(crate) fn start() -> Option<Server> {
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let program = here.join("../../target/moto/bin/python");
        if !program.exists() {
            let how = "tools/backup/tests/install-server";
            assert!(std::env::var("TAMIS_S3").is_err(), "{} is missing; {how} installs it", program.display());
            println!("skipped: no S3 server in target/moto; {how} installs one");
            return None;
        }
        let mut child = Command::new(program)
            .arg(here.join("tests/serve"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It tells the port at which it listens already.
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let server = Server { child, _output: output, port: line.trim().parse().expect("the server has ended") };
        let made = server.create_bucket().unwrap();
        assert!(made.starts_with("HTTP/1.1 200"), "{made}");
        Some(server)
    }

    fn create_bucket(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        let request =
            format!("PUT /{BUCKET} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// What a client of the bucket at `port` finds in its environment.
    pub(crate) fn environment(port: u16) -> [(&'static str, String); 6] {
        [
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{port}")),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_ACCESS_KEY_ID", "test".into()),
            ("AWS_SECRET_ACCESS_KEY", "test".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("NO_PROXY", "127.0.0.1".into()),
        ]
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// What a proxy does to conditional writes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Spoil {
    /// Leaves out the condition.
    Condition,
    /// Has the request carried out, and loses every second reply.
    Reply,
}

/// Starts a proxy of the server at `port`; returns its port, and how many requests it has spoiled.
/// Its threads end with the process.
pub(crate) fn proxy(port: u16, spoil: Spoil) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let (spoiled, count) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&spoiled);
    std::thread::spawn(move || {
        for client in listener.incoming().map(Result::unwrap) {
            let (spoiled, count) = (Arc::clone(&counted), Arc::clone(&count));
            // A client that goes away is none of our business.
            std::thread::spawn(move || forward(client, port, spoil, &spoiled, &count).ok());
        }
    });
    (own, spoiled)
}

/// Forwards one request, and closes the connection.
fn forward(
    mut client: TcpStream,
    port: u16,
    spoil: Spoil,
    spoiled: &AtomicUsize,
    count: &AtomicUsize,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let (mut head, mut len, mut is_conditional) = (String::new(), 0, false);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            len = value.trim().parse().unwrap();
        }
        if lower.starts_with("if-none-match:") {
            is_conditional = true;
            if spoil == Spoil::Condition {
                continue;
            }
        }
        if !lower.starts_with("connection:") {
            head.push_str(&line);
        }
    }
    head.push_str("Connection: close\r\n\r\n");
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.write_all(head.as_bytes())?;
    std::io::copy(&mut reader.take(len), &mut server)?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    if is_conditional {
        let at = count.fetch_add(1, Ordering::Relaxed);
        if spoil == Spoil::Condition || at.is_multiple_of(2) {
            spoiled.fetch_add(1, Ordering::Relaxed);
        }
        if spoil == Spoil::Reply && at.is_multiple_of(2) {
            return Ok(());
        }
    }
    // Clients would send the next request on this connection.
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(0);
    let (head, body) = answer.split_at(end);
    client.write_all(head)?;
    client.write_all(b"\r\nConnection: close")?;
    client.write_all(body)
}
