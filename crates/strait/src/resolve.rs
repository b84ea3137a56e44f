//! Resolves column names: the keys, the filter and the output of a join over two schemas.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema};

use crate::error::{Error, Result, nearest_name};
use crate::join::Join;
use crate::key::{has_floats, has_unions};
use crate::options::{FloatEquality, JoinType, Side};
use crate::output::{Origin, Output, OutputPlan};

/// Returns the index of the column with this name.
pub(crate) fn column(side: &'static str, schema: &Schema, name: &str) -> Result<usize> {
    let named = |field: &FieldRef| field.name() == name;
    let mut found = schema.fields().iter().enumerate().filter(|(_, f)| named(f)).map(|(i, _)| i);
    match (found.next(), found.count()) {
        (Some(index), 0) => Ok(index),
        (Some(_), more) => {
            Err(Error::AmbiguousColumn { side, name: name.to_string(), count: more + 1 })
        }
        (None, _) => {
            let names = || schema.fields().iter().map(|f| f.name());
            Err(Error::UnknownColumn {
                side,
                name: name.to_string(),
                nearest: nearest_name(name, names().map(String::as_str)),
                available: names().cloned().collect(),
            })
        }
    }
}

/// An output column: its field, and its origin in the full schemas.
type OutputColumn = (Field, Origin);

/// Returns the output columns of a join. Their origins refer to the full schemas.
pub(crate) fn output(
    join: &Join,
    output: Output,
    left: &Schema,
    right: &Schema,
    keys: &[(usize, usize)],
) -> Result<OutputPlan> {
    let mut columns = match output {
        Output::Rows => row_columns(join, left, right, keys)?,
        Output::Pairs => pair_columns(join.join_type),
        Output::Count => Vec::new(),
    };
    if matches!(join.join_type, JoinType::LeftMark | JoinType::RightMark) && output != Output::Count
    {
        columns.push((Field::new(&join.mark_column, DataType::Boolean, false), Origin::Mark));
    }
    if output == Output::Rows {
        if let Some(twice) = repeated(&columns, left, right) {
            return Err(Error::OutputCollision { name: twice });
        }
        if let Some(names) = &join.projection {
            let all = Schema::new(columns.iter().map(|(f, _)| f.clone()).collect::<Vec<_>>());
            let chosen = names.iter().map(|n| Ok(columns[column("output", &all, n)?].clone()));
            columns = chosen.collect::<Result<_>>()?;
        }
    }
    let (fields, origins): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let mut metadata = right.metadata().clone();
    metadata.extend(left.metadata().clone());
    Ok(OutputPlan {
        schema: Arc::new(Schema::new_with_metadata(fields, metadata)),
        origins,
        output,
        sums: Vec::new(),
    })
}

/// Returns, for each side, `None` if the join type returns no columns of the side; otherwise whether its rows
/// may be absent.
fn shown(join_type: JoinType) -> [Option<bool>; 2] {
    match join_type {
        JoinType::Inner => [Some(false), Some(false)],
        JoinType::Left => [Some(false), Some(true)],
        JoinType::Right => [Some(true), Some(false)],
        JoinType::Full => [Some(true), Some(true)],
        JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => [Some(false), None],
        JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => [None, Some(false)],
    }
}

fn pair_columns(join_type: JoinType) -> Vec<OutputColumn> {
    let names = ["left_row", "right_row"];
    [Side::Left, Side::Right]
        .into_iter()
        .zip(shown(join_type))
        .zip(names)
        .filter_map(|((side, shown), name)| {
            let field = Field::new(name, DataType::UInt64, shown?);
            Some((field, Origin::RowId(side)))
        })
        .collect()
}

/// Returns the left columns, then the right columns. A key with the same name on both sides appears once;
/// other right columns with the name of a left column get the suffix.
fn row_columns(
    join: &Join,
    left: &Schema,
    right: &Schema,
    keys: &[(usize, usize)],
) -> Result<Vec<OutputColumn>> {
    let [left_shown, right_shown] = shown(join.join_type);
    let both = left_shown.is_some() && right_shown.is_some();
    let merged: Vec<(usize, usize, DataType)> = keys
        .iter()
        .filter(|&&(l, r)| both && !join.keep_keys && left.field(l).name() == right.field(r).name())
        .filter_map(|&(l, r)| {
            merged_type(join.join_type, left.field(l), right.field(r)).map(|t| (l, r, t))
        })
        .collect();
    let mut columns = Vec::new();
    if let Some(absent) = left_shown {
        for (i, field) in left.fields().iter().enumerate() {
            let column = match merged.iter().find(|&&(l, ..)| l == i) {
                Some((l, r, t)) => merged_column(join, (*l, field), (*r, right.field(*r)), t),
                None => {
                    (may_be_absent(field, absent), origin(join, (left, right), keys, Side::Left, i))
                }
            };
            columns.push(column);
        }
    }
    if let Some(absent) = right_shown {
        let left_names: HashSet<&str> = match left_shown {
            Some(_) => left.fields().iter().map(|f| f.name().as_str()).collect(),
            None => HashSet::new(),
        };
        for (i, field) in right.fields().iter().enumerate() {
            if merged.iter().any(|&(_, r, _)| r == i) {
                continue;
            }
            let mut field = may_be_absent(field, absent);
            if left_names.contains(field.name().as_str()) {
                let name = format!("{}{}", field.name(), join.suffix);
                field = field.with_name(name);
            }
            columns.push((field, origin(join, (left, right), keys, Side::Right, i)));
        }
    }
    Ok(columns)
}

