//! Given row ids, where are the values?
//!
//! [`Columns`] are the payload of one side, held in one batch or in many. [`Picked`] rows of it
//! become arrays by [`Columns::gather`]; a row may be absent, which makes a null. Rows that lie
//! one behind the other in one batch, as the probe side of a join on unique keys, are not copied.

mod cpu;
mod flat;

use std::sync::{Arc, OnceLock};

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, GenericByteArray, RecordBatch, UInt64Array, make_array,
    new_null_array,
};
use arrow::buffer::Buffer;
use arrow::compute::{interleave, take};
use arrow::datatypes::{ArrowNativeType, ByteArrayType, DataType};
use arrow::error::ArrowError;

use crate::algorithm::Context;
use crate::error::Result;
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
    /// Where the rows lie, found when the first column asks.
    located: OnceLock<Vec<Location>>,
    /// Whether gathered columns come from memory that is kept for later.
    pooled: bool,
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
    /// The columns of a held side; `gathered` ones are made ready for many random reads.
    pub(crate) fn of_relation(
        cx: &Context<'_>,
        relation: &Relation,
        gathered: &[usize],
    ) -> Result<Self> {
        let mut columns = Columns::of_held(relation);
        for &column in gathered {
            let column = &mut columns.columns[column];
            if let Some(fixed) = &mut column.fixed {
                fixed.flatten(cx, &column.chunks)?;
            }
        }
        Ok(columns)
    }

    fn of_held(relation: &Relation) -> Self {
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

    /// Finds the rows; [`ABSENT`] ones become nulls. Gathered columns come from the pool if `pooled`.
    pub(crate) fn pick(&self, rows: Vec<u64>, pooled: bool) -> Picked {
        let absences = rows.iter().filter(|&&row| row == ABSENT).count();
        let absent = match absences {
            0 => Absent::None,
            n if n == rows.len() => Absent::All,
            _ => Absent::Some,
        };
        let run = absent == Absent::None && self.places.single() && flat::is_run(&rows).is_some();
        Picked { rows, absent, located: OnceLock::new(), pooled, run }
    }

    fn located<'p>(&self, picked: &'p Picked) -> &'p [Location] {
        picked.located.get_or_init(|| picked.rows.iter().map(|&row| self.locate(row)).collect())
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
    pub(crate) fn gather(
        &self,
        column: usize,
        picked: &Picked,
    ) -> std::result::Result<ArrayRef, ArrowError> {
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
            let rows = picked.rows.as_slice();
            if !may_be_absent
                && let Some(values) = fixed.gather_piece(&column.chunks, rows, picked.pooled)
            {
                return column.of_values(values, len);
            }
            let absent = may_be_absent.then_some(rows);
            let places = self.located(picked);
            return fixed.gather(&column.data_type, &column.chunks, places, absent);
        }
        if let ([only], false) = (column.chunks.as_slice(), may_be_absent) {
            return take(only, &UInt64Array::from(picked.rows.clone()), None);
        }
        column.interleave(picked, self.located(picked))
    }

    /// The sum of an integer column over rows; nulls and absent rows count as nothing.
    pub(crate) fn sum(&self, column: usize, rows: &[u64]) -> i128 {
        let column = &self.columns[column];
        let whole = |f: &Fixed| f.sum_piece(&column.data_type, &column.chunks, rows);
        if let Some(sum) = column.fixed.as_ref().and_then(whole) {
            return sum;
        }
        let places = rows.iter().filter(|&&row| row != ABSENT).map(|&row| self.places.locate(row));
        match &column.fixed {
            Some(fixed) => fixed.sum(&column.data_type, &column.chunks, places),
            None => 0,
        }
    }

    /// The bytes that gathering a column's picked rows takes.
    pub(crate) fn bytes(&self, column: usize, picked: &Picked) -> u64 {
        let column = &self.columns[column];
        if picked.run || picked.rows.is_empty() {
            return 0;
        }
        let located = || {
            let there = picked.rows.iter().zip(self.located(picked));
            there.filter(|&(&row, _)| row != ABSENT).map(|(_, &place)| place)
        };
        let values = match &column.data_type {
            DataType::Utf8 => {
                text_bytes(column.chunks.iter().map(|c| c.as_string::<i32>()), located())
            }
            DataType::LargeUtf8 => {
                text_bytes(column.chunks.iter().map(|c| c.as_string::<i64>()), located())
            }
            DataType::Binary => {
                text_bytes(column.chunks.iter().map(|c| c.as_binary::<i32>()), located())
            }
            DataType::LargeBinary => {
                text_bytes(column.chunks.iter().map(|c| c.as_binary::<i64>()), located())
            }
            _ => 0,
        };
        values + column.row_bytes() * picked.rows.len() as u64
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

    /// An array of values without nulls.
    fn of_values(&self, values: Buffer, len: usize) -> std::result::Result<ArrayRef, ArrowError> {
        let data = ArrayData::builder(self.data_type.clone()).len(len).add_buffer(values);
        Ok(make_array(data.build()?))
    }

    fn interleave(
        &self,
        picked: &Picked,
        located: &[Location],
    ) -> std::result::Result<ArrayRef, ArrowError> {
        let null = new_null_array(&self.data_type, 1);
        let mut chunks: Vec<&dyn Array> = self.chunks.iter().map(|c| c.as_ref()).collect();
        let null_chunk = chunks.len();
        chunks.push(null.as_ref());
        let at = |(&row, l): (&u64, &Location)| {
            if row == ABSENT { (null_chunk, 0) } else { (l.chunk as usize, l.row as usize) }
        };
        let places: Vec<_> = picked.rows.iter().zip(located).map(at).collect();
        interleave(&chunks, &places)
    }

    /// Bytes a gathered row takes; of text, without the text; of nested types by the average.
    fn row_bytes(&self) -> u64 {
        match (&self.fixed, &self.data_type) {
            (Some(fixed), _) => fixed.width() as u64,
            (_, DataType::Utf8 | DataType::Binary) => 4,
            (_, DataType::LargeUtf8 | DataType::LargeBinary) => 8,
            (_, DataType::Utf8View | DataType::BinaryView) => 16,
            _ => {
                let Some(chunk) = self.chunks.iter().find(|c| !c.is_empty()) else { return 0 };
                let bytes = chunk.to_data().get_slice_memory_size().unwrap_or(0);
                (bytes / chunk.len()) as u64 + 1
            }
        }
    }
}

/// The bytes of the values at `places`.
fn text_bytes<'a, T: ByteArrayType>(
    chunks: impl Iterator<Item = &'a GenericByteArray<T>>,
    places: impl Iterator<Item = Location>,
) -> u64 {
    let offsets: Vec<&[T::Offset]> = chunks.map(|c| c.value_offsets()).collect();
    let len = |place: Location| {
        let (chunk, row) = (place.chunk as usize, place.row as usize);
        (offsets[chunk][row + 1] - offsets[chunk][row]).as_usize() as u64
    };
    places.map(len).sum()
}

/// Whether fewer rows at a time would help: offsets or dictionary keys ran out of bits.
pub(crate) fn too_long(error: &ArrowError) -> bool {
    matches!(error, ArrowError::OffsetOverflowError(_) | ArrowError::DictionaryKeyOverflowError)
}
