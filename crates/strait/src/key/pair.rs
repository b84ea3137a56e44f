//! One pair of key columns, and how its values reach the word or the verification.
//!
//! A [`KeyColumn`] has the indices of its columns on both sides, their common form, and their field in a
//! packed word. It peels an array, and passes its values on: to be packed, to be hashed, or to be kept for
//! verification.
//!
//! A batch may have millions of rows, and a conversion may take microseconds per row. So columns are converted in
//! slices. Under a memory limit, slices of nested values are converted in shorter [parts](row_size::parts). The
//! conversion checks for cancellation between slices or parts. Memory for parts that are kept is reserved: for a long
//! part before its conversion, for a short part after it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::buffer::ScalarBuffer;
use arrow::compute::SortOptions;
use arrow::datatypes::{ArrowNativeType, DataType, Field, IntervalUnit, i256};
use arrow_row::{RowConverter, Rows, SortField};

use super::column::{Conversion, Peeled, Sink, native, read, read_wide, read_wider};
use super::common_form::{Form, common_type, peeled_type};
use super::float;
use super::hash::Hash;
use super::pack::{self, Pack};
use super::reserve::with_reserved;
use super::row_size;
use super::seed::Seed;
use super::slices::{self, Between};
use super::verify::{Bytes, BytesArray, Column, Data, RowSlices};
use crate::error::{Error, Result};
use crate::memory::{Budget, Reservation};
use crate::options::{FloatEquality, NullEquality, Side};
use crate::schedule::Workers;
use crate::word::KeyWord;

/// Which nulls and which floats are equal.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Equality {
    pub(crate) nulls: NullEquality,
    pub(crate) floats: FloatEquality,
}

impl From<NullEquality> for Equality {
    fn from(nulls: NullEquality) -> Self {
        Equality { nulls, ..Equality::default() }
    }
}

/// The workers whose cancellation ends a conversion, and the budget that it reserves memory in.
pub(super) type With<'a> = (&'a Workers, &'a Arc<Budget>);

/// A pair of key columns. Arrays of two have the left side first.
pub(super) struct KeyColumn {
    pub(super) indices: [usize; 2],
    pub(super) types: [DataType; 2],
    pub(super) form: Form,
    factors: [i256; 2],
    floats: FloatEquality,
    /// The type that replaces a column of type null.
    pub(super) plain_type: DataType,
    converters: Option<[RowConverter; 2]>,
    /// Whether nested values contain floats that must be converted to numeric form.
    floats_inside: bool,
    /// The field in a packed word.
    pub(super) field: pack::Field,
    /// Whether each side may have nulls, by its schema.
    nullable: [bool; 2],
}

pub(super) fn part(side: Side) -> usize {
    match side {
        Side::Left => 0,
        Side::Right => 1,
    }
}

/// Returns whether a column can have nulls, by its schema. The schema does not tell about nulls in the values
/// of a dictionary or of runs.
fn nullable(field: &Field) -> bool {
    let encoded = matches!(
        field.data_type(),
        DataType::Dictionary(..) | DataType::RunEndEncoded(..) | DataType::Null
    );
    field.is_nullable() || encoded
}

/// Returns whether the buffer of an array of this type already has the values that [`read`] would return,
/// with `bits` bits each. For floats, the caller must also check that they are in numeric form.
fn is_as_read(data_type: &DataType, form: Form, factor: i256, bits: u32) -> bool {
    let plain = !matches!(data_type, DataType::Interval(IntervalUnit::DayTime));
    let width = data_type.primitive_width() == Some(bits as usize / 8);
    plain && width && form.bits() == Some(bits) && factor == i256::ONE
}

/// Collects values, converted to the width of the form.
struct Collect<'a, T>(&'a mut Vec<T>, fn(u64) -> T);

impl<T> Sink for Collect<'_, T> {
    fn take(self, values: impl Iterator<Item = u64>) {
        self.0.extend(values.map(self.1));
    }
}

