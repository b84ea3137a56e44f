//! Residual filters over columns of any type. The predicate depends on the hashes of cells, and the oracle
//! computes it from the same cells.

use arrow::array::{BooleanArray, RecordBatch};
use strait::{Filter, Side};
use strait_testkit::decode::decode_alone;
use strait_testkit::fingerprint::fingerprint;
use strait_testkit::{Pair, Rng, Table, Value};

/// A filter over one to three columns of either side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cells {
    /// The seed that chooses the columns.
    pub(crate) seed: u64,
    /// Rejects one pair in this many, if hashes are random.
    pub(crate) one_in: u64,
    /// Whether the predicate is null if one of the cells is null.
    pub(crate) nulls: bool,
}

/// The hash of a cell, and whether it is null.
type Print = (u64, bool);

impl Cells {
    /// A random filter.
    pub(crate) fn random(rng: &mut Rng) -> Cells {
        Cells { seed: rng.bits(), one_in: *rng.pick(&[2, 3, 10]), nulls: rng.chance(1, 3) }
    }

    /// The side and the index of each column that the filter reads, without repetition.
    fn columns(&self, pair: &Pair) -> Vec<(Side, usize)> {
        let mut rng = Rng::new(self.seed);
        let of = |side, table: &Table| (0..table.schema.fields().len()).map(move |i| (side, i));
        let mut columns: Vec<_> =
            of(Side::Left, &pair.left).chain(of(Side::Right, &pair.right)).collect();
        rng.shuffle(&mut columns);
        columns.truncate(rng.between(1, 3));
        columns
    }

    /// The filter for the join.
    pub(crate) fn filter(self, pair: &Pair) -> Filter {
        let columns = self.columns(pair);
        let width = columns.len();
        let named = columns
            .into_iter()
            .map(|(side, column)| (side, table_of(pair, side).schema.field(column).name().clone()));
        Filter::new(named.collect::<Vec<_>>(), move |batch: &RecordBatch| {
            assert_eq!(batch.num_columns(), width, "the filter gets just its columns");
            let prints: Vec<Vec<Print>> =
                batch.columns().iter().map(|column| prints(decode_alone(column))).collect();
            let verdict = |row| self.verdict(prints.iter().map(|column| column[row]));
            Ok((0..batch.num_rows()).map(verdict).collect::<BooleanArray>())
        })
    }

    /// Whether a pair of rows passes, computed from the tables.
    pub(crate) fn passes(self, pair: &Pair) -> impl Fn(usize, usize) -> bool + use<> {
        let columns: Vec<(Side, Vec<Print>)> = (self.columns(pair).into_iter())
            .map(|(side, column)| {
                let batches = &table_of(pair, side).batches;
                let cells = batches.iter().flat_map(|batch| decode_alone(batch.column(column)));
                (side, prints(cells))
            })
            .collect();
        move |left, right| {
            let cells = columns
                .iter()
                .map(|(side, cells)| cells[if *side == Side::Left { left } else { right }]);
            self.verdict(cells).unwrap_or(false)
        }
    }

    fn verdict(&self, cells: impl Iterator<Item = Print>) -> Option<bool> {
        let mut hash = self.seed;
        let mut any_null = false;
        for (print, null) in cells {
            hash = (hash.rotate_left(9) ^ print).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            any_null |= null;
        }
        (!(self.nulls && any_null)).then_some(!(hash >> 20).is_multiple_of(self.one_in))
    }
}

fn prints(cells: impl IntoIterator<Item = Value>) -> Vec<Print> {
    cells.into_iter().map(|cell| (fingerprint(&cell), cell.is_null())).collect()
}

fn table_of(pair: &Pair, side: Side) -> &Table {
    match side {
        Side::Left => &pair.left,
        Side::Right => &pair.right,
    }
}
