//! Which seed a join uses, and when it begins again with another one.
//!
//! Places of keys, and hashes, follow from a random [seed](Seed). Nobody can choose keys that meet under a
//! seed that he does not know, and by chance only a few keys meet. If many meet all the same, the seed
//! does not suit the keys, and the join begins again with another one. That happens only while
//! nothing has been written and no row of the probe side has been taken:
//!
//! - Before each attempt, a sample of the build side's keys is [examined](suits). This bounds the
//!   candidates that are rejected later: many different keys with one hash are found here. It also
//!   finds keys that crowd in one partition or one part of a table, on the CPU and on a GPU.
//! - While a hash table of the CPU is filled, a search that passes a
//!   [bound](crate::table::HashTable::build) ends the attempt.
//! - After it is filled, keys with one hash are [compared](super::no_partition). If there are many
//!   different ones, the attempt ends.
//!
//! The radix join writes rows while it fills tables, one per partition, and so it cannot begin again
//! there. A partition whose keys crowd is sorted instead. For different keys with one hash, the radix
//! join relies on the sample.
//!
//! The last attempt has no bound, so a join never fails because of its seed.

use arrow::array::RecordBatch;

use super::Context;
use crate::error::{Error, Result};
use crate::input::Location;
use crate::input::Relation;
use crate::key::{KeyPlan, Seed};
use crate::memory::Budget;
use crate::options::Side;
use crate::overrides::TestOverrides;
use crate::word::KeyWord;
use crate::word::Width;

/// Seeds that a join tries, at most.
const MAX_SEEDS: u32 = 4;
/// Rows of a sample, at most, and one of how many rows is in it. A part of the build side that the
/// sample does not show is too small to cost much.
const SAMPLE: usize = 4096;
const ONE_OF: usize = 32;
/// Rows of the sample that lie next to one another.
const SLICE: usize = 64;
/// Different keys in the space of one, or with one hash, that are too many. Seeds that suit the keys
/// have so many with a probability of less than 10^-9.
const CROWD: usize = 16;

/// The seed that a join used.
pub(crate) struct Seeded {
    /// The number that all its seeds follow from.
    pub(crate) number: u64,
    /// How many seeds it tried.
    pub(crate) tried: u32,
}

/// Calls `attempt(seed, bounded)` until an attempt does not end with [`Error::BadSeed`].
pub(crate) fn with_seeds(
    overrides: TestOverrides,
    mut attempt: impl FnMut(Seed, bool) -> Result<()>,
) -> Result<Seeded> {
    let number = overrides.seed.unwrap_or_else(Seed::random_number);
    for tried in 1.. {
        let seed = match tried <= overrides.bad_seeds {
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

/// Whether the plan's seed suits the keys of the build side, as far as a sample tells.
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
        // Tests have few rows.
        true => build.batches().to_vec(),
        false => sample(build, keys.seed().number()),
    };
    match keys.width() {
        Width::W32 => suits_sample::<u32>(cx, keys, side, &sample),
        Width::W64 => suits_sample::<u64>(cx, keys, side, &sample),
    }
}

/// Slices of the build side at places that follow from the seed.
fn sample(build: &Relation, seed: u64) -> Vec<RecordBatch> {
    let rows = build.rows();
    let slices = SAMPLE.min(rows as usize / ONE_OF) / SLICE;
    let mut state = seed;
    let slice = |_| {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        let row = ((u128::from(state) * u128::from(rows)) >> 64) as u64;
        let at = build.places().locate(row);
        let (batch, first) = (&build.batches()[at.chunk as usize], at.row as usize);
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
    for (chunk, batch) in (0u32..).zip(sample) {
        let valid = keys.words::<K>(side, batch, &mut words)?;
        let rows = (0u32..).zip(&words);
        let rows = rows.filter(|&(row, _)| valid.as_ref().is_none_or(|v| v.is_valid(row as usize)));
        found.extend(rows.map(|(row, &word)| (word, Location { chunk, row })));
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

/// Whether different keys have one hash, of which there are many. `found` is sorted by hash.
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
    let values = keys.values(side, sample, (&cx.workers, &Budget::new(None)))?;
    let mut same = vec![true; one.len()];
    keys.equal(&values, &one, &values, &other, &mut same);
    Ok(same.contains(&false))
}
