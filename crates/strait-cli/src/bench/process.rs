//! Runs a process, and measures it from outside: its time, its CPU time and its peak memory.
//!
//! This process must stay small. The peak that the system reports for a process is at least the peak of the process
//! that started it, because both share their memory for a moment. So everything that needs memory (generating,
//! reading back) runs in a process of its own.

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Instant;

use anyhow::Context;

use crate::bench::environment::succeeded;

/// A process that ended without an error.
#[derive(Debug)]
pub(super) struct Finished {
    /// From the start of the process to its end.
    pub(super) seconds: f64,
    /// The CPU time of all its threads, in the user's code and in the system, and of the processes that it ran.
    pub(super) cpu_seconds: f64,
    /// The most resident memory.
    pub(super) peak: u64,
    /// The bytes that it wrote to files on a disk; 0 if the files are in memory.
    pub(super) written: u64,
    pub(super) stdout: Vec<u8>,
}

/// The file of this command.
pub(super) fn this_command() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this command's own file")
}

/// Runs a process to its end. Its output goes through files in the folder `scratch`.
pub(super) fn run(command: &mut Command, scratch: &Path) -> anyhow::Result<Finished> {
    run_with(command, Stdio::null(), scratch)
}

/// Same as [`run`], with this stdin.
pub(super) fn run_with(
    command: &mut Command,
    stdin: Stdio,
    scratch: &Path,
) -> anyhow::Result<Finished> {
    let (out, err) = (scratch.join("stdout"), scratch.join("stderr"));
    let create = |path: &Path| {
        File::create(path).with_context(|| format!("cannot write {}", path.display()))
    };
    command.stdin(stdin).stdout(create(&out)?).stderr(create(&err)?);
    let started = Instant::now();
    let child = command
        .spawn()
        .with_context(|| format!("cannot start {}", Path::new(command.get_program()).display()))?;
    let (status, usage) = wait(child.id()).context("cannot wait for a process")?;
    let seconds = started.elapsed().as_secs_f64();
    let read = |path: &Path| {
        std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let output = Output { status, stdout: read(&out)?, stderr: read(&err)? };
    succeeded(&output)?;
    let time = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(Finished {
        seconds,
        cpu_seconds: time(usage.ru_utime) + time(usage.ru_stime),
        // The system counts in KiB.
        peak: (usage.ru_maxrss as u64) << 10,
        // The system counts units of 512 bytes. It counts a page of the file cache when the page becomes dirty.
        written: (usage.ru_oublock as u64) << 9,
        stdout: output.stdout,
    })
}

/// Waits for a process that this process has started, and has not waited for.
fn wait(id: u32) -> io::Result<(ExitStatus, libc::rusage)> {
    let mut status = 0;
    // SAFETY: `rusage` consists of integers, so that all zeros are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers refer to live variables of the types that the system writes.
        let ended = unsafe { libc::wait4(id as libc::pid_t, &mut status, 0, &mut usage) };
        if ended >= 0 {
            return Ok((ExitStatus::from_raw(status), usage));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo heard; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"]);
        let finished = run(&mut command, folder.path()).unwrap();
        assert_eq!(finished.stdout, b"heard\n");
        assert!(finished.seconds > 0.0 && finished.cpu_seconds > 0.0, "{finished:?}");
        assert!(finished.peak > 100 << 10, "{finished:?}");
    }

    #[test]
    fn a_failure_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo first >&2; echo last >&2; exit 3"]);
        let error = run(&mut command, folder.path()).unwrap_err().to_string();
        assert!(error.contains("last") && error.contains('3'), "{error}");
        let error = run(&mut Command::new("/no/such/program"), folder.path()).unwrap_err();
        assert!(error.to_string().contains("/no/such/program"), "{error}");
    }
}
