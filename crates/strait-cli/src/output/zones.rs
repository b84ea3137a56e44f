//! Makes timestamps printable whose time zone has a name, such as `Europe/Berlin`. Arrow prints only zones
//! that are given as an offset, because names need a time zone database. Only a build with SQL has one. Such timestamps
//! are printed in UTC, in which they are stored, in all builds.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

use super::types::{retyped, retyped_schema};
use crate::arguments::is_offset;

/// Returns the schema with UTC in place of each time zone that Arrow cannot print.
pub(super) fn printable_schema(schema: &SchemaRef) -> SchemaRef {
    retyped_schema(schema, &in_utc)
}

/// Converts a batch to `schema`, which is its own [printable schema](printable_schema).
pub(super) fn printable_batch(
    schema: &SchemaRef,
    batch: &RecordBatch,
) -> Result<RecordBatch, ArrowError> {
    if batch.schema_ref().fields() == schema.fields() {
        return Ok(batch.clone());
    }
    let columns = batch.columns().iter().map(printable).collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}

/// Returns an array with UTC in place of each time zone that Arrow cannot print.
pub(crate) fn printable(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    if retyped(array.data_type(), &in_utc) == *array.data_type() {
        return Ok(Arc::clone(array));
    }
    Ok(make_array(printable_data(array.to_data())?))
}

/// Changes only the types. All values stay the same.
fn printable_data(data: ArrayData) -> Result<ArrayData, ArrowError> {
    let data_type = retyped(data.data_type(), &in_utc);
    let children = data.child_data().iter().map(|child| printable_data(child.clone()));
    let children = children.collect::<Result<Vec<_>, _>>()?;
    data.into_builder().data_type(data_type).child_data(children).build()
}

fn in_utc(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Timestamp(unit, Some(zone)) if !is_offset(zone) => {
            Some(DataType::Timestamp(*unit, Some("+00:00".into())))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{
        DictionaryArray, Int32Array, ListArray, StructArray, TimestampMillisecondArray,
    };
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::Field;
    use arrow::util::display::{ArrayFormatter, FormatOptions};

    fn shown(array: &ArrayRef, row: usize) -> String {
        let printable = printable(array).unwrap();
        let formatter = ArrayFormatter::try_new(&printable, &FormatOptions::default()).unwrap();
        formatter.value(row).to_string()
    }

    fn times(zone: &str) -> ArrayRef {
        let times = TimestampMillisecondArray::from(vec![Some(0), None, Some(1_720_000_000_000)]);
        Arc::new(times.with_timezone(zone))
    }

    #[test]
    fn zones_by_name_are_shown_in_utc() {
        for zone in ["Europe/Berlin", "Nowhere/Land", ""] {
            assert_eq!(shown(&times(zone), 2), "2024-07-03T09:46:40Z", "{zone}");
        }
        assert_eq!(shown(&times("+02:00"), 2), "2024-07-03T11:46:40+02:00");
    }

    #[test]
    fn zones_are_found_in_nested_values() {
        let times = times("Europe/Berlin");
        let field = Arc::new(Field::new("t", times.data_type().clone(), true));
        let of_struct: ArrayRef =
            Arc::new(StructArray::new(vec![Arc::clone(&field)].into(), vec![times.clone()], None));
        assert_eq!(shown(&of_struct, 0), "{t: 1970-01-01T00:00:00Z}");
        let offsets = OffsetBuffer::from_lengths([1, 2]);
        let of_list: ArrayRef = Arc::new(ListArray::new(field, offsets, times.clone(), None));
        assert_eq!(shown(&of_list.slice(1, 1), 0), "[, 2024-07-03T09:46:40Z]");
        let keys = Int32Array::from(vec![2, 2, 0]);
        let of_dictionary: ArrayRef = Arc::new(DictionaryArray::new(keys, times));
        assert_eq!(shown(&of_dictionary, 1), "2024-07-03T09:46:40Z");
    }
}