impl KeyColumn {
    pub(super) fn new(
        indices: [usize; 2],
        fields: [&Field; 2],
        equality: Equality,
    ) -> Result<KeyColumn> {
        let [left, right] = fields;
        let [l, r] = fields.map(|field| peeled_type(field.data_type()));
        let common = common_type(l, r).ok_or_else(|| Error::KeyTypes {
            left: left.name().clone(),
            left_type: left.data_type().clone(),
            right: right.name().clone(),
            right_type: right.data_type().clone(),
        })?;
        let plain_type = if l == &DataType::Null { r } else { l };
        let converters = match common.form {
            Form::Rows => {
                let or = |t: &DataType| if t.is_null() { plain_type.clone() } else { t.clone() };
                Some([converter(Side::Left, left, or(l))?, converter(Side::Right, right, or(r))?])
            }
            _ => None,
        };
        let nulls_equal = equality.nulls == NullEquality::Equal;
        let numeric = equality.floats == FloatEquality::Numeric;
        let null_bit =
            nulls_equal && common.form != Form::Null && nullable(left) && nullable(right);
        let bits = common.form.bits().unwrap_or(0);
        Ok(KeyColumn {
            indices,
            types: [left.data_type().clone(), right.data_type().clone()],
            form: common.form,
            factors: common.factors,
            plain_type: plain_type.clone(),
            floats: equality.floats,
            floats_inside: numeric && converters.is_some() && float::has_floats(plain_type),
            converters,
            field: pack::Field { form: common.form, bits, null_bit, before: 0 },
            nullable: [nullable(left), nullable(right)],
        })
    }

    /// Returns whether a side's values are encoded, for example in a dictionary.
    pub(super) fn encoded(&self, side: Side) -> bool {
        !self.types[part(side)].is_primitive()
    }

    /// Returns the column of a batch, without its encoding.
    pub(super) fn peel(&self, side: Side, batch: &RecordBatch) -> Result<Peeled> {
        self.peel_array(side, batch.columns().get(self.indices[part(side)]))
    }

    /// Returns the given column of a side, without its encoding.
    pub(super) fn peel_array(&self, side: Side, array: Option<&ArrayRef>) -> Result<Peeled> {
        let (index, expected) = (self.indices[part(side)], &self.types[part(side)]);
        let Some(array) = array.filter(|array| array.data_type().equals_datatype(expected)) else {
            let found = array.map_or("none".to_string(), |array| array.data_type().to_string());
            let detail = format!("key column {index} should be {expected} and is {found}");
            return Err(Error::SchemaChanged { side: side.name(), detail });
        };
        // Strings keep their index: gathering them could exceed the range of offsets.
        let compact = self.form != Form::Bytes;
        Ok(Peeled::new(array, compact)?.standing_in(&self.plain_type))
    }

    /// Passes the values, in a form of at most 64 bits, to a sink.
    fn feed<S: Sink>(&self, side: Side, peeled: &Peeled, sink: S) -> Result<()> {
        let factor = self.factors[part(side)];
        let conversion = Conversion { form: self.form, factor, floats: self.floats };
        let Some(index) = &peeled.index else {
            return read(peeled.values.as_ref(), conversion, sink);
        };
        let mut values = Vec::with_capacity(peeled.values.len());
        read(peeled.values.as_ref(), conversion, Collect(&mut values, |v| v))?;
        sink.take(index.iter().map(|&i| values[i as usize]));
        Ok(())
    }

    /// Returns whether a side may have nulls, by its schema.
    pub(super) fn may_have_nulls(&self, side: Side) -> bool {
        self.nullable[part(side)]
    }

    /// Returns whether the values in a side's buffer, except nulls, already are words of `bits` bits apart
    /// from a bias.
    pub(super) fn fills(&self, side: Side, bits: u32) -> bool {
        is_as_read(&self.types[part(side)], self.form, self.factors[part(side)], bits)
    }

    /// Returns the buffer with the values, if they have no nulls and already are words apart from a bias.
    pub(super) fn unbiased_values<K: KeyWord + ArrowNativeType>(
        &self,
        side: Side,
        peeled: &Peeled,
    ) -> Option<ScalarBuffer<K>> {
        let all = peeled.index.is_none() && peeled.nulls.is_none();
        (self.fills(side, K::BITS) && all).then(|| native(peeled.values.as_ref()))
    }

