//! Every type survives a round trip.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Schema};
use strait_testkit::decode::decode_alone;
use strait_testkit::{Rng, kinds};

use super::nest::{any, leaves};
use super::{block, numbers, target};
use crate::spill::block::{decode, open};
use crate::spill::{SpillCompression, TempFolders};

/// Encodes and decodes a batch with each kind of compression, and compares the schema and all values.
fn round_trip(batch: &RecordBatch) -> RecordBatch {
    let block = block(batch);
    let store = Arc::new(TempFolders::new(vec![])) as _;
    for compression in SpillCompression::ALL {
        let stored = target(&store, compression).form(&block);
        let payload = open(stored.bytes, stored.mark).expect("not damaged");
        let decoded = decode(payload, batch.schema_ref());
        compared(batch, decoded.unwrap_or_else(|e| panic!("{compression}, {e}: {batch:?}")));
    }
    compared(batch, block.decode(batch.schema_ref()).expect("decodes"))
}

/// Compares a batch that was decoded with the one that was encoded.
fn compared(batch: &RecordBatch, decoded: RecordBatch) -> RecordBatch {
    assert_eq!((decoded.schema_ref(), decoded.num_rows()), (batch.schema_ref(), batch.num_rows()));
    for (before, after) in batch.columns().iter().zip(decoded.columns()) {
        assert_eq!(before.data_type(), after.data_type());
        assert_eq!(decode_alone(before), decode_alone(after), "{}", before.data_type());
        assert_eq!(
            before.logical_nulls().map_or(0, |n| n.null_count()),
            after.logical_nulls().map_or(0, |n| n.null_count())
        );
        after.to_data().validate_full().expect("valid");
    }
    decoded
}

fn batch(columns: Vec<ArrayRef>, rows: usize) -> RecordBatch {
    let field = |(i, column): (usize, &ArrayRef)| {
        let metadata = HashMap::from([("column".to_string(), i.to_string())]);
        // Two columns may have the same name.
        Field::new(format!("c{}", i % 2), column.data_type().clone(), true).with_metadata(metadata)
    };
    let fields: Vec<Field> = columns.iter().enumerate().map(field).collect();
    let schema = Schema::new_with_metadata(fields, [("table".to_string(), "t".to_string())].into());
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::new(schema), columns, &options).expect("a batch")
}

#[test]
fn every_type_survives() {
    let mut rng = Rng::new(1);
    for data_type in [kinds::payloads(), kinds::encoded_keys()].concat() {
        for rows in [0, 1, 50] {
            let one = leaves(&mut rng, &data_type, rows);
            let two = leaves(&mut rng, &data_type, rows + 9).slice(5, rows);
            let none = leaves(&mut rng, &data_type, 10).slice(3, 0);
            round_trip(&batch(vec![one, two], rows));
            round_trip(&batch(vec![none], 0));
        }
    }
}

#[test]
fn random_nested_types_survive() {
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let column = any(&mut rng);
        let other = any(&mut rng);
        let rows = column.len().min(other.len());
        round_trip(&batch(vec![column.slice(0, rows), other.slice(0, rows)], rows));
        round_trip(&batch(vec![Arc::clone(&column)], column.len()));
    }
}

#[test]
fn rows_without_columns_survive() {
    assert_eq!(round_trip(&batch(vec![], 12_345)).num_rows(), 12_345);
    assert_eq!(round_trip(&batch(vec![], 0)).num_rows(), 0);
}

#[test]
fn a_dictionary_of_a_dictionary_survives_at_any_depth() {
    use DataType::*;
    let mut rng = Rng::new(7);
    let deep =
        kinds::dictionary(Int8, kinds::dictionary(UInt16, kinds::dictionary(Int32, Utf8View)));
    let inside = List(Arc::new(Field::new("x", deep.clone(), true)));
    for data_type in [deep, inside.clone(), kinds::dictionary(Int8, inside)] {
        let column = leaves(&mut rng, &data_type, 40);
        round_trip(&batch(vec![Arc::clone(&column), column.slice(0, 40)], 40));
        round_trip(&batch(vec![column.slice(7, 20)], 20));
    }
}

#[test]
fn fields_that_must_not_be_null_stay_so() {
    let numbers = numbers(0, 10);
    let fields: Vec<Field> =
        numbers.schema().fields().iter().map(|f| f.as_ref().clone().with_nullable(false)).collect();
    let schema = Arc::new(Schema::new(fields));
    round_trip(&RecordBatch::try_new(schema, numbers.columns().to_vec()).expect("no nulls"));
}

#[test]
fn decoded_arrays_are_slices_of_the_block() {
    let mut rng = Rng::new(3);
    let types = [kinds::narrow(), kinds::wide()].concat();
    let columns = types.iter().map(|data_type| leaves(&mut rng, data_type, 100)).collect();
    let batch = batch(columns, 100);
    let block = block(&batch);
    let memory = block.bytes().as_ptr_range();
    let decoded = block.decode(batch.schema_ref()).expect("decodes");
    let mut checked = 0;
    for column in decoded.columns() {
        let mut all = vec![column.to_data()];
        while let Some(data) = all.pop() {
            let nulls = data.nulls().map(|nulls| nulls.buffer());
            for buffer in data.buffers().iter().chain(nulls).filter(|buffer| !buffer.is_empty()) {
                assert!(memory.contains(&buffer.as_ptr()), "{} was copied", column.data_type());
                checked += 1;
            }
            all.extend_from_slice(data.child_data());
        }
    }
    assert!(checked > types.len());
}
