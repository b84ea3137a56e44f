//! Takes the memory of a join from the memory pool of the session.

use std::sync::Arc;

use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{
    self as session, MemoryConsumer, MemoryLimit, MemoryReservation,
};
use strait::{Machine, MemoryBudget, MemoryPool};

/// The memory of one join. Each run of the join is a consumer of the session's pool. Some pools divide their memory
/// among their consumers: then each run gets a share.
#[derive(Debug)]
pub(crate) struct JoinMemory {
    runs: Option<Vec<Arc<SessionPool>>>,
    /// The limit of one run: an equal share of what the pool has left.
    limit: u64,
}

/// The pool of a session.
#[derive(Debug)]
struct SessionPool {
    reservation: MemoryReservation,
    session: Arc<dyn session::MemoryPool>,
    /// The size of the pool, if it is known.
    size: Option<usize>,
}

/// Joins leave 1/`PARTS` of the pool to other operators, because many operators cannot spill.
const PARTS: usize = 8;

/// As long as a join holds at most 1/`SMALL_PARTS` of the pool, it may also take memory that is left to other
/// operators.
const SMALL_PARTS: usize = 16;

impl JoinMemory {
    /// Registers a join that has this number of runs at the same time.
    pub(crate) fn register(context: &TaskContext, runs: usize) -> Arc<JoinMemory> {
        let session = context.memory_pool();
        let (size, most) = match session.memory_limit() {
            MemoryLimit::Infinite => return Arc::new(JoinMemory { runs: None, limit: u64::MAX }),
            MemoryLimit::Finite(bytes) => (Some(bytes), bytes as u64),
            // The pool refuses memory that it does not have. Then the budget works with what it has.
            MemoryLimit::Unknown => match Machine::detect().memory {
                0 => (None, u64::MAX / 2),
                bytes => (None, bytes),
            },
        };
        // Others may return their memory soon.
        let left = most.saturating_sub(session.reserved() as u64).max(most / 4);
        let pool = |_| {
            let consumer = MemoryConsumer::new("StraitJoin").with_can_spill(true);
            let (reservation, session) = (consumer.register(session), Arc::clone(session));
            Arc::new(SessionPool { reservation, session, size })
        };
        Arc::new(JoinMemory {
            runs: Some((0..runs).map(pool).collect()),
            limit: left / runs as u64,
        })
    }

    /// Returns the budget of one run.
    pub(crate) fn budget(&self, run: usize) -> Arc<MemoryBudget> {
        match &self.runs {
            Some(runs) => MemoryBudget::of_pool(self.limit, Arc::clone(&runs[run]) as _),
            None => MemoryBudget::new(None),
        }
    }

    /// Returns whether the session limits the memory.
    pub(crate) fn is_limited(&self) -> bool {
        self.runs.is_some()
    }
}

impl MemoryPool for SessionPool {
    fn grow(&self, bytes: u64) -> bool {
        let Ok(bytes) = usize::try_from(bytes) else { return false };
        if let Some(size) = self.size {
            let becomes_large = self.reservation.size().saturating_add(bytes) > size / SMALL_PARTS;
            let others = size / PARTS;
            if becomes_large && self.session.reserved().saturating_add(bytes) > size - others {
                return false;
            }
        }
        self.reservation.try_grow(bytes).is_ok()
    }

    fn shrink(&self, bytes: u64) {
        self.reservation.shrink(bytes as usize);
    }
}
