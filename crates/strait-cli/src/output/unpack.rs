//! Unpacks dictionaries: replaces each dictionary column, at any depth, by its values.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, make_array,
};
use arrow::compute::take;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use arrow::error::ArrowError;

use super::types::{retyped, retyped_schema};

/// Returns the schema with every dictionary type replaced by the type of its values.
pub(super) fn without_dictionaries(schema: &SchemaRef) -> SchemaRef {
    retyped_schema(schema, &values)
}

/// Returns the type with every dictionary type replaced by the type of its values.
pub(super) fn plain(data_type: &DataType) -> DataType {
    retyped(data_type, &values)
}

fn values(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Dictionary(_, values) => Some(plain(values)),
        _ => None,
    }
}

/// Converts a batch to `schema`, in which each column has the type that it has in the batch, or its [plain] type.
pub(super) fn unpacked(schema: &SchemaRef, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let column = |(field, array): (&FieldRef, &ArrayRef)| match field.data_type() {
        same if same == array.data_type() => Ok(Arc::clone(array)),
        _ => unpack(array),
    };
    let columns = schema.fields().iter().zip(batch.columns()).map(column);
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}

fn unpack(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let data_type = plain(array.data_type());
    if data_type == *array.data_type() {
        return Ok(Arc::clone(array));
    }
    if let Some(dictionary) = array.as_any_dictionary_opt() {
        return unpack(&take(dictionary.values(), dictionary.keys(), None)?);
    }
    // Every nested array keeps its offsets and validity. Only its children change.
    let data = array.to_data();
    let children = data.child_data().iter().map(unpack_data).collect::<Result<Vec<_>, _>>()?;
    let data = data.into_builder().data_type(data_type).child_data(children).build()?;
    Ok(make_array(data))
}

fn unpack_data(data: &ArrayData) -> Result<ArrayData, ArrowError> {
    Ok(unpack(&make_array(data.clone()))?.to_data())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use arrow::array::{
        DictionaryArray, FixedSizeListArray, Int32Array, ListArray, MapArray, StringArray,
        StructArray,
    };
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::datatypes::{Field, Int32Type};

    pub(in crate::output) fn dictionary() -> ArrayRef {
        let words = [Some("a"), None, Some("b"), Some("a"), Some("c"), Some("b")];
        Arc::new(words.into_iter().collect::<DictionaryArray<Int32Type>>())
    }

    pub(in crate::output) fn strings() -> ArrayRef {
        Arc::new(StringArray::from(vec![
            Some("a"),
            None,
            Some("b"),
            Some("a"),
            Some("c"),
            Some("b"),
        ]))
    }

    /// Builds one column of each nested type around `values`.
    pub(in crate::output) fn nested(values: &ArrayRef) -> RecordBatch {
        let field = Arc::new(Field::new("v", values.data_type().clone(), true));
        let nulls = NullBuffer::from(vec![true, false, true]);
        let offsets = OffsetBuffer::new(vec![0, 2, 3, 6].into());
        let of_struct: ArrayRef = Arc::new(StructArray::new(
            vec![Arc::clone(&field)].into(),
            vec![values.slice(0, 3)],
            Some(nulls.clone()),
        ));
        let of_list: ArrayRef = Arc::new(ListArray::new(
            Arc::clone(&field),
            offsets.clone(),
            Arc::clone(values),
            Some(nulls),
        ));
        let of_fixed: ArrayRef =
            Arc::new(FixedSizeListArray::new(Arc::clone(&field), 2, Arc::clone(values), None));
        let keys: ArrayRef = Arc::new(Int32Array::from_iter_values(0..6));
        let key = Arc::new(Field::new("k", DataType::Int32, false));
        let entries = StructArray::new(
            vec![key, Arc::clone(&field)].into(),
            vec![keys, Arc::clone(values)],
            None,
        );
        let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
        let of_map: ArrayRef = Arc::new(MapArray::new(entry, offsets, entries, None, false));
        let deep = Arc::new(Field::new("l", of_list.data_type().clone(), true));
        let of_both: ArrayRef =
            Arc::new(StructArray::new(vec![deep].into(), vec![Arc::clone(&of_list)], None));
        RecordBatch::try_from_iter_with_nullable([
            ("plain", values.slice(3, 3), true),
            ("struct", of_struct, true),
            ("list", of_list, true),
            ("fixed", of_fixed, true),
            ("map", of_map, true),
            ("struct of lists", of_both, true),
        ])
        .unwrap()
    }

    #[test]
    fn dictionaries_are_unpacked_at_any_depth() {
        let packed = nested(&dictionary());
        let expected = nested(&strings());
        let schema = without_dictionaries(&packed.schema());
        assert_eq!(schema, expected.schema());
        assert_eq!(unpacked(&schema, &packed).unwrap(), expected);
        let (packed, expected) = (packed.slice(1, 2), expected.slice(1, 2));
        assert_eq!(unpacked(&schema, &packed).unwrap(), expected);
    }
}
