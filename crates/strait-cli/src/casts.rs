//! `--cast`: finds the columns, and gives them their types. It also suggests a cast for keys that cannot be
//! compared.

use anyhow::{anyhow, bail};
use arrow::compute::can_cast_types;
use arrow::datatypes::{DataType, Schema};
use strait::{Error, nearest_name};

use crate::arguments::{Cast, JoinArguments, type_name};
use crate::input::InputTable;

/// Gives the columns of both tables the types that the arguments say. Returns a line about each cast.
pub(crate) fn apply(
    arguments: &JoinArguments,
    left: &mut InputTable,
    right: &mut InputTable,
) -> anyhow::Result<String> {
    let mut done: [Vec<usize>; 2] = Default::default();
    let mut notes = String::new();
    for cast in &arguments.casts {
        let found = columns(cast, &arguments.suffix, [left.schema(), right.schema()]);
        let found = found.map_err(|why| anyhow!("--cast {}: {why}", cast.column))?;
        for (side, column) in found.into_iter().enumerate() {
            let Some(column) = column else { continue };
            if done[side].contains(&column) {
                bail!("--cast {}: the column is cast twice; leave out one of them", cast.column);
            }
            done[side].push(column);
            let table = if side == 0 { &mut *left } else { &mut *right };
            notes += &table.cast(column, &cast.to)?;
        }
    }
    Ok(notes)
}

/// Returns the column of each table that a cast means.
fn columns(cast: &Cast, suffix: &str, schemas: [&Schema; 2]) -> Result<[Option<usize>; 2], String> {
    let name = cast.column.as_str();
    let exact = [column(schemas[0], name)?, column(schemas[1], name)?];
    if exact != [None, None] {
        return Ok(exact);
    }
    // The names of output columns: a right column has the suffix if the left table has the same name.
    let suffixed = name.strip_suffix(suffix).filter(|_| !suffix.is_empty());
    let (side, plain) = match (name.strip_prefix("left."), name.strip_prefix("right."), suffixed) {
        (Some(plain), ..) => (0, plain),
        (_, Some(plain), _) => (1, plain),
        (_, _, Some(plain)) if schemas[0].index_of(plain).is_ok() => (1, plain),
        _ => return Err(unknown(name, &schemas)),
    };
    let mut found = [None, None];
    found[side] = Some(column(schemas[side], plain)?.ok_or_else(|| {
        let side_name = ["left", "right"][side];
        format!(
            "the {side_name} table has no column \"{plain}\"{}",
            similar(plain, &schemas[side..=side])
        )
    })?);
    Ok(found)
}

fn column(schema: &Schema, name: &str) -> Result<Option<usize>, String> {
    let named = |i: &usize| schema.field(*i).name() == name;
    let mut found = (0..schema.fields().len()).filter(named);
    match (found.next(), found.next()) {
        (_, Some(_)) => {
            Err("a table has several columns of this name; rename all but one of them".into())
        }
        (found, None) => Ok(found),
    }
}

fn unknown(name: &str, schemas: &[&Schema]) -> String {
    format!("neither table has this column{}", similar(name, schemas))
}

fn similar(name: &str, schemas: &[&Schema]) -> String {
    let names =
        schemas.iter().flat_map(|schema| schema.fields()).map(|field| field.name().as_str());
    let names: Vec<&str> = names.collect();
    match nearest_name(name, names.iter().copied()) {
        Some(nearest) => format!("; did you mean \"{nearest}\"?"),
        None => format!("; the columns are {}", names.join(", ")),
    }
}

/// Suggests a cast, if the error is that two key columns cannot be compared.
pub(crate) fn advised(error: Error, left: &Schema, right: &Schema) -> anyhow::Error {
    let Error::KeyTypes { left: l, left_type, right: r, right_type } = &error else {
        return error.into();
    };
    // Types whose values can usually be cast without a surprise come first.
    let rank = |from: &DataType| match from {
        from if from.is_string() => 0,
        from if from.is_floating() => 1,
        DataType::Date32 | DataType::Date64 => 2,
        _ => 3,
    };
    let mut casts = [(0, l, left_type, right_type), (1, r, right_type, left_type)];
    casts.sort_by_key(|(_, _, from, _)| rank(from));
    let suggested = casts.into_iter().find_map(|(side, name, from, to)| {
        let to = type_name(to).filter(|_| can_cast_types(from, to))?;
        let is_in_both = left.index_of(name).is_ok() && right.index_of(name).is_ok();
        let side = if is_in_both { ["left.", "right."][side] } else { "" };
        Some(format!("--cast {side}{}={to}", escaped(name)))
    });
    match suggested {
        None => error.into(),
        Some(cast) => anyhow!(
            "cannot compare left column \"{l}\" ({left_type}) with right column \"{r}\" ({right_type}) without \
             losing information; cast one of them, for example with {}",
            quoted(&cast)
        ),
    }
}

/// Writes a name as the arguments take it.
fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('=', "\\=")
}

/// Quotes an option whose value a shell would change.
fn quoted(cast: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.=+:".contains(c);
    let (option, value) = cast.split_once(' ').unwrap_or((cast, ""));
    match value.chars().all(is_plain) {
        true => cast.to_string(),
        false => format!("{option} '{value}'"),
    }
}
