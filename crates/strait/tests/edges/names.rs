//! Names and types that do not fit: every message says what is wrong and what to try.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use strait::{Error, Filter, Join, JoinType, Side};

use super::{keyed, whole};

fn failure(join: &Join, left: &RecordBatch, right: &RecordBatch) -> Error {
    match join.run(whole(left), whole(right)) {
        Ok(_) => panic!("the join was not refused"),
        Err(error) => error,
    }
}

fn strings() -> RecordBatch {
    let column: ArrayRef = Arc::new(StringArray::from(vec!["1", "2"]));
    RecordBatch::try_from_iter([("name", column)]).expect("one column")
}

#[test]
fn an_unknown_column_suggests_the_nearest() {
    let table = keyed([1]);
    let error = failure(&Join::inner().on_pair("K", "k"), &table, &table);
    assert!(matches!(error, Error::UnknownColumn { side: "left", .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("\"K\"") && text.contains("did you mean \"k\""), "{text}");
    let text = failure(&Join::inner().on_pair("k", "zebra"), &table, &table).to_string();
    assert!(text.contains("right") && text.contains("zebra"), "{text}");
    assert!(text.contains("\"k\", \"p\""), "it lists what there is: {text}");
    let selected = Join::inner().on("k").select(["p_rihgt"]);
    let text = failure(&selected, &table, &table).to_string();
    assert!(text.contains("did you mean \"p_right\""), "{text}");
    let filter = Filter::new([(Side::Right, "q")], |_: &RecordBatch| unreachable!());
    let text = failure(&Join::inner().on("k").filter(filter), &table, &table).to_string();
    assert!(text.contains("right") && text.contains("\"q\""), "{text}");
}

#[test]
fn incompatible_types_name_both_columns_and_types() {
    let join = Join::inner().on_pair("k", "name");
    let error = failure(&join, &keyed([1]), &strings());
    assert!(matches!(error, Error::KeyTypes { .. }), "{error:?}");
    let text = error.to_string();
    for part in ["\"k\"", "Int64", "\"name\"", "Utf8", "cast"] {
        assert!(text.contains(part), "no {part} in: {text}");
    }
}

#[test]
fn an_ambiguous_name_is_refused() {
    let field = || Field::new("k", DataType::Int64, false);
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let schema = Arc::new(Schema::new(vec![field(), field()]));
    let twice = RecordBatch::try_new(schema, vec![column.clone(), column]).unwrap();
    let error = failure(&Join::inner().on("k"), &twice, &keyed([1]));
    assert!(matches!(error, Error::AmbiguousColumn { count: 2, .. }), "{error:?}");
    assert!(error.to_string().contains("\"k\""), "{error}");
}

#[test]
fn output_names_that_collide_are_refused() {
    let table = keyed([1]);
    let error = failure(&Join::inner().on("k").suffix(""), &table, &table);
    assert!(matches!(&error, Error::OutputCollision { name } if name == "p"), "{error:?}");
    let mark = Join::new(JoinType::LeftMark).on("k").mark_column("p");
    let error = failure(&mark, &table, &table);
    assert!(matches!(&error, Error::OutputCollision { name } if name == "p"), "{error:?}");
}

#[test]
fn settings_out_of_range_are_refused() {
    let table = keyed([1]);
    let refused =
        [Join::inner(), Join::inner().on("k").threads(0), Join::inner().on("k").batch_size(0)];
    for join in refused {
        let error = failure(&join, &table, &table);
        assert!(matches!(error, Error::NoKeys | Error::InvalidOption { .. }), "{error:?}");
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn a_suffix_goes_to_the_right_column_and_keys_come_once() {
    let table = keyed([1]);
    let names = |join: Join| -> Vec<String> {
        let reader = join.run(whole(&table), whole(&table)).unwrap();
        let schema = arrow::array::RecordBatchReader::schema(&reader);
        schema.fields().iter().map(|f| f.name().clone()).collect()
    };
    assert_eq!(names(Join::inner().on("k")), ["k", "p", "p_right"]);
    assert_eq!(names(Join::inner().on("k").keep_keys(true)), ["k", "p", "k_right", "p_right"]);
    assert_eq!(names(Join::inner().on("k").suffix("2").select(["p2", "k"])), ["p2", "k"]);
    assert_eq!(names(Join::new(JoinType::RightMark).on("k")), ["k", "p", "mark"]);
    assert_eq!(names(Join::new(JoinType::LeftSemi).on("k")), ["k", "p"]);
}
