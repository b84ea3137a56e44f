//! Verifies that the keys of two rows are equal.
//!
//! [`KeyValues`] holds the key columns of some batches in their common form. It uses the buffers of the
//! batches where these already have that form. [`KeyValues::equal`] compares pairs of rows column by column.
//! The match on forms and on the number of chunks is outside the loop.

use arrow::array::NullBufferBuilder;
use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, FixedSizeBinaryArray};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, i256};
use arrow_row::Rows;

use super::common_form::Form;
use super::record::Records;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::input::Location;
use crate::memory::Reservation;
use crate::schedule::Workers;

/// The key columns of a list of batches, ready to be compared.
pub(crate) struct KeyValues {
    pub(super) columns: Vec<Column>,
    pub(super) flat: bool,
    /// Reservations for memory beyond the batches' own buffers.
    pub(super) reserved: Vec<Reservation>,
}

/// One key column, with one chunk per batch.
pub(super) struct Column {
    pub(super) form: Form,
    pub(super) data: Data,
    pub(super) nulls: Vec<Option<NullBuffer>>,
}

/// The values of a column's chunks.
pub(super) enum Data {
    Null,
    W32(Vec<ScalarBuffer<u32>>),
    W64(Vec<ScalarBuffer<u64>>),
    W128(Vec<ScalarBuffer<i128>>),
    W256(Vec<ScalarBuffer<i256>>),
    Bytes(Vec<Bytes>),
    /// One set of records for all chunks together.
    Records(Records),
}

impl Data {
    /// Returns the number of rows of a chunk.
    fn len_of(&self, chunk: usize) -> usize {
        match self {
            Data::W32(chunks) => chunks[chunk].len(),
            Data::W64(chunks) => chunks[chunk].len(),
            Data::W128(chunks) => chunks[chunk].len(),
            Data::W256(chunks) => chunks[chunk].len(),
            Data::Bytes(chunks) => chunks[chunk].len() as usize,
            Data::Null | Data::Records(_) => 0,
        }
    }

    pub(super) fn empty(form: Form) -> Data {
        match form {
            Form::Null => Data::Null,
            Form::Unsigned(..=32) | Form::Signed(..=32) | Form::Float(..=32) => Data::W32(vec![]),
            Form::Unsigned(_) | Form::Signed(_) | Form::Float(_) => Data::W64(vec![]),
            Form::Wide => Data::W128(vec![]),
            Form::Wider => Data::W256(vec![]),
            Form::Bytes | Form::Rows => Data::Bytes(vec![]),
        }
    }
}

impl Column {
    /// Concatenates the validity bitmaps of all chunks.
    fn one_mask(&self) -> Option<NullBuffer> {
        self.nulls.iter().find(|nulls| nulls.is_some())?;
        let mut mask = NullBufferBuilder::new(0);
        for (i, nulls) in self.nulls.iter().enumerate() {
            match nulls {
                Some(nulls) => mask.append_buffer(nulls),
                None => mask.append_n_non_nulls(self.data.len_of(i)),
            }
        }
        mask.finish()
    }
}

/// Copies the values of all chunks into one, if `room` grants the memory.
fn one_chunk<T: ArrowNativeType>(
    cx: &Context<'_>,
    chunks: &[ScalarBuffer<T>],
    room: &mut impl FnMut(u64) -> bool,
) -> Result<Option<Vec<ScalarBuffer<T>>>> {
    if let [only] = chunks {
        return Ok(Some(vec![only.clone()]));
    }
    let rows: usize = chunks.iter().map(|chunk| chunk.len()).sum();
    if !room((rows * size_of::<T>()) as u64) {
        return Ok(None);
    }
    let mut values = Vec::with_capacity(rows);
    for chunk in chunks {
        cx.workers.check()?;
        values.extend_from_slice(chunk);
    }
    Ok(Some(vec![values.into()]))
}

/// Byte strings, and for a dictionary the index of each row's string.
pub(super) struct Bytes {
    pub(super) array: BytesArray,
    pub(super) index: Option<Vec<u32>>,
}

