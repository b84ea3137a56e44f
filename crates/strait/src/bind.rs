//! A join that is bound to two schemas: its column names are resolved, its types and settings are checked.
//!
//! ```text
//!  Join ── bind(schemas) ──► BoundJoin ── run(readers) ──► JoinReader ── exhausted ──► Report
//!                               │
//!                               └─ explain() ──► Plan
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::join::Join;
use crate::key::{Equality, KeyPlan};
use crate::matches::BoundFilter;
use crate::options::Side;
use crate::output::{Origin, Output, OutputPlan};
use crate::plan::{JobCosts, Statistics};
use crate::resolve;
use crate::run::candidate;
use crate::settings;

impl Join {
    /// Checks the join against the schemas of both tables.
    ///
    /// # Errors
    ///
    /// It fails, before any row is read, if a column does not exist, if key types cannot be compared, if
    /// settings contradict each other, or if a GPU is asked for that cannot be used.
    pub fn bind(&self, output: Output, left: &Schema, right: &Schema) -> Result<BoundJoin> {
        BoundJoin::new(self, output, &[], [left, right])
    }
}

/// A join that is bound to two schemas. [`Join::bind`] creates it.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
/// use strait::{Join, Output, Side};
///
/// let bound = Join::inner().on("id").bind(Output::Rows, &schema, &schema)?;
/// assert_eq!(bound.columns(Side::Left), [0]);
/// assert_eq!(bound.schema().field(0).name(), "id");
/// # Ok::<(), strait::Error>(())
/// ```
pub struct BoundJoin {
    pub(crate) join: Join,
    /// The columns that the join needs of each side.
    pub(crate) columns: [Vec<usize>; 2],
    pub(crate) schemas: [SchemaRef; 2],
    pub(crate) keys: KeyPlan,
    pub(crate) filter: Option<BoundFilter>,
    pub(crate) output: OutputPlan,
    /// The device that the caller asked for, if any, opened.
    pub(crate) device: Option<Arc<dyn Device>>,
}

impl BoundJoin {
    pub(crate) fn new(
        join: &Join,
        output: Output,
        sums: &[(Side, &str)],
        [left, right]: [&Schema; 2],
    ) -> Result<Self> {
        settings::check(join)?;
        let found = join.keys.iter().map(|(l, r)| {
            Ok((resolve::column("left", left, l)?, resolve::column("right", right, r)?))
        });
        let keys = found.collect::<Result<Vec<_>>>()?;
        let mut plan = resolve::output(join, output, left, right, &keys)?;
        let schema = |side| if side == Side::Left { left } else { right };
        for &(side, name) in sums {
            let column = resolve::column(side.name(), schema(side), name)?;
            let data_type = schema(side).field(column).data_type();
            if !data_type.is_integer() {
                let side = side.name();
                return Err(Error::invalid_option(
                    "sums",
                    format!("column \"{name}\" of the {side} table is {data_type}"),
                    "only integers are added up",
                ));
            }
            plan.sums.push((side, column));
        }
        let filter_columns = match &join.filter {
            Some(filter) => {
                let found = filter.columns.iter().map(|(side, name)| {
                    Ok((*side, resolve::column(side.name(), schema(*side), name)?))
                });
                found.collect::<Result<Vec<_>>>()?
            }
            None => Vec::new(),
        };
        let columns = needed(&keys, [&filter_columns, &plan.sums], &plan.origins);
        // From here on, column numbers refer to the projected readers, not to the full schemas.
        let at =
            |side: Side, column: usize| columns[side as usize].partition_point(|&c| c < column);
        for origin in &mut plan.origins {
            match origin {
                Origin::Column(side, column) => *column = at(*side, *column),
                Origin::Either { left, right } | Origin::Coalesced { left, right, .. } => {
                    (*left, *right) = (at(Side::Left, *left), at(Side::Right, *right));
                }
                Origin::RowId(_) | Origin::Mark => {}
            }
        }
        plan.sums.iter_mut().for_each(|(side, column)| *column = at(*side, *column));
        let keys: Vec<_> =
            keys.iter().map(|&(l, r)| (at(Side::Left, l), at(Side::Right, r))).collect();
        let project = |schema: &Schema, columns: &[usize]| {
            schema.project(columns).map(Arc::new).map_err(Error::arrow("choosing columns"))
        };
        let schemas = [project(left, &columns[0])?, project(right, &columns[1])?];
        let equality = Equality { nulls: join.null_equality, floats: join.float_equality };
        let keys = KeyPlan::new(&schemas[0], &schemas[1], &keys, equality, join.overrides.collide)?;
        let filter = join.filter.as_ref().map(|filter| {
            let columns: Vec<_> = filter_columns.iter().map(|&(s, c)| (s, at(s, c))).collect();
            let fields: Vec<_> =
                columns.iter().map(|&(s, c)| schemas[s as usize].field(c).clone()).collect();
            let schema = Arc::new(Schema::new(fields));
            BoundFilter { columns, schema, predicate: Arc::clone(&filter.predicate) }
        });
        let device = candidate::asked(join)?;
        Ok(BoundJoin { join: join.clone(), columns, schemas, keys, filter, output: plan, device })
    }

