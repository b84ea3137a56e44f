//! Reads the lengths of a Parquet page's values, without decoding the values and without allocating.

use parquet::errors::Result;

use super::pages::bad;

/// The most levels that are examined one by one.
const MAX_LEVELS: u64 = 1 << 26;

/// Returns the largest sum of `slots` consecutive lengths. Each item is a length and its number of
/// repetitions.
pub(super) fn most(lengths: impl Iterator<Item = (u64, u64)> + Clone, slots: u64) -> u64 {
    // The window ends at `lengths` and begins at `tail`.
    let mut tail = lengths.clone();
    let mut first = (0, 0);
    let (mut held, mut sum, mut most) = (0, 0u64, 0);
    for (length, mut count) in lengths {
        let added = count.min(slots - held);
        held += added;
        count -= added;
        sum = sum.saturating_add(length.saturating_mul(added));
        most = most.max(sum);
        while count > 0 {
            if first.1 == 0 {
                let Some(next) = tail.next() else { return most };
                first = next;
                continue;
            }
            let step = count.min(first.1);
            sum = sum.saturating_add(length.saturating_mul(step));
            sum = sum.saturating_sub(first.0 * step);
            first.1 -= step;
            count -= step;
            most = most.max(sum);
        }
    }
    most
}

/// Returns the most slots of a repeated column that `rows` rows of a page have. A row begins at each level of
/// zero.
pub(super) fn most_slots(levels: Runs<'_>, count: u64, rows: u64) -> u64 {
    if count <= rows || count > MAX_LEVELS {
        return count;
    }
    let mut tail = levels.clone();
    let mut first = (0, 0);
    let (mut starts, mut held, mut most, mut seen) = (0, 0, 0, 0);
    for (level, repeats) in levels {
        seen += repeats;
        if level != 0 {
            held += repeats;
            most = most.max(held);
            continue;
        }
        for _ in 0..repeats {
            // One row more than a batch has, because the first row may have begun on the previous page.
            while starts > rows {
                if first.1 == 0 {
                    let Some(next) = tail.next() else { return count };
                    first = next;
                    continue;
                }
                let dropped = if first.0 == 0 { 1 } else { first.1 };
                starts -= u64::from(first.0 == 0);
                first.1 -= dropped;
                held -= dropped.min(held);
            }
            starts += 1;
            held += 1;
            most = most.max(held);
        }
    }
    // Missing levels may belong to any row.
    (most + count.saturating_sub(seen)).min(count)
}

/// Numbers in Parquet's hybrid of run-length encoding and bit packing: levels, or indices into a dictionary.
#[derive(Clone)]
pub(super) struct Runs<'a> {
    bytes: &'a [u8],
    at: usize,
    width: u64,
    /// The numbers that are left in the current bit-packed run, and the bit where the next one begins.
    packed: u64,
    bit: u64,
    /// The most numbers that may still follow.
    left: u64,
}

impl<'a> Runs<'a> {
    /// Reads at most `count` numbers of `width` bits.
    pub(super) fn new(bytes: &'a [u8], width: u8, count: u64) -> Result<Self> {
        if width > 32 {
            return Err(bad("a page has numbers of more than 32 bits"));
        }
        Ok(Runs { bytes, at: 0, width: width.into(), packed: 0, bit: 0, left: count })
    }
}

impl Iterator for Runs<'_> {
    type Item = (u32, u64);

    /// Returns a number and its number of repetitions.
    fn next(&mut self) -> Option<(u32, u64)> {
        while self.left > 0 {
            if self.packed > 0 {
                let number = bits(self.bytes, self.bit, self.width)?;
                self.packed -= 1;
                self.bit += self.width;
                self.left -= 1;
                return Some((number, 1));
            }
            let header = varint(self.bytes, &mut self.at)?;
            let is_packed = header & 1 == 1;
            // Decoders also truncate the count to 32 bits.
            let count = (header >> 1).wrapping_mul(if is_packed { 8 } else { 1 });
            let count = u64::from(count as u32);
            if is_packed && self.width > 0 {
                self.packed = count;
                self.bit = self.at as u64 * 8;
                self.at = self.at.checked_add(usize::try_from(count / 8 * self.width).ok()?)?;
                continue;
            }
            // A header of zero is padding, without a number.
            let length = if is_packed || header == 0 { 0 } else { self.width.div_ceil(8) };
            let end = self.at.checked_add(length as usize)?;
            let number = self.bytes.get(self.at..end)?;
            self.at = end;
            let number = number.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
            let count = count.min(self.left);
            self.left -= count;
            if count > 0 {
                return Some((number, count));
            }
        }
        None
    }
}

