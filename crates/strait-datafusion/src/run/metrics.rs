//! The figures that `EXPLAIN ANALYZE` shows of a join.

use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, SpillMetrics, Time,
};
use strait::Report;

/// The metrics of one run.
pub(crate) struct JoinMetrics {
    build_rows: Count,
    probe_rows: Count,
    spill: SpillMetrics,
    spilled_pairs: Count,
    peak_memory: Gauge,
    join_time: Time,
    to_gpu: Count,
    from_gpu: Count,
}

impl JoinMetrics {
    pub(crate) fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> JoinMetrics {
        let count = |name: &'static str| MetricBuilder::new(metrics).counter(name, partition);
        let time = |name: &'static str| MetricBuilder::new(metrics).subset_time(name, partition);
        JoinMetrics {
            build_rows: count("build_input_rows"),
            probe_rows: count("input_rows"),
            spill: SpillMetrics::new(metrics, partition),
            spilled_pairs: count("spilled_pairs"),
            peak_memory: MetricBuilder::new(metrics).gauge("peak_mem_used", partition),
            join_time: time("join_time"),
            to_gpu: count("bytes_to_gpu"),
            from_gpu: count("bytes_from_gpu"),
        }
    }

    /// Adds the figures of a finished run.
    pub(crate) fn record(&self, report: &Report) {
        let spilled = &report.spilled;
        self.build_rows.add(report.left_rows as usize);
        self.probe_rows.add(report.right_rows as usize);
        self.spill.spill_file_count.add(spilled.files as usize);
        self.spill.spilled_bytes.add(spilled.bytes as usize);
        self.spill.spilled_rows.add(spilled.rows as usize);
        self.spilled_pairs.add(spilled.pairs as usize);
        self.peak_memory.set_max(report.peak_memory as usize);
        self.join_time.add_duration(report.elapsed);
        self.to_gpu.add(report.crossed.to_gpu as usize);
        self.from_gpu.add(report.crossed.from_gpu as usize);
    }
}
