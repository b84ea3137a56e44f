//! Checks that decimals have no more digits than their type allows. Arrow and Parquet files can hold decimals with more
//! digits, and the decoders do not check them. Some output formats would store a different value.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, make_array};
use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
};

use crate::failure::Told;

/// Checks all decimals of a batch, also within nested values. The error names the place, which is a file or stdin.
pub(super) fn check(batch: &RecordBatch, place: impl Fn() -> String) -> Result<(), Told> {
    let mut columns = batch.schema_ref().fields().iter().zip(batch.columns());
    match columns.find(|(_, column)| !are_valid(column)) {
        None => Ok(()),
        Some((field, _)) => Err(Told(format!(
            "{}: column \"{}\" ({}) has a decimal with more digits than its type; write the data again, or --cast \
             the column to a type with more digits",
            place(),
            field.name(),
            field.data_type()
        ))),
    }
}

fn are_valid(array: &ArrayRef) -> bool {
    match array.data_type() {
        DataType::Decimal32(digits, _) => have_digits::<Decimal32Type>(array, *digits),
        DataType::Decimal64(digits, _) => have_digits::<Decimal64Type>(array, *digits),
        DataType::Decimal128(digits, _) => have_digits::<Decimal128Type>(array, *digits),
        DataType::Decimal256(digits, _) => have_digits::<Decimal256Type>(array, *digits),
        _ => {
            let children = array.to_data().child_data().to_vec();
            children.into_iter().all(|child| are_valid(&make_array(child)))
        }
    }
}

/// Returns whether no decimal has more than this many digits.
fn have_digits<T: DecimalType>(array: &ArrayRef, digits: u8) -> bool {
    let array = array.as_primitive::<T>();
    let is_valid = |value| T::is_valid_decimal_precision(value, digits);
    // The value under a null may be anything. It is usually zero, so the second pass, without nulls, is rare.
    array.values().iter().copied().all(is_valid) || array.iter().flatten().all(is_valid)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Decimal32Array, Decimal64Array, Decimal128Array, Decimal256Array};
    use arrow::buffer::{NullBuffer, ScalarBuffer};
    use arrow::datatypes::i256;

    use super::*;

    #[test]
    fn every_width_is_checked() {
        let (d32, d64) = (DataType::Decimal32(3, 1), DataType::Decimal64(3, 1));
        let (d128, d256) = (DataType::Decimal128(38, 0), DataType::Decimal256(3, 5));
        let most = 10_i128.pow(38) - 1;
        let columns: [(ArrayRef, bool); 8] = [
            (Arc::new(Decimal32Array::from(vec![999]).with_data_type(d32.clone())), true),
            (Arc::new(Decimal32Array::from(vec![-1000]).with_data_type(d32)), false),
            (Arc::new(Decimal64Array::from(vec![-999]).with_data_type(d64.clone())), true),
            (Arc::new(Decimal64Array::from(vec![1000]).with_data_type(d64)), false),
            (Arc::new(Decimal128Array::from(vec![most]).with_data_type(d128.clone())), true),
            (Arc::new(Decimal128Array::from(vec![most + 1]).with_data_type(d128)), false),
            (Arc::new(Decimal256Array::from(vec![i256::ONE]).with_data_type(d256.clone())), true),
            (Arc::new(Decimal256Array::from(vec![i256::MIN]).with_data_type(d256)), false),
        ];
        for (column, is_valid) in columns {
            let batch = RecordBatch::try_from_iter([("d", column)]).unwrap();
            assert_eq!(check(&batch, String::new).is_ok(), is_valid, "{batch:?}");
        }
    }

    #[test]
    fn nulls_may_have_any_value() {
        let values = ScalarBuffer::from(vec![5, i128::MAX]);
        let nulls = NullBuffer::from(vec![true, false]);
        let column =
            Decimal128Array::new(values, Some(nulls)).with_data_type(DataType::Decimal128(3, 0));
        let batch = RecordBatch::try_from_iter([("d", Arc::new(column) as ArrayRef)]).unwrap();
        assert!(check(&batch, String::new).is_ok());
    }
}
