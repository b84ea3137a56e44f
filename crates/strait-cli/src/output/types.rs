//! Finds and replaces types in schemas, at any depth.

use std::cell::Cell;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, UnionFields};

/// Returns the type that replaces a type, if it is to be replaced.
type Replace<'a> = &'a dyn Fn(&DataType) -> Option<DataType>;

/// Returns whether a type, or a type within it, has a property.
pub(super) fn any(data_type: &DataType, is: &dyn Fn(&DataType) -> bool) -> bool {
    let found = Cell::new(false);
    retyped(data_type, &|data_type| {
        found.set(found.get() || is(data_type));
        None
    });
    found.get()
}

/// Returns the schema with all types replaced for which `replace` returns another one.
pub(super) fn retyped_schema(schema: &SchemaRef, replace: Replace<'_>) -> SchemaRef {
    let fields: Vec<_> =
        schema.fields().iter().map(|field| retyped_field(field, replace)).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Returns the type after replacing it, or the types within it.
pub(super) fn retyped(data_type: &DataType, replace: Replace<'_>) -> DataType {
    use DataType::{
        Dictionary, FixedSizeList, LargeList, LargeListView, List, ListView, Map, RunEndEncoded,
        Struct, Union,
    };
    if let Some(other) = replace(data_type) {
        return other;
    }
    let field = |field: &FieldRef| retyped_field(field, replace);
    match data_type {
        Dictionary(keys, values) => Dictionary(keys.clone(), Box::new(retyped(values, replace))),
        List(values) => List(field(values)),
        LargeList(values) => LargeList(field(values)),
        ListView(values) => ListView(field(values)),
        LargeListView(values) => LargeListView(field(values)),
        FixedSizeList(values, size) => FixedSizeList(field(values), *size),
        Struct(fields) => Struct(fields.iter().map(field).collect()),
        Map(entries, sorted) => Map(field(entries), *sorted),
        RunEndEncoded(ends, values) => RunEndEncoded(Arc::clone(ends), field(values)),
        Union(fields, mode) => {
            let fields: UnionFields = fields.iter().map(|(id, of)| (id, field(of))).collect();
            Union(fields, *mode)
        }
        other => other.clone(),
    }
}

fn retyped_field(field: &FieldRef, replace: Replace<'_>) -> FieldRef {
    let data_type = retyped(field.data_type(), replace);
    if data_type == *field.data_type() {
        return Arc::clone(field);
    }
    let other = Field::new(field.name(), data_type, field.is_nullable());
    Arc::new(other.with_metadata(field.metadata().clone()))
}
