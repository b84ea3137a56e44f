//! Builds the columns of JSON lines. Every value is read once: it is checked against the type of its column, and
//! appended to the column if the join needs the column.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, BooleanBufferBuilder, Decimal128Array, Float64Array, Int64Array,
    ListArray, StringArray, StructArray, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, FieldRef, Fields};
use arrow::error::ArrowError;
use indexmap::IndexMap;

use super::scan::{Scan, Token, Wrong, unescaped};
use crate::input::values::{float, integer};

/// Why a line could not be appended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The line is not an object, or a value does not fit its column.
    Wrong,
    /// Missing fields take more memory than expected.
    Full,
}

impl From<Wrong> for Stop {
    fn from(_: Wrong) -> Stop {
        Stop::Wrong
    }
}

/// The state of all columns of a batch.
#[derive(Default)]
pub(super) struct Progress {
    /// The number of nulls that may still be appended for missing fields. Their memory does not follow from the
    /// length of the text.
    pub(super) fills: u64,
    /// The first field that is not a column.
    pub(super) unknown: Option<String>,
}

/// A column, or the values in a nested column.
pub(super) struct Column {
    /// False if values are only checked.
    keeps: bool,
    validity: BooleanBufferBuilder,
    values: Values,
}

enum Values {
    Boolean(BooleanBufferBuilder),
    Int64(Vec<i64>),
    UInt64(Vec<u64>),
    /// Holds every 64-bit integer.
    Decimal(Vec<i128>, DataType),
    Float64(Vec<f64>),
    Text(Vec<i32>, Vec<u8>),
    List(FieldRef, Vec<i32>, Box<Column>),
    Object(Object),
}

/// The fields of an object.
pub(super) struct Object {
    schema: Fields,
    columns: IndexMap<String, Column>,
    /// The number of columns that are kept.
    kept: usize,
}

impl Object {
    /// The columns of `fields`, with room for `rows` rows. Only those that `keeps` returns true for are kept.
    pub(super) fn new(
        fields: &Fields,
        rows: usize,
        keeps: impl Fn(usize) -> bool,
    ) -> Result<Object, ArrowError> {
        let column = |(i, field): (usize, &FieldRef)| {
            let keeps = keeps(i);
            let column = Column::new(field.data_type(), if keeps { rows } else { 0 }, keeps)?;
            Ok((field.name().clone(), column))
        };
        let columns = fields.iter().enumerate().map(column);
        let columns = columns.collect::<Result<IndexMap<_, _>, ArrowError>>()?;
        let kept = columns.values().filter(|column| column.keeps).count();
        Ok(Object { schema: fields.clone(), columns, kept })
    }

    /// Appends the object in a line as row number `row`.
    pub(super) fn line(
        &mut self,
        line: &str,
        row: usize,
        progress: &mut Progress,
    ) -> Result<(), Stop> {
        let mut scan = Scan::new(line);
        if scan.token()? != Token::Object {
            return Err(Stop::Wrong);
        }
        self.append(row, &mut scan, progress)?;
        Ok(scan.end()?)
    }

