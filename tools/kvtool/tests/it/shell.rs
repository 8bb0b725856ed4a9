//! `shell`: scripts, transactions, and what is typed at a terminal.

use std::fs;

use crate::sandbox::{DONE, IO, NOT_FOUND, Sandbox, USAGE};

/// What a script prints.
fn script(sandbox: &Sandbox, args: &[&str], text: &str, code: i32) -> (String, String) {
    let output = sandbox.run(&[&["shell", "db"], args].concat(), text.as_bytes(), code);
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn printed(sandbox: &Sandbox, text: &str) -> String {
    script(sandbox, &[], text, DONE).0
}

#[test]
fn commands_print_what_they_print_with_the_store_named() {
    let sandbox = Sandbox::with_store(300, 3, &[]);
    sandbox.text(&["put", "db", "key7", "seven", "--keyspace", "m"]);
    // All that read: no line differs, but for times.
    for (command, args) in [
        ("get", "key005"),
        ("get", "key005 key006 --json"),
        ("get", "key7 --keyspace m"),
        ("get", "--hex 6b6579303035"),
        ("scan", "--prefix key00"),
        ("scan", "--reverse --limit 3"),
        ("scan", "--keys-only --from key29"),
        ("count", "--prefix key1"),
        ("size", ""),
        ("levels", "--format plain"),
        ("keyspaces", "--json"),
        ("export", "--format jsonl"),
        ("changes", ""),
        ("filter advise", ""),
        ("stats", ""),
    ] {
        let words = command.split(' ').chain(["db"]).chain(args.split(' ').filter(|word| !word.is_empty()));
        let alone = sandbox.text(&words.collect::<Vec<_>>());
        assert_eq!(printed(&sandbox, &format!("{command} {args}\n")), alone, "{command} {args}");
    }
    // Twice in one shell, too.
    assert_eq!(printed(&sandbox, "export --format csv\nexport --format csv\ncount\n").lines().count(), 601);
}

#[test]
fn what_is_written_stays() {
    let sandbox = Sandbox::new();
    let text = "put a 1\nput b '2 3' --ttl 1000\nput --keyspace m k {\"x\": [1,\n2]}\nmerge n 5 --operator add-big --keyspace c\n\
                .delete a\nget b\n.use m\nscan\nuse\ncount\n";
    assert_eq!(printed(&sandbox, text), "2 3\nk\t$'{\"x\": [1,\\n2]}'\n1\n");
    assert_eq!(sandbox.text(&["get", "db", "b"]), "2 3\n");
    assert_eq!(sandbox.text(&["get", "db", "6e", "--hex", "--keyspace", "c"]), "0000000000000005\n");
    sandbox.check(&["get", "db", "a"], NOT_FOUND);
}

#[test]
fn a_transaction_is_seen_at_once_and_written_by_its_commit() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    let text = "begin\nput a 1\ndelete key1\ndelete-range --from key2\nget a\nget key1\nscan\nscan --reverse --keys-only\ncount\n\
                keyspaces --json\nexport\ncommit\nscan\n";
    let seen = "1\na\t1\nkey0\tvalue 0\nkey0\na\n2\n";
    let after = printed(&sandbox, text);
    let (before, rest) = after.split_once("{\"schema\"").unwrap();
    assert_eq!(before, seen);
    // Other commands see what is committed.
    let (_, rest) = rest.split_once('\n').unwrap();
    assert_eq!(rest, "key0\tvalue 0\nkey1\tvalue 1\nkey2\tvalue 2\na\t1\nkey0\tvalue 0\n");
    // Undone, by the command or by the end of the script.
    assert_eq!(printed(&sandbox, "begin\nput b 1\nrollback\ncount\n"), "2\n");
    let (out, said) = script(&sandbox, &[], "begin\nput b 1\ncount\n", USAGE);
    assert!(out == "3\n" && said.contains("not committed"), "{out} {said}");
    assert_eq!(sandbox.text(&["count", "db"]), "2\n");
    // In merges, a transaction sees its own writes.
    let counter =
        "merge n 1 --operator add-big --keyspace c\nuse c\nbegin\nmerge n 2\nput t 'no integer, for it is long'\n";
    let (_, said) = script(&sandbox, &[], &format!("{counter}merge t 1\n"), USAGE);
    assert!(said.contains("no integer") || said.contains("cannot be merged"), "{said}");
}

