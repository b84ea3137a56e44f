//! Formats a plan as text.

use std::fmt;

use crate::error::bytes;
use crate::options::{Algorithm, Yields};
use crate::plan::rules::UNKNOWN_ROWS;
use crate::plan::shape::CELLS_PER_ROW;
use crate::plan::{
    Abandoned, ChunkRows, Details, HoldReason, Inlining, KeySource, LinkBytes, Plan, PlanDevice,
    ProbeSide, Reason, ResultOrder, RowIdReason, Statistics, TableKind,
};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = self.device.gpu_name().map_or(String::new(), |name| format!(" on {name}"));
        let skipped = match self.gpu_skipped {
            true => {
                "; no GPU was looked for, because finding and opening one is predicted to take longer than this join"
            }
            false => "",
        };
        let Plan { join_type, algorithm, reason, .. } = self;
        let sorts = (*algorithm, *reason) == (Algorithm::SortMerge, Reason::Spilled);
        let asked = if sorts { "it was asked for, and " } else { "" };
        writeln!(f, "{join_type} join by {algorithm}{on}: {asked}{reason}{skipped}")?;
        if sorts {
            let text = "both tables went to disk as sorted runs; the lines below describe the first join in memory";
            writeln!(f, "  {:<14} {text}", "details")?;
        }
        if *algorithm == Algorithm::Spill {
            writeln!(f, "  {:<14} the lines below describe the first join in memory", "details")?;
        }
        for abandoned in &self.abandoned {
            let Abandoned { algorithm, device, reason } = abandoned;
            writeln!(f, "  {:<14} {algorithm} on {device}: {reason}", "abandoned")?;
        }
        writeln!(f, "  {:<14} {}", "key", self.key)?;
        let held = self.details.probe_side;
        match self.build_side {
            Some(side) => {
                writeln!(f, "  {:<14} {}, {}", "build side", side.name(), size(&self.build))?;
                let rule = match self.probe.rows {
                    Some(_) => "",
                    None => ", planned as four times the rows of the build side",
                };
                let (other, size) = (side.other().name(), size(&self.probe));
                writeln!(f, "  {:<14} {other}, {size}{rule}; {held}", "probe side")?;
            }
            None => {
                let smaller =
                    "the side that ends first when both are read in turns; this plan assumes left";
                writeln!(f, "  {:<14} {smaller}", "build side")?;
                writeln!(f, "  {:<14} the other side; {held}", "probe side")?;
            }
        }
        writeln!(f, "  {:<14} {}", "threads", self.threads)?;
        let limit = self.memory_limit.map_or("none".to_string(), bytes);
        writeln!(f, "  {:<14} {limit}", "memory limit")?;
        self.write_details(f)?;
        if let Some(escalation) = self.escalation {
            writeln!(f, "  {:<14} {escalation}, if GPU memory does not suffice", "then")?;
        }
        write!(f, "  predicted, {}:", self.with_reading())?;
        for p in &self.predictions {
            let chosen = p.algorithm == self.algorithm && p.on_gpu == self.device.is_gpu();
            let (name, seconds, memory) = (p.algorithm.name(), p.seconds, bytes(p.bytes));
            let gpu = match p.on_gpu {
                true => format!(
                    ", {} on the GPU, {} over the link, {:.3} s at least",
                    bytes(p.device_bytes),
                    bytes(p.crosses),
                    p.link_seconds
                ),
                false => String::new(),
            };
            let mark = if chosen { " ◄" } else { "" };
            write!(f, "\n    {name:<15} {seconds:>10.3} s {memory:>12}{gpu}{mark}")?;
        }
        Ok(())
    }
}

impl fmt::Display for PlanDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.gpu_name().unwrap_or("the CPU"))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Fastest => "fastest by prediction",
            Reason::FastestWithin { limit } => {
                return write!(f, "fastest by prediction among those that fit {}", bytes(*limit));
            }
            Reason::LeastMemory => {
                "no algorithm is predicted to fit the memory limit; this one needs the least memory"
            }
            Reason::AskedFor => "it was asked for",
            Reason::AskedForWithoutGpu => {
                "it was asked for, but runs on a GPU only, and none is used"
            }
            Reason::AskedForBeyondGpuMemory => {
                "it was asked for, but needs more GPU memory than the limit allows"
            }
            Reason::Spilled => "the join did not fit the memory limit",
            Reason::Continues => "it streams the rows that the GPU did not join",
        })
    }
}

