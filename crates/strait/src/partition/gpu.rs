//! Radix passes on a device: tuples ordered by some bits of their keys.

use crate::algorithm::gpu::{Session, Side};
use crate::device::{Stage, View, abi};
use crate::error::Result;

/// Rows of one launch, at most: a look-back word has 30 bits to count.
const ROWS_A_LAUNCH: u64 = 1 << 29;

/// Which bits tuples are ordered by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Digits {
    /// The least significant first.
    digits: Vec<abi::Digit>,
    /// Whether they are those of the mixed key, which tuples then have.
    mixed: bool,
}

impl Digits {
    /// The top `bits` of mixed keys of so many bits, in as few passes as can be.
    pub(crate) fn top(bits: u32, word_bits: u32) -> Digits {
        let passes = bits.div_ceil(abi::DIGIT_BITS).max(1);
        let mut shift = word_bits - bits;
        let mut digits = Vec::new();
        for pass in 0..passes {
            let width = (word_bits - shift).div_ceil(passes - pass);
            digits.push(digit(shift, width));
            shift += width;
        }
        Digits { digits, mixed: true }
    }

    /// The bits in which keys differ. At least one pass, so that tuples are made.
    pub(crate) fn varying(bits: u64) -> Digits {
        let mut digits = Vec::new();
        let mut left = bits;
        while left != 0 {
            let shift = left.trailing_zeros();
            let last = 63 - left.leading_zeros();
            let width = abi::DIGIT_BITS.min(last - shift + 1);
            digits.push(digit(shift, width));
            left &= !(u64::from(digit(shift, width).mask) << shift);
        }
        if digits.is_empty() {
            digits.push(digit(0, 1));
        }
        Digits { digits, mixed: false }
    }

    /// How many passes they take.
    pub(crate) fn passes(&self) -> usize {
        self.digits.len()
    }
}

fn digit(shift: u32, width: u32) -> abi::Digit {
    // A shift by the whole width is not defined, and there is nothing to see there.
    abi::Digit { shift: if width == 0 { 0 } else { shift }, mask: (1u32 << width) - 1 }
}

/// Orders a side's tuples. The spare memory, where more than one pass needs some, is made on the
/// first call and used again.
pub(crate) fn ordered(
    session: &Session<'_>,
    side: &Side,
    digits: &Digits,
    spare: &mut Option<View>,
    what: &str,
) -> Result<View> {
    let bytes = side.rows * session.word.tuple();
    let target = session.allocate(bytes, what)?;
    let passes = digits.passes();
    let other = match *spare {
        _ if passes == 1 => target,
        Some(view) if view.bytes >= bytes => view,
        _ => {
            let view = session.allocate(bytes, "partitioning")?;
            *spare = Some(view);
            view
        }
    };
    let bins = bins(session, side, digits)?;
    let scratch = Scratch::new(session, side.rows)?;
    let mut from: Option<View> = None;
    for (pass, &digit) in digits.digits.iter().enumerate() {
        // Passes take turns so that the last one writes to the target.
        let to = if (passes - 1 - pass).is_multiple_of(2) { target } else { other };
        // Only what was ordered before has an order to keep.
        let stable = !digits.mixed || pass > 0;
        let base = bins.part((pass * abi::BINS * 8) as u64, abi::BINS as u64 * 8);
        sweep(session, &scratch, Sweep { side, from, to, base, digit, digits, stable })?;
        from = Some(to);
    }
    Ok(target)
}

/// Where each digit of each pass begins.
fn bins(session: &Session<'_>, side: &Side, digits: &Digits) -> Result<View> {
    let passes = digits.passes();
    let bins = session.zeroed((passes * abi::BINS * 8) as u64, "digit counts")?;
    for (i, some) in digits.digits.chunks(abi::MOST_PASSES).enumerate() {
        let mut histogram = abi::Histogram {
            keys: side.keys.address,
            rows: side.rows,
            bins: bins.address + (i * abi::MOST_PASSES * abi::BINS * 8) as u64,
            passes: some.len() as u32,
            mix: u32::from(digits.mixed),
            ..abi::Histogram::default()
        };
        histogram.digits[..some.len()].copy_from_slice(some);
        session.run(Stage::Histogram(histogram))?;
    }
    let offsets = abi::Offsets { bins: bins.address, passes: passes as u32, unused: 0 };
    session.run(Stage::Offsets(offsets))?;
    Ok(bins)
}

