//! A client of the Redis protocol that asks one node, and tells what is not known from a refusal.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// After which a client gives up waiting.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a node answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Nil,
    Text(String),
    Many(Vec<Answer>),
    /// It has not done it.
    Refused(String),
    /// It may have done it, or may do it.
    Unknown(String),
}

pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Connection { stream: BufReader::new(stream) })
    }

    /// Sends a command and waits for its answer. After an error, the connection is of no use.
    pub(crate) fn ask(&mut self, words: &[&str]) -> io::Result<Answer> {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(command.as_bytes())?;
        self.receive()
    }

    fn receive(&mut self) -> io::Result<Answer> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let broken = || io::Error::new(io::ErrorKind::InvalidData, line.clone());
        let rest = line.get(1..).ok_or_else(broken)?.trim_end().to_owned();
        Ok(match line.as_bytes()[0] {
            b'+' | b':' => Answer::Text(rest),
            b'-' if rest.starts_with("UNKNOWN") => Answer::Unknown(rest),
            b'-' => Answer::Refused(rest),
            b'$' | b'*' if rest == "-1" => Answer::Nil,
            b'$' => {
                let mut bytes = vec![0; rest.parse::<usize>().map_err(|_| broken())? + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Answer::Text(String::from_utf8(bytes).map_err(|_| broken())?)
            }
            b'*' => {
                let len: usize = rest.parse().map_err(|_| broken())?;
                Answer::Many((0..len).map(|_| self.receive()).collect::<io::Result<_>>()?)
            }
            _ => return Err(broken()),
        })
    }
}
