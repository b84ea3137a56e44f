//! Nullability. The schema that a join is bound to says which columns may be null. A null in another column
//! is an error: otherwise the join would silently lose matches of null with null.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, DictionaryArray, Int8Array, Int32Array, Int64Array, RecordBatch, RecordBatchReader,
    RunArray,
};
use arrow::datatypes::{DataType, Field, Schema};
use strait::{Algorithm, Error, Join, JoinType, NullEquality, Output, Side};

use super::{batches, drained};

fn schema(nullable: bool) -> Arc<Schema> {
    let field = |name| Field::new(name, DataType::Int64, nullable);
    Arc::new(Schema::new(vec![field("k"), field("p")]))
}

/// A reader that announces this nullability, whatever it delivers.
fn reader(
    announced: bool,
    keys: Vec<Option<i64>>,
    payload: Vec<Option<i64>>,
) -> impl RecordBatchReader + Send + 'static {
    let columns = [keys, payload].map(|values| Arc::new(Int64Array::from(values)) as ArrayRef);
    let batch =
        RecordBatch::try_new(schema(true), columns.to_vec()).expect("columns of one length");
    batches(schema(announced), vec![batch])
}

fn join(algorithm: Algorithm) -> Join {
    Join::new(JoinType::Inner).on("k").null_equality(NullEquality::Equal).algorithm(algorithm)
}

/// Returns the number of rows of a join that is bound to one nullability, with readers that announce another.
fn rows(
    algorithm: Algorithm,
    [bound, announced]: [bool; 2],
    keys: [Option<i64>; 2],
    payload: [Option<i64>; 2],
) -> Result<u64, Error> {
    let sides = [schema(bound), schema(bound)];
    let bound = join(algorithm).bind(Output::Rows, &sides[0], &sides[1])?;
    assert_eq!(bound.columns(Side::Left), [0, 1]);
    let table = || reader(announced, keys.to_vec(), payload.to_vec());
    Ok(drained(bound.run(table(), table())?)?.1.output_rows)
}

#[test]
fn a_null_where_the_bound_schema_has_none_is_an_error_that_names_the_column() {
    let (full, with_null) = ([Some(1), Some(2)], [Some(1), None]);
    for algorithm in Algorithm::ANYWHERE {
        for announced in [false, true] {
            for (keys, payload, name) in [(with_null, full, "k"), (full, with_null, "p")] {
                let error = rows(algorithm, [false, announced], keys, payload).unwrap_err();
                let text = error.to_string();
                let said = format!("column \"{name}\" is declared non-nullable and has 1 null");
                assert!(text.contains(&said), "{algorithm}: {text}");
            }
        }
    }
}

#[test]
fn nullability_may_differ_between_binding_and_running() {
    let (full, with_null) = ([Some(1), Some(2)], [Some(1), None]);
    for algorithm in Algorithm::ANYWHERE {
        // Bound without nulls. There are none, although the reader says that there may be.
        assert_eq!(rows(algorithm, [false, true], full, full).unwrap(), 2, "{algorithm}");
        // Bound with nulls, which the reader does not announce: null matches null.
        for announced in [false, true] {
            let found = rows(algorithm, [true, announced], with_null, with_null).unwrap();
            assert_eq!(found, 2, "{algorithm}");
        }
    }
}

#[test]
fn readers_that_deliver_nulls_they_did_not_announce_are_refused() {
    for algorithm in Algorithm::ANYWHERE {
        let table = || reader(false, vec![None], vec![Some(1)]);
        let error = join(algorithm).count(table(), table()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("left") && text.contains("\"k\""), "{algorithm}: {text}");
    }
}

/// In a dictionary or a run array, the values determine which rows are null.
#[test]
fn nulls_in_the_values_of_encoded_columns_are_refused_too() {
    let values: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), None]));
    let keys = Int8Array::from(vec![0, 1]);
    let dictionary: ArrayRef = Arc::new(DictionaryArray::new(keys, Arc::clone(&values)));
    let ends = Int32Array::from(vec![1, 2]);
    let runs: ArrayRef = Arc::new(RunArray::try_new(&ends, &values).expect("two runs"));
    for column in [dictionary, runs] {
        let field = |nullable| Field::new("p", column.data_type().clone(), nullable);
        let key = Field::new("k", DataType::Int64, false);
        let schema = |nullable| Arc::new(Schema::new(vec![key.clone(), field(nullable)]));
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let batch = RecordBatch::try_new(schema(true), vec![ids, Arc::clone(&column)]);
        let batch = batch.expect("columns of one length");
        for algorithm in Algorithm::ANYWHERE {
            let table = || batches(schema(false), vec![batch.clone()]);
            let output = join(algorithm).keep_keys(true).run(table(), table()).expect("starts");
            let error = drained(output).unwrap_err().to_string();
            assert!(
                error.contains("column \"p\" is declared non-nullable"),
                "{algorithm}: {error}"
            );
        }
    }
}
