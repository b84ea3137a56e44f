//! The progress bar on stderr.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use strait::{Join, Progress, Stage};

use crate::arguments::Show;
use crate::digits::grouped;

/// The bar on the screen, if there is one. Log lines go above it, and it is cleared at the end.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn current() -> Option<ProgressBar> {
    BAR.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Hides the bar while `print` runs.
pub(crate) fn above_bar(print: impl FnOnce()) {
    match current() {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// Removes the bar from the screen.
pub(crate) fn clear() {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

/// Shows the join's progress, if `show` asks for it. `rows` is the number of rows of both tables, if known.
pub(crate) fn attach(join: Join, show: Show, rows: Option<u64>) -> Join {
    let terminal = io::stderr().is_terminal();
    let target = match show {
        Show::Never => return join,
        Show::Auto if !terminal => return join,
        Show::Auto => ProgressDrawTarget::stderr(),
        Show::Always if terminal => ProgressDrawTarget::stderr(),
        Show::Always => ProgressDrawTarget::term_like_with_hz(Box::new(Plain), 5),
    };
    let bar = ProgressBar::with_draw_target(None, target);
    bar.set_style(style(false));
    bar.set_message("starting");
    bar.enable_steady_tick(Duration::from_millis(200));
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
    join.on_progress(move |progress| update(&bar, progress, rows))
}

fn update(bar: &ProgressBar, progress: &Progress, rows: Option<u64>) {
    if bar.is_finished() {
        return;
    }
    // The progress of the stage if the join knows it; otherwise the rows read, if the files tell how many
    // there are.
    let (done, total) = match (progress.total, rows) {
        (0, Some(rows)) => (progress.left_rows + progress.right_rows, rows),
        (total, _) => (progress.done, total),
    };
    bar.set_message(message(progress));
    let known = total > 0;
    if known != bar.length().is_some() {
        bar.set_style(style(known));
    }
    if known {
        bar.set_length(total);
        bar.set_position(done.min(total));
    } else {
        bar.unset_length();
    }
}

fn message(progress: &Progress) -> String {
    let Progress { stage, left_rows, right_rows, output_rows, .. } = progress;
    let read = format!("left {}, right {}", grouped(*left_rows), grouped(*right_rows));
    match stage {
        Stage::Read => format!("{}: {read}", stage.name()),
        _ => format!("{}: {read}, output {}", stage.name(), grouped(*output_rows)),
    }
}

fn style(known: bool) -> ProgressStyle {
    let template = if known {
        "{spinner} {bar:24} {percent:>3}% {elapsed} {wide_msg}"
    } else {
        "{spinner} {elapsed} {wide_msg}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The terminal of a forced bar if stderr is no terminal: eighty columns and the usual escape sequences.
#[derive(Debug)]
struct Plain;

impl Plain {
    fn put(&self, text: &str) -> io::Result<()> {
        io::stderr().lock().write_all(text.as_bytes())
    }
}

impl TermLike for Plain {
    fn width(&self) -> u16 {
        80
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        if n == 0 { Ok(()) } else { self.put(&format!("\x1b[{n}A")) }
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        if n == 0 { Ok(()) } else { self.put(&format!("\x1b[{n}B")) }
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        if n == 0 { Ok(()) } else { self.put(&format!("\x1b[{n}C")) }
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        if n == 0 { Ok(()) } else { self.put(&format!("\x1b[{n}D")) }
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.put(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.put(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.put("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}
