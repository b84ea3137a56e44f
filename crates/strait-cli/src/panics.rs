//! Turns panics of decoders into errors. Damaged files make the Arrow and Parquet crates panic in some
//! places. The user then gets a message about the file instead of a stack trace.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

thread_local! {
    /// Whether this thread runs a decoder whose panics are caught.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Installs a panic hook that logs caught panics instead of printing them.
pub(crate) fn install() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| match CAUGHT.try_with(Cell::get) {
        Ok(true) => log::debug!("caught: {info}"),
        _ => default(info),
    }));
}

/// Makes the hook log all panics of this thread. Whoever waits for the thread's work turns them into errors.
#[cfg(feature = "sql")]
pub(crate) fn log_here() {
    CAUGHT.set(true);
}

/// Runs `work`. A panic becomes an error with the panic's message. After an error, the caller must not use
/// data that `work` changed, because the panic may have left it inconsistent.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let before = CAUGHT.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(before);
    result.map_err(|payload| format!("the decoder failed ({})", message(payload.as_ref())))
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::caught;

    #[test]
    fn a_panic_becomes_a_message() {
        assert_eq!(caught(|| 7), Ok(7));
        let error = caught(|| std::iter::empty::<u8>().next().expect("a byte")).unwrap_err();
        assert_eq!(error, "the decoder failed (a byte)");
    }
}