#[test]
fn what_no_transaction_can_hold_is_refused_in_one() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    fs::write(sandbox.path("lines"), "x\ty\n").unwrap();
    for command in
        ["import lines", "compact", "drop-keyspace m", "create-keyspace m", "filter rebuild", "checkpoint c", "begin"]
    {
        let (_, said) = script(&sandbox, &[], &format!("begin\n{command}\n"), USAGE);
        assert!(said.contains("transaction"), "{command}: {said}");
    }
    for command in ["commit", "rollback"] {
        let (_, said) = script(&sandbox, &[], &format!("{command}\n"), USAGE);
        assert!(said.contains("no transaction is open"), "{command}: {said}");
    }
    let outside = "import lines\ncompact\ncreate-keyspace m\ndrop-keyspace m\nfilter rebuild --bits 12\ncheckpoint c\nbackup b\ncount\n";
    assert_eq!(printed(&sandbox, outside), "4\n");
    assert_eq!(sandbox.text(&["count", "c"]), "4\n");
}

#[test]
fn the_first_failure_ends_a_script_unless_it_goes_on() {
    let sandbox = Sandbox::new();
    let text = "put a 1\nget absent\n\n# a comment\nput b\nput c 3\nget 'open\n";
    let (_, said) = script(&sandbox, &[], text, USAGE);
    assert!(said.contains("line 5: ") && said.contains("<VALUE>"), "{said}");
    assert_eq!(sandbox.text(&["scan", "db"]), "a\t1\n");
    let (_, said) = script(&sandbox, &["--keep-going"], text, USAGE);
    assert!(said.contains("line 5: ") && said.contains("line 7: a single quote is not closed"), "{said}");
    assert_eq!(sandbox.text(&["scan", "db"]), "a\t1\nc\t3\n");
    for (text, why) in [
        ("nonsense\n", "unrecognized subcommand"),
        ("repair\n", "not in a shell"),
        ("use nowhere\n", "no keyspace"),
        ("get $'\\q'\n", "invalid escape"),
        ("help nonsense\n", "unrecognized subcommand"),
    ] {
        let (_, said) = script(&sandbox, &[], text, USAGE);
        assert!(said.contains(why), "{text}: {said}");
    }
    let output = sandbox.run(&["shell", "db"], b"put a \xff\n", USAGE);
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 1: not UTF-8"));
    assert!(printed(&sandbox, "help\n").contains("rollback"));
    assert!(printed(&sandbox, "help get\n").contains("--keys-from"));
    assert_eq!(printed(&sandbox, "count\nexit\ncount\n"), "2\n");
}

#[test]
fn lines_name_no_other_store() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    sandbox.text(&["put", "other", "a", "1"]);
    for line in ["put --db other a 2", "get --db=other a", "begin --db other"] {
        let (_, said) = script(&sandbox, &[], &format!("{line}\n"), USAGE);
        assert!(said.contains("--db"), "{line}: {said}");
    }
    assert_eq!(sandbox.text(&["get", "other", "a"]), "1\n");
    // Quoted, it is a key like any other.
    assert_eq!(printed(&sandbox, "put '--db' 3\nget '--db'\nput k -5\nget k\nget '-x' '--db'\n"), "3\n-5\n--db\t3\n");
    let (_, said) = script(&sandbox, &[], "get '-x' --json\n", USAGE);
    assert!(said.contains("flags come before"), "{said}");
}

#[test]
fn a_transaction_leaves_keyspaces_alone() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    for line in
        ["put a 1 --keyspace new", "merge n 1 --operator add-big --keyspace new", "merge n 1 --operator add-big"]
    {
        let (_, said) = script(&sandbox, &[], &format!("begin\n{line}\n"), USAGE);
        assert!(said.contains("creates and changes no keyspaces"), "{line}: {said}");
    }
    assert_eq!(sandbox.text(&["keyspaces", "db", "--format", "plain"]).lines().count(), 2);
    // A keyspace that was dropped does not come back with the next write.
    let text = "create-keyspace m --ttl 50\nuse m\ndrop-keyspace m\nput y 1\n.keyspaces --format plain\nget y\n";
    let out = printed(&sandbox, text);
    assert!(out.lines().count() == 3 && out.ends_with("\n1\n"), "{out}");
    // `use` limits what commands read, not the list of keyspaces.
    assert_eq!(printed(&sandbox, "create-keyspace m\nuse m\nkeyspaces --format plain\n").lines().count(), 3);
    // Deadlines are seen in a transaction, too.
    let text = "put a 1 --ttl 1000\nbegin\nput b 1 --ttl 1000\nscan --json --to c\ncommit\n";
    assert_eq!(printed(&sandbox, text).matches("deadline").count(), 2);
    let (_, said) = script(&sandbox, &[], "begin\nscan --skip-damaged\n", USAGE);
    assert!(said.contains("not in a transaction"), "{said}");
}

