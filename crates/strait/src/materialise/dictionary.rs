//! Gathers dictionary arrays, and unifies the dictionaries of a side's chunks.
//!
//! If the dictionaries of all chunks are the same array, or are in the same buffers, only keys are gathered.
//! Otherwise the values in use are merged by content. The result has only values that its rows use. So it has
//! at most as many values as rows, and one row fits any key type.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, DictionaryArray, GenericByteArray, PrimitiveArray,
    new_empty_array,
};
use arrow::datatypes::{
    ArrowDictionaryKeyType, ArrowNativeType, ByteArrayType, DataType, Int8Type, Int16Type,
    Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use arrow_row::{Row, RowConverter, SortField};

use crate::context::Context;
use crate::error::Result;
use crate::materialise::rows::{self, Selection};
use crate::materialise::size;
use crate::memory::Reservation;

/// Calls a function that is generic over the key type.
macro_rules! for_keys {
    ($keys:expr, $function:ident($($argument:expr),*)) => {
        match $keys {
            DataType::Int8 => $function::<Int8Type>($($argument),*),
            DataType::Int16 => $function::<Int16Type>($($argument),*),
            DataType::Int32 => $function::<Int32Type>($($argument),*),
            DataType::Int64 => $function::<Int64Type>($($argument),*),
            DataType::UInt8 => $function::<UInt8Type>($($argument),*),
            DataType::UInt16 => $function::<UInt16Type>($($argument),*),
            DataType::UInt32 => $function::<UInt32Type>($($argument),*),
            _ => $function::<UInt64Type>($($argument),*),
        }
    };
}
pub(super) use for_keys;

/// Gathers the selected rows of dictionary arrays. Fails if there are more distinct values than keys of this
/// type.
pub(super) fn gather(
    keys: &DataType,
    values: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    for_keys!(keys, typed(values, chunks, rows))
}

fn typed<K: ArrowDictionaryKeyType>(
    value_type: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    let dictionaries = as_dictionaries::<K>(chunks);
    let numbers = numbered(&dictionaries);
    if numbers.iter().all(|&number| number == 0) {
        let keys: Vec<_> = dictionaries.iter().map(|d| d.keys() as &dyn Array).collect();
        let keys = rows::gather(&K::DATA_TYPE, &keys, rows)?.as_primitive::<K>().clone();
        let values = match dictionaries.first() {
            Some(dictionary) => Arc::clone(dictionary.values()),
            None => new_empty_array(value_type),
        };
        // SAFETY: the keys belong to dictionaries with these values, or are null.
        return Ok(Arc::new(unsafe { DictionaryArray::<K>::new_unchecked(keys, values) }));
    }
    let merged = Merged::<K>::new(value_type, dictionaries, numbers, rows)?;
    let keys: PrimitiveArray<K> = rows.rows().map(|(chunk, row)| merged.key(chunk, row)).collect();
    Ok(Arc::new(DictionaryArray::<K>::try_new(keys, Arc::clone(&merged.values))?))
}

/// Returns the arrays as dictionaries.
pub(super) fn as_dictionaries<'a, K: ArrowDictionaryKeyType>(
    chunks: &[&'a dyn Array],
) -> Vec<&'a DictionaryArray<K>> {
    chunks.iter().map(|chunk| chunk.as_dictionary::<K>()).collect()
}

/// Numbers the dictionaries. Dictionaries with the same number have the same values in the same memory.
pub(super) fn numbered<K: ArrowDictionaryKeyType>(
    dictionaries: &[&DictionaryArray<K>],
) -> Vec<usize> {
    let mut numbers: Vec<usize> = Vec::with_capacity(dictionaries.len());
    let mut next = 0;
    // Comparing each dictionary with all earlier ones would take quadratic time in the number of chunks. So
    // it is compared only with the first and the most recent one.
    let mut known: [Option<(usize, ArrayData)>; 2] = [None, None];
    for (i, dictionary) in dictionaries.iter().enumerate() {
        let values = dictionary.values();
        if i > 0 && Arc::ptr_eq(values, dictionaries[i - 1].values()) {
            numbers.push(numbers[i - 1]);
            continue;
        }
        let data = values.to_data();
        let same = known.iter().flatten().find(|(_, known)| known.ptr_eq(&data));
        let number = same.map_or(next, |&(number, _)| number);
        next = next.max(number + 1);
        numbers.push(number);
        known[usize::from(i > 0)] = Some((number, data));
    }
    numbers
}