fn may_be_absent(field: &Field, absent: bool) -> Field {
    field.clone().with_nullable(field.is_nullable() || absent)
}

/// Returns the output column of a key that has the same name on both sides.
fn merged_column(
    join: &Join,
    (l, left): (usize, &Field),
    (r, right): (usize, &Field),
    data_type: &DataType,
) -> OutputColumn {
    match join.join_type {
        JoinType::Right => (right.clone(), Origin::Column(Side::Right, r)),
        JoinType::Full => {
            let nullable = left.is_nullable() || right.is_nullable();
            let field = left.clone().with_data_type(data_type.clone()).with_nullable(nullable);
            (field, Origin::Coalesced { left: l, right: r, data_type: data_type.clone() })
        }
        JoinType::Inner if same_values(join, left, right) => {
            (left.clone(), Origin::Either { left: l, right: r })
        }
        _ => (left.clone(), Origin::Column(Side::Left, l)),
    }
}

/// Returns the origin of a column of one side. In an inner join, a key column that has the [same values](same_values)
/// on both sides can be read from either side, even if the names differ. Encoded columns are read from their own side:
/// the other side may have another dictionary in each batch.
fn origin(
    join: &Join,
    (left, right): (&Schema, &Schema),
    keys: &[(usize, usize)],
    side: Side,
    column: usize,
) -> Origin {
    let same = |&&(l, r): &&(usize, usize)| {
        let here = match side {
            Side::Left => l,
            Side::Right => r,
        };
        let data_type = left.field(l).data_type();
        let encoded = matches!(data_type, DataType::Dictionary(..) | DataType::RunEndEncoded(..));
        let plain = !encoded && !data_type.is_nested();
        here == column && plain && same_values(join, left.field(l), right.field(r))
    };
    match keys.iter().find(same) {
        Some(&(left, right)) if join.join_type == JoinType::Inner => Origin::Either { left, right },
        _ => Origin::Column(side, column),
    }
}

/// Returns whether two key columns hold the same value wherever their rows match. Equal values of one type have
/// equal bits. There are two exceptions. Equal floats may differ in the sign of zero, or in the payload of a NaN. Two
/// nulls of a union are equal keys, and may belong to different members.
fn same_values(join: &Join, left: &Field, right: &Field) -> bool {
    let same_floats = |t: &DataType| join.float_equality == FloatEquality::Total || !has_floats(t);
    let data_type = left.data_type();
    data_type == right.data_type() && same_floats(data_type) && !has_unions(data_type)
}

/// Returns the type of a merged key. Only a full join mixes values of both sides. It returns `None` if no
/// type represents the values of both sides exactly; then the output has both columns.
fn merged_type(join_type: JoinType, left: &Field, right: &Field) -> Option<DataType> {
    use DataType::*;
    let (l, r) = (left.data_type(), right.data_type());
    if join_type != JoinType::Full || l == r {
        return Some(l.clone());
    }
    let value = |t: &DataType| match t {
        Dictionary(_, values) => values.as_ref().clone(),
        other => other.clone(),
    };
    let (l, r) = (value(l), value(r));
    if l == r {
        return Some(l);
    }
    let text = |t: &DataType| matches!(t, Utf8 | LargeUtf8 | Utf8View);
    let binary = |t: &DataType| matches!(t, Binary | LargeBinary | BinaryView);
    if l.is_integer() && r.is_integer() {
        return wider_integer(&l, &r);
    }
    match (&l, &r) {
        (l, r) if text(l) && text(r) => Some(LargeUtf8),
        (l, r) if binary(l) && binary(r) => Some(LargeBinary),
        (Float16 | Float32, Float32) | (Float32, Float16) => Some(Float32),
        (Float16 | Float32 | Float64, Float64) | (Float64, Float16 | Float32) => Some(Float64),
        (Date32, Date64) | (Date64, Date32) => Some(Date64),
        _ => None,
    }
}

fn wider_integer(l: &DataType, r: &DataType) -> Option<DataType> {
    use DataType::*;
    let bits = |t: &DataType| t.primitive_width().unwrap_or(8) * 8;
    let signed = |t: &DataType| t.is_signed_integer();
    // In a signed type, an unsigned integer needs one more bit.
    let needed = |t: &DataType| bits(t) + usize::from(!signed(t) && (signed(l) || signed(r)));
    Some(match (signed(l) || signed(r), needed(l).max(needed(r))) {
        (true, ..=8) => Int8,
        (true, ..=16) => Int16,
        (true, ..=32) => Int32,
        (true, ..=64) => Int64,
        (true, _) => return None,
        (false, ..=8) => UInt8,
        (false, ..=16) => UInt16,
        (false, ..=32) => UInt32,
        (false, _) => UInt64,
    })
}

/// Returns a name that two output columns would have, unless one table alone already has it twice.
fn repeated(columns: &[OutputColumn], left: &Schema, right: &Schema) -> Option<String> {
    let mut seen = HashSet::new();
    let twice = |schema: &Schema, name: &str| {
        schema.fields().iter().filter(|f| f.name() == name).count() > 1
    };
    columns
        .iter()
        .map(|(field, _)| field.name())
        .find(|name| !seen.insert(name.as_str()) && !twice(left, name) && !twice(right, name))
        .cloned()
}
