//! The prompt of `strait sql`, on a pseudo terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::sandbox::{Sandbox, read_parquet};

/// The longest time that a test waits for a text. The machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// The prompt, as it is shown when a statement may begin.
const PROMPT: &str = "strait> ";

/// A command that runs on a terminal.
struct Terminal {
    child: Child,
    input: File,
    output: Receiver<Vec<u8>>,
    /// What was shown since the last [`Terminal::until`].
    shown: String,
}

impl Terminal {
    /// Starts the prompt. The history is in the folder `state`.
    fn start(sandbox: &Sandbox, flags: &str) -> Terminal {
        let (outer, inner) = pair();
        let mut command = sandbox.command();
        command.arg("sql").args(flags.split_whitespace());
        command.env("XDG_STATE_HOME", sandbox.path("state")).env("TERM", "xterm");
        command.env_remove("PAGER").env_remove("NO_COLOR");
        command.stdin(Stdio::from(inner.try_clone().unwrap()));
        command.stdout(Stdio::from(inner.try_clone().unwrap()));
        command.stderr(Stdio::from(inner));
        // SAFETY: between fork and exec, only `setsid` and `ioctl` are called, which are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                // The terminal becomes the one from which Ctrl-C is sent to the command.
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop(command);
        let input = File::from(outer);
        let mut reader = input.try_clone().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails when the command has ended.
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut terminal = Terminal { child, input, output, shown: String::new() };
        terminal.until(PROMPT);
        terminal
    }

    fn send(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until `text` is shown. Returns everything that was shown before it and since the last call.
    #[track_caller]
    fn until(&mut self, text: &str) -> String {
        let begun = Instant::now();
        let mut bytes = Vec::new();
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            match self.output.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) {
                Ok(more) => {
                    bytes.extend(more);
                    // A character may come in two parts.
                    if let Ok(more) = std::str::from_utf8(&bytes) {
                        self.shown.push_str(&plain(more));
                        bytes.clear();
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("no {text:?} in {:?}", self.shown),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("ended without {text:?}: {:?}", self.shown)
                }
            }
        }
    }

    /// Sends a line, and returns what is shown until the next prompt.
    #[track_caller]
    fn line(&mut self, line: &str) -> String {
        self.send(&format!("{line}\n"));
        // The first prompt is the one before the line itself, which the editor shows again.
        let mut shown = self.until("\n");
        shown.push_str(&self.until(PROMPT));
        shown
    }

    /// Waits for the end of the command, and returns its status.
    fn end(mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            while self.output.try_recv().is_ok() {}
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE, "the command does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens both ends of a pseudo terminal with 24 lines of 100 characters.
fn pair() -> (OwnedFd, OwnedFd) {
    let size = libc::winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut outer, mut inner) = (-1, -1);
    let null = std::ptr::null_mut();
    // SAFETY: the pointers are valid during the call; the name and the settings may be null.
    let opened = unsafe { libc::openpty(&mut outer, &mut inner, null, null.cast(), &size) };
    assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: `openpty` has just opened both descriptors, and nothing else owns them.
    let (outer, inner) = unsafe { (OwnedFd::from_raw_fd(outer), OwnedFd::from_raw_fd(inner)) };
    // The child must not inherit its own outer end. Otherwise, the end of the test would not hang up.
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::fcntl(outer.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
    (outer, inner)
}

/// Removes the sequences that move the cursor or change colours.
fn plain(text: &str) -> String {
    console::strip_ansi_codes(text).replace('\r', "")
}

#[test]
fn statements_run_and_errors_do_not_end_the_prompt() {
    let sandbox = Sandbox::with_people();
    let mut terminal = Terminal::start(&sandbox, "--table people=people.csv");
    let shown = terminal.line("SELECT name FROM people WHERE city = 2;");
    assert!(shown.contains("Bob") && shown.contains("1 row, 1 column"), "{shown}");
    // Times are shown until the user turns them off.
    assert!(shown.contains(" s\n"), "{shown}");
    assert!(terminal.line("\\timing").contains("times are not shown"));
    // A statement may have several lines.
    terminal.send("SELECT title\nFROM 'cities.csv'\nWHERE id = 3;\n");
    let shown = terminal.until("1 row, 1 column");
    assert!(shown.contains("Kiel"), "{shown}");
    terminal.until(PROMPT);
    let shown = terminal.line("SELECT nme FROM people;");
    assert!(shown.contains("did you mean name?"), "{shown}");
    assert!(terminal.line("SELEC 1;").contains("this is not SQL"));
    assert!(terminal.line("\\nonsense").contains("there is no command \\nonsense"));
    let shown = terminal.line("\\d people");
    assert!(shown.contains("name") && shown.contains("Int64"), "{shown}");
    assert!(terminal.line("CREATE VIEW v AS SELECT 1 AS one;").contains("done"));
    let shown = terminal.line("\\d");
    assert!(shown.contains("people\nv\n"), "{shown}");
    terminal.send("\\q\n");
    assert_eq!(terminal.end(), Some(0));
    // The next prompt knows the statements.
    let history = sandbox.read("state/strait/sql-history");
    assert!(history.contains("SELECT nme FROM people;"), "{history}");
}

#[test]
fn tab_completes_tables_columns_and_paths() {
    let sandbox = Sandbox::with_people();
    let mut terminal = Terminal::start(&sandbox, "--table citizens=people.csv");
    terminal.send("SELECT count(*) AS n FROM citiz\t;\n");
    assert!(terminal.until("1 row, 1 column").contains("4"));
    terminal.until(PROMPT);
    terminal.send("SELECT max(title) FROM 'cit\t;\n");
    assert!(terminal.until("1 row, 1 column").contains("Rome"));
    terminal.until(PROMPT);
    // Ctrl-D leaves.
    terminal.send("\u{4}");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn ctrl_c_cancels_the_statement_and_not_the_prompt() {
    let sandbox = Sandbox::new();
    let rows: String = (0..50_000).map(|i| format!("{i}\n")).collect();
    sandbox.write("t.csv", format!("a\n{rows}"));
    let mut terminal = Terminal::start(&sandbox, "");
    // 2.5 billion pairs.
    terminal.send("SELECT count(*) FROM 't.csv' x, 't.csv' y WHERE x.a + y.a < 0;\n");
    terminal.until(";");
    std::thread::sleep(Duration::from_millis(500));
    terminal.send("\u{3}");
    terminal.until("cancelled");
    terminal.until(PROMPT);
    assert!(terminal.line("SELECT 6 * 7 AS answer;").contains("42"));
    // Without a running statement, Ctrl-C discards the line.
    terminal.send("SELECT 1 FROM nowhere\u{3}");
    terminal.until(PROMPT);
    assert!(terminal.line("SELECT 1 AS one;").contains("1 row, 1 column"));
    terminal.send("quit\n");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn copy_writes_a_file() {
    let sandbox = Sandbox::with_people();
    let mut terminal = Terminal::start(&sandbox, "--memory 64MiB");
    let shown = terminal.line("COPY (SELECT id FROM 'cities.csv' ORDER BY id) TO 'out.parquet';");
    assert!(shown.contains("wrote 3 rows to out.parquet"), "{shown}");
    let shown = terminal.line("COPY 'people.csv' TO 'out.parquet';");
    assert!(shown.contains("exists already; add OPTIONS (overwrite true)"), "{shown}");
    terminal.send("\\q\n");
    assert_eq!(terminal.end(), Some(0));
    assert_eq!(read_parquet(&sandbox.path("out.parquet")), "id\n1\n2\n3\n");
}
