//! The recording of a terminal in README.md, docs/images/session.svg: the commands below, as they
//! print today.
//!
//! `TAMIS_WRITE_SESSION=1 cargo test -p kvtool --test it session` writes it anew.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::root;

/// What is typed.
const COMMANDS: [&str; 5] = [
    "kvtool put words.db sieve 'a tool that keeps the coarse from the fine'",
    "kvtool import words.db words.tsv",
    "kvtool scan words.db --prefix sie",
    "kvtool explain words.db tamis",
    "kvtool levels words.db",
];
/// Characters in a line.
const COLUMNS: usize = 100;

/// What a terminal shows of a command.
fn shown(command: &str, dir: &Path) -> String {
    let bin = Path::new(env!("CARGO_BIN_EXE_kvtool")).parent().unwrap();
    let path = std::env::join_paths(
        [bin.to_owned()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let typed = format!("stty cols {COLUMNS} rows 50; {command}");
    let run = Command::new("script")
        .args(["--quiet", "--return", "--command", &typed, "/dev/null"])
        .current_dir(dir)
        .env("PATH", path.unwrap())
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR")
        .output()
        .unwrap();
    // 1: the key is absent.
    assert!(matches!(run.status.code(), Some(0 | 1)), "{command}: {}", String::from_utf8_lossy(&run.stdout));
    // What a bar of progress has drawn is overwritten.
    let text = String::from_utf8(run.stdout).unwrap().replace("\r\n", "\n");
    text.lines().map(|line| line.rsplit('\r').next().unwrap_or(line).trim_end().to_owned() + "\n").collect()
}

/// Without what differs from run to run: numbers, and the width that they take.
fn outline(svg: &str) -> String {
    let mut outline = String::new();
    for c in svg.chars() {
        let c = match c {
            '0'..='9' | '.' | ',' => '#',
            c if c.is_whitespace() => ' ',
            c => c,
        };
        if !(['#', ' ', '─'].contains(&c) && outline.ends_with(c)) {
            outline.push(c);
        }
    }
    outline
}

#[cfg(target_os = "linux")]
#[test]
fn session_shows_what_the_commands_print() {
    let dir = tempfile::tempdir().unwrap();
    let words = (0..200_000).map(|i| format!("word{:06}\t{i}\n", i * 7 % 1_000_000)).collect::<String>();
    std::fs::write(dir.path().join("words.tsv"), words + "sierra\ta chain of mountains\nsiesta\trest at noon\n")
        .unwrap();
    let mut text = String::new();
    for command in COMMANDS {
        let _ = writeln!(text, "\x1b[1m$ {command}\x1b[0m\n{}", shown(command, dir.path()));
    }
    let svg = anstyle_svg::Term::new().render_svg(text.trim_end());
    let path = root().join("docs/images/session.svg");
    if std::env::var_os("TAMIS_WRITE_SESSION").is_some() {
        std::fs::write(&path, &svg).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(outline(&svg), outline(&recorded), "write the recording anew, as the head of this file says");
}
