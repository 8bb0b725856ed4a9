use std::fs;
use std::path::Path;
use std::process::Command;

use super::{blocks, documents, root};

/// Commands that are not run here.
const NOT_RUN: [(&str, &str); 13] = [
    ("cargo ", "builds"),
    ("kvd ", "a server, which its own tests run"),
    ("redis-cli ", "not installed everywhere"),
    ("strace ", "not installed everywhere"),
    ("tools/", "not installed everywhere"),
    ("export AWS_", "an object store"),
    ("s3://", "an object store"),
    ("kvtool bench ", "takes long; its own tests run it"),
    ("kvtool demo", "takes long; its own tests run it"),
    ("kvtool soak ", "takes long; its own tests run it"),
    ("--follow", "runs until it is interrupted"),
    ("--at ", "of a store that was followed then"),
    ("kvtool get words.db --keys-from absent", "after strace, which makes its input"),
];

/// What a command may say the second time: the thing that it makes is there, or the files that it
/// reads were moved into the store, or compacted away.
const ALREADY: [&str; 3] = ["exists", "absent or an empty directory", "cannot open "];

/// What documents take for granted, as commands.
const GIVEN: [&str; 3] = [
    "kvtool import words.db words",
    "kvtool backup words.db backups",
    "kvtool filter create b.bloom --bits 8388608 --probes 6 < b.txt",
];

/// The commands of a block: one a line, with what goes on in the next line, and with the lines that
/// it reads up to `END`.
fn commands(block: &str) -> Vec<String> {
    let text = block.replace("\\\n", " ");
    let (mut commands, mut lines) = (Vec::new(), text.lines());
    while let Some(line) = lines.next() {
        let mut command = line.trim().to_owned();
        if command.ends_with("<<'END'") {
            let read = lines.by_ref().take_while(|line| *line != "END").map(|line| format!("\n{line}"));
            command.extend(read.chain(["\nEND\n".to_owned()]));
        }
        commands.extend(Some(command).filter(|command| !command.is_empty()));
    }
    commands
}

/// Files that the documents speak of.
fn furnish(dir: &Path) {
    let words: String = ["apple", "apply", "banana", "berry", "pear", "sieve"].map(|word| format!("{word}\n")).concat();
    for name in ["words.txt", "words.tsv", "words", "a.txt", "b.txt", "american-english-huge", "british-english-huge"] {
        fs::write(dir.join(name), &words).unwrap();
    }
    for name in ["a.csv", "b.csv"] {
        fs::write(dir.join(name), "name,value\nk,v\n").unwrap();
    }
}

#[test]
fn every_command_runs_and_runs_again_or_says_that_it_need_not() {
    let kvtool = Path::new(env!("CARGO_BIN_EXE_kvtool")).parent().unwrap().to_owned();
    let path =
        std::env::join_paths([kvtool].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())))
            .unwrap();
    let mut run = 0;
    for document in documents() {
        let dir = tempfile::tempdir().unwrap();
        furnish(dir.path());
        let shell = |command: &str| {
            Command::new("sh").args(["-c", command]).env("PATH", &path).current_dir(dir.path()).output().unwrap()
        };
        // The tool's own document makes its stores.
        for command in GIVEN.iter().filter(|command| command.contains("b.bloom") || document.starts_with("docs")) {
            assert!(shell(command).status.success(), "{command}");
        }
        for time in 0..2 {
            for command in blocks(&document, "sh").iter().flat_map(|block| commands(block)) {
                if NOT_RUN.iter().any(|(part, _)| command.contains(part)) {
                    continue;
                }
                let here = command.replace("/usr/share/dict/", "");
                let output = shell(&here);
                let said = String::from_utf8_lossy(&output.stderr);
                let is_there = time == 1 && ALREADY.iter().any(|words| said.contains(words));
                assert!(
                    output.status.success() || is_there,
                    "{}, time {time}: {command}\n{said}{}",
                    document.display(),
                    String::from_utf8_lossy(&output.stdout)
                );
                run += 1;
            }
        }
    }
    assert!(run > 40, "{run} commands found in {}", root().display());
}
