//! Parquet's hybrid of run-length encoding and bit packing, for dictionary indices and definition levels.

/// A repeated value is encoded as a run if it comes at least this often in a row.
const SHORTEST_RUN: usize = 8;

/// Bit-packed values come in groups of this many.
const GROUP: usize = 8;

/// Returns the number of bits of values up to `most`. It is at least one.
pub(super) fn bit_width(most: u32) -> u32 {
    (u32::BITS - most.leading_zeros()).max(1)
}

/// Appends `values`, which have up to `width` bits.
pub(super) fn encode(values: &[u32], width: u32, out: &mut Vec<u8>) {
    // Values from `packed` up to `at` will be bit-packed.
    let (mut packed, mut at) = (0, 0);
    while at < values.len() {
        let value = values[at];
        let run = values[at..].iter().take_while(|&&other| other == value).count();
        // The packed values before a run must fill their groups. The run gives them its first values.
        let missing = (GROUP - (at - packed) % GROUP) % GROUP;
        if run >= missing + SHORTEST_RUN {
            pack(&values[packed..at + missing], width, out);
            let run = run - missing;
            varint((run as u64) << 1, out);
            out.extend_from_slice(&value.to_le_bytes()[..width.div_ceil(8) as usize]);
            at += missing + run;
            packed = at;
        } else {
            at += run;
        }
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
    let (mut bits, mut count) = (0_u64, 0);
    for &value in values {
        bits |= u64::from(value) << count;
        count += width;
        if count >= u32::BITS {
            out.extend_from_slice(&(bits as u32).to_le_bytes());
            bits >>= u32::BITS;
            count -= u32::BITS;
        }
    }
    out.extend_from_slice(&bits.to_le_bytes()[..count.div_ceil(8) as usize]);
    out.resize(end, 0);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
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
        assert_eq!((bit_width(0), bit_width(1), bit_width(2), bit_width(u32::MAX)), (1, 1, 2, 32));
    }
}