impl Plan {
    /// Returns a text that says how much reading and writing the predictions of the CPU include.
    fn with_reading(&self) -> String {
        let on_cpu = self.predictions.iter().find(|p| !p.on_gpu);
        match on_cpu.map_or(0.0, |p| p.read_write_seconds) {
            0.0 => "without reading and writing files".to_string(),
            seconds => {
                format!("with {seconds:.3} s on the CPU for reading and writing files")
            }
        }
    }

    /// Writes the details, one line each. A decision that is open shows its rule.
    fn write_details(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = &self.details;
        let Details { yields, word_bits, value_bits, build_keys, probe_keys, .. } = details;
        let found = match yields {
            Yields::Count => "the number of matches",
            Yields::Exists => "the rows that have a match",
            Yields::Pairs => "all pairs of matching rows",
        };
        writeln!(f, "  {:<14} {found}", "finds")?;
        let of_probe = match build_keys == probe_keys {
            true => String::new(),
            false => format!("; of the probe side: {probe_keys}"),
        };
        writeln!(f, "  {:<14} {build_keys}{of_probe}", "key words")?;
        let tuple = format!("key words of {word_bits} bits, values of {value_bits} bits");
        writeln!(f, "  {:<14} {tuple}", "tuples")?;
        writeln!(f, "  {:<14} {}", "build columns", details.inlining)?;
        if details.key_filter {
            let text = "the source of the probe side may leave out rows without a match";
            writeln!(f, "  {:<14} {text}", "key filter")?;
        }
        if let Some(table) = &details.table {
            let place = match details.table_in_gpu_memory {
                None => String::new(),
                Some(0) => ", in host memory".to_string(),
                Some(most) => format!(", at most {} of it in GPU memory", bytes(most)),
            };
            writeln!(f, "  {:<14} {table}{place}", "table")?;
        }
        if !details.radix_bits.is_empty() {
            let bits: Vec<String> = details.radix_bits.iter().map(u32::to_string).collect();
            let passes = if bits.len() == 1 { "pass" } else { "passes" };
            let text = format!("{} in {} {passes}", bits.join(" + "), bits.len());
            let rule = match self.build.rows {
                Some(_) => String::new(),
                None => format!(", if the build side has {UNKNOWN_ROWS} rows"),
            };
            writeln!(f, "  {:<14} {text}{rule}", "radix bits")?;
        } else if matches!(self.algorithm, Algorithm::Radix | Algorithm::StreamedProbe) {
            let rule = "as many as make partitions fit the shared memory of the GPU";
            writeln!(f, "  {:<14} {rule}", "radix bits")?;
        }
        if let (Some(parts), None) = (details.parts, details.part_rows) {
            let text = "of the build side have a table one after the other, because one table does not fit";
            writeln!(f, "  {:<14} {parts} {text}", "parts")?;
        }
        if let (Some(parts), Some(rows)) = (details.parts, details.part_rows) {
            let estimated = match self.facts.learned.divided {
                Some(_) => "",
                None => ", estimated by GPU memory",
            };
            let text = format!("{parts} of the build side, at most {rows} rows each{estimated}");
            writeln!(f, "  {:<14} {text}", "parts")?;
        }
        if let Some(order) = details.order {
            writeln!(f, "  {:<14} {order}", "results")?;
        }
        if let (Some(transfer), Some(link)) = (details.transfer, details.over_the_link) {
            writeln!(f, "  {:<14} {transfer}; {link}", "over the link")?;
        }
        if let Some(ChunkRows { build, probe, probe_bytes, tuples }) = details.chunk_rows {
            let tuples = tuples.map_or(String::new(), |n| format!(", and {n} tuples"));
            let bytes = probe_bytes.map_or(String::new(), |n| format!(" ({} at most)", bytes(n)));
            let text = format!("at most {build} build rows, {probe} probe rows{bytes}{tuples}");
            writeln!(f, "  {:<14} {text}", "chunks")?;
        }
        Ok(())
    }
}

impl fmt::Display for ProbeSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProbeSide::Streamed => "streamed",
            ProbeSide::Held(HoldReason::Partitioned) => "held, because it is partitioned",
            ProbeSide::Held(HoldReason::Sorted) => "held, because it is sorted",
            ProbeSide::Held(HoldReason::ReadAgain) => {
                "held, because it is read once per part of the build side"
            }
            ProbeSide::Held(HoldReason::Transfer) => {
                "held, because the transfer method takes whole columns"
            }
        })
    }
}

