//! [`Sandbox`]: a directory in which kvtool runs.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Exit codes, as `kvtool --help` lists them.
pub(crate) const DONE: i32 = 0;
pub(crate) const NOT_FOUND: i32 = 1;
pub(crate) const USAGE: i32 = 2;
pub(crate) const CORRUPTION: i32 = 3;
pub(crate) const IO: i32 = 4;
pub(crate) const INTERRUPTED: i32 = 130;

/// A temporary directory whose store, if any, is called `db`.
pub(crate) struct Sandbox {
    dir: TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Sandbox {
        Sandbox { dir: tempfile::tempdir().unwrap() }
    }

    /// A sandbox with a store of `count` keys, `key` and a number of `digits` digits, imported with
    /// `options`.
    pub(crate) fn with_store(count: u32, digits: usize, options: &[&str]) -> Sandbox {
        let sandbox = Sandbox::new();
        let lines: String = (0..count).map(|i| format!("key{i:0digits$}\tvalue {i}\n")).collect();
        sandbox.run(&[&["import", "db"], options].concat(), lines.as_bytes(), DONE);
        sandbox
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtool"));
        command.args(args).current_dir(self.dir()).stdin(Stdio::null());
        command
    }

    /// Runs kvtool with `input`, and expects exit code `code`.
    #[track_caller]
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: &[S], input: &[u8], code: i32) -> Output {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || {
            // A command that fails early does not read its whole input.
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        expect(&output, code);
        output
    }

    /// Runs kvtool; returns standard output.
    #[track_caller]
    pub(crate) fn check<S: AsRef<OsStr>>(&self, args: &[S], code: i32) -> Vec<u8> {
        self.run(args, b"", code).stdout
    }

    #[track_caller]
    pub(crate) fn check_with_input(&self, args: &[&str], input: &[u8], code: i32) -> Vec<u8> {
        self.run(args, input, code).stdout
    }

    #[track_caller]
    pub(crate) fn text(&self, args: &[&str]) -> String {
        String::from_utf8(self.check(args, DONE)).unwrap()
    }

    /// Runs kvtool; returns standard error.
    #[track_caller]
    pub(crate) fn words(&self, args: &[&str], code: i32) -> String {
        String::from_utf8(self.run(args, b"", code).stderr).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[args, &["--json"]].concat())).unwrap()
    }

    /// All files in `dir` and their contents.
    pub(crate) fn files(&self, dir: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = fs::read_dir(self.path(dir)).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    /// The newest file of the store with this extension.
    pub(crate) fn file(&self, extension: &str) -> PathBuf {
        self.files("db").into_keys().rfind(|path| path.extension().is_some_and(|e| e == extension)).unwrap()
    }
}

#[track_caller]
fn expect(output: &Output, code: i32) {
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{words}");
    assert!(!words.contains("panicked"), "{words}");
}
