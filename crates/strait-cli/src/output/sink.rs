//! Writes batches to a file, or to a stream on stdout. Several threads may write at the same time.

use std::io::{self, BufWriter};

use anyhow::anyhow;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::aside::Aside;
use super::blocks::Output;
use super::destination::{Compression, Destination, FileFormat};
use super::encode::{Drain, open};
use super::stdout::Closed;
use super::watched::{Fault, Watched};
use crate::busy::Busy;
use crate::failure;
use crate::memory::Memory;
use crate::panics::caught;
use crate::store::Upload;

/// The settings of a sink.
#[derive(Debug, Clone)]
pub(crate) struct SinkOptions {
    pub(crate) overwrite: bool,
    pub(crate) compression: Option<Compression>,
    /// How many threads write at the same time.
    pub(crate) threads: usize,
    /// The most rows of a Parquet row group, if the user chose a number.
    pub(crate) row_group_rows: Option<usize>,
    /// The memory from which encoders make their reservations.
    pub(crate) memory: Memory,
    /// The times for encoding and writing.
    pub(crate) busy: Busy,
}

/// Output that is being written. If it is dropped before [`Sink::finish`], it leaves no file.
pub(crate) struct Sink {
    output: Box<dyn Output>,
    fault: Fault,
    target: Target,
    name: String,
    busy: Busy,
}

/// What becomes visible when the output is complete.
enum Target {
    Stdout,
    File(Aside),
    Object(Upload),
}

impl Target {
    /// Whether the output appears completely or not at all.
    fn is_whole(&self) -> bool {
        !matches!(self, Target::Stdout)
    }
}

impl Sink {
    pub(crate) fn open(
        destination: &Destination,
        options: SinkOptions,
        schema: &SchemaRef,
    ) -> anyhow::Result<Sink> {
        let (target, drain, format, name) = match destination {
            Destination::Stdout => return Sink::stdout(FileFormat::IpcStream, options, schema),
            Destination::File(path, format) => {
                let aside = Aside::begin(path, options.overwrite)?;
                let drain = Drain::File(aside.file()?);
                (Target::File(aside), drain, *format, path.display().to_string())
            }
            Destination::Object(location, format) => {
                let upload = Upload::begin(location, options.overwrite, &options.memory)?;
                let drain = Drain::Object(upload.bytes());
                (Target::Object(upload), drain, *format, location.to_string())
            }
        };
        Sink::with_target((target, drain, name), format, options, schema)
    }

    /// Opens stdout, for rows in a format that needs no seeking.
    pub(crate) fn stdout(
        format: FileFormat,
        options: SinkOptions,
        schema: &SchemaRef,
    ) -> anyhow::Result<Sink> {
        let drain = Drain::Stdout(io::stdout());
        Sink::with_target((Target::Stdout, drain, "stdout".to_string()), format, options, schema)
    }

    fn with_target(
        (target, drain, name): (Target, Drain, String),
        format: FileFormat,
        options: SinkOptions,
        schema: &SchemaRef,
    ) -> anyhow::Result<Sink> {
        let fault = Fault::default();
        let bytes = BufWriter::with_capacity(
            1 << 18,
            Watched::new(drain, fault.clone(), &options.busy.writing),
        );
        let output = open(format, &options, schema, bytes)
            .map_err(|error| explain(&fault, &name, target.is_whole(), error))?;
        Ok(Sink { output, fault, target, name, busy: options.busy })
    }

    /// Writes rows that may come in any order. Threads may call it at the same time.
    pub(crate) fn write(&self, batch: &RecordBatch) -> anyhow::Result<()> {
        self.called(|output| output.write(batch))
    }

    /// Writes rows after all rows that were written before. One thread may call it at a time.
    pub(crate) fn write_in_order(&self, batch: RecordBatch) -> anyhow::Result<()> {
        self.called(|output| output.write_in_order(batch))
    }

    /// Encodes rows that [`write_in_order`](Sink::write_in_order) has put aside.
    pub(crate) fn encode_ordered(&self) -> anyhow::Result<()> {
        self.called(|output| output.encode_ordered())
    }

    /// Writes the rows of a part. The parts of an output are numbered from 0. Threads may write parts at the
    /// same time. They appear in the order of their numbers.
    pub(crate) fn write_part(&self, part: u64, rows: &[RecordBatch]) -> anyhow::Result<()> {
        self.called(|output| output.write_part(part, rows))
    }

    fn called(&self, write: impl FnOnce(&dyn Output) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let write = || caught(|| write(&*self.output)).unwrap_or_else(|why| Err(anyhow!(why)));
        let written = self.busy.output.time(write);
        written.map_err(|error| explain(&self.fault, &self.name, self.target.is_whole(), error))
    }

    /// Finishes the output. A file gets its name.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let Sink { output, fault, target, name, busy } = self;
        let is_file = target.is_whole();
        let finish =
            || caught(|| output.finish(&busy.output)).unwrap_or_else(|why| Err(anyhow!(why)));
        let finished = busy.output.time(finish);
        finished.map_err(|error| explain(&fault, &name, is_file, error))?;
        match target {
            Target::Stdout => Ok(()),
            Target::File(aside) => {
                aside.persist().map_err(|error| cannot_write(&name, is_file, &error))
            }
            Target::Object(upload) => upload.complete(),
        }
    }
}

/// Returns the system's error message if the system caused the failure, otherwise the encoder's.
fn explain(fault: &Fault, name: &str, is_file: bool, error: anyhow::Error) -> anyhow::Error {
    match fault.take() {
        Some(error) if !is_file && error.kind() == io::ErrorKind::BrokenPipe => Closed.into(),
        Some(error) => cannot_write(name, is_file, &error),
        None => match error.downcast::<strait::Error>() {
            Ok(refused) => failure::of_join(refused),
            Err(error) => error.context(format!("cannot write {name}")),
        },
    }
}

fn cannot_write(name: &str, is_file: bool, error: &io::Error) -> anyhow::Error {
    use io::ErrorKind::{AlreadyExists, FileTooLarge, QuotaExceeded, StorageFull};
    if error.kind() == AlreadyExists {
        return anyhow!(
            "another process wrote {name} in the meantime; add --overwrite to replace it, or write elsewhere"
        );
    }
    let advice = match error.kind() {
        StorageFull => "; free some space or write to another disk",
        QuotaExceeded => "; free some of the quota or write to another disk",
        FileTooLarge => "; raise the limit on file sizes or write to another disk",
        _ => "",
    };
    let untouched = if is_file { "; what was there before is untouched" } else { "" };
    anyhow!("cannot write {name}: {error}{untouched}{advice}")
}