/// Delta-encoded numbers.
#[derive(Clone)]
pub(super) struct Deltas<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The number of values.
    pub(super) count: u64,
    mini_blocks: u64,
    in_mini_block: u64,
    left: u64,
    value: i32,
    least: i32,
    /// The widths of the mini blocks after the current one.
    widths: &'a [u8],
    width: u64,
    /// The numbers that are left in the current mini block, and the bit where the next one begins.
    packed: u64,
    bit: u64,
}

impl<'a> Deltas<'a> {
    /// Reads the header. If there are no bytes, there are no numbers.
    pub(super) fn new(bytes: &'a [u8]) -> Option<Self> {
        let mut at = 0;
        let mut header = [0; 4];
        if !bytes.is_empty() {
            for number in &mut header {
                *number = varint(bytes, &mut at)?;
            }
        }
        let [block, mini_blocks, count, first] = header;
        if count > 1 && (mini_blocks == 0 || block % mini_blocks != 0 || block == 0) {
            return None;
        }
        Some(Deltas {
            bytes,
            at,
            count,
            mini_blocks,
            in_mini_block: block.checked_div(mini_blocks).unwrap_or(0),
            left: count,
            value: zigzag(first) as i32,
            least: 0,
            widths: &[],
            width: 0,
            packed: 0,
            bit: 0,
        })
    }

    /// Returns the sum of the numbers, and where they end. Returns None if the data is cut short, or if a
    /// number is negative.
    pub(super) fn sum(mut self) -> Option<(u64, usize)> {
        let mut sum = 0u64;
        while self.left > 0 {
            sum += self.next()?;
            if self.value < 0 {
                return None;
            }
        }
        Some((sum, self.at.min(self.bytes.len())))
    }

    fn next_mini_block(&mut self) -> Option<()> {
        if self.widths.is_empty() {
            self.least = zigzag(varint(self.bytes, &mut self.at)?) as i32;
            let end = self.at.checked_add(usize::try_from(self.mini_blocks).ok()?)?;
            self.widths = self.bytes.get(self.at..end)?;
            self.at = end;
        }
        let (&width, widths) = self.widths.split_first()?;
        if width > 32 {
            return None;
        }
        self.widths = widths;
        self.width = width.into();
        self.packed = self.in_mini_block;
        self.bit = self.at as u64 * 8;
        let length = self.in_mini_block.checked_mul(self.width)?.div_ceil(8);
        // The last mini block need not be padded.
        let end = self.at.checked_add(usize::try_from(length).ok()?)?;
        self.at = end.min(self.bytes.len());
        Some(())
    }
}

