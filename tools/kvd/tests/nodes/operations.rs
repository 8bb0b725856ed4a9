//! What operators and their tools ask of a node that runs: probes, its log, new users.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};

use crate::{port, until};

type Lines = Arc<Mutex<Vec<Value>>>;

/// Ends the process.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hash(password: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvd"));
    let mut child = command.arg("hash-password").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim().to_owned()
}

fn write(path: &Path, text: &str) {
    let mut new = NamedTempFile::new_in(path.parent().unwrap()).unwrap();
    new.write_all(text.as_bytes()).unwrap();
    new.persist(path).unwrap();
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn ask(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

#[test]
fn a_node_is_probed_logs_and_reads_its_users_anew() {
    let dir = TempDir::with_prefix("kvd-operations-").unwrap();
    let users = dir.path().join("users");
    write(&users, &format!("anna {} rw\n", hash("first")));
    let ports = [port(), port(), port()];
    let [raft, resp, metrics] = ports.each_ref().map(|(_, address)| address.to_string());
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvd"));
    command.args(["--id", "1", "--raft", &raft, "--resp", &resp, "--metrics", &metrics, "--log-format", "json"]);
    command.arg("--dir").arg(dir.path().join("1")).arg("--users").arg(&users).env_remove("KVD_LOG");
    let mut node = Ended(command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let (log, lines) = (node.0.stderr.take().unwrap(), Lines::default());
    let sink = Arc::clone(&lines);
    thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
            sink.lock().unwrap().push(line);
        }
    });
    let logged = |message: &str| {
        until(message, || {
            let lines = lines.lock().unwrap();
            lines.iter().find(|line| line["message"].as_str().is_some_and(|it| it.contains(message))).cloned()
        })
    };
    let probe = |path: &str| {
        let mut stream = TcpStream::connect(&metrics).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    assert!(until("it is healthy", || probe("/health")).starts_with("HTTP/1.1 200 "));
    let unready = probe("/ready").unwrap();
    assert!(unready.starts_with("HTTP/1.1 503 ") && unready.ends_with("this node is in no cluster\n"), "{unready}");
    let mut init = Command::new(env!("CARGO_BIN_EXE_kvd"));
    assert!(init.args(["init", "--node", &raft]).output().unwrap().status.success());
    let ready = probe("/ready").unwrap();
    assert!(ready.starts_with("HTTP/1.1 200 ") && ready.ends_with("\r\n\r\nready\n"), "{ready}");
    let led = logged("this node leads");
    assert_eq!((&led["level"], &led["group"]), (&"INFO".into(), &0.into()), "{led}");
    assert!(led["timestamp"].is_string() && led["term"].is_u64(), "{led}");
    logged("the members are these");

    let connect = || Client(BufReader::new(TcpStream::connect(&resp).unwrap()));
    let mut before = connect();
    assert_eq!(before.ask("AUTH anna first"), "+OK");
    let hang_up = |node: &Ended| {
        let id = Pid::from_raw(i32::try_from(node.0.id()).unwrap()).unwrap();
        kill_process(id, Signal::HUP).unwrap();
    };
    write(&users, &format!("berta {} rw\n", hash("second")));
    hang_up(&node);
    logged("are read again");
    let mut after = connect();
    assert!(after.ask("AUTH anna first").starts_with("-WRONGPASS"));
    let refused = logged("a login was refused");
    assert_eq!((&refused["user"], &refused["level"]), (&"anna".into(), &"WARN".into()), "{refused}");
    assert_eq!(after.ask("AUTH berta second"), "+OK");
    assert_eq!(before.ask("SET a 1"), "+OK", "who was there stays");
    // A file that cannot be used changes nothing.
    write(&users, "berta no-hash rw\n");
    hang_up(&node);
    let kept = logged("what was read before stays in force");
    assert!(kept["error"].as_str().unwrap().contains("line 1 of the list of users"), "{kept}");
    assert_eq!(connect().ask("AUTH berta second"), "+OK");
    assert!(lines.lock().unwrap().iter().all(Value::is_object), "{lines:?}");
}
