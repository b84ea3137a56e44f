//! The choice itself: a pure function.

use crate::error::bytes;
use crate::join::{Algorithm, JoinType, Side};
use crate::plan::cost::predict;
use crate::plan::{Machine, Statistics};

/// What is to be planned.
pub(crate) struct Request<'a> {
    pub(crate) asked: Algorithm,
    pub(crate) join_type: JoinType,
    pub(crate) build_side: Option<Side>,
    pub(crate) build: Statistics,
    pub(crate) probe: Statistics,
    pub(crate) threads: usize,
    pub(crate) limit: Option<u64>,
    pub(crate) key: String,
    pub(crate) exact: bool,
    pub(crate) word_bytes: usize,
    pub(crate) machine: &'a Machine,
}

/// What an algorithm is expected to take.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Prediction {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its time, apart from reading and from what the caller does with the rows.
    pub seconds: f64,
    /// The memory it holds at most, held inputs included.
    pub bytes: u64,
}

/// What was decided, and why.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The algorithm; never [`Algorithm::Auto`].
    pub algorithm: Algorithm,
    /// The join type.
    pub join_type: JoinType,
    /// The side that is held; None while it is not known which proves smaller.
    pub build_side: Option<Side>,
    /// What the build side is known to have.
    pub build: Statistics,
    /// What the probe side is known to have.
    pub probe: Statistics,
    /// How keys become words.
    pub key: String,
    /// How many threads work on it.
    pub threads: usize,
    /// The memory limit, if there is one.
    pub memory_limit: Option<u64>,
    /// Why this algorithm.
    pub reason: String,
    /// What each algorithm was expected to take.
    pub predictions: Vec<Prediction>,
}

/// Picks the algorithm.
pub(crate) fn choose(request: Request<'_>) -> Plan {
    const CANDIDATES: [Algorithm; 3] =
        [Algorithm::NoPartition, Algorithm::Radix, Algorithm::SortMerge];
    let predictions: Vec<_> = CANDIDATES.iter().map(|&a| predict(a, &request)).collect();
    let (algorithm, reason) = match request.asked {
        Algorithm::Auto => best(&predictions, request.limit),
        asked => (asked, "it was asked for".to_string()),
    };
    Plan {
        algorithm,
        join_type: request.join_type,
        build_side: request.build_side,
        build: request.build,
        probe: request.probe,
        key: request.key,
        threads: request.threads,
        memory_limit: request.limit,
        reason,
        predictions,
    }
}

/// The fastest that fits; where none fits, the smallest.
fn best(predictions: &[Prediction], limit: Option<u64>) -> (Algorithm, String) {
    let fits = |p: &&Prediction| limit.is_none_or(|limit| p.bytes <= limit);
    let fastest = predictions.iter().filter(fits).min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    match fastest {
        Some(p) => {
            let why = match limit {
                Some(limit) => format!("fastest by prediction that fits {}", bytes(limit)),
                None => "fastest by prediction".to_string(),
            };
            (p.algorithm, why)
        }
        None => {
            let smallest = predictions.iter().min_by_key(|p| p.bytes);
            let algorithm = smallest.map_or(Algorithm::NoPartition, |p| p.algorithm);
            (
                algorithm,
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
            asked: Algorithm::Auto,
            join_type: JoinType::Inner,
            build_side: None,
            build: Statistics::rows(build).with_bytes(build * 16),
            probe: Statistics::rows(probe).with_bytes(probe * 16),
            threads: 2,
            limit,
            key: String::new(),
            exact: true,
            word_bytes: 8,
            machine,
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

    #[test]
    fn what_was_asked_for_is_done() {
        let machine = machine();
        let mut asked = request(&machine, 10, 10, None);
        asked.asked = Algorithm::SortMerge;
        assert_eq!(choose(asked).algorithm, Algorithm::SortMerge);
    }
}
