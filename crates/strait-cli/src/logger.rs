//! Logs to stderr: warnings always, and more with `-v`.

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::failure::say;
use crate::progress;

struct Stderr;

static STDERR: Stderr = Stderr;

/// Installs the logger. Each `-v` shows one level more.
pub(crate) fn install(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    if log::set_logger(&STDERR).is_ok() {
        log::set_max_level(level);
    }
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("strait")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let word = match record.level() {
                Level::Error => "error: ",
                Level::Warn => "warning: ",
                Level::Info | Level::Debug | Level::Trace => "",
            };
            progress::above_bar(|| say(format_args!("{word}{}", record.args())));
        }
    }

    fn flush(&self) {}
}