/// The ways in which Arrow stores byte strings.
pub(super) enum BytesArray {
    Small { offsets: OffsetBuffer<i32>, values: Buffer },
    Large { offsets: OffsetBuffer<i64>, values: Buffer },
    View(BinaryViewArray),
    Fixed(FixedSizeBinaryArray),
    Rows(RowSlices),
}

/// A column in row format, converted slice by slice.
pub(super) struct RowSlices {
    /// The parts of each slice, each with the number of its first row in the slice. Without a memory limit, there is
    /// one part. Under a limit, a part ends after about 256 KiB.
    slices: Vec<Vec<(usize, Rows)>>,
    /// All slices except the last one have `1 << shift` rows.
    shift: u32,
    len: usize,
    /// The reservations for long parts.
    pub(super) reserved: Vec<Reservation>,
}

impl RowSlices {
    /// Creates an empty column, for `len` rows in slices of `1 << shift`.
    pub(super) fn new(shift: u32, len: usize) -> RowSlices {
        let slices = Vec::with_capacity((len >> shift) + 1);
        RowSlices { slices, shift, len, reserved: Vec::new() }
    }

    /// Appends a slice. Its parts come with the number of their first row in the slice.
    pub(super) fn push(&mut self, slice: Vec<(usize, Rows)>) {
        self.slices.push(slice);
    }

    #[inline]
    pub(super) fn get(&self, row: usize) -> &[u8] {
        let at = row & ((1 << self.shift) - 1);
        let parts = &self.slices[row >> self.shift];
        let (first, rows) = match &parts[..] {
            [whole] => whole,
            parts => &parts[parts.partition_point(|(first, _)| *first <= at) - 1],
        };
        rows.row(at - first).data()
    }
}

impl BytesArray {
    /// Wraps the bytes of a string or binary array, without copying.
    pub(super) fn new(array: &ArrayRef) -> Result<BytesArray> {
        Ok(match array.data_type() {
            DataType::Utf8 => {
                let array = array.as_string::<i32>();
                let (offsets, values) = (array.offsets().clone(), array.values().clone());
                BytesArray::Small { offsets, values }
            }
            DataType::Binary => {
                let array = array.as_binary::<i32>();
                let (offsets, values) = (array.offsets().clone(), array.values().clone());
                BytesArray::Small { offsets, values }
            }
            DataType::LargeUtf8 => {
                let array = array.as_string::<i64>();
                let (offsets, values) = (array.offsets().clone(), array.values().clone());
                BytesArray::Large { offsets, values }
            }
            DataType::LargeBinary => {
                let array = array.as_binary::<i64>();
                let (offsets, values) = (array.offsets().clone(), array.values().clone());
                BytesArray::Large { offsets, values }
            }
            DataType::Utf8View => BytesArray::View(array.as_string_view().clone().to_binary_view()),
            DataType::BinaryView => BytesArray::View(array.as_binary_view().clone()),
            DataType::FixedSizeBinary(_) => BytesArray::Fixed(array.as_fixed_size_binary().clone()),
            other => {
                return Err(Error::internal(format!("a key column of type {other} has no bytes")));
            }
        })
    }

    pub(super) fn len(&self) -> usize {
        match self {
            BytesArray::Small { offsets, .. } => offsets.len() - 1,
            BytesArray::Large { offsets, .. } => offsets.len() - 1,
            BytesArray::View(array) => array.len(),
            BytesArray::Fixed(array) => array.len(),
            BytesArray::Rows(rows) => rows.len,
        }
    }

    /// Returns the bytes of all strings together. A string counts once per view of it.
    pub(super) fn total_bytes(&self) -> usize {
        fn between<O: ArrowNativeType>(offsets: &[O]) -> usize {
            let at = |offset: Option<&O>| offset.map_or(0, |offset| offset.as_usize());
            at(offsets.last()) - at(offsets.first())
        }
        match self {
            BytesArray::Small { offsets, .. } => between(offsets),
            BytesArray::Large { offsets, .. } => between(offsets),
            // The low 32 bits of a view are its length.
            BytesArray::View(array) => array.views().iter().map(|&view| view as u32 as usize).sum(),
            BytesArray::Fixed(array) => array.len() * array.value_length() as usize,
            BytesArray::Rows(rows) => (0..rows.len).map(|row| rows.get(row).len()).sum(),
        }
    }

