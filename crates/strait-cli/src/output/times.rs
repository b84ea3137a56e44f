//! Checks that times can be written as text. In place of a time that is out of range, Arrow's JSON writer writes an error
//! message. In place of a duration, the JSON and CSV writers write `<invalid>`.

use anyhow::bail;
use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array, make_array};
use arrow::compute::{SortOptions, sort_to_indices, take};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// Checks all times of a batch for JSON, also within nested values.
pub(super) fn check_all(rows: &RecordBatch) -> anyhow::Result<()> {
    check(rows, "JSON", DataType::is_temporal)
}

/// Checks the durations of a batch for CSV. The writer of CSV itself checks the other times.
pub(super) fn check_durations(rows: &RecordBatch) -> anyhow::Result<()> {
    check(rows, "CSV", |data_type| matches!(data_type, DataType::Duration(_)))
}

/// Checks the times of the types that `is_checked` is true for.
fn check(
    rows: &RecordBatch,
    format: &str,
    is_checked: fn(&DataType) -> bool,
) -> anyhow::Result<()> {
    for (field, column) in rows.schema().fields().iter().zip(rows.columns()) {
        if let Err(why) = check_array(column, is_checked) {
            bail!(
                "{format} cannot hold a value of column \"{}\": {why:#}; write .parquet or .arrow, or leave the \
                 column out with --select",
                field.name()
            );
        }
    }
    Ok(())
}

fn check_array(array: &ArrayRef, is_checked: fn(&DataType) -> bool) -> anyhow::Result<()> {
    if is_checked(array.data_type()) {
        return check_times(array);
    }
    let may_have_times = |data_type: &DataType| {
        data_type.is_nested()
            || matches!(data_type, DataType::Dictionary(..) | DataType::RunEndEncoded(..))
    };
    if !may_have_times(array.data_type()) {
        return Ok(());
    }
    let children = array.to_data().child_data().to_vec();
    children.into_iter().try_for_each(|child| check_array(&make_array(child), is_checked))
}

/// Formats the earliest and the latest time. If these can be written, all can.
fn check_times(array: &ArrayRef) -> anyhow::Result<()> {
    for descending in [false, true] {
        let options = SortOptions { descending, nulls_first: false };
        let first: UInt32Array = sort_to_indices(array, Some(options), Some(1))?;
        let value = take(array, &first, None)?;
        let format = FormatOptions::new().with_display_error(false);
        if value.len() == 1 && value.is_valid(0) {
            let text = ArrayFormatter::try_new(&value, &format)?.value(0).try_to_string()?;
            if text == INVALID {
                bail!("a duration of type {} is too long for text", array.data_type());
            }
        }
    }
    Ok(())
}

/// The text of a duration that Arrow cannot format.
const INVALID: &str = "<invalid>";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        Date32Array, DictionaryArray, Int8Array, ListArray, StructArray, TimestampMillisecondArray,
    };
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::Field;

    use super::*;

    fn checked(column: ArrayRef) -> Result<(), String> {
        let rows = RecordBatch::try_from_iter([("t", column)]).expect("a column");
        check_all(&rows).map_err(|error| error.to_string())
    }

    #[test]
    fn times_out_of_range_are_found() {
        let late: ArrayRef = Arc::new(Date32Array::from(vec![Some(0), None, Some(i32::MAX)]));
        let early: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![1 << 40, -1 << 62]));
        let fine: ArrayRef =
            Arc::new(Date32Array::from(vec![Some(-700_000), None, Some(2_000_000)]));
        let empty: ArrayRef = Arc::new(Date32Array::from(vec![None::<i32>]));
        for (column, is_fine) in [(late, false), (early, false), (fine, true), (empty, true)] {
            assert_eq!(checked(Arc::clone(&column)).is_ok(), is_fine, "{column:?}");
            let field = Arc::new(Field::new("x", column.data_type().clone(), true));
            let object = StructArray::from(vec![(Arc::clone(&field), Arc::clone(&column))]);
            assert_eq!(checked(Arc::new(object)).is_ok(), is_fine);
            let offsets = OffsetBuffer::from_lengths([column.len()]);
            let list = ListArray::new(field, offsets, Arc::clone(&column), None);
            assert_eq!(checked(Arc::new(list)).is_ok(), is_fine);
            let dictionary = DictionaryArray::new(Int8Array::from(vec![0]), column);
            assert_eq!(checked(Arc::new(dictionary)).is_ok(), is_fine);
        }
    }
}
