//! The order in which the threads of a simulated kernel reach rows.

use fastrand::Rng;

/// Returns the numbers below `end` in random order.
pub(super) fn random_order(random: &mut Rng, end: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..end).collect();
    random.shuffle(&mut order);
    order
}
