//! Commands that tell about the server and the cluster, or change the server.

use super::arguments::{Arguments, SYNTAX};
use super::spec::Spec;
use super::{Command, KillFilter, ListFilter, ServerCommand as Server};
use crate::machine::{Reply, parse_integer, slot_of};

type Parsed = Result<Command, Reply>;

fn server(command: Server) -> Parsed {
    Ok(Command::Server(command))
}

pub(super) fn info(next: &mut Arguments, _: &Spec) -> Parsed {
    let section = |word: &bytes::Bytes| String::from_utf8_lossy(word).to_ascii_lowercase();
    server(Server::Info(next.rest().iter().map(section).collect()))
}

pub(super) fn time(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::Time)
}

pub(super) fn role(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::Role)
}

/// What Redis answers to a time that is no number, or one before now.
fn timeout(next: &mut Arguments) -> Result<(), Reply> {
    match parse_integer(next.next()?) {
        None => Err(Reply::error("ERR timeout is not an integer or out of range")),
        Some(..0) => Err(Reply::error("ERR timeout is negative")),
        Some(_) => Ok(()),
    }
}

/// `WAIT replicas timeout`.
pub(super) fn wait(next: &mut Arguments, _: &Spec) -> Parsed {
    next.integer()?;
    timeout(next)?;
    server(Server::Wait { local: false })
}

/// `WAITAOF local replicas timeout`.
pub(super) fn waitaof(next: &mut Arguments, _: &Spec) -> Parsed {
    let local = next.integer()?;
    next.number()?;
    timeout(next)?;
    match local {
        0 | 1 => server(Server::Wait { local: true }),
        _ => Err(Reply::error("ERR value is out of range, must be between 0 and 1")),
    }
}

pub(super) fn config_get(next: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::ConfigGet(next.rest().to_vec()))
}

pub(super) fn config_set(next: &mut Arguments, spec: &Spec) -> Parsed {
    server(Server::ConfigSet(spec.pairs(next)?))
}

pub(super) fn config_rewrite(_: &mut Arguments, _: &Spec) -> Parsed {
    Err(Reply::error("ERR The server is running without a config file"))
}

pub(super) fn config_resetstat(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::ResetStatistics)
}

pub(super) fn slowlog_get(next: &mut Arguments, _: &Spec) -> Parsed {
    let count = if next.is_empty() { 10 } else { next.integer()? };
    if count < -1 {
        return Err(Reply::error("ERR count should be greater than or equal to -1"));
    }
    server(Server::SlowLog(count))
}

pub(super) fn slowlog_len(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::SlowLogLen)
}

pub(super) fn slowlog_reset(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::SlowLogReset)
}

/// Whether a word names a type of clients of which there are some here. `None`: it names none.
fn client_type(word: &[u8]) -> Option<bool> {
    match word.to_ascii_lowercase().as_slice() {
        b"normal" => Some(true),
        b"master" | b"slave" | b"replica" | b"pubsub" => Some(false),
        _ => None,
    }
}

fn unknown_type(word: &[u8]) -> Reply {
    Reply::error(format!("ERR Unknown client type '{}'", String::from_utf8_lossy(&word[..word.len().min(128)])))
}

fn client_id(word: &[u8]) -> Option<u64> {
    parse_integer(word).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0)
}

/// `CLIENT LIST [TYPE type] [ID id ...]`.
pub(super) fn client_list(next: &mut Arguments, _: &Spec) -> Parsed {
    if next.is_empty() {
        return server(Server::ClientList(None));
    }
    match (&next.word()?[..], next.rest()) {
        (b"TYPE", [word]) => match client_type(word) {
            Some(some) => server(Server::ClientList((!some).then(Vec::new))),
            None => Err(unknown_type(word)),
        },
        (b"ID", ids @ [_, ..]) => {
            let ids = ids.iter().map(|id| client_id(id).ok_or(Reply::error("ERR Invalid client ID")));
            server(Server::ClientList(Some(ids.collect::<Result<_, _>>()?)))
        }
        _ => Err(Reply::error(SYNTAX)),
    }
}

/// `CLIENT KILL address`, or filters, all of which must hold.
pub(super) fn client_kill(next: &mut Arguments, _: &Spec) -> Parsed {
    let mut filter = KillFilter { skip_me: true, ..KillFilter::default() };
    match next.rest() {
        [address] => {
            filter = KillFilter { address: Some(address.clone()), one: true, ..KillFilter::default() };
        }
        words => {
            let (options, odd) = words.as_chunks::<2>();
            if !odd.is_empty() {
                return Err(Reply::error(SYNTAX));
            }
            for [option, value] in options {
                match option.to_ascii_uppercase().as_slice() {
                    b"ID" => {
                        filter.id =
                            Some(client_id(value).ok_or(Reply::error("ERR client-id should be greater than 0"))?);
                    }
                    b"ADDR" => filter.address = Some(value.clone()),
                    b"LADDR" => filter.local_address = Some(value.clone()),
                    b"USER" => filter.user = Some(value.clone()),
                    b"TYPE" => filter.none |= !client_type(value).ok_or_else(|| unknown_type(value))?,
                    b"SKIPME" => match value.to_ascii_lowercase().as_slice() {
                        b"yes" => filter.skip_me = true,
                        b"no" => filter.skip_me = false,
                        _ => return Err(Reply::error(SYNTAX)),
                    },
                    _ => return Err(Reply::error(SYNTAX)),
                }
            }
        }
    }
    server(Server::ClientKill(filter))
}

pub(super) fn command_count(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::CommandCount)
}

pub(super) fn command_info(next: &mut Arguments, _: &Spec) -> Parsed {
    let names = next.rest();
    server(Server::CommandInfo(if names.is_empty() { None } else { Some(names.to_vec()) }))
}

pub(super) fn command_docs(next: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::CommandDocs(next.rest().to_vec()))
}

/// `COMMAND LIST [FILTERBY MODULE|ACLCAT|PATTERN text]`.
pub(super) fn command_list(next: &mut Arguments, _: &Spec) -> Parsed {
    if next.is_empty() {
        return server(Server::CommandList(None));
    }
    if next.word()? != b"FILTERBY" {
        return Err(Reply::error(SYNTAX));
    }
    let (kind, text) = (next.word()?, next.bytes()?);
    server(Server::CommandList(Some(match &kind[..] {
        b"MODULE" => ListFilter::Module(text),
        b"ACLCAT" => ListFilter::Category(text),
        b"PATTERN" => ListFilter::Pattern(text),
        _ => return Err(Reply::error(SYNTAX)),
    })))
}

pub(super) fn command_getkeys(next: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::CommandKeys { words: next.rest().to_vec(), flags: false })
}

pub(super) fn command_getkeysandflags(next: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::CommandKeys { words: next.rest().to_vec(), flags: true })
}

pub(super) fn cluster_info(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::ClusterInfo)
}

pub(super) fn cluster_myid(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::ClusterMyId)
}

pub(super) fn cluster_myshardid(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::ClusterMyShardId)
}

pub(super) fn cluster_nodes(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::ClusterNodes)
}

pub(super) fn cluster_shards(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::ClusterShards)
}

pub(super) fn cluster_slots(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::ClusterSlots)
}

pub(super) fn cluster_links(_: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::ClusterLinks)
}

pub(super) fn cluster_replicas(next: &mut Arguments, _: &Spec) -> Parsed {
    server(Server::ClusterReplicas(next.bytes()?))
}

pub(super) fn cluster_keyslot(next: &mut Arguments, _: &Spec) -> Parsed {
    Ok(Command::Answer(Reply::Integer(i64::from(slot_of(next.next()?)))))
}