    #[inline]
    pub(super) fn get(&self, i: usize) -> &[u8] {
        match self {
            BytesArray::Small { offsets, values } => slice(offsets, values, i),
            BytesArray::Large { offsets, values } => slice(offsets, values, i),
            BytesArray::View(array) => array.value(i),
            BytesArray::Fixed(array) => array.value(i),
            BytesArray::Rows(rows) => rows.get(i),
        }
    }
}

#[inline(always)]
fn slice<'a, O: ArrowNativeType>(offsets: &[O], values: &'a [u8], i: usize) -> &'a [u8] {
    &values[offsets[i].as_usize()..offsets[i + 1].as_usize()]
}

impl Bytes {
    /// Returns the number of rows.
    pub(super) fn len(&self) -> u32 {
        self.index.as_ref().map_or(self.array.len(), Vec::len) as u32
    }

    #[inline]
    pub(super) fn get(&self, row: u32) -> &[u8] {
        match &self.index {
            None => self.array.get(row as usize),
            Some(index) => self.array.get(index[row as usize] as usize),
        }
    }
}

/// A value that is compared with another.
trait Compared: PartialEq {
    /// Returns whether a comparison takes so long that the join must check for cancellation before it.
    #[inline(always)]
    fn is_long(&self) -> bool {
        false
    }
}

impl Compared for u32 {}
impl Compared for u64 {}
impl Compared for i128 {}
impl Compared for i256 {}

impl Compared for &[u8] {
    #[inline(always)]
    fn is_long(&self) -> bool {
        self.len() > 64 << 10
    }
}

/// Looks up the values of a column by location.
trait Lookup: Copy {
    type Value: Compared;
    fn at(self, location: Location) -> Self::Value;
}

/// The only chunk of a fixed-width column.
#[derive(Clone, Copy)]
struct One<'a, T>(&'a [T]);

impl<T: ArrowNativeType + Compared> Lookup for One<'_, T> {
    type Value = T;
    #[inline(always)]
    fn at(self, location: Location) -> T {
        self.0[location.row as usize]
    }
}

/// The chunks of a fixed-width column.
#[derive(Clone, Copy)]
struct Many<'a, T: ArrowNativeType>(&'a [ScalarBuffer<T>]);

impl<T: ArrowNativeType + Compared> Lookup for Many<'_, T> {
    type Value = T;
    #[inline(always)]
    fn at(self, location: Location) -> T {
        self.0[location.batch as usize][location.row as usize]
    }
}

/// The only chunk of a string column with 32-bit offsets.
#[derive(Clone, Copy)]
struct OneSmall<'a>(&'a [i32], &'a [u8]);

impl<'a> Lookup for OneSmall<'a> {
    type Value = &'a [u8];
    #[inline(always)]
    fn at(self, location: Location) -> &'a [u8] {
        slice(self.0, self.1, location.row as usize)
    }
}

/// The only chunk of a string view column.
#[derive(Clone, Copy)]
struct OneView<'a>(&'a BinaryViewArray);

impl<'a> Lookup for OneView<'a> {
    type Value = &'a [u8];
    #[inline(always)]
    fn at(self, location: Location) -> &'a [u8] {
        self.0.value(location.row as usize)
    }
}

/// The chunks of a string column, in any storage.
#[derive(Clone, Copy)]
struct ManyBytes<'a>(&'a [Bytes]);

impl<'a> Lookup for ManyBytes<'a> {
    type Value = &'a [u8];
    #[inline(always)]
    fn at(self, location: Location) -> &'a [u8] {
        self.0[location.batch as usize].get(location.row)
    }
}

impl<'a> Lookup for &'a Records {
    type Value = &'a [u8];
    #[inline(always)]
    fn at(self, location: Location) -> &'a [u8] {
        self.get(location.row)
    }
}

/// The rows to compare: row `a_at[i]` of a column with row `b_at[i]` of another. `a_nulls` and `b_nulls` are
/// the validity of the two columns.
struct RowsToCompare<'a> {
    a_at: &'a [Location],
    b_at: &'a [Location],
    a_nulls: &'a [Option<NullBuffer>],
    b_nulls: &'a [Option<NullBuffer>],
    nulls_equal: bool,
    workers: &'a Workers,
    keep: &'a mut [bool],
}

