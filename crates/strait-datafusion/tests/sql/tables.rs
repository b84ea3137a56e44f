//! Random tables of all types.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DurationMillisecondArray,
    FixedSizeBinaryArray, Float64Array, Int32Array, Int64Array, ListArray, NullArray, RecordBatch,
    StringArray, StructArray, Time64MicrosecondArray, TimestampSecondArray, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{SortOptions, cast, concat_batches, sort_to_indices, take_record_batch};
use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit};
use datafusion::catalog::MemTable;
use datafusion::prelude::col;
use fastrand::Rng;

/// Types that can be compared with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Integer,
    Float,
    Decimal,
    Date,
    Timestamp,
    Text,
    Bytes,
    Boolean,
    Time,
    Duration,
}

impl Family {
    /// Draws a family. Integers and texts are the most frequent keys.
    pub(crate) fn random(rng: &mut Rng) -> Family {
        use Family::*;
        const ALL: [Family; 15] = [
            Integer, Integer, Integer, Integer, Text, Text, Text, Float, Float, Decimal, Date,
            Timestamp, Bytes, Boolean, Time,
        ];
        if rng.u8(..) < 6 { Duration } else { ALL[rng.usize(..ALL.len())] }
    }

    fn types(self) -> Vec<DataType> {
        use DataType::*;
        let dictionary =
            |of: DataType, values: DataType| Dictionary(Box::new(of), Box::new(values));
        match self {
            Family::Integer => {
                vec![
                    Int8,
                    Int16,
                    Int32,
                    Int64,
                    UInt8,
                    UInt16,
                    UInt32,
                    UInt64,
                    dictionary(Int16, Int32),
                ]
            }
            Family::Float => vec![Float32, Float64],
            Family::Decimal => vec![
                Decimal128(10, 2),
                Decimal128(20, 4),
                Decimal256(40, 2),
                Decimal64(12, 2),
                Decimal32(8, 1),
            ],
            Family::Date => vec![Date32, Date64],
            Family::Timestamp => vec![
                Timestamp(TimeUnit::Second, None),
                Timestamp(TimeUnit::Millisecond, None),
                Timestamp(TimeUnit::Microsecond, None),
                Timestamp(TimeUnit::Nanosecond, None),
                Timestamp(TimeUnit::Microsecond, Some("+02:00".into())),
            ],
            Family::Text => vec![
                Utf8,
                LargeUtf8,
                Utf8View,
                dictionary(Int8, Utf8),
                dictionary(Int32, Utf8),
                dictionary(UInt16, LargeUtf8),
            ],
            Family::Bytes => vec![Binary, LargeBinary, BinaryView, FixedSizeBinary(5)],
            Family::Boolean => vec![Boolean],
            Family::Time => vec![Time64(TimeUnit::Microsecond)],
            Family::Duration => {
                vec![Duration(TimeUnit::Millisecond), Duration(TimeUnit::Nanosecond)]
            }
        }
    }

    /// Returns the array of these values. Equal numbers are equal values, in all types of the family.
    fn array(self, numbers: &[Option<u32>], of: &DataType) -> ArrayRef {
        let values = numbers.iter().map(|number| number.map(|n| n as i64));
        let plain: ArrayRef = match self {
            Family::Integer => Arc::new(values.collect::<Int64Array>()),
            Family::Float => {
                let float = |n: i64| match n {
                    0 => f64::NAN,
                    1 => -0.0,
                    2 => 0.0,
                    3 => f64::NEG_INFINITY,
                    n => n as f64 / 4.0,
                };
                Arc::new(values.map(|n| n.map(float)).collect::<Float64Array>())
            }
            Family::Decimal => {
                let decimals =
                    values.map(|n| n.map(|n| i128::from(n) * 10)).collect::<Decimal128Array>();
                Arc::new(decimals.with_precision_and_scale(10, 2).expect("a valid precision"))
            }
            Family::Date => {
                let days = values.map(|n| n.map(|n| n as i32 - 50)).collect::<Date32Array>();
                Arc::new(days)
            }
            Family::Timestamp => {
                Arc::new(values.map(|n| n.map(|n| n * 1000 - 9)).collect::<TimestampSecondArray>())
            }
            Family::Text => Arc::new(values.map(|n| n.map(text)).collect::<StringArray>()),
            Family::Bytes => {
                let bytes: Vec<_> =
                    values.map(|n| n.map(|n| format!("{:05}", n % 100_000))).collect();
                if let DataType::FixedSizeBinary(width) = of {
                    let fixed = bytes.into_iter().map(|b| b.map(String::into_bytes));
                    let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed, *width);
                    return Arc::new(fixed.expect("all values have this width"));
                }
                let bytes: Vec<_> =
                    bytes.iter().map(|b| b.as_ref().map(|b| b.as_bytes())).collect();
                Arc::new(BinaryArray::from(bytes))
            }
            Family::Boolean => {
                Arc::new(values.map(|n| n.map(|n| n % 2 == 1)).collect::<BooleanArray>())
            }
            Family::Time => Arc::new(values.collect::<Time64MicrosecondArray>()),
            Family::Duration => Arc::new(values.collect::<DurationMillisecondArray>()),
        };
        cast(&plain, of).expect("the values have all types of their family")
    }
}

