//! Relations between joins that hold for all tables. These tests need no oracle.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, Int64Array, RecordBatch, RecordBatchIterator, StringArray, UInt64Array,
};
use arrow::datatypes::UInt64Type;
use proptest::prelude::*;
use strait::{Algorithm, Filter, Join, JoinType, NullEquality, Side};
use strait_testkit::{Comparison, rows_of, same_rows};

/// Two key columns, one of numbers and one of strings; either may be null.
type Keys = Vec<(Option<i64>, Option<u8>)>;

/// Both tables, and the settings of their join.
#[derive(Debug, Clone)]
struct Setting {
    left: Keys,
    right: Keys,
    /// The key is the number alone, the string alone, or both.
    columns: &'static [&'static str],
    algorithm: Algorithm,
    nulls_equal: bool,
    filtered: bool,
    threads: usize,
}

fn keys() -> impl Strategy<Value = Keys> {
    let number = prop_oneof![
        4 => (0..12i64).prop_map(Some),
        1 => Just(None),
        1 => prop_oneof![Just(i64::MIN), Just(i64::MAX), Just(-1)].prop_map(Some),
    ];
    let string = prop_oneof![5 => (0..4u8).prop_map(Some), 1 => Just(None)];
    prop::collection::vec((number, string), 0..40)
}

fn setting() -> impl Strategy<Value = Setting> {
    let columns = prop_oneof![
        Just(&["a"][..]),
        Just(&["b"][..]),
        Just(&["a", "b"][..]),
        Just(&["b", "a"][..])
    ];
    let algorithm = prop::sample::select(Algorithm::ANYWHERE.to_vec());
    (keys(), keys(), columns, algorithm, any::<bool>(), any::<bool>(), 1..=3usize).prop_map(
        |(left, right, columns, algorithm, nulls_equal, filtered, threads)| Setting {
            left,
            right,
            columns,
            algorithm,
            nulls_equal,
            filtered,
            threads,
        },
    )
}

fn table(keys: &Keys) -> RecordBatch {
    let names = ["", "one", "another that is longer than twelve bytes", "x"];
    let a: ArrayRef = Arc::new(Int64Array::from_iter(keys.iter().map(|k| k.0)));
    let b: ArrayRef =
        Arc::new(StringArray::from_iter(keys.iter().map(|k| k.1.map(|b| names[b as usize]))));
    let row: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..keys.len() as u64));
    RecordBatch::try_from_iter_with_nullable([("a", a, true), ("b", b, true), ("row", row, false)])
        .expect("columns of one length")
}

impl Setting {
    fn join(&self, join_type: JoinType) -> Join {
        let nulls = if self.nulls_equal { NullEquality::Equal } else { NullEquality::NeverEqual };
        let mut join = Join::new(join_type)
            .algorithm(self.algorithm)
            .threads(self.threads)
            .null_equality(nulls);
        for &column in self.columns {
            join = join.on(column);
        }
        if self.filtered {
            // Symmetric, so that it has the same meaning with the sides swapped.
            let columns = [(Side::Left, "row"), (Side::Right, "row")];
            join = join.filter(Filter::new(columns, |batch: &RecordBatch| {
                let row = |i: usize| batch.column(i).as_primitive::<UInt64Type>().values();
                Ok(row(0).iter().zip(row(1)).map(|(l, r)| Some((l + r) % 3 != 0)).collect())
            }));
        }
        join
    }

    fn count(&self, join_type: JoinType) -> u64 {
        let (left, right) = (table(&self.left), table(&self.right));
        self.join(join_type).count(reader(&[left]), reader(&[right])).expect("it counts").0
    }

    fn rows(&self, join: &Join) -> Vec<Vec<strait_testkit::Value>> {
        collected(join, &[table(&self.left)], &[table(&self.right)]).1
    }

    /// Returns row-id pairs, sorted.
    fn pairs(&self, join_type: JoinType) -> Vec<Vec<strait_testkit::Value>> {
        let (left, right) = (table(&self.left), table(&self.right));
        let output =
            self.join(join_type).pairs(reader(&[left]), reader(&[right])).expect("it runs");
        let batches: Vec<RecordBatch> = output.map(|b| b.expect("a batch")).collect();
        let mut rows = values(&batches);
        rows.sort();
        rows
    }
}

fn reader(batches: &[RecordBatch]) -> impl arrow::array::RecordBatchReader + Send + 'static {
    let (schema, batches) = (batches[0].schema(), batches.to_vec());
    RecordBatchIterator::new(batches.into_iter().map(Ok), schema)
}

fn values(batches: &[RecordBatch]) -> Vec<Vec<strait_testkit::Value>> {
    let terms: Vec<Comparison> = batches.first().map_or(vec![], |batch| {
        batch.schema().fields().iter().map(|f| Comparison::alone(f.data_type())).collect()
    });
    rows_of(batches, &terms)
}

/// Returns the names of the output columns, and the output rows.
fn collected(
    join: &Join,
    left: &[RecordBatch],
    right: &[RecordBatch],
) -> (Vec<String>, Vec<Vec<strait_testkit::Value>>) {
    let output = join.run(reader(left), reader(right)).expect("it runs");
    let schema = arrow::array::RecordBatchReader::schema(&output);
    let names = schema.fields().iter().map(|f| f.name().clone()).collect();
    let batches: Vec<RecordBatch> = output.map(|b| b.expect("a batch")).collect();
    (names, values(&batches))
}