/// Dictionaries that were merged into one.
struct Merged<'a, K: ArrowDictionaryKeyType> {
    dictionaries: Vec<&'a DictionaryArray<K>>,
    numbers: Vec<usize>,
    slots: Slots,
    /// The new key of each slot.
    keys: Vec<K::Native>,
    values: ArrayRef,
}

impl<'a, K: ArrowDictionaryKeyType> Merged<'a, K> {
    /// Merges the values that the rows use.
    fn new(
        value_type: &DataType,
        dictionaries: Vec<&'a DictionaryArray<K>>,
        numbers: Vec<usize>,
        rows: &Selection,
    ) -> Result<Self, ArrowError> {
        let mut slots = Slots::new(&dictionaries, &numbers, rows.len);
        let mut used = Selection::of_chunks(rows.absent);
        for (chunk, row) in rows.rows() {
            let key = dictionaries.get(chunk).and_then(|dictionary| dictionary.key(row));
            if let Some(key) = key
                && slots.take(numbers[chunk], key, used.len)
            {
                used.push(chunk, key, 1);
            }
        }
        let values: Vec<_> = dictionaries.iter().map(|d| d.values().as_ref()).collect();
        let (distinct, keys) = distinct(value_type, &values, &used)?;
        let key =
            |key: usize| K::Native::from_usize(key).ok_or(ArrowError::DictionaryKeyOverflowError);
        let keys = keys.into_iter().map(key).collect::<Result<Vec<_>, _>>()?;
        let values = rows::gather(value_type, &values, &distinct)?;
        Ok(Merged { dictionaries, numbers, slots, keys, values })
    }

    /// Returns the new key of a row; `None` for a null.
    fn key(&self, chunk: usize, row: usize) -> Option<K::Native> {
        let key = self.dictionaries.get(chunk)?.key(row)?;
        self.keys.get(self.slots.get(self.numbers[chunk], key)?).copied()
    }
}

/// A slot number for each value in use, by dictionary and key.
enum Slots {
    /// One entry per value, if most values of the dictionaries are in use.
    Dense(Vec<Vec<u32>>),
    Sparse(HashMap<(usize, usize), usize>),
}

/// Marks a value that is not in use.
const UNUSED: u32 = u32::MAX;

impl Slots {
    fn new<K: ArrowDictionaryKeyType>(
        dictionaries: &[&DictionaryArray<K>],
        numbers: &[usize],
        rows: usize,
    ) -> Self {
        let mut lens = vec![0; numbers.iter().max().map_or(0, |last| last + 1)];
        for (dictionary, &number) in dictionaries.iter().zip(numbers) {
            lens[number] = dictionary.values().len();
        }
        let all: usize = lens.iter().sum();
        match all <= rows.saturating_mul(4).max(1024) && all < UNUSED as usize {
            true => Slots::Dense(lens.into_iter().map(|len| vec![UNUSED; len]).collect()),
            false => Slots::Sparse(HashMap::new()),
        }
    }

    /// Gives a value the next slot, unless it has one. Returns whether it was new.
    fn take(&mut self, number: usize, key: usize, next: usize) -> bool {
        match self {
            Slots::Dense(slots) => {
                let slot = &mut slots[number][key];
                let new = *slot == UNUSED;
                if new {
                    *slot = next as u32;
                }
                new
            }
            Slots::Sparse(slots) => match slots.entry((number, key)) {
                Entry::Occupied(_) => false,
                Entry::Vacant(slot) => {
                    slot.insert(next);
                    true
                }
            },
        }
    }

    fn get(&self, number: usize, key: usize) -> Option<usize> {
        match self {
            Slots::Dense(slots) => Some(slots[number][key] as usize),
            Slots::Sparse(slots) => slots.get(&(number, key)).copied(),
        }
    }
}

