//! Gathers rows of any type from several chunks.
//!
//! Arrow's kernels panic, or copy far more than the requested rows, if several dictionaries are involved, or
//! if run ends or the offsets of nested lists overflow. So nested and encoded types are taken apart here, and
//! Arrow's kernels see only the flat arrays inside:
//!
//! | type | file |
//! | --- | --- |
//! | dictionaries | `dictionary.rs` |
//! | run-end encoded arrays | `runs.rs` |
//! | lists, list views, maps, fixed-size lists | `lists.rs` |
//! | structs, unions, flat arrays | this file |
//!
//! If keys, offsets or run ends overflow, [`too_long`](crate::error::too_long) recognises the error, and the caller tries
//! again with fewer rows.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanBufferBuilder, Capacities, FixedSizeBinaryArray,
    MutableArrayData, StructArray, UnionArray, make_array, new_empty_array, new_null_array,
};
use arrow::buffer::{Buffer, NullBuffer, ScalarBuffer};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Fields, UnionFields, UnionMode};
use arrow::error::ArrowError;

use crate::materialise::{dictionary, lists, runs, size};

/// The rows to gather: an ordered list of stretches, which are consecutive rows of numbered chunks.
#[derive(Debug, Default)]
pub(super) struct Selection {
    /// The chunk and the first row of each stretch. Rows of chunk number `absent` become nulls.
    pub(super) places: Vec<(usize, usize)>,
    /// The length of each stretch. If `None`, each stretch has one row.
    pub(super) lens: Option<Vec<usize>>,
    /// The number of rows.
    pub(super) len: usize,
    /// The number of chunks. As a chunk number, it marks absent rows.
    pub(super) absent: usize,
    /// Whether any row is absent.
    pub(super) any_absent: bool,
}

impl Selection {
    /// Creates an empty selection of single rows from `chunks` chunks.
    pub(super) fn of_chunks(chunks: usize) -> Self {
        Selection { absent: chunks, ..Selection::default() }
    }

    /// Creates an empty selection of stretches from `chunks` chunks.
    pub(super) fn of_stretches(chunks: usize) -> Self {
        Selection { lens: Some(Vec::new()), ..Selection::of_chunks(chunks) }
    }

    /// Creates a selection of `len` absent rows.
    pub(super) fn absent(len: usize) -> Self {
        let mut rows = Selection::of_stretches(0);
        rows.push(0, 0, len);
        rows
    }

    /// Creates a selection of all rows of each chunk, in order.
    pub(super) fn whole(chunks: &[&dyn Array]) -> Self {
        let mut rows = Selection::of_stretches(chunks.len());
        chunks.iter().enumerate().for_each(|(i, chunk)| rows.push(i, 0, chunk.len()));
        rows
    }

    /// Adds a stretch. A selection without lengths accepts only stretches of one row.
    pub(super) fn push(&mut self, chunk: usize, first: usize, len: usize) {
        self.any_absent |= chunk == self.absent && len > 0;
        self.len += len;
        let Some(lens) = &mut self.lens else {
            debug_assert_eq!(len, 1);
            return self.places.push((chunk, first));
        };
        match (self.places.last(), lens.last_mut()) {
            // Adjacent stretches are merged.
            (Some(&(c, f)), Some(l)) if c == chunk && (f + *l == first || c == self.absent) => {
                *l += len;
            }
            _ if len == 0 => {}
            _ => {
                self.places.push((chunk, first));
                lens.push(len);
            }
        }
    }

    /// Returns the chunk, the first row and the length of each stretch.
    pub(super) fn stretches(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let len = |i: usize| self.lens.as_ref().map_or(1, |lens| lens[i]);
        self.places.iter().enumerate().map(move |(i, &(chunk, first))| (chunk, first, len(i)))
    }

