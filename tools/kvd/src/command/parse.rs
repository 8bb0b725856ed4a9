//! [`parse`]: checks words against the table and says what they ask for.

use bytes::Bytes;

use super::arguments::{Arguments, SYNTAX};
use super::spec::{Parse, Spec};
use super::table::{find, find_in};
use super::{Command, Parsed, ServerCommand};
use crate::machine::{MAX_KEY_LEN, MAX_VALUE_LEN, Reply, slot_of};

/// Parses a command and its arguments, the name first. The error is what to answer.
pub fn parse(words: &[Bytes]) -> Result<Parsed, Reply> {
    let Some(name) = words.first() else { return Err(Reply::error(SYNTAX)) };
    let Some(spec) = find(name) else { return Err(unknown(words)) };
    match (spec.parse, words.get(1)) {
        (Parse::Container, Some(word)) => {
            if let Some(inner) = find_in(spec, word) {
                return parse_as(inner, words, 2);
            }
            if word.eq_ignore_ascii_case(b"help") && words.len() == 2 {
                return Ok(Parsed { spec, slot: None, command: Command::Server(ServerCommand::Help(spec.name)) });
            }
            let word = String::from_utf8_lossy(&word[..word.len().min(128)]);
            Err(Reply::error(format!("ERR unknown subcommand '{word}'. Try {} HELP.", spec.name.to_uppercase())))
        }
        _ => parse_as(spec, words, 1),
    }
}

/// Parses the words of a command, whose name has so many of them.
fn parse_as(spec: &'static Spec, words: &[Bytes], name_words: usize) -> Result<Parsed, Reply> {
    if !spec.takes(words.len()) {
        return Err(spec.wrong_count());
    }
    for key in spec.keys_in(words) {
        if key.len() > MAX_KEY_LEN {
            return Err(Reply::error(format!("ERR a key is longer than {MAX_KEY_LEN} bytes")));
        }
    }
    if let Some(word) = words.iter().find(|word| word.len() > MAX_VALUE_LEN) {
        return Err(Reply::error(format!("ERR a value of {} bytes is longer than {MAX_VALUE_LEN}", word.len())));
    }
    match spec.parse {
        Parse::With(read) => {
            let slot = common_slot(spec.keys_in(words))?;
            let mut arguments = Arguments::new(words.get(name_words..).unwrap_or_default());
            let command = read(&mut arguments, spec)?;
            arguments.finish()?;
            let slot = slot.or(if let Command::Read(query) = &command { query.slot() } else { None });
            Ok(Parsed { spec, slot, command })
        }
        Parse::Around(before, wrap) => {
            let (before, inner) = words.split_at_checked(before).ok_or_else(|| spec.wrong_count())?;
            // No further level: the depth must not be the client's to choose.
            let nested = inner.first().and_then(|name| find(name));
            if nested.is_some_and(|nested| matches!(nested.parse, Parse::Around(..))) {
                return Err(Reply::error(SYNTAX));
            }
            let inner = parse(inner)?;
            Ok(Parsed { spec, slot: inner.slot, command: wrap(before, inner.command)? })
        }
        // COMMAND alone lists the commands.
        Parse::Container => Ok(Parsed { spec, slot: None, command: Command::Server(ServerCommand::CommandInfo(None)) }),
    }
}

/// The slot of keys that must all be in one; `None` if there are no keys.
fn common_slot<'a>(keys: impl IntoIterator<Item = &'a Bytes>) -> Result<Option<u16>, Reply> {
    let mut slots = keys.into_iter().map(|key| slot_of(key));
    let Some(first) = slots.next() else { return Ok(None) };
    if slots.all(|slot| slot == first) {
        Ok(Some(first))
    } else {
        Err(Reply::error("CROSSSLOT Keys in request don't hash to the same slot"))
    }
}

/// What Redis answers to a word that is no command: its first arguments, cut short.
fn unknown(words: &[Bytes]) -> Reply {
    const SHOWN: usize = 128;
    let show = |word: &Bytes, most: usize| String::from_utf8_lossy(&word[..word.len().min(most)]).into_owned();
    let mut arguments = String::new();
    for word in words.iter().skip(1) {
        if arguments.len() >= SHOWN {
            break;
        }
        arguments += &format!("'{}' ", show(word, SHOWN - arguments.len()));
    }
    let name = words.first().map(|word| show(word, SHOWN)).unwrap_or_default();
    Reply::error(format!("ERR unknown command '{name}', with args beginning with: {arguments}"))
}
