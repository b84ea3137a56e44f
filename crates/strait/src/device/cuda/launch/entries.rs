//! The table of stages names only kernels that exist. This test needs neither a GPU nor NVRTC.

use super::{Card, DeviceStage, Flavour, Kernel, Scatterer, abi, each_kernel, stage_table};
use crate::device::MODULES;
use crate::device::cuda::policy::{self, HEADERS};
use crate::memory::Plain;
use crate::word::Width;

const FLAVOURS: [Flavour; 4] =
    [Flavour::Pairs, Flavour::PairsFlagged, Flavour::Exists, Flavour::Aggregate];
const SCATTERERS: [Scatterer; 4] =
    [Scatterer::Standard, Scatterer::Linear, Scatterer::Shared, Scatterer::Hierarchical];

/// An enum that selects one of the kernels of a stage, with all its values.
trait Choice: Sized + 'static {
    const ALL: &'static [Self];
}

impl Choice for Flavour {
    const ALL: &'static [Flavour] = &FLAVOURS;
}

impl Choice for Scatterer {
    const ALL: &'static [Scatterer] = &SCATTERERS;
}

/// Returns arguments with a one in every `step`-th byte, and zeros elsewhere. Small steps set more fields.
fn arguments<T: Plain + Default>(step: usize) -> T {
    let mut value = T::default();
    // SAFETY: the structure is plain, so it may hold any bytes.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut value).cast::<u8>(), size_of::<T>())
    };
    bytes.iter_mut().step_by(step).for_each(|byte| *byte = 1);
    value
}

macro_rules! sample {
    ($($(#[$doc:meta])* $name:ident $([$how:ident: $how_type:ty])? ($arguments:ident) {
        bytes: $bytes:expr,
        kernels: [$($kernel:expr),+ $(,)?],
        twin: $twin:expr,
    })*) => {
        /// Returns every stage, with every choice and several arguments.
        fn samples() -> Vec<DeviceStage> {
            let mut all = Vec::new();
            for step in [usize::MAX, 16, 8, 4] {
                $($(for $how in <$how_type as Choice>::ALL)? {
                    all.push(DeviceStage::$name($(*$how,)? arguments::<abi::$arguments>(step)));
                })*
            }
            all
        }
    };
}

stage_table!(sample);

/// Returns whether a module, or a header that it may include, defines the entry.
fn defines(kernel: &Kernel) -> bool {
    let source = MODULES.iter().find(|(name, _)| *name == kernel.module).map(|(_, text)| *text);
    let texts = || source.into_iter().chain(HEADERS.iter().map(|(_, text)| *text));
    // Some entries come from a macro that appends a name, such as the flavour.
    let cuts = kernel.entry.match_indices('_').map(|(at, _)| &kernel.entry[..at]);
    let generated: Vec<String> = cuts.map(|stem| format!("{stem}_##name(")).collect();
    source.is_some()
        && texts().any(|text| {
            text.contains(&format!(" {}(", kernel.entry))
                || text.contains(&format!("ENTRY({},", kernel.entry))
                || generated.iter().any(|generated| text.contains(generated))
        })
}

#[test]
fn every_kernel_of_the_table_exists() {
    let mut seen = Vec::new();
    for word in [Width::W32, Width::W64] {
        let policy = policy::policy(policy::shared_bytes_of((9, 0)), word);
        let card = Card { policy, word, multiprocessors: 132 };
        for stage in samples() {
            // Some of these arguments are refused, for example columns of zero bytes.
            let _ = each_kernel(&stage, &card, &mut |kernel, _| {
                assert!(defines(&kernel), "{}: {}", kernel.module, kernel.entry);
                seen.push((stage.name(), kernel.entry));
                Ok(())
            });
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() > 50, "{seen:?}");
    let names: std::collections::BTreeSet<_> = samples().iter().map(DeviceStage::name).collect();
    assert!(names.iter().all(|name| seen.iter().any(|(stage, _)| stage == name)), "{seen:?}");
}
