//! Random pairs of tables: any key, any payload, any split into batches.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::domain::{Domain, Style};
use crate::encode::{blank, encode, fits};
use crate::kinds::KeyKind;
use crate::random::Rng;
use crate::shape::{Order, Shape, SideShape, Skew, Split};
use crate::value::{Meeting, Value, leaf};

/// A table in batches.
#[derive(Debug, Clone)]
pub struct Table {
    /// Its schema, also where it has no batches.
    pub schema: SchemaRef,
    /// Its batches.
    pub batches: Vec<RecordBatch>,
}

impl Table {
    /// How many rows it has.
    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }
}

/// Two tables to be joined.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The left one.
    pub left: Table,
    /// The right one.
    pub right: Table,
    /// The names of the key columns.
    pub keys: Vec<(String, String)>,
}

/// A column before it is an array.
struct Draft {
    name: String,
    data_type: DataType,
    meeting: Meeting,
    values: Vec<Value>,
}

impl Pair {
    /// Tables of the given shape.
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

/// The keys both tables draw from: some of them only one side's types can hold.
fn key_pool(rng: &mut Rng, shape: &Shape) -> Vec<Vec<Value>> {
    let mut domains: Vec<[Domain; 2]> = Vec::new();
    let chosen = shape.style == Style::Chosen;
    for kind in &shape.keys {
        let mut left = Domain::new(rng, &kind.left, kind.meeting(), shape.style);
        if !domains.is_empty() {
            left = left.after_the_first();
        }
        domains.push(match kind.left == kind.right {
            true => [left.clone(), left],
            false => {
                let right = Domain::new(rng, &kind.right, kind.meeting(), shape.style);
                [left.near_zero(), right.near_zero()]
            }
        });
    }
    let key = |i: usize| {
        let mut value = |(c, sides): (usize, &[Domain; 2])| {
            // Later columns repeat, so that keys differ in one column alone.
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
    let meetings: Vec<_> = shape.keys.iter().map(KeyKind::meeting).collect();
    let fitting: Vec<&Vec<Value>> = pool
        .iter()
        .filter(|key| (key.iter().zip(types).zip(&meetings)).all(|((v, t), m)| fits(t, m, v)))
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
            meeting: meetings[c],
            values: keys.iter().map(|key| key[c].clone()).collect(),
        })
        .collect();
    for (i, data_type) in side.payload.iter().enumerate() {
        drafts.push(payload(rng, format!("{prefix}{i}"), data_type, side.rows));
    }
    if shape.numbers {
        drafts.push(payload(rng, "n".to_string(), &DataType::Int32, side.rows));
    }
    rng.shuffle(&mut drafts);
    assemble(rng, side, &drafts)
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

/// A column besides the key: of few different values, but for Int64, where every row has its own.
fn payload(rng: &mut Rng, name: String, data_type: &DataType, rows: usize) -> Draft {
    let meeting = Meeting::alone(data_type);
    let domain = Domain::new(rng, data_type, meeting, *rng.clone().pick(&Style::ALL));
    let nulls = *rng.pick(&[0, 10, 10, 60]);
    let pool: Vec<Value> = (0..rows.min(40)).map(|i| domain.draw(rng, i)).collect();
    let mut value = |row| match data_type {
        _ if rng.chance(nulls, 100) => blank(leaf(data_type)),
        DataType::Int64 => Value::Int(row as i128),
        _ => rng.pick(&pool).clone(),
    };
    let values = (0..rows).map(&mut value).collect();
    Draft { name, data_type: data_type.clone(), meeting, values }
}

fn assemble(rng: &mut Rng, side: &SideShape, drafts: &[Draft]) -> Table {
    let fields: Vec<Field> = drafts
        .iter()
        .map(|draft| {
            let bare = draft.data_type.is_primitive() || draft.data_type == DataType::Utf8;
            let full = bare && !draft.values.iter().any(Value::is_null);
            Field::new(&draft.name, draft.data_type.clone(), !full || rng.chance(1, 2))
        })
        .collect();
    let schema = Arc::new(Schema::new(fields));
    let whole: Vec<ArrayRef> = match side.shared {
        true => drafts.iter().map(|d| d.array(rng, 0, side.rows)).collect(),
        false => Vec::new(),
    };
    let mut batches = Vec::new();
    let mut start = 0;
    for length in lengths(rng, side) {
        let columns = (drafts.iter().enumerate())
            .map(|(i, draft)| match whole.get(i) {
                Some(array) => array.slice(start, length),
                None => draft.array(rng, start, length),
            })
            .collect();
        start += length;
        batches.push(RecordBatch::try_new(schema.clone(), columns).expect("columns as announced"));
    }
    Table { schema, batches }
}

fn lengths(rng: &mut Rng, side: &SideShape) -> Vec<usize> {
    let mut lengths = Vec::new();
    let mut left = side.rows;
    while left > 0 {
        let length = match side.split {
            Split::Whole => left,
            Split::Every(rows) => rows,
            Split::Random(most) => rng.between(0, most),
        };
        lengths.push(length.min(left));
        left -= length.min(left);
    }
    if side.split != Split::Whole && rng.chance(1, 4) {
        lengths.insert(rng.below(lengths.len() + 1), 0);
    }
    lengths
}

impl Draft {
    /// Rows `start..start + length`, sometimes as a slice of a longer array.
    fn array(&self, rng: &mut Rng, start: usize, length: usize) -> ArrayRef {
        let values = &self.values[start..start + length];
        if length == 0 || rng.chance(2, 3) {
            return encode(rng, &self.data_type, &self.meeting, values);
        }
        let (before, after) = (rng.below(10), rng.below(3));
        let mut padded: Vec<Value> = (0..before).map(|_| rng.pick(values).clone()).collect();
        padded.extend_from_slice(values);
        padded.extend((0..after).map(|_| values[0].clone()));
        encode(rng, &self.data_type, &self.meeting, &padded).slice(before, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::decode;
    use crate::kinds;

    #[test]
    fn what_is_encoded_decodes_to_itself() {
        let mut rng = Rng::new(1);
        let exotic = kinds::exotic().into_iter().map(KeyKind::same);
        for kind in kinds::all().into_iter().chain(exotic) {
            for style in Style::ALL {
                let meeting = kind.meeting();
                let domain = Domain::new(&mut rng, &kind.left, meeting, style);
                let mut values: Vec<_> = (0..30).map(|i| domain.draw(&mut rng, i)).collect();
                values.extend([blank(&kind.left), values[3].clone()]);
                assert!(values.iter().all(|v| fits(&kind.left, &meeting, v)), "{kind}");
                let array = encode(&mut rng, &kind.left, &meeting, &values);
                array.to_data().validate_full().unwrap();
                assert_eq!(array.data_type(), &kind.left);
                assert_eq!(decode(&array, &meeting), values, "{kind} {style:?}");
                assert_eq!(decode(&array.slice(5, 20), &meeting), values[5..25], "{kind} sliced");
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
            let left = crate::oracle::keys(&pair.left.batches, &[(l, kind.meeting())]);
            let right = crate::oracle::keys(&pair.right.batches, &[(r, kind.meeting())]);
            let rows = crate::oracle::join(crate::JoinKind::Inner, &left, &right, false, None);
            assert!(!rows.is_empty(), "no matches for {kind}");
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
