//! Parquet files as output.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};

use crate::outputs::{EXPECTED, check_pairs, columns, pairs, write};
use crate::sandbox::{Sandbox, read_parquet, sorted};

#[test]
fn parquet_with_every_codec() {
    let sandbox = Sandbox::with_people();
    for codec in ["zstd", "snappy", "none"] {
        let out = format!("{codec}.parquet");
        write(&sandbox, &out, &format!("--compression {codec}"));
        assert_eq!(sorted(&read_parquet(&sandbox.path(&out))), EXPECTED, "{codec}");
    }
}

#[test]
fn many_rows_make_several_row_groups() {
    let sandbox = Sandbox::new();
    pairs(&sandbox);
    let groups = |name: &str| {
        let file = std::fs::File::open(sandbox.path(name)).unwrap();
        let reader =
            parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        let groups = reader.metadata().row_groups().iter().map(|group| group.num_rows());
        let groups: Vec<i64> = groups.collect();
        let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
        check_pairs(batches.iter().flat_map(|batch| {
            let [p, q] = columns(batch, ["p", "q"]);
            p.iter().copied().zip(q.iter().copied())
        }));
        groups
    };
    sandbox.strait("join a.csv b.csv --on k -o default.parquet --threads 3").ok();
    assert!((5..=7).contains(&groups("default.parquet").len()));
    let join = "join a.csv b.csv --on k --threads 3 --row-group-rows 100000";
    for algorithm in ["auto", "sort-merge"] {
        let out = format!("{algorithm}.parquet");
        sandbox.strait(&format!("{join} --algorithm {algorithm} -o {out}")).ok();
        let rows = groups(&out);
        // Each of three threads ends with a group that is not full.
        assert!((13..=15).contains(&rows.len()), "{algorithm}: {rows:?}");
        assert!(rows.iter().all(|&rows| rows <= 100_000), "{algorithm}: {rows:?}");
    }
}

