//! Materialises output columns: gathers the values of given rows.
//!
//! [`Columns`] are the columns of one side, held in one batch or in many. [`Columns::gather`] turns
//! [`Chosen`] rows into arrays:
//!
//! | chosen | arrays are |
//! | --- | --- |
//! | ids | gathered; a row may be absent, which gives a null |
//! | a run of consecutive rows, such as the probe side of a join on unique keys | slices |
//! | inlined values ([`inline`](mod@inline)) | those values |

mod cpu;
mod dictionary;
mod flat;
mod inline;
mod lists;
mod rows;
mod runs;
mod size;
mod sum;
#[cfg(test)]
mod tests;
mod together;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, GenericByteArray, RecordBatch, UInt64Array, make_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::compute::take;
use arrow::datatypes::{ArrowNativeType, ByteArrayType, DataType, Schema};
use arrow::error::ArrowError;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::input::Location;
use crate::input::{Piece, Places, Relation};
use crate::memory::Reservation;
use crate::partition::{Payload, RowId, Values};
use cpu::Fixed;
use inline::InlineLayout;
pub(crate) use inline::MAX_INLINED;
use rows::Selection;
pub(crate) use together::{coalesce, concat, concat_bytes};

/// With a memory limit, rows are sliced from a batch only if they are at least this fraction of its rows, 1 /
/// `SLICED_FROM`.
const SLICED_FROM: u64 = 4;

/// The row id of an absent row: the other side of an unmatched row.
pub(crate) const ABSENT: u64 = u64::MAX;

/// The columns of one side, from which rows are gathered.
pub(crate) struct Columns {
    columns: Vec<Column>,
    places: Arc<Places>,
    /// The row id of the first row, if the columns are a morsel of a longer side.
    pub(crate) first_row: u64,
    /// The columns that are inlined into tuples.
    inlined: Option<InlineLayout>,
}

struct Column {
    data_type: DataType,
    chunks: Vec<ArrayRef>,
    fixed: Option<Fixed>,
    /// The reservation for chunks that were created here instead of read.
    _made: Option<Arc<Reservation>>,
}

/// Rows of one side for an output batch.
#[derive(Debug)]
pub(crate) enum Chosen {
    /// Row ids.
    Ids(Vec<u64>),
    /// Consecutive rows.
    Run(Range<u64>),
    /// Inlined values of the rows.
    Values(Values),
}

impl Chosen {
    pub(crate) fn len(&self) -> usize {
        match self {
            Chosen::Ids(ids) => ids.len(),
            Chosen::Run(run) => (run.end - run.start) as usize,
            Chosen::Values(values) => values.len(),
        }
    }

    /// Returns a part of the rows.
    pub(crate) fn part(&self, range: Range<usize>) -> Chosen {
        match self {
            Chosen::Ids(ids) => Chosen::Ids(ids[range].to_vec()),
            Chosen::Run(run) => {
                Chosen::Run(run.start + range.start as u64..run.start + range.end as u64)
            }
            Chosen::Values(values) => Chosen::Values(values.part(range)),
        }
    }

    /// Returns the ids, to use their memory again; empty if the rows were chosen otherwise.
    pub(crate) fn into_ids(self) -> Vec<u64> {
        match self {
            Chosen::Ids(ids) => ids,
            Chosen::Run(_) | Chosen::Values(_) => Vec::new(),
        }
    }
}

/// Chosen rows, with their positions and whether some are absent.
pub(crate) struct Picked {
    pub(crate) chosen: Chosen,
    absent: Absent,
    /// The positions of the rows, computed when the first column needs them.
    located: OnceLock<Vec<Location>>,
    /// The same for columns that are not of fixed width.
    selected: OnceLock<Selected>,
    /// Whether the memory of gathered columns comes from the pool.
    pooled: bool,
    /// The rows as a batch and a range, if they are consecutive rows of one batch. Then nothing is copied.
    run: Option<(usize, Range<usize>)>,
}

/// The chunks that contain the rows, and the positions in these chunks.
struct Selected {
    chunks: Vec<usize>,
    rows: Selection,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    None,
    Some,
    All,
}

