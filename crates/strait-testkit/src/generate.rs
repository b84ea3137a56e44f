//! Random pairs of tables: any key, any payload, any split into batches.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::domain::{Domain, Style};
use crate::encode::{blank, encode, fits};
use crate::kinds::KeyKind;
use crate::random::Rng;
use crate::shape::{Order, Shape, SideShape, Skew, Split, Variety};
use crate::sharing::{Common, Sharing, longest, rooms};
use crate::value::{Comparison, Value, leaf};

/// A table, as a list of batches.
#[derive(Debug, Clone)]
pub struct Table {
    /// The schema; it is there even if there are no batches.
    pub schema: SchemaRef,
    /// The batches.
    pub batches: Vec<RecordBatch>,
}

impl Table {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }
}

/// Two tables to be joined.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The left table.
    pub left: Table,
    /// The right table.
    pub right: Table,
    /// The names of the key columns: left, right.
    pub keys: Vec<(String, String)>,
}

/// A column as values, before it becomes arrays.
struct Draft {
    name: String,
    data_type: DataType,
    comparison: Comparison,
    values: Vec<Value>,
}

impl Pair {
    /// Generates tables of the given shape.
    pub fn generate(rng: &mut Rng, shape: &Shape) -> Pair {
        let pool = key_pool(rng, shape);
        let names: Vec<_> = (0..shape.keys.len())
            .map(|i| {
                let right = if shape.one_name { format!("k{i}") } else { format!("rk{i}") };
                (format!("k{i}"), right)
            })
            .collect();
        let lefts: Vec<_> = shape.keys.iter().map(|k| &k.left).collect();
        let rights: Vec<_> = shape.keys.iter().map(|k| &k.right).collect();
        let left_names: Vec<_> = names.iter().map(|(l, _)| l.as_str()).collect();
        let right_names: Vec<_> = names.iter().map(|(_, r)| r.as_str()).collect();
        let payload = if shape.clashes { "p" } else { "q" };
        let left = table(rng, shape, &shape.left, (&lefts, &left_names, "p"), &pool);
        let right = table(rng, shape, &shape.right, (&rights, &right_names, payload), &pool);
        Pair { left, right, keys: names }
    }
}

/// The keys that both tables draw from. The types of one side cannot hold some of them.
fn key_pool(rng: &mut Rng, shape: &Shape) -> Vec<Vec<Value>> {
    let mut domains: Vec<[Domain; 2]> = Vec::new();
    let chosen = shape.style == Style::Chosen;
    for kind in &shape.keys {
        let mut left = Domain::new(rng, &kind.left, kind.comparison(), shape.style);
        if !domains.is_empty() {
            left = left.after_the_first();
        }
        domains.push(match kind.left == kind.right {
            true => [left.clone(), left],
            false => {
                let right = Domain::new(rng, &kind.right, kind.comparison(), shape.style);
                [left.near_zero(), right.near_zero()]
            }
        });
    }
    let key = |i: usize| {
        let mut value = |(c, sides): (usize, &[Domain; 2])| {
            // Values of later columns repeat, so that some keys differ in only one column.
            let place = if c == 0 || chosen { i } else { rng.below(shape.distinct / 2 + 2) };
            rng.pick(sides).clone().draw(rng, place)
        };
        domains.iter().enumerate().map(&mut value).collect()
    };
    (0..shape.distinct).map(key).collect()
}

