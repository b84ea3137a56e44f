//! Parquet's hybrid of run-length encoding and bit packing, for dictionary indices and definition levels.

use super::bits::{self, TOGETHER, varint};

/// Bit-packed values come in groups of this many.
const GROUP: usize = 8;

/// Appends the indices of values in a dictionary with `count` values, after their width.
pub(super) fn encode_indices(indices: &[u32], count: usize, out: &mut Vec<u8>) {
    let width = bits::width(count.saturating_sub(1) as u64).max(1);
    out.push(width as u8);
    encode(indices, width, out);
}

/// Appends `values`, which have up to `width` bits. A run begins with a group of equal values, and all others are
/// bit-packed.
pub(super) fn encode(values: &[u32], width: u32, out: &mut Vec<u8>) {
    // Values from `packed` up to `at` will be bit-packed. They fill their groups.
    let (mut packed, mut at) = (0, 0);
    while let Some(group) = values[at..].first_chunk::<GROUP>() {
        let value = group[0];
        if group.iter().fold(0, |all, other| all | (other ^ value)) != 0 {
            at += GROUP;
            continue;
        }
        pack(&values[packed..at], width, out);
        let rest = &values[at + GROUP..];
        let run = GROUP + rest.iter().take_while(|&&other| other == value).count();
        varint((run as u64) << 1, out);
        out.extend_from_slice(&value.to_le_bytes()[..width.div_ceil(8) as usize]);
        at += run;
        packed = at;
    }
    pack(&values[packed..], width, out);
}

/// Appends bit-packed values. Zeros fill the last group.
fn pack(values: &[u32], width: u32, out: &mut Vec<u8>) {
    if values.is_empty() {
        return;
    }
    let groups = values.len().div_ceil(GROUP);
    varint((groups as u64) << 1 | 1, out);
    let end = out.len() + groups * width as usize;
    for some in values.chunks(TOGETHER) {
        let mut together = [0; TOGETHER];
        for (together, &value) in together.iter_mut().zip(some) {
            *together = u64::from(value);
        }
        bits::pack(&together, width, out);
    }
    out.truncate(end);
}

/// Appends a run of `count` times the value 1, of one bit.
pub(super) fn encode_ones(count: usize, out: &mut Vec<u8>) {
    varint((count as u64) << 1, out);
    out.push(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `count` values, as the Parquet format describes it.
    fn decode(bytes: &[u8], width: u32, count: usize) -> Vec<u32> {
        let (mut at, mut values) = (0, Vec::new());
        while values.len() < count {
            let (mut header, mut shift) = (0_u64, 0);
            loop {
                let byte = bytes[at];
                at += 1;
                header |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    break;
                }
            }
            if header & 1 == 0 {
                let length = width.div_ceil(8) as usize;
                let mut value = [0; 4];
                value[..length].copy_from_slice(&bytes[at..at + length]);
                at += length;
                let run = vec![u32::from_le_bytes(value); (header >> 1) as usize];
                values.extend(run);
            } else {
                let packed = (header >> 1) as usize * GROUP;
                for i in 0..packed {
                    let bit = |b: usize| {
                        let position = i * width as usize + b;
                        u32::from(bytes[at + position / 8] >> (position % 8) & 1) << b
                    };
                    values.push((0..width as usize).map(bit).sum());
                }
                at += packed * width as usize / 8;
            }
        }
        assert_eq!(at, bytes.len(), "nothing is left");
        // Only the last group may have more values.
        assert!(values.len() < count + GROUP);
        values.truncate(count);
        values
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let mut random = fastrand::Rng::with_seed(3);
        for round in 0..3000 {
            let width = random.u32(1..=32);
            let most = if width == 32 { u32::MAX } else { (1 << width) - 1 };
            let mut values = Vec::new();
            for _ in 0..random.usize(0..20) {
                let value = random.u32(0..=most);
                let run = if random.bool() { 1 } else { random.usize(0..40) };
                values.extend(std::iter::repeat_n(value, run));
            }
            let mut bytes = Vec::new();
            encode(&values, width, &mut bytes);
            assert_eq!(decode(&bytes, width, values.len()), values, "round {round}");
        }
    }

    #[test]
    fn runs_take_little() {
        let mut bytes = Vec::new();
        encode(&[5; 1_000_000], 3, &mut bytes);
        assert_eq!(bytes.len(), 4);
        let mut ones = Vec::new();
        encode_ones(20_000, &mut ones);
        assert_eq!(decode(&ones, 1, 20_000), [1; 20_000]);
        for (count, width) in [(0, 1), (1, 1), (2, 1), (3, 2), (256, 8), (257, 9)] {
            bytes.clear();
            encode_indices(&[0], count, &mut bytes);
            assert_eq!(bytes[0], width);
        }
    }
}
