//! The expected result of a case: the names and types of the output columns, and their rows.

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field};
use strait::{JoinType, NullEquality, Output, Side};
use strait_testkit::decode::decode;
use strait_testkit::{Comparison, JoinKind, Pair, Rng, Table, Triple, Value, oracle};

use super::case::{Case, FilterKind};

/// The origin of an output column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A column of a side.
    Column(Side, usize),
    /// The key with this number. Its value is the left row's. In a right join, and if there is no left row,
    /// it is the right row's.
    Key(usize),
    /// The position of the side's row.
    Position(Side),
    /// The mark.
    Mark,
}

/// A column of the output.
#[derive(Debug, Clone)]
pub(crate) struct OutputColumn {
    pub(crate) name: String,
    pub(crate) origin: Origin,
    /// The comparison rules of its cells.
    pub(crate) terms: Comparison,
}

/// The keys of both tables' rows, and the output rows that they make.
pub(crate) struct Expected {
    pub(crate) columns: Vec<OutputColumn>,
    /// The keys as they are compared.
    pub(crate) keys: [Vec<Vec<Value>>; 2],
    /// The keys as they are in the output: equal floats may have different bits.
    shown_keys: [Vec<Vec<Value>>; 2],
    join_type: JoinType,
    pub(crate) triples: Vec<Triple>,
    /// For each key, whether its columns may be null on both sides.
    pub(crate) nullable: Vec<bool>,
}

