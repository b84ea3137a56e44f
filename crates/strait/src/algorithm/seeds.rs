//! Which seed a join uses, and when it starts again with another seed.
//!
//! The place of a key in a table, and its hash, depend on a random [seed](Seed). Nobody can choose keys that
//! collide under an unknown seed, and by chance only a few keys collide. If many keys collide nevertheless,
//! the seed does not suit the keys, and the join starts again with another one. This happens only before the
//! attempt has written a row or taken a row of the probe side. (If a GPU failed midway, its rows are already
//! written. Then the CPU starts its own part again.) There are three checks:
//!
//! - Before each attempt, the join [examines](suits) a sample of the build side's keys. This finds many
//!   different keys with the same hash, and so bounds the candidates that are rejected later. It also finds
//!   keys that crowd in one partition or one part of a table, on the CPU and on a GPU.
//! - While the CPU fills a hash table, a search that exceeds a [bound](crate::table::HashTable::build) ends
//!   the attempt.
//! - After the table is filled, keys with the same hash are [compared](super::no_partition). If many of them
//!   are different, the attempt ends.
//!
//! The radix join writes rows while it fills its tables, one per partition, so it cannot start again there.
//! Instead, it sorts a partition whose keys crowd. For different keys with the same hash, the radix join
//! relies on the sample.
//!
//! The last attempt has no bound, so a join never fails because of its seed.

use arrow::array::RecordBatch;

use super::Context;
use crate::error::{Error, Result};
use crate::input::Location;
use crate::input::Relation;
use crate::key::{KeyPlan, Seed};
use crate::options::Side;
use crate::word::KeyWord;
use crate::word::Width;

/// The maximum number of seeds that a join tries.
const MAX_SEEDS: u32 = 4;
/// At most `SAMPLE` rows are sampled, and at most one of `ONE_OF` rows. A crowd that the sample misses is too
/// small to cost much.
const SAMPLE: usize = 4096;
const ONE_OF: usize = 32;
/// Consecutive rows per slice of the sample.
const SLICE: usize = 64;
/// A seed is bad if this many rows of the sample have the same hash but not the same key, or if this many different
/// keys lie in a space in which one key is expected. With a suitable seed, this has a probability of at most about
/// 10^-9.
const CROWD: usize = 16;

/// The seed that a join used.
pub(crate) struct Seeded {
    /// The number from which all its seeds are derived.
    pub(crate) number: u64,
    /// The number of seeds it tried.
    pub(crate) tried: u32,
}

/// Calls `attempt(seed, bounded)` until an attempt does not end with [`Error::BadSeed`]. The seeds are derived from
/// `number`. A test may ask for `bad_seeds` attempts with a seed that suits no keys.
pub(crate) fn with_seeds(
    number: u64,
    bad_seeds: u32,
    mut attempt: impl FnMut(Seed, bool) -> Result<()>,
) -> Result<Seeded> {
    for tried in 1.. {
        let seed = match tried <= bad_seeds {
            true => Seed::bad(),
            false => Seed::new(number.wrapping_add(u64::from(tried) - 1)),
        };
        let bounded = tried < MAX_SEEDS;
        match attempt(seed, bounded) {
            Err(Error::BadSeed) if bounded => {
                log::info!("the seed does not suit the keys; beginning again with another one");
            }
            done => return done.map(|()| Seeded { number, tried }),
        }
    }
    Err(Error::BadSeed)
}

/// Returns whether the plan's seed suits the keys of the build side, judged by a sample.
pub(crate) fn suits(
    cx: &Context<'_>,
    keys: &KeyPlan,
    side: Side,
    build: &Relation,
) -> Result<bool> {
    if cx.overrides.no_sample {
        return Ok(true);
    }
    let sample = match cx.overrides.bad_seeds > 0 {
        // Tests have few rows, so the sample is the whole build side.
        true => build.batches().to_vec(),
        false => sample(build, keys.seed().number()),
    };
    match keys.width() {
        Width::W32 => suits_sample::<u32>(cx, keys, side, &sample),
        Width::W64 => suits_sample::<u64>(cx, keys, side, &sample),
    }
}

/// Returns slices of the build side at positions that depend on the seed.
fn sample(build: &Relation, seed: u64) -> Vec<RecordBatch> {
    let rows = build.rows();
    let slices = SAMPLE.min(rows as usize / ONE_OF) / SLICE;
    let mut state = seed;
    let slice = |_| {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        let row = ((u128::from(state) * u128::from(rows)) >> 64) as u64;
        let at = build.places().locate(row);
        let (batch, first) = (&build.batches()[at.batch as usize], at.row as usize);
        batch.slice(first, SLICE.min(batch.num_rows() - first))
    };
    (0..slices).map(slice).collect()
}

fn suits_sample<K: KeyWord>(
    cx: &Context<'_>,
    keys: &KeyPlan,
    side: Side,
    sample: &[RecordBatch],
) -> Result<bool> {
    let mut found: Vec<(K, Location)> = Vec::new();
    let mut words = Vec::new();
    for (number, batch) in (0u32..).zip(sample) {
        let valid = keys.words::<K>(side, batch, &mut words)?;
        let rows = (0u32..).zip(&words);
        let rows = rows.filter(|&(row, _)| valid.as_ref().is_none_or(|v| v.is_valid(row as usize)));
        found.extend(rows.map(|(row, &word)| (word, Location { batch: number, row })));
    }
    found.sort_unstable_by_key(|&(word, _)| word);
    if keys.hashed() && one_hash(cx, keys, (side, sample), &found)? {
        return Ok(false);
    }
    found.dedup_by_key(|&mut (word, _)| word);
    let mixer = keys.mixer::<K>();
    let place = |&(word, _): &(K, Location)| word.mix(mixer).to_u64() << (64 - K::BITS);
    let mut places: Vec<u64> = found.iter().map(place).collect();
    places.sort_unstable();
    let space = u64::MAX / places.len().max(1) as u64;
    Ok(!places.windows(CROWD).any(|crowd| crowd[CROWD - 1] - crowd[0] < space))
}

/// Returns whether many rows have the same hash but not the same key. `found` is sorted by hash.
fn one_hash<K: KeyWord>(
    cx: &Context<'_>,
    keys: &KeyPlan,
    (side, sample): (Side, &[RecordBatch]),
    found: &[(K, Location)],
) -> Result<bool> {
    let crowds = found.windows(CROWD).filter(|crowd| crowd[0].0 == crowd[CROWD - 1].0);
    let [one, other]: [Vec<Location>; 2] =
        [0, CROWD - 1].map(|i| crowds.clone().map(|crowd| crowd[i].1).collect());
    if one.is_empty() {
        return Ok(false);
    }
    let values = match keys.values(side, sample, (&cx.workers, &cx.budget)) {
        // Without memory for the sample, the join goes on without this check.
        Err(Error::MemoryLimit { .. }) => return Ok(false),
        values => values?,
    };
    let mut same = vec![true; one.len()];
    keys.equal(&values, &one, &values, &other, &mut same)?;
    Ok(same.contains(&false))
}
