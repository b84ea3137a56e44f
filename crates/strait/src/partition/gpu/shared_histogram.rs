//! Radix passes with one histogram per thread block, as in 004 §3.2.1: count, scan, write.
//!
//! ```text
//!  chunks ─► counts[digit][chunk] ─► exclusive scan, digit by digit ─► chunks again ─► tuples
//! ```
//!
//! Each pass reads every tuple twice; look-back reads it once.

use super::{Digits, spare_of};
use crate::device::DeviceSide;
use crate::device::Session;
use crate::device::{DeviceStage, View, abi};
use crate::error::Result;

/// The maximum number of chunks per side. It is several times what a card runs at once, so that the card is
/// rarely idle near the end. It is small enough that the counts are short compared with the tuples.
const MAX_CHUNKS: u64 = 2048;

/// Orders a side's tuples by the top bits of their mixed keys. If there are several passes, they need spare
/// memory: the first call allocates it, and later calls reuse it.
pub(crate) fn counted(
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
    let tile = u64::from(session.device.shape(session.word).tile);
    let chunk = side.rows.div_ceil(tile).div_ceil(MAX_CHUNKS).max(1) * tile;
    let chunks = side.rows.div_ceil(chunk);
    let counts = session.allocate(chunks * abi::BINS as u64 * 4, "digit counts")?;
    let bins = session.allocate(abi::BINS as u64 * 8, "digit counts")?;
    let mut from: Option<View> = side.tuples;
    for (pass, &digit) in digits.digits.iter().enumerate() {
        // Passes alternate between the two memories, so that the last one writes to the target.
        let to = if (passes - 1 - pass).is_multiple_of(2) { target } else { other };
        let stage = abi::SharedHistogram {
            columns: side.columns(),
            tuples: from.map_or(0, |view| view.address),
            to_tuples: to.address,
            rows: side.rows,
            chunk,
            counts: counts.address,
            bins: bins.address,
            digit,
            chunks: chunks as u32,
            unused: 0,
            mixing: session.mixing(),
        };
        session.run(DeviceStage::SharedCount(stage))?;
        session.run(DeviceStage::SharedScan(stage))?;
        // The scan ran over the chunks of each digit. This stage computes the start of each digit.
        let offsets = abi::Offsets { bins: bins.address, passes: 1, unused: 0 };
        session.run(DeviceStage::Offsets(offsets))?;
        session.run(DeviceStage::SharedScatter(stage))?;
        from = Some(to);
    }
    Ok(target)
}
