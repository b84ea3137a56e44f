//! The files that statements write: the output of `-o`, and the targets of `COPY`.

use anyhow::anyhow;

use super::session::{Query, Session};
use crate::arguments::SqlArguments;
use crate::busy::Busy;
use crate::output::{Aside, Compression, Destination, Sink, SinkOptions, resolved};
use crate::store::Upload;

/// A file that a statement writes.
pub(super) struct Target {
    pub(super) to: Destination,
    pub(super) overwrite: bool,
    pub(super) compression: Option<Compression>,
    pub(super) row_group_rows: Option<usize>,
}

impl Target {
    /// Returns the file of `-o`, if it was given.
    pub(super) fn of(arguments: &SqlArguments) -> Option<Target> {
        Some(Target {
            to: arguments.output.clone()?,
            overwrite: arguments.overwrite,
            compression: arguments.compression,
            row_group_rows: arguments.row_group_rows,
        })
    }

    /// Rejects a file that cannot be written, before anything is read.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match &self.to {
            Destination::File(path, _) => Aside::check(path, self.overwrite),
            Destination::Object(location, _) => Upload::check(location, self.overwrite),
            Destination::Stdout => Ok(()),
        }
    }

    /// Opens the file for the rows of a statement.
    pub(super) fn open(&self, session: &Session, query: &Query) -> anyhow::Result<Sink> {
        let schema = query.plan.schema();
        check_names(&schema)?;
        match &self.to {
            Destination::File(path, _) => {
                let target = resolved(path)?;
                session.tables.check_output(&path.display(), |found| found.claims(&target))?;
            }
            Destination::Object(location, _) => {
                session.tables.check_output(location, |found| found.claims_object(location))?;
            }
            Destination::Stdout => {}
        }
        Sink::open(&self.to, self.options(session), &schema)
    }

    fn options(&self, session: &Session) -> SinkOptions {
        SinkOptions {
            overwrite: self.overwrite,
            compression: self.compression,
            row_group_rows: self.row_group_rows,
            ..options(session)
        }
    }
}

/// The settings of an output without flags.
pub(super) fn options(session: &Session) -> SinkOptions {
    SinkOptions {
        overwrite: false,
        compression: None,
        threads: session.threads,
        row_group_rows: None,
        memory: session.memory_for_output(),
        busy: Busy::default(),
    }
}

/// Rejects two output columns of one name. Readers of a file could not tell them apart.
pub(super) fn check_names(schema: &arrow::datatypes::Schema) -> anyhow::Result<()> {
    let mut names: Vec<&str> = schema.fields().iter().map(|field| &**field.name()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(anyhow!(
            "the result has two columns \"{0}\"; give one of them another name, as in t.\"{0}\" AS other, or join with USING",
            pair[0]
        )),
    }
}
