//! GPU memory: a hard budget, and blocks that are kept for the next allocation.
//!
//! The driver takes up to milliseconds to allocate memory. To free it, the driver waits for the whole GPU.
//! So a dropped block stays in the pool. The pool's blocks, used or kept, never exceed the budget. If they
//! would, or if the driver refuses memory, the pool frees kept blocks first. Memory from elsewhere that also
//! lies on the GPU is [charged](Pool::charged) to the same budget.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::device::gpu::default_budget;
use crate::device::{DeviceId, Memory, MemoryUse, View};
use crate::error::{Error, Result, bytes};
use crate::schedule::lock;

/// The minimum budget with which a join can work.
const LEAST_BUDGET: u64 = 64 << 20;
/// The alignment of every block, and the rounding step of small sizes.
const SMALL_STEP: u64 = 256;
/// The GPU's page size. Large blocks are whole pages.
const PAGE: u64 = 2 << 20;

/// A source of memory: the driver, or a test.
pub(super) trait Source: Send + Sync + 'static {
    /// Allocates `bytes` bytes, aligned to 256, and returns the address.
    fn allocate(&self, bytes: u64) -> Result<u64, Refusal>;
    /// Frees memory from `allocate`.
    fn free(&self, address: u64);
}

/// Why a source refused memory.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It has too little.
    OutOfMemory,
    /// Another failure.
    Failed(Error),
}

/// A pool over a source.
pub(super) struct Pool<S: Source> {
    source: S,
    budget: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes of blocks in use, and charged bytes.
    used: u64,
    /// The maximum of `used` so far.
    peak: u64,
    /// Bytes of blocks that are kept but not used.
    idle: u64,
    /// The kept blocks, by size.
    blocks: BTreeMap<u64, Vec<u64>>,
}

/// Returns the budget of a device with `free` bytes: what was `asked` for, or nine tenths of `free`. The
/// rest is for the driver, other processes and our own kernels.
pub(super) fn budget(asked: Option<u64>, free: u64) -> Result<u64> {
    let least = bytes(LEAST_BUDGET);
    match asked {
        Some(asked) if asked < LEAST_BUDGET => Err(Error::invalid_option(
            "gpu_memory",
            format!("a budget of {} of the GPU's memory is too small", bytes(asked)),
            format!("it has to be at least {least}"),
        )),
        Some(asked) => {
            if asked > free {
                log::warn!(
                    "the budget of {} exceeds the {} that are free on the GPU",
                    bytes(asked),
                    bytes(free)
                );
            }
            Ok(asked)
        }
        None if default_budget(free) < LEAST_BUDGET => Err(Error::DeviceMemory {
            what: "a join".to_string(),
            needed: LEAST_BUDGET,
            used: 0,
            budget: default_budget(free),
            hint: format!(
                "only {} are free on the GPU: end other processes that use it (nvidia-smi lists them), or join on the CPU",
                bytes(free)
            ),
        }),
        None => Ok(default_budget(free)),
    }
}

/// Returns the size of the block for `bytes` bytes, or `None` on overflow.
pub(super) fn block_size(bytes: u64) -> Option<u64> {
    let step = if bytes < PAGE { SMALL_STEP } else { PAGE };
    bytes.max(1).checked_next_multiple_of(step)
}

impl<S: Source> Pool<S> {
    pub(super) fn new(source: S, budget: u64) -> Arc<Self> {
        Arc::new(Pool { source, budget, state: Mutex::default() })
    }

    pub(super) fn memory(&self) -> MemoryUse {
        let state = self.state();
        MemoryUse { budget: self.budget, used: state.used, peak: state.peak }
    }

    /// Returns how much of the budget joins can have, if the device has `free` bytes. Kept blocks and the
    /// blocks that joins hold now are included.
    pub(super) fn available(&self, free: u64) -> u64 {
        let state = self.state();
        free.saturating_add(state.idle).saturating_add(state.used).min(self.budget)
    }

