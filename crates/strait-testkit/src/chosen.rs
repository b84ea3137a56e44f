//! Keys that an attacker would choose. With a fixed mixer and a fixed hash, which everyone can read, all
//! these keys fall into one place. A join draws its own mixer and hash, so it must spread these keys.

/// The multipliers of the known mixer, and their inverses.
const WIDE: [u64; 2] = [0xd6e8_feb8_6659_fd93, 0xcfee_444d_8b59_a89b];
const NARROW_INVERSE: [u32; 2] = [0x1d69_e2a5, 0x4302_1123];

/// Returns the 64-bit word that the known mixer maps to `place`. Words of consecutive places have the same
/// top bits after mixing.
pub fn wide(place: u64) -> u64 {
    rounds(place, WIDE[1])
}

/// Same as [`wide`], with 32 bits.
pub fn narrow(place: u32) -> u32 {
    let mut x = place;
    x = (x ^ (x >> 16)).wrapping_mul(NARROW_INVERSE[1]);
    x = (x ^ (x >> 16)).wrapping_mul(NARROW_INVERSE[0]);
    x ^ (x >> 16)
}

/// Returns the `i`th of many pairs of numbers. A known hash of two columns gives all these pairs the same
/// value.
pub fn pair(i: u64) -> [i64; 2] {
    // The word of a single column has its sign bit flipped, but the hash does not.
    let first = wide(i) ^ 1 << 63;
    let before = rounds(first, WIDE[0]).wrapping_mul(WIDE[0]).rotate_left(29);
    [first as i64, wide(before) as i64]
}

fn rounds(x: u64, multiplier: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(multiplier);
    let x = (x ^ (x >> 32)).wrapping_mul(multiplier);
    x ^ (x >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: [u32; 2] = [0x7feb_352d, 0x846c_a68b];

    #[test]
    fn chosen_words_meet_under_the_known_mixer() {
        for place in [0, 1, 77, u64::MAX, 1 << 40] {
            assert_eq!(rounds(wide(place), WIDE[0]), place);
        }
        for place in [0, 1, 77, u32::MAX, 1 << 20] {
            let x = narrow(place);
            let x = (x ^ (x >> 16)).wrapping_mul(NARROW[0]);
            let x = (x ^ (x >> 16)).wrapping_mul(NARROW[1]);
            assert_eq!(x ^ (x >> 16), place);
        }
    }

    #[test]
    fn chosen_pairs_had_one_hash() {
        let hash = |[first, second]: [i64; 2]| {
            let before = rounds(first as u64, WIDE[0]);
            before.wrapping_mul(WIDE[0]).rotate_left(29) ^ rounds(second as u64, WIDE[0])
        };
        assert!((0..1000).all(|i| hash(pair(i)) == hash(pair(0))));
        assert_ne!(pair(1), pair(2));
    }
}
