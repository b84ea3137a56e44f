//! Cases with tables that have more rows than an output batch holds, or hundreds of batches, and payload of
//! every type.

use arrow::datatypes::DataType;
use strait::{DEFAULT_BATCH_SIZE, JoinType, Output};
use strait_testkit::shape::Split;
use strait_testkit::{KeyKind, Pair, Rng, Shape};

use super::case::{Case, Choice, too_many_pairs};

impl Case {
    /// A case with a table of at least 33,000 rows, or at least 200 batches.
    pub(crate) fn bulk(rng: &mut Rng, cell: (Choice, JoinType, Vec<KeyKind>)) -> (Case, Pair) {
        let case = bulky(rng, cell);
        settled(rng, case)
    }

    /// A case with payload of the given types, in a table of one batch or of hundreds.
    pub(crate) fn bulk_of(
        rng: &mut Rng,
        cell: (Choice, JoinType, Vec<KeyKind>),
        (whole, payload): (bool, &[DataType]),
    ) -> (Case, Pair) {
        let mut case = bulky(rng, cell);
        let shape = &mut case.shape;
        let (bulk, other) = match shape.left.rows > shape.right.rows {
            true => (&mut shape.left, &mut shape.right),
            false => (&mut shape.right, &mut shape.left),
        };
        (bulk.rows, bulk.split) = match whole {
            true => (33_000, Split::Whole),
            false => (4000, Split::Every(20)),
        };
        // Each row of the long table matches about one row of the other.
        other.rows = shape.distinct;
        bulk.payload = payload.to_vec();
        other.payload = payload.to_vec();
        (case.output, case.select, case.memory_limit) = (Output::Rows, None, None);
        settled(rng, case)
    }
}

/// A case with a bulky shape. Its tables are not made yet.
fn bulky(rng: &mut Rng, cell: (Choice, JoinType, Vec<KeyKind>)) -> Case {
    let (mut case, _) = Case::with(rng, cell, false);
    let keys = std::mem::take(&mut case.shape.keys);
    case.shape = Shape::bulk(rng, keys);
    case.shape.numbers |= case.filter.is_some();
    case
}

/// Chooses the remaining settings of a case with a bulky shape, and makes its tables.
fn settled(rng: &mut Rng, mut case: Case) -> (Case, Pair) {
    case.batch_size = *rng.pick(&[1000, DEFAULT_BATCH_SIZE, DEFAULT_BATCH_SIZE, 1 << 17]);
    // Tiny chunks of candidates would take too long, and so would tiny partitions on a simulated device.
    (case.force.tiny_chunks, case.force.collide) = (false, false);
    case.force.tiny_partitions &= !case.on_device();
    case.gpu_memory = None;
    if case.memory_limit.is_some() {
        case.memory_limit = Some(1 << rng.between(16, 30));
    }
    loop {
        let pair = Pair::generate(rng, &case.shape);
        if !too_many_pairs(&case, &pair) {
            return (case, pair);
        }
        // For example, a boolean key: a few rows of the smaller table are enough.
        let (left, right) = (&mut case.shape.left, &mut case.shape.right);
        let smaller = if left.rows < right.rows { left } else { right };
        smaller.rows /= 8;
    }
}