impl Payload for Columns {
    fn narrow<'a>(&'a self, piece: &Piece, scratch: &'a mut Vec<u32>) -> &'a [u32] {
        self.inlined(piece, scratch)
    }

    fn wide<'a>(&'a self, piece: &Piece, scratch: &'a mut Vec<u64>) -> &'a [u64] {
        self.inlined(piece, scratch)
    }
}

impl Columns {
    /// Returns the columns of a held side. The `gathered` ones are prepared for many random reads.
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
            column.unify_dictionaries(cx)?;
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
        Columns { columns, places: Arc::clone(relation.places()), first_row: 0, inlined: None }
    }

    /// Returns the columns of a chunk of a longer side, which starts at row id `first_row`.
    pub(crate) fn of_chunk(chunk: &Relation, first_row: u64) -> Self {
        Columns { first_row, ..Columns::of_held(chunk) }
    }

    /// Returns the columns of a held side, with the `gathered` ones inlined. The plan decides whether to inline. Fails
    /// with an internal error if there are no such columns, if they are too wide, or if they have nulls.
    pub(crate) fn inlining(relation: &Relation, gathered: &[usize]) -> Result<Self> {
        let mut columns = Columns::of_held(relation);
        columns.inlined = Some(InlineLayout::new(&columns.columns, gathered)?);
        Ok(columns)
    }

    /// Returns the inlined values of each batch without copying. The plan decides whether this is called. The values
    /// must be those of one column that is as wide as `I`. Returns `None` if the array of a batch is less aligned than
    /// `I`.
    pub(crate) fn inlined_in_place<I: RowId + ArrowNativeType>(
        &self,
    ) -> Result<Option<Vec<ScalarBuffer<I>>>> {
        let inlined = self.inlined.as_ref();
        inlined.ok_or_else(|| Error::internal("no columns are inlined"))?.in_place(&self.columns)
    }

    /// Returns the inlined values of a piece's rows, in row order.
    pub(crate) fn inlined<'a, I: RowId>(
        &'a self,
        piece: &Piece,
        scratch: &'a mut Vec<I>,
    ) -> &'a [I] {
        match &self.inlined {
            Some(inlined) => inlined.values(&self.columns, piece, scratch),
            None => &[],
        }
    }

    /// Returns the columns of one batch. Its rows are numbered from 0.
    pub(crate) fn of_batch(batch: &RecordBatch, first_row: u64) -> Self {
        let columns = batch.columns().iter();
        let columns = columns.map(|c| Column::new(c.data_type(), vec![Arc::clone(c)])).collect();
        let places = Arc::new(Places::new(std::iter::once(batch.num_rows())));
        Columns { columns, places, first_row, inlined: None }
    }

    /// Analyses the rows. [`ABSENT`] rows become nulls. With `pooled`, the memory of gathered columns comes
    /// from the pool.
    pub(crate) fn pick(&self, chosen: Chosen, pooled: bool) -> Picked {
        // A slice keeps its whole batch in memory. So with a memory limit, a few rows of a batch are copied
        // instead.
        let few = |chunk: usize, rows: u64| {
            !pooled && rows < self.places.rows_of(chunk) as u64 / SLICED_FROM
        };
        let (chosen, slice) = match chosen {
            Chosen::Run(run) => match self.places.slice(&run) {
                Some((chunk, rows)) if !few(chunk, run.end - run.start) => {
                    (Chosen::Run(run), Some((chunk, rows)))
                }
                _ => (Chosen::Ids(run.collect()), None),
            },
            chosen => (chosen, None),
        };
        let (absent, run) = match &chosen {
            Chosen::Run(_) => (Absent::None, slice),
            Chosen::Values(_) => (Absent::None, None),
            Chosen::Ids(ids) => {
                let absent = match ids.iter().filter(|&&row| row == ABSENT).count() {
                    0 => Absent::None,
                    n if n == ids.len() => Absent::All,
                    _ => Absent::Some,
                };
                let may_run =
                    absent == Absent::None && self.places.single() && !few(0, ids.len() as u64);
                let run = may_run.then(|| flat::is_run(ids)).flatten();
                (absent, run.map(|run| (0, run.start as usize..run.end as usize)))
            }
        };
        let (located, selected) = (OnceLock::new(), OnceLock::new());
        Picked { chosen, absent, located, selected, pooled, run }
    }

    fn located<'p>(&self, picked: &'p Picked) -> &'p [Location] {
        picked.located.get_or_init(|| picked.ids().iter().map(|&row| self.locate(row)).collect())
    }

    /// Returns the chunks that contain the rows, and the positions in them. Chunks without a picked row are
    /// left out.
    fn selected<'p>(&self, picked: &'p Picked) -> &'p Selected {
        picked.selected.get_or_init(|| {
            let located = self.located(picked);
            let there = || picked.ids().iter().zip(located);
            let mut chunks = Vec::new();
            // The number of each chunk among those in use, from 1 on; 0 if it is not in use.
            let mut numbers = vec![0usize; self.places.batches()];
            for (_, place) in there().filter(|&(&row, _)| row != ABSENT) {
                let number = &mut numbers[place.batch as usize];
                if *number == 0 {
                    chunks.push(place.batch as usize);
                    *number = chunks.len();
                }
            }
            let mut rows = Selection::of_chunks(chunks.len());
            rows.places.reserve_exact(located.len());
            for (&row, place) in there() {
                match row {
                    ABSENT => rows.push(chunks.len(), 0, 1),
                    _ => rows.push(numbers[place.batch as usize] - 1, place.row as usize, 1),
                }
            }
            Selected { chunks, rows }
        })
    }

    /// Absent rows get the position of the first row. Callers must mask them.
    #[inline]
    fn locate(&self, row: u64) -> Location {
        if row == ABSENT { Location { batch: 0, row: 0 } } else { self.places.locate(row) }
    }

    /// Returns the bytes that [`gather_with_numbers`](Columns::gather_with_numbers) needs.
    pub(crate) fn bytes_with_numbers(&self, schema: &Schema, picked: &Picked) -> u64 {
        let of_columns = (0..self.columns.len()).map(|column| self.bytes(column, picked));
        let added = schema.fields().len().saturating_sub(self.columns.len());
        of_columns.sum::<u64>() + 8 * (picked.chosen.len() * added) as u64
    }

    /// Gathers all columns of a schema for the picked rows. If the schema has one more column than these rows, it is for
    /// the row numbers.
    pub(crate) fn gather_with_numbers(
        &self,
        schema: &Schema,
        picked: &Picked,
    ) -> std::result::Result<Vec<ArrayRef>, ArrowError> {
        let own = self.columns.len();
        let gather = |column: usize| match column < own {
            true => self.gather(column, picked),
            false => Ok(self.row_numbers(picked)),
        };
        (0..schema.fields().len()).map(gather).collect()
    }

    /// Returns the numbers of the picked rows in their table; null for absent rows.
    pub(crate) fn row_numbers(&self, picked: &Picked) -> ArrayRef {
        let first = self.first_row;
        if let Chosen::Run(run) = &picked.chosen {
            return Arc::new(UInt64Array::from_iter_values(run.start + first..run.end + first));
        }
        let rows = picked.ids();
        let ids: Vec<u64> = rows.iter().map(|&row| row.wrapping_add(first)).collect();
        let there = || BooleanBuffer::collect_bool(rows.len(), |i| rows[i] != ABSENT);
        let nulls = (!picked.all_there()).then(|| NullBuffer::new(there()));
        Arc::new(UInt64Array::new(ids.into(), nulls))
    }

    /// Returns the positions of rows.
    pub(crate) fn locate_all(&self, rows: &[u64]) -> Vec<Location> {
        rows.iter().map(|&row| self.places.locate(row)).collect()
    }

    /// Gathers the values of one column for the picked rows.
    pub(crate) fn gather(
        &self,
        column: usize,
        picked: &Picked,
    ) -> std::result::Result<ArrayRef, ArrowError> {
        let (index, column) = (column, &self.columns[column]);
        let len = picked.chosen.len();
        if len == 0 || picked.absent == Absent::All {
            return absent(&column.data_type, len);
        }
        if let Some((chunk, run)) = &picked.run {
            return Ok(column.chunks[*chunk].slice(run.start, run.len()));
        }
        if let (Chosen::Values(values), Some(inlined)) = (&picked.chosen, &self.inlined) {
            return column.of_values(inlined.column(index, values, picked.pooled)?, len);
        }
        let may_be_absent = picked.absent == Absent::Some;
        let rows = picked.ids();
        if let Some(fixed) = &column.fixed {
            if !may_be_absent
                && let Some(values) = fixed.gather_stretch(&column.chunks, rows, picked.pooled)
            {
                return column.of_values(values, len);
            }
            let absent = may_be_absent.then_some(rows);
            let places = self.located(picked);
            return fixed.gather(&column.data_type, &column.chunks, places, absent);
        }
        if let ([only], false, true) = (column.chunks.as_slice(), may_be_absent, column.takes()) {
            return take(only, &UInt64Array::from(rows.to_vec()), None);
        }
        let selected = self.selected(picked);
        rows::gather(&column.data_type, &column.only(selected), &selected.rows)
    }

    /// Returns the sum of an integer column over rows. Nulls and absent rows are skipped.
    pub(crate) fn sum(&self, column: usize, chosen: &Chosen) -> i128 {
        let (index, column) = (column, &self.columns[column]);
        let Some(fixed) = &column.fixed else { return 0 };
        let places = |row: u64| self.places.locate(row);
        let sum = |places: &mut dyn Iterator<Item = Location>| {
            fixed.sum(&column.data_type, &column.chunks, places)
        };
        match chosen {
            Chosen::Values(values) => {
                let inlined = self.inlined.as_ref();
                inlined.map_or(0, |inlined| inlined.sum(index, &column.data_type, values))
            }
            Chosen::Run(run) => fixed
                .sum_run(&column.data_type, &column.chunks, run.clone())
                .unwrap_or_else(|| sum(&mut run.clone().map(places))),
            Chosen::Ids(rows) => {
                fixed.sum_stretch(&column.data_type, &column.chunks, rows).unwrap_or_else(|| {
                    sum(&mut rows.iter().filter(|&&row| row != ABSENT).map(|&row| places(row)))
                })
            }
        }
    }

    /// Returns the bytes that gathering a column's picked rows takes.
    pub(crate) fn bytes(&self, column: usize, picked: &Picked) -> u64 {
        let column = &self.columns[column];
        let len = picked.chosen.len() as u64;
        if picked.run.is_some() || len == 0 {
            return 0;
        }
        let located = || {
            let there = picked.ids().iter().zip(self.located(picked));
            there.filter(|&(&row, _)| row != ABSENT).map(|(_, &place)| place)
        };
        let chunks = || column.chunks.iter();
        let values = match &column.data_type {
            _ if picked.absent == Absent::All => {
                return absent_bytes(&column.data_type, len as usize);
            }
            DataType::Utf8 => {
                4 * len + text_bytes(chunks().map(|c| c.as_string::<i32>()), located())
            }
            DataType::LargeUtf8 => {
                8 * len + text_bytes(chunks().map(|c| c.as_string::<i64>()), located())
            }
            DataType::Binary => {
                4 * len + text_bytes(chunks().map(|c| c.as_binary::<i32>()), located())
            }
            DataType::LargeBinary => {
                8 * len + text_bytes(chunks().map(|c| c.as_binary::<i64>()), located())
            }
            data_type => match &column.fixed {
                Some(fixed) => fixed.width() as u64 * len,
                None => {
                    let single = column.chunks.len() == 1;
                    let any = single.then(|| size::of_any(data_type, len as usize)).flatten();
                    if let Some(bytes) = any {
                        return bytes;
                    }
                    let selected = self.selected(picked);
                    return size::of_rows(data_type, &column.only(selected), &selected.rows);
                }
            },
        };
        let complete = column.fixed.as_ref().is_some_and(Fixed::complete) && picked.all_there();
        values + if complete { 0 } else { len / 8 + 1 }
    }

    /// Returns an upper bound for the bytes of the column's picked rows after a cast to a common key type:
    /// without dictionaries and views, and with the widest integers and offsets.
    pub(crate) fn plain_bytes(&self, column: usize, picked: &Picked) -> u64 {
        let column = &self.columns[column];
        if let Some((chunk, run)) = &picked.run {
            let mut rows = Selection::of_stretches(1);
            rows.push(0, run.start, run.len());
            return size::plain(&column.data_type, &[column.chunks[*chunk].as_ref()], &rows);
        }
        let selected = self.selected(picked);
        size::plain(&column.data_type, &column.only(selected), &selected.rows)
    }
}

