//! Remembers the dictionary indices of string views.
//!
//! A view has the length of a string, its first bytes, and its place in a buffer of the array. So equal views of
//! the same array are equal strings, and nobody has to look at their bytes.

/// The number of views that are remembered, as a power of two.
const BITS: u32 = 9;

/// No string has this view, because none is that long.
const NO_VIEW: u128 = u128::MAX;

/// The views that were used last in an array.
pub(super) struct Recent {
    views: Box<[u128; 1 << BITS]>,
    indices: Box<[u32; 1 << BITS]>,
}

impl Recent {
    pub(super) fn new() -> Recent {
        Recent { views: Box::new([NO_VIEW; 1 << BITS]), indices: Box::new([0; 1 << BITS]) }
    }

    /// Forgets all views.
    pub(super) fn forget(&mut self) {
        self.views.fill(NO_VIEW);
    }

    /// Returns the index of a view.
    #[inline]
    pub(super) fn index(&self, view: u128) -> Option<u32> {
        let slot = slot(view);
        (self.views[slot] == view).then_some(self.indices[slot])
    }

    pub(super) fn remember(&mut self, view: u128, index: u32) {
        let slot = slot(view);
        (self.views[slot], self.indices[slot]) = (view, index);
    }
}

#[inline]
fn slot(view: u128) -> usize {
    let mixed = (view as u64 ^ ((view >> u64::BITS) as u64).rotate_left(29))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - BITS)) as usize & ((1 << BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_forgotten() {
        let mut recent = Recent::new();
        assert_eq!(recent.index(0), None);
        recent.remember(0, 7);
        recent.remember(1 << 100, 8);
        assert_eq!((recent.index(0), recent.index(1 << 100)), (Some(7), Some(8)));
        recent.forget();
        assert_eq!((recent.index(0), recent.index(1 << 100)), (None, None));
    }
}
