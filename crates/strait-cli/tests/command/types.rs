//! Column types that an output format stores as another type, or cannot store.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, DurationMillisecondArray, DurationSecondArray,
    FixedSizeBinaryArray, Int8Array, Int32Array, Int64Array, IntervalYearMonthArray, ListArray,
    NullArray, RecordBatch, StringArray, StructArray, Time32SecondArray, UnionArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type, TimeUnit, UnionFields};
use arrow::ipc::reader::FileReader;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::sandbox::Sandbox;

/// A sandbox with `ids.csv`, and with the column in `t.arrow`.
fn sandbox(column: ArrayRef) -> Sandbox {
    let sandbox = Sandbox::new();
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..column.len() as i64));
    let batch = RecordBatch::try_from_iter_with_nullable([("id", ids, true), ("c", column, true)]);
    sandbox.ipc_stream("t.arrow", &batch.unwrap());
    let ids: String = (0..100).map(|id| format!("{id}\n")).collect();
    sandbox.write("ids.csv", format!("id\n{ids}"));
    sandbox
}

fn in_struct(column: ArrayRef) -> ArrayRef {
    let field = Field::new("f", column.data_type().clone(), true);
    Arc::new(StructArray::from(vec![(Arc::new(field), column)]))
}

fn join(table: &str, out: &str) -> String {
    format!("join {table} ids.csv --on id --select id,c -o {out} --overwrite")
}

#[test]
fn unions_are_for_arrow_files() {
    let fields = [Field::new("n", DataType::Int64, true), Field::new("t", DataType::Utf8, true)];
    let fields = UnionFields::try_new([0, 1], fields).unwrap();
    let children: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![1, 2, 3])),
        Arc::new(StringArray::from(vec!["a", "b", "c"])),
    ];
    let union = UnionArray::try_new(fields, vec![0, 1, 0].into(), None, children).unwrap();
    let union: ArrayRef = Arc::new(union);
    let keys = Int8Array::from(vec![2, 0, 1]);
    let dictionary = Arc::new(DictionaryArray::new(keys, Arc::clone(&union)));
    for column in [Arc::clone(&union), in_struct(in_struct(union)), dictionary] {
        let sandbox = sandbox(column);
        for (out, name) in [("o.parquet", "Parquet"), ("o.csv", "CSV")] {
            let run = sandbox.strait(&join("t.arrow", out));
            run.fails(&[&format!("{name} cannot hold column \"c\""), "write .arrow,", "--select"]);
            assert!(!run.stderr.contains("write .parquet"), "{}", run.stderr);
        }
        sandbox.strait(&join("t.arrow", "o.arrow")).ok();
    }
}

/// A dictionary of any values can be written as Parquet and read again.
#[test]
fn dictionaries_of_every_type_in_parquet() {
    use DataType::{
        Binary, BinaryView, Date32, Date64, Decimal32, Decimal64, Decimal128, Decimal256, Duration,
        Float16, Float32, Float64, Int8, Int16, Int32, Int64, LargeBinary, LargeUtf8, Time32,
        Time64, Timestamp, UInt8, UInt16, UInt32, UInt64, Utf8, Utf8View,
    };
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![7, 1, 100]));
    let mut types = vec![Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
    types.extend([Float16, Float32, Float64, Date32, Date64]);
    types.extend([Decimal32(9, 2), Decimal64(18, 2), Decimal128(38, 2), Decimal256(76, 2)]);
    types.extend([Utf8, LargeUtf8, Utf8View, Binary, LargeBinary, BinaryView]);
    types.extend([Time32(Second), Time32(Millisecond), Time64(Microsecond), Time64(Nanosecond)]);
    for unit in [Second, Millisecond, Microsecond, Nanosecond] {
        types.extend([Timestamp(unit, None), Timestamp(unit, Some("+02:00".into()))]);
        types.push(Duration(unit));
    }
    // Arrow has no cast from integers to some of these types.
    let cast_to = |to: &DataType| {
        let by = [Int32, Int64, Utf8].map(|by| cast(&numbers, &by).unwrap());
        by.iter().find_map(|by| cast(by, to).ok()).unwrap_or_else(|| panic!("no cast to {to}"))
    };
    let mut values: Vec<ArrayRef> = types.iter().map(cast_to).collect();
    values.extend([
        Arc::new(BooleanArray::from(vec![true, false, true])) as ArrayRef,
        Arc::new(NullArray::new(3)),
        Arc::new(IntervalYearMonthArray::from(vec![7, 1, 100])),
        Arc::new(FixedSizeBinaryArray::try_from_iter(["abc", "def", "ghi"].iter()).unwrap()),
        in_struct(Arc::clone(&numbers)),
        in_struct(Arc::new(BooleanArray::from(vec![true, false, true]))),
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), None]),
            None,
            Some(vec![]),
        ])),
    ]);
    for values in values {
        let data_type = values.data_type().clone();
        let keys = Int8Array::from(vec![Some(2), None, Some(0), Some(1), Some(2)]);
        let column: ArrayRef = Arc::new(DictionaryArray::new(keys, values));
        for column in [Arc::clone(&column), in_struct(column)] {
            let sandbox = sandbox(column);
            let joins =
                [("t.arrow", "o.parquet"), ("t.arrow", "o.arrow"), ("o.parquet", "again.arrow")];
            for (table, out) in joins {
                let run = sandbox.strait(&join(table, out));
                assert_eq!(run.status, Some(0), "{data_type} to {out}: {}", run.stderr);
            }
            let [before, after] = ["o.arrow", "again.arrow"].map(|name| rows(&sandbox, name));
            assert_eq!(before, after, "{data_type}");
        }
    }
}

