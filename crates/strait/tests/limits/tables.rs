//! Tables that are generated while they are read, so that a whole table is never in memory.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, FixedSizeBinaryArray, Int32Array, Int64Array, LargeStringArray,
    ListArray, RecordBatch, RecordBatchIterator, RecordBatchReader, StringArray, StringViewArray,
    StructArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type};
use arrow::error::ArrowError;
use strait_testkit::Rng;

/// The type of a column, and the form of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Int,
    Bool,
    Text,
    LargeText,
    View,
    Dictionary,
    Fixed,
    List,
    Struct,
}

impl Kind {
    pub(crate) const ALL: [Kind; 9] = [
        Kind::Int,
        Kind::Bool,
        Kind::Text,
        Kind::LargeText,
        Kind::View,
        Kind::Dictionary,
        Kind::Fixed,
        Kind::List,
        Kind::Struct,
    ];

    fn column(self, rng: &mut Rng, rows: usize, text: usize) -> ArrayRef {
        let words = |rng: &mut Rng| -> Vec<Option<String>> {
            let one = |rng: &mut Rng| {
                let len = rng.below(2 * text);
                (!rng.chance(1, 20)).then(|| format!("{:0len$}", rng.bits()))
            };
            (0..rows).map(|_| one(rng)).collect()
        };
        match self {
            Kind::Int => {
                Arc::new((0..rows).map(|_| Some(rng.bits() as i64)).collect::<Int64Array>())
            }
            Kind::Bool => {
                Arc::new((0..rows).map(|_| Some(rng.chance(1, 2))).collect::<BooleanArray>())
            }
            Kind::Text => Arc::new(StringArray::from(words(rng))),
            Kind::LargeText => Arc::new(LargeStringArray::from(words(rng))),
            Kind::View => Arc::new(words(rng).into_iter().collect::<StringViewArray>()),
            Kind::Dictionary => {
                let few: Vec<String> = (0..50).map(|i| format!("{i:0text$}")).collect();
                let texts = (0..rows).map(|_| Some(rng.pick(&few).as_str()));
                let texts = StringArray::from_iter(texts);
                let key = Box::new(DataType::Int32);
                let wanted = DataType::Dictionary(key, Box::new(DataType::Utf8));
                cast(&texts, &wanted).expect("a dictionary")
            }
            Kind::Fixed => {
                let values = (0..rows).map(|_| rng.bits128().to_le_bytes());
                Arc::new(FixedSizeBinaryArray::try_from_iter(values).expect("one size"))
            }
            Kind::List => {
                let list = |rng: &mut Rng| {
                    (!rng.chance(1, 10))
                        .then(|| (0..rng.below(8)).map(|i| Some(i as i32)).collect::<Vec<_>>())
                };
                let lists: Vec<_> = (0..rows).map(|_| list(rng)).collect();
                Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))
            }
            Kind::Struct => {
                let texts: ArrayRef = Arc::new(StringArray::from(words(rng)));
                let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..rows as i32));
                let field =
                    |name, array: &ArrayRef| Field::new(name, array.data_type().clone(), true);
                Arc::new(StructArray::from(vec![
                    (Arc::new(field("text", &texts)), texts),
                    (Arc::new(field("number", &numbers)), numbers),
                ]))
            }
        }
    }
}

/// The description of a table.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    /// Rows per batch.
    pub(crate) batch: usize,
    /// Keys are the numbers below this.
    pub(crate) keys: usize,
    /// Whether keys are text.
    pub(crate) text_key: bool,
    pub(crate) payload: Vec<Kind>,
    /// The average length of texts.
    pub(crate) text: usize,
    /// Batches are slices of batches that are this many times as long.
    pub(crate) slices: usize,
    pub(crate) seed: u64,
}

impl Shape {
    fn made(&self, number: usize) -> RecordBatch {
        let first = number * self.batch * self.slices;
        let rows = (self.batch * self.slices).min(self.rows.saturating_sub(first));
        let mut rng = Rng::new(self.seed ^ (number as u64) << 20);
        let numbers = (0..rows).map(|_| Some(rng.below(self.keys) as i64));
        let mut keys: ArrayRef = Arc::new(numbers.collect::<Int64Array>());
        if self.text_key {
            keys = cast(&keys, &DataType::Utf8).expect("numbers are text");
        }
        let mut columns = vec![("k".to_string(), keys, true)];
        for (i, kind) in self.payload.iter().enumerate() {
            columns.push((format!("{kind:?}{i}"), kind.column(&mut rng, rows, self.text), true));
        }
        RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
    }

    /// A reader that generates the table batch by batch.
    pub(crate) fn reader(&self) -> impl RecordBatchReader + Send + 'static {
        let shape = self.clone();
        let schema = Shape { rows: 1, ..self.clone() }.made(0).schema();
        let parts = move |number: usize| {
            let whole = shape.made(number);
            let step = shape.batch;
            (0..whole.num_rows()).step_by(step).map(move |at| {
                Ok::<_, ArrowError>(whole.slice(at, step.min(whole.num_rows() - at)))
            })
        };
        let count = self.rows.div_ceil(self.batch * self.slices);
        RecordBatchIterator::new((0..count).flat_map(parts), schema)
    }
}