    /// Allocates memory with any content. `what` is its purpose, for error messages. The caller sets the
    /// device of the view, which the pool does not know.
    pub(super) fn allocate(self: &Arc<Self>, bytes: u64, what: &str) -> Result<Memory> {
        let mut state = self.state();
        let Some(size) = block_size(bytes) else {
            return Err(self.refused(&state, bytes, what, false));
        };
        let (address, size) = match state.take(size) {
            Some(block) => block,
            None => (self.fresh(&mut state, size, what)?, size),
        };
        state.hold(size);
        let owner = PooledBlock { pool: self.clone(), address, size };
        Ok(Memory { view: View::new(DeviceId::ANY, address, bytes), _owner: Box::new(owner) })
    }

    /// Calls `make` to allocate `size` bytes of GPU memory elsewhere, and charges them to the budget. If the
    /// GPU has too little memory, frees kept blocks and calls `make` again.
    pub(super) fn charged<T>(
        self: &Arc<Self>,
        size: u64,
        what: &str,
        mut make: impl FnMut() -> Result<T, Refusal>,
    ) -> Result<(T, Charge<S>)> {
        let charge = {
            let mut state = self.state();
            self.make_room(&mut state, size, what)?;
            state.hold(size);
            Charge { pool: Arc::clone(self), size }
        };
        // `make` may take long, so the lock is not held meanwhile.
        let mut made = make();
        if matches!(made, Err(Refusal::OutOfMemory)) && self.state().idle > 0 {
            self.trim(&mut self.state());
            made = make();
        }
        match made {
            Ok(made) => Ok((made, charge)),
            Err(Refusal::Failed(error)) => Err(error),
            Err(Refusal::OutOfMemory) => {
                drop(charge);
                Err(self.refused(&self.state(), size, what, true))
            }
        }
    }

    /// Frees kept blocks if they prevent an allocation of `size` bytes. Returns an error if blocks in use
    /// prevent it.
    fn make_room(&self, state: &mut State, size: u64, what: &str) -> Result<()> {
        if self.exceeds(state.used + state.idle, size) {
            self.trim(state);
        }
        if self.exceeds(state.used, size) {
            return Err(self.refused(state, size, what, false));
        }
        Ok(())
    }

    /// Allocates a new block, and returns its address.
    fn fresh(&self, state: &mut State, size: u64, what: &str) -> Result<u64> {
        self.make_room(state, size, what)?;
        let first = self.source.allocate(size);
        let second = match first {
            Err(Refusal::OutOfMemory) if state.idle > 0 => {
                self.trim(state);
                self.source.allocate(size)
            }
            other => other,
        };
        second.map_err(|refusal| match refusal {
            Refusal::OutOfMemory => self.refused(state, size, what, true),
            Refusal::Failed(error) => error,
        })
    }

    fn exceeds(&self, held: u64, more: u64) -> bool {
        held.checked_add(more).is_none_or(|sum| sum > self.budget)
    }

    /// Returns all kept blocks to the source.
    fn trim(&self, state: &mut State) {
        for address in std::mem::take(&mut state.blocks).into_values().flatten() {
            self.source.free(address);
        }
        state.idle = 0;
    }

    fn refused(&self, state: &State, needed: u64, what: &str, by_driver: bool) -> Error {
        let hint = if by_driver {
            "the GPU has no more free memory, although the budget is not used up; other processes may use it (nvidia-smi lists them); end them, or lower the limit of GPU memory"
        } else {
            "raise the limit of GPU memory, or join on the CPU"
        };
        let (what, hint) = (what.to_string(), hint.to_string());
        Error::DeviceMemory { what, needed, used: state.used, budget: self.budget, hint }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn hold(&mut self, size: u64) {
        self.used += size;
        self.peak = self.peak.max(self.used);
    }

    /// Takes the smallest kept block that is large enough, but at most a quarter larger.
    fn take(&mut self, size: u64) -> Option<(u64, u64)> {
        let most = size.saturating_add(size / 4);
        let (&found, addresses) = self.blocks.range_mut(size..=most).next()?;
        let address = addresses.pop()?;
        if addresses.is_empty() {
            self.blocks.remove(&found);
        }
        self.idle -= found;
        Some((address, found))
    }
}

impl<S: Source> Drop for Pool<S> {
    fn drop(&mut self) {
        let mut state = std::mem::take(&mut *self.state());
        self.trim(&mut state);
    }
}

/// A block that returns to its pool when dropped.
struct PooledBlock<S: Source> {
    pool: Arc<Pool<S>>,
    address: u64,
    size: u64,
}

impl<S: Source> Drop for PooledBlock<S> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.used -= self.size;
        state.idle += self.size;
        state.blocks.entry(self.size).or_default().push(self.address);
    }
}

