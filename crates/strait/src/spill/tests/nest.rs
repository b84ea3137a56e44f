//! Random arrays of random nested types.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayDataBuilder, ArrayRef, Int32Array, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, UnionFields, UnionMode};
use strait_testkit::domain::{Domain, Style};
use strait_testkit::{Comparison, Rng, Value, encode, kinds};

/// Returns an array of this type with random values and nulls.
pub(super) fn leaves(rng: &mut Rng, data_type: &DataType, rows: usize) -> ArrayRef {
    let comparison = Comparison::alone(data_type);
    let domain = Domain::new(rng, data_type, comparison, Style::Mixed);
    let draw = |i| match rng.chance(1, 4) {
        true => encode::blank(data_type),
        false => domain.draw(rng, i),
    };
    let values: Vec<Value> = (0..rows).map(draw).collect();
    encode::encode(rng, data_type, &comparison, &values)
}

/// Returns an array of any type, nested up to three times, with random rows cut off.
pub(super) fn any(rng: &mut Rng) -> ArrayRef {
    let types = kinds::payloads();
    let data_type = rng.pick(&types).clone();
    let rows = rng.below(60);
    let mut array = leaves(rng, &data_type, rows);
    for _ in 0..rng.below(4) {
        array = cut(rng, &array);
        array = nested(rng, &array);
    }
    cut(rng, &array)
}

pub(super) fn cut(rng: &mut Rng, array: &ArrayRef) -> ArrayRef {
    if rng.chance(1, 3) {
        return Arc::clone(array);
    }
    let start = rng.below(array.len() + 1);
    array.slice(start, rng.below(array.len() - start + 1))
}

/// Returns an array of a type that contains the type of `array`.
fn nested(rng: &mut Rng, array: &ArrayRef) -> ArrayRef {
    let field = odd("x y", array.data_type().clone());
    let data = match rng.below(10) {
        0 => structure(rng, array, field),
        1 => list(rng, array, DataType::List(field), 4),
        2 => list(rng, array, DataType::LargeList(field), 8),
        3 => list_view(rng, array, DataType::ListView(field), 4),
        4 => list_view(rng, array, DataType::LargeListView(field), 8),
        5 => fixed_size_list(rng, array, field),
        6 => map(rng, array, field),
        7 => runs(rng, array, field),
        8 => union(rng, array, field),
        _ => dictionary(rng, array),
    };
    make_array(data.build().expect("a valid array"))
}

/// A nullable field with metadata.
fn odd(name: &str, data_type: DataType) -> FieldRef {
    let metadata = [("unit".to_string(), "µ".to_string())];
    Arc::new(Field::new(name, data_type, true).with_metadata(metadata.into()))
}

fn nulls(rng: &mut Rng, rows: usize) -> Option<NullBuffer> {
    let random =
        |rng: &mut Rng| NullBuffer::from(BooleanBuffer::collect_bool(rows, |_| rng.chance(3, 4)));
    rng.chance(2, 3).then(|| random(rng))
}

fn integers(width: usize, numbers: impl IntoIterator<Item = usize>) -> Buffer {
    let bytes = |number: usize| number.to_le_bytes()[..width].to_vec();
    Buffer::from(numbers.into_iter().flat_map(bytes).collect::<Vec<u8>>().as_slice())
}

fn structure(rng: &mut Rng, array: &ArrayRef, field: FieldRef) -> ArrayDataBuilder {
    let other = Int32Array::from_iter_values(0..array.len() as i32);
    let fields = Fields::from(vec![field, odd("", DataType::Int32)]);
    ArrayData::builder(DataType::Struct(fields))
        .len(array.len())
        .nulls(nulls(rng, array.len()))
        .add_child_data(array.to_data())
        .add_child_data(other.to_data())
}

/// Ascending offsets from a random start.
fn offsets(rng: &mut Rng, end: usize) -> Vec<usize> {
    let mut offsets: Vec<usize> = (0..rng.between(1, 30)).map(|_| rng.below(end + 1)).collect();
    offsets.sort();
    offsets
}

fn list(rng: &mut Rng, array: &ArrayRef, data_type: DataType, width: usize) -> ArrayDataBuilder {
    let offsets = offsets(rng, array.len());
    let rows = offsets.len() - 1;
    ArrayData::builder(data_type)
        .len(rows)
        .nulls(nulls(rng, rows))
        .add_buffer(integers(width, offsets))
        .add_child_data(array.to_data())
}

