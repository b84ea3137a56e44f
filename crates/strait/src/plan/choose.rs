//! Chooses the plan: a pure function.

use crate::error::bytes;
use crate::gpu_options::Partitioner;
use crate::machine::Machine;
use crate::options::{Algorithm, JoinType, Side, Yields};
use crate::plan::Statistics;
use crate::plan::cost::{inlined, predict, predict_on};

/// The facts that the planner chooses by.
pub(crate) struct Request<'a> {
    /// The algorithm that the caller asked for, if any.
    pub(crate) asked: Option<Algorithm>,
    /// The partitioner that the caller asked for, if any.
    pub(crate) partitioner: Option<Partitioner>,
    pub(crate) join_type: JoinType,
    pub(crate) build_side: Option<Side>,
    pub(crate) build: Statistics,
    pub(crate) probe: Statistics,
    pub(crate) threads: usize,
    pub(crate) limit: Option<u64>,
    pub(crate) key: String,
    pub(crate) exact: bool,
    pub(crate) word_bytes: usize,
    /// The bytes per build row of the columns that the output needs, if they may be inlined.
    pub(crate) inlined_bytes: Option<usize>,
    pub(crate) machine: &'a Machine,
    /// The GPU that the plan may use.
    pub(crate) device: Option<OnDevice>,
}

/// A GPU that the plan may use.
#[derive(Debug, Clone)]
pub(crate) struct OnDevice {
    pub(crate) name: String,
    /// The GPU memory that the join may use, in bytes.
    pub(crate) budget: u64,
    /// Whether the caller asked for it by name.
    pub(crate) asked: bool,
    /// The kind of result that comes back.
    pub(crate) back: Yields,
    /// The bytes per row that always cross to the GPU: the key word, and the value if there is one.
    pub(crate) row_bytes: u64,
    /// Where the key words are before they cross to the GPU.
    pub(crate) words: KeySource,
}

/// Where the key words of rows are before they cross to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeySource {
    /// In pinned memory. Words in other memory are staged.
    Pinned,
    /// In memory that is not pinned.
    Held,
    /// In Arrow columns, from where they are staged. They are converted first if the CPU has to read them, or
    /// if there are nulls.
    InColumns { nullable: bool },
    /// Nowhere: they have to be computed first.
    Nowhere,
}

/// The predicted costs of one algorithm.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Prediction {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Whether it runs on a GPU.
    pub on_gpu: bool,
    /// The time, without reading the inputs and without the work of the consumer.
    pub seconds: f64,
    /// The most host memory that it holds at once, including held inputs, in bytes.
    pub bytes: u64,
    /// The most GPU memory that it holds at once, in bytes.
    pub device_bytes: u64,
    /// The bytes that cross the link between host and GPU, in both directions.
    pub crosses: u64,
    /// The least time that the link needs for these bytes, at its bandwidth in each direction.
    pub link_seconds: f64,
}

/// A plan: what the join does, and why.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The algorithm that takes over if this one needs more GPU memory than there is, before any row was
    /// written; `None` if there is no such algorithm.
    pub escalation: Option<Algorithm>,
    /// The GPU that it runs on; `None` for the CPU.
    pub device: Option<String>,
    /// The join type.
    pub join_type: JoinType,
    /// The side that is held; `None` if it is not known yet which side is smaller.
    pub build_side: Option<Side>,
    /// The statistics of the build side.
    pub build: Statistics,
    /// The statistics of the probe side.
    pub probe: Statistics,
    /// How keys are converted to key words.
    pub key: String,
    /// The number of threads.
    pub threads: usize,
    /// The memory limit, if there is one.
    pub memory_limit: Option<u64>,
    /// The bytes per row that cross the link to the GPU, and the result that comes back, in words; `None` for
    /// the CPU.
    pub over_the_link: Option<String>,
    /// The reason for this algorithm.
    pub reason: String,
    /// The plans that were tried before and abandoned, in this order.
    pub abandoned: Vec<Abandoned>,
    /// The predictions for all algorithms.
    pub predictions: Vec<Prediction>,
}

/// A plan that a join started with and could not carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abandoned {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The GPU that it was for; `None` for the CPU.
    pub device: Option<String>,
    /// The reason why the join continued with another plan.
    pub reason: String,
}

