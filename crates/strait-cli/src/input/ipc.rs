//! Arrow IPC: files with a footer, streams without, and a stream on stdin.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use arrow::array::RecordBatchReader;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::{FileReader, StreamReader};

/// The schema of a file.
pub(super) fn schema(path: &Path) -> anyhow::Result<SchemaRef> {
    Ok(read(path, None)?.schema())
}

/// Reads the given columns, in the order of the file; all of them if none are given.
pub(super) fn read(
    path: &Path,
    columns: Option<&[usize]>,
) -> anyhow::Result<Box<dyn RecordBatchReader + Send>> {
    let shown = path.display();
    let mut file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    let mut start = Vec::new();
    (&mut file)
        .take(6)
        .read_to_end(&mut start)
        .and_then(|_| file.seek(SeekFrom::Start(0)))
        .with_context(|| format!("cannot read {shown}"))?;
    let columns = columns.map(<[usize]>::to_vec);
    let file = BufReader::with_capacity(1 << 18, file);
    let damaged = |error| {
        anyhow!(
            "{shown} is truncated or damaged: it cannot be read as Arrow IPC ({error}); get the file again"
        )
    };
    match start.as_slice() {
        b"ARROW1" => Ok(Box::new(FileReader::try_new(file, columns).map_err(damaged)?)),
        [b'F', b'E', b'A', b'1', ..] => {
            bail!("{shown} is a Feather file of version 1; write it again as version 2")
        }
        // Streams written before 2019 begin with a length, newer ones with a mark.
        [0xff, 0xff, 0xff, 0xff, ..] | [_, _, 0, 0, ..] => {
            Ok(Box::new(StreamReader::try_new(file, columns).map_err(damaged)?))
        }
        _ => bail!("{shown} is not an Arrow IPC file; give it the ending of the format it has"),
    }
}

/// The stream on stdin. Its schema is known once this returns.
pub(super) fn stdin() -> anyhow::Result<Box<dyn RecordBatchReader + Send>> {
    if io::stdin().is_terminal() {
        bail!(
            "stdin is a terminal; pipe an Arrow IPC stream to it, as `strait join … -o -` writes"
        );
    }
    let reader = StreamReader::try_new(BufReader::with_capacity(1 << 18, io::stdin()), None);
    Ok(Box::new(reader.map_err(|error| {
        anyhow!("stdin is not an Arrow IPC stream ({error}); pipe the output of `strait join … -o -` or of another writer of Arrow streams")
    })?))
}