#[test]
fn a_script_may_be_long_and_have_odd_ends() {
    let sandbox = Sandbox::new();
    // Text in an open quote is not split again for each of its lines.
    let text =
        format!("put quoted 'it is\n{}'\nput json [{}0]\n", "a line\n".repeat(60_000), "{\"a\": 1},\n".repeat(60_000));
    printed(&sandbox, &text);
    assert_eq!(sandbox.text(&["get", "db", "quoted", "--raw"]).lines().count(), 60_001);
    assert_eq!(sandbox.text(&["get", "db", "json", "--raw"]).lines().count(), 60_001);
    assert_eq!(printed(&sandbox, "\u{feff}put a 1\r\n get a \r\n# done"), "1\n");
    assert_eq!(printed(&sandbox, "put v \\\n 2 # a comment\nget v"), "2\n");
    let (_, said) = script(&sandbox, &["--keep-going"], "get $'\\q'\nput after 1\nput x {\"a\":}\n", USAGE);
    assert!(said.contains("line 1: ") && said.contains("line 3: ") && said.contains("not JSON"), "{said}");
    assert_eq!(sandbox.text(&["get", "db", "after"]), "1\n");
    let (_, said) = script(&sandbox, &[], "\nrepair\n", USAGE);
    assert!(said.contains("line 2: not in a shell"), "{said}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_script() {
    use std::io::Write;
    let sandbox = Sandbox::with_store(1, 1, &[]);
    for flags in [&[][..], &["--keep-going"]] {
        let mut command = sandbox.command(&[&["shell", "db"], flags].concat());
        let mut child =
            command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"put before 1\n").unwrap();
        let begin = std::time::Instant::now();
        while !sandbox.command(&["get", "db", "before"]).output().unwrap().status.success() {
            assert!(begin.elapsed().as_secs() < 60);
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        // It is noted while the shell waits for a line.
        std::thread::sleep(std::time::Duration::from_millis(200));
        let _ = stdin.write_all(b"put during 1\nput after 1\n");
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(crate::sandbox::INTERRUPTED), "{said}");
        sandbox.check(&["get", "db", "after"], NOT_FOUND);
        sandbox.text(&["delete", "db", "before", "during"]);
    }
}

#[test]
fn a_command_reads_what_follows_it() {
    let sandbox = Sandbox::new();
    assert_eq!(printed(&sandbox, "put k -\nits\nvalue"), "");
    assert_eq!(sandbox.text(&["get", "db", "k", "--raw"]), "its\nvalue");
    assert_eq!(printed(&sandbox, "import\na\t1\nb\t2\n"), "");
    assert_eq!(sandbox.text(&["count", "db"]), "3\n");
}

#[test]
fn a_shell_that_only_reads_works_beside_a_writer_and_changes_nothing() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    let db = tamis::Db::open(sandbox.path("db")).unwrap();
    let (_, said) = script(&sandbox, &[], "count\n", IO);
    assert!(said.contains("locked"), "{said}");
    let before = sandbox.files("db");
    let (out, _) = script(&sandbox, &["--read-only"], "count\nget key1\nstats\n", DONE);
    assert!(out.starts_with("3\nvalue 1\n"), "{out}");
    for command in ["put a 1", "begin", "compact", "create-keyspace m"] {
        let output = sandbox.run(&["shell", "db", "--read-only"], format!("{command}\n").as_bytes(), IO);
        assert!(String::from_utf8_lossy(&output.stderr).contains("read-only"), "{command}");
    }
    assert_eq!(sandbox.files("db"), before);
    db.close().unwrap();
    script(&Sandbox::new(), &["--read-only"], "count\n", IO);
}

#[test]
fn kvtool_db_names_the_store() {
    let sandbox = Sandbox::with_store(3, 1, &[]);
    sandbox.text(&["put", "other", "a", "1"]);
    let run = |args: &[&str]| {
        let output = sandbox.command(args).env("KVTOOL_DB", "db").output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr))
    };
    assert_eq!(run(&["get", "key1"]), (Some(DONE), "value 1\n".into()));
    assert_eq!(run(&["get", "a", "--db", "other"]), (Some(DONE), "1\n".into()));
    assert_eq!(run(&["put", "a", "b"]).0, Some(DONE));
    assert_eq!(run(&["count"]), (Some(DONE), "4\n".into()));
    assert_eq!(run(&["filter", "rebuild", "--bits", "12"]).0, Some(DONE));
    assert_eq!(run(&["checkpoint", "copy"]).0, Some(DONE));
    assert_eq!(sandbox.text(&["count", "copy"]), "4\n");
    let (code, said) = run(&["get", "--help"]);
    assert!(code == Some(DONE) && said.contains("--db <STORE>") && !said.contains("<DB>"), "{said}");
    // Meant for no such variable: what is a store is not taken for a key.
    for args in [&["delete", "other", "a"][..], &["put", "other", "k"], &["get", "other"]] {
        let (code, said) = run(args);
        assert!(code == Some(USAGE) && said.contains("other is a store"), "{args:?}: {said}");
    }
    assert_eq!(run(&["diff", "other", "--count"]).0, Some(NOT_FOUND));
    // One that is empty names none.
    let output = sandbox.command(&["count", "db"]).env("KVTOOL_DB", "").output().unwrap();
    assert_eq!(output.stdout, b"4\n");
}