fn table(
    rng: &mut Rng,
    shape: &Shape,
    side: &SideShape,
    (types, names, prefix): (&[&DataType], &[&str], &str),
    pool: &[Vec<Value>],
) -> Table {
    let comparisons: Vec<_> = shape.keys.iter().map(KeyKind::comparison).collect();
    let fitting: Vec<&Vec<Value>> = pool
        .iter()
        .filter(|key| (key.iter().zip(types).zip(&comparisons)).all(|((v, t), m)| fits(t, m, v)))
        .collect();
    let mut keys: Vec<Vec<Value>> =
        (0..side.rows).map(|_| draw_key(rng, side, types.len(), &fitting)).collect();
    match side.order {
        Order::Random => {}
        Order::NullsFirst => keys.sort(),
        Order::NullsLast => keys.sort_by_cached_key(|k| (k.iter().any(Value::is_null), k.clone())),
    }
    let mut drafts: Vec<Draft> = (0..types.len())
        .map(|c| Draft {
            name: names[c].to_string(),
            data_type: types[c].clone(),
            comparison: comparisons[c],
            values: keys.iter().map(|key| key[c].clone()).collect(),
        })
        .collect();
    let columns = types.iter().copied().chain(&side.payload).chain(&side.text);
    let longest = columns.map(longest).min().unwrap_or(usize::MAX);
    let lengths = lengths(rng, side, longest);
    for (i, data_type) in side.payload.iter().enumerate() {
        drafts.push(payload(rng, format!("{prefix}{i}"), data_type, (side, &lengths)));
    }
    if shape.numbers {
        drafts.push(payload(rng, "n".to_string(), &DataType::Int32, (side, &lengths)));
    }
    if let Some(data_type) = &side.text {
        drafts.push(texts(rng, data_type, side.rows));
    }
    rng.shuffle(&mut drafts);
    assemble(rng, side, &drafts, &lengths)
}

fn draw_key(
    rng: &mut Rng,
    side: &SideShape,
    columns: usize,
    fitting: &[&Vec<Value>],
) -> Vec<Value> {
    let distinct = fitting.len();
    let place = match side.skew {
        Skew::Uniform => rng.below(distinct),
        Skew::Zipf => (distinct as f64 * rng.unit().powi(4)) as usize,
        Skew::Heavy(percent) if rng.chance(percent, 100) => 0,
        Skew::Heavy(_) => rng.below(distinct),
    };
    let mut key = fitting.get(place).map_or_else(|| vec![Value::Null; columns], |k| k.to_vec());
    for value in &mut key {
        if rng.chance(side.nulls, 100) {
            *value = Value::Null;
        }
    }
    key
}

/// Makes a column besides the key. In an Int64 column, every row has its own value.
fn payload(
    rng: &mut Rng,
    name: String,
    data_type: &DataType,
    (side, lengths): (&SideShape, &[usize]),
) -> Draft {
    const FEW: usize = 40;
    let comparison = Comparison::alone(data_type);
    let (style, most) = match side.variety {
        Variety::Many => (*rng.pick(&[Style::Dense, Style::LowBitsEqual]), rooms(data_type)),
        _ => (*rng.pick(&Style::ALL), FEW),
    };
    let domain = Domain::new(rng, data_type, comparison, style);
    let nulls = *rng.pick(&[0, 10, 10, 60]);
    let mut pool: Vec<Value> = Vec::new();
    let mut values = Vec::with_capacity(side.rows);
    for &length in lengths {
        let first = values.len();
        if side.variety != Variety::Few {
            pool = (0..length.min(most)).map(|i| domain.draw(rng, first + i)).collect();
        } else if pool.is_empty() {
            pool = (0..side.rows.min(most)).map(|i| domain.draw(rng, i)).collect();
        }
        let mut value = |row: usize| match data_type {
            _ if rng.chance(nulls, 100) => blank(leaf(data_type)),
            DataType::Int64 => Value::Int((first + row) as i128),
            _ if side.variety == Variety::Many => pool[row % pool.len()].clone(),
            _ => rng.pick(&pool).clone(),
        };
        values.extend((0..length).map(&mut value));
    }
    Draft { name, data_type: data_type.clone(), comparison, values }
}

/// Makes a column `t`. Some of its texts are tens of kilobytes long, and differ only in their last bytes.
fn texts(rng: &mut Rng, data_type: &DataType, rows: usize) -> Draft {
    let mut value = |row: usize| {
        let length = if rng.chance(1, 3) { rng.between(10_000, 100_000) } else { rng.below(20) };
        let mut text = vec![b'x'; length];
        text.extend(format!("{}", row % 5).bytes());
        match data_type {
            _ if rng.chance(1, 10) => Value::Null,
            DataType::Struct(_) => Value::Tuple(vec![Value::Bytes(text)]),
            DataType::List(_) => Value::List(vec![Value::Bytes(text); rng.below(3)]),
            _ => Value::Bytes(text),
        }
    };
    let values = (0..rows).map(&mut value).collect();
    let comparison = Comparison::alone(data_type);
    Draft { name: "t".to_string(), data_type: data_type.clone(), comparison, values }
}