fn list_view(
    rng: &mut Rng,
    array: &ArrayRef,
    data_type: DataType,
    width: usize,
) -> ArrayDataBuilder {
    let rows = rng.below(30);
    let starts: Vec<usize> = (0..rows).map(|_| rng.below(array.len() + 1)).collect();
    let size = |start: &usize| rng.below((array.len() - start).min(5) + 1);
    let sizes: Vec<usize> = starts.iter().map(size).collect();
    ArrayData::builder(data_type)
        .len(rows)
        .nulls(nulls(rng, rows))
        .add_buffer(integers(width, starts))
        .add_buffer(integers(width, sizes))
        .add_child_data(array.to_data())
}

fn fixed_size_list(rng: &mut Rng, array: &ArrayRef, field: FieldRef) -> ArrayDataBuilder {
    let size = rng.between(1, 3);
    let rows = array.len() / size;
    ArrayData::builder(DataType::FixedSizeList(field, size as i32))
        .len(rows)
        .nulls(nulls(rng, rows))
        .add_child_data(array.slice(0, rows * size).to_data())
}

fn map(rng: &mut Rng, array: &ArrayRef, field: FieldRef) -> ArrayDataBuilder {
    let keys = Int32Array::from_iter_values(0..array.len() as i32);
    let fields =
        Fields::from(vec![Field::new("k", DataType::Int32, false), field.as_ref().clone()]);
    let entries = ArrayData::builder(DataType::Struct(fields.clone()))
        .len(array.len())
        .add_child_data(keys.to_data())
        .add_child_data(array.to_data());
    let entries = make_array(entries.build().expect("entries"));
    let field = Arc::new(Field::new("pairs", DataType::Struct(fields), false));
    list(rng, &entries, DataType::Map(field, rng.clone().chance(1, 2)), 4)
}

fn runs(rng: &mut Rng, array: &ArrayRef, field: FieldRef) -> ArrayDataBuilder {
    let (ends_type, width) =
        *rng.pick(&[(&DataType::Int16, 2), (&DataType::Int32, 4), (&DataType::Int64, 8)]);
    let mut end = 0;
    let grow = |_| {
        end += rng.between(1, 3);
        end
    };
    let ends = integers(width, (0..array.len()).map(grow).collect::<Vec<_>>());
    let ends = ArrayData::builder(ends_type.clone()).len(array.len()).add_buffer(ends);
    let ends_field = Arc::new(Field::new("ends", ends_type.clone(), false));
    ArrayData::builder(DataType::RunEndEncoded(ends_field, field))
        .len(end)
        .add_child_data(ends.build().expect("run ends"))
        .add_child_data(array.to_data())
}

fn union(rng: &mut Rng, array: &ArrayRef, field: FieldRef) -> ArrayDataBuilder {
    let dense = rng.chance(1, 2);
    let other: ArrayRef = Arc::new(Int32Array::from_iter_values(0..array.len() as i32));
    let fields = [odd("other", DataType::Int32), field];
    let fields = UnionFields::try_new([9, 4], fields).expect("distinct type ids");
    let rows = if array.is_empty() {
        0
    } else if dense {
        rng.below(40)
    } else {
        array.len()
    };
    let ids: Vec<usize> = (0..rows).map(|_| *rng.pick(&[9, 4])).collect();
    let mode = if dense { UnionMode::Dense } else { UnionMode::Sparse };
    let mut data =
        ArrayData::builder(DataType::Union(fields, mode)).len(rows).add_buffer(integers(1, ids));
    if dense {
        data = data
            .add_buffer(integers(4, (0..rows).map(|_| rng.below(array.len())).collect::<Vec<_>>()));
    }
    data.add_child_data(other.to_data()).add_child_data(array.to_data())
}

fn dictionary(rng: &mut Rng, array: &ArrayRef) -> ArrayDataBuilder {
    use DataType::*;
    let keys = [
        (Int8, 1),
        (UInt8, 1),
        (Int16, 2),
        (UInt16, 2),
        (Int32, 4),
        (UInt32, 4),
        (Int64, 8),
        (UInt64, 8),
    ];
    let (key, width) = rng.pick(&keys).clone();
    let values = array.slice(0, array.len().min(100));
    let rows = if values.is_empty() { 0 } else { rng.below(80) };
    ArrayData::builder(Dictionary(Box::new(key), Box::new(array.data_type().clone())))
        .len(rows)
        .nulls(nulls(rng, rows))
        .add_buffer(integers(width, (0..rows).map(|_| rng.below(values.len())).collect::<Vec<_>>()))
        .add_child_data(values.to_data())
}
