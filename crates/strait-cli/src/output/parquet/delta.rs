//! Parquet's encoding of integers by their differences (DELTA_BINARY_PACKED).
//!
//! ```text
//!  header                         block of 128 differences
//!  128, 4, values, first value    least difference, 4 widths, 4 × 32 packed (difference − least)
//! ```

use super::bits::{TOGETHER, least, pack, varint, width};

/// Differences per block. They share a least difference.
const BLOCK: usize = 128;

/// Appends values. With `narrow`, they are 32-bit integers.
pub(super) fn encode(values: &[i64], narrow: bool, out: &mut Vec<u8>) {
    varint(BLOCK as u64, out);
    varint((BLOCK / TOGETHER) as u64, out);
    varint(values.len() as u64, out);
    signed(values.first().copied().unwrap_or(0), out);
    match narrow {
        true => blocks(values, |from, to| i64::from((to as i32).wrapping_sub(from as i32)), out),
        false => blocks(values, |from, to| to.wrapping_sub(from), out),
    }
}

fn blocks(values: &[i64], difference: impl Fn(i64, i64) -> i64, out: &mut Vec<u8>) {
    let next = values.get(1..).unwrap_or_default();
    for (from, to) in values.chunks(BLOCK).zip(next.chunks(BLOCK)) {
        let mut differences = [0; BLOCK];
        let some = &mut differences[..to.len()];
        for ((some, &from), &to) in some.iter_mut().zip(from).zip(to) {
            *some = difference(from, to);
        }
        let least = least(some).unwrap_or(0);
        let mut above = [0; BLOCK];
        for (above, &some) in above.iter_mut().zip(&*some) {
            *above = some.wrapping_sub(least) as u64;
        }
        block(least, &above, to.len(), out);
    }
}

/// Appends a block of `count` differences. The others are zeros.
fn block(least: i64, above: &[u64; BLOCK], count: usize, out: &mut Vec<u8>) {
    signed(least, out);
    let (parts, _) = above.as_chunks::<TOGETHER>();
    let widths = parts.iter().map(|part| width(part.iter().fold(0, |all, value| all | value)));
    let start = out.len();
    out.extend(widths.map(|width| width as u8));
    // Parts without a difference have no bytes.
    for (i, part) in parts.iter().take(count.div_ceil(TOGETHER)).enumerate() {
        let width = u32::from(out[start + i]);
        pack(part, width, out);
    }
}

/// Appends a signed integer, so that those near zero are short.
fn signed(value: i64, out: &mut Vec<u8>) {
    varint((value << 1 ^ value >> (i64::BITS - 1)) as u64, out);
}