    /// Returns the chunk and the row number of each row.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.stretches()
            .flat_map(|(chunk, first, len)| (first..first + len).map(move |i| (chunk, i)))
    }

    /// Returns the stretches of child rows that belong to these rows. `of` maps a stretch of present rows.
    pub(super) fn children(&self, of: impl Fn(usize, usize, usize) -> (usize, usize)) -> Selection {
        let mut children = Selection::of_stretches(self.absent);
        for (chunk, first, len) in self.stretches().filter(|s| s.0 != self.absent) {
            let (first, len) = of(chunk, first, len);
            children.push(chunk, first, len);
        }
        children
    }

    /// Returns the bytes of its vectors.
    pub(super) fn bytes(&self) -> u64 {
        let lens = self.lens.as_ref().map_or(0, |lens| lens.capacity() * size_of::<usize>());
        (self.places.capacity() * size_of::<(usize, usize)>() + lens) as u64
    }
}

/// Returns whether Arrow's kernels gather the type correctly: it is neither nested nor encoded.
pub(super) fn is_flat(data_type: &DataType) -> bool {
    !data_type.is_nested()
        && !matches!(data_type, DataType::Dictionary(..) | DataType::RunEndEncoded(..))
}

/// Gathers the selected rows of the chunks, which all have the given type.
pub(super) fn gather(
    data_type: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    match data_type {
        DataType::Dictionary(keys, values) => dictionary::gather(keys, values, chunks, rows),
        DataType::RunEndEncoded(ends, values) => {
            runs::gather(data_type, ends.data_type(), values.data_type(), chunks, rows)
        }
        DataType::Struct(fields) => structs(fields, chunks, rows),
        DataType::Union(fields, mode) => unions(fields, *mode, chunks, rows),
        nested if nested.is_nested() => lists::gather(nested, chunks, rows),
        flat => self::flat(flat, chunks, rows),
    }
}

/// Returns `len` absent rows.
pub(super) fn absent(data_type: &DataType, len: usize) -> Result<ArrayRef, ArrowError> {
    gather(data_type, &[], &Selection::absent(len))
}

fn flat(
    data_type: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    if let DataType::FixedSizeBinary(width @ ..0) = data_type {
        return Err(ArrowError::InvalidArgumentError(format!("a binary type of {width} bytes")));
    }
    if rows.len == 0 {
        return Ok(new_empty_array(data_type));
    }
    if let DataType::FixedSizeBinary(0) = data_type {
        // Arrow's kernels compute the length from the bytes, of which there are none.
        let nulls = validity(chunks, rows);
        let values = FixedSizeBinaryArray::try_new_with_len(0, Buffer::default(), nulls, rows.len)?;
        return Ok(Arc::new(values));
    }
    if chunks.is_empty() {
        return Ok(new_null_array(data_type, rows.len));
    }
    if rows.lens.is_some() {
        return stretches(data_type, chunks, rows);
    }
    if !rows.any_absent {
        return interleave(chunks, &rows.places);
    }
    let null = new_null_array(data_type, 1);
    let mut with_null = chunks.to_vec();
    with_null.push(null.as_ref());
    // Absent rows have row number 0 of the last chunk, which is this null.
    interleave(&with_null, &rows.places)
}

/// Copies stretches of flat arrays.
fn stretches(
    data_type: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    let data: Vec<_> = chunks.iter().map(|chunk| chunk.to_data()).collect();
    let capacity = match size::text(data_type, chunks, rows) {
        Some(bytes) => Capacities::Binary(rows.len, Some(bytes)),
        None => Capacities::Array(rows.len),
    };
    let mut out =
        MutableArrayData::with_capacities(data.iter().collect(), rows.any_absent, capacity);
    for (chunk, first, len) in rows.stretches() {
        if chunk == rows.absent {
            out.try_extend_nulls(len)?;
        } else {
            out.try_extend(chunk, first, first + len)?;
        }
    }
    Ok(make_array(out.freeze()))
}

/// Returns which rows are not null; `None` if none is null.
pub(super) fn validity(chunks: &[&dyn Array], rows: &Selection) -> Option<NullBuffer> {
    let nulls: Vec<Option<&NullBuffer>> = chunks.iter().map(|chunk| chunk.nulls()).collect();
    if !rows.any_absent && nulls.iter().all(|nulls| nulls.is_none()) {
        return None;
    }
    let mut valid = BooleanBufferBuilder::new(rows.len);
    for (chunk, first, len) in rows.stretches() {
        match nulls.get(chunk) {
            None => valid.append_n(len, false),
            Some(None) => valid.append_n(len, true),
            Some(Some(nulls)) if len == 1 => valid.append(nulls.is_valid(first)),
            Some(Some(nulls)) => valid.append_buffer(&nulls.inner().slice(first, len)),
        }
    }
    Some(NullBuffer::new(valid.finish())).filter(|nulls| nulls.null_count() > 0)
}