impl Picked {
    /// Returns whether no row is absent.
    pub(crate) fn all_there(&self) -> bool {
        self.absent == Absent::None
    }

    /// Returns the row ids; empty if the rows were chosen otherwise.
    pub(crate) fn ids(&self) -> &[u64] {
        match &self.chosen {
            Chosen::Ids(ids) => ids,
            Chosen::Run(_) | Chosen::Values(_) => &[],
        }
    }

    /// Returns whether the rows are consecutive rows of one batch, so that nothing is copied.
    pub(crate) fn sliced(&self) -> bool {
        self.run.is_some()
    }

    /// Returns whether the rows are in ascending order. Inlined values have no order.
    pub(crate) fn rising(&self) -> bool {
        match &self.chosen {
            Chosen::Run(_) => true,
            Chosen::Ids(ids) => ids.is_sorted(),
            Chosen::Values(_) => false,
        }
    }
}

impl Column {
    fn new(data_type: &DataType, chunks: Vec<ArrayRef>) -> Self {
        let fixed = Fixed::new(data_type, &chunks);
        Column { data_type: data_type.clone(), chunks, fixed, _made: None }
    }

    /// Creates an array of values without nulls.
    fn of_values(&self, values: Buffer, len: usize) -> std::result::Result<ArrayRef, ArrowError> {
        let data = ArrayData::builder(self.data_type.clone()).len(len).add_buffer(values);
        Ok(make_array(data.build()?))
    }