/// Cuts a batch at the given places.
fn cut(batch: &RecordBatch, places: &[usize]) -> Vec<RecordBatch> {
    let mut ends: Vec<_> = places.iter().map(|p| p % (batch.num_rows() + 1)).collect();
    ends.push(batch.num_rows());
    ends.sort_unstable();
    let mut start = 0;
    let mut parts = Vec::new();
    for end in ends {
        parts.push(batch.slice(start, end - start));
        start = end;
    }
    parts
}

/// Returns the join type with the sides swapped.
fn mirrored(join_type: JoinType) -> JoinType {
    use JoinType::*;
    match join_type {
        Inner => Inner,
        Left => Right,
        Right => Left,
        Full => Full,
        LeftSemi => RightSemi,
        RightSemi => LeftSemi,
        LeftAnti => RightAnti,
        RightAnti => LeftAnti,
        LeftMark => RightMark,
        RightMark => LeftMark,
        _ => unreachable!("this test does not know {join_type}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn outer_joins_are_inner_joins_and_the_rest(s in setting()) {
        use JoinType::*;
        let (inner, left, right, full) = (s.count(Inner), s.count(Left), s.count(Right), s.count(Full));
        prop_assert_eq!(left, inner + s.count(LeftAnti));
        prop_assert_eq!(right, inner + s.count(RightAnti));
        prop_assert_eq!(full, left + s.count(RightAnti));
    }

    #[test]
    fn semi_and_anti_share_the_rows_among_them(s in setting()) {
        use JoinType::*;
        let mut both = s.pairs(LeftSemi);
        both.extend(s.pairs(LeftAnti));
        both.sort();
        let all: Vec<_> = (0..s.left.len()).map(|r| vec![strait_testkit::Value::Int(r as i128)]).collect();
        prop_assert_eq!(both, all);
        prop_assert_eq!(s.count(RightSemi) + s.count(RightAnti), s.right.len() as u64);
        prop_assert_eq!(s.count(LeftMark), s.left.len() as u64);
        let marked = s.pairs(RightMark).into_iter().filter(|row| row[1] == strait_testkit::Value::Bool(true));
        prop_assert_eq!(marked.count() as u64, s.count(RightSemi));
    }

    #[test]
    fn a_semi_join_has_the_left_rows_of_the_inner_one(s in setting()) {
        let mut lefts: Vec<_> = s.pairs(JoinType::Inner).into_iter().map(|mut row| row.swap_remove(0)).collect();
        lefts.sort();
        lefts.dedup();
        let semi: Vec<_> = s.pairs(JoinType::LeftSemi).into_iter().map(|mut row| row.swap_remove(0)).collect();
        prop_assert_eq!(semi, lefts);
    }

    #[test]
    fn swapping_the_sides_mirrors_the_join(s in setting(), which in 0..10usize) {
        let join_type = JoinType::ALL[which];
        let swapped = Setting { left: s.right.clone(), right: s.left.clone(), ..s.clone() };
        let mut mirror = swapped.pairs(mirrored(join_type));
        let two_sided = which < 4;
        if two_sided {
            mirror.iter_mut().for_each(|row| row.swap(0, 1));
            mirror.sort();
        }
        prop_assert_eq!(s.pairs(join_type), mirror);
    }

    #[test]
    fn algorithms_agree(s in setting(), which in 0..10usize) {
        let join_type = JoinType::ALL[which];
        let first = s.rows(&s.join(join_type));
        for algorithm in Algorithm::ANYWHERE {
            let other = s.rows(&s.join(join_type).algorithm(algorithm));
            let same = same_rows(first.clone(), other);
            prop_assert!(same.is_ok(), "{} and {algorithm}: {}", s.algorithm, same.unwrap_err());
        }
    }

    #[test]
    fn how_tables_are_cut_does_not_matter(
        s in setting(),
        which in 0..10usize,
        places in prop::collection::vec(any::<usize>(), 0..6),
        batch_size in 1..50usize,
    ) {
        let join = s.join(JoinType::ALL[which]).batch_size(batch_size);
        let (left, right) = (cut(&table(&s.left), &places), cut(&table(&s.right), &places));
        let same = same_rows(s.rows(&join), collected(&join, &left, &right).1);
        prop_assert!(same.is_ok(), "{}", same.unwrap_err());
    }

    #[test]
    fn a_selection_is_a_selection_of_the_whole(s in setting(), which in 0..10usize, order in any::<u64>()) {
        let join = s.join(JoinType::ALL[which]);
        let (left, right) = ([table(&s.left)], [table(&s.right)]);
        let (names, rows) = collected(&join, &left, &right);
        let mut chosen: Vec<usize> = (0..names.len()).collect();
        let mut rng = strait_testkit::Rng::new(order);
        rng.shuffle(&mut chosen);
        chosen.truncate(rng.between(1, names.len()));
        let selected = join.select(chosen.iter().map(|&c| names[c].clone()));
        let expected = rows.into_iter().map(|row| chosen.iter().map(|&c| row[c].clone()).collect()).collect();
        let (columns, actual) = collected(&selected, &left, &right);
        prop_assert_eq!(columns, chosen.iter().map(|&c| names[c].clone()).collect::<Vec<_>>());
        let same = same_rows(expected, actual);
        prop_assert!(same.is_ok(), "{}", same.unwrap_err());
    }

    #[test]
    fn rows_pairs_and_count_agree(s in setting(), which in 0..10usize) {
        let join_type = JoinType::ALL[which];
        let rows = s.rows(&s.join(join_type)).len();
        prop_assert_eq!(rows, s.pairs(join_type).len());
        prop_assert_eq!(rows as u64, s.count(join_type));
    }
}
