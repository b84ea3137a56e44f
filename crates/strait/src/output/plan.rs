//! The output columns: where each comes from, and how its values are gathered.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

use super::Output;
use crate::materialise::{Chosen, Columns, Picked, absent, absent_bytes, coalesce};
use crate::options::Side;

/// The origin of an output column. Column numbers are those of the readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Column(Side, usize),
    /// A key with the same type on both sides of an inner join. Equal values have equal bits, so either side
    /// can be read.
    Either {
        left: usize,
        right: usize,
    },
    /// The left key. If the left row is absent, the right key. Both are converted to one type.
    Coalesced {
        left: usize,
        right: usize,
        data_type: DataType,
    },
    RowId(Side),
    Mark,
}

/// The output columns.
#[derive(Debug, Clone)]
pub(crate) struct OutputPlan {
    pub(crate) schema: SchemaRef,
    pub(crate) origins: Vec<Origin>,
    pub(crate) output: Output,
    /// Integer columns to add up, besides counting rows.
    pub(crate) sums: Vec<(Side, usize)>,
}

impl OutputPlan {
    /// Returns whether only the number of rows is needed.
    pub(crate) fn count_only(&self) -> bool {
        self.output == Output::Count && self.sums.is_empty()
    }

    /// Returns whether the output needs only values of this side: no row numbers, and no coalesced keys.
    pub(crate) fn by_values(&self, side: Side) -> bool {
        self.origins.iter().all(|origin| match origin {
            Origin::RowId(s) => *s != side,
            Origin::Coalesced { .. } => false,
            Origin::Column(..) | Origin::Either { .. } | Origin::Mark => true,
        })
    }

    /// Returns the columns that are read in random order if this side is the build side.
    pub(crate) fn gathered(&self, side: Side) -> Vec<usize> {
        let of_side = |&(s, column): &(Side, usize)| (s == side).then_some(column);
        let columns = self.origins.iter().filter_map(|origin| match origin {
            Origin::Column(s, column) => of_side(&(*s, *column)),
            _ => None,
        });
        columns.chain(self.sums.iter().filter_map(of_side)).collect()
    }

    /// Returns the bytes that gathering these rows needs.
    pub(super) fn bytes(
        &self,
        sides: [Option<&Columns>; 2],
        picked: &[Option<Picked>; 2],
        len: usize,
    ) -> u64 {
        let side = |side: Side| sides[side as usize].zip(picked[side as usize].as_ref());
        let of = |(from, column): (Side, usize), data_type: &DataType| match side(from) {
            Some((columns, picked)) => columns.bytes(column, picked),
            None => absent_bytes(data_type, len),
        };
        let copied = |(from, column): (Side, usize)| {
            side(from).map_or(0, |(columns, picked)| columns.plain_bytes(column, picked))
        };
        let fields = self.schema.fields().iter().map(|field| field.data_type());
        let bytes = self.origins.iter().zip(fields).map(|(origin, data_type)| match origin {
            Origin::Column(side, column) => of((*side, *column), data_type),
            Origin::Either { left, right } => match self.nearer(picked) {
                Side::Left => of((Side::Left, *left), data_type),
                Side::Right => of((Side::Right, *right), data_type),
            },
            // Both columns are gathered, converted to one type, and then merged.
            Origin::Coalesced { left, right, .. } => {
                let both = [(Side::Left, *left), (Side::Right, *right)];
                both.map(|from| of(from, data_type) + 2 * copied(from)).iter().sum()
            }
            Origin::RowId(_) => 8 * len as u64,
            Origin::Mark => len as u64,
        });
        bytes.sum()
    }

    /// Returns the side to read values from that both sides have. It is the side whose rows are consecutive,
    /// because a slice copies nothing. Next best are rows in ascending order, because they are close to each
    /// other in memory. It is never a side that has only inlined columns.
    fn nearer(&self, picked: &[Option<Picked>; 2]) -> Side {
        let rank = |side: Side| match &picked[side as usize] {
            Some(picked) if picked.sliced() => 3,
            Some(picked) if picked.rising() => 2,
            Some(picked) if !matches!(picked.chosen, Chosen::Values(_)) => 1,
            _ => 0,
        };
        match rank(Side::Right) > rank(Side::Left) {
            true => Side::Right,
            false => Side::Left,
        }
    }

    pub(super) fn gather(
        &self,
        sides: [Option<&Columns>; 2],
        picked: &[Option<Picked>; 2],
        marks: Option<&[bool]>,
        len: usize,
    ) -> Result<RecordBatch, ArrowError> {
        let column = |side: Side, column: usize, data_type: &DataType| match (
            sides[side as usize],
            &picked[side as usize],
        ) {
            (Some(columns), Some(picked)) => columns.gather(column, picked),
            _ => absent(data_type, len),
        };
        let one = |(i, origin): (usize, &Origin)| -> Result<ArrayRef, ArrowError> {
            let data_type = self.schema.field(i).data_type();
            match origin {
                Origin::Column(side, c) => column(*side, *c, data_type),
                Origin::Either { left, right } => match self.nearer(picked) {
                    Side::Left => column(Side::Left, *left, data_type),
                    Side::Right => column(Side::Right, *right, data_type),
                },
                Origin::Coalesced { left, right, data_type } => {
                    let values = [
                        sides[0].map(|_| column(Side::Left, *left, data_type)).transpose()?,
                        sides[1].map(|_| column(Side::Right, *right, data_type)).transpose()?,
                    ];
                    coalesce(values, picked, data_type)
                }
                Origin::RowId(side) => {
                    Ok(row_ids(sides[*side as usize], picked[*side as usize].as_ref(), len))
                }
                Origin::Mark => Ok(Arc::new(BooleanArray::from(marks.unwrap_or(&[]).to_vec()))),
            }
        };
        let columns = self.origins.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(len));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
    }
}

/// Returns the row numbers in their table; null for absent rows.
fn row_ids(columns: Option<&Columns>, picked: Option<&Picked>, len: usize) -> ArrayRef {
    match (columns, picked) {
        (Some(columns), Some(picked)) => columns.row_numbers(picked),
        _ => Arc::new(UInt64Array::new_null(len)),
    }
}

/// The output columns of a join that may spill. Before it spills, row numbers follow from the positions of the rows. After
/// that, they are a column of the rows.
pub(crate) struct CurrentPlan<'a> {
    first: &'a OutputPlan,
    spilled: OnceLock<OutputPlan>,
}

impl<'a> CurrentPlan<'a> {
    pub(crate) fn new(first: &'a OutputPlan) -> CurrentPlan<'a> {
        CurrentPlan { first, spilled: OnceLock::new() }
    }

    /// Sets the output columns of all later joins. No worker may have an emitter. Only the first call has an effect.
    pub(crate) fn spill(&self, plan: &OutputPlan) {
        self.spilled.get_or_init(|| plan.clone());
    }
}

impl Deref for CurrentPlan<'_> {
    type Target = OutputPlan;

    fn deref(&self) -> &OutputPlan {
        self.spilled.get().unwrap_or(self.first)
    }
}
