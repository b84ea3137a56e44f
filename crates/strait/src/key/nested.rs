//! Looks into nested types.

use arrow::datatypes::DataType;

/// Returns whether `is` holds for a type, or for any type inside it.
pub(super) fn anywhere(data_type: &DataType, is: impl Fn(&DataType) -> bool + Copy) -> bool {
    let inside = |field: &arrow::datatypes::Field| anywhere(field.data_type(), is);
    is(data_type)
        || match data_type {
            DataType::Struct(fields) => fields.iter().any(|f| inside(f)),
            DataType::Union(fields, _) => fields.iter().any(|(_, f)| inside(f)),
            DataType::List(f)
            | DataType::LargeList(f)
            | DataType::ListView(f)
            | DataType::LargeListView(f)
            | DataType::FixedSizeList(f, _)
            | DataType::Map(f, _)
            | DataType::RunEndEncoded(_, f) => inside(f),
            DataType::Dictionary(_, values) => anywhere(values, is),
            _ => false,
        }
}

/// Returns whether a type is a union or contains one.
pub(crate) fn has_unions(data_type: &DataType) -> bool {
    anywhere(data_type, |t| matches!(t, DataType::Union(..)))
}