/// Returns the distinct values among those in `used`, and for each value the number of its distinct value.
fn distinct(
    value_type: &DataType,
    chunks: &[&dyn Array],
    used: &Selection,
) -> Result<(Selection, Vec<usize>), ArrowError> {
    fn bytes<'a, T: ByteArrayType>(
        chunks: &[&'a dyn Array],
        used: &Selection,
    ) -> Vec<Option<&'a [u8]>> {
        let arrays: Vec<&GenericByteArray<T>> = chunks.iter().map(|c| c.as_bytes()).collect();
        let value = |&(chunk, row): &(usize, usize)| {
            let array = arrays[chunk];
            array.is_valid(row).then(|| AsRef::<[u8]>::as_ref(array.value(row)))
        };
        used.places.iter().map(value).collect()
    }
    macro_rules! value_of {
        ($cast:ident, $bytes:expr) => {{
            let arrays: Vec<_> = chunks.iter().map(|chunk| chunk.$cast()).collect();
            let value = |&(chunk, row): &(usize, usize)| {
                arrays[chunk].is_valid(row).then(|| $bytes(arrays[chunk].value(row)))
            };
            first_of_each(used, used.places.iter().map(value))
        }};
    }
    use arrow::datatypes::{BinaryType, LargeBinaryType, LargeUtf8Type, Utf8Type};
    Ok(match value_type {
        DataType::Utf8 => first_of_each(used, bytes::<Utf8Type>(chunks, used)),
        DataType::LargeUtf8 => first_of_each(used, bytes::<LargeUtf8Type>(chunks, used)),
        DataType::Binary => first_of_each(used, bytes::<BinaryType>(chunks, used)),
        DataType::LargeBinary => first_of_each(used, bytes::<LargeBinaryType>(chunks, used)),
        DataType::Utf8View => value_of!(as_string_view, str::as_bytes),
        DataType::BinaryView => value_of!(as_binary_view, std::convert::identity),
        DataType::FixedSizeBinary(_) => value_of!(as_fixed_size_binary, std::convert::identity),
        DataType::Boolean => value_of!(as_boolean, std::convert::identity),
        other => {
            let fields = vec![SortField::new(other.clone())];
            if !RowConverter::supports_fields(&fields) {
                return Ok(first_of_each(used, 0..used.len));
            }
            let values = rows::gather(other, chunks, used)?;
            let values = RowConverter::new(fields)?.convert_columns(&[values])?;
            first_of_each::<Row<'_>>(used, values.iter())
        }
    })
}

/// Keeps the first of equal values. Returns these, and for each value the number of the kept value that
/// equals it.
fn first_of_each<V: std::hash::Hash + Eq>(
    used: &Selection,
    values: impl IntoIterator<Item = V>,
) -> (Selection, Vec<usize>) {
    let mut kept = Selection::of_chunks(used.absent);
    let mut seen = HashMap::new();
    let number = |(&(chunk, row), value): (&(usize, usize), V)| {
        *seen.entry(value).or_insert_with(|| {
            kept.push(chunk, row, 1);
            kept.len - 1
        })
    };
    let numbers = used.places.iter().zip(values).map(number).collect();
    (kept, numbers)
}

/// Chunks with one dictionary, and the reservation for their additional memory.
pub(super) type Unified = (Vec<ArrayRef>, Reservation);

/// Gives the chunks of a side one dictionary, so that gathering from them copies only keys. Returns `None` if
/// they already have one, if it would have too many values for its keys, or if memory does not suffice. In
/// these cases each output batch has its own dictionary.
pub(super) fn unified(
    cx: &Context<'_>,
    keys: &DataType,
    values: &DataType,
    chunks: &[ArrayRef],
) -> Result<Option<Unified>> {
    let chunks: Vec<&dyn Array> = chunks.iter().map(|chunk| chunk.as_ref()).collect();
    let unified = for_keys!(keys, unify(cx, values, &chunks));
    cx.workers.check().map(|()| unified)
}

/// Also returns `None` if the join was cancelled meanwhile.
fn unify<K: ArrowDictionaryKeyType>(
    cx: &Context<'_>,
    value_type: &DataType,
    chunks: &[&dyn Array],
) -> Option<Unified> {
    let dictionaries = as_dictionaries::<K>(chunks);
    let numbers = numbered(&dictionaries);
    if numbers.iter().all(|&number| number == 0) {
        return None;
    }
    let rows = Selection::whole(chunks);
    let bytes = size::dictionary::<K>(value_type, chunks, &rows);
    let mut reserved = cx.budget.reserve(bytes, "one dictionary for all batches").ok()?;
    let merged = Merged::<K>::new(value_type, dictionaries, numbers, &rows).ok()?;
    let chunk = |(i, chunk): (usize, &&dyn Array)| -> Option<ArrayRef> {
        cx.workers.check().ok()?;
        let keys: PrimitiveArray<K> = (0..chunk.len()).map(|row| merged.key(i, row)).collect();
        let values = Arc::clone(&merged.values);
        Some(Arc::new(DictionaryArray::<K>::try_new(keys, values).ok()?))
    };
    let unified: Vec<ArrayRef> = chunks.iter().enumerate().map(chunk).collect::<Option<_>>()?;
    let keys: usize = rows.len * K::Native::get_byte_width() + rows.len / 8;
    let kept = keys as u64 + size::whole(value_type, &[merged.values.as_ref()]);
    reserved.shrink(bytes.saturating_sub(kept));
    Some((unified, reserved))
}
