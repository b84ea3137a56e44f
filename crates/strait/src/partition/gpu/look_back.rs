//! Radix passes with decoupled look-back: each pass reads every tuple once and writes it once.

use super::{Digits, spare_of};
use crate::device::DeviceSide;
use crate::device::Session;
use crate::device::{DeviceStage, View, abi};
use crate::error::Result;

/// The maximum number of rows per launch: a look-back word has 30 bits for the count.
const ROWS_PER_LAUNCH: u64 = 1 << 29;

/// Orders a side's tuples. If there are several passes, they need spare memory: the first call allocates it,
/// and later calls reuse it.
pub(crate) fn ordered(
    session: &Session<'_>,
    side: &DeviceSide,
    digits: &Digits,
    spare: &mut Option<View>,
    what: &str,
) -> Result<View> {
    let bytes = side.rows * session.word.tuple();
    let target = session.allocate(bytes, what)?;
    let passes = digits.passes();
    let other = if passes == 1 { target } else { spare_of(session, spare, bytes)? };
    // Passes alternate between the two memories, so that the last one writes to the target.
    let to = |pass: usize| match (passes - 1 - pass).is_multiple_of(2) {
        true => To::Tuples(target),
        false => To::Tuples(other),
    };
    all_passes(session, side, digits, to)?;
    Ok(target)
}

/// Orders a side into columns of keys and values.
pub(crate) fn ordered_columns(
    session: &Session<'_>,
    side: &DeviceSide,
    digits: &Digits,
) -> Result<[View; 2]> {
    let passes = digits.passes();
    let column = || session.allocate(side.rows * session.word.bytes(), "a sorted column");
    let columns = [column()?, column()?];
    let tuples = |needed: bool| match needed {
        true => session.allocate(side.rows * session.word.tuple(), "sorting"),
        false => Ok(View::default()),
    };
    let between = [tuples(passes > 1)?, tuples(passes > 2)?];
    all_passes(session, side, digits, |pass| match pass + 1 == passes {
        true => To::Columns(columns),
        false => To::Tuples(between[pass % 2]),
    })?;
    Ok(columns)
}

/// Where a pass writes.
#[derive(Clone, Copy)]
enum To {
    Tuples(View),
    /// Keys and values.
    Columns([View; 2]),
}

/// Runs all passes. `to` returns the target of each pass.
fn all_passes(
    session: &Session<'_>,
    side: &DeviceSide,
    digits: &Digits,
    to: impl Fn(usize) -> To,
) -> Result<()> {
    let bins = bins(session, side, digits)?;
    let scratch = Scratch::new(session, side.rows)?;
    let mut from: Option<View> = side.tuples;
    for (pass, &digit) in digits.digits.iter().enumerate() {
        let to = to(pass);
        // A pass must be stable only if its input is already ordered.
        let stable = !digits.mixed || pass > 0;
        let base = bins.part((pass * abi::BINS * 8) as u64, abi::BINS as u64 * 8);
        sweep(session, &scratch, Sweep { side, from, to, base, digit, digits, stable })?;
        from = match to {
            To::Tuples(view) => Some(view),
            To::Columns(_) => None,
        };
    }
    Ok(())
}

/// Computes the start of each digit value for each pass.
fn bins(session: &Session<'_>, side: &DeviceSide, digits: &Digits) -> Result<View> {
    let passes = digits.passes();
    let bins = session.zeroed((passes * abi::BINS * 8) as u64, "digit counts")?;
    for (i, some) in digits.digits.chunks(abi::MAX_PASSES).enumerate() {
        let (keys, stride, raw) = side.keys_at();
        let mut histogram = abi::Histogram {
            keys,
            stride,
            rows: side.rows,
            bins: bins.address + (i * abi::MAX_PASSES * abi::BINS * 8) as u64,
            passes: some.len() as u32,
            mix: u32::from(digits.mixed && raw),
            mixing: session.mixing(),
            ..abi::Histogram::default()
        };
        histogram.digits[..some.len()].copy_from_slice(some);
        session.run(DeviceStage::Histogram(histogram))?;
    }
    let offsets = abi::Offsets { bins: bins.address, passes: passes as u32, unused: 0 };
    session.run(DeviceStage::Offsets(offsets))?;
    Ok(bins)
}

/// The memory through which tiles communicate.
struct Scratch {
    /// One word per tile and digit value, and the number of the next tile.
    words: View,
    /// The start of each digit value, for the launches after the first.
    bases: [View; 2],
}

impl Scratch {
    fn new(session: &Session<'_>, rows: u64) -> Result<Scratch> {
        let tile = u64::from(session.device.shape(session.word).tile);
        let tiles = rows.min(ROWS_PER_LAUNCH).div_ceil(tile);
        let words = session.allocate((tiles * abi::BINS as u64 + 1) * 4, "look-back")?;
        let base = || session.allocate(abi::BINS as u64 * 8, "look-back");
        Ok(Scratch { words, bases: [base()?, base()?] })
    }
}

/// The arguments of one pass.
struct Sweep<'a> {
    side: &'a DeviceSide,
    /// The tuples of the pass before; `None` in the first pass.
    from: Option<View>,
    to: To,
    base: View,
    digit: abi::Digit,
    digits: &'a Digits,
    stable: bool,
}

/// Runs one pass over a side, in as many launches as its rows need.
fn sweep(session: &Session<'_>, scratch: &Scratch, pass: Sweep<'_>) -> Result<()> {
    let (word, tuple) = (session.word.bytes(), session.word.tuple());
    let columns = pass.side.columns();
    let mut base = pass.base;
    let (to_tuples, to_keys, to_values) = match pass.to {
        To::Tuples(view) => (view.address, 0, 0),
        To::Columns([keys, values]) => (0, keys.address, values.address),
    };
    for (launch, first) in (0..pass.side.rows).step_by(ROWS_PER_LAUNCH as usize).enumerate() {
        let rows = ROWS_PER_LAUNCH.min(pass.side.rows - first);
        let tiles = rows.div_ceil(u64::from(session.device.shape(session.word).tile));
        let status_bytes = tiles * abi::BINS as u64 * 4;
        session.device.fill(session.compute, scratch.words.part(0, status_bytes + 4), 0)?;
        let next_base = scratch.bases[launch % 2];
        let moved = |address: u64, step: u64| if address == 0 { 0 } else { address + first * step };
        session.run(DeviceStage::LookBack(abi::LookBack {
            columns: abi::Columns {
                keys: moved(columns.keys, word),
                values: moved(columns.values, word),
                first: columns.first + first,
            },
            tuples: pass.from.map_or(0, |view| view.address + first * tuple),
            to_tuples,
            to_keys,
            to_values,
            rows,
            base: base.address,
            next_base: next_base.address,
            status: scratch.words.address,
            ticket: scratch.words.address + status_bytes,
            digit: pass.digit,
            mix: u32::from(pass.digits.mixed),
            stable: u32::from(pass.stable),
            mixing: session.mixing(),
        }))?;
        base = next_base;
    }
    Ok(())
}
