//! Reports which case hangs or aborts the process.

use std::io::Write;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Much longer than any case takes. Only a deadlock lasts this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// The running cases, with the thread that runs each.
type Cases = Vec<(ThreadId, Instant, String)>;

static CASES: LazyLock<Mutex<Cases>> = LazyLock::new(|| {
    std::thread::spawn(patrol);
    // SAFETY: the handler calls only functions that a signal handler may call.
    unsafe { libc::signal(libc::SIGABRT, last_words as *const () as libc::sighandler_t) };
    Mutex::default()
});

fn cases() -> MutexGuard<'static, Cases> {
    CASES.lock().unwrap_or_else(|e| e.into_inner())
}

/// Watches the case of this thread until it is dropped.
pub(crate) struct Watch(ThreadId);

impl Watch {
    /// Starts to watch a case. The command repeats the case.
    pub(crate) fn over(repeat: &str) -> Watch {
        let thread = std::thread::current().id();
        cases().push((thread, Instant::now(), repeat.to_string()));
        Watch(thread)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        cases().retain(|(thread, _, _)| *thread != self.0);
    }
}

/// Checks all running cases every few seconds. Aborts the process if one hangs.
fn patrol() {
    loop {
        std::thread::sleep(Duration::from_secs(10));
        let cases = cases();
        if let Some((_, _, repeat)) = cases.iter().find(|(_, since, _)| since.elapsed() > PATIENCE)
        {
            let text = format!("a case hangs; repeat it with\n  {repeat}\n");
            // Written directly to stderr, because the test harness holds back the test's output until the
            // test ends.
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::abort();
        }
    }
}

/// Handles SIGABRT: writes which cases are running, because one of them aborted the process. A failed
/// allocation aborts, for example.
extern "C" fn last_words(signal: libc::c_int) {
    let write = |text: &str| {
        // SAFETY: the pointer and the length belong to a string.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    };
    // A signal handler must not wait for the lock. Without the lock, it prints nothing. `patrol` holds the
    // lock when it aborts.
    if let Ok(cases) = CASES.try_lock() {
        write("the process aborts in one of these cases; repeat them with\n");
        for (_, _, repeat) in cases.iter() {
            write("  ");
            write(repeat);
            write("\n");
        }
    }
    // SAFETY: the default action of the signal ends the process.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}
