//! What the processor can do: inner loops compiled twice, for any processor and for those of the
//! last ten years; asking for memory ahead of its use.
//!
//! A binary that runs everywhere may use no instruction newer than the oldest processor it may meet,
//! which on x86-64 is one of 2003. The loops that most time goes to are compiled a second time with
//! the instructions of 2013 (wider vectors, shifts by a register in one step, counting of zeros), and
//! which of them runs is decided by what the processor says of itself.
//!
//! All code for x86-64 is under `cfg(vectors)`, which `build.rs` sets. Without it, every loop has one
//! version, for any processor.

/// Whether the processor has what [`on_this_processor`] compiles for.
#[cfg(vectors)]
#[inline(always)]
pub(crate) fn modern() -> bool {
    // The answer is kept in a static: this is a load and a test each.
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

/// Calls a function, `#[inline(always)]` as all that it calls in its loops, in the version for this
/// processor. Its generics and parameters are given once more, since the other version is a function
/// of its own:
///
/// ```text
/// on_this_processor!(add_up(values) where [T: Plain](values: &[T]) -> u64)
/// ```
macro_rules! on_this_processor {
    ($function:ident($($argument:ident),*) where
        [$($generic:ident: $bound:path),*]
        ($($parameter:ident: $type:ty),* $(,)?) $(-> $result:ty)?
    ) => {{
        #[cfg(vectors)]
        {
            #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
            #[allow(clippy::too_many_arguments)]
            fn modern<$($generic: $bound),*>($($parameter: $type),*) $(-> $result)? {
                $function($($parameter),*)
            }
            if $crate::processor::modern() {
                // SAFETY: the processor has these features.
                unsafe { modern($($argument),*) }
            } else {
                $function($($argument),*)
            }
        }
        #[cfg(not(vectors))]
        $function($($argument),*)
    }};
}
pub(crate) use on_this_processor;

/// Whether the processor has what [`on_newest_processor`] compiles for.
#[cfg(vectors)]
#[inline(always)]
pub(crate) fn newest() -> bool {
    modern()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
}

/// The same with a third version, for the vectors of servers since 2017: for the few loops that gain
/// by them, as those on words of 64 bits as unsigned numbers do.
macro_rules! on_newest_processor {
    ($function:ident($($argument:ident),*) where
        [$($generic:ident: $bound:path),*]
        ($($parameter:ident: $type:ty),* $(,)?) $(-> $result:ty)?
    ) => {{
        #[cfg(vectors)]
        {
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,bmi1,bmi2,lzcnt,popcnt")]
            #[allow(clippy::too_many_arguments)]
            fn newest<$($generic: $bound),*>($($parameter: $type),*) $(-> $result)? {
                $function($($parameter),*)
            }
            if $crate::processor::newest() {
                // SAFETY: the processor has these features.
                unsafe { newest($($argument),*) }
            } else {
                $crate::processor::on_this_processor!($function($($argument),*) where
                    [$($generic: $bound),*]($($parameter: $type),*) $(-> $result)?)
            }
        }
        #[cfg(not(vectors))]
        $function($($argument),*)
    }};
}
pub(crate) use on_newest_processor;

/// Brings the line at `place` into the cache.
#[inline(always)]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(vectors)]
    // SAFETY: a prefetch is a hint; it faults on no address. SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    #[cfg(not(vectors))]
    let _ = place;
}