#[cfg(unix)]
mod typed {
    //! What is typed at a terminal.

    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::process::{Child, Stdio};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    /// A shell at a terminal.
    struct Terminal {
        child: Child,
        keys: File,
        screen: Receiver<Vec<u8>>,
        shown: String,
    }

    impl Terminal {
        fn open(sandbox: &Sandbox) -> Terminal {
            let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
            grantpt(&controller).unwrap();
            unlockpt(&controller).unwrap();
            let name = ptsname(&controller, Vec::new()).unwrap();
            let side = || -> OwnedFd { open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap() };
            let mut command = sandbox.command(&["shell", "db"]);
            command.env("KVTOOL_HISTORY", sandbox.path("history")).env("TERM", "xterm");
            let child = command.stdin(Stdio::from(side())).stdout(Stdio::from(side())).stderr(Stdio::from(side()));
            let child = child.spawn().unwrap();
            let keys = File::from(controller);
            let (mut screen, (send, receive)) = (keys.try_clone().unwrap(), channel());
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                // The end of the shell ends it.
                while let Ok(read @ 1..) = screen.read(&mut bytes) {
                    if send.send(bytes[..read].to_vec()).is_err() {
                        break;
                    }
                }
            });
            Terminal { child, keys, screen: receive, shown: String::new() }
        }

        /// Types `keys`, and waits until `text` is shown.
        #[track_caller]
        fn types(&mut self, keys: &str, text: &str) {
            self.shown.clear();
            self.keys.write_all(keys.as_bytes()).unwrap();
            self.waits_for(text);
        }

        /// Types a line, and waits until `text` is shown, and the prompt after it: what is typed
        /// before it is lost.
        #[track_caller]
        fn runs(&mut self, line: &str, text: &str) {
            self.types(line, "\n");
            self.shown.drain(..=self.shown.find('\n').unwrap());
            self.waits_for(text);
            self.shown.drain(..self.shown.find(text).unwrap());
            // Asks the terminal to mark what is pasted.
            self.waits_for("\u{1b}[?2004h");
        }

        #[track_caller]
        fn waits_for(&mut self, text: &str) {
            let end = Instant::now() + Duration::from_secs(60);
            while !self.shown.contains(text) {
                let left = end.saturating_duration_since(Instant::now());
                match self.screen.recv_timeout(left) {
                    Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                    Err(_) => panic!("{:?} is shown, and not {text:?}", self.shown),
                }
            }
        }
    }

    impl Drop for Terminal {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    #[test]
    fn tab_completes_and_lines_go_on() {
        let sandbox = Sandbox::with_store(300, 3, &[]);
        sandbox.text(&["put", "db", "an apple", "red"]);
        let mut terminal = Terminal::open(&sandbox);
        terminal.types("", "db> ");
        // A command, and the only key that begins so, in its quotes.
        terminal.runs("ge\tan\t\r", "red");
        terminal.types("get key29\t\t", "key299");
        terminal.runs("\u{3}", "");
        // Of 300 keys, what they have in common, and how they go on.
        terminal.types("get k\t\t", "key2…");
        terminal.runs("\u{3}", "");
        terminal.types("put doc {\"a\":\r", "{\"a\":");
        terminal.runs("1}\r", "");
        terminal.runs("get doc\r", r#"$'{"a":\n1}'"#);
        terminal.runs("get nobody\r", "not found");
        terminal.runs("begin\r", "");
        terminal.runs("put key5 new\r", "");
        terminal.runs("commit\r", "");
        // The line before, from the history, which has no line that begins with a blank.
        terminal.runs(" get secret\r", "not found");
        terminal.runs("\u{1b}[A\r", "no transaction is open");
        terminal.types("exit\r", "");
        assert_eq!(terminal.child.wait().unwrap().code(), Some(DONE));
        let history = fs::read_to_string(sandbox.path("history")).unwrap();
        assert!(history.contains("get doc") && !history.contains("secret"), "{history}");
        assert_eq!(sandbox.text(&["get", "db", "key5"]), "new\n");
    }
}
