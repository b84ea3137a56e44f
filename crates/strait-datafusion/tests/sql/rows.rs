//! Compares results as multisets of rows, by value.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Float32Type, Float64Type, SchemaRef};
use arrow::row::{RowConverter, SortField};
use arrow::util::pretty::pretty_format_batches;

/// The rows of a result, sorted. Two values are the same if they have the same bits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    types: Vec<DataType>,
    rows: Vec<Box<[u8]>>,
}

impl Rows {
    pub(crate) fn of(schema: &SchemaRef, batches: &[RecordBatch]) -> Rows {
        let types: Vec<_> = schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let mut rows = Vec::new();
        if types.is_empty() {
            let count = batches.iter().map(RecordBatch::num_rows).sum();
            rows.resize(count, Box::default());
            return Rows { types, rows };
        }
        let fields = types.iter().map(|of| SortField::new(of.clone())).collect();
        let converter = RowConverter::new(fields).expect("rows can be compared");
        for batch in batches {
            let found: Vec<_> = batch.columns().iter().map(|c| c.data_type().clone()).collect();
            assert_eq!(found, types, "a batch has other types than its stream");
            let converted = converter.convert_columns(batch.columns()).expect("rows convert");
            rows.extend(converted.iter().map(|row| Box::from(row.data())));
        }
        rows.sort_unstable();
        Rows { types, rows }
    }

    /// Returns the rows of a result with groups. A group with both zeros is shown with any of them.
    pub(crate) fn of_groups(schema: &SchemaRef, batches: &[RecordBatch]) -> Rows {
        let one_zero = |column: &ArrayRef| -> ArrayRef {
            match column.data_type() {
                DataType::Float32 => {
                    let floats = column.as_primitive::<Float32Type>();
                    Arc::new(floats.unary::<_, Float32Type>(|value| value + 0.0))
                }
                DataType::Float64 => {
                    let floats = column.as_primitive::<Float64Type>();
                    Arc::new(floats.unary::<_, Float64Type>(|value| value + 0.0))
                }
                _ => Arc::clone(column),
            }
        };
        let changed = |batch: &RecordBatch| {
            let columns = batch.columns().iter().map(one_zero).collect();
            let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            RecordBatch::try_new_with_options(batch.schema(), columns, &rows)
                .expect("the same types")
        };
        Rows::of(schema, &batches.iter().map(changed).collect::<Vec<_>>())
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether each row of `self` is in `all`, as often as there.
    pub(crate) fn are_among(&self, all: &Rows) -> bool {
        let mut left = HashMap::<&[u8], usize>::new();
        for row in &all.rows {
            *left.entry(row).or_default() += 1;
        }
        self.types == all.types
            && self.rows.iter().all(|row| match left.get_mut(&row[..]) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    true
                }
                _ => false,
            })
    }
}

/// Returns the values of the first columns of a result, in the order of its rows.
pub(crate) fn sequence(batches: &[RecordBatch], columns: usize) -> Vec<Box<[u8]>> {
    let Some(first) = batches.first().filter(|_| columns > 0) else { return Vec::new() };
    let fields = first.columns()[..columns].iter().map(|c| SortField::new(c.data_type().clone()));
    let converter = RowConverter::new(fields.collect()).expect("rows can be compared");
    let rows = batches.iter().flat_map(|batch| {
        let rows = converter.convert_columns(&batch.columns()[..columns]).expect("rows convert");
        rows.iter().map(|row| Box::from(row.data())).collect::<Vec<_>>()
    });
    rows.collect()
}

/// Shows the first rows of a result.
pub(crate) fn shown(batches: &[RecordBatch]) -> String {
    const MOST: usize = 100;
    let total: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let mut left = MOST;
    let first: Vec<_> = (batches.iter())
        .map(|batch| {
            let batch = batch.slice(0, batch.num_rows().min(left));
            left -= batch.num_rows();
            batch
        })
        .collect();
    match pretty_format_batches(&first) {
        Ok(table) => format!("{total} rows\n{table}"),
        Err(error) => format!("{total} rows that cannot be shown: {error}"),
    }
}

/// Panics unless two results have the same rows.
pub(crate) fn assert_same(expected: &[RecordBatch], found: &[RecordBatch], about: &str) {
    let schema = |batches: &[RecordBatch]| batches.first().map(RecordBatch::schema);
    let (Some(of_expected), Some(of_found)) = (schema(expected), schema(found)) else {
        let count = |batches: &[RecordBatch]| batches.iter().map(|b| b.num_rows()).sum::<usize>();
        assert_eq!(count(expected), count(found), "{about}: numbers of rows");
        return;
    };
    let [of_expected, of_found] =
        [Rows::of(&Arc::clone(&of_expected), expected), Rows::of(&Arc::clone(&of_found), found)];
    assert!(
        of_expected == of_found,
        "{about}\nexpected {}\nfound {}",
        shown(expected),
        shown(found)
    );
}
