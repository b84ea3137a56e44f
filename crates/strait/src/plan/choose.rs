//! Chooses the plan: a pure function.

use crate::gpu_options::Partitioner;
use crate::key::KeyEncoding;
use crate::options::{Algorithm, JoinType, Side};
use crate::plan::cost::predict;
use crate::plan::gpu_cost::{least_seconds_of_first_use, predict_on};
use crate::plan::refine::{Facts, GpuFacts};
use crate::plan::rules::Case;
use crate::plan::{JobCosts, Plan, PlanDevice, Prediction, ProbeSide, Reason, Statistics};

/// The facts that the planner chooses by.
#[derive(Clone)]
pub(crate) struct Request {
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
    /// Whether rows are wanted before the join reads more input.
    pub(crate) prompt: bool,
    /// The work of reading and writing, besides the join.
    pub(crate) costs: JobCosts,
    pub(crate) key: KeyEncoding,
    pub(crate) facts: Facts,
    /// The GPU that the plan may use.
    pub(crate) device: Option<GpuCandidate>,
}

/// A GPU that the plan may use.
#[derive(Debug, Clone)]
pub(crate) struct GpuCandidate {
    pub(crate) name: String,
    /// The GPU memory that the join may use, in bytes.
    pub(crate) budget: u64,
    /// Whether the caller asked for it by name.
    pub(crate) asked: bool,
    /// Whether this process has opened it before. Opening takes longer than many joins.
    pub(crate) open: bool,
    /// The bytes per row that always cross to the GPU: the key word, and the value if there is one.
    pub(crate) row_bytes: u64,
    pub(crate) columns: HostMemory,
}

impl GpuCandidate {
    /// Returns the facts that the details of a plan depend on.
    fn facts(&self) -> GpuFacts {
        GpuFacts { gpu_bytes: self.budget, columns: self.columns, row_bytes: self.row_bytes }
    }
}

/// The host memory that holds the rows before they cross to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostMemory {
    /// The key words are in pinned memory.
    Pinned,
    /// The key words are in pageable memory, and are staged.
    Pageable,
    /// Arrow batches. The [key source](crate::plan::KeySource) tells whether words must be computed first.
    Arrow,
}

impl Request {
    /// Returns the bytes of a key word.
    pub(super) fn word_bytes(&self) -> usize {
        self.facts.keys.width.bytes() as usize
    }

    /// Returns an algorithm with the facts of this request. `on` is the GPU that it runs on, if any.
    pub(super) fn case(&self, algorithm: Algorithm, on: Option<&GpuCandidate>) -> Case<'_> {
        let gpu = on.map(GpuCandidate::facts);
        let Request { build, probe, facts, threads, limit, .. } = self;
        Case { algorithm, gpu, build, probe, facts, threads: *threads, limit: *limit }
    }
}

/// Chooses the plan.
pub(crate) fn choose(request: Request) -> Plan {
    let mut predictions = Algorithm::ANYWHERE.map(|a| predict(a, &request)).to_vec();
    if let Some(device) = &request.device {
        predictions.extend(Algorithm::ON_GPU.map(|a| predict_on(device, a, &request)));
    }
    let asked_device = request.device.as_ref().is_some_and(|device| device.asked);
    let candidates: Vec<Prediction> =
        predictions.iter().filter(|p| is_candidate(p, &request)).copied().collect();
    let (chosen, mut reason) = best(&candidates, request.limit);
    if candidates.len() == 1 || (request.asked.is_some() && asked_device) {
        reason = Reason::AskedFor;
    }
    if chosen.is_none() && request.asked.is_some_and(Algorithm::needs_gpu) {
        reason = match request.device {
            None => Reason::AskedForWithoutGpu,
            Some(_) => Reason::AskedForBeyondGpuMemory,
        };
    }
    let algorithm = chosen.map(|p| p.algorithm).or(request.asked).unwrap_or(Algorithm::NoPartition);
    let on_gpu = chosen.is_some_and(|chosen| chosen.on_gpu);
    let on = request.device.as_ref().filter(|_| on_gpu);
    let details = request.case(algorithm, on).details();
    let facts = Facts { gpu: on.map(GpuCandidate::facts), ..request.facts };
    // If the caller did not ask for the algorithm, another one may take over when GPU memory does not
    // suffice.
    let may_escalate = on_gpu && request.asked.is_none() && algorithm != Algorithm::MultiPass;
    let escalation = may_escalate.then_some(Algorithm::MultiPass);
    Plan {
        algorithm,
        escalation,
        details,
        device: match request.device.filter(|_| on_gpu) {
            Some(device) => PlanDevice::Gpu { name: device.name },
            None => PlanDevice::Cpu,
        },
        join_type: request.join_type,
        build_side: request.build_side,
        build: request.build,
        probe: request.probe,
        key: request.key,
        threads: request.threads,
        memory_limit: request.limit,
        seed: None,
        reason,
        gpu_skipped: false,
        abandoned: Vec::new(),
        predictions,
        job_costs: request.costs,
        facts,
    }
}