impl Iterator for Deltas<'_> {
    type Item = u64;

    /// Returns the next number. A negative number counts as zero.
    fn next(&mut self) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        if self.left < self.count {
            if self.packed == 0 {
                self.next_mini_block()?;
            }
            let delta = bits(self.bytes, self.bit, self.width)?;
            self.bit += self.width;
            self.packed -= 1;
            self.value = self.value.wrapping_add(self.least).wrapping_add(delta as i32);
        }
        self.left -= 1;
        Some(self.value.max(0) as u64)
    }
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Returns `width` bits, starting at bit `at`, lowest first.
fn bits(bytes: &[u8], at: u64, width: u64) -> Option<u32> {
    let first = usize::try_from(at / 8).ok()?;
    let last = usize::try_from((at + width).div_ceil(8)).ok()?;
    let window = bytes.get(first..last.max(first))?;
    let word = window.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    Some(((word >> (at % 8)) & ((1 << width) - 1)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deltas_are_summed() {
        // A block of 128 in 4 mini blocks, with 5 values that begin with 7: 7, 5, 3, 1, 2 (parquet-format,
        // Encodings.md).
        let mut bytes = vec![128, 1, 4, 5, 14, 3];
        bytes.extend([2, 0, 0, 0]);
        // The deltas are -2, -2, -2, 1. The smallest is -2, so the block stores 0, 0, 0, 3 in two bits each,
        // padded to 32.
        bytes.extend([0b1100_0000, 0, 0, 0, 0, 0, 0, 0]);
        fn sum(bytes: &[u8]) -> Option<(u64, usize)> {
            Deltas::new(bytes)?.sum()
        }
        assert_eq!(sum(&bytes), Some((18, bytes.len())));
        assert_eq!(Deltas::new(&bytes).unwrap().collect::<Vec<_>>(), [7, 5, 3, 1, 2]);
        bytes.extend([9, 9]);
        assert_eq!(sum(&bytes), Some((18, bytes.len() - 2)));
        assert_eq!(sum(&bytes[..7]), None);
        assert_eq!(sum(&[]), Some((0, 0)));
        // Decoders take a negative prefix for a very long one.
        assert_eq!(sum(&[128, 1, 4, 1, 1]), None);
    }

    /// 3 times 5, then 0 to 7 in three bits (the example in parquet-format, Encodings.md).
    const RUNS: [u8; 6] = [3 << 1, 5, 1 << 1 | 1, 0b1000_1000, 0b1100_0110, 0b1111_1010];

    #[test]
    fn runs_are_read() {
        let numbers = |count| {
            let runs = Runs::new(&RUNS, 3, count).unwrap();
            runs.flat_map(|(number, count)| vec![number; count as usize]).collect::<Vec<_>>()
        };
        assert_eq!(numbers(100), [5, 5, 5, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(numbers(2), [5, 5]);
        assert_eq!(numbers(5), [5, 5, 5, 0, 1]);
        assert!(Runs::new(&RUNS, 33, 1).is_err());
        // Padding, a run that claims more than there is, and one that is cut short.
        assert_eq!(Runs::new(&[0, 0, 0xff], 3, 9).unwrap().next(), None);
        assert_eq!(Runs::new(&[0, 2 << 1, 7], 3, 9).unwrap().next(), Some((7, 2)));
        assert_eq!(Runs::new(&[0x80, 0x80, 0x80, 0x80, 0x20, 7], 3, 9).unwrap().next(), None);
        assert_eq!(Runs::new(&[0xfe, 0xff, 0x03, 1], 3, 9).unwrap().next(), Some((1, 9)));
        assert_eq!(Runs::new(&[0xff, 0xff, 0x03, 1], 3, 99).unwrap().count(), 2);
    }

    #[test]
    fn the_largest_window_is_found() {
        let runs = [(1u64, 3u64), (7, 1), (2, 5), (9, 2), (0, 4)];
        let flat: Vec<u64> =
            runs.iter().flat_map(|&(length, count)| vec![length; count as usize]).collect();
        for slots in 1..20 {
            let windows = flat.windows(slots.min(flat.len()));
            let expected: u64 = windows.map(|window| window.iter().sum()).max().unwrap();
            assert_eq!(most(runs.into_iter(), slots as u64), expected, "{slots}");
        }
        assert_eq!(most(runs.into_iter(), 0), 0);
    }

    #[test]
    fn rows_of_many_slots_are_found() {
        // One row with 1 slot, one with 6, three with 1, as runs of one bit.
        let levels = [1 << 1, 0, 1 << 1, 0, 5 << 1, 1, 3 << 1, 0];
        let runs = |count| Runs::new(&levels, 1, count).unwrap();
        assert_eq!(most_slots(runs(10), 10, 1), 7);
        assert_eq!(most_slots(runs(10), 10, 2), 8);
        assert_eq!(most_slots(runs(10), 10, 100), 10);
        // Two levels are missing.
        assert_eq!(most_slots(runs(12), 12, 1), 9);
    }
}