/// What tiles tell one another.
struct Scratch {
    /// A word a tile and digit, and the next tile.
    words: View,
    /// Where digits begin in the launches after the first.
    bases: [View; 2],
}

impl Scratch {
    fn new(session: &Session<'_>, rows: u64) -> Result<Scratch> {
        let tile = u64::from(session.device.shape(session.word).tile);
        let tiles = rows.min(ROWS_A_LAUNCH).div_ceil(tile);
        let words = session.allocate((tiles * abi::BINS as u64 + 1) * 4, "look-back")?;
        let base = || session.allocate(abi::BINS as u64 * 8, "look-back");
        Ok(Scratch { words, bases: [base()?, base()?] })
    }
}

/// One pass.
struct Sweep<'a> {
    side: &'a Side,
    /// Tuples of the pass before; none in the first.
    from: Option<View>,
    to: View,
    base: View,
    digit: abi::Digit,
    digits: &'a Digits,
    stable: bool,
}

/// One pass over a side, in as many launches as its rows need.
fn sweep(session: &Session<'_>, scratch: &Scratch, pass: Sweep<'_>) -> Result<()> {
    let (word, tuple) = (session.word.bytes(), session.word.tuple());
    let columns = pass.side.columns();
    let mut base = pass.base;
    for (launch, first) in (0..pass.side.rows).step_by(ROWS_A_LAUNCH as usize).enumerate() {
        let rows = ROWS_A_LAUNCH.min(pass.side.rows - first);
        let tiles = rows.div_ceil(u64::from(session.device.shape(session.word).tile));
        let status_bytes = tiles * abi::BINS as u64 * 4;
        session.device.fill(session.compute, scratch.words.part(0, status_bytes + 4), 0)?;
        let next_base = scratch.bases[launch % 2];
        let moved = |address: u64, step: u64| if address == 0 { 0 } else { address + first * step };
        session.run(Stage::LookBack(abi::LookBack {
            columns: abi::Columns {
                keys: moved(columns.keys, word),
                values: moved(columns.values, word),
                first,
            },
            tuples: pass.from.map_or(0, |view| view.address + first * tuple),
            to_tuples: pass.to.address,
            rows,
            base: base.address,
            next_base: next_base.address,
            status: scratch.words.address,
            ticket: scratch.words.address + status_bytes,
            digit: pass.digit,
            mix: u32::from(pass.digits.mixed),
            stable: u32::from(pass.stable),
            ..abi::LookBack::default()
        }))?;
        base = next_base;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths(digits: &Digits) -> Vec<(u32, u32)> {
        digits.digits.iter().map(|d| (d.shift, d.mask.count_ones())).collect()
    }

    #[test]
    fn top_bits_are_shared_out_over_passes() {
        assert_eq!(widths(&Digits::top(15, 64)), [(49, 8), (57, 7)]);
        assert_eq!(widths(&Digits::top(8, 32)), [(24, 8)]);
        assert_eq!(widths(&Digits::top(17, 64)), [(47, 6), (53, 6), (59, 5)]);
        assert_eq!(widths(&Digits::top(0, 64)), [(0, 0)]);
    }

    #[test]
    fn only_bits_that_vary_are_sorted() {
        assert_eq!(widths(&Digits::varying((1 << 27) - 1)), [(0, 8), (8, 8), (16, 8), (24, 3)]);
        assert_eq!(widths(&Digits::varying(0b1011 << 40)), [(40, 4)]);
        assert_eq!(widths(&Digits::varying(1 << 63 | 1)), [(0, 8), (63, 1)]);
        assert_eq!(widths(&Digits::varying(0)), [(0, 1)]);
        assert_eq!(widths(&Digits::varying(u64::MAX)).len(), 8);
    }
}