    /// Gives statistics of a side to the planner: see [`Join::statistics`]. At this point the needed
    /// [`columns`](BoundJoin::columns) are known, so a caller can look up statistics for just these.
    pub fn statistics(mut self, side: Side, statistics: Statistics) -> Self {
        self.join = self.join.statistics(side, statistics);
        self
    }

    /// Gives the expected work of reading and writing to the planner: see [`Join::job_costs`].
    pub fn job_costs(mut self, costs: JobCosts) -> Self {
        self.join = self.join.job_costs(costs);
        self
    }

    /// Returns the join of rows that have spilled. If the output has the row numbers of a side, they are a column of its
    /// rows, after all other columns: the positions of spilled rows say nothing about their numbers in the table.
    pub(crate) fn of_spilled_rows(&self) -> BoundJoin {
        let (mut output, mut schemas) = (self.output.clone(), self.schemas.clone());
        for origin in &mut output.origins {
            if let Origin::RowId(side) = *origin {
                let schema = &mut schemas[side as usize];
                *origin = Origin::Column(side, schema.fields().len());
                let number = Field::new("row number", DataType::UInt64, false);
                let fields = schema.fields().iter().cloned().chain([Arc::new(number)]);
                *schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            }
        }
        BoundJoin {
            join: self.join.clone(),
            columns: self.columns.clone(),
            schemas,
            keys: self.keys.clone(),
            filter: self.filter.clone(),
            output,
            device: self.device.clone(),
        }
    }

    /// Returns the schema of the output.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.output.schema)
    }

    /// Returns the columns of a side that the join needs, by their index in the schema, in ascending order.
    /// The readers given to [`run`](BoundJoin::run) must yield exactly these columns.
    pub fn columns(&self, side: Side) -> &[usize] {
        &self.columns[side as usize]
    }
}

/// Returns the columns that the join needs of each side, in ascending order.
fn needed(
    keys: &[(usize, usize)],
    named: [&[(Side, usize)]; 2],
    origins: &[Origin],
) -> [Vec<usize>; 2] {
    let mut left: BTreeSet<usize> = keys.iter().map(|&(l, _)| l).collect();
    let mut right: BTreeSet<usize> = keys.iter().map(|&(_, r)| r).collect();
    let mut add = |side: Side, column: usize| match side {
        Side::Left => left.insert(column),
        Side::Right => right.insert(column),
    };
    named.iter().copied().flatten().for_each(|&(side, column)| {
        add(side, column);
    });
    for origin in origins {
        match origin {
            Origin::Column(side, column) => {
                add(*side, *column);
            }
            Origin::Either { left, right } | Origin::Coalesced { left, right, .. } => {
                add(Side::Left, *left);
                add(Side::Right, *right);
            }
            Origin::RowId(_) | Origin::Mark => {}
        }
    }
    [left.into_iter().collect(), right.into_iter().collect()]
}
