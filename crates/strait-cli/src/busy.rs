//! How busy the threads of a job were, and with what: reading, joining, gathering, encoding, writing.
//!
//! The steps of a job overlap, so their wall times say little. This file adds up the CPU time that all threads
//! together spend on each step. `--explain-analyze` shows these times as shares of the time that the threads had,
//! so that a reader sees which step bounds the job.
//!
//! ```text
//!  sources (Timed)          reading      ┐
//!  sink                     encoding     ├─ CPU time of threads
//!  file (Watched)           writing      ┘
//!  report of the library    gathering
//!  process, less the above  joining
//! ```

use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use strait::{Morsel, Source, SourceContext, Statistics};

/// The CPU time of one step, on all threads together.
#[derive(Debug, Default)]
pub(crate) struct Step(AtomicU64);

impl Step {
    /// Runs `work`, and adds the CPU time of this thread to the step.
    pub(crate) fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = thread_time();
        let result = work();
        let spent = thread_time().saturating_sub(begun);
        self.0.fetch_add(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        result
    }

    /// Returns the time so far.
    fn spent(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// A job that runs, on a number of threads.
pub(crate) struct Running {
    pub(crate) busy: Busy,
    threads: usize,
    begun: Instant,
    /// The CPU time of the process when the job began.
    cpu: Duration,
}

impl Running {
    /// Begins a job.
    pub(crate) fn begin(threads: usize) -> Running {
        Running { busy: Busy::default(), threads, begun: Instant::now(), cpu: process_time() }
    }

    /// Returns how busy the threads were until now. The library spent `gathering` on the columns of the output.
    pub(crate) fn table(&self, gathering: Duration) -> String {
        let cpu = process_time().saturating_sub(self.cpu);
        self.busy.table((self.threads, self.begun.elapsed()), cpu, gathering)
    }
}

/// The steps of a job that the command carries out itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy {
    pub(crate) left: Arc<Step>,
    pub(crate) right: Arc<Step>,
    /// Encoding and writing.
    pub(crate) output: Arc<Step>,
    /// The part of `output` in which the system takes the bytes.
    pub(crate) writing: Arc<Step>,
}

impl Busy {
    /// Returns the table that `--explain-analyze` shows. The job had `threads` threads for the time `elapsed`. The
    /// process used `cpu` meanwhile. The library spent `gathering` on the columns of the output.
    fn table(
        &self,
        (threads, elapsed): (usize, Duration),
        cpu: Duration,
        gathering: Duration,
    ) -> String {
        let writing = self.writing.spent();
        let encoding = self.output.spent().saturating_sub(writing);
        let [left, right] = [&self.left, &self.right].map(|step| step.spent());
        let own = left + right + encoding + writing;
        let gathering = gathering.min(cpu.saturating_sub(own));
        let joining = cpu.saturating_sub(own + gathering);
        let all = elapsed.saturating_mul(u32::try_from(threads).unwrap_or(u32::MAX));
        let idle = all.saturating_sub(cpu);
        let rows = [
            ("reading left", left),
            ("reading right", right),
            ("joining", joining),
            ("gathering", gathering),
            ("encoding", encoding),
            ("writing", writing),
            ("idle", idle),
        ];
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = write_rows(&mut text, threads, all, &rows);
        text
    }
}

fn write_rows(
    text: &mut String,
    threads: usize,
    all: Duration,
    rows: &[(&str, Duration)],
) -> fmt::Result {
    let threads = crate::digits::counted(threads as u64, "thread");
    writeln!(text, "how busy {threads} were (seconds of all threads together, and their share):")?;
    for (name, time) in rows.iter().filter(|(_, time)| *time > Duration::ZERO) {
        let share = time.as_secs_f64() / all.as_secs_f64().max(1e-9) * 100.0;
        writeln!(text, "  {name:<22} {:>10.3} s {share:>5.0} %", time.as_secs_f64())?;
    }
    Ok(())
}

/// Returns the CPU time of this process, on all threads.
fn process_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn thread_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the time of a clock; zero if the system has no such clock.
fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid. The call writes only to this local variable.
    if unsafe { libc::clock_gettime(id, &mut time) } != 0 {
        return Duration::ZERO;
    }
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// A source or a reader whose time is added to a step.
pub(crate) struct Timed<T> {
    inner: T,
    step: Arc<Step>,
}

impl<T> Timed<T> {
    pub(crate) fn new(inner: T, step: &Arc<Step>) -> Timed<T> {
        Timed { inner, step: Arc::clone(step) }
    }
}

impl<S: Source> Source for Timed<S> {
    fn schema(&self) -> SchemaRef {
        self.inner.schema()
    }

    fn statistics(&self) -> Statistics {
        self.inner.statistics()
    }

    fn has_row_numbers(&self) -> bool {
        self.inner.has_row_numbers()
    }

    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        self.step.time(|| self.inner.next(context))
    }
}

impl<R: RecordBatchReader> Iterator for Timed<R> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step.time(|| self.inner.next())
    }
}

impl<R: RecordBatchReader> RecordBatchReader for Timed<R> {
    fn schema(&self) -> SchemaRef {
        self.inner.schema()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of a step is CPU time: sleeping does not count.
    #[test]
    fn steps_add_up_cpu_time() {
        let step = Step::default();
        step.time(|| std::thread::sleep(Duration::from_millis(50)));
        assert!(step.spent() < Duration::from_millis(25), "{:?}", step.spent());
        let before = step.spent();
        step.time(|| {
            let begun = thread_time();
            while thread_time() < begun + Duration::from_millis(2) {}
        });
        assert!(step.spent() >= before + Duration::from_millis(2));
        assert!(process_time() >= step.spent());
    }

    /// All steps and the idle time together are the time that the threads had.
    #[test]
    fn shares_add_up() {
        let busy = Busy::default();
        let set = |step: &Step, millis: u64| step.0.store(millis * 1_000_000, Ordering::Relaxed);
        set(&busy.left, 100);
        set(&busy.right, 200);
        set(&busy.output, 500);
        set(&busy.writing, 100);
        let second = Duration::from_secs(1);
        let text = busy.table((2, second), second * 3 / 2, second / 10);
        let shown: Vec<(&str, &str)> = text
            .lines()
            .skip(1)
            .filter_map(|line| Some((line.get(2..24)?.trim(), line.get(38..)?.trim())))
            .collect();
        let expected = [
            ("reading left", "5 %"),
            ("reading right", "10 %"),
            ("joining", "30 %"),
            ("gathering", "5 %"),
            ("encoding", "20 %"),
            ("writing", "5 %"),
            ("idle", "25 %"),
        ];
        assert_eq!(shown, expected, "{text}");
    }

    /// A step without work has no row, and more CPU time than the threads had is not an error.
    #[test]
    fn nothing_is_negative() {
        let busy = Busy::default();
        let text = busy.table((1, Duration::from_secs(1)), Duration::from_secs(2), Duration::ZERO);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("joining") && text.contains("200 %"), "{text}");
    }
}
