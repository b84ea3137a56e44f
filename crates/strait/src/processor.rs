//! Inner loops that are compiled for several instruction sets, and prefetching.
//!
//! A portable x86-64 binary may only use instructions that every x86-64 processor since 2003 has. So the
//! hottest loops are compiled a second time, with the instructions of 2013: wider vectors, shifts by a
//! register in one instruction, and counting of leading zeros. At run time, the features that the processor
//! reports decide which version runs.
//!
//! All code for x86-64 is under `cfg(vectors)`, which `build.rs` sets. Without it, every loop has one
//! portable version.

/// Returns whether the processor has the instructions that [`on_this_processor`] compiles for.
#[cfg(vectors)]
#[inline(always)]
pub(crate) fn modern() -> bool {
    // The standard library caches the answers, so each of these is a load and a test.
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

/// Calls a function in the version for this processor. The function, and all functions that it calls in its
/// loops, must be `#[inline(always)]`. The caller repeats the generics and parameters, because the second
/// version is a separate function:
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

/// Returns whether the processor has the instructions that [`on_newest_processor`] compiles for.
#[cfg(vectors)]
#[inline(always)]
pub(crate) fn newest() -> bool {
    modern()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
}

/// Like [`on_this_processor`], with a third version for AVX-512, which servers have since 2017. It is for the
/// few loops that gain from it, for example those that compare 64-bit words as unsigned numbers.
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

/// Prefetches the cache line at `place`.
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
