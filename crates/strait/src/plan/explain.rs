//! Formats a plan as text.

use std::fmt;

use crate::error::bytes;
use crate::plan::{Abandoned, Plan, Statistics};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = self.device.as_ref().map_or(String::new(), |device| format!(" on {device}"));
        writeln!(f, "{} join by {}{on}: {}", self.join_type, self.algorithm, self.reason)?;
        for abandoned in &self.abandoned {
            let Abandoned { algorithm, device, reason } = abandoned;
            let on = device.as_ref().map_or("the CPU", String::as_str);
            writeln!(f, "  {:<14} {algorithm} on {on}: {reason}", "abandoned")?;
        }
        writeln!(f, "  {:<14} {}", "key", self.key)?;
        match self.build_side {
            Some(side) => {
                writeln!(f, "  {:<14} {}, {}", "build side", side.name(), size(&self.build))?;
                let rule = match self.probe.rows {
                    Some(_) => "",
                    None => ": planned as four times the rows of the build side",
                };
                let (other, size) = (side.other().name(), size(&self.probe));
                writeln!(f, "  {:<14} {other}, {size}{rule}", "probe side")?;
            }
            None => writeln!(
                f,
                "  {:<14} the side that proves smaller while both are read",
                "build side"
            )?,
        }
        writeln!(f, "  {:<14} {}", "threads", self.threads)?;
        let limit = self.memory_limit.map_or("none".to_string(), bytes);
        writeln!(f, "  {:<14} {limit}", "memory limit")?;
        if let Some(over_the_link) = &self.over_the_link {
            writeln!(f, "  {:<14} {over_the_link}", "over the link")?;
        }
        if let Some(escalation) = self.escalation {
            writeln!(f, "  {:<14} {escalation}, if GPU memory does not suffice", "then")?;
        }
        write!(f, "  predicted, without reading and writing files:")?;
        for p in &self.predictions {
            let chosen = p.algorithm == self.algorithm && p.on_gpu == self.device.is_some();
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

/// Formats as `1500 rows, 12.0 KiB`, as far as known.
fn size(statistics: &Statistics) -> String {
    let rows = statistics.rows.map_or("rows unknown".to_string(), |n| format!("{n} rows"));
    match statistics.bytes {
        Some(n) => format!("{rows}, {}", bytes(n)),
        None => rows,
    }
}
