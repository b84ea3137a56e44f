//! Checks that gathered rows of every type equal the source rows, and take no more memory than was computed.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, Int32Array, ListViewArray, PrimitiveArray, StringArray,
};
use arrow::datatypes::{DataType, Field, Fields, Int8Type};
use strait_testkit::decode::decode_alone;
use strait_testkit::domain::{Domain, Style};
use strait_testkit::encode::{blank, encode};
use strait_testkit::{Comparison, Rng, Value, kinds};

use super::rows::{self, Selection};
use super::size;
use crate::error::too_long;

/// All types that tables can have, and encodings inside nested types.
fn types() -> Vec<DataType> {
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let small = || kinds::dictionary(DataType::Int8, DataType::Utf8View);
    let runs = || kinds::runs(DataType::Int16, small());
    let fields = Fields::from(vec![Field::new("d", small(), true), Field::new("r", runs(), true)]);
    let nested = [
        DataType::Struct(fields.clone()),
        DataType::LargeList(item(small())),
        DataType::FixedSizeList(item(runs()), 2),
        DataType::ListView(item(small())),
        DataType::List(item(DataType::Struct(fields))),
        kinds::dictionary(DataType::UInt16, DataType::List(item(DataType::Utf8))),
        runs(),
    ];
    [kinds::narrow(), kinds::wide(), kinds::exotic(), nested.to_vec()].concat()
}

/// Returns a few arrays of a type, some of them slices.
fn chunks(rng: &mut Rng, data_type: &DataType) -> Vec<ArrayRef> {
    let comparison = Comparison::alone(data_type);
    let style = *rng.pick(&Style::ALL);
    let domain = Domain::new(rng, data_type, comparison, style);
    let count = rng.between(1, 4);
    let chunk = |rng: &mut Rng| {
        let len = rng.between(3, 30);
        let value = |rng: &mut Rng, i| match rng.chance(1, 6) {
            true => blank(data_type),
            false => domain.draw(rng, i),
        };
        let values: Vec<Value> = (0..len).map(|i| value(rng, i % 9)).collect();
        let first = rng.below(3);
        encode(rng, data_type, &comparison, &values).slice(first, len - first)
    };
    (0..count).map(|_| chunk(rng)).collect()
}

/// Returns random rows of the chunks, single or in stretches, some of them absent.
fn selection(rng: &mut Rng, chunks: &[ArrayRef], in_stretches: bool) -> Selection {
    let mut rows = match in_stretches {
        true => Selection::of_stretches(chunks.len()),
        false => Selection::of_chunks(chunks.len()),
    };
    for _ in 0..rng.below(60) {
        let chunk = rng.below(chunks.len() + 1);
        let Some(array) = chunks.get(chunk) else {
            rows.push(chunk, 0, if in_stretches { rng.below(4) } else { 1 });
            continue;
        };
        let first = rng.below(array.len());
        let most = array.len() - first;
        rows.push(chunk, first, if in_stretches { rng.below(most + 1) } else { 1 });
    }
    rows
}

#[test]
fn rows_of_every_type_keep_their_values() {
    for (i, data_type) in types().iter().enumerate() {
        let nothing = decode_alone(&rows::absent(data_type, 1).expect("one absent row"));
        for seed in 0..20 {
            let mut rng = Rng::new(i as u64 * 1000 + seed);
            let chunks = chunks(&mut rng, data_type);
            let rows = selection(&mut rng, &chunks, seed % 2 == 0);
            let arrays: Vec<&dyn Array> = chunks.iter().map(|chunk| chunk.as_ref()).collect();
            let values: Vec<Vec<Value>> = arrays.iter().map(|array| decode_alone(*array)).collect();
            let value =
                |(chunk, row): (usize, usize)| values.get(chunk).map_or(&nothing[0], |v| &v[row]);
            let expected: Vec<Value> = rows.rows().map(|row| value(row).clone()).collect();

            let found = rows::gather(data_type, &arrays, &rows).expect("few rows fit any type");
            let what = format!("{data_type}, seed {seed}");
            assert_eq!(found.data_type(), data_type, "{what}");
            found.to_data().validate_full().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(decode_alone(&found), expected, "{what}");

            // Memory that is shared with the source is not counted, but is part of an array.
            let name = data_type.to_string();
            if !["Dictionary", "View"].iter().any(|shared| name.contains(shared)) {
                let counted = size::of_rows(data_type, &arrays, &rows);
                let taken = found.to_data().get_slice_memory_size().expect("a size");
                assert!(taken as u64 <= counted, "{what}: {taken} taken, {counted} counted");
            }
        }
    }
}

/// Returns a dictionary of `len` texts, numbered from `first` on, each in one row.
fn dictionary(first: usize, len: usize) -> ArrayRef {
    let texts = (first..first + len).map(|i| format!("text {i}"));
    let values: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    let keys = PrimitiveArray::<Int8Type>::from_iter_values((0..len).map(|i| i as i8));
    Arc::new(DictionaryArray::new(keys, values))
}

#[test]
fn too_many_values_for_a_key_are_an_error_that_fewer_rows_avoid() {
    let (a, b) = (dictionary(0, 100), dictionary(90, 38));
    let arrays = [a.as_ref(), b.as_ref()];
    // 128 distinct values fit: 10 of them are in both dictionaries.
    let whole = rows::gather(a.data_type(), &arrays, &Selection::whole(&arrays)).expect("128 fit");
    assert_eq!(whole.len(), 138);
    let c = dictionary(128, 1);
    let arrays = [a.as_ref(), b.as_ref(), c.as_ref()];
    let error = rows::gather(a.data_type(), &arrays, &Selection::whole(&arrays));
    assert!(too_long(&error.expect_err("129 do not fit")));
}

/// Views that overlap: copying each row would take a thousand times the memory of the chunks.
#[test]
fn list_views_that_overlap_are_not_multiplied() {
    let chunk = |first: i32| {
        let values: ArrayRef = Arc::new(Int32Array::from_iter_values(first..first + 1000));
        let item = Arc::new(Field::new("item", DataType::Int32, true));
        let (offsets, sizes) = (vec![0; 1000], vec![1000; 1000]);
        ListViewArray::new(item, offsets.into(), sizes.into(), values, None)
    };
    let (a, b) = (chunk(0), chunk(1000));
    let arrays: [&dyn Array; 2] = [&a, &b];
    let rows = Selection::whole(&arrays);
    let counted = size::of_rows(a.data_type(), &arrays, &rows);
    let found = rows::gather(a.data_type(), &arrays, &rows).expect("it fits");
    let found = found.as_any().downcast_ref::<ListViewArray>().expect("list views");
    assert_eq!(found.values().len(), 2000);
    assert_eq!(found.value(1999).as_ref(), &Int32Array::from_iter_values(1000..2000) as &dyn Array);
    assert!(counted < 100_000, "{counted} bytes counted");
}