    pub(super) fn pack<K: KeyWord>(
        &self,
        side: Side,
        peeled: Peeled,
        out: &mut Vec<K>,
    ) -> Result<()> {
        let nulls = peeled.nulls.as_ref();
        self.feed(side, &peeled, Pack { field: self.field, nulls, out })
    }

    pub(super) fn hash<K: KeyWord>(
        &self,
        side: Side,
        mut peeled: Peeled,
        (number, seed): (usize, &Seed),
        (nulls_equal, with): (bool, With<'_>),
        out: &mut Vec<K>,
    ) -> Result<()> {
        let nulls = peeled.nulls.take().filter(|_| nulls_equal);
        let secrets = seed.secrets();
        let hash = Hash { of: secrets.of_column(number), nulls: nulls.as_ref(), out };
        match (self.form, &self.converters) {
            (_, Some(converters)) => {
                let mut hashes = Vec::with_capacity(peeled.values.len());
                for slice in slices::of_nested(&peeled.values) {
                    self.convert(&converters[part(side)], &slice, with, |_, rows, _reserved| {
                        hashes.extend(rows.iter().map(|row| secrets.bytes(row.data())));
                        drop(rows);
                        Ok(())
                    })?;
                }
                match &peeled.index {
                    None => hash.values(hashes.into_iter()),
                    Some(index) => hash.values(index.iter().map(|&i| hashes[i as usize])),
                }
            }
            (Form::Bytes, _) => hash.bytes(&self.bytes(peeled)?, with.0)?,
            (Form::Wide, _) => {
                let values = self.wide(side, &peeled, &mut |_| with.0.check())?;
                hash.values(values.iter().map(|v| secrets.bytes(&v.to_le_bytes())))
            }
            (Form::Wider, _) => {
                let values = self.wider(side, &peeled, &mut |_| with.0.check())?;
                hash.values(values.iter().map(|v| secrets.bytes(&v.to_le_bytes())))
            }
            _ => self.feed(side, &peeled, hash)?,
        }
        Ok(())
    }

    /// Returns byte strings, which are neither copied nor converted.
    fn bytes(&self, peeled: Peeled) -> Result<Bytes> {
        Ok(Bytes { array: BytesArray::new(&peeled.values)?, index: peeled.index })
    }

    /// Converts nested values to row format, to be kept. Passes the bytes of each part to `between`. A long part instead
    /// keeps the reservation of its conversion, so that its rows are reserved at any time.
    fn rows(
        &self,
        converter: &RowConverter,
        values: &ArrayRef,
        between: Between<'_>,
        with: With<'_>,
    ) -> Result<RowSlices> {
        let mut kept = RowSlices::new(slices::shift(values), values.len());
        for slice in slices::of_nested(values) {
            let mut parts = Vec::with_capacity(1);
            self.convert(converter, &slice, with, |first, rows, reserved| {
                match reserved {
                    Some(mut reserved) => {
                        reserved.shrink(reserved.bytes().saturating_sub(rows.size() as u64));
                        kept.reserved.push(reserved);
                        between(0)?;
                    }
                    None => between(rows.size())?,
                }
                parts.push((first, rows));
                Ok(())
            })?;
            kept.push(parts);
        }
        Ok(kept)
    }

    /// Converts a slice of nested values to row format: under a memory limit part by part, otherwise as a whole. Passes
    /// the first row of each part, its converted rows, and the memory that is reserved for them to `take`. Checks for
    /// cancellation before each part.
    ///
    /// Under a limit, this [reserves](with_reserved) memory before the conversion of a long part. Most parts are short.
    fn convert(
        &self,
        converter: &RowConverter,
        slice: &ArrayRef,
        (workers, budget): With<'_>,
        mut take: impl FnMut(usize, Rows, Option<Reservation>) -> Result<()>,
    ) -> Result<()> {
        let convert = |array: &ArrayRef| {
            let numeric = match self.floats_inside {
                true => float::numeric_floats(array),
                false => Ok(ArrayRef::clone(array)),
            };
            let rows = numeric.and_then(|array| converter.convert_columns(&[array]));
            rows.map_err(Error::arrow("cannot bring a key column into row format"))
        };
        workers.check()?;
        if budget.unlimited() {
            return take(0, convert(slice)?, None);
        }
        let mut first = 0;
        while first < slice.len() {
            let list = |_| Ok(row_size::parts(slice.as_ref(), first));
            for part in with_reserved(budget, row_size::sizing_bytes(slice.as_ref()), list)? {
                workers.check()?;
                let array = slice.slice(part.rows.start, part.rows.len());
                let bytes = self.conversion_bytes(array.as_ref(), budget)?;
                with_reserved(budget, bytes.saturating_add(part.bytes), |reserved| {
                    take(part.rows.start, convert(&array)?, reserved)
                })?;
                first = part.rows.end;
            }
        }
        Ok(())
    }

    /// Returns the bytes that the conversion of nested values to row format takes in addition to its result.
    fn conversion_bytes(&self, array: &dyn Array, budget: &Arc<Budget>) -> Result<usize> {
        let inner = |_| Ok(row_size::inner_bytes(array));
        let inner = with_reserved(budget, row_size::sizing_bytes(array), inner)?;
        let floats = if self.floats_inside { row_size::float_bytes(array) } else { 0 };
        Ok(inner.saturating_add(floats))
    }

    fn wide(
        &self,
        side: Side,
        peeled: &Peeled,
        between: Between<'_>,
    ) -> Result<ScalarBuffer<i128>> {
        let factor = self.factors[part(side)];
        let read = |slice: &ArrayRef| read_wide(slice.as_ref(), factor);
        let values = match self.lies_wide(side, &peeled.values) {
            true => read(&peeled.values)?,
            false => slices::read(&peeled.values, between, read)?,
        };
        Ok(gather(values, peeled.index.as_deref()))
    }

    fn wider(
        &self,
        side: Side,
        peeled: &Peeled,
        between: Between<'_>,
    ) -> Result<ScalarBuffer<i256>> {
        let factor = self.factors[part(side)];
        let read = |slice: &ArrayRef| read_wider(slice.as_ref(), factor);
        let values = match self.lies_wide(side, &peeled.values) {
            true => read(&peeled.values)?,
            false => slices::read(&peeled.values, between, read)?,
        };
        Ok(gather(values, peeled.index.as_deref()))
    }

    /// Returns whether values of more than 64 bits can be used as they are in their array.
    fn lies_wide(&self, side: Side, values: &ArrayRef) -> bool {
        let own = match self.form {
            Form::Wide => matches!(values.data_type(), DataType::Decimal128(..)),
            _ => matches!(values.data_type(), DataType::Decimal256(..)),
        };
        own && self.factors[part(side)] == i256::ONE
    }

    fn collect<T: ArrowNativeType>(
        &self,
        side: Side,
        peeled: &Peeled,
        between: Between<'_>,
        narrow: fn(u64) -> T,
    ) -> Result<ScalarBuffer<T>> {
        let rows = peeled.index.as_ref().map_or(peeled.values.len(), Vec::len);
        between(rows * size_of::<T>())?;
        let mut values = Vec::with_capacity(rows);
        if peeled.index.is_some() {
            self.feed(side, peeled, Collect(&mut values, narrow))?;
            return Ok(values.into());
        }
        for slice in slices::of(&peeled.values, slices::ROWS) {
            between(0)?;
            let slice = Peeled { values: slice, index: None, nulls: None };
            self.feed(side, &slice, Collect(&mut values, narrow))?;
        }
        Ok(values.into())
    }

    /// Appends a batch's values. Passes the bytes that they take beyond the batch's own buffers to `between`,
    /// as early as they are known.
    pub(super) fn append(
        &self,
        side: Side,
        batch: &RecordBatch,
        column: &mut Column,
        (between, with): (Between<'_>, With<'_>),
    ) -> Result<()> {
        let peeled = self.peel(side, batch)?;
        let rows = batch.num_rows();
        let own = batch.column(self.indices[part(side)]);
        let nulls = peeled.nulls.clone();
        let nulls_bytes = match (&nulls, own.nulls()) {
            (Some(nulls), Some(own)) if nulls.buffer().ptr_eq(own.buffer()) => 0,
            (Some(nulls), _) => nulls.buffer().len(),
            (None, _) => 0,
        };
        between(nulls_bytes)?;
        let factor = self.factors[part(side)];
        let plain = |bits| {
            peeled.index.is_none()
                && is_as_read(peeled.values.data_type(), self.form, factor, bits)
                && (self.floats == FloatEquality::Total || float::all_numeric(&peeled.values))
        };
        let plain_wide = peeled.index.is_none() && self.lies_wide(side, &peeled.values);
        match &mut column.data {
            // Records are made from chunks. Nothing is appended to them.
            Data::Null | Data::Records(_) => {}
            Data::W32(chunks) if plain(32) => {
                between(push(chunks, native(peeled.values.as_ref()), own))?
            }
            Data::W32(chunks) => {
                chunks.push(self.collect(side, &peeled, between, |v| v as u32)?);
            }
            Data::W64(chunks) if plain(64) => {
                between(push(chunks, native(peeled.values.as_ref()), own))?
            }
            Data::W64(chunks) => chunks.push(self.collect(side, &peeled, between, |v| v)?),
            Data::W128(chunks) => {
                between(if plain_wide { 0 } else { rows * size_of::<i128>() })?;
                let bytes = push(chunks, self.wide(side, &peeled, between)?, own);
                between(if plain_wide { bytes } else { 0 })?;
            }
            Data::W256(chunks) => {
                between(if plain_wide { 0 } else { rows * size_of::<i256>() })?;
                let bytes = push(chunks, self.wider(side, &peeled, between)?, own);
                between(if plain_wide { bytes } else { 0 })?;
            }
            Data::Bytes(chunks) => {
                let index_bytes = peeled.index.as_ref().map_or(0, |index| 4 * index.capacity());
                between(index_bytes)?;
                chunks.push(match &self.converters {
                    None => self.bytes(peeled)?,
                    Some(converters) => {
                        let converter = &converters[part(side)];
                        let rows = self.rows(converter, &peeled.values, between, with)?;
                        Bytes { array: BytesArray::Rows(rows), index: peeled.index }
                    }
                });
            }
        }
        column.nulls.push(nulls);
        Ok(())
    }
}

/// Appends a chunk and returns its size; 0 if it is the array's own buffer.
fn push<T: ArrowNativeType>(
    chunks: &mut Vec<ScalarBuffer<T>>,
    values: ScalarBuffer<T>,
    array: &dyn Array,
) -> usize {
    let data = array.to_data();
    let own = data.buffers().iter().any(|buffer| buffer.data_ptr() == values.inner().data_ptr());
    let bytes = if own { 0 } else { values.inner().len() };
    chunks.push(values);
    bytes
}

fn gather<T: ArrowNativeType>(values: ScalarBuffer<T>, index: Option<&[u32]>) -> ScalarBuffer<T> {
    match index {
        None => values,
        Some(index) => index.iter().map(|&i| values[i as usize]).collect(),
    }
}

/// Creates a converter from nested values to row format.
fn converter(side: Side, field: &Field, plain: DataType) -> Result<RowConverter> {
    let refuse = |why: String| Error::KeyType {
        side: side.name(),
        name: field.name().clone(),
        data_type: field.data_type().clone(),
        why,
    };
    if let Some(why) = unsupported(&plain) {
        return Err(refuse(why.to_string()));
    }
    let options = SortOptions { descending: false, nulls_first: false };
    RowConverter::new(vec![SortField::new_with_options(plain, options)])
        .map_err(|error| refuse(error.to_string()))
}

/// Returns why the row format cannot encode the type exactly, if it cannot.
pub(super) fn unsupported(data_type: &DataType) -> Option<&'static str> {
    match data_type {
        DataType::Struct(fields) if fields.is_empty() => {
            Some("a struct without fields has no value")
        }
        DataType::Struct(fields) => fields.iter().find_map(|f| unsupported(f.data_type())),
        DataType::Union(fields, _) => fields.iter().find_map(|(_, f)| unsupported(f.data_type())),
        DataType::List(f)
        | DataType::LargeList(f)
        | DataType::ListView(f)
        | DataType::LargeListView(f)
        | DataType::FixedSizeList(f, _)
        | DataType::Map(f, _) => unsupported(f.data_type()),
        DataType::Dictionary(_, values) => unsupported(values),
        DataType::RunEndEncoded(_, values) => unsupported(values.data_type()),
        _ => None,
    }
}
