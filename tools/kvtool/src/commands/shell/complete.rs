//! What Tab completes, and when a line goes on.

use std::ops::Bound;
use std::rc::Rc;

use clap::{Arg, Command as Clap};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};
use tamis::Keyspace;

use super::words::{Unsplit, Word, first_command, quoted};
use crate::args::Common;
use crate::commands::range::successor;
use crate::commands::store::existing_keyspace;
use crate::session::Session;

/// Most keys that are listed. Of more, what they have in common is completed.
const LISTED: usize = 50;

/// Helps to type the lines of a shell.
pub(super) struct Typing {
    session: Rc<Session>,
    clap: Clap,
    files: FilenameCompleter,
}

impl Typing {
    pub(super) fn new(session: Rc<Session>, clap: Clap) -> Typing {
        Typing { session, clap, files: FilenameCompleter::new() }
    }

    /// Where the last word of `text` begins, and what it may become.
    fn candidates(&self, text: &str) -> rustyline::Result<(usize, Vec<Pair>)> {
        // Of several commands, the last one is being typed.
        let mut begin = 0;
        let (words, last) = loop {
            match first_command(&text[begin..]) {
                Ok((_, end)) if begin + end < text.len() => begin += end,
                Ok((mut found, _)) => {
                    let is_ended = text.ends_with(char::is_whitespace);
                    let new = Word { bytes: Vec::new(), start: text.len() - begin, is_quoted: false };
                    let last = if is_ended { new } else { found.pop().unwrap_or(new) };
                    break (found, last);
                }
                Err(Unsplit::Open { before, word, .. }) => break (before, word),
                Err(Unsplit::Invalid(_)) => return Ok((text.len(), Vec::new())),
            }
        };
        let words: Vec<&str> = words.iter().map(|word| std::str::from_utf8(&word.bytes).unwrap_or_default()).collect();
        match self.continuations(&words, &last) {
            Some(pairs) => Ok((begin + last.start, pairs)),
            None => self.files.complete_path(text, text.len()),
        }
    }

    /// What may follow `words` and begins with the last one; `None` if that is the name of a file.
    fn continuations(&self, words: &[&str], last: &Word) -> Option<Vec<Pair>> {
        let typed = &last.bytes;
        let text = std::str::from_utf8(typed).unwrap_or_default();
        let Some((name, mut rest)) = words.split_first() else {
            let (dot, name) = text.strip_prefix('.').map_or(("", text), |name| (".", name));
            return Some(matching(name, commands(&self.clap).map(|command| format!("{dot}{command}")), dot));
        };
        let name = name.trim_start_matches('.');
        if name == "help" {
            return Some(matching(text, commands(&self.clap), ""));
        }
        let Some(mut command) = self.clap.find_subcommand(name) else { return Some(Vec::new()) };
        while let Some((next, after)) = rest.split_first()
            && let Some(below) = command.find_subcommand(next)
        {
            (command, rest) = (below, after);
        }
        if command.has_subcommands() {
            return Some(matching(text, commands(command), ""));
        }
        let flag = rest.last().and_then(|word| word.strip_prefix("--"));
        let flag = flag.and_then(|flag| command.get_arguments().find(|argument| argument.get_long() == Some(flag)));
        if let Some(flag) = flag.filter(|flag| flag.get_action().takes_values()) {
            return match flag.get_id().as_str() {
                "keyspace" => Some(self.keyspaces(text)),
                "from" | "to" | "prefix" => Some(self.keys(rest, typed)),
                "file" | "keys_from" | "ranges_from" | "trace" | "output" => None,
                _ => Some(matching(text, values(flag), "")),
            };
        }
        if text.starts_with('-') && !last.is_quoted {
            let flags = command.get_arguments().filter(|argument| !argument.is_hide_set());
            return Some(matching(text, flags.filter_map(|flag| Some(format!("--{}", flag.get_long()?))), ""));
        }
        match command.get_positionals().next().map(|operand| operand.get_id().as_str()) {
            Some("name") => Some(self.keyspaces(text)),
            Some("keys") => Some(self.keys(rest, typed)),
            // What follows it is a value.
            Some("key") if !has_operand(command, rest) => Some(self.keys(rest, typed)),
            Some("files" | "file" | "other" | "dir" | "repository" | "out") => None,
            _ => Some(Vec::new()),
        }
    }

    fn keyspaces(&self, typed: &str) -> Vec<Pair> {
        matching(typed, self.session.db().keyspace_names().unwrap_or_default().into_iter(), "")
    }

    /// Keys of the keyspace that the words name. Damage completes nothing.
    fn keys(&self, words: &[&str], typed: &[u8]) -> Vec<Pair> {
        let named = words.iter().position(|word| *word == "--keyspace").and_then(|at| words.get(at + 1));
        let keyspace = named.map(|name| (*name).to_owned()).or_else(|| self.session.keyspace());
        let keyspace = existing_keyspace(self.session.db(), &Common::in_keyspace(keyspace));
        let keys = keyspace.ok().and_then(|keyspace| keys(&keyspace, typed).ok()).unwrap_or_default();
        let pair = |(key, is_whole): (Vec<u8>, bool)| {
            let word = quoted(&key);
            // A part of a key stays open: what is typed next belongs to it.
            let open = word.strip_suffix('\'').filter(|_| !is_whole).unwrap_or(&word);
            let (replacement, display) = match is_whole {
                true => (format!("{word} "), word.clone()),
                false => (open.to_owned(), format!("{open}…")),
            };
            Pair { display, replacement }
        };
        keys.into_iter().map(pair).collect()
    }
}