impl RowsToCompare<'_> {
    fn compare<A: Lookup, B: Lookup<Value = A::Value>>(self, a: A, b: B) -> Result<()> {
        let workers = self.workers;
        let same = |at_a, at_b| {
            let value = a.at(at_a);
            if value.is_long() {
                workers.check()?;
            }
            Ok(value == b.at(at_b))
        };
        let pairs = self.a_at.iter().zip(self.b_at).zip(self.keep.iter_mut());
        let none = |nulls: &[Option<NullBuffer>]| nulls.iter().all(Option::is_none);
        if none(self.a_nulls) && none(self.b_nulls) {
            for ((&at_a, &at_b), keep) in pairs {
                *keep = *keep && same(at_a, at_b)?;
            }
            return Ok(());
        }
        for ((&at_a, &at_b), keep) in pairs.filter(|(_, keep)| **keep) {
            *keep = match (is_valid(self.a_nulls, at_a), is_valid(self.b_nulls, at_b)) {
                (true, true) => same(at_a, at_b)?,
                (false, false) => self.nulls_equal,
                _ => false,
            };
        }
        Ok(())
    }

    /// Compares records with strings.
    fn records(self, a: &Records, b: &[Bytes]) {
        match b {
            [b] => match b.plain() {
                Some(Plain::Small(b)) => self.compare_records(a, b),
                Some(Plain::View(b)) => self.compare_records(a, b),
                None => self.compare_records(a, ManyBytes(std::slice::from_ref(b))),
            },
            b => self.compare_records(a, ManyBytes(b)),
        }
    }

    fn compare_records<'b, B: Lookup<Value = &'b [u8]>>(self, a: &Records, b: B) {
        /// How many rows ahead records are prefetched.
        const AHEAD: usize = 16;
        let none = |nulls: &[Option<NullBuffer>]| nulls.iter().all(Option::is_none);
        let complete = none(self.a_nulls) && none(self.b_nulls);
        self.a_at.iter().take(AHEAD).for_each(|at| a.fetch(at.row));
        for i in 0..self.keep.len() {
            if let Some(at) = self.a_at.get(i + AHEAD) {
                a.fetch(at.row);
            }
            let (at_a, at_b) = (self.a_at[i], self.b_at[i]);
            let same = if complete {
                a.is(at_a.row, b.at(at_b))
            } else {
                match (is_valid(self.a_nulls, at_a), is_valid(self.b_nulls, at_b)) {
                    (true, true) => a.is(at_a.row, b.at(at_b)),
                    (false, false) => self.nulls_equal,
                    _ => false,
                }
            };
            self.keep[i] &= same;
        }
    }

    fn fixed<T: ArrowNativeType + Compared>(
        self,
        a: &[ScalarBuffer<T>],
        b: &[ScalarBuffer<T>],
    ) -> Result<()> {
        match (a, b) {
            ([a], [b]) => self.compare(One(a), One(b)),
            ([a], b) => self.compare(One(a), Many(b)),
            (a, [b]) => self.compare(Many(a), One(b)),
            (a, b) => self.compare(Many(a), Many(b)),
        }
    }

    fn bytes(self, a: &[Bytes], b: &[Bytes]) -> Result<()> {
        match (a, b) {
            ([a], [b]) => match (a.plain(), b.plain()) {
                (Some(Plain::Small(a)), Some(Plain::Small(b))) => self.compare(a, b),
                (Some(Plain::View(a)), Some(Plain::View(b))) => self.compare(a, b),
                _ => self.compare(
                    ManyBytes(std::slice::from_ref(a)),
                    ManyBytes(std::slice::from_ref(b)),
                ),
            },
            (a, [b]) => match b.plain() {
                Some(Plain::Small(b)) => self.compare(ManyBytes(a), b),
                Some(Plain::View(b)) => self.compare(ManyBytes(a), b),
                None => self.compare(ManyBytes(a), ManyBytes(std::slice::from_ref(b))),
            },
            ([a], b) => match a.plain() {
                Some(Plain::Small(a)) => self.compare(a, ManyBytes(b)),
                Some(Plain::View(a)) => self.compare(a, ManyBytes(b)),
                None => self.compare(ManyBytes(std::slice::from_ref(a)), ManyBytes(b)),
            },
            (a, b) => self.compare(ManyBytes(a), ManyBytes(b)),
        }
    }
}

