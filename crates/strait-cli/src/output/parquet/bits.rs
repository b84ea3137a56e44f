//! Packs integers into the fewest bits, the lowest bits first, as Parquet's encodings require it.

/// The number of values that are packed at a time. They fill `4 * width` bytes.
pub(super) const TOGETHER: usize = 32;

/// Appends values that have up to `width` bits. Zeros fill the last bytes.
pub(super) fn pack(values: &[u64; TOGETHER], width: u32, out: &mut Vec<u8>) {
    /// Calls the version of `pack_by` for a width. With a constant width, all shifts are constants.
    macro_rules! by_width {
        ($($width:literal)*) => {
            match width {
                $($width => pack_by::<$width>(values, out),)*
                _ => {}
            }
        };
    }
    by_width!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
        33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64);
}

fn pack_by<const WIDTH: u32>(values: &[u64; TOGETHER], out: &mut Vec<u8>) {
    const WORD: usize = size_of::<u64>();
    let mut bytes = [0; TOGETHER * WORD];
    // The bits that do not fill a word yet.
    let (mut bits, mut count, mut at) = (0_u64, 0, 0);
    for &value in values {
        bits |= value << count;
        count += WIDTH;
        if count >= u64::BITS {
            bytes[at..at + WORD].copy_from_slice(&bits.to_le_bytes());
            at += WORD;
            count -= u64::BITS;
            bits = if count == 0 { 0 } else { value >> (WIDTH - count) };
        }
    }
    let end = TOGETHER / 8 * WIDTH as usize;
    if at < end {
        bytes[at..end].copy_from_slice(&bits.to_le_bytes()[..end - at]);
    }
    out.extend_from_slice(&bytes[..end]);
}

/// Returns the bits of values up to `most`.
pub(super) fn width(most: u64) -> u32 {
    u64::BITS - most.leading_zeros()
}

/// Returns whether all values are 32-bit integers. Without AVX, those are compared much faster.
fn all_narrow(values: &[i64]) -> bool {
    const MIDDLE: i64 = 1 << (u32::BITS - 1);
    let all = values.iter().fold(0, |all, &value| all | value.wrapping_add(MIDDLE) as u64);
    width(all) <= u32::BITS
}

/// Returns the least value.
pub(super) fn least(values: &[i64]) -> Option<i64> {
    match all_narrow(values) {
        true => values.iter().map(|&value| value as i32).min().map(i64::from),
        false => values.iter().copied().min(),
    }
}

/// Returns the greatest value.
pub(super) fn greatest(values: &[i64]) -> Option<i64> {
    match all_narrow(values) {
        true => values.iter().map(|&value| value as i32).max().map(i64::from),
        false => values.iter().copied().max(),
    }
}

/// Appends an integer in groups of seven bits (ULEB128).
pub(super) fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_widths_come_back() {
        let mut random = fastrand::Rng::with_seed(11);
        for bits in 0..=u64::BITS {
            let most = if bits == 0 { 0 } else { u64::MAX >> (u64::BITS - bits) };
            let mut values = [0; TOGETHER];
            values.fill_with(|| random.u64(0..=most));
            values[7] = most;
            assert_eq!(width(most), bits);
            let mut bytes = vec![0xff];
            pack(&values, bits, &mut bytes);
            assert_eq!(bytes.len(), 1 + TOGETHER * bits as usize / 8);
            let bit = |at: usize| u64::from(bytes[1 + at / 8] >> (at % 8) & 1);
            for (i, &value) in values.iter().enumerate() {
                let start = i * bits as usize;
                let read: u64 = (0..bits as usize).map(|b| bit(start + b) << b).sum();
                assert_eq!(read, value, "value {i} of {bits} bits");
            }
        }
    }

    #[test]
    fn bounds_are_found() {
        let narrow = [5, -7, i64::from(i32::MAX), i64::from(i32::MIN), 0];
        assert!(all_narrow(&narrow));
        for wide in [i64::from(i32::MAX) + 1, i64::from(i32::MIN) - 1, i64::MAX, i64::MIN] {
            let values = [5, wide, -7];
            assert!(!all_narrow(&values));
            assert_eq!(least(&values), values.iter().copied().min());
            assert_eq!(greatest(&values), values.iter().copied().max());
        }
        assert_eq!(least(&narrow), Some(i64::from(i32::MIN)));
        assert_eq!(greatest(&narrow), Some(i64::from(i32::MAX)));
        assert_eq!((least(&[]), greatest(&[])), (None, None));
    }

    #[test]
    fn varints_have_seven_bits_per_byte() {
        let mut bytes = Vec::new();
        [0, 127, 128, u64::MAX].iter().for_each(|&value| varint(value, &mut bytes));
        assert_eq!(bytes[..4], [0, 127, 128, 1]);
        assert_eq!(bytes.len(), 4 + 10);
    }
}