impl Plan {
    /// Returns whether a join should look for a GPU, if this process has not done so yet. `self` is a plan for
    /// the CPU.
    /// A GPU can be faster only if the join on the CPU takes longer than finding and opening a GPU. Reading and
    /// writing do not count, because the same threads do this work in both cases. A join also looks for a GPU if the
    /// memory limit is too small for the CPU.
    pub(crate) fn gpu_may_gain(&self) -> bool {
        let mut on_cpu = self.predictions.iter().filter(|p| !p.on_gpu);
        let chosen = on_cpu.find(|p| p.algorithm == self.algorithm);
        let is_slow =
            |p: &Prediction| p.seconds - p.read_write_seconds > least_seconds_of_first_use();
        let is_too_large = |p: &Prediction| self.memory_limit.is_some_and(|limit| p.bytes > limit);
        chosen.is_none_or(|p| is_slow(p) || is_too_large(p))
    }
}

/// Returns whether an algorithm may be chosen.
fn is_candidate(p: &Prediction, request: &Request) -> bool {
    let asked_device = request.device.as_ref().is_some_and(|device| device.asked);
    let budget = request.device.as_ref().map_or(u64::MAX, |device| device.budget);
    let as_asked = request.asked.is_none_or(|asked| asked == p.algorithm);
    // If the caller asked for a partitioner but no algorithm, it must be a partitioner of `radix`, because
    // settings.rs refuses all others.
    let partitions = request.asked.is_some()
        || request.partitioner.is_none()
        || p.algorithm != Algorithm::Triton;
    // A plan that does not fit the GPU is tried only if the caller asked for exactly this plan.
    let tried_anyway = asked_device && request.asked.is_some();
    let fits = !p.on_gpu || p.device_bytes <= budget || tried_anyway;
    // A probe side of unknown length may be endless. It is held only if the caller asked for that, or on the
    // CPU without a limit.
    let known = request.probe.rows.is_some() || request.probe.bytes.is_some();
    let on = request.device.as_ref().filter(|_| p.on_gpu);
    let streams = request.case(p.algorithm, on).probe_side() == ProbeSide::Streamed;
    let unlimited = !p.on_gpu && request.limit.is_none();
    // If rows are wanted promptly, a stream that may pause is not held.
    let may_pause = request.prompt && request.probe.stream;
    let may_hold = (known || unlimited) && (!may_pause || asked_device);
    let holds = streams || may_hold || request.asked.is_some();
    as_asked && partitions && fits && holds && (p.on_gpu || !asked_device)
}

