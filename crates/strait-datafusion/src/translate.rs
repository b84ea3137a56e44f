//! Describes a hash join of DataFusion as a join of Strait.
//!
//! Strait refers to columns by name, and DataFusion by number. So each column gets a name of its own:
//!
//! | name | column |
//! | --- | --- |
//! | `l0`, `l1`, … | the columns of the left input |
//! | `r0`, `r1`, … | the columns of the right input |
//! | `lk0`, `rk0`, … | keys that are expressions, such as `a + 1`, computed from the input |
//! | `mark` | the column of a mark join |

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::{DataFusionError, JoinSide, JoinType, NullEquality, Result};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use strait::{Join, Output, Side};

const MARK: &str = "mark";

/// A hash join, described for Strait.
#[derive(Debug)]
pub(crate) struct Translated {
    pub(crate) join_type: strait::JoinType,
    null_equality: strait::NullEquality,
    /// The names of the left and right key columns.
    keys: Vec<(String, String)>,
    /// What Strait reads of the left and of the right input.
    pub(crate) sides: [SideColumns; 2],
    pub(crate) filter: Option<JoinFilter>,
    /// The names of the output columns, each once.
    select: Vec<String>,
    pub(crate) output: OutputColumns,
    /// The number of the left key in Strait's output, for null-aware anti joins.
    pub(crate) key_in_output: Option<usize>,
}

/// The columns that Strait reads of one input.
#[derive(Debug)]
pub(crate) struct SideColumns {
    pub(crate) schema: SchemaRef,
    origins: Vec<Origin>,
    /// The keys of this side, as expressions over the input.
    pub(crate) keys: Vec<Arc<dyn PhysicalExpr>>,
}

/// Where a column comes from.
#[derive(Debug, Clone)]
enum Origin {
    /// The column of the input with this number.
    Input(usize),
    /// An expression over the input.
    Computed(Arc<dyn PhysicalExpr>),
}

/// How the output of DataFusion's join is made from the output of Strait's join.
#[derive(Debug)]
pub(crate) struct OutputColumns {
    pub(crate) schema: SchemaRef,
    /// For each column, its number in Strait's output.
    from: Vec<usize>,
}

impl Translated {
    /// Describes a join. Fails if Strait cannot carry it out.
    pub(crate) fn new(join: &HashJoinExec) -> Result<Translated> {
        let inputs = [join.left(), join.right()].map(|input| input.schema());
        let expressions = [
            join.on().iter().map(|(left, _)| Arc::clone(left)).collect::<Vec<_>>(),
            join.on().iter().map(|(_, right)| Arc::clone(right)).collect(),
        ];
        let [left, right] = [Side::Left, Side::Right];
        let (all_left, left_keys) = AllColumns::of(left, &inputs[0], &expressions[0])?;
        let (all_right, right_keys) = AllColumns::of(right, &inputs[1], &expressions[1])?;
        let keys: Vec<_> = left_keys.into_iter().zip(right_keys).collect();
        let schema = join.schema();
        let width = join.join_schema().fields().len();
        let names = match &join.projection {
            Some(columns) => columns.iter().map(|&column| name(join, column)).collect(),
            None => (0..width).map(|column| name(join, column)).collect::<Vec<_>>(),
        };
        let mut select = Vec::<String>::new();
        let mut selected = |name: String| {
            select.iter().position(|other| *other == name).unwrap_or_else(|| {
                select.push(name);
                select.len() - 1
            })
        };
        let from = names.into_iter().map(&mut selected).collect();
        let key_in_output = join.null_aware.then(|| selected(keys[0].0.clone()));
        if select.is_empty() {
            // Only the number of rows is needed. Any column has it.
            let (left_key, right_key) = &keys[0];
            let of_right = matches!(
                join.join_type(),
                JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark
            );
            select.push(if of_right { right_key.clone() } else { left_key.clone() });
        }
        let described = |filter: Option<&JoinFilter>| described(join, &keys, &select, filter);
        let bound = described(join.filter())?
            .bind(Output::Rows, &all_left.schema, &all_right.schema)
            .map_err(failed)?;
        let [left_expressions, right_expressions] = expressions;
        let sides = [
            all_left.needed(bound.columns(left), left_expressions),
            all_right.needed(bound.columns(right), right_expressions),
        ];
        let output = OutputColumns { schema, from };
        output.check(&bound.schema())?;
        Ok(Translated {
            join_type: join_type(join.join_type()),
            null_equality: null_equality(join.null_equality()),
            keys,
            sides,
            filter: join.filter().cloned(),
            select,
            output,
            key_in_output,
        })
    }

    /// Returns the join without a filter, and without settings that depend on the session.
    pub(crate) fn join(&self) -> Join {
        named(self.join_type, self.null_equality, &self.keys, &self.select)
    }

    /// Returns the columns of a residual filter, in the order in which its expression numbers them.
    pub(crate) fn filter_columns(filter: &JoinFilter) -> Result<Vec<(Side, String)>> {
        let column = |side, index| match side {
            JoinSide::Left => Ok((Side::Left, column_name(Side::Left, index))),
            JoinSide::Right => Ok((Side::Right, column_name(Side::Right, index))),
            JoinSide::None => Err(DataFusionError::NotImplemented(
                "a join filter over a column of neither input".to_string(),
            )),
        };
        filter.column_indices().iter().map(|at| column(at.side, at.index)).collect()
    }
}

/// Returns a join with these keys and these output columns.
fn named(
    join_type: strait::JoinType,
    null_equality: strait::NullEquality,
    keys: &[(String, String)],
    select: &[String],
) -> Join {
    let join = Join::new(join_type)
        .null_equality(null_equality)
        .keep_keys(true)
        .mark_column(MARK)
        .select(select.iter().cloned())
        .build_side(Side::Left);
    keys.iter().fold(join, |join, (left, right)| join.on_pair(left, right))
}

