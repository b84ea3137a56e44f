//! Checks the only order that the library promises: a sort-merge join returns its rows sorted by key.

use strait::{NullEquality, Output, Side};
use strait_testkit::Value;
use strait_testkit::value::row_cmp_nulls_last;

use super::case::Case;
use super::check::{Failure, ensure};
use super::expect::{Expected, Origin, sides};

/// Checks that the keys of the rows never descend. Nulls are last at every depth. A row that cannot match
/// because of a null in its key comes after all others.
///
/// If nulls are equal, but the other side's column is declared without nulls, a null cannot match either.
/// Such a row may be among the others or after them.
pub(crate) fn check_order(
    case: &Case,
    expected: &Expected,
    rows: &[Vec<Value>],
) -> Result<(), Failure> {
    let Some(mut keys) = keys_of(case, expected, rows) else { return Ok(()) };
    if case.null_equality == NullEquality::Equal {
        let free =
            |key: &[Value]| key.iter().zip(&expected.nullable).any(|(v, n)| v.is_null() && !n);
        keys.retain(|key| !free(key));
    }
    let idle = |key: &[Value]| {
        case.null_equality == NullEquality::NeverEqual && key.iter().any(Value::is_null)
    };
    let in_order = |a: &[Value], b: &[Value]| match (idle(a), idle(b)) {
        (false, false) => row_cmp_nulls_last(a, b).is_le(),
        (a, b) => a <= b,
    };
    let fall = keys.windows(2).position(|pair| !in_order(&pair[0], &pair[1]));
    if let Some(row) = fall {
        let shown = |key: &[Value]| key.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
        let (before, after) = (shown(&keys[row]), shown(&keys[row + 1]));
        ensure!(false, "row {} with key ({after}) comes after key ({before})", row + 1);
    }
    Ok(())
}

/// Returns the key of each output row, if the output has all key columns.
fn keys_of(case: &Case, expected: &Expected, rows: &[Vec<Value>]) -> Option<Vec<Vec<Value>>> {
    let place = |origin| expected.columns.iter().position(|c| c.origin == origin);
    if case.output == Output::Pairs {
        let (left, right) =
            (place(Origin::Position(Side::Left)), place(Origin::Position(Side::Right)));
        let key = |row: &Vec<Value>| {
            let of = |side: usize, column: Option<usize>| match row[column?] {
                Value::Int(at) => Some(expected.keys[side][at as usize].clone()),
                _ => None,
            };
            of(0, left).or_else(|| of(1, right))
        };
        return rows.iter().map(key).collect();
    }
    // The two columns of a key that is not merged have separate comparison rules. Only merged columns, and
    // the columns of a join that returns one side, are keys of the whole output.
    let one_sided = sides(case.join_type) != (true, true);
    let places: Vec<usize> = (0..case.shape.keys.len())
        .map(|k| {
            place(Origin::Key(k)).or_else(|| {
                let names = if case.shape.one_name { format!("k{k}") } else { format!("rk{k}") };
                let left = format!("k{k}");
                let own = |c: &super::expect::OutputColumn| match c.origin {
                    Origin::Column(Side::Left, _) => c.name == left,
                    Origin::Column(Side::Right, _) => c.name == names,
                    _ => false,
                };
                expected.columns.iter().position(own).filter(|_| one_sided)
            })
        })
        .collect::<Option<_>>()?;
    Some(rows.iter().map(|row| places.iter().map(|&p| row[p].clone()).collect()).collect())
}
