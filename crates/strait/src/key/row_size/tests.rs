use std::sync::Arc;

use arrow::array::{
    DictionaryArray, FixedSizeBinaryArray, Float64Array, Int32Array, ListArray, ListViewArray,
    RunArray, StringArray, StringViewBuilder, StructArray,
};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::Field;
use arrow_row::{RowConverter, SortField};
use strait_testkit::domain::{Domain, Style};
use strait_testkit::encode::{blank, encode};
use strait_testkit::{Comparison, Rng, Value, kinds};

use super::*;
use crate::key::pair::unsupported;

fn in_row_format(array: &ArrayRef) -> Option<arrow_row::Rows> {
    let field = SortField::new(array.data_type().clone());
    if unsupported(array.data_type()).is_some() {
        return None;
    }
    let converter = RowConverter::new(vec![field]).ok()?;
    converter.convert_columns(std::slice::from_ref(array)).ok()
}

/// Returns 200 values of a type, nulls among them.
fn array(random: &mut Rng, data_type: &DataType) -> ArrayRef {
    let comparison = Comparison::alone(data_type);
    let domain = Domain::new(random, data_type, comparison, Style::Mixed);
    let mut value = |i: usize| match random.chance(1, 8) {
        true => blank(data_type),
        false => domain.draw(random, i % 9),
    };
    let values: Vec<Value> = (0..200).map(&mut value).collect();
    encode(random, data_type, &comparison, &values)
}

/// Returns structs of the values. Half of the structs are null, and the row format does not write their values.
fn in_null_structs(array: &ArrayRef) -> ArrayRef {
    let field = Arc::new(Field::new("x", array.data_type().clone(), true));
    let nulls = NullBuffer::from_iter((0..array.len()).map(|row| row % 2 == 0));
    Arc::new(StructArray::new(vec![field].into(), vec![ArrayRef::clone(array)], Some(nulls)))
}

/// The sizes are those of the row format, or a little larger, for all types, also of slices.
#[test]
fn sizes_bound_the_row_format() {
    let mut random = Rng::new(11);
    let (mut types, mut real, mut bound) = (0, 0, 0);
    for data_type in kinds::payloads() {
        let whole = array(&mut random, &data_type);
        let masked = in_null_structs(&whole);
        for (array, is_masked) in [
            (whole.slice(0, 200), false),
            (whole.slice(37, 101), false),
            (whole.slice(200, 0), false),
            (masked.slice(0, 200), true),
            (masked.slice(41, 90), true),
        ] {
            let Some(rows) = in_row_format(&array) else { continue };
            types += 1;
            let size = sizes(array.as_ref());
            for (at, row) in rows.iter().enumerate() {
                let (is, most) = (row.data().len(), size.of_row(at));
                assert!(is <= most, "{data_type}: row {at} has {is} bytes, more than {most}");
                // Nulls may hide values that count.
                if !matches!(data_type, DataType::Struct(_)) && !is_masked {
                    (real, bound) = (real + is, bound + most);
                }
            }
            let parts: Vec<_> = parts(array.as_ref(), 0);
            let covered: Vec<_> = parts.iter().flat_map(|part| part.rows.clone()).collect();
            assert_eq!(covered, (0..array.len()).collect::<Vec<_>>());
            let bytes: usize = parts.iter().map(|part| part.bytes).sum();
            assert!(rows.size() <= bytes + 256, "{data_type}");
        }
    }
    assert!(types > 50 && real > 10_000, "{types} types, {real} bytes");
    assert!(bound < real + real / 10, "{bound} bytes instead of {real}");
}

/// Views that share a long string take its bytes once per row.
#[test]
fn shared_values_count_for_each_row() {
    let text = Buffer::from(vec![b'x'; 1 << 16]);
    let mut views = StringViewBuilder::new();
    let block = views.append_block(text);
    for _ in 0..100 {
        views.try_append_view(block, 0, 1 << 16).expect("inside the block");
    }
    let views: ArrayRef = Arc::new(views.finish());
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..100));
    let field =
        |name, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
    let key: ArrayRef = Arc::new(StructArray::from(vec![
        (field("t", &views), views),
        (field("n", &numbers), numbers),
    ]));
    let parts: Vec<_> = parts(key.as_ref(), 0);
    assert!(parts.iter().all(|part| part.rows.len() <= 4 && part.bytes < 2 * PART));
    assert!(parts.iter().map(|part| part.bytes).sum::<usize>() > 100 << 16);
    assert!(inner_bytes(key.as_ref()) > 100 << 16);
}

fn item(values: &ArrayRef) -> Arc<Field> {
    Arc::new(Field::new("item", values.data_type().clone(), true))
}