impl Plan {
    /// Returns this plan, with `other` added to its abandoned plans.
    pub(crate) fn after(mut self, other: &Plan, reason: &str) -> Plan {
        self.abandoned = other.abandoned.clone();
        let (algorithm, device) = (other.algorithm, other.device.clone());
        self.abandoned.push(Abandoned { algorithm, device, reason: reason.to_string() });
        self
    }
}

/// Chooses the plan.
pub(crate) fn choose(request: Request<'_>) -> Plan {
    let mut predictions = Algorithm::ANYWHERE.map(|a| predict(a, &request)).to_vec();
    if let Some(device) = &request.device {
        predictions.extend(Algorithm::ALL.map(|a| predict_on(device, a, &request)));
    }
    let asked_device = request.device.as_ref().is_some_and(|device| device.asked);
    let candidates: Vec<Prediction> =
        predictions.iter().filter(|p| is_candidate(p, &request)).copied().collect();
    let (chosen, mut reason) = best(&candidates, request.limit);
    if candidates.len() == 1 || (request.asked.is_some() && asked_device) {
        reason = "it was asked for".to_string();
    }
    if chosen.is_none() && request.asked.is_some_and(Algorithm::needs_gpu) {
        reason = match request.device {
            None => "it was asked for, but runs on a GPU only, and none is used",
            Some(_) => "it was asked for, but needs more of the GPU's memory than it may hold",
        }
        .to_string();
    }
    let algorithm = chosen.map(|p| p.algorithm).or(request.asked).unwrap_or(Algorithm::NoPartition);
    let on_gpu = chosen.is_some_and(|chosen| chosen.on_gpu);
    let on = request.device.as_ref().filter(|_| on_gpu);
    // If the caller did not ask for the algorithm, another one may take over when GPU memory does not
    // suffice.
    let may_escalate = on_gpu && request.asked.is_none() && algorithm != Algorithm::MultiPass;
    let escalation = may_escalate.then_some(Algorithm::MultiPass);
    let over_the_link = on.map(|on| crosses(on, algorithm, &request));
    Plan {
        algorithm,
        escalation,
        over_the_link,
        device: request.device.filter(|_| on_gpu).map(|device| device.name),
        join_type: request.join_type,
        build_side: request.build_side,
        build: request.build,
        probe: request.probe,
        key: request.key,
        threads: request.threads,
        memory_limit: request.limit,
        reason,
        abandoned: Vec::new(),
        predictions,
    }
}

/// Returns whether an algorithm may be chosen.
fn is_candidate(p: &Prediction, request: &Request<'_>) -> bool {
    let asked_device = request.device.as_ref().is_some_and(|device| device.asked);
    let budget = request.device.as_ref().map_or(u64::MAX, |device| device.budget);
    let as_asked = request.asked.is_none_or(|asked| asked == p.algorithm);
    // If the caller asked for a partitioner but no algorithm, it is a partitioner of `radix`: other
    // combinations were refused before.
    let partitions = request.asked.is_some()
        || request.partitioner.is_none()
        || p.algorithm != Algorithm::Triton;
    // A plan that does not fit the GPU is tried only if the caller asked for exactly this plan.
    let tried_anyway = asked_device && request.asked.is_some();
    let fits = !p.on_gpu || p.device_bytes <= budget || tried_anyway;
    // Under a limit, the rows of a probe side of unknown length are not held: they may not fit.
    let known = request.probe.rows.is_some() || request.probe.bytes.is_some();
    let streams = p.algorithm == Algorithm::NoPartition;
    let holds = p.on_gpu || streams || known || request.limit.is_none() || request.asked.is_some();
    as_asked && partitions && fits && holds && (p.on_gpu || !asked_device)
}

/// Describes what crosses the link per row, and what comes back.
fn crosses(on: &OnDevice, algorithm: Algorithm, request: &Request<'_>) -> String {
    let word = request.word_bytes as u64;
    let inlined = on.back == Yields::Pairs && inlined(request, request.word_bytes);
    let (row, with) = match algorithm {
        // The CPU makes tuples, which always have a second word besides the key.
        Algorithm::CpuPartitioned => (2 * word, ""),
        _ if inlined => {
            (on.row_bytes, ", and with those of the build side its columns, if none is null")
        }
        _ => (on.row_bytes, ""),
    };
    let back = match on.back {
        Yields::Count => "a count".to_string(),
        Yields::Exists => "a flag a row".to_string(),
        Yields::Pairs => format!("{} a match", bytes(2 * word)),
    };
    format!("{} a row{with}; {back} comes back", bytes(row))
}