/// A chunk that can be looked up without a branch per row.
enum Plain<'a> {
    Small(OneSmall<'a>),
    View(OneView<'a>),
}

impl Bytes {
    fn plain(&self) -> Option<Plain<'_>> {
        match (&self.array, &self.index) {
            (BytesArray::Small { offsets, values }, None) => {
                Some(Plain::Small(OneSmall(offsets, values)))
            }
            (BytesArray::View(array), None) => Some(Plain::View(OneView(array))),
            _ => None,
        }
    }
}

/// Returns whether the value at a location is not null.
#[inline(always)]
pub(super) fn is_valid(nulls: &[Option<NullBuffer>], at: Location) -> bool {
    nulls[at.batch as usize].as_ref().is_none_or(|nulls| nulls.is_valid(at.row as usize))
}

impl KeyValues {
    /// Returns whether there is one chunk, in which a row's position is its id.
    pub(crate) fn flat(&self) -> bool {
        self.flat
    }

    /// Copies many chunks into one, in a layout for random access, if all columns support that: fixed-width
    /// columns and short strings do.
    pub(crate) fn flatten(&mut self, cx: &Context<'_>, rows: usize) -> Result<()> {
        if u32::try_from(rows).is_err() {
            return Ok(());
        }
        let mut flat = Vec::with_capacity(self.columns.len());
        let mut reserved = Vec::new();
        for column in &self.columns {
            let mut room = |bytes| match cx.budget.reserve(bytes, "key columns in one piece") {
                Ok(reservation) => {
                    reserved.push(reservation);
                    true
                }
                Err(_) => false,
            };
            let data = match &column.data {
                Data::Bytes(chunks) => Records::copy(cx, chunks, rows)?.map(Data::Records),
                Data::Null => Some(Data::Null),
                Data::W32(chunks) => one_chunk(cx, chunks, &mut room)?.map(Data::W32),
                Data::W64(chunks) => one_chunk(cx, chunks, &mut room)?.map(Data::W64),
                Data::W128(chunks) => one_chunk(cx, chunks, &mut room)?.map(Data::W128),
                Data::W256(chunks) => one_chunk(cx, chunks, &mut room)?.map(Data::W256),
                Data::Records(_) => None,
            };
            let Some(data) = data else { return Ok(()) };
            flat.push(Column { form: column.form, data, nulls: vec![column.one_mask()] });
        }
        self.columns = flat;
        self.reserved.extend(reserved);
        self.flat = true;
        Ok(())
    }

    pub(super) fn equal(
        &self,
        a_at: &[Location],
        b: &KeyValues,
        b_at: &[Location],
        (nulls_equal, workers): (bool, &Workers),
        keep: &mut [bool],
    ) -> Result<()> {
        for (a, b) in self.columns.iter().zip(&b.columns) {
            let pairs = RowsToCompare {
                a_at,
                b_at,
                a_nulls: &a.nulls,
                b_nulls: &b.nulls,
                nulls_equal,
                workers,
                keep: &mut *keep,
            };
            match (&a.data, &b.data) {
                (Data::Null, Data::Null) if nulls_equal => {}
                (Data::W32(a), Data::W32(b)) => pairs.fixed(a, b)?,
                (Data::W64(a), Data::W64(b)) => pairs.fixed(a, b)?,
                (Data::W128(a), Data::W128(b)) => pairs.fixed(a, b)?,
                (Data::W256(a), Data::W256(b)) => pairs.fixed(a, b)?,
                (Data::Bytes(a), Data::Bytes(b)) => pairs.bytes(a, b)?,
                (Data::Records(a), Data::Bytes(b)) => pairs.records(a, b),
                (Data::Records(a), Data::Records(b)) => pairs.compare_records(a, b),
                // Both columns come from one plan, so their forms are equal. In this case both are null.
                _ => keep.fill(false),
            }
        }
        Ok(())
    }
}