impl fmt::Display for ResultOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResultOrder::Unordered => "in any order",
            ResultOrder::ProbeOrder => {
                "in probe order, but the pairs of a chunk come in any order \
                 if fewer than half of the probe rows of the chunk before it match"
            }
            ResultOrder::ProbeOrderIfUnique => {
                "in probe order, if each build key occurs once, but the pairs of a chunk come in any order \
                 if fewer than half of the probe rows of the chunk before it match"
            }
        })
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeySource::Column => "read from the key column",
            KeySource::ColumnIfNoNulls => {
                "read from the key column if it has no nulls, else computed"
            }
            KeySource::Computed => "computed from the key columns",
        })
    }
}

impl fmt::Display for Inlining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inlining::Inlined { columns, bytes } => {
                write!(f, "{} inlined, {bytes} B per row", columns.join(", "))
            }
            Inlining::IfNoNulls { columns, bytes } => {
                let has = if columns.len() == 1 { "it has no nulls" } else { "none has a null" };
                let columns = columns.join(", ");
                write!(f, "{columns} inlined if {has}, {bytes} B per row; else row ids")
            }
            Inlining::BuildSideUnknown => {
                f.write_str("inlined or row ids, decided when the build side is known")
            }
            Inlining::RowIds(reason) => write!(f, "row ids, because {reason}"),
        }
    }
}

impl fmt::Display for RowIdReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowIdReason::Algorithm => f.write_str("the algorithm always uses them"),
            RowIdReason::MatchesAreVerified => f.write_str("matches are verified on the rows"),
            RowIdReason::BuildRowsAreFlagged => f.write_str("build rows are flagged"),
            RowIdReason::RowNumbersAreReturned => {
                f.write_str("the output has row numbers or coalesced keys")
            }
            RowIdReason::NoColumns => f.write_str("the output has no build columns"),
            RowIdReason::NoFixedWidth(column) => write!(f, "{column} has no fixed width"),
            RowIdReason::TooWide { bytes, most } => {
                write!(f, "{bytes} B per row are more than the {most} B that can be inlined")
            }
            RowIdReason::Nulls(column) => write!(f, "{column} has nulls"),
            RowIdReason::MemoryLimit => f.write_str("the memory limit leaves too little memory"),
            RowIdReason::Test => f.write_str("a test asks for them"),
        }
    }
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableKind::Hash => f.write_str("a hash table"),
            TableKind::Array { .. } => f.write_str("an array, because the keys are dense"),
            TableKind::ArrayIfDense => write!(
                f,
                "an array if the keys are dense (at most {CELLS_PER_ROW} cells per row), else a hash table"
            ),
        }
    }
}

impl fmt::Display for LinkBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkBytes { per_row, per_build_row, per_match, per_probe_row, .. } = *self;
        write!(f, "{} per row", bytes(per_row))?;
        if per_build_row > 0 {
            write!(f, ", {} more per build row if columns are inlined", bytes(per_build_row))?;
        }
        let flags = match [self.per_build_flag > 0, self.per_probe_flag > 0] {
            [true, true] => Some("one flag per row"),
            [true, false] => Some("one flag per build row"),
            [false, true] => Some("one flag per probe row"),
            [false, false] => None,
        };
        match (per_match, flags) {
            (0, Some(flags)) => write!(f, "; {flags} comes back"),
            (0, None) if self.probe_bits => f.write_str("; one bit per probe row comes back"),
            (0, None) => f.write_str("; a count comes back"),
            _ => {
                write!(f, "; {} per match come back", bytes(per_match))?;
                if per_probe_row > 0 {
                    let row = bytes(per_probe_row);
                    write!(
                        f,
                        ", or {row} and one bit per probe row, if each build key occurs once"
                    )?;
                }
                flags.map_or(Ok(()), |flags| write!(f, "; and {flags}"))
            }
        }
    }
}

/// Formats as `1500 rows, 12.0 KiB`, as far as known.
fn size(statistics: &Statistics) -> String {
    let rows = statistics.rows.map_or("rows unknown".to_string(), |n| format!("{n} rows"));
    match statistics.bytes {
        Some(n) => format!("{rows}, {}", bytes(n)),
        None => rows,
    }
}