fn assemble(rng: &mut Rng, side: &SideShape, drafts: &[Draft], lengths: &[usize]) -> Table {
    let fields: Vec<Field> = drafts
        .iter()
        .map(|draft| {
            let bare = draft.data_type.is_primitive() || draft.data_type == DataType::Utf8;
            let full = bare && !draft.values.iter().any(Value::is_null);
            Field::new(&draft.name, draft.data_type.clone(), !full || rng.chance(1, 2))
        })
        .collect();
    let schema = Arc::new(Schema::new(fields));
    let sources: Vec<Source> = drafts.iter().map(|draft| draft.source(rng, side)).collect();
    let mut batches = Vec::new();
    let mut start = 0;
    for &length in lengths {
        let columns = (drafts.iter().zip(&sources))
            .map(|(draft, source)| match source {
                Source::Slices(array) => array.slice(start, length),
                Source::Common(common) => {
                    common.array(rng, side.sharing, &draft.values[start..start + length])
                }
                Source::Own => draft.array(rng, start, length),
            })
            .collect();
        start += length;
        batches.push(RecordBatch::try_new(schema.clone(), columns).expect("columns as announced"));
    }
    Table { schema, batches }
}

/// The origin of the arrays of a column's batches.
enum Source<'a> {
    /// All are slices of this array.
    Slices(ArrayRef),
    /// All are dictionaries with the same values.
    Common(Common<'a>),
    /// Each array is made separately.
    Own,
}

/// Returns the lengths of a table's batches, each at most `longest`.
fn lengths(rng: &mut Rng, side: &SideShape, longest: usize) -> Vec<usize> {
    let mut lengths = Vec::new();
    let mut left = side.rows;
    while left > 0 {
        let length = match side.split {
            Split::Whole => left,
            Split::Every(rows) => rows,
            Split::Random(most) => rng.between(0, most),
        };
        let length = length.min(left).min(longest);
        lengths.push(length);
        left -= length;
    }
    if side.split != Split::Whole && rng.chance(1, 4) {
        lengths.insert(rng.below(lengths.len() + 1), 0);
    }
    lengths
}

