//! The description of a random pair of tables, from which the tables are made.

use arrow::datatypes::DataType;

use crate::domain::Style;
use crate::kinds::{self, KeyKind};
use crate::random::Rng;
use crate::sharing::Sharing;

/// How often each key occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skew {
    /// All keys equally often.
    Uniform,
    /// The first keys much more often than the later ones.
    Zipf,
    /// One key in this percentage of the rows, the others equally often.
    Heavy(usize),
}

/// Whether a table is sorted by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Not sorted.
    Random,
    /// Sorted as Arrow sorts by default.
    NullsFirst,
    /// Sorted, with rows that have a null in their key last.
    NullsLast,
}

/// How a table is cut into batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// One batch, or none if there are no rows.
    Whole,
    /// Batches of this many rows.
    Every(usize),
    /// Batches with a random number of rows up to this one. Some are empty.
    Random(usize),
}

/// How many different values a payload column has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variety {
    /// A few, the same ones in all batches.
    Few,
    /// A few in each batch, but different ones in the next. All batches together have more than narrow
    /// dictionary keys can address.
    FewPerBatch,
    /// One per row, or as many as a dictionary's keys can address in one batch.
    Many,
}

/// The description of one table.
#[derive(Debug, Clone)]
pub struct SideShape {
    /// The number of rows.
    pub rows: usize,
    /// The percentage of nulls in each key column.
    pub nulls: usize,
    /// How often each key occurs.
    pub skew: Skew,
    /// Whether the table is sorted.
    pub order: Order,
    /// How the table is cut into batches.
    pub split: Split,
    /// Whether batches are slices of one array per column.
    pub shared: bool,
    /// Whether batches share the values of dictionaries, if they are not slices.
    pub sharing: Sharing,
    /// How many different values a payload column has.
    pub variety: Variety,
    /// The types of the columns besides the key.
    pub payload: Vec<DataType>,
    /// The type of a column `t` with some texts of tens of kilobytes, if there is one.
    pub text: Option<DataType>,
}

/// The description of a pair of tables.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The key columns.
    pub keys: Vec<KeyKind>,
    /// How their values are distributed over the range of their type.
    pub style: Style,
    /// The number of different keys, including keys that the types of one side cannot hold.
    pub distinct: usize,
    /// Whether each key column has the same name on both sides.
    pub one_name: bool,
    /// Whether payload columns have the same names on both sides.
    pub clashes: bool,
    /// Whether both sides have an Int32 column `n`, with some nulls, for filters.
    pub numbers: bool,
    /// The left table.
    pub left: SideShape,
    /// The right table.
    pub right: SideShape,
}

impl Shape {
    /// A random shape, mostly small. With `large`, it has thousands of rows.
    pub fn random(rng: &mut Rng, keys: Vec<KeyKind>, large: bool) -> Self {
        let left = SideShape::random(rng, large);
        let right = SideShape::random(rng, large);
        let most = left.rows.max(right.rows);
        let distinct = match rng.below(4) {
            _ if large => rng.between(most / 2, most * 2),
            0 => rng.between(1, 3),
            1 => most * 4 + 1,
            _ => rng.between(1, most + 1),
        };
        Shape {
            distinct: distinct.min(keys.iter().map(distinct_limit).min().unwrap_or(distinct)),
            keys,
            style: *rng.pick(&Style::ALL),
            one_name: rng.chance(2, 3),
            clashes: rng.chance(1, 2),
            numbers: rng.chance(1, 2),
            left,
            right,
        }
    }
}

impl Shape {
    /// A shape with one table of at least 33,000 rows or at least 200 batches, and another table that is
    /// small enough for the oracle. The payload has any type.
    pub fn bulk(rng: &mut Rng, keys: Vec<KeyKind>) -> Self {
        let mut shape = Shape::random(rng, keys, false);
        let limit = shape.keys.iter().map(distinct_limit).min().unwrap_or(usize::MAX);
        shape.distinct = rng.between(100, 600).min(limit);
        shape.style = *rng.pick(&[Style::Dense, Style::Scattered, Style::LowBitsEqual]);
        let (bulk, other) = match rng.chance(1, 2) {
            true => (&mut shape.left, &mut shape.right),
            false => (&mut shape.right, &mut shape.left),
        };
        other.split = *rng.pick(&[Split::Whole, Split::Every(1), Split::Random(20)]);
        (bulk.rows, bulk.split) = match rng.below(4) {
            0 | 1 => (rng.between(33_000, 36_000), Split::Whole),
            2 => (rng.between(36_000, 40_000), Split::Every(rng.between(18_000, 20_000))),
            _ => {
                let rows = rng.between(1, 20);
                other.split = Split::Every(1);
                (rng.between(200, 260) * rows, Split::Every(rows))
            }
        };
        // In many cases, the pairs fill more than one output batch of the default size.
        let pairs = *rng.pick(&[10_000, 34_000, 37_000]);
        other.rows = (shape.distinct * pairs / bulk.rows).min(rng.between(200, 300));
        for (side, columns) in [(bulk, rng.between(1, 3)), (other, rng.between(0, 2))] {
            side.nulls = *rng.pick(&[0, 0, 1]);
            side.skew = Skew::Uniform;
            side.variety = *rng.pick(&[Variety::Few, Variety::FewPerBatch, Variety::Many]);
            side.payload = (0..columns).map(|_| rng.pick(&kinds::payloads()).clone()).collect();
            side.text = None;
        }
        shape
    }
}

impl SideShape {
    fn random(rng: &mut Rng, large: bool) -> Self {
        let text = (!large && rng.chance(1, 300)).then(|| rng.pick(&kinds::texts()).clone());
        let rows = match large {
            true => rng.between(1000, 4000),
            false => {
                let most = if text.is_some() { 12 } else { *rng.pick(&[4, 12, 30, 60]) };
                rng.between(0, most)
            }
        };
        let skew = match rng.below(4) {
            0 if large => Skew::Heavy(2),
            0 => Skew::Heavy(*rng.pick(&[20, 60, 95])),
            1 if !large => Skew::Zipf,
            _ => Skew::Uniform,
        };
        let nulls = match large {
            true => *rng.pick(&[0, 1]),
            false => *rng.pick(&[0, 0, 0, 10, 50, 100]),
        };
        let payload =
            (0..*rng.pick(&[0, 1, 1, 2, 3])).map(|_| kinds::random_payload(rng)).collect();
        SideShape {
            rows,
            nulls,
            skew,
            order: *rng.pick(&[Order::Random, Order::Random, Order::NullsFirst, Order::NullsLast]),
            split: match rng.below(4) {
                0 => Split::Whole,
                1 if !large => Split::Every(2),
                2 => Split::Every(rng.between(1, 1000)),
                _ => Split::Random(if large { 900 } else { 20 }),
            },
            shared: rng.chance(1, 2),
            sharing: *rng.pick(&Sharing::ALL),
            variety: *rng.pick(&[Variety::Few, Variety::Few, Variety::FewPerBatch, Variety::Many]),
            payload,
            text,
        }
    }
}

/// Returns how many distinct keys the types allow. A dictionary with 8-bit keys allows only a few.
fn distinct_limit(kind: &KeyKind) -> usize {
    let limit = |t: &DataType| match t {
        DataType::Dictionary(index, _) if matches!(**index, DataType::Int8 | DataType::UInt8) => {
            100
        }
        _ => usize::MAX,
    };
    limit(&kind.left).min(limit(&kind.right))
}
