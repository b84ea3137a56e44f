//! Writes matches in the order of their keys, for the sort-merge join.
//!
//! The merge produces groups: rows of both sides that share a key, or rows of one side whose keys the other
//! side does not have. Groups are collected in a block until it has enough candidates. Then the filter is
//! evaluated for all of them at once. The rows of the block are written group by group: first its matches,
//! then its rows without a match.

use crate::error::Result;
use crate::matches::{Keep, Matcher, Unit, sides};
use crate::materialise::{ABSENT, Chosen};
use crate::options::Side;
use crate::output::{Emitter, Rows};
use crate::partition::{RowId, Tuple};
use crate::table::Pairs;

/// Writes groups in key order.
pub(crate) struct KeyOrderWriter<'m, 'e, 's, K, I> {
    matcher: &'m Matcher<'m>,
    build: &'m Unit,
    probe: &'m Unit,
    cap: usize,
    emitter: &'e mut Emitter<'s>,
    candidates: Pairs<u64>,
    block: Vec<Part<'m, K, I>>,
    /// The rows to write, in order: build row and probe row. `marks` has their marks.
    rows: Pairs<u64>,
    marks: Vec<bool>,
}

/// A group, or a part of a group that has too many candidates for a block.
struct Part<'m, K, I> {
    build: &'m [Tuple<K, I>],
    probe: &'m [Tuple<K, I>],
    /// The end of its candidates among those of the block.
    end: usize,
    /// Whether this is the last part of its group. After it, the group's rows without a match are known.
    last: bool,
}

impl<'m, 'e, 's, K: Copy, I: RowId> KeyOrderWriter<'m, 'e, 's, K, I> {
    pub(crate) fn new(
        matcher: &'m Matcher<'m>,
        build: &'m Unit,
        probe: &'m Unit,
        cap: usize,
        emitter: &'e mut Emitter<'s>,
    ) -> Self {
        KeyOrderWriter {
            matcher,
            build,
            probe,
            cap,
            emitter,
            candidates: Pairs::default(),
            block: Vec::new(),
            rows: Pairs::default(),
            marks: Vec::new(),
        }
    }

    /// Takes the next group.
    pub(crate) fn group(
        &mut self,
        build: &'m [Tuple<K, I>],
        probe: &'m [Tuple<K, I>],
    ) -> Result<()> {
        if self.by_existence() {
            let matched = !build.is_empty() && !probe.is_empty();
            if matched {
                self.flag(build, probe);
            }
            return self.write_kept(build, probe);
        }
        for p in probe {
            for b in build {
                if self.candidates.len() >= self.cap {
                    self.end_part(build, probe, false);
                    self.resolve()?;
                }
                self.candidates.push(b.row.to_u64(), p.row.to_u64());
            }
        }
        self.end_part(build, probe, true);
        // Groups without candidates count too, so that a block cannot grow without limit.
        if self.candidates.len() >= self.cap || self.block.len() >= self.cap {
            self.resolve()?;
        }
        Ok(())
    }

    /// Returns whether a group's rows need not be paired, because only the existence of a match matters.
    fn by_existence(&self) -> bool {
        self.matcher.flags().by_search()
    }

    fn flag(&self, build: &[Tuple<K, I>], probe: &[Tuple<K, I>]) {
        for (unit, tuples) in [(self.build, build), (self.probe, probe)] {
            if let Some(flags) = &unit.flags {
                tuples.iter().for_each(|t| flags.set(t.row.to_u64()));
            }
        }
    }

    fn end_part(&mut self, build: &'m [Tuple<K, I>], probe: &'m [Tuple<K, I>], last: bool) {
        self.block.push(Part { build, probe, end: self.candidates.len(), last });
    }

    /// Filters the block's candidates and writes its rows.
    fn resolve(&mut self) -> Result<()> {
        self.emitter.check()?;
        let mut candidates = std::mem::take(&mut self.candidates);
        let passed = self.matcher.judge([self.build, self.probe], &candidates, self.emitter)?;
        let block = std::mem::take(&mut self.block);
        let mut at = 0;
        for part in &block {
            for i in at..part.end {
                if passed.as_ref().is_none_or(|passed| passed[i]) {
                    let (b, p) = (candidates.build[i], candidates.probe[i]);
                    if let Some(flags) = &self.build.flags {
                        flags.set(b);
                    }
                    if let Some(flags) = &self.probe.flags {
                        flags.set(p);
                    }
                    if self.matcher.roles.pairs {
                        self.write(b, p, false)?;
                    }
                }
            }
            at = part.end;
            if part.last {
                self.write_kept(part.build, part.probe)?;
            }
        }
        candidates.clear();
        self.candidates = candidates;
        Ok(())
    }

    /// Writes the rows of a finished group that the join type returns by their flag.
    fn write_kept(&mut self, build: &[Tuple<K, I>], probe: &[Tuple<K, I>]) -> Result<()> {
        let roles = self.matcher.roles;
        for (unit, tuples, keep) in
            [(self.probe, probe, roles.probe), (self.build, build, roles.build)]
        {
            let Some(flags) = &unit.flags else { continue };
            for tuple in tuples {
                let row = tuple.row.to_u64();
                let matched = flags.get(row);
                let wanted = match keep {
                    Keep::Nothing => false,
                    Keep::Matched => matched,
                    Keep::Unmatched => !matched,
                    Keep::Marked => true,
                };
                if wanted {
                    let of_build = unit.side == self.build.side;
                    let (b, p) = if of_build { (row, ABSENT) } else { (ABSENT, row) };
                    self.write(b, p, matched)?;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, build: u64, probe: u64, mark: bool) -> Result<()> {
        self.rows.push(build, probe);
        self.marks.push(mark);
        let most = self.emitter.batch_size().min(self.cap);
        if self.rows.len() >= most { self.emit() } else { Ok(()) }
    }

    fn emit(&mut self) -> Result<()> {
        let (build, probe) =
            (std::mem::take(&mut self.rows.build), std::mem::take(&mut self.rows.probe));
        let marks = std::mem::take(&mut self.marks);
        let marked = [self.matcher.roles.build, self.matcher.roles.probe].contains(&Keep::Marked);
        let marks = marked.then_some(marks);
        let (build, probe) = (Chosen::Ids(build), Chosen::Ids(probe));
        let rows = match self.build.side {
            Side::Left => Rows { left: build, right: probe, marks },
            Side::Right => Rows { left: probe, right: build, marks },
        };
        let rows = self.emitter.rows(sides(self.build, self.probe), rows)?;
        (self.rows.build, self.rows.probe) = (rows.left.into_ids(), rows.right.into_ids());
        self.rows.clear();
        Ok(())
    }

    /// Writes the remaining rows.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.resolve()?;
        self.emit()
    }
}
