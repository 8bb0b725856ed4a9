//! `shell`: commands in one open store, typed or from a script.

mod complete;
mod line;
mod words;

use std::borrow::Cow;
use std::env;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};
use serde_json::json;
use tamis::Db;

use self::complete::Typing;
use self::line::{Grammar, ShellCommand};
use self::words::{Closing, Unsplit, Word, first_command};
use super::lines::BYTE_ORDER_MARK;
use super::store::{existing_keyspace, open_or_create, settle_and_close};
use crate::args::{Batch, Common, Shell as Args};
use crate::failure::{Attempt, Failure, Result};
use crate::interrupt;
use crate::output::{Output, say, say_failure};
use crate::session::Session;
use crate::text::Form;

/// Most bytes of a command in a script: larger values are in files.
const LONGEST: u64 = 64 << 20;

pub(crate) fn run(args: &Args) -> Result<()> {
    let db = if args.read_only { Db::open_read_only(&args.db)? } else { Db::open(&args.db)? };
    let mut shell = Shell::new(db);
    let ran = match io::stdin().is_terminal() {
        true => shell.run_typed(),
        false => shell.run_script(&mut Script::open(None)?, args.keep_going),
    };
    let session = shell.session;
    let left = session.is_in_transaction();
    if left {
        session.rollback()?;
    }
    let closed = settle_and_close(session.db().clone(), &Common::default());
    ran.and(closed)?;
    match left {
        true => Err(Failure::usage("the transaction was not committed, and has written nothing")),
        false => Ok(()),
    }
}

/// `batch`: a script of writes in a transaction.
pub(crate) fn batch(common: &Common, args: Batch) -> Result<()> {
    let mut script = Script::open(args.file.as_deref())?;
    let db = open_or_create(&args.db, common)?;
    let session = common.session.clone().filter(|session| session.db().path() == db.path());
    let session = session.unwrap_or_else(|| Rc::new(Session::of_batch(db.clone())));
    let mut shell = Shell { grammar: Grammar::of_batch(db.path()), session: Rc::clone(&session), ran: 0 };
    let before = session.keyspace();
    session.begin()?;
    session.use_keyspace(common.keyspace.clone());
    let ran = shell.run_script(&mut script, false);
    session.use_keyspace(before);
    let ended = match ran {
        Ok(()) => session.commit(),
        Err(failure) => session.rollback().and(Err(failure)),
    };
    let closed = settle_and_close(db, common);
    let seqno = ended?;
    closed?;
    if common.json() {
        let mut output = Output::new();
        output.json(json!({ "commands": shell.ran, "seqno": seqno }))?;
        output.finish()?;
    }
    Ok(())
}

struct Shell {
    session: Rc<Session>,
    grammar: Grammar,
    /// How many commands it has run.
    ran: u64,
}

/// What follows a command.
#[derive(PartialEq, Eq)]
enum Next {
    Command,
    End,
}

impl Shell {
    fn new(db: Db) -> Shell {
        let grammar = Grammar::of_shell(db.path());
        Shell { session: Rc::new(Session::new(db)), grammar, ran: 0 }
    }

    fn run_command(&mut self, words: Vec<Word>) -> Result<Next> {
        let Some(command) = self.grammar.parse(words)? else { return Ok(Next::Command) };
        self.ran += 1;
        let session = &self.session;
        match command {
            ShellCommand::Begin => session.begin()?,
            ShellCommand::Commit => {
                session.commit()?;
            }
            ShellCommand::Rollback => session.rollback()?,
            ShellCommand::Use { name } => {
                let common = Common::in_keyspace(name);
                existing_keyspace(session.db(), &common)?;
                session.use_keyspace(common.keyspace);
            }
            ShellCommand::Exit => return Ok(Next::End),
            ShellCommand::Kvtool(command) => {
                super::run(command, Some(session))?;
            }
        }
        Ok(Next::Command)
    }

    fn run_script(&mut self, script: &mut Script, keep_going: bool) -> Result<()> {
        let _stops = interrupt::stop_on_interrupt();
        let mut first = Ok(());
        loop {
            let (line, ran) = match script.next()? {
                Some((line, Ok(words))) => (line, self.run_command(words)),
                Some((line, Err(why))) => (line, Err(Failure::usage(why))),
                None => return first,
            };
            match ran {
                Ok(Next::Command) | Err(Failure::NotFound) => {}
                Ok(Next::End) => return first,
                // Nobody reads what is printed.
                Err(Failure::ClosedPipe) => return Err(Failure::ClosedPipe),
                Err(failure) => {
                    let failure = failure.at(format_args!("line {line}"));
                    if !keep_going || interrupt::check().is_err() {
                        return Err(failure);
                    }
                    if let Some(message) = failure.message() {
                        say_failure(message);
                    }
                    first = first.and(Err(Failure::Reported(Box::new(failure))));
                }
            }
            interrupt::check().map_err(|failure| failure.at(format_args!("after line {line}")))?;
        }
    }