/// Returns a join that can be bound, but cannot run, because its filter always fails.
fn described(
    join: &HashJoinExec,
    keys: &[(String, String)],
    select: &[String],
    filter: Option<&JoinFilter>,
) -> Result<Join> {
    let (of_type, nulls) = (join_type(join.join_type()), null_equality(join.null_equality()));
    let named = named(of_type, nulls, keys, select);
    Ok(match filter {
        None => named,
        Some(filter) => {
            let columns = Translated::filter_columns(filter)?;
            named.filter(strait::Filter::new(columns, |_| Err(strait::Error::Cancelled.into())))
        }
    })
}

/// All columns of an input, with their names, followed by the keys that are computed.
struct AllColumns {
    schema: SchemaRef,
    origins: Vec<Origin>,
}

impl AllColumns {
    /// Returns the columns, and the names of the keys.
    fn of(
        side: Side,
        input: &Schema,
        keys: &[Arc<dyn PhysicalExpr>],
    ) -> Result<(AllColumns, Vec<String>)> {
        let renamed = |(column, field): (usize, &Arc<Field>)| {
            field.as_ref().clone().with_name(column_name(side, column))
        };
        let mut fields: Vec<Field> = input.fields().iter().enumerate().map(renamed).collect();
        let mut origins: Vec<_> = (0..fields.len()).map(Origin::Input).collect();
        let mut names = Vec::new();
        for (number, key) in keys.iter().enumerate() {
            if let Some(column) = key.downcast_ref::<Column>() {
                names.push(column_name(side, column.index()));
                continue;
            }
            let name = format!("{}k{number}", letter(side));
            fields.push(Field::new(&name, key.data_type(input)?, key.nullable(input)?));
            origins.push(Origin::Computed(Arc::clone(key)));
            names.push(name);
        }
        Ok((AllColumns { schema: Arc::new(Schema::new(fields)), origins }, names))
    }

    /// Returns the columns with these numbers.
    fn needed(&self, columns: &[usize], keys: Vec<Arc<dyn PhysicalExpr>>) -> SideColumns {
        let field = |&column: &usize| self.schema.field(column).clone();
        SideColumns {
            schema: Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>())),
            origins: columns.iter().map(|&column| self.origins[column].clone()).collect(),
            keys,
        }
    }
}

impl SideColumns {
    /// Returns the needed columns of a batch of the input.
    pub(crate) fn of_batch(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let column = |origin: &Origin| match origin {
            Origin::Input(column) => Ok(Arc::clone(batch.column(*column))),
            Origin::Computed(key) => key.evaluate(batch)?.into_array(batch.num_rows()),
        };
        let columns = self.origins.iter().map(column).collect::<Result<Vec<_>>>()?;
        let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &rows)?)
    }
}

impl OutputColumns {
    /// Checks that the types of Strait's output are the types that DataFusion expects.
    fn check(&self, joined: &Schema) -> Result<()> {
        for (field, &at) in self.schema.fields().iter().zip(&self.from) {
            let (expected, is) = (field.data_type(), joined.field(at).data_type());
            if expected != is {
                let name = field.name();
                return Err(DataFusionError::Internal(format!(
                    "column {name} of the join has type {is} instead of {expected}"
                )));
            }
        }
        Ok(())
    }

    /// Makes a batch of DataFusion's output from a batch of Strait's.
    pub(crate) fn of_batch(&self, joined: &RecordBatch) -> Result<RecordBatch> {
        let columns = self.from.iter().map(|&at| Arc::clone(joined.column(at))).collect();
        let rows = RecordBatchOptions::new().with_row_count(Some(joined.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &rows)?)
    }
}

fn letter(side: Side) -> char {
    match side {
        Side::Left => 'l',
        Side::Right => 'r',
    }
}

fn column_name(side: Side, column: usize) -> String {
    format!("{}{column}", letter(side))
}

/// Returns the name of an output column of the join, before its projection.
fn name(join: &HashJoinExec, column: usize) -> String {
    let [left, right] = [join.left(), join.right()].map(|input| input.schema().fields().len());
    let first = |side, width: usize| match column < width {
        true => column_name(side, column),
        false => MARK.to_string(),
    };
    match join.join_type() {
        JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => first(Side::Left, left),
        JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
            first(Side::Right, right)
        }
        _ if column < left => column_name(Side::Left, column),
        _ => column_name(Side::Right, column - left),
    }
}

fn join_type(of: &JoinType) -> strait::JoinType {
    match of {
        JoinType::Inner => strait::JoinType::Inner,
        JoinType::Left => strait::JoinType::Left,
        JoinType::Right => strait::JoinType::Right,
        JoinType::Full => strait::JoinType::Full,
        JoinType::LeftSemi => strait::JoinType::LeftSemi,
        JoinType::RightSemi => strait::JoinType::RightSemi,
        JoinType::LeftAnti => strait::JoinType::LeftAnti,
        JoinType::RightAnti => strait::JoinType::RightAnti,
        JoinType::LeftMark => strait::JoinType::LeftMark,
        JoinType::RightMark => strait::JoinType::RightMark,
    }
}

fn null_equality(of: NullEquality) -> strait::NullEquality {
    match of {
        NullEquality::NullEqualsNull => strait::NullEquality::Equal,
        NullEquality::NullEqualsNothing => strait::NullEquality::NeverEqual,
    }
}

/// Returns an error of Strait as an error of DataFusion.
pub(crate) fn failed(error: strait::Error) -> DataFusionError {
    match error {
        strait::Error::MemoryLimit { .. } => DataFusionError::ResourcesExhausted(error.to_string()),
        error => DataFusionError::External(Box::new(error)),
    }
}