/// Texts of all lengths: the empty one, short ones, and long ones that differ only at their end.
fn text(number: i64) -> String {
    match number % 4 {
        0 if number == 0 => String::new(),
        0 | 1 => format!("{number}"),
        2 => format!("k{number:09}é"),
        _ => format!("a prefix that many keys share, longer than a view holds inline: {number}"),
    }
}

/// The shape of a table.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) partitions: usize,
    /// The most rows of one batch.
    pub(crate) batch: usize,
    /// The number of different keys.
    pub(crate) domain: u32,
    /// How many of 100 keys are null.
    pub(crate) nulls: u8,
    /// The bytes of a wide text column.
    pub(crate) wide: usize,
}

impl Shape {
    pub(crate) fn random(rng: &mut Rng, large: bool) -> Shape {
        let rows = match rng.u8(..20) {
            0 => 0,
            1 => 1,
            _ if large => rng.usize(2_000..12_000),
            2..8 => rng.usize(2..20),
            _ => rng.usize(20..400),
        };
        let domain = match rng.u8(..4) {
            0 => rng.u32(1..4),
            1 => rng.u32(4..100),
            _ => (rows as u32).clamp(2, 100),
        };
        Shape {
            rows,
            partitions: rng.usize(1..=4),
            batch: [1, 2, 7, 64, 1000, 100_000][rng.usize(if large { 3..6 } else { 0..6 })],
            domain: if large { domain.max(60) } else { domain },
            nulls: [0, 0, 10, 40, 100][rng.usize(..if large { 4 } else { 5 })],
            wide: if large { rng.usize(20..200) } else { rng.usize(..30) },
        }
    }
}

/// The column by which the partitions of a table are sorted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sorted {
    Id,
    /// The first key.
    Key,
}

/// Random partitions of a table with the columns `id`, `k0`, `k1`, `k2` and some more.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) schema: SchemaRef,
    pub(crate) partitions: Vec<Vec<RecordBatch>>,
}

impl Table {
    pub(crate) fn random(
        rng: &mut Rng,
        families: &[Family],
        types: &[DataType],
        shape: &Shape,
    ) -> Table {
        let required: Vec<bool> = families.iter().map(|_| shape.nulls == 0 && rng.bool()).collect();
        let extra: Vec<Payload> = (0..rng.usize(..3)).map(|_| Payload::random(rng)).collect();
        let mut fields = vec![Field::new("id", DataType::Int64, rng.bool())];
        for (number, (of, required)) in types.iter().zip(&required).enumerate() {
            fields.push(Field::new(format!("k{number}"), of.clone(), !required));
        }
        fields.push(Field::new("p0", DataType::Utf8, true));
        for (number, payload) in extra.iter().enumerate() {
            fields.push(Field::new(format!("p{}", number + 1), payload.data_type(), true));
        }
        let schema = Arc::new(Schema::new(fields));
        let mut partitions = vec![Vec::new(); shape.partitions];
        let mut first = 0;
        while first < shape.rows {
            let rows = rng.usize(1..=shape.batch).min(shape.rows - first);
            let mut columns: Vec<ArrayRef> = vec![Arc::new(
                (first..first + rows).map(|id| Some(id as i64)).collect::<Int64Array>(),
            )];
            for (family, of) in families.iter().zip(types) {
                let numbers: Vec<_> = (0..rows)
                    .map(|_| (rng.u8(..100) >= shape.nulls).then(|| rng.u32(..shape.domain)))
                    .collect();
                columns.push(family.array(&numbers, of));
            }
            let wide = (0..rows).map(|_| {
                (rng.u8(..10) > 0)
                    .then(|| "w".repeat(rng.usize(..=shape.wide)) + &rng.u16(..).to_string())
            });
            columns.push(Arc::new(wide.collect::<StringArray>()));
            columns.extend(extra.iter().map(|payload| payload.array(rng, rows)));
            let batch = RecordBatch::try_new(Arc::clone(&schema), columns).expect("a valid batch");
            partitions[rng.usize(..shape.partitions)].push(batch);
            if rng.u8(..20) == 0 {
                let empty = RecordBatch::new_empty(Arc::clone(&schema));
                partitions[rng.usize(..shape.partitions)].push(empty);
            }
            first += rows;
        }
        Table { schema, partitions }
    }

