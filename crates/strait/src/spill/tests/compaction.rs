//! A block has no bytes of rows that are not written.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, DictionaryArray, Int32Array, ListArray, ListViewArray, RecordBatch,
    StringArray, StringViewArray, StructArray, UnionArray,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Int32Type, UnionFields};
use strait_testkit::decode::decode_alone;

use super::block;

const LONG: usize = 1000;

/// 10 MB of texts that are not inlined.
fn texts() -> StringViewArray {
    StringViewArray::from_iter_values((0..10_000).map(|i| format!("{i:0LONG$}")))
}

/// Encodes ten rows. The result must be small, and must have the same values.
fn ten_rows_are_small(array: ArrayRef) -> RecordBatch {
    let rows = array.slice(array.len() / 2, 10);
    let batch = RecordBatch::try_from_iter([("c", rows)]).expect("one column");
    let block = block(&batch);
    assert!(
        block.bytes().len() < 64 << 10,
        "{} has {} bytes",
        array.data_type(),
        block.bytes().len()
    );
    let decoded = block.decode(batch.schema_ref()).expect("decodes");
    assert_eq!(decode_alone(batch.column(0)), decode_alone(decoded.column(0)));
    decoded
}

#[test]
fn views_do_not_drag_their_buffers_along() {
    let texts: ArrayRef = Arc::new(texts());
    ten_rows_are_small(Arc::clone(&texts));
    let field = Arc::new(Field::new("t", DataType::Utf8View, true));
    let structure = StructArray::from(vec![(Arc::clone(&field), Arc::clone(&texts))]);
    ten_rows_are_small(Arc::new(structure));
    let offsets = OffsetBuffer::from_lengths(vec![2; 5000]);
    let list = ListArray::new(Arc::clone(&field), offsets, Arc::clone(&texts), None);
    ten_rows_are_small(Arc::new(list));
    let keys = Int32Array::from_iter_values((0..100).map(|i| i * 100));
    ten_rows_are_small(Arc::new(DictionaryArray::new(keys, texts)));
}

/// A gather may repeat a view many times without repeating its bytes.
#[test]
fn views_that_share_bytes_are_not_multiplied() {
    let one = StringViewArray::from_iter_values([format!("{:0LONG$}", 1)]);
    let views = ScalarBuffer::from(vec![one.views()[0]; 10_000]);
    let many = StringViewArray::new(views, one.data_buffers().to_vec(), None);
    let batch =
        RecordBatch::try_from_iter([("c", Arc::new(many) as ArrayRef)]).expect("one column");
    assert!(block(&batch).bytes().len() < 10_000 * 16 + 4096);
}

/// A dictionary loses unused values also if there are fewer values than rows.
#[test]
fn dictionaries_with_fewer_values_than_rows() {
    let values: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..100).map(|i| format!("{i:0LONG$}"))));
    let bytes = |used: i32| {
        let keys: Int32Array = (0..200).map(|row| Some(row % used)).collect();
        let column: ArrayRef = Arc::new(DictionaryArray::new(keys, Arc::clone(&values)));
        let batch = RecordBatch::try_from_iter([("c", column)]).expect("one column");
        let block = block(&batch);
        let decoded = block.decode(batch.schema_ref()).expect("decodes");
        assert_eq!(decode_alone(batch.column(0)), decode_alone(decoded.column(0)));
        block.bytes().len()
    };
    assert!(bytes(7) < 10 * LONG + 4096 && bytes(100) > 100 * LONG);
}

#[test]
fn dictionaries_keep_only_used_values() {
    let values: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..10_000).map(|i| format!("{i:0LONG$}"))));
    let keys: Int32Array = (0..10_000).map(|i| (i % 3 > 0).then_some(9_999 - i)).collect();
    let decoded = ten_rows_are_small(Arc::new(DictionaryArray::new(keys, values)));
    assert!(decoded.column(0).as_dictionary::<Int32Type>().values().len() <= 7);
}

#[test]
fn list_views_and_unions_keep_only_used_values() {
    let values: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..10_000).map(|i| format!("{i:0LONG$}"))));
    let field = Arc::new(Field::new("t", DataType::Utf8, true));
    let offsets: ScalarBuffer<i32> = (0..100).map(|i| 9_900 - 99 * i).collect();
    let sizes: ScalarBuffer<i32> = (0..100).map(|i| i % 3).collect();
    let list = ListViewArray::new(Arc::clone(&field), offsets, sizes, Arc::clone(&values), None);
    ten_rows_are_small(Arc::new(list));
    let fields = UnionFields::try_new([0], [field]).expect("one member");
    let offsets = (0..100).map(|i| 100 * i).collect::<ScalarBuffer<i32>>();
    let ids = vec![0i8; 100].into();
    let union = UnionArray::try_new(fields, ids, Some(offsets), vec![values]).expect("valid");
    ten_rows_are_small(Arc::new(union));
}

#[test]
fn slices_write_only_their_rows() {
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..1_000_000));
    ten_rows_are_small(Arc::clone(&numbers));
    let texts = StringArray::from_iter_values((0..10_000).map(|i| format!("{i:0LONG$}")));
    ten_rows_are_small(Arc::new(texts));
}
