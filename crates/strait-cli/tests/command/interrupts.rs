//! Signals remove temporary files and end the command with status 128 + the signal's number.

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
    fn wait_until(&mut self, ready: impl Fn() -> bool) {
        while !ready() {
            assert!(self.0.try_wait().unwrap().is_none(), "the run ended too early");
            sleep(Duration::from_millis(10));
        }
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
        run.wait_until(|| {
            let written = |name: &String| {
                name.ends_with(".tmp")
                    && std::fs::metadata(sandbox.path(name)).is_ok_and(|found| found.len() > 0)
            };
            sandbox.names().iter().any(written)
        });
        assert_eq!(run.signal(signal), Some(status), "{signal}");
        assert_eq!(sandbox.names(), before);
        assert_eq!(sandbox.read(out), "old");
    }
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command();
    command.args(["demo", "--scale", "10"]).env("TMPDIR", sandbox.path(""));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = Running(command.spawn().unwrap());
    run.wait_until(|| !sandbox.names().is_empty());
    assert_eq!(run.signal("-INT"), Some(130));
    assert_eq!(sandbox.names(), Vec::<String>::new());
}
