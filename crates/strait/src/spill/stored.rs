//! The types that are written instead of types that Arrow's IPC format does not support.
//!
//! The only such type is a dictionary whose values are a dictionary. A field of the format has room for one
//! dictionary only. So the inner dictionary is written as the only field of a struct:
//!
//! ```text
//!  Dictionary(Int8, Dictionary(Int16, Utf8))  ⇄  Dictionary(Int8, Struct { values: Dictionary(Int16, Utf8) })
//! ```

use std::sync::Arc;

use arrow::array::ArrayData;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema};
use arrow::error::ArrowError;

/// Returns the schema of the batch that is written. The reader knows the names of the columns, so they are left
/// out.
pub(super) fn stored_schema(schema: &Schema) -> Schema {
    let stored = |field: &FieldRef| Field::new("", stored_type(field.data_type()), true);
    Schema::new(schema.fields().iter().map(stored).collect::<Fields>())
}

/// Returns the type that is written for a type.
pub(super) fn stored_type(data_type: &DataType) -> DataType {
    use DataType::*;
    let field = |field: &FieldRef| {
        let stored = stored_type(field.data_type());
        Arc::new(field.as_ref().clone().with_data_type(stored))
    };
    match data_type {
        Dictionary(key, values) => {
            let mut values = stored_type(values);
            if let Dictionary(_, _) = values {
                values = Struct(Fields::from(vec![Field::new("values", values, true)]));
            }
            Dictionary(key.clone(), Box::new(values))
        }
        List(item) => List(field(item)),
        LargeList(item) => LargeList(field(item)),
        ListView(item) => ListView(field(item)),
        LargeListView(item) => LargeListView(field(item)),
        FixedSizeList(item, size) => FixedSizeList(field(item), *size),
        Map(entries, sorted) => Map(field(entries), *sorted),
        Struct(fields) => Struct(fields.iter().map(field).collect()),
        Union(fields, mode) => Union(fields.iter().map(|(id, f)| (id, field(f))).collect(), *mode),
        RunEndEncoded(ends, values) => RunEndEncoded(Arc::clone(ends), field(values)),
        other => other.clone(),
    }
}

/// Returns the types of the child arrays.
pub(super) fn child_types(data_type: &DataType) -> Vec<&DataType> {
    use DataType::*;
    match data_type {
        Dictionary(_, values) => vec![values],
        List(field)
        | LargeList(field)
        | ListView(field)
        | LargeListView(field)
        | FixedSizeList(field, _)
        | Map(field, _) => vec![field.data_type()],
        Struct(fields) => fields.iter().map(|field| field.data_type()).collect(),
        Union(fields, _) => fields.iter().map(|(_, field)| field.data_type()).collect(),
        RunEndEncoded(ends, values) => vec![ends.data_type(), values.data_type()],
        _ => vec![],
    }
}

/// Converts an array to its stored type, or back. The array has no offset.
pub(super) fn convert(data: ArrayData, to: &DataType) -> Result<ArrayData, ArrowError> {
    if data.data_type() == to {
        return Ok(data);
    }
    match (data.data_type(), to) {
        (DataType::Dictionary(_, _), DataType::Struct(fields)) if fields.len() == 1 => {
            let wrapped = ArrayData::builder(to.clone()).len(data.len());
            wrapped.add_child_data(convert(data, fields[0].data_type())?).build()
        }
        (DataType::Struct(fields), DataType::Dictionary(_, _)) if fields.len() == 1 => {
            convert(data.child_data()[0].clone(), to)
        }
        _ => {
            let children = data.child_data().iter().zip(child_types(to));
            let children =
                children.map(|(child, to)| convert(child.clone(), to)).collect::<Result<_, _>>()?;
            data.into_builder().data_type(to.clone()).child_data(children).build()
        }
    }
}