impl Draft {
    /// Chooses the source of this column's arrays: slices only if one array can hold the whole column.
    fn source(&self, rng: &mut Rng, side: &SideShape) -> Source<'_> {
        let (data_type, rows) = (&self.data_type, self.values.len());
        let fits = match side.variety {
            Variety::Few => true,
            _ => rows <= rooms(data_type),
        };
        if side.shared && fits && rows <= longest(data_type) {
            return Source::Slices(self.array(rng, 0, rows));
        }
        match side.sharing {
            Sharing::Own => Source::Own,
            _ => Common::new(rng, data_type, &self.comparison, &self.values)
                .map_or(Source::Own, Source::Common),
        }
    }

    /// Rows `start..start + length`, sometimes as a slice of a longer array.
    fn array(&self, rng: &mut Rng, start: usize, length: usize) -> ArrayRef {
        let values = &self.values[start..start + length];
        // Long arrays are not extended, because 16-bit run ends could not count their rows.
        if length == 0 || length > 8000 || rng.chance(2, 3) {
            return encode(rng, &self.data_type, &self.comparison, values);
        }
        let (before, after) = (rng.below(10), rng.below(3));
        let mut padded: Vec<Value> = (0..before).map(|_| rng.pick(values).clone()).collect();
        padded.extend_from_slice(values);
        padded.extend((0..after).map(|_| values[0].clone()));
        encode(rng, &self.data_type, &self.comparison, &padded).slice(before, length)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::decode::decode;
    use crate::kinds;

    #[test]
    fn what_is_encoded_decodes_to_itself() {
        let mut rng = Rng::new(1);
        let payloads = kinds::payloads().into_iter().map(KeyKind::same);
        for kind in kinds::all().into_iter().chain(payloads) {
            for style in Style::ALL {
                let comparison = kind.comparison();
                let domain = Domain::new(&mut rng, &kind.left, comparison, style);
                let mut values: Vec<_> = (0..30).map(|i| domain.draw(&mut rng, i)).collect();
                values.extend([blank(&kind.left), values[3].clone()]);
                assert!(values.iter().all(|v| fits(&kind.left, &comparison, v)), "{kind}");
                let array = encode(&mut rng, &kind.left, &comparison, &values);
                array.to_data().validate_full().unwrap();
                assert_eq!(array.data_type(), &kind.left);
                assert_eq!(decode(&array, &comparison), values, "{kind} {style:?}");
                assert_eq!(
                    decode(&array.slice(5, 20), &comparison),
                    values[5..25],
                    "{kind} sliced"
                );
            }
        }
    }

    #[test]
    fn keys_of_every_kind_meet() {
        let mut rng = Rng::new(2);
        for kind in kinds::all() {
            let mut shape = Shape::random(&mut rng, vec![kind.clone()], false);
            shape.style = Style::Dense;
            shape.distinct = 50;
            (shape.left.rows, shape.right.rows) = (200, 200);
            (shape.left.nulls, shape.right.nulls) = (10, 10);
            let pair = Pair::generate(&mut rng, &shape);
            let (l, r) = &pair.keys[0];
            let left = crate::oracle::keys(&pair.left.batches, &[(l, kind.comparison())]);
            let right = crate::oracle::keys(&pair.right.batches, &[(r, kind.comparison())]);
            let rows = crate::oracle::join(crate::JoinKind::Inner, &left, &right, false, None);
            assert!(!rows.is_empty(), "no matches for {kind}");
        }
    }

    #[test]
    fn bulk_is_bulky_and_valid() {
        let mut dictionaries = HashMap::<String, HashSet<Value>>::new();
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let mut shape = Shape::bulk(&mut rng, vec![KeyKind::same(DataType::Int64)]);
            let small = kinds::dictionary(DataType::Int8, DataType::Utf8View);
            shape.left.payload.push(small.clone());
            let pair = Pair::generate(&mut rng, &shape);
            let bulky = |table: &Table| table.rows() >= 33_000 || table.batches.len() >= 200;
            assert!(bulky(&pair.left) || bulky(&pair.right), "{shape:?}");
            for batch in pair.left.batches.iter().chain(&pair.right.batches) {
                batch.columns().iter().for_each(|c| c.to_data().validate_full().unwrap());
            }
            for batch in &pair.left.batches {
                let cells = batch.columns().iter().filter(|c| *c.data_type() == small);
                let cells = cells.flat_map(|c| decode(c, &Comparison::alone(&small)));
                dictionaries.entry(format!("{:?}", shape.left.variety)).or_default().extend(cells);
            }
        }
        let most = dictionaries.values().map(HashSet::len).max();
        assert!(most > Some(256), "no column has more values than its keys can address");
    }

    #[test]
    fn long_texts_are_long_and_differ_at_their_ends() {
        for data_type in kinds::texts() {
            let draft = texts(&mut Rng::new(3), &data_type, 60);
            let array = draft.array(&mut Rng::new(4), 0, 60);
            array.to_data().validate_full().unwrap();
            assert_eq!(decode(&array, &draft.comparison), draft.values, "{data_type}");
            assert!(array.get_array_memory_size() > 50_000, "{data_type}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_tables() {
        let tables = |seed| {
            let mut rng = Rng::new(seed);
            let keys = kinds::random_key(&mut rng);
            let shape = Shape::random(&mut rng, keys, false);
            format!("{:?}", Pair::generate(&mut rng, &shape))
        };
        assert_eq!(tables(5), tables(5));
        assert_ne!(tables(5), tables(6));
    }
}
