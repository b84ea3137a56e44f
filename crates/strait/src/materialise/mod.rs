//! Given row ids, where are the values?
//!
//! [`Columns`] are the payload of one side, held in one batch or in many. [`Picked`] rows of it
//! become arrays by [`Columns::gather`]; a row may be absent, which makes a null. Rows that lie
//! one behind the other in one batch, as the probe side of a join on unique keys, are not copied.

mod cpu;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt64Array, new_null_array};
use arrow::compute::{interleave, take};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

use crate::input::{Places, Relation};
use crate::key::Location;
use cpu::Fixed;

/// The row id of a row that is not there: the other side of an unmatched row.
pub(crate) const ABSENT: u64 = u64::MAX;

/// The columns of one side, to gather from.
pub(crate) struct Columns {
    columns: Vec<Column>,
    places: Arc<Places>,
    /// The row id of the first row, where the columns are a morsel of a longer side.
    pub(crate) first_row: u64,
}

struct Column {
    data_type: DataType,
    chunks: Vec<ArrayRef>,
    fixed: Option<Fixed>,
}

/// Rows to gather: their ids, and where they lie.
pub(crate) struct Picked {
    pub(crate) rows: Vec<u64>,
    absent: Absent,
    located: Vec<Location>,
    /// The rows are `rows[0]`, `rows[0] + 1`, …: nothing has to be copied.
    run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    None,
    Some,
    All,
}

impl Columns {
    /// The columns of a held side.
    pub(crate) fn of_relation(relation: &Relation) -> Self {
        let fields = relation.schema().fields();
        let columns = (0..fields.len())
            .map(|i| {
                let chunks = relation.batches().iter().map(|b| Arc::clone(b.column(i))).collect();
                Column::new(fields[i].data_type(), chunks)
            })
            .collect();
        Columns { columns, places: Arc::clone(relation.places()), first_row: 0 }
    }

    /// The columns of one batch, whose rows are counted from 0 here.
    pub(crate) fn of_batch(batch: &RecordBatch, first_row: u64) -> Self {
        let columns = batch.columns().iter();
        let columns = columns.map(|c| Column::new(c.data_type(), vec![Arc::clone(c)])).collect();
        let places = Arc::new(Places::new(std::iter::once(batch.num_rows())));
        Columns { columns, places, first_row }
    }

    /// Finds the rows; [`ABSENT`] ones become nulls.
    pub(crate) fn pick(&self, rows: Vec<u64>) -> Picked {
        let absences = rows.iter().filter(|&&row| row == ABSENT).count();
        let absent = match absences {
            0 => Absent::None,
            n if n == rows.len() => Absent::All,
            _ => Absent::Some,
        };
        let run = absent == Absent::None
            && self.places.single()
            && rows
                .iter()
                .zip(1..)
                .all(|(&row, next)| row.wrapping_add(1) == rows[0].wrapping_add(next));
        let located = match absent {
            Absent::All => Vec::new(),
            _ if run => Vec::new(),
            _ => rows.iter().map(|&row| self.locate(row)).collect(),
        };
        Picked { rows, absent, located, run }
    }

    /// Absent rows are sent to the first row; whoever reads it masks it.
    #[inline]
    fn locate(&self, row: u64) -> Location {
        if row == ABSENT { Location { chunk: 0, row: 0 } } else { self.places.locate(row) }
    }

    /// Where the rows lie.
    pub(crate) fn locate_all(&self, rows: &[u64]) -> Vec<Location> {
        rows.iter().map(|&row| self.places.locate(row)).collect()
    }

    /// The values of one column in the picked rows.
    pub(crate) fn gather(&self, column: usize, picked: &Picked) -> Result<ArrayRef, ArrowError> {
        let column = &self.columns[column];
        let len = picked.rows.len();
        if len == 0 || picked.absent == Absent::All {
            return Ok(new_null_array(&column.data_type, len));
        }
        if picked.run {
            return Ok(column.chunks[0].slice(picked.rows[0] as usize, len));
        }
        let may_be_absent = picked.absent == Absent::Some;
        if let Some(fixed) = &column.fixed {
            let rows = may_be_absent.then_some(picked.rows.as_slice());
            return fixed.gather(&column.data_type, &column.chunks, &picked.located, rows);
        }
        if let ([only], false) = (column.chunks.as_slice(), may_be_absent) {
            return take(only, &UInt64Array::from(picked.rows.clone()), None);
        }
        column.interleave(picked)
    }

    /// The sum of an integer column over rows; nulls and absent rows count as nothing.
    pub(crate) fn sum(&self, column: usize, rows: &[u64]) -> i128 {
        let column = &self.columns[column];
        let places = rows.iter().filter(|&&row| row != ABSENT).map(|&row| self.places.locate(row));
        match &column.fixed {
            Some(fixed) => fixed.sum(&column.data_type, &column.chunks, places),
            None => 0,
        }
    }

    /// Bytes a gathered row takes, by the average of what is there.
    pub(crate) fn row_bytes(&self, columns: &[usize]) -> u64 {
        columns.iter().map(|&c| self.columns[c].row_bytes()).sum()
    }
}

impl Picked {
    /// Whether no row is absent.
    pub(crate) fn all_there(&self) -> bool {
        self.absent == Absent::None
    }
}

impl Column {
    fn new(data_type: &DataType, chunks: Vec<ArrayRef>) -> Self {
        let fixed = Fixed::new(data_type, &chunks);
        Column { data_type: data_type.clone(), chunks, fixed }
    }

    fn interleave(&self, picked: &Picked) -> Result<ArrayRef, ArrowError> {
        let null = new_null_array(&self.data_type, 1);
        let mut chunks: Vec<&dyn Array> = self.chunks.iter().map(|c| c.as_ref()).collect();
        let null_chunk = chunks.len();
        chunks.push(null.as_ref());
        let at = |(&row, l): (&u64, &Location)| {
            if row == ABSENT { (null_chunk, 0) } else { (l.chunk as usize, l.row as usize) }
        };
        let places: Vec<_> = picked.rows.iter().zip(&picked.located).map(at).collect();
        interleave(&chunks, &places)
    }

    fn row_bytes(&self) -> u64 {
        match &self.fixed {
            Some(fixed) => fixed.width() as u64,
            None => {
                let Some(chunk) = self.chunks.iter().find(|c| !c.is_empty()) else { return 0 };
                let bytes = chunk.to_data().get_slice_memory_size().unwrap_or(0);
                (bytes / chunk.len()) as u64 + 1
            }
        }
    }
}

/// Whether fewer rows at a time would help: offsets or dictionary keys ran out of bits.
pub(crate) fn too_long(error: &ArrowError) -> bool {
    matches!(error, ArrowError::OffsetOverflowError(_) | ArrowError::DictionaryKeyOverflowError)
}
