//! Bitmaps with one bit per slot of a table, in words of 64 bits.

/// Returns the number of words for `bits` bits.
pub(super) fn words_for(bits: usize) -> usize {
    bits.div_ceil(64)
}

#[inline(always)]
pub(super) fn get(words: &[u64], at: usize) -> bool {
    words[at / 64] >> (at % 64) & 1 != 0
}

#[inline(always)]
pub(super) fn set(words: &mut [u64], at: usize) {
    words[at / 64] |= 1 << (at % 64);
}

#[inline(always)]
pub(super) fn clear(words: &mut [u64], at: usize) {
    words[at / 64] &= !(1 << (at % 64));
}

/// Returns the positions of all set bits, in ascending order.
pub(super) fn ones(words: &[u64]) -> impl Iterator<Item = usize> {
    words.iter().enumerate().flat_map(|(i, &word)| {
        let mut left = word;
        std::iter::from_fn(move || {
            let lowest = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(i * 64 + lowest)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_found() {
        let places = [0, 1, 63, 64, 130, 191];
        let mut words = vec![0; words_for(192)];
        places.iter().for_each(|&at| set(&mut words, at));
        assert!((0..192).all(|at| get(&words, at) == places.contains(&at)));
        assert_eq!(ones(&words).collect::<Vec<_>>(), places);
        clear(&mut words, 64);
        assert_eq!(ones(&words).collect::<Vec<_>>(), [0, 1, 63, 130, 191]);
    }
}