fn structs(
    fields: &Fields,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    let column = |i: usize| {
        let columns: Vec<_> = chunks.iter().map(|c| c.as_struct().column(i).as_ref()).collect();
        gather(fields[i].data_type(), &columns, rows)
    };
    let columns = (0..fields.len()).map(column).collect::<Result<Vec<_>, _>>()?;
    let nulls = validity(chunks, rows);
    Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, rows.len)?))
}

fn unions(
    fields: &UnionFields,
    mode: UnionMode,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    let unions = as_unions(chunks)?;
    let ids = type_ids(fields, &unions, rows)?;
    let child = |id: i8, rows: &Selection| {
        let data_type = fields.iter().find(|field| field.0 == id).map(|field| field.1.data_type());
        let children: Vec<_> = unions.iter().map(|union| union.child(id).as_ref()).collect();
        gather(data_type.unwrap_or(&DataType::Null), &children, rows)
    };
    let (offsets, children) = match mode {
        UnionMode::Sparse => {
            let children = fields.iter().map(|(id, _)| child(id, rows));
            (None, children.collect::<Result<Vec<_>, _>>()?)
        }
        UnionMode::Dense => {
            let (offsets, members) = members(fields, &unions, &ids, rows)?;
            let children = members.iter().map(|(id, rows)| child(*id, rows));
            (Some(offsets), children.collect::<Result<Vec<_>, _>>()?)
        }
    };
    Ok(Arc::new(UnionArray::try_new(fields.clone(), ids, offsets, children)?))
}

/// Returns the arrays as unions.
pub(super) fn as_unions<'a>(chunks: &[&'a dyn Array]) -> Result<Vec<&'a UnionArray>, ArrowError> {
    let one = |chunk: &&'a dyn Array| chunk.as_any().downcast_ref::<UnionArray>();
    let all = chunks.iter().map(one).collect::<Option<Vec<_>>>();
    all.ok_or_else(|| ArrowError::InvalidArgumentError("not an array of unions".to_string()))
}

/// Returns the type id of each row. Absent rows have the first type id, because a union has no nulls of its
/// own.
pub(super) fn type_ids(
    fields: &UnionFields,
    unions: &[&UnionArray],
    rows: &Selection,
) -> Result<ScalarBuffer<i8>, ArrowError> {
    let empty = || ArrowError::InvalidArgumentError("a union without members".to_string());
    let first = match fields.iter().next() {
        Some((id, _)) => id,
        None if rows.len == 0 => 0,
        None => return Err(empty()),
    };
    let id = |(chunk, row): (usize, usize)| match unions.get(chunk) {
        Some(union) => union.type_id(row),
        None => first,
    };
    Ok(rows.rows().map(id).collect())
}

/// The type id and the rows of each member of a dense union.
type Members = Vec<(i8, Selection)>;

/// Returns the position of each row of a dense union in its member's array, and the rows of each member.
pub(super) fn members(
    fields: &UnionFields,
    unions: &[&UnionArray],
    ids: &[i8],
    rows: &Selection,
) -> Result<(ScalarBuffer<i32>, Members), ArrowError> {
    let mut members: Members =
        fields.iter().map(|(id, _)| (id, Selection::of_chunks(rows.absent))).collect();
    let mut number = [0usize; 128];
    for (i, (id, _)) in members.iter().enumerate() {
        number[id.unsigned_abs() as usize & 127] = i;
    }
    let mut offsets = Vec::with_capacity(rows.len);
    for ((chunk, row), id) in rows.rows().zip(ids) {
        let member = &mut members[number[id.unsigned_abs() as usize & 127]].1;
        let at = i32::try_from(member.len);
        offsets.push(at.map_err(|_| ArrowError::OffsetOverflowError(member.len))?);
        match unions.get(chunk) {
            Some(union) => member.push(chunk, union.value_offset(row), 1),
            None => member.push(rows.absent, 0, 1),
        }
    }
    Ok((offsets.into(), members))
}