/// Under a memory limit, many threads share a few open row groups. With one per thread, row groups would be tiny,
/// and a Parquet file holds at most 32,768 of them.
#[test]
fn many_threads_under_a_limit_make_no_tiny_row_groups() {
    let sandbox = Sandbox::new();
    let text = |i: u64| -> String {
        let word = |n: u64| format!("{:016x}", (i * 100 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (0..30).map(word).collect()
    };
    let wide: String = (0..300).map(|i| format!("{},{}\n", i % 3, text(i))).collect();
    sandbox.write("wide.csv", format!("k,s\n{wide}"));
    let rows: String = (0..300).map(|i| format!("{},{i}\n", i % 3)).collect();
    sandbox.write("b.csv", format!("k,q\n{rows}"));
    let join =
        "join wide.csv b.csv --on k --device cpu --algorithm no-partition --compression none";
    sandbox.strait(&format!("{join} --memory 32MiB --threads 64 -o o.parquet")).ok();
    let file = std::fs::File::open(sandbox.path("o.parquet")).unwrap();
    let reader =
        parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    assert_eq!(reader.metadata().file_metadata().num_rows(), 30_000);
    let groups = reader.metadata().num_row_groups();
    assert!(groups <= 60, "{groups} row groups for 15 MB of rows");
}

#[test]
fn row_groups_are_for_parquet() {
    let sandbox = Sandbox::with_people();
    let join = "join people.csv cities.csv --on city=id";
    for wrong in ["0", "-1", "many", "1.5", "1073741825"] {
        let run = sandbox.strait(&format!("{join} -o out.parquet --row-group-rows={wrong}"));
        run.refused(&["--row-group-rows", "from 1 to 1073741824"]);
    }
    let run = sandbox.strait(&format!("{join} -o out.csv --row-group-rows 10"));
    run.refused(&["--row-group-rows is for Parquet output"]);
    let run = sandbox.strait(&format!("{join} --row-group-rows 10"));
    run.refused(&["--output"]);
    write(&sandbox, "out.parquet", "--row-group-rows 1");
    assert_eq!(sorted(&read_parquet(&sandbox.path("out.parquet"))), EXPECTED);
}

/// Parquet columns are encoded in several ways. The rows must not depend on it.
#[test]
fn columns_of_every_kind_in_parquet() {
    let sandbox = Sandbox::new();
    let row = |i: i64| {
        let word = ["", "air", "DELIVER IN PERSON", "rail", "x"][(i * 31 % 5) as usize];
        format!(
            "{i},{word},text number {},{},{}.5,{}\n",
            i * 7919 % 50_021,
            i / 4,
            i % 9,
            i * 48271 % 65_537
        )
    };
    let rows: String = (0..50_000).map(row).collect();
    sandbox.write("a.csv", format!("k,word,text,group,float,number\n{rows}"));
    let keys: String = (0..50_000).map(|i| format!("{i}\n")).collect();
    sandbox.write("b.csv", format!("k\n{keys}"));
    sandbox.strait("join a.csv b.csv --on k -o o.csv").ok();
    let expected = sandbox.read("o.csv");
    assert_eq!(expected.lines().count(), 50_001);
    for codec in ["none", "snappy", "zstd"] {
        for more in ["", "--row-group-rows 7000", "--memory 256MiB"] {
            let join = "join a.csv b.csv --on k --threads 3 --overwrite -o o.parquet";
            sandbox.strait(&format!("{join} --compression {codec} {more}")).ok();
            let text = read_parquet(&sandbox.path("o.parquet"));
            assert!(sorted(&text) == sorted(&expected), "{codec} {more}");
            // The command reads its own file, and skips nothing by its statistics.
            let counted =
                sandbox.strait("join o.parquet a.csv --on k,word,text,group,number --count").ok();
            let with_word = (0..50_000).filter(|i| i * 31 % 5 != 0).count();
            assert_eq!(counted, format!("{with_word}\n"), "{codec} {more}");
        }
    }
}

/// The writer chooses the encodings from a sample of the first rows. Later rows may be quite different.
#[test]
fn rows_that_the_sample_did_not_suggest() {
    let sandbox = Sandbox::new();
    let rows = 60_000_i64;
    let extreme = |i: i64| if i % 2 == 0 { i64::MIN + i } else { i64::MAX - i };
    let numbers = (0..rows).map(|i| if i < 40_000 { i / 4 } else { extreme(i) });
    let small = (0..rows).map(|i| if i < 40_000 { i as i32 / 4 } else { extreme(i) as i32 });
    let words = (0..rows).map(|i| match i {
        ..40_000 => Some(["air", "rail"][i as usize % 2].to_string()),
        _ if i % 3 == 0 => None,
        _ => Some(format!("not a word: {}", i.to_string().repeat(20))),
    });
    let columns: [(&str, ArrayRef); 4] = [
        ("k", Arc::new(Int64Array::from_iter_values(0..rows))),
        ("number", Arc::new(Int64Array::from_iter_values(numbers))),
        ("small", Arc::new(arrow::array::Int32Array::from_iter_values(small))),
        ("word", Arc::new(words.collect::<arrow::array::StringViewArray>())),
    ];
    sandbox.parquet("a.parquet", &RecordBatch::try_from_iter(columns).unwrap());
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    sandbox.parquet("b.parquet", &RecordBatch::try_from_iter([("k", keys)]).unwrap());
    let expected = read_parquet(&sandbox.path("a.parquet"));
    for codec in ["none", "snappy", "zstd"] {
        // One thread keeps the order of the rows, so that the sample has the first rows.
        let join = "join a.parquet b.parquet --on k --threads 1 --overwrite -o o.parquet";
        sandbox.strait(&format!("{join} --compression {codec}")).ok();
        let text = read_parquet(&sandbox.path("o.parquet"));
        assert!(sorted(&text) == sorted(&expected), "{codec}");
    }
}

/// The comments of orders are repeated in each of their items. Some are missing, empty or very long.
#[test]
fn repeated_comments_in_parquet() {
    let sandbox = Sandbox::new();
    let comments = (0..9_000_i64).map(|i| match i % 1000 {
        0 => None,
        1 => Some(String::new()),
        2 => Some(format!("{i} is long: {}", "x".repeat(20_000))),
        _ => Some(format!("the comment of order {i}, which is longer than a view")),
    });
    let orders: [(&str, ArrayRef); 3] = [
        ("k", Arc::new(Int64Array::from_iter_values(0..9_000))),
        (
            "price",
            Arc::new(Int64Array::from_iter((0..9_000).map(|i| (i % 7 > 0).then_some(i * 48271)))),
        ),
        ("comment", Arc::new(comments.collect::<arrow::array::StringViewArray>())),
    ];
    let items: [(&str, ArrayRef); 2] = [
        ("k", Arc::new(Int64Array::from_iter_values((0..36_010).map(|i| i / 4)))),
        ("item", Arc::new(Int64Array::from_iter_values(0..36_010))),
    ];
    sandbox.parquet("orders.parquet", &RecordBatch::try_from_iter(orders).unwrap());
    sandbox.parquet("items.parquet", &RecordBatch::try_from_iter(items).unwrap());
    // The last items have no order.
    let join = "join orders.parquet items.parquet --on k --type right --threads 2";
    sandbox.strait(&format!("{join} -o o.csv")).ok();
    let expected = sandbox.read("o.csv");
    assert_eq!(expected.lines().count(), 36_011);
    for codec in ["none", "snappy", "zstd"] {
        sandbox.strait(&format!("{join} -o o.parquet --overwrite --compression {codec}")).ok();
        // As CSV, an empty string is not a null.
        sandbox
            .strait(
                "join o.parquet items.parquet --on item --type left-semi -o again.csv --overwrite",
            )
            .ok();
        assert!(sorted(&sandbox.read("again.csv")) == sorted(&expected), "{codec}");
    }
}

/// Parquet has no unit for seconds. Such times become milliseconds, at any depth, so that other programs see times.
#[test]
fn seconds_become_milliseconds_in_parquet() {
    use arrow::array::{StructArray, TimestampSecondArray};
    use arrow::datatypes::{DataType, Field, TimeUnit};
    use parquet::basic::LogicalType;
    let sandbox = Sandbox::new();
    sandbox.write("t.csv", "id,t\n1,2024-03-24T19:00:00\n2,\n");
    let times = |values: Vec<Option<i64>>| -> ArrayRef {
        Arc::new(TimestampSecondArray::from(values).with_timezone("+00:00"))
    };
    let nested = |times: ArrayRef| {
        let field = Field::new("at", times.data_type().clone(), true);
        let nested: ArrayRef = Arc::new(StructArray::from(vec![(field.into(), times)]));
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        RecordBatch::try_from_iter([("id", ids), ("s", nested)]).unwrap()
    };
    sandbox.ipc_file("n.arrow", &nested(times(vec![Some(5), None])));
    sandbox.strait("join t.csv n.arrow --on id -o o.parquet").ok();
    let file = std::fs::File::open(sandbox.path("o.parquet")).unwrap();
    let reader =
        parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let leaves = reader.parquet_schema().columns().to_vec();
    let is_time =
        |i: usize| matches!(leaves[i].logical_type_ref(), Some(LogicalType::Timestamp { .. }));
    assert!(is_time(1) && is_time(2), "{leaves:?}");
    let millis = DataType::Timestamp(TimeUnit::Millisecond, None);
    assert_eq!(*reader.schema().field(1).data_type(), millis);
    let rows: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
    let text = arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
    assert!(text.contains("2024-03-24T19:00:00") && text.contains("1970-01-01T00:00:05"), "{text}");
    // A time that milliseconds cannot hold is an error.
    sandbox.ipc_file("n.arrow", &nested(times(vec![Some(i64::MAX / 2), None])));
    let run = sandbox.strait("join t.csv n.arrow --on id -o o.parquet --overwrite");
    run.fails(&["\"s\"", "milliseconds"]);
}

/// A greatest value that cannot be shortened would make the footer as long as the value. Such a bound is left out.
/// PyArrow 17 reads a missing bound as an empty string if the other one is there. So both are left out.
#[test]
fn long_values_do_not_make_long_footers() {
    use arrow::array::{BinaryArray, StringArray};
    use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};
    let sandbox = Sandbox::new();
    let (rows, long) = (3_000, 1 << 20);
    let text = char::MAX.to_string().repeat(long / 4);
    let texts = StringArray::from_iter_values((0..rows).map(|i| match i {
        7 => text.clone(),
        _ => format!("text {i}"),
    }));
    let bytes = BinaryArray::from_iter_values((0..rows).map(|i| match i {
        7 => vec![0xff; long],
        _ => vec![1, i as u8],
    }));
    let columns: [(&str, ArrayRef); 3] = [
        ("k", Arc::new(Int64Array::from_iter_values(0..rows))),
        ("text", Arc::new(texts)),
        ("bytes", Arc::new(bytes)),
    ];
    sandbox.ipc_file("a.arrow", &RecordBatch::try_from_iter(columns).unwrap());
    let keys: String = (0..rows).map(|i| format!("{i}\n")).collect();
    sandbox.write("b.csv", format!("k\n{keys}"));
    // Without a limit, text is encoded by the command itself. Otherwise, Arrow's writer encodes all columns.
    for more in ["", "--memory 256MiB"] {
        let join = "join a.arrow b.csv --on k --threads 1 --overwrite -o o.parquet";
        sandbox.strait(&format!("{join} {more}")).ok();
        let file = std::fs::File::open(sandbox.path("o.parquet")).unwrap();
        let reader = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Optional);
        let metadata = reader.parse_and_finish(&file).unwrap();
        let chunks = metadata.row_group(0).columns();
        for chunk in &chunks[1..] {
            let statistics = chunk.statistics().unwrap();
            assert_eq!(statistics.min_bytes_opt(), None, "{more}");
            assert_eq!(statistics.max_bytes_opt().map(<[u8]>::len), None, "{more}");
            assert_eq!(statistics.null_count_opt(), Some(0), "{more}");
        }
        // The rest of the file is its pages.
        let pages: i64 = chunks.iter().map(|chunk| chunk.compressed_size()).sum();
        let rest = file.metadata().unwrap().len() as i64 - pages;
        assert!(rest < 16 << 10, "{rest} bytes of metadata, {more}");
        // The command reads its own file, and finds the long values.
        let counted = sandbox.strait("join a.arrow o.parquet --on text,bytes --count").ok();
        assert_eq!(counted, format!("{rows}\n"), "{more}");
    }
}

