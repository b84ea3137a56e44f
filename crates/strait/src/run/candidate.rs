//! Finds the GPU that a join must run on, or may run on.

use std::sync::Arc;

use crate::device::{Device, Prospect, detected, detection_is_free};
use crate::error::{Error, Result};
use crate::gpu_options::Processor;
use crate::join::Join;
use crate::options::Algorithm;

/// Opens the device that the caller asked for, by its number or by an algorithm that runs on GPUs only.
/// Returns `None` if the planner may choose, or if the join must run on the CPU.
pub(crate) fn asked(join: &Join) -> Result<Option<Arc<dyn Device>>> {
    if join.overrides.simulated.is_some() && join.overrides.auto {
        return Ok(None);
    }
    let number = match join.processor {
        Processor::Gpu(number) => Some(number),
        Processor::Auto if join.needs_gpu() => Some(0),
        Processor::Auto | Processor::Cpu => None,
    };
    let prospect = match (join.overrides.simulated, number) {
        (Some(seed), _) => Prospect::Simulated(seed),
        (None, Some(number)) => {
            let gpus = detected().as_ref().map_err(|why| without_gpu(join, why))?;
            let missing = || {
                let count = gpus.len();
                let problem = format!("there is no GPU {number}: this machine has {count}");
                Error::invalid_option("device", problem, "`strait devices` lists them")
            };
            Prospect::Gpu(gpus.get(number).ok_or_else(missing)?)
        }
        (None, None) => return Ok(None),
    };
    prospect.open(join.gpu_memory, join.overrides.faults()).map(Some)
}

/// Returns the error of a join that needs a GPU, on a machine without one.
fn without_gpu(join: &Join, why: &Error) -> Error {
    match (join.processor, join.algorithm) {
        (Processor::Auto, Some(algorithm)) => Error::invalid_option(
            "algorithm",
            format!("{algorithm} runs on a GPU only, and none can be used ({why})"),
            format!("{} run on the CPU and on a GPU", Algorithm::names_anywhere()),
        ),
        _ => why.clone(),
    }
}

/// The device that the planner may choose. GPUs are looked for only if this takes almost no time.
pub(super) enum Candidate {
    /// The planner has no choice, or there is no GPU.
    None,
    Known(Prospect),
    /// This process has not looked for GPUs yet. The search initialises the driver, which takes longer than a
    /// small join.
    NotLookedFor,
}

/// Returns the device that the planner may choose. A sort-merge join promises sorted output, which a GPU does not
/// deliver. So it runs on a GPU only if the caller asks for that.
pub(super) fn candidate(join: &Join) -> Candidate {
    if join.algorithm == Some(Algorithm::SortMerge) {
        return Candidate::None;
    }
    if let Some(seed) = join.overrides.simulated {
        return Candidate::Known(Prospect::Simulated(seed));
    }
    match join.processor {
        Processor::Auto if !detection_is_free() => Candidate::NotLookedFor,
        Processor::Auto => found().map_or(Candidate::None, Candidate::Known),
        Processor::Cpu | Processor::Gpu(_) => Candidate::None,
    }
}

/// Looks for GPUs, and returns the first one.
pub(super) fn found() -> Option<Prospect> {
    match detected() {
        Ok(gpus) => gpus.first().map(Prospect::Gpu),
        Err(why) => {
            log::debug!("no GPU: {why}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overrides::TestOverrides;

    /// Returns the device that the planner may choose, without a search.
    fn known(join: &Join) -> Option<Prospect> {
        match candidate(join) {
            Candidate::Known(prospect) => Some(prospect),
            Candidate::None | Candidate::NotLookedFor => None,
        }
    }

    /// The planner may choose a device only if the caller named none, and never for a sort-merge join.
    #[test]
    fn a_device_is_asked_for_or_may_be_chosen() {
        let overrides =
            |auto| TestOverrides { simulated: Some(1), auto, ..TestOverrides::default() };
        let auto = Join::inner().test_overrides(overrides(true));
        assert!(asked(&auto).unwrap().is_none() && known(&auto).is_some());
        let sorted = auto.algorithm(Algorithm::SortMerge);
        assert!(asked(&sorted).unwrap().is_none() && known(&sorted).is_none());
        let named = Join::inner().algorithm(Algorithm::SortMerge).test_overrides(overrides(false));
        assert_eq!(
            asked(&named).unwrap().map(|d| d.name().to_string()).as_deref(),
            Some("simulated")
        );
        let on_cpu = Join::inner().device(Processor::Cpu);
        assert!(asked(&on_cpu).unwrap().is_none() && matches!(candidate(&on_cpu), Candidate::None));
    }

    /// The name and the memory of a device are known before it is opened.
    #[test]
    fn prospects_know_a_budget() {
        let join = Join::inner().test_overrides(TestOverrides {
            simulated: Some(1),
            auto: true,
            ..TestOverrides::default()
        });
        let simulated = known(&join).unwrap();
        assert_eq!(
            (simulated.name(), simulated.budget(join.gpu_memory)),
            ("simulated", crate::device::SIMULATED_MEMORY)
        );
        let join = join.gpu_memory(1000);
        assert_eq!(simulated.budget(join.gpu_memory), 1000);
        assert_eq!(simulated.open(join.gpu_memory, [None; 2]).unwrap().available().unwrap(), 1000);
    }
}