/// Returns the fastest prediction that fits the limit; if none fits, the one with the least memory.
fn best(predictions: &[Prediction], limit: Option<u64>) -> (Option<Prediction>, String) {
    let fits = |p: &&Prediction| limit.is_none_or(|limit| p.bytes <= limit);
    let fastest = predictions.iter().filter(fits).min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    match fastest {
        Some(p) => {
            let why = match limit {
                Some(limit) => format!("fastest by prediction that fits {}", bytes(limit)),
                None => "fastest by prediction".to_string(),
            };
            (Some(*p), why)
        }
        None => {
            let smallest = predictions.iter().min_by_key(|p| p.bytes);
            (
                smallest.copied(),
                "none is predicted to fit the memory limit; this one holds least".to_string(),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(
        machine: &'a Machine,
        build: u64,
        probe: u64,
        limit: Option<u64>,
    ) -> Request<'a> {
        Request {
            asked: None,
            partitioner: None,
            join_type: JoinType::Inner,
            build_side: None,
            build: Statistics::rows(build).with_bytes(build * 16),
            probe: Statistics::rows(probe).with_bytes(probe * 16),
            threads: 2,
            limit,
            key: String::new(),
            exact: true,
            word_bytes: 8,
            inlined_bytes: None,
            machine,
            device: None,
        }
    }

    fn machine() -> Machine {
        Machine { cores: 2, l2: 2 << 20, last_level: 64 << 20, memory: 0 }
    }

    #[test]
    fn a_small_build_side_is_not_partitioned() {
        let plan = choose(request(&machine(), 1000, 1 << 24, None));
        assert_eq!(plan.algorithm, Algorithm::NoPartition);
    }

    #[test]
    fn sorted_inputs_are_merged() {
        let machine = machine();
        let mut sorted = request(&machine, 1 << 24, 1 << 24, None);
        sorted.build.sorted = true;
        sorted.probe.sorted = true;
        let plan = choose(sorted);
        let of = |a| plan.predictions.iter().find(|p| p.algorithm == a).map(|p| p.seconds);
        assert!(of(Algorithm::SortMerge) < of(Algorithm::Radix));
    }

    #[test]
    fn what_does_not_fit_is_not_chosen() {
        let plan = choose(request(&machine(), 1 << 20, 1 << 30, Some(1 << 27)));
        assert_eq!(plan.algorithm, Algorithm::NoPartition);
        let plan = choose(request(&machine(), 1 << 20, 1 << 30, Some(1)));
        assert!(plan.reason.contains("none is predicted to fit"), "{}", plan.reason);
    }

    fn on_device(budget: u64, asked: bool, back: Yields) -> OnDevice {
        let name = "a GPU".to_string();
        OnDevice {
            name,
            budget,
            asked,
            back,
            row_bytes: 8,
            words: KeySource::InColumns { nullable: true },
        }
    }

    /// A build side of a few times the budget is joined in passes, one of many times the budget in
    /// partitions.
    #[test]
    fn the_larger_the_build_side_the_fewer_the_passes_that_pay() {
        let machine = machine();
        let plan = |rows: u64| {
            let mut request = request(&machine, rows, rows, None);
            request.threads = 16;
            request.device = Some(OnDevice {
                row_bytes: 16,
                words: KeySource::Pinned,
                ..on_device(16 << 30, true, Yields::Count)
            });
            choose(request).algorithm
        };
        assert_eq!(plan(1 << 30), Algorithm::MultiPass);
        assert_eq!(plan(1 << 34), Algorithm::Triton);
    }

    /// For a count, only keys cross the link.
    #[test]
    fn a_gpu_is_taken_where_it_wins_with_its_copies() {
        let machine = machine();
        let plan = |asked: bool, budget: u64| {
            let mut request = request(&machine, 1 << 26, 1 << 26, None);
            request.device = Some(on_device(budget, asked, Yields::Count));
            choose(request)
        };
        assert_eq!(plan(false, 1 << 36).device.as_deref(), Some("a GPU"));
        let small = plan(true, 1 << 26);
        assert_eq!(small.device.as_deref(), Some("a GPU"), "asked for");
        assert!(small.algorithm.needs_gpu(), "{}: it does not fit", small.algorithm);
        let small = |rows: u64| {
            let mut request = request(&machine, rows, rows, None);
            request.device = Some(on_device(1 << 36, false, Yields::Count));
            choose(request).device
        };
        assert_eq!(small(1000), None, "starting a GPU takes longer");
    }

    /// Measured on 16 cores and an H200: 0.15 s on the GPU and 0.28 s on the CPU; in the second case 0.23 s
    /// and 0.21 s.
    #[test]
    fn predictions_are_near_what_was_measured() {
        let machine = Machine { cores: 16, last_level: 300 << 20, ..machine() };
        let plan = |build: u64, probe: u64| {
            let mut request = request(&machine, build, probe, None);
            (request.threads, request.inlined_bytes) = (16, Some(8));
            request.device = Some(on_device(100 << 30, false, Yields::Pairs));
            choose(request)
        };
        let on_gpu = plan(1 << 26, 1 << 26);
        assert_eq!(on_gpu.device.as_deref(), Some("a GPU"), "{on_gpu}");
        let text = on_gpu.to_string();
        let crossing = on_gpu.over_the_link.clone().unwrap();
        assert!(
            crossing.contains("its columns") && crossing.contains("16 B a match"),
            "{crossing}"
        );
        // 1.6 GB of keys and columns go there, 1.1 GB of pairs come back.
        let of = |plan: &Plan, on_gpu: bool| {
            let of_kind = plan.predictions.iter().filter(|p| p.on_gpu == on_gpu).copied();
            of_kind.min_by(|a, b| a.seconds.total_cmp(&b.seconds)).unwrap()
        };
        let limit = of(&on_gpu, true).link_seconds;
        assert!((0.028..0.030).contains(&limit), "{limit}");
        assert!(text.contains("over the link, 0.029 s at least"), "{text}");
        let near_tie = plan(1 << 24, 1 << 27);
        for (plan, measured) in [(&on_gpu, [0.15, 0.28]), (&near_tie, [0.23, 0.21])] {
            for (on_gpu, seconds) in [true, false].into_iter().zip(measured) {
                let predicted = of(plan, on_gpu).seconds;
                assert!((predicted / seconds - 1.0f64).abs() < 0.2, "{predicted} for {seconds}");
            }
        }
    }

    /// Words that have to be computed take time and memory. Words that exist already do not.
    #[test]
    fn words_that_are_made_are_counted() {
        let machine = machine();
        let predicted = |words: KeySource, algorithm: Algorithm| {
            let mut request = request(&machine, 1 << 26, 1 << 26, None);
            request.device = Some(OnDevice { words, ..on_device(1 << 36, true, Yields::Count) });
            let all = choose(request).predictions;
            let of = all.iter().find(|p| p.on_gpu && p.algorithm == algorithm).unwrap();
            (of.seconds, of.bytes)
        };
        let in_columns = |nullable| KeySource::InColumns { nullable };
        let held = predicted(KeySource::Held, Algorithm::NoPartition);
        let made = predicted(KeySource::Nowhere, Algorithm::NoPartition);
        assert!(made.0 > 1.5 * held.0 && made.1 == held.1 + (8 << 27), "{made:?} {held:?}");
        assert_eq!(predicted(in_columns(false), Algorithm::NoPartition), held);
        // Memory is needed in case there are nulls.
        assert_eq!(predicted(in_columns(true), Algorithm::NoPartition), (held.0, made.1));
        let of_triton = |words| predicted(words, Algorithm::Triton);
        assert_eq!(of_triton(in_columns(false)), of_triton(KeySource::Nowhere));
    }

    #[test]
    fn what_needs_a_gpu_says_so() {
        let machine = machine();
        let mut asked = request(&machine, 10, 10, None);
        asked.asked = Some(Algorithm::Triton);
        let plan = choose(asked);
        assert_eq!((plan.algorithm, plan.device), (Algorithm::Triton, None));
        assert!(plan.reason.contains("on a GPU only"), "{}", plan.reason);
    }

    #[test]
    fn what_was_asked_for_is_done() {
        let machine = machine();
        let mut asked = request(&machine, 10, 10, None);
        asked.asked = Some(Algorithm::SortMerge);
        assert_eq!(choose(asked).algorithm, Algorithm::SortMerge);
    }
}