/// A bound of a value of fixed length must have this length. PyArrow 26 aborts on shorter ones.
#[test]
fn bounds_of_fixed_length_are_whole() {
    use arrow::array::FixedSizeBinaryArray;
    use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};
    use parquet::file::page_index::column_index::ColumnIndexMetaData;
    let sandbox = Sandbox::new();
    let fixed = |rows: i64, value: &dyn Fn(i64) -> Vec<u8>| -> ArrayRef {
        Arc::new(FixedSizeBinaryArray::try_from_iter((0..rows).map(value)).unwrap())
    };
    let numbered =
        |length: usize| move |i: i64| [&i.to_be_bytes()[..], &vec![7; length - 8]].concat();
    for rows in [20, 60_000] {
        let columns = [
            ("k", Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef),
            ("short", fixed(rows, &numbered(16))),
            ("whole", fixed(rows, &numbered(64))),
            ("long", fixed(rows, &numbered(80))),
            ("most", fixed(rows, &|_| vec![0xff; 100])),
        ];
        sandbox.ipc_file("a.arrow", &RecordBatch::try_from_iter(columns).unwrap());
        let keys: String = (0..rows).map(|i| format!("{i}\n")).collect();
        sandbox.write("b.csv", format!("k\n{keys}"));
        for more in ["", "--memory 256MiB", "--compression none"] {
            let join = "join a.arrow b.csv --on k --threads 1 --overwrite -o o.parquet";
            sandbox.strait(&format!("{join} {more}")).ok();
            let file = std::fs::File::open(sandbox.path("o.parquet")).unwrap();
            let policy = PageIndexPolicy::Optional;
            let reader = ParquetMetaDataReader::new().with_page_index_policy(policy);
            let metadata = reader.parse_and_finish(&file).unwrap();
            let index = metadata.column_index().unwrap();
            for (group, pages) in metadata.row_groups().iter().zip(index) {
                for (column, length) in [(1, Some(16)), (2, Some(64)), (3, None), (4, None)] {
                    let what = format!("{rows} rows, column {column}, {more}");
                    let statistics = group.column(column).statistics().unwrap();
                    let lengths = [statistics.min_bytes_opt(), statistics.max_bytes_opt()]
                        .map(|bound| bound.map(<[u8]>::len));
                    assert_eq!(lengths, [length; 2], "{what}");
                    assert_eq!(statistics.null_count_opt(), Some(0), "{what}");
                    let has_index = !matches!(pages[column], ColumnIndexMetaData::NONE);
                    assert_eq!(has_index, length.is_some(), "{what}");
                }
            }
            let counted = sandbox.strait("join a.arrow o.parquet --on k,short,long,most --count");
            assert_eq!(counted.ok(), format!("{rows}\n"), "{rows} rows, {more}");
        }
    }
}
