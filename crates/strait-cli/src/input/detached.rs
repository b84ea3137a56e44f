//! Columns that do not hold the message that they were decoded from.

use arrow::array::{
    Array, ArrayData, BinaryViewArray, MutableArrayData, RecordBatch, RecordBatchOptions,
    StringViewArray, make_array,
};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

/// Columns are copied if they take at most 1/N of a message, where N is this number.
const SMALL_PART: usize = 4;

/// Copies the columns of a batch if they are a small part of a message's body. Otherwise a side that is held in memory
/// would hold the columns that nobody needs, too.
pub(super) fn detached(batch: RecordBatch, body: usize) -> Result<RecordBatch, ArrowError> {
    let datas: Vec<ArrayData> = batch.columns().iter().map(|column| column.to_data()).collect();
    let bytes = |data: &ArrayData| Some(data.get_slice_memory_size().ok()? + viewed_bytes(data));
    let bytes = datas.iter().map(|data| bytes(data).unwrap_or(body));
    if bytes.fold(0, usize::saturating_add) > body / SMALL_PART {
        return Ok(batch);
    }
    let copied = |data: &ArrayData| {
        let mut copy = MutableArrayData::new(vec![data], false, data.len());
        copy.try_extend(0, 0, data.len())?;
        Ok(make_array(with_own_texts(copy.freeze())?))
    };
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let columns = datas.iter().map(copied).collect::<Result<_, ArrowError>>()?;
    RecordBatch::try_new_with_options(batch.schema(), columns, &rows)
}

/// Returns the bytes of the texts that the views of an array refer to.
fn viewed_bytes(data: &ArrayData) -> usize {
    match data.data_type() {
        DataType::Utf8View => StringViewArray::from(data.clone()).total_buffer_bytes_used(),
        DataType::BinaryView => BinaryViewArray::from(data.clone()).total_buffer_bytes_used(),
        // The values of a dictionary are in another message.
        DataType::Dictionary(..) => 0,
        _ => data.child_data().iter().map(viewed_bytes).sum(),
    }
}

/// Copies the texts that the views of an array refer to. A copy of the views alone refers to the texts in the message.
fn with_own_texts(data: ArrayData) -> Result<ArrayData, ArrowError> {
    match data.data_type() {
        DataType::Utf8View => Ok(StringViewArray::from(data).gc().into_data()),
        DataType::BinaryView => Ok(BinaryViewArray::from(data).gc().into_data()),
        DataType::Dictionary(..) => Ok(data),
        _ if data.child_data().is_empty() => Ok(data),
        _ => {
            let children = data.child_data().iter().cloned().map(with_own_texts);
            let children = children.collect::<Result<_, _>>()?;
            data.into_builder().child_data(children).build()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int64Array, StringArray, StructArray};
    use arrow::datatypes::Field;
    use std::sync::Arc;

    #[test]
    fn small_parts_are_copied_and_equal() {
        let numbers: ArrayRef =
            Arc::new(Int64Array::from_iter((0..100).map(|i| (i % 3 > 0).then_some(i))));
        let texts: ArrayRef =
            Arc::new(StringArray::from_iter_values((0..100).map(|i| format!("{i}"))));
        let all = RecordBatch::try_from_iter([("n", numbers), ("t", texts)]).unwrap();
        let batch = all.slice(10, 50);
        let start = |batch: &RecordBatch| batch.column(0).to_data().buffers()[0].as_ptr();
        let same = detached(batch.clone(), 2000).unwrap();
        assert_eq!(start(&same), start(&batch), "the columns are more than a small part");
        let copy = detached(batch.clone(), 1 << 20).unwrap();
        assert_eq!(copy, batch);
        assert_ne!(start(&copy), start(&batch));
        let no_columns = batch.project(&[]).unwrap();
        assert_eq!(detached(no_columns, 1 << 20).unwrap().num_rows(), 50);
    }

    /// Views refer to texts elsewhere. Their copy holds its own texts only, and is not made if these are long.
    #[test]
    fn texts_of_views_are_copied() {
        let text = |i: usize| format!("{i} is a text that does not fit a view");
        let views = StringViewArray::from_iter_values((0..10_000).map(text));
        let bytes = views.clone().to_binary_view();
        let views: ArrayRef = Arc::new(views);
        let field = Arc::new(Field::new("f", DataType::Utf8View, true));
        let nested = StructArray::from(vec![(field, Arc::clone(&views))]);
        for column in [views, Arc::new(bytes), Arc::new(nested)] {
            let all = RecordBatch::try_from_iter([("v", column)]).unwrap();
            let batch = all.slice(10, 50);
            let held = |batch: &RecordBatch| batch.column(0).get_buffer_memory_size();
            assert!(held(&batch) > 300_000);
            let copy = detached(batch.clone(), 400_000).unwrap();
            assert_eq!(copy, batch);
            assert!(held(&copy) < 5_000, "{}", held(&copy));
            let same = detached(all.clone(), 400_000).unwrap();
            assert_eq!(held(&same), held(&all), "the columns are more than a small part");
        }
    }
}