/// Whether words have an operand: one that is no flag, and follows none that takes a value.
fn has_operand(command: &Clap, words: &[&str]) -> bool {
    let takes_value = |word: &str| {
        let flag = word.strip_prefix("--");
        flag.and_then(|flag| command.get_arguments().find(|argument| argument.get_long() == Some(flag)))
            .is_some_and(|argument| argument.get_action().takes_values())
    };
    let before = [""].iter().chain(words);
    words.iter().zip(before).any(|(word, before)| !word.starts_with("--") && !takes_value(before))
}

/// The words that begin with `typed`; what is printed of them is after `hidden`.
fn matching(typed: &str, words: impl Iterator<Item = String>, hidden: &str) -> Vec<Pair> {
    let words = words.filter(|word| word.strip_prefix(hidden).is_some_and(|word| word.starts_with(typed)));
    words.map(|word| Pair { replacement: format!("{word} "), display: word }).collect()
}

fn commands(clap: &Clap) -> impl Iterator<Item = String> {
    let help = (clap.get_name() == "kvtool").then(|| "help".to_owned());
    let shown = clap.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help");
    shown.map(|command| command.get_name().to_owned()).chain(help)
}

fn values(flag: &Arg) -> impl Iterator<Item = String> {
    flag.get_possible_values().into_iter().map(|value| value.get_name().to_owned())
}

/// The keys that begin with `prefix`. If they are many, what they begin with: `prefix`, what they
/// have in common, and one more character; whether each is a whole key.
fn keys(keyspace: &Keyspace, prefix: &[u8]) -> tamis::Result<Vec<(Vec<u8>, bool)>> {
    let mut cursor = keyspace.cursor()?;
    let (mut keys, mut valid) = (Vec::new(), cursor.seek(prefix)?);
    while let (true, Some(key)) = (valid && keys.len() <= LISTED, cursor.key())
        && key.starts_with(prefix)
    {
        keys.push((key.to_vec(), true));
        valid = cursor.next()?;
    }
    if keys.len() <= LISTED {
        return Ok(keys);
    }
    let end = successor(prefix);
    let bounds = (Bound::Included(prefix), end.as_deref().map_or(Bound::Unbounded, Bound::Excluded));
    let last = keyspace.keys(bounds).next_back().transpose()?.map(|key| key.to_vec()).unwrap_or_default();
    let common = keys[0].0.iter().zip(&last).take_while(|(a, b)| a == b).count();
    let (mut parts, mut seek) = (Vec::new(), keys[0].0.clone());
    while parts.len() <= LISTED && cursor.seek(&seek)? {
        let Some(key) = cursor.key().filter(|key| *key <= last.as_slice()) else { break };
        let part = key[..(common + character_len(&key[common..])).min(key.len())].to_vec();
        let is_whole = key == part;
        // Behind a whole key there are those that it begins.
        let next = if is_whole { Some([&part[..], &[0]].concat()) } else { successor(&part) };
        parts.push((part, is_whole));
        let Some(next) = next else { break };
        seek = next;
    }
    Ok(parts)
}

/// The length of the character that begins `bytes`; 1 for what is none.
fn character_len(bytes: &[u8]) -> usize {
    let text = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    text.chars().next().map_or(1, char::len_utf8)
}

impl Completer for Typing {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        self.candidates(&line[..at])
    }
}

impl Validator for Typing {
    /// Enter begins a new line within quotes and JSON; a second empty line ends the command.
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let (mut text, is_given_up) = (context.input(), context.input().ends_with("\n\n"));
        while !text.is_empty() && !is_given_up {
            match first_command(text) {
                Ok((_, end)) => text = &text[end..],
                Err(Unsplit::Open { .. }) => return Ok(ValidationResult::Incomplete),
                Err(Unsplit::Invalid(_)) => break,
            }
        }
        Ok(ValidationResult::Valid(None))
    }
}

impl Hinter for Typing {
    type Hint = String;
}

impl Highlighter for Typing {}

impl Helper for Typing {}

#[cfg(test)]
mod tests {
    use tamis::Db;

    use super::*;
    use crate::commands::shell::line::Grammar;

    /// What Tab offers after a text, in a store with these keys.
    fn offered(keys: impl Iterator<Item = String>, texts: &[&str]) -> Vec<Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path().join("db")).unwrap();
        db.keyspace("users").unwrap();
        keys.for_each(|key| _ = db.put(key, "").unwrap());
        let clap = Grammar::of_shell(db.path()).clap;
        let typing = Typing::new(Rc::new(Session::new(db)), clap);
        let offers =
            |text: &&str| typing.candidates(text).unwrap().1.into_iter().map(|pair| pair.replacement).collect();
        texts.iter().map(offers).collect()
    }

    #[test]
    fn keys_are_offered_where_keys_belong() {
        let keys = ["apple", "a b", "-v", "user:1"].map(str::to_owned).into_iter();
        let texts =
            ["get a", "get '-", "put user:1 us", "begin u", "use u", ".sca", "get --filters s", "scan --prefix ap"];
        let offers = offered(keys, &texts);
        assert_eq!(offers[0], ["'a b' ", "apple "]);
        assert_eq!(offers[1], ["$'-v' "]);
        assert!(offers[2].is_empty() && offers[3].is_empty());
        assert_eq!(offers[4..], [["users "], [".scan "], ["shadow "], ["apple "]]);
    }

    #[test]
    fn of_many_keys_their_beginnings_are_offered() {
        let many = || (0..100).map(|i| format!("user:{i}"));
        // Ten keys, and what the others of nine of them begin with.
        assert_eq!(offered(many(), &["get u"])[0].len(), 19);
        // A key that begins all others is not the only one.
        let offers = offered(many().chain(["user".into()]), &["get u"]);
        assert_eq!(offers[0], ["user ", "user:"]);
        let offers = offered(many().chain(["".into()]), &["get "]);
        assert_eq!(offers[0], ["'' ", "u"]);
    }
}
