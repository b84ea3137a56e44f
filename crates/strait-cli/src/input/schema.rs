//! Limits on schemas. A file can claim any schema. A schema that is too deep or too wide would exhaust the
//! stack or the memory before a single row is read.

use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType, Schema,
};

/// The deepest nesting of types.
pub(super) const DEEPEST: usize = 64;

/// The most columns of a file, including nested ones.
pub(super) const MAX_COLUMNS: usize = 1_000_000;

/// Checks a schema that a file claims. The error says what is wrong with it.
pub(super) fn check(schema: &Schema) -> Result<(), String> {
    let mut columns = 0;
    for field in schema.fields() {
        check_type(field.data_type(), 1, &mut columns)
            .map_err(|why| format!("column \"{}\" {why}", shortened(field.name())))?;
    }
    Ok(())
}

/// Shortens a name, which may be very long, for messages.
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(100)]
}

fn check_type(data_type: &DataType, depth: usize, columns: &mut usize) -> Result<(), String> {
    *columns += 1;
    if depth > DEEPEST {
        return Err(format!("is nested more than {DEEPEST} levels deep"));
    }
    if *columns > MAX_COLUMNS {
        return Err(format!("is more than the {MAX_COLUMNS} columns that a file may have"));
    }
    let mut inner = |inner: &DataType| check_type(inner, depth + 1, columns);
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field) => inner(field.data_type()),
        DataType::FixedSizeList(field, size) => match size {
            0.. => inner(field.data_type()),
            _ => Err(format!("has lists of {size} values")),
        },
        DataType::FixedSizeBinary(size) if *size < 0 => Err(format!("has values of {size} bytes")),
        DataType::Struct(fields) => fields.iter().try_for_each(|field| inner(field.data_type())),
        DataType::Union(fields, _) => {
            fields.iter().try_for_each(|(_, field)| inner(field.data_type()))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) if fields.len() == 2 => inner(entries.data_type()),
            _ => Err("is a map whose entries are not pairs".to_string()),
        },
        DataType::Dictionary(keys, values) => match keys.is_dictionary_key_type() {
            true => inner(values),
            false => Err(format!("is a dictionary with keys of type {keys}")),
        },
        DataType::RunEndEncoded(ends, values) => match ends.data_type().is_run_ends_type() {
            true => inner(values.data_type()),
            false => Err(format!("has run ends of type {}", ends.data_type())),
        },
        DataType::Decimal32(p, s) => decimal::<Decimal32Type>(*p, *s),
        DataType::Decimal64(p, s) => decimal::<Decimal64Type>(*p, *s),
        DataType::Decimal128(p, s) => decimal::<Decimal128Type>(*p, *s),
        DataType::Decimal256(p, s) => decimal::<Decimal256Type>(*p, *s),
        _ => Ok(()),
    }
}

fn decimal<T: DecimalType>(precision: u8, scale: i8) -> Result<(), String> {
    // A scale that is larger than the precision is unusual, but harmless.
    let (digits, point) = (1..=T::MAX_PRECISION, -T::MAX_SCALE..=T::MAX_SCALE);
    match digits.contains(&precision) && point.contains(&scale) {
        true => Ok(()),
        false => Err(format!("is a decimal of {precision} digits, {scale} after the point")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Field;

    fn checked(data_type: DataType) -> Result<(), String> {
        check(&Schema::new(vec![Field::new("a", data_type, true)]))
    }

    #[test]
    fn depth_and_width_are_bounded() {
        let nested =
            |depth| (1..depth).fold(DataType::Int8, |inner, _| DataType::new_list(inner, true));
        assert_eq!(checked(nested(DEEPEST)), Ok(()));
        assert!(checked(nested(DEEPEST + 1)).unwrap_err().contains("more than 64 levels"));
        let wide = |columns: usize| {
            let field = |i: usize| Field::new(i.to_string(), DataType::Int8, true);
            check(&Schema::new((0..columns).map(field).collect::<Vec<_>>()))
        };
        assert_eq!(wide(MAX_COLUMNS), Ok(()));
        assert!(wide(MAX_COLUMNS + 1).is_err());
    }

    #[test]
    fn types_that_cannot_be() {
        assert!(checked(DataType::Decimal128(60, 2)).is_err());
        assert_eq!(checked(DataType::Decimal128(2, 5)), Ok(()));
        assert!(checked(DataType::FixedSizeBinary(-1)).is_err());
        assert!(checked(DataType::new_fixed_size_list(DataType::Int8, -2, true)).is_err());
        let strings = Box::new(DataType::Utf8);
        assert!(checked(DataType::Dictionary(strings.clone(), strings)).is_err());
    }
}