/// Returns the rows of an Arrow file as text, sorted.
fn rows(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let file = std::fs::File::open(sandbox.path(name)).unwrap();
    let batches: Vec<_> = FileReader::try_new(file, None).unwrap().map(Result::unwrap).collect();
    let text = arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string();
    let mut rows: Vec<String> = text.lines().map(str::to_string).collect();
    rows.sort_unstable();
    rows
}

/// Parquet has no unit for seconds. A time of day in seconds becomes a time of day in milliseconds.
#[test]
fn times_of_day_stay_times_in_parquet() {
    let times: ArrayRef = Arc::new(Time32SecondArray::from(vec![Some(86_399), None]));
    for column in [Arc::clone(&times), in_struct(times)] {
        let sandbox = sandbox(column);
        for more in ["", "--memory 64MiB"] {
            sandbox.strait(&format!("{} {more}", join("t.arrow", "o.parquet"))).ok();
            let file = std::fs::File::open(sandbox.path("o.parquet")).unwrap();
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            let leaf = reader.parquet_schema().column(1);
            let logical = leaf.logical_type_ref();
            let is_time = matches!(logical, Some(parquet::basic::LogicalType::Time { .. }));
            assert!(is_time, "{leaf:?}");
            sandbox.strait(&join("o.parquet", "o.jsonl")).ok();
            assert!(
                sandbox.read("o.jsonl").contains("\"23:59:59\""),
                "{}",
                sandbox.read("o.jsonl")
            );
        }
    }
    let sandbox = sandbox(Arc::new(Time32SecondArray::from(vec![i32::MAX])));
    sandbox.strait(&join("t.arrow", "o.parquet")).fails(&["column \"c\"", "milliseconds"]);
}

#[test]
fn durations_that_text_cannot_hold() {
    let late: ArrayRef = Arc::new(DurationSecondArray::from(vec![Some(1), None, Some(i64::MAX)]));
    let early: ArrayRef = Arc::new(DurationMillisecondArray::from(vec![i64::MIN, 1]));
    for column in [late, early] {
        let keys = Int8Array::from_iter_values(0..column.len() as i8);
        let dictionary = Arc::new(DictionaryArray::new(keys, Arc::clone(&column)));
        for column in [Arc::clone(&column), dictionary] {
            let sandbox = sandbox(column);
            for (out, name) in [("o.csv", "CSV"), ("o.jsonl", "JSON")] {
                let message = format!("{name} cannot hold a value of column \"c\"");
                sandbox.strait(&join("t.arrow", out)).fails(&[&message, "duration", ".arrow"]);
            }
            sandbox.strait(&join("t.arrow", "o.arrow")).ok();
        }
        let sandbox = sandbox(in_struct(column));
        let message = "JSON cannot hold a value of column \"c\"";
        sandbox.strait(&join("t.arrow", "o.jsonl")).fails(&[message, "duration"]);
    }
    let fine = Arc::new(DurationSecondArray::from(vec![Some(1), None, Some(1 << 40)]));
    let sandbox = sandbox(fine);
    for out in ["o.csv", "o.jsonl"] {
        sandbox.strait(&join("t.arrow", out)).ok();
        assert!(sandbox.read(out).contains("PT1S"), "{}", sandbox.read(out));
    }
}

#[test]
fn values_without_bytes_are_not_for_parquet() {
    let binary: ArrayRef = Arc::new(FixedSizeBinaryArray::new_null(0, 2));
    let object: ArrayRef = Arc::new(StructArray::new_empty_fields(2, None));
    for (column, data_type) in [(binary, "FixedSizeBinary(0)"), (object, "Struct()")] {
        for column in [Arc::clone(&column), in_struct(column)] {
            let sandbox = sandbox(column);
            let run = sandbox.strait(&join("t.arrow", "o.parquet"));
            run.fails(&["Parquet cannot hold column \"c\"", data_type, "write .arrow,"]);
            sandbox.strait(&join("t.arrow", "o.arrow")).ok();
        }
    }
}
