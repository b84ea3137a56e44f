//! Columns that do not hold the message that they were decoded from.

use arrow::array::{ArrayData, MutableArrayData, RecordBatch, RecordBatchOptions, make_array};
use arrow::error::ArrowError;

/// Columns are copied if they take at most 1/N of a message, where N is this number.
const SMALL_PART: usize = 4;

/// Copies the columns of a batch if they are a small part of a message's body. Otherwise a side that is held in memory
/// would hold the columns that nobody needs, too.
pub(super) fn detached(batch: RecordBatch, body: usize) -> Result<RecordBatch, ArrowError> {
    let datas: Vec<ArrayData> = batch.columns().iter().map(|column| column.to_data()).collect();
    let bytes = datas.iter().map(|data| data.get_slice_memory_size().unwrap_or(body));
    if bytes.fold(0, usize::saturating_add) > body / SMALL_PART {
        return Ok(batch);
    }
    let copied = |data: &ArrayData| {
        let mut copy = MutableArrayData::new(vec![data], false, data.len());
        copy.try_extend(0, 0, data.len())?;
        Ok(make_array(copy.freeze()))
    };
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let columns = datas.iter().map(copied).collect::<Result<_, ArrowError>>()?;
    RecordBatch::try_new_with_options(batch.schema(), columns, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, ArrayRef, Int64Array, StringArray};
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
}
