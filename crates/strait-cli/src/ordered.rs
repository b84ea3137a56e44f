//! Distributes work to several threads, and takes its results in order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// Calls `produce(part, send)` for every part, on `threads` threads, and `consume` for every item that they
/// send: first all items of part 0, then all of part 1, and so on. A part runs at most `ahead` items ahead of
/// the consumer, so memory is bounded.
///
/// If `consume` fails, `send` returns false, and the producers should stop.
pub(crate) fn in_order<T: Send, E: Send>(
    parts: usize,
    threads: usize,
    ahead: usize,
    produce: impl Fn(usize, &dyn Fn(T) -> bool) -> Result<(), E> + Sync,
    mut consume: impl FnMut(T) -> Result<(), E>,
) -> Result<(), E> {
    let (senders, receivers): (Vec<_>, Vec<Receiver<Result<T, E>>>) =
        (0..parts).map(|_| sync_channel(ahead)).unzip();
    // A sender stays in its slot until a worker takes the part.
    let senders: Vec<_> = senders.into_iter().map(|s| std::sync::Mutex::new(Some(s))).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, parts.max(1)) {
            scope.spawn(|| {
                loop {
                    let part = next.fetch_add(1, Ordering::Relaxed);
                    let Some(slot) = senders.get(part) else { break };
                    let taken = slot.lock().ok().and_then(|mut slot| slot.take());
                    let Some(sender) = taken else { break };
                    if let Err(error) = produce(part, &|item| sender.send(Ok(item)).is_ok()) {
                        let _ = sender.send(Err(error));
                    }
                }
            });
        }
        let result = receivers.into_iter().flatten().try_for_each(|item| consume(item?));
        // After a failure, parts that no worker has begun are not needed.
        next.store(parts, Ordering::Relaxed);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::in_order;

    #[test]
    fn parts_come_in_order_and_all() {
        let mut seen = Vec::new();
        let produce = |part: usize, send: &dyn Fn(usize) -> bool| {
            (0..part % 4).for_each(|i| assert!(send(part * 10 + i)));
            Ok::<(), ()>(())
        };
        let take = |item| {
            seen.push(item);
            Ok(())
        };
        in_order(50, 3, 1, produce, take).unwrap();
        let expected: Vec<_> = (0..50).flat_map(|p| (0..p % 4).map(move |i| p * 10 + i)).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_first_error_ends_it() {
        let produce = |part: usize, send: &dyn Fn(usize) -> bool| {
            send(part);
            if part == 3 { Err("three") } else { Ok(()) }
        };
        assert_eq!(in_order(10, 2, 1, produce, |_| Ok(())), Err("three"));
        assert_eq!(
            in_order(
                10,
                2,
                1,
                |_, send| {
                    send(1);
                    Ok(())
                },
                |_| Err("full")
            ),
            Err("full")
        );
    }
}