    /// Runs what is typed.
    fn run_typed(&mut self) -> Result<()> {
        let no_terminal = |error: ReadlineError| Failure::usage(format_args!("the terminal cannot be used: {error}"));
        let config = Config::builder().completion_type(CompletionType::List).history_ignore_space(true);
        let config = config.history_ignore_dups(true).map_err(no_terminal)?.auto_add_history(true).build();
        let mut editor: Editor<Typing, FileHistory> = Editor::with_config(config).map_err(no_terminal)?;
        editor.set_helper(Some(Typing::new(Rc::clone(&self.session), self.grammar.clap.clone())));
        let mut history = history_file();
        if let Some(file) = &history {
            // The first shell has no history.
            let _ = editor.load_history(file);
        }
        say("`help` lists the commands, `help COMMAND` explains one; Tab completes; `exit` ends");
        loop {
            match editor.readline(&self.prompt()) {
                Ok(text) => {
                    if let Some(file) = &history
                        && let Err(error) = editor.append_history(file)
                    {
                        say(format_args!("kvtool: the history is not kept: cannot write {}: {error}", file.display()));
                        history = None;
                    }
                    let _stops = interrupt::stop_on_interrupt();
                    if self.run_text(&text) == Next::End {
                        break;
                    }
                }
                // The line is dropped.
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(no_terminal(error)),
            }
        }
        Ok(())
    }

    /// Runs the commands of a text that was typed or pasted, up to one that fails.
    fn run_text(&mut self, mut text: &str) -> Next {
        while !text.is_empty() {
            let ran = match first_command(text) {
                Ok((words, end)) => {
                    text = &text[end..];
                    if words.is_empty() {
                        continue;
                    }
                    self.run_command(words)
                }
                Err(Unsplit::Open { what, .. }) => Err(Failure::usage(what)),
                Err(Unsplit::Invalid(why)) => Err(Failure::usage(why)),
            };
            match ran {
                Ok(Next::Command) => {}
                Ok(Next::End) => return Next::End,
                Err(failure) => {
                    say_failure(match failure {
                        Failure::NotFound => "not found".into(),
                        failure => failure.message().unwrap_or_default(),
                    });
                    break;
                }
            }
        }
        Next::Command
    }

    /// The store's name, the keyspace, and a star in a transaction.
    fn prompt(&self) -> String {
        let path = self.session.db().path();
        let name = path.file_name().map_or(Cow::Borrowed("store"), |name| name.to_string_lossy());
        let keyspace = self
            .session
            .keyspace()
            .map(|keyspace| format!("/{}", Form::Plain.show(keyspace.as_bytes())))
            .unwrap_or_default();
        let star = if self.session.is_in_transaction() { "*" } else { "" };
        format!("{name}{keyspace}{star}> ")
    }
}

/// Where the history of typed lines is, if it is kept.
fn history_file() -> Option<PathBuf> {
    match env::var_os("KVTOOL_HISTORY") {
        Some(file) => Some(file).filter(|file| !file.is_empty()).map(PathBuf::from),
        None => env::home_dir().map(|home| home.join(".kvtool_history")),
    }
}

/// The commands of a file, or of standard input, which is read line by line: commands may read it,
/// too.
struct Script {
    file: Option<BufReader<File>>,
    text: String,
    /// Lines read.
    lines: u64,
    /// Whether the file is at its end.
    is_over: bool,
}

/// A command of a script: the number of its first line, and its words, or why it has none.
type Command = (u64, Result<Vec<Word>, String>);

impl Script {
    /// Reads standard input for `-` or nothing.
    fn open(file: Option<&Path>) -> Result<Script> {
        let file = file.filter(|file| *file != Path::new("-"));
        let open = |file: &Path| File::open(file).attempt(format_args!("cannot read {}", file.display()));
        let file = file.map(open).transpose()?.map(BufReader::new);
        Ok(Script { file, text: String::new(), lines: 0, is_over: false })
    }

    /// The next command, if there is one.
    fn next(&mut self) -> Result<Option<Command>> {
        while !self.is_over {
            self.text.clear();
            if let Some(command) = self.next_of_lines()? {
                return Ok(Some(command));
            }
        }
        Ok(None)
    }

    /// The command that begins with the next line; `None` if that is blank, or a comment.
    fn next_of_lines(&mut self) -> Result<Option<Command>> {
        let first = self.lines + 1;
        let mut closing: Option<Closing> = None;
        loop {
            let begin = self.text.len();
            if let Err(why) = self.read_line()? {
                return Ok(Some((self.lines, Err(why))));
            }
            let may_close = closing.as_mut().is_none_or(|closing| closing.may_close(&self.text[begin..]));
            if !may_close && !self.is_over {
                continue;
            }
            return Ok(match first_command(&self.text) {
                Ok((words, _)) => Some(words).filter(|words| !words.is_empty()).map(|words| (first, Ok(words))),
                Err(Unsplit::Open { what, .. }) if self.is_over => Some((first, Err(what.to_string()))),
                Err(Unsplit::Open { what, word, .. }) => {
                    closing = Some(Closing::new(what, &self.text[word.start..]));
                    continue;
                }
                Err(Unsplit::Invalid(why)) => Some((first, Err(why))),
            });
        }
    }

    /// Adds a line to the text; or says why it is none.
    fn read_line(&mut self) -> Result<Result<(), String>> {
        let mut line = Vec::new();
        let room = LONGEST + 1 - self.text.len() as u64;
        let read = match &mut self.file {
            Some(file) => file.take(room).read_until(b'\n', &mut line),
            None => io::stdin().lock().take(room).read_until(b'\n', &mut line),
        };
        read.attempt("cannot read the commands")?;
        self.lines += u64::from(!line.is_empty());
        if line.len() as u64 == room {
            let why = Failure::usage("a command has at most 64 MiB; `put KEY --file` takes larger values");
            return Err(why.at(format_args!("line {}", self.lines)));
        }
        self.is_over = line.last() != Some(&b'\n');
        let line = match self.lines {
            1 => line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&line),
            _ => &line,
        };
        match std::str::from_utf8(line) {
            Ok(line) => self.text.push_str(line),
            Err(_) => return Ok(Err(r"not UTF-8; other bytes are written as $'\xff'".into())),
        }
        Ok(Ok(()))
    }
}