    /// Returns the chunks in use.
    fn only(&self, selected: &Selected) -> Vec<&dyn Array> {
        selected.chunks.iter().map(|&chunk| self.chunks[chunk].as_ref()).collect()
    }

    /// Returns whether Arrow's `take` works for this type. It panics if the offsets of lists or run ends
    /// overflow, and loses the length of values without bytes.
    fn takes(&self) -> bool {
        match self.data_type {
            DataType::FixedSizeBinary(0) => false,
            DataType::Dictionary(..) => true,
            _ => rows::is_flat(&self.data_type),
        }
    }

    /// Gives all chunks of a dictionary column one dictionary, if its keys suffice for all values.
    fn unify_dictionaries(&mut self, cx: &Context<'_>) -> Result<()> {
        if let DataType::Dictionary(keys, values) = &self.data_type
            && let Some((chunks, made)) = dictionary::unified(cx, keys, values, &self.chunks)?
        {
            let made = Arc::new(made);
            if let Some(ledger) = &cx.ledger {
                // Output batches refer to this dictionary. Registered here, it counts only once.
                ledger.adopt(&chunks, &made);
            }
            (self.chunks, self._made) = (chunks, Some(made));
        }
        Ok(())
    }
}

/// Returns `len` absent rows: nulls.
pub(crate) fn absent(
    data_type: &DataType,
    len: usize,
) -> std::result::Result<ArrayRef, ArrowError> {
    rows::absent(data_type, len)
}

/// Returns the bytes of `len` absent rows.
pub(crate) fn absent_bytes(data_type: &DataType, len: usize) -> u64 {
    size::of_rows(data_type, &[], &Selection::absent(len))
}

/// Returns the bytes of the values at `places`.
fn text_bytes<'a, T: ByteArrayType>(
    chunks: impl Iterator<Item = &'a GenericByteArray<T>>,
    places: impl Iterator<Item = Location>,
) -> u64 {
    let offsets: Vec<&[T::Offset]> = chunks.map(|c| c.value_offsets()).collect();
    let len = |place: Location| {
        let (chunk, row) = (place.batch as usize, place.row as usize);
        (offsets[chunk][row + 1] - offsets[chunk][row]).as_usize() as u64
    };
    places.map(len).sum()
}