/// Returns the fastest prediction that fits the limit; if none fits, the one with the least memory.
fn best(predictions: &[Prediction], limit: Option<u64>) -> (Option<Prediction>, Reason) {
    let fits = |p: &&Prediction| limit.is_none_or(|limit| p.bytes <= limit);
    let fastest = predictions.iter().filter(fits).min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    match fastest {
        Some(p) => {
            let why = limit.map_or(Reason::Fastest, |limit| Reason::FastestWithin { limit });
            (Some(*p), why)
        }
        None => {
            let smallest = predictions.iter().min_by_key(|p| p.bytes);
            (smallest.copied(), Reason::LeastMemory)
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::options::Yields;
    use crate::plan::{LinkBytes, Payload, PayloadColumn};
    use crate::word::Width;

    pub(in crate::plan) fn request(
        machine: &Machine,
        build: u64,
        probe: u64,
        limit: Option<u64>,
    ) -> Request {
        Request {
            asked: None,
            partitioner: None,
            join_type: JoinType::Inner,
            build_side: None,
            build: Statistics::rows(build).with_bytes(build * 16),
            probe: Statistics::rows(probe).with_bytes(probe * 16),
            threads: 2,
            limit,
            prompt: false,
            costs: JobCosts::none(),
            key: KeyEncoding::of_words(Width::W64),
            facts: Facts::of_columns(Width::W64, Yields::Pairs, machine),
            device: None,
        }
    }

    /// One build column of eight bytes, which may have nulls.
    pub(in crate::plan) fn one_column() -> Payload {
        let (name, width) = ("v".to_string(), Some(8));
        let columns = vec![PayloadColumn { column: 1, name, width, nullable: true }];
        Payload { by_values: true, columns }
    }

    pub(in crate::plan) fn machine() -> Machine {
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

    /// A stream may pause. If it were held, no row could be returned before it ends.
    #[test]
    fn a_stream_whose_rows_are_wanted_promptly_is_not_held() {
        let machine = machine();
        let mut sorted = request(&machine, 1 << 24, 1 << 24, None);
        (sorted.build.sorted, sorted.probe.sorted) = (true, true);
        let held = choose(sorted);
        assert_ne!(held.details.probe_side, ProbeSide::Streamed, "{held}");
        let mut stream = request(&machine, 1 << 24, 1 << 24, None);
        (stream.build.sorted, stream.probe.sorted, stream.probe.stream) = (true, true, true);
        assert_ne!(choose(stream.clone()).details.probe_side, ProbeSide::Streamed);
        stream.prompt = true;
        let streamed = choose(stream);
        assert_eq!(streamed.details.probe_side, ProbeSide::Streamed, "{streamed}");
    }

    #[test]
    fn what_does_not_fit_is_not_chosen() {
        let plan = choose(request(&machine(), 1 << 20, 1 << 30, Some(1 << 27)));
        assert_eq!(plan.algorithm, Algorithm::NoPartition);
        let plan = choose(request(&machine(), 1 << 20, 1 << 30, Some(1)));
        assert_eq!(plan.reason, Reason::LeastMemory);
    }

    pub(in crate::plan) fn on_device(budget: u64, asked: bool) -> GpuCandidate {
        let (name, columns) = ("a GPU".to_string(), HostMemory::Arrow);
        GpuCandidate { name, budget, asked, open: true, row_bytes: 8, columns }
    }

    /// A build side of a few times the budget is joined in passes, one of many times the budget in
    /// partitions.
    #[test]
    fn the_larger_the_build_side_the_fewer_the_passes_that_pay() {
        let machine = machine();
        let plan = |rows: u64| {
            let mut request = request(&machine, rows, rows, None);
            request.threads = 16;
            request.facts.count_only = true;
            let columns = HostMemory::Pinned;
            request.device =
                Some(GpuCandidate { row_bytes: 16, columns, ..on_device(16 << 30, true) });
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
            request.facts.count_only = true;
            request.device = Some(on_device(budget, asked));
            choose(request)
        };
        assert_eq!(plan(false, 1 << 36).device.gpu_name(), Some("a GPU"));
        let small = plan(true, 1 << 26);
        assert_eq!(small.device.gpu_name(), Some("a GPU"), "asked for");
        assert!(small.algorithm.needs_gpu(), "{}: it does not fit", small.algorithm);
        let small = |rows: u64| {
            let mut request = request(&machine, rows, rows, None);
            request.facts.count_only = true;
            request.device = Some(on_device(1 << 36, false));
            choose(request).device
        };
        assert_eq!(small(1000), PlanDevice::Cpu, "starting a GPU takes longer");
    }

    /// Measured on 16 cores and an H200, with `bench join --mode materialise`.
    #[test]
    fn predictions_are_near_what_was_measured() {
        let machine = Machine { cores: 16, last_level: 300 << 20, ..machine() };
        let plan = |build: u64, probe: u64| {
            let mut request = request(&machine, build, probe, None);
            request.threads = 16;
            request.facts.payload = Some(one_column());
            request.device = Some(on_device(100 << 30, false));
            choose(request)
        };
        let of = |plan: &Plan, on_gpu: bool| {
            let of_kind = plan.predictions.iter().filter(|p| p.on_gpu == on_gpu).copied();
            of_kind.min_by(|a, b| a.seconds.total_cmp(&b.seconds)).unwrap()
        };
        let large = plan(1 << 26, 1 << 28);
        assert_eq!(large.device.gpu_name(), Some("a GPU"), "{large}");
        let bytes = LinkBytes {
            per_row: 8,
            per_build_row: 8,
            per_match: 16,
            per_probe_row: 8,
            probe_bits: true,
            per_build_flag: 0,
            per_probe_flag: 0,
        };
        assert_eq!(large.details.over_the_link, Some(bytes));
        // 3.2 GB of keys and columns go there, and 2.2 GB of results come back.
        let limit = of(&large, true).link_seconds;
        assert!((0.058..0.060).contains(&limit), "{limit}");
        assert!(large.to_string().contains("over the link, 0.059 s at least"), "{large}");
        let small = plan(1 << 24, 1 << 28);
        for (plan, measured) in [(&large, [0.156, 0.560]), (&small, [0.147, 0.375])] {
            for (on_gpu, seconds) in [true, false].into_iter().zip(measured) {
                let predicted = of(plan, on_gpu).seconds;
                assert!((predicted / seconds - 1.0f64).abs() < 0.25, "{predicted} for {seconds}");
            }
        }
    }

    /// A GPU that was not used before has to be opened first, which takes longer than a small join.
    #[test]
    fn a_gpu_is_not_opened_for_a_small_join() {
        let machine = Machine { cores: 16, ..machine() };
        let plan = |rows: u64, open: bool| {
            let mut request = request(&machine, rows, 4 * rows, None);
            request.threads = 16;
            request.device = Some(GpuCandidate { open, ..on_device(1 << 36, false) });
            choose(request).device
        };
        assert!(plan(1 << 22, true).is_gpu() && !plan(1 << 22, false).is_gpu());
        assert!(plan(1 << 27, false).is_gpu());
    }

    /// Words that have to be computed take time and memory. Words that exist already do not.
    #[test]
    fn words_that_are_made_are_counted() {
        let machine = machine();
        let predicted = |columns: HostMemory, nullable: Option<bool>, algorithm: Algorithm| {
            let mut request = request(&machine, 1 << 26, 1 << 26, None);
            request.facts.count_only = true;
            request.facts.keys.in_column = [nullable; 2];
            request.device = Some(GpuCandidate { columns, ..on_device(1 << 36, true) });
            let all = choose(request).predictions;
            let of = all.iter().find(|p| p.on_gpu && p.algorithm == algorithm).unwrap();
            (of.seconds, of.bytes)
        };
        // Radix holds both sides.
        let table = Algorithm::Radix;
        let held = predicted(HostMemory::Pageable, None, table);
        let made = predicted(HostMemory::Arrow, None, table);
        assert!(made.0 > 1.5 * held.0 && made.1 == held.1 + (8 << 27), "{made:?} {held:?}");
        assert_eq!(predicted(HostMemory::Arrow, Some(false), table), held);
        // Memory is needed in case there are nulls.
        assert_eq!(predicted(HostMemory::Arrow, Some(true), table), (held.0, made.1));
        let of_triton = |in_column| predicted(HostMemory::Arrow, in_column, Algorithm::Triton);
        assert_eq!(of_triton(Some(false)), of_triton(None));
    }

    #[test]
    fn what_needs_a_gpu_says_so() {
        let machine = machine();
        let mut asked = request(&machine, 10, 10, None);
        asked.asked = Some(Algorithm::Triton);
        let plan = choose(asked);
        assert_eq!((plan.algorithm, plan.device), (Algorithm::Triton, PlanDevice::Cpu));
        assert_eq!(plan.reason, Reason::AskedForWithoutGpu);
    }

    #[test]
    fn what_was_asked_for_is_done() {
        let machine = machine();
        let mut asked = request(&machine, 10, 10, None);
        asked.asked = Some(Algorithm::SortMerge);
        assert_eq!(choose(asked).algorithm, Algorithm::SortMerge);
    }
}