/// Returns lists of `depth` levels over `n` texts. Each list of a level has all `n` lists of the next level, which are
/// list views, or one list in a run.
fn lists_of_lists(n: usize, depth: usize, is_view: bool) -> ArrayRef {
    let mut array: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..n).map(|i| format!("{i:03}"))));
    for _ in 0..depth {
        array = match is_view {
            true => {
                let (offsets, lens) = (vec![0; n].into(), vec![n as i32; n].into());
                Arc::new(ListViewArray::new(item(&array), offsets, lens, array, None))
            }
            false => {
                let lens = OffsetBuffer::from_lengths([n]);
                let one: ArrayRef = Arc::new(ListArray::new(item(&array), lens, array, None));
                let end = Int32Array::from(vec![n as i32]);
                Arc::new(RunArray::<Int32Type>::try_new(&end, &one).expect("one run"))
            }
        };
    }
    array
}

/// Lists that share elements at many levels: the size of each level is computed once. Adding up all elements that row
/// format writes for 400 entries in six levels would take years.
#[test]
fn shared_levels_are_added_up_once() {
    for is_view in [true, false] {
        for (n, depth) in [(1, 4), (3, 4), (40, 2), (100, 2)] {
            let array = lists_of_lists(n, depth, is_view);
            let rows = in_row_format(&array).expect("lists are supported");
            let real: usize = rows.iter().map(|row| row.data().len()).sum();
            let bound = sizes(array.as_ref()).of_rows(0..n);
            assert!(real <= bound && bound < real + real / 10, "{n} {depth}: {real}, {bound}");
            assert!(sizing_bytes(array.as_ref()) <= 8 * (n + 1) * depth);
            assert!(sizing_bytes(array.as_ref()) < converted(array.as_ref()));
        }
        let array = lists_of_lists(400, 6, is_view);
        let parts = parts(array.as_ref(), 0);
        assert_eq!(parts.len(), 400);
        assert!(parts.iter().all(|part| part.bytes > 400usize.pow(6) * 4));
        assert!(inner_bytes(array.as_ref()) > 400usize.pow(6) * 4);
        // Here the sizes are larger than their type.
        assert_eq!(inner_bytes(lists_of_lists(400, 12, is_view).as_ref()), usize::MAX);
    }
}

/// Any range of elements has the size that the elements have one by one.
#[test]
fn sums_are_those_of_their_elements() {
    let texts = |len: usize| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..len).map(|i| "x".repeat(i * 7 % 50))))
    };
    for len in [1, STEP - 1, STEP, STEP + 1, 3 * STEP, 100] {
        let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..len as i32));
        let offsets = OffsetBuffer::from_lengths((0..len).map(|i| i % 3));
        let inner = texts(offsets.last().copied().unwrap_or(0) as usize);
        let lists: ArrayRef = Arc::new(ListArray::new(item(&inner), offsets, inner, None));
        for array in [numbers, texts(len), lists] {
            let (size, sums) = (sizes(array.as_ref()), Sums::new(array.as_ref()));
            assert_eq!(sums.sums.len(), sums.sums.capacity().min(Sums::count(array.as_ref())));
            for first in 0..=len {
                for end in first..=len {
                    assert_eq!(sums.elements(first, end), elements(&size, first, end));
                }
            }
        }
    }
}

/// The list of parts goes on where it ended.
#[test]
fn many_parts_come_in_several_calls() {
    let wide = FixedSizeBinaryArray::new_null(PART as i32, 2 * PARTS + 100);
    let mut ends = vec![0];
    while ends[ends.len() - 1] < wide.len() {
        let parts = parts(&wide, ends[ends.len() - 1]);
        assert!(!parts.is_empty() && parts.len() <= PARTS);
        ends.push(parts[parts.len() - 1].rows.end);
    }
    assert_eq!(ends, [0, PARTS, 2 * PARTS, wide.len()]);
}

/// Only floats that are copied count: for a slice its own floats, for a dictionary all values.
#[test]
fn copies_of_floats_count() {
    let floats = |zero: f64| -> ArrayRef {
        let floats = (0..1000).map(|i| if i % 10 == 0 { zero } else { f64::from(i) });
        Arc::new(Float64Array::from_iter_values(floats))
    };
    let keys = Int32Array::from_iter_values(0..1000);
    let dictionary =
        |zero| -> ArrayRef { Arc::new(DictionaryArray::new(keys.clone(), floats(zero))) };
    let lists = |zero| -> ArrayRef {
        let values = floats(zero);
        let lens = OffsetBuffer::from_lengths([10; 100]);
        Arc::new(ListArray::new(item(&values), lens, values, None))
    };
    assert_eq!(float_bytes(in_null_structs(&floats(-0.0)).slice(5, 20).as_ref()), 20 * 8);
    assert_eq!(float_bytes(in_null_structs(&dictionary(-0.0)).slice(5, 1).as_ref()), 1000 * 8);
    assert_eq!(float_bytes(lists(-0.0).slice(5, 2).as_ref()), (20 + 3) * 8);
    // These are in numeric form.
    assert_eq!(float_bytes(in_null_structs(&floats(0.0)).as_ref()), 0);
    assert_eq!(float_bytes(in_null_structs(&dictionary(0.0)).as_ref()), 0);
    assert_eq!(float_bytes(in_null_structs(&(Arc::new(keys) as ArrayRef)).as_ref()), 0);
}
