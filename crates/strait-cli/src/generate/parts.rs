//! Distributes the parts of a table to several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Calls `make` for every part, on `threads` threads. The threads take the parts in order. After the first
/// error, no part is begun.
pub(super) fn each_part<E: Send>(
    parts: usize,
    threads: usize,
    make: impl Fn(usize) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let work = || {
        loop {
            let part = next.fetch_add(1, Ordering::Relaxed);
            if part >= parts {
                return;
            }
            if let Err(error) = make(part) {
                next.store(parts, Ordering::Relaxed);
                failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        // This thread works too.
        for _ in 1..threads.clamp(1, parts.max(1)) {
            scope.spawn(work);
        }
        work();
    });
    failure.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_made_once() {
        for threads in [1, 3, 100] {
            let made: Vec<AtomicUsize> = (0..50).map(|_| AtomicUsize::new(0)).collect();
            let make = |part: usize| {
                made[part].fetch_add(1, Ordering::Relaxed);
                Ok::<(), ()>(())
            };
            each_part(50, threads, make).unwrap();
            assert!(made.iter().all(|made| made.load(Ordering::Relaxed) == 1), "{threads} threads");
        }
    }

    #[test]
    fn the_first_error_ends_it() {
        let made = AtomicUsize::new(0);
        let make = |part: usize| {
            made.fetch_add(1, Ordering::Relaxed);
            if part == 3 { Err("three") } else { Ok(()) }
        };
        assert_eq!(each_part(10, 1, make), Err("three"));
        assert_eq!(made.into_inner(), 4);
    }
}