impl Expected {
    /// Computes the expected result with the oracle.
    pub(crate) fn of(case: &Case, pair: &Pair) -> Expected {
        let keys_on = |terms: &[Comparison]| {
            let named = |side: fn(&(String, String)) -> &String| -> Vec<(&str, Comparison)> {
                pair.keys.iter().map(|k| side(k).as_str()).zip(terms.iter().copied()).collect()
            };
            let left = oracle::keys(&pair.left.batches, &named(|k| &k.0));
            [left, oracle::keys(&pair.right.batches, &named(|k| &k.1))]
        };
        let keys = keys_on(&case.terms());
        let as_shown: Vec<Comparison> = case.shape.keys.iter().map(|k| k.comparison()).collect();
        let shown_keys = keys_on(&as_shown);
        let passes = passes(case, pair, &keys);
        let filter = passes.as_ref().map(|f| &**f as oracle::PairFilter<'_>);
        let nulls_equal = case.null_equality == NullEquality::Equal;
        let kind = kind_of(case.join_type);
        let triples = oracle::join(kind, &keys[0], &keys[1], nulls_equal, filter);
        let nullable = |table: &Table, name: &str| {
            table.schema.field_with_name(name).expect("a key column").is_nullable()
        };
        let nullable = (pair.keys.iter())
            .map(|(l, r)| nullable(&pair.left, l) && nullable(&pair.right, r))
            .collect();
        let (columns, join_type) = (select(case, columns(case, pair)), case.join_type);
        Expected { columns, keys, shown_keys, join_type, triples, nullable }
    }

    /// Returns the output rows, cell by cell, in no particular order.
    pub(crate) fn rows(&self, pair: &Pair) -> Vec<Vec<Value>> {
        type Cells = Box<dyn Fn(&Triple) -> Value>;
        let at =
            |cells: &[Value], row: Option<usize>| row.map_or(Value::Null, |r| cells[r].clone());
        let cells: Vec<Cells> = (self.columns.iter())
            .map(|column| -> Cells {
                match column.origin {
                    Origin::Column(Side::Left, i) => {
                        let cells = column_of(&pair.left, i, &column.terms);
                        Box::new(move |t| at(&cells, t.left))
                    }
                    Origin::Column(Side::Right, i) => {
                        let cells = column_of(&pair.right, i, &column.terms);
                        Box::new(move |t| at(&cells, t.right))
                    }
                    Origin::Key(k) => {
                        let of =
                            |keys: &[Vec<Value>]| keys.iter().map(|key| key[k].clone()).collect();
                        let [left, right]: [Vec<Value>; 2] =
                            [of(&self.shown_keys[0]), of(&self.shown_keys[1])];
                        let of_right = self.join_type == JoinType::Right;
                        Box::new(move |t| match t.left.filter(|_| !of_right) {
                            Some(l) => left[l].clone(),
                            None => at(&right, t.right),
                        })
                    }
                    Origin::Position(side) => Box::new(move |t| {
                        let row = if side == Side::Left { t.left } else { t.right };
                        row.map_or(Value::Null, |row| Value::Int(row as i128))
                    }),
                    Origin::Mark => Box::new(|t| t.mark.map_or(Value::Null, Value::Bool)),
                }
            })
            .collect();
        let row = |t: &Triple| cells.iter().map(|cell| settled(cell(t))).collect();
        self.triples.iter().map(row).collect()
    }
}

/// Normalises a value for comparison. A union has no nulls of its own, so an absent row may be a null of any
/// member.
pub(crate) fn settled(value: Value) -> Value {
    match value {
        Value::Tagged(_, inner) if inner.is_null() => Value::Null,
        value => value,
    }
}

/// Returns the cells of a column in all batches.
fn column_of(table: &Table, column: usize, terms: &Comparison) -> Vec<Value> {
    let of = |batch: &RecordBatch| decode(batch.column(column), terms);
    table.batches.iter().flat_map(of).collect()
}

/// Returns for each side whether the output has its columns.
pub(crate) fn sides(join_type: JoinType) -> (bool, bool) {
    use JoinType::*;
    match join_type {
        Inner | Left | Right | Full => (true, true),
        LeftSemi | LeftAnti | LeftMark => (true, false),
        RightSemi | RightAnti | RightMark => (false, true),
        _ => unreachable!("this test does not know {join_type}"),
    }
}

/// Returns all output columns, in order.
fn columns(case: &Case, pair: &Pair) -> Vec<OutputColumn> {
    let (has_left, has_right) = sides(case.join_type);
    let mut columns = Vec::new();
    if case.output == Output::Pairs {
        let terms = Comparison::alone(&DataType::UInt64);
        let mut position = |name: &str, side| {
            let (name, origin) = (name.to_string(), Origin::Position(side));
            columns.push(OutputColumn { name, origin, terms });
        };
        if has_left {
            position("left_row", Side::Left);
        }
        if has_right {
            position("right_row", Side::Right);
        }
    } else {
        if has_left {
            columns.extend(pair.left.schema.fields().iter().enumerate().map(|(i, field)| {
                let key = pair.keys.iter().position(|(l, r)| l == field.name() && l == r);
                match key.filter(|&key| has_right && merges(case, key)) {
                    Some(key) => OutputColumn {
                        name: field.name().clone(),
                        origin: Origin::Key(key),
                        terms: case.shape.keys[key].comparison(),
                    },
                    None => plain(field, Side::Left, i, field.name().clone()),
                }
            }));
        }
        for (i, field) in pair.right.schema.fields().iter().enumerate().filter(|_| has_right) {
            let clash = has_left && pair.left.schema.column_with_name(field.name()).is_some();
            let key = pair.keys.iter().position(|(l, r)| r == field.name() && l == r);
            if key.is_some_and(|key| has_left && merges(case, key)) {
                continue;
            }
            let suffix = if clash { case.suffix } else { "" };
            columns.push(plain(field, Side::Right, i, format!("{}{suffix}", field.name())));
        }
    }
    if matches!(case.join_type, JoinType::LeftMark | JoinType::RightMark) {
        let (name, terms) = (case.mark_column.to_string(), Comparison::alone(&DataType::Boolean));
        columns.push(OutputColumn { name, origin: Origin::Mark, terms });
    }
    columns
}

/// Whether a key with the same name on both sides becomes one output column. In a full join, the column has
/// values of both sides, so it needs an Arrow type that holds all of them unchanged. If there is none, both
/// columns stay.
fn merges(case: &Case, key: usize) -> bool {
    use DataType::*;
    let kind = &case.shape.keys[key];
    fn values(t: &DataType) -> &DataType {
        if let Dictionary(_, values) = t { values } else { t }
    }
    let (left, right) = (values(&kind.left), values(&kind.right));
    let binary = |t: &DataType| matches!(t, Binary | LargeBinary | BinaryView);
    let mixable = match (left, right) {
        (l, r) if l == r => true,
        (UInt64, r) if r.is_signed_integer() => false,
        (l, UInt64) if l.is_signed_integer() => false,
        (Date32 | Date64, Date32 | Date64) => true,
        (l, r) => {
            l.is_integer() && r.is_integer()
                || l.is_floating() && r.is_floating()
                || l.is_string() && r.is_string()
                || binary(l) && binary(r)
        }
    };
    !case.keep_keys && (mixable || case.join_type != JoinType::Full)
}

fn plain(field: &Field, side: Side, column: usize, name: String) -> OutputColumn {
    let terms = Comparison::alone(field.data_type());
    OutputColumn { name, origin: Origin::Column(side, column), terms }
}

/// Selects some of the columns in some order, if the case asks for it. Row-id pairs are never cut.
fn select(case: &Case, mut columns: Vec<OutputColumn>) -> Vec<OutputColumn> {
    if let (Some(seed), Output::Rows) = (case.select, case.output) {
        let mut rng = Rng::new(seed);
        rng.shuffle(&mut columns);
        columns.truncate(rng.between(0, columns.len()));
    }
    columns
}

/// Whether a pair of rows passes the case's filter. Computed without the library.
fn passes(
    case: &Case,
    pair: &Pair,
    keys: &[Vec<Vec<Value>>; 2],
) -> Option<Box<dyn Fn(usize, usize) -> bool>> {
    let filter = case.filter?;
    if let FilterKind::Cells(cells) = filter {
        return Some(Box::new(cells.passes(pair)));
    }
    let numbers = |table: &Table| -> Vec<Option<i64>> {
        let column = table.schema.index_of("n").expect("a column n");
        let cells = column_of(table, column, &Comparison::alone(&DataType::Int32));
        cells
            .into_iter()
            .map(|v| if let Value::Int(v) = v { Some(v as i64) } else { None })
            .collect()
    };
    let (left, right) = (numbers(&pair.left), numbers(&pair.right));
    let null_keys: Vec<bool> = keys[0].iter().map(|key| key[0].is_null()).collect();
    Some(Box::new(move |l: usize, r: usize| match filter {
        FilterKind::SumNotDivisible(m) => {
            left[l].zip(right[r]).is_some_and(|(a, b)| (a + b) % m != 0)
        }
        FilterKind::LeftEven => left[l].is_some_and(|n| n % 2 == 0),
        FilterKind::RightEven => right[r].is_some_and(|n| n % 2 == 0),
        FilterKind::AlwaysNull => false,
        FilterKind::KeyNotNull => !null_keys[l],
        FilterKind::Cells(_) => unreachable!("answered above"),
    }))
}

fn kind_of(join_type: JoinType) -> JoinKind {
    match join_type {
        JoinType::Inner => JoinKind::Inner,
        JoinType::Left => JoinKind::Left,
        JoinType::Right => JoinKind::Right,
        JoinType::Full => JoinKind::Full,
        JoinType::LeftSemi => JoinKind::LeftSemi,
        JoinType::RightSemi => JoinKind::RightSemi,
        JoinType::LeftAnti => JoinKind::LeftAnti,
        JoinType::RightAnti => JoinKind::RightAnti,
        JoinType::LeftMark => JoinKind::LeftMark,
        JoinType::RightMark => JoinKind::RightMark,
        _ => unreachable!("this test does not know {join_type}"),
    }
}