    /// Appends an object whose token was read as row number `row`.
    fn append(
        &mut self,
        row: usize,
        scan: &mut Scan<'_>,
        progress: &mut Progress,
    ) -> Result<(), Stop> {
        let (mut position, mut found, mut first) = (0, 0, true);
        while let Some(name) = scan.field(first)? {
            first = false;
            // Most lines have the same fields in the same order.
            let at = match self.columns.get_index(position) {
                Some((known, _)) if *known == *name => Some(position),
                _ => self.columns.get_index_of(&*name),
            };
            let Some((at, (_, column))) =
                at.and_then(|at| Some((at, self.columns.get_index_mut(at)?)))
            else {
                progress.unknown.get_or_insert_with(|| name.into_owned());
                let token = scan.token()?;
                scan.skip(token)?;
                continue;
            };
            position = at + 1;
            if column.keeps && column.validity.len() > row {
                // If a field occurs twice, the last value counts.
                column.truncate(row);
            } else {
                found += usize::from(column.keeps);
            }
            let token = scan.token()?;
            column.append(token, scan, progress)?;
        }
        if found < self.kept {
            for column in self.columns.values_mut() {
                if column.keeps && column.validity.len() == row {
                    column.append_null(progress)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the arrays of the columns that are kept.
    pub(super) fn finish(self) -> Result<Vec<ArrayRef>, ArrowError> {
        let kept = self.columns.into_values().filter(|column| column.keeps);
        kept.map(Column::finish).collect()
    }
}

impl Column {
    fn new(data_type: &DataType, rows: usize, keeps: bool) -> Result<Column, ArrowError> {
        let offsets = || {
            let mut offsets = Vec::with_capacity(rows + usize::from(keeps));
            offsets.push(0);
            offsets
        };
        let values = match data_type {
            DataType::Boolean => Values::Boolean(BooleanBufferBuilder::new(rows)),
            DataType::Int64 => Values::Int64(Vec::with_capacity(rows)),
            DataType::UInt64 => Values::UInt64(Vec::with_capacity(rows)),
            DataType::Decimal128(_, 0) => {
                Values::Decimal(Vec::with_capacity(rows), data_type.clone())
            }
            DataType::Float64 => Values::Float64(Vec::with_capacity(rows)),
            DataType::Utf8 => Values::Text(offsets(), Vec::new()),
            DataType::List(field) => {
                let column = Column::new(field.data_type(), 0, keeps)?;
                Values::List(Arc::clone(field), offsets(), Box::new(column))
            }
            DataType::Struct(fields) => Values::Object(Object::new(fields, rows, |_| keeps)?),
            other => {
                let why = format!("JSON lines are not read as {other}");
                return Err(ArrowError::JsonError(why));
            }
        };
        Ok(Column { keeps, validity: BooleanBufferBuilder::new(rows), values })
    }

    /// Appends the value that begins with `token`.
    fn append(
        &mut self,
        token: Token<'_>,
        scan: &mut Scan<'_>,
        progress: &mut Progress,
    ) -> Result<(), Stop> {
        if token == Token::Null {
            return if self.keeps { self.append_null(progress) } else { Ok(()) };
        }
        let (keeps, row) = (self.keeps, self.validity.len());
        match (&mut self.values, token) {
            (Values::Boolean(values), Token::Bool(value)) => {
                if keeps {
                    values.append(value);
                }
            }
            (Values::Int64(values), Token::Number(text, _)) => {
                push(values, keeps, signed(text)?);
            }
            (Values::UInt64(values), Token::Number(text, true)) => {
                push(values, keeps, text.parse().map_err(|_| Wrong)?);
            }
            (Values::Decimal(values, _), Token::Number(text, _)) => {
                push(values, keeps, wide(text)?);
            }
            (Values::Float64(values), Token::Number(text, _)) => push(values, keeps, number(text)?),
            (Values::Text(offsets, text), token) => {
                let unescaped_text;
                let value = match token {
                    Token::String(value, false) => value,
                    Token::String(value, true) => {
                        unescaped_text = unescaped(value)?;
                        &unescaped_text
                    }
                    Token::Number(value, _) => value,
                    Token::Bool(value) => ["false", "true"][usize::from(value)],
                    _ => return Err(Stop::Wrong),
                };
                if keeps {
                    text.extend_from_slice(value.as_bytes());
                    offsets.push(i32::try_from(text.len()).map_err(|_| Wrong)?);
                }
            }
            (Values::List(_, offsets, values), Token::Array) => {
                let mut first = true;
                while scan.element(first)? {
                    first = false;
                    let token = scan.token()?;
                    values.append(token, scan, progress)?;
                }
                if keeps {
                    offsets.push(i32::try_from(values.validity.len()).map_err(|_| Wrong)?);
                }
            }
            (Values::Object(object), Token::Object) => object.append(row, scan, progress)?,
            _ => return Err(Stop::Wrong),
        }
        if keeps {
            self.validity.append(true);
        }
        Ok(())
    }

    fn append_null(&mut self, progress: &mut Progress) -> Result<(), Stop> {
        progress.fills = progress.fills.checked_sub(1).ok_or(Stop::Full)?;
        match &mut self.values {
            Values::Boolean(values) => values.append(false),
            Values::Int64(values) => values.push(0),
            Values::UInt64(values) => values.push(0),
            Values::Decimal(values, _) => values.push(0),
            Values::Float64(values) => values.push(0.0),
            Values::Text(offsets, _) | Values::List(_, offsets, _) => {
                offsets.extend(offsets.last().copied());
            }
            Values::Object(object) => {
                object.columns.values_mut().try_for_each(|column| column.append_null(progress))?;
            }
        }
        self.validity.append(false);
        Ok(())
    }

    /// Removes all rows from row number `row` on.
    fn truncate(&mut self, row: usize) {
        self.validity.truncate(row);
        match &mut self.values {
            Values::Boolean(values) => values.truncate(row),
            Values::Int64(values) => values.truncate(row),
            Values::UInt64(values) => values.truncate(row),
            Values::Decimal(values, _) => values.truncate(row),
            Values::Float64(values) => values.truncate(row),
            Values::Text(offsets, text) => {
                offsets.truncate(row + 1);
                text.truncate(offsets.last().map_or(0, |&end| end as usize));
            }
            Values::List(_, offsets, values) => {
                offsets.truncate(row + 1);
                values.truncate(offsets.last().map_or(0, |&end| end as usize));
            }
            Values::Object(object) => {
                object.columns.values_mut().for_each(|column| column.truncate(row));
            }
        }
    }

    fn finish(mut self) -> Result<ArrayRef, ArrowError> {
        let rows = self.validity.len();
        let nulls = NullBuffer::new(self.validity.finish());
        let nulls = (nulls.null_count() > 0).then_some(nulls);
        let ends = |offsets: Vec<i32>| OffsetBuffer::new(ScalarBuffer::from(offsets));
        Ok(match self.values {
            Values::Boolean(mut values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Values::Int64(values) => Arc::new(Int64Array::try_new(values.into(), nulls)?),
            Values::UInt64(values) => Arc::new(UInt64Array::try_new(values.into(), nulls)?),
            Values::Decimal(values, data_type) => {
                let array = Decimal128Array::try_new(values.into(), nulls)?;
                Arc::new(array.with_data_type(data_type))
            }
            Values::Float64(values) => Arc::new(Float64Array::try_new(values.into(), nulls)?),
            Values::Text(offsets, text) => {
                Arc::new(StringArray::try_new(ends(offsets), text.into(), nulls)?)
            }
            Values::List(field, offsets, values) => {
                Arc::new(ListArray::try_new(field, ends(offsets), values.finish()?, nulls)?)
            }
            Values::Object(object) => {
                let (fields, columns) = (object.schema.clone(), object.finish()?);
                Arc::new(StructArray::try_new_with_length(fields, columns, nulls, rows)?)
            }
        })
    }
}

fn push<T>(values: &mut Vec<T>, keeps: bool, value: T) {
    if keeps {
        values.push(value);
    }
}

/// Returns an integer. A negative zero is the integer 0, also if it is written as -0.0: [types](mod@super::infer) are
/// inferred with this rule, too.
fn signed(text: &str) -> Result<i64, Wrong> {
    let is_zero = || text.starts_with('-') && number(text).is_ok_and(|value| value == 0.0);
    match integer(text.as_bytes()).or_else(|| text.parse().ok()) {
        Some(value) => Ok(value),
        None if is_zero() => Ok(0),
        None => Err(Wrong),
    }
}

fn wide(text: &str) -> Result<i128, Wrong> {
    match signed(text) {
        Ok(value) => Ok(value.into()),
        Err(Wrong) => text.parse::<u64>().map(i128::from).map_err(|_| Wrong),
    }
}

fn number(text: &str) -> Result<f64, Wrong> {
    let value = float(text.as_bytes()).or_else(|| text.parse().ok()).ok_or(Wrong)?;
    if value.is_finite() { Ok(value) } else { Err(Wrong) }
}