    /// Returns the table. `sorted` says by which column each partition is sorted.
    pub(crate) fn provider(&self, sorted: Option<Sorted>) -> Arc<MemTable> {
        let partitions = match sorted {
            // The rows of each partition have ascending numbers.
            None | Some(Sorted::Id) => self.partitions.clone(),
            Some(Sorted::Key) => {
                self.partitions.iter().map(|batches| self.sorted(batches, 1)).collect()
            }
        };
        let table = MemTable::try_new(Arc::clone(&self.schema), partitions);
        let table = table.expect("the batches have the schema");
        let by = |name: &str| vec![vec![col(name).sort(true, true)]];
        Arc::new(table.with_sort_order(match sorted {
            None => Vec::new(),
            Some(Sorted::Id) => by("id"),
            Some(Sorted::Key) => by("k0"),
        }))
    }

    /// Sorts the rows of a partition by a column, with nulls first.
    fn sorted(&self, batches: &[RecordBatch], by: usize) -> Vec<RecordBatch> {
        let all = concat_batches(&self.schema, batches).expect("one schema");
        let options = SortOptions { descending: false, nulls_first: true };
        let order =
            sort_to_indices(all.column(by), Some(options), None).expect("keys have an order");
        let sorted = take_record_batch(&all, &order).expect("the rows of the batch");
        let mut first = 0;
        let part = |batch: &RecordBatch| {
            first += batch.num_rows();
            sorted.slice(first - batch.num_rows(), batch.num_rows())
        };
        batches.iter().map(part).collect()
    }
}

/// Draws the key types of two tables: mostly the same, and sometimes others of the same family.
pub(crate) fn key_types(rng: &mut Rng, families: &[Family]) -> [Vec<DataType>; 3] {
    let mut types: [Vec<DataType>; 3] = Default::default();
    for family in families {
        let all = family.types();
        let first = all[rng.usize(..all.len())].clone();
        for of_table in &mut types {
            let other = all[rng.usize(..all.len())].clone();
            of_table.push(if rng.u8(..4) == 0 { other } else { first.clone() });
        }
    }
    types
}

/// The types of columns that are not keys.
#[derive(Debug, Clone)]
enum Payload {
    OfFamily(Family, DataType),
    List,
    Struct,
    Null,
    Interval,
}

impl Payload {
    fn random(rng: &mut Rng) -> Payload {
        match rng.u8(..12) {
            0 => Payload::List,
            1 => Payload::Struct,
            2 => Payload::Null,
            3 => Payload::Interval,
            _ => {
                let family = Family::random(rng);
                let types = family.types();
                Payload::OfFamily(family, types[rng.usize(..types.len())].clone())
            }
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Payload::OfFamily(_, of) => of.clone(),
            Payload::List => DataType::List(Arc::new(Field::new_list_field(DataType::Int32, true))),
            Payload::Struct => DataType::Struct(
                vec![
                    Field::new("x", DataType::UInt64, true),
                    Field::new("y", DataType::Utf8, true),
                ]
                .into(),
            ),
            Payload::Null => DataType::Null,
            Payload::Interval => DataType::Interval(IntervalUnit::MonthDayNano),
        }
    }

    fn array(&self, rng: &mut Rng, rows: usize) -> ArrayRef {
        let mut numbers = |domain: u32| -> Vec<Option<u32>> {
            (0..rows).map(|_| (rng.u8(..8) > 0).then(|| rng.u32(..domain))).collect()
        };
        match self {
            Payload::OfFamily(family, of) => family.array(&numbers(100), of),
            Payload::List => {
                let lengths = numbers(4);
                let nulls: NullBuffer = lengths.iter().map(Option::is_some).collect();
                let offsets = lengths.iter().map(|length| length.unwrap_or(0) as usize);
                let offsets = OffsetBuffer::from_lengths(offsets);
                let total = lengths.iter().flatten().sum::<u32>() as i32;
                let values: Int32Array = (0..total).map(|n| (n % 3 > 0).then_some(n)).collect();
                let field = Arc::new(Field::new_list_field(DataType::Int32, true));
                Arc::new(ListArray::new(field, offsets, Arc::new(values), Some(nulls)))
            }
            Payload::Struct => {
                let x: UInt64Array = numbers(1000).iter().map(|n| n.map(u64::from)).collect();
                let y = Family::Text.array(&numbers(50), &DataType::Utf8);
                let nulls: NullBuffer = numbers(2).iter().map(Option::is_some).collect();
                let DataType::Struct(fields) = self.data_type() else { unreachable!() };
                Arc::new(StructArray::new(fields, vec![Arc::new(x), y], Some(nulls)))
            }
            Payload::Null => Arc::new(NullArray::new(rows)),
            Payload::Interval => {
                let days = Family::Integer.array(&numbers(99), &DataType::Int64);
                let durations = cast(&days, &DataType::Duration(TimeUnit::Millisecond));
                let durations = durations.expect("numbers become durations");
                cast(&durations, &self.data_type()).expect("durations become intervals")
            }
        }
    }
}
