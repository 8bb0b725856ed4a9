//! Flags that many commands have. Each command takes those that mean something to it.

use std::ffi::{OsStr, OsString};
use std::rc::Rc;

use clap::{Args as Group, ValueEnum};

use crate::failure::{Failure, Result};
use crate::session::Session;
use crate::text::Form;

/// A command's own arguments, and the flags that it shares with others.
#[derive(Debug, Group)]
pub(crate) struct With<A: Group, F: Group = AllFlags> {
    #[command(flatten)]
    pub(crate) args: A,
    #[command(flatten)]
    pub(crate) flags: F,
}

impl<A: Group, F: Group + Into<Common>> With<A, F> {
    /// Runs the command, in the open store of `session` if a shell runs it.
    pub(crate) fn run(
        self,
        session: Option<&Rc<Session>>,
        command: impl FnOnce(&Common, A) -> Result<()>,
    ) -> Result<()> {
        let mut common: Common = self.flags.into();
        common.session = session.cloned();
        common.is_keyspace_named = common.keyspace.is_some();
        common.keyspace = common.keyspace.or_else(|| session?.keyspace());
        command(&common, self.args)
    }
}

/// Of commands that work in a keyspace, on keys or values.
#[derive(Debug, Group)]
pub(crate) struct AllFlags<O: Group = TableFlags> {
    #[command(flatten)]
    keyspace: KeyspaceFlag,
    #[command(flatten)]
    form: FormFlags,
    #[command(flatten)]
    output: O,
}

/// Of commands that work in a keyspace, and read and print no keys.
#[derive(Debug, Group)]
pub(crate) struct KeyspaceFlags<O: Group = TableFlags> {
    #[command(flatten)]
    keyspace: KeyspaceFlag,
    #[command(flatten)]
    output: O,
}

/// Of commands that read or print keys, of no keyspace.
#[derive(Debug, Group)]
pub(crate) struct ByteFlags<O: Group = TableFlags> {
    #[command(flatten)]
    form: FormFlags,
    #[command(flatten)]
    output: O,
}

#[derive(Debug, Group)]
struct KeyspaceFlag {
    /// The keyspace to work in. Without it: `default`, or every keyspace for `stats`, `report`,
    /// `levels`, `changes`, `diff`, `compact`, `keyspaces` and `filter rebuild`
    #[arg(long, value_name = "NAME")]
    keyspace: Option<String>,
}

#[derive(Debug, Group)]
struct FormFlags {
    /// Keys and values are escaped in arguments, input and output: \\, \t, \n, \xNN
    #[arg(long, conflicts_with = "hex")]
    escaped: bool,
    /// Keys and values are hexadecimal in arguments, input and output
    #[arg(long)]
    hex: bool,
}

/// Of commands whose `--format` is that of a file.
#[derive(Debug, Group)]
pub(crate) struct JsonFlag {
    /// Write JSON to standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Group)]
pub(crate) struct TableFlags {
    /// How to print: tables that fit the terminal; plain ones, with tabs and all columns; or JSON.
    /// What is printed in lines is the same in the first two
    #[arg(long, value_enum, default_value_t, conflicts_with = "json")]
    format: OutputFormat,
    /// Write JSON to standard output: --format json
    #[arg(long)]
    json: bool,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    #[default]
    Table,
    Plain,
    Json,
}

impl From<JsonFlag> for OutputFormat {
    fn from(JsonFlag { json }: JsonFlag) -> OutputFormat {
        if json { OutputFormat::Json } else { OutputFormat::Table }
    }
}

impl From<TableFlags> for OutputFormat {
    fn from(TableFlags { format, json }: TableFlags) -> OutputFormat {
        if json { OutputFormat::Json } else { format }
    }
}

/// The shared flags of any command. Those that it does not take are as if they were not given.
#[derive(Debug, Default)]
pub(crate) struct Common {
    pub(crate) keyspace: Option<String>,
    /// Whether the command line names the keyspace, and not only the shell's `use`.
    pub(crate) is_keyspace_named: bool,
    form: Option<Form>,
    pub(crate) format: OutputFormat,
    /// The shell that runs the command.
    pub(crate) session: Option<Rc<Session>>,
}

impl FormFlags {
    fn form(&self) -> Option<Form> {
        match (self.hex, self.escaped) {
            (true, _) => Some(Form::Hex),
            (_, true) => Some(Form::Escaped),
            _ => None,
        }
    }
}

impl<O: Group + Into<OutputFormat>> From<AllFlags<O>> for Common {
    fn from(AllFlags { keyspace, form, output }: AllFlags<O>) -> Common {
        Common { keyspace: keyspace.keyspace, form: form.form(), format: output.into(), ..Common::default() }
    }
}

impl<O: Group + Into<OutputFormat>> From<KeyspaceFlags<O>> for Common {
    fn from(KeyspaceFlags { keyspace, output }: KeyspaceFlags<O>) -> Common {
        Common { keyspace: keyspace.keyspace, format: output.into(), ..Common::default() }
    }
}

impl<O: Group + Into<OutputFormat>> From<ByteFlags<O>> for Common {
    fn from(ByteFlags { form, output }: ByteFlags<O>) -> Common {
        Common { form: form.form(), format: output.into(), ..Common::default() }
    }
}

impl From<JsonFlag> for Common {
    fn from(output: JsonFlag) -> Common {
        Common { format: output.into(), ..Common::default() }
    }
}

impl From<TableFlags> for Common {
    fn from(output: TableFlags) -> Common {
        Common { format: output.into(), ..Common::default() }
    }
}

impl Common {
    pub(crate) fn in_keyspace(keyspace: Option<String>) -> Common {
        Common { keyspace, ..Common::default() }
    }

    /// Whether results are printed as JSON.
    pub(crate) fn json(&self) -> bool {
        self.format == OutputFormat::Json
    }

    /// The form in which keys and values are read and printed.
    pub(crate) fn form(&self) -> Form {
        self.form.unwrap_or(Form::Plain)
    }

    /// Refuses `--escaped` and `--hex` where no key is read or printed, unless `option` is given.
    pub(crate) fn form_needs(&self, option: &str, is_given: bool) -> Result<()> {
        if self.form.is_some() && !is_given {
            return Err(Failure::usage(format_args!(
                "--escaped and --hex say how keys are written; here they need {option}"
            )));
        }
        Ok(())
    }

    /// Decodes an argument into bytes.
    pub(crate) fn bytes(&self, what: &str, argument: &OsStr) -> Result<Vec<u8>> {
        self.form()
            .parse_argument(argument.as_encoded_bytes())
            .map_err(|why| Failure::usage(format_args!("{what}: {why}")))
    }

    pub(crate) fn optional_bytes(&self, what: &str, argument: Option<&OsString>) -> Result<Option<Vec<u8>>> {
        argument.map(|argument| self.bytes(what, argument)).transpose()
    }
}
