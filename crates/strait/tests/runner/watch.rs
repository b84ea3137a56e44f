//! A join that hangs says nothing: this says for it which case it was.

use std::io::Write;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Far longer than any case takes: only a deadlock waits it out.
const PATIENCE: Duration = Duration::from_secs(120);

/// The cases that run, by the thread that runs them.
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

/// Keeps an eye on the case of this thread until dropped.
pub(crate) struct Watch(ThreadId);

impl Watch {
    /// Starts to watch a case that this command repeats.
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

/// Looks after all cases now and then; ends the process for one that hangs.
fn patrol() {
    loop {
        std::thread::sleep(Duration::from_secs(10));
        let cases = cases();
        if let Some((_, _, repeat)) = cases.iter().find(|(_, since, _)| since.elapsed() > PATIENCE)
        {
            let text = format!("a case hangs; repeat it with\n  {repeat}\n");
            // Straight to the terminal: the test's own output is held back until it ends.
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::abort();
        }
    }
}

/// Handles SIGABRT: writes which cases run, since one of them ends the process. An allocation that
/// fails aborts, for example.
extern "C" fn last_words(signal: libc::c_int) {
    let write = |text: &str| {
        // SAFETY: the pointer and the length are those of a string.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    };
    // No lock, no words: a handler must not wait. The patrol holds it when it aborts by itself.
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