/// A charge to the budget for memory from elsewhere, for as long as this lives.
pub(super) struct Charge<S: Source> {
    pool: Arc<Pool<S>>,
    size: u64,
}

impl<S: Source> Drop for Charge<S> {
    fn drop(&mut self) {
        self.pool.state().used -= self.size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// A driver with a fixed amount of memory, of which others may take some.
    #[derive(Clone, Default)]
    struct Driver(Arc<Mutex<Given>>);

    #[derive(Default)]
    struct Given {
        room: u64,
        next: u64,
        blocks: HashMap<u64, u64>,
    }

    impl Driver {
        fn new(room: u64) -> Driver {
            Driver(Arc::new(Mutex::new(Given { room, next: PAGE, ..Given::default() })))
        }

        fn given(&self) -> u64 {
            self.0.lock().unwrap().blocks.values().sum()
        }
    }

    impl Source for Driver {
        fn allocate(&self, bytes: u64) -> Result<u64, Refusal> {
            let mut given = self.0.lock().unwrap();
            if given.blocks.values().sum::<u64>() + bytes > given.room {
                return Err(Refusal::OutOfMemory);
            }
            let address = given.next;
            given.next += bytes.next_multiple_of(PAGE);
            given.blocks.insert(address, bytes);
            Ok(address)
        }

        fn free(&self, address: u64) {
            assert!(self.0.lock().unwrap().blocks.remove(&address).is_some(), "freed twice");
        }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn sizes_are_whole_steps() {
        assert_eq!(block_size(0), Some(256));
        assert_eq!(block_size(1), Some(256));
        assert_eq!(block_size(256), Some(256));
        assert_eq!(block_size(257), Some(512));
        assert_eq!(block_size(PAGE - 1), Some(PAGE));
        assert_eq!(block_size(PAGE), Some(PAGE));
        assert_eq!(block_size(PAGE + 1), Some(2 * PAGE));
        assert_eq!(block_size(u64::MAX), None);
    }

    #[test]
    fn blocks_are_used_again() {
        let driver = Driver::new(1 << 40);
        let pool = Pool::new(driver.clone(), 100 * MIB);
        let first = pool.allocate(10 * MIB, "a").unwrap();
        assert_eq!((first.view.bytes, first.address() % 256), (10 * MIB, 0));
        let address = first.address();
        drop(first);
        assert_eq!(pool.memory(), MemoryUse { budget: 100 * MIB, used: 0, peak: 10 * MIB });
        assert_eq!(pool.allocate(8 * MIB, "a quarter less").unwrap().address(), address);
        assert_ne!(pool.allocate(6 * MIB, "too little").unwrap().address(), address);
        assert_ne!(pool.allocate(12 * MIB, "more").unwrap().address(), address);
        let small = pool.allocate(100, "small").unwrap();
        assert_eq!((small.view.bytes, pool.memory().used), (100, 256));
        drop(small);
        // Idle blocks can be used, but others may have taken the rest.
        assert_eq!(pool.available(0), 28 * MIB + 256);
        assert_eq!(pool.available(1 << 40), 100 * MIB);
        drop(pool);
        assert_eq!(driver.given(), 0, "all given back");
    }

    #[test]
    fn the_smallest_fitting_block_is_taken() {
        let pool = Pool::new(Driver::new(1 << 40), 100 * MIB);
        let held = [20, 24, 22].map(|n| pool.allocate(n * MIB, "a").unwrap());
        let addresses = held.each_ref().map(Memory::address);
        drop(held);
        let taken = pool.allocate(21 * MIB, "b").unwrap();
        assert_eq!(taken.address(), addresses[2]);
        assert_eq!(pool.memory().used, 22 * MIB);
    }

    #[test]
    fn the_budget_counts_what_is_kept_and_trims_it() {
        let driver = Driver::new(1 << 40);
        let pool = Pool::new(driver.clone(), 64 * MIB);
        let (a, b) = (pool.allocate(30 * MIB, "a").unwrap(), pool.allocate(30 * MIB, "b").unwrap());
        drop(a);
        let c = pool.allocate(34 * MIB, "c").unwrap();
        assert_eq!(driver.given(), 64 * MIB, "the kept block was given back");
        let refused = pool.allocate(1, "one more").map(|_| ()).unwrap_err();
        let Error::DeviceMemory { what, needed, used, budget, hint } = &refused else {
            panic!("{refused}");
        };
        assert_eq!((what.as_str(), *needed, *used, *budget), ("one more", 256, 64 * MIB, 64 * MIB));
        assert!(hint.contains("limit of GPU memory"), "{hint}");
        assert!(pool.allocate(u64::MAX, "all").is_err());
        drop((b, c));
        assert_eq!(pool.memory(), MemoryUse { budget: 64 * MIB, used: 0, peak: 64 * MIB });
    }

    #[test]
    fn a_driver_that_refuses_is_asked_again_after_trimming() {
        let driver = Driver::new(40 * MIB);
        let pool = Pool::new(driver.clone(), 100 * MIB);
        drop(pool.allocate(30 * MIB, "a").unwrap());
        let b = pool.allocate(38 * MIB, "b").unwrap();
        let refused = pool.allocate(10 * MIB, "c").map(|_| ()).unwrap_err().to_string();
        assert!(
            refused.contains("nvidia-smi") && refused.contains("c needs 10.0 MiB"),
            "{refused}"
        );
        // Another process takes memory: the error is the same, and the pool continues to work.
        driver.0.lock().unwrap().room = 0;
        drop(b);
        assert!(pool.allocate(4 * MIB, "d").is_err());
        driver.0.lock().unwrap().room = 40 * MIB;
        assert!(pool.allocate(4 * MIB, "d").is_ok());
    }

    #[test]
    fn memory_from_elsewhere_is_charged() {
        let driver = Driver::new(40 * MIB);
        let pool = Pool::new(driver.clone(), 64 * MIB);
        drop(pool.allocate(30 * MIB, "a").unwrap());
        let take = |size: u64| pool.charged(size, "a range", || driver.allocate(size));
        // The kept block prevents this, first because of the driver's memory, then because of the budget.
        let (address, charge) = take(20 * MIB).unwrap();
        assert_eq!((pool.memory().used, driver.given()), (20 * MIB, 20 * MIB));
        let refused = take(30 * MIB).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("nvidia-smi") && refused.contains("20.0 MiB of"), "{refused}");
        let refused = take(45 * MIB).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("limit of GPU memory"), "{refused}");
        assert!(take(u64::MAX).is_err());
        let failed = pool
            .charged(MIB, "b", || Err::<(), _>(Refusal::Failed(Error::internal("no such memory"))));
        assert!(failed.map(|_| ()).unwrap_err().to_string().contains("no such memory"));
        assert_eq!(pool.memory().used, 20 * MIB, "refusals cost nothing");
        drop(charge);
        driver.free(address);
        assert_eq!(pool.memory().used, 0);
    }

    #[test]
    fn budgets_have_a_least_and_a_default() {
        assert_eq!(budget(None, 1000 * MIB).unwrap(), 900 * MIB);
        assert_eq!(budget(Some(LEAST_BUDGET), 1 << 40).unwrap(), LEAST_BUDGET);
        let refused = budget(Some(LEAST_BUDGET - 1), 1 << 40).unwrap_err().to_string();
        assert!(refused.contains("64.0 MiB"), "{refused}");
        assert!(matches!(budget(None, 10 * MIB), Err(Error::DeviceMemory { .. })));
    }
}
