//! Adds up the rows of a join, to compare them with the expected answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use strait::internal::{Block, BlockReceiver, Values};
use strait::{Error, Result};

/// The bytes that a thread adds up at a time. A multiple of all value sizes.
pub(crate) const PIECE: usize = 1 << 20;

/// Adds up all columns of the rows that it receives.
#[derive(Default)]
pub(crate) struct Sums {
    /// Whether to add up the rows at all.
    check: bool,
    /// The sum of each column besides the keys, modulo 2^64.
    pub(crate) columns: Vec<u64>,
    /// The sum of the keys, modulo 2^64.
    pub(crate) keys: u64,
    /// The seconds that adding up took.
    pub(crate) seconds: f64,
}

impl Sums {
    /// Creates a receiver that adds up the rows if `check` is set, and otherwise ignores them.
    pub(crate) fn new(check: bool) -> Sums {
        Sums { check, ..Sums::default() }
    }
}

impl BlockReceiver for Sums {
    fn block(&mut self, block: &Block<'_>) -> Result<()> {
        if !self.check {
            return Ok(());
        }
        block.wait()?;
        let started = Instant::now();
        self.columns.resize(block.columns(), 0);
        for (column, sum) in self.columns.iter_mut().enumerate() {
            block.read_column(column, &mut |values| add(sum, values))?;
        }
        block.read_keys(&mut |values| add(&mut self.keys, values))?;
        self.seconds += started.elapsed().as_secs_f64();
        Ok(())
    }
}

/// Adds signed integers to a sum, modulo 2^64.
fn add(sum: &mut u64, values: Values<'_>) -> Result<()> {
    let pieces: Vec<&[u8]> = values.bytes.chunks(PIECE).collect();
    let parts = in_parallel(&pieces, cores(), |bytes| match values.value_bytes {
        4 => words::<4>(bytes).fold(0, |sum: u64, w| sum.wrapping_add(w as u32 as i32 as u64)),
        _ => words::<8>(bytes).fold(0, u64::wrapping_add),
    })?;
    *sum = parts.into_iter().fold(*sum, u64::wrapping_add);
    Ok(())
}

/// Calls `of` for each piece, on `threads` threads, and returns the results in the order of the pieces. Each
/// thread takes the next piece that no thread has taken.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    pieces: &[T],
    threads: usize,
    of: impl Fn(&T) -> R + Sync,
) -> Result<Vec<R>> {
    if threads <= 1 || pieces.len() <= 1 {
        return Ok(pieces.iter().map(of).collect());
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(at) else { return done };
            done.push((at, of(piece)));
        }
    };
    let work = &work;
    let mut all = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(pieces.len())).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::with_capacity(pieces.len());
        for worker in workers {
            let failed =
                |_| Error::Internal { what: "a thread of the benchmark failed".to_string() };
            all.extend(worker.join().map_err(failed)?);
        }
        Ok::<_, Error>(all)
    })?;
    all.sort_unstable_by_key(|(at, _)| *at);
    Ok(all.into_iter().map(|(_, result)| result).collect())
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Returns the words of `N` bytes in some bytes, without sign extension.
pub(crate) fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(N).map(|chunk| {
        let mut all = [0; 8];
        all[..N].copy_from_slice(chunk);
        u64::from_le_bytes(all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_depend_on_the_number_of_threads() {
        let values: Vec<i32> = (0..(1 << 20) + 3).map(|i| i * 7 - 5_000_000).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let expected = values.iter().fold(0u64, |sum, &v| sum.wrapping_add(v as i64 as u64));
        let (mut whole, mut parts) = (3, 3);
        add(&mut whole, Values { bytes: &bytes, value_bytes: 4 }).unwrap();
        for part in bytes.chunks(4000) {
            add(&mut parts, Values { bytes: part, value_bytes: 4 }).unwrap();
        }
        assert_eq!((whole, parts), (expected.wrapping_add(3), expected.wrapping_add(3)));
        let wide = [i64::MIN, -1, 5].map(i64::to_le_bytes).concat();
        let mut sum = 0;
        add(&mut sum, Values { bytes: &wide, value_bytes: 8 }).unwrap();
        assert_eq!(sum, (i64::MIN as u64).wrapping_add(4));
    }
}
