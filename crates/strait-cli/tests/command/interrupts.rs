//! Signals remove temporary files and end the command with status 128 + the signal's number.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::sandbox::Sandbox;

/// A run that is killed when the test ends, whatever its outcome.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Waits until `ready`, and checks that the command is still running.
    fn wait_until(&mut self, ready: impl Fn(&Running) -> bool) {
        while !ready(self) {
            assert!(self.0.try_wait().unwrap().is_none(), "the run ended too early");
            sleep(Duration::from_millis(10));
        }
    }

    /// Returns whether the command has written bytes to a file in a folder of the sandbox. The file has no name, or a
    /// temporary one.
    fn has_written(&self, sandbox: &Sandbox, folder: &str) -> bool {
        let folder = sandbox.path(folder).canonicalize().unwrap();
        let Ok(files) = std::fs::read_dir(format!("/proc/{}/fd", self.0.id())) else {
            return false;
        };
        let files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
        files.iter().any(|file| {
            let name = std::fs::read_link(file).unwrap_or_default();
            let shown = name.to_string_lossy();
            let is_temporary = shown.ends_with("(deleted)") || shown.ends_with(".tmp");
            let is_written = || std::fs::metadata(file).is_ok_and(|found| found.len() > 0);
            name.starts_with(&folder) && is_temporary && is_written()
        })
    }

    fn signal(&mut self, signal: &str) -> Option<i32> {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        self.0.wait().unwrap().code()
    }
}

/// Two tables whose join takes far too long to finish.
fn endless() -> Sandbox {
    let sandbox = Sandbox::new();
    let rows: String = (0..100_000).map(|i| format!("7,{i}\n")).collect();
    sandbox.write("a.csv", format!("k,p\n{rows}"));
    sandbox.write("b.csv", format!("k,q\n{rows}"));
    sandbox
}

#[test]
fn an_interrupted_join_leaves_nothing() {
    let runs =
        [("-INT", "out.parquet", 130), ("-TERM", "out.csv", 143), ("-HUP", "out.arrow", 129)];
    for (signal, out, status) in runs {
        let sandbox = endless();
        sandbox.write(out, "old");
        let before = sandbox.names();
        let mut command = sandbox.command();
        command.args(["join", "a.csv", "b.csv", "--on", "k", "--overwrite", "-o", out]);
        let mut run = Running(command.stderr(Stdio::null()).spawn().unwrap());
        run.wait_until(|run| run.has_written(&sandbox, ""));
        assert_eq!(run.signal(signal), Some(status), "{signal}");
        assert_eq!(sandbox.names(), before);
        assert_eq!(sandbox.read(out), "old");
    }
}

/// SIGKILL cannot be handled. But a file without a name disappears with its process.
#[test]
#[cfg(target_os = "linux")]
fn a_killed_join_leaves_nothing() {
    let sandbox = endless();
    let before = sandbox.names();
    let mut command = sandbox.command();
    command.args(["join", "a.csv", "b.csv", "--on", "k", "-o", "out.parquet"]);
    let mut run = Running(command.stderr(Stdio::null()).spawn().unwrap());
    run.wait_until(|run| run.has_written(&sandbox, ""));
    assert_eq!(run.signal("-KILL"), None);
    assert_eq!(sandbox.names(), before);
}

/// The rows that do not fit memory are in files without names, too.
#[test]
#[cfg(target_os = "linux")]
fn an_interrupted_join_leaves_no_rows_on_disk() {
    for (signal, status) in [("-KILL", None), ("-INT", Some(130))] {
        let sandbox = endless();
        std::fs::create_dir(sandbox.path("temp")).unwrap();
        let before = sandbox.names();
        let mut command = sandbox.command();
        command.args(["join", "a.csv", "b.csv", "--on", "k", "-o", "out.parquet"]);
        command.args(["--algorithm", "spill", "--temp-dir", "temp", "--memory", "64MiB"]);
        let mut run = Running(command.stderr(Stdio::null()).spawn().unwrap());
        run.wait_until(|run| run.has_written(&sandbox, "temp"));
        assert_eq!(run.signal(signal), status);
        assert_eq!(sandbox.names(), before);
        assert_eq!(std::fs::read_dir(sandbox.path("temp")).unwrap().count(), 0);
    }
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command();
    command.args(["demo", "--scale", "10"]).env("TMPDIR", sandbox.path(""));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = Running(command.spawn().unwrap());
    run.wait_until(|_| !sandbox.names().is_empty());
    assert_eq!(run.signal("-INT"), Some(130));
    assert_eq!(sandbox.names(), Vec::<String>::new());
}
