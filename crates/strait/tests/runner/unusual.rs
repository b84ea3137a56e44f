//! Settings that only few cases have: readers that misbehave, schemas that are wrong about nulls, more
//! threads than cores, very large batch sizes, and a memory budget shared with other owners.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use strait::{Error, MemoryBudget, Output, Side};
use strait_testkit::{Pair, Rng, Table};

use super::case::{Case, Entry, FilterKind};
use super::check::{Failure, ensure};
use super::predicate::Cells;
use super::readers::{Feed, Taking, soon};

/// The unusual settings of a case. By default there are none.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unusual {
    /// How the left and the right table are read.
    pub(crate) feeds: [Feed; 2],
    /// How the output is read.
    pub(crate) taking: Taking,
    /// The declared schemas differ from those of the batches in their nullability.
    pub(crate) declared: Option<Declared>,
    /// The join gets a budget that outlives it. After the join, all of the budget must be free.
    pub(crate) shared_budget: bool,
    /// Which tables are sources that many workers read at the same time. The others have readers.
    pub(crate) concurrent: [bool; 2],
    /// The workers push the output into a sink.
    pub(crate) sink: bool,
    /// The join runs twice more, with a fast and with a slow consumer. The limit is this percentage of the
    /// memory that the join used. Either both runs must run out of memory, or neither.
    pub(crate) again_slowly: Option<u64>,
}

/// Schemas that differ from those of the batches in their nullability.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Declared {
    /// The seed that chooses the columns that differ.
    seed: u64,
    /// Whether the readers announce the true schema, while the join was bound to another one.
    readers_tell: bool,
}

/// Adds some unusual settings to the case, or none. The tables stay the same.
pub(crate) fn apply(rng: &mut Rng, case: &mut Case, pair: &Pair) {
    if case.filter.is_some() && rng.chance(1, 2) {
        case.filter = Some(FilterKind::Cells(Cells::random(rng)));
    }
    if rng.chance(1, 16) {
        readers(rng, case, pair);
    }
    if rng.chance(1, 16) {
        let readers_tell = rng.chance(1, 2);
        case.unusual.declared = Some(Declared { seed: rng.bits(), readers_tell });
    }
    if rng.chance(1, 40) {
        case.threads = if rng.chance(1, 25) { 64 } else { rng.between(4, 16) };
        let rows = pair.left.rows() + pair.right.rows();
        case.force.tiny_partitions |= rows < 1000 || !case.on_device();
    }
    if rng.chance(1, 40) {
        case.batch_size = *rng.pick(&[1 << 17, 1 << 34, usize::MAX]);
    }
    let unusual = &mut case.unusual;
    unusual.shared_budget = rng.chance(1, 4);
    let plain = unusual.feeds == [Feed::Plain; 2] && unusual.taking == Taking::All;
    let again = plain && case.output != Output::Count && rng.chance(1, 40);
    unusual.again_slowly = again.then(|| rng.between(50, 105) as u64);
    if rng.chance(1, 4) {
        unusual.concurrent = *rng.pick(&[[true, false], [false, true], [true, true]]);
    }
    // Only the reader of the output can be dropped while an input blocks.
    unusual.sink = case.output != Output::Count && !unusual.blocks() && rng.chance(1, 6);
}

/// Makes the reading of one or both tables unusual, or the reading of the output.
fn readers(rng: &mut Rng, case: &mut Case, pair: &Pair) {
    let batches = [pair.left.batches.len(), pair.right.batches.len()];
    match rng.below(6) {
        0 => case.unusual.taking = Taking::Slowly,
        1 => case.unusual.taking = Taking::DropAfter(rng.below(4)),
        _ => {
            let side = rng.below(2);
            case.unusual.feeds[side] = Feed::random(rng, batches[side]);
            if rng.chance(1, 6) {
                case.unusual.feeds[1 - side] = Feed::random(rng, batches[1 - side]);
            }
        }
    }
    if case.unusual.blocks() && case.output == Output::Count {
        // A count has no reader that could be dropped.
        case.output = Output::Rows;
    }
}

impl Unusual {
    /// Whether an input blocks until the output is dropped.
    pub(crate) fn blocks(&self) -> bool {
        self.feeds.iter().any(|feed| matches!(feed, Feed::Blocks(_)))
    }

    /// The texts that the error may contain, if readers make the join fail.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let of = |side: Side| self.feeds[side as usize].complaint(side);
        [Side::Left, Side::Right].into_iter().filter_map(of).collect()
    }
}

/// Returns the tables with the schemas that the case declares. The batches stay unchanged.
pub(crate) fn as_declared<'a>(case: &Case, pair: &'a Pair) -> Cow<'a, Pair> {
    let Some(declared) = case.unusual.declared else { return Cow::Borrowed(pair) };
    let mut rng = Rng::new(declared.seed);
    let mut pair = pair.clone();
    for table in [&mut pair.left, &mut pair.right] {
        let mut field = |field: &Field| {
            let differs = rng.chance(1, 2);
            field.clone().with_nullable(field.is_nullable() != differs)
        };
        let fields: Vec<_> = table.schema.fields().iter().map(|f| field(f)).collect();
        table.schema = Arc::new(Schema::new(fields));
    }
    Cow::Owned(pair)
}

/// The schema that a table's reader announces: the one that the join was bound to, or that of the batches.
pub(crate) fn announced(case: &Case, table: &Table) -> SchemaRef {
    let tells = case.unusual.declared.is_some_and(|declared| declared.readers_tell);
    match table.batches.first() {
        Some(batch) if tells && case.entry == Entry::Bound => batch.schema(),
        _ => table.schema.clone(),
    }
}

/// Whether the error says that a column has nulls, or may have nulls, although it was declared without them.
/// `pair` has the declared schemas.
pub(crate) fn denies_nulls(case: &Case, pair: &Pair, error: &Error) -> bool {
    if case.unusual.declared.is_none() {
        return false;
    }
    let text = error.to_string();
    let said = match error {
        Error::SchemaChanged { .. } => true,
        _ => text.contains("null"),
    };
    let named = |table: &Table| {
        let truth = table.batches.first().map(|batch| batch.schema());
        let fields = table.schema.fields().iter();
        fields.zip(truth.iter().flat_map(|truth| truth.fields().iter())).any(|(declared, is)| {
            !declared.is_nullable() && is.is_nullable() && text.contains(declared.name().as_str())
        })
    };
    said && (named(&pair.left) || named(&pair.right))
}

/// Checks that a join has returned its whole budget at its end.
pub(crate) fn check_given_back(budget: Option<&Arc<MemoryBudget>>) -> Result<(), Failure> {
    let Some(budget) = budget else { return Ok(()) };
    let free = soon(|| budget.used() == 0);
    ensure!(free, "{} bytes of the budget are in use after the join", budget.used());
    Ok(())
}
