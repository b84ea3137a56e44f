//! Temporary files in two directions: Strait's joins use the files of a session (`DiskStore`), and a session can use
//! files of Strait that have no names (`UnnamedFiles`).

use std::fs::File;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::spill_file::{SpillFile, SpillWriter, TempFileFactory};
use futures_util::{Stream, StreamExt};
use strait::SpillStore;
use tokio::runtime::Handle;

use super::lock;

/// The bytes that are read from a file at a time.
const CHUNK: usize = 1 << 20;

/// Lets a join spill to the disk manager of a session.
#[derive(Debug)]
pub(crate) struct DiskStore {
    pub(crate) disk: Arc<DiskManager>,
    /// The runtime. It reads the files that have no path.
    pub(crate) runtime: Handle,
}

impl SpillStore for DiskStore {
    fn create(&self) -> io::Result<Arc<dyn strait::SpillFile>> {
        let file = self.disk.create_tmp_file("a join of Strait").map_err(io_error)?;
        let (writer, runtime) = (Mutex::default(), self.runtime.clone());
        Ok(Arc::new(ManagedFile { file, writer, runtime }))
    }

    fn place(&self) -> String {
        let folders = self.disk.temp_dir_paths();
        let shown = folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>();
        match shown.is_empty() {
            true => "the disk manager of the session".to_string(),
            false => shown.join(", "),
        }
    }
}

fn io_error(error: DataFusionError) -> io::Error {
    match error {
        DataFusionError::IoError(error) => error,
        error => io::Error::other(error),
    }
}

/// A file of the disk manager.
struct ManagedFile {
    file: Arc<dyn SpillFile>,
    writer: Mutex<Option<Box<dyn SpillWriter>>>,
    runtime: Handle,
}

impl strait::SpillFile for ManagedFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut writer = lock(&self.writer);
        if writer.is_none() {
            *writer = Some(self.file.open_writer().map_err(io_error)?);
        }
        match writer.as_mut() {
            Some(writer) => writer.write_all(bytes),
            None => Err(io::Error::other("the temporary file has no writer")),
        }
    }

    fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        if let Some(mut writer) = lock(&self.writer).take() {
            writer.flush()?;
            writer.finish().map_err(io_error)?;
        }
        if let Some(path) = self.file.path() {
            return Ok(Box::new(File::open(path)?));
        }
        let stream = self.file.read_stream().map_err(io_error)?;
        Ok(Box::new(BlockingReader {
            stream,
            chunk: Default::default(),
            runtime: self.runtime.clone(),
        }))
    }
}

/// Reads a stream of bytes from a thread that may block.
struct BlockingReader {
    stream: Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>,
    chunk: Bytes,
    runtime: Handle,
}

impl Read for BlockingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.runtime.block_on(self.stream.next()) {
                Some(chunk) => self.chunk = chunk.map_err(io_error)?,
                None => return Ok(0),
            }
        }
        let read = buffer.len().min(self.chunk.len());
        buffer[..read].copy_from_slice(&self.chunk.split_to(read));
        Ok(read)
    }
}

/// Temporary files without names, for all operators of a session.
///
/// The system deletes them when the process ends, even if it is killed. DataFusion's own files have names. If the
/// process is killed, they stay on disk.
///
/// ```
/// use std::sync::Arc;
/// use datafusion::execution::disk_manager::DiskManagerBuilder;
/// use datafusion::execution::runtime_env::RuntimeEnvBuilder;
/// use strait::TempFolders;
/// use strait_datafusion::UnnamedFiles;
///
/// let files = UnnamedFiles::new(TempFolders::new(vec![std::env::temp_dir()]));
/// let disk = DiskManagerBuilder::default().with_temp_file_factory(Arc::new(files));
/// let runtime = RuntimeEnvBuilder::new().with_disk_manager_builder(disk).build()?;
/// # drop(runtime);
/// # Ok::<(), datafusion::error::DataFusionError>(())
/// ```
#[derive(Debug)]
pub struct UnnamedFiles(Box<dyn SpillStore>);

impl UnnamedFiles {
    /// Lets a session write its temporary files to a store, such as [`TempFolders`](strait::TempFolders).
    pub fn new(store: impl SpillStore + 'static) -> UnnamedFiles {
        UnnamedFiles(Box::new(store))
    }
}

impl TempFileFactory for UnnamedFiles {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        let file = self.0.create().map_err(|error| {
            let place = self.0.place();
            let why = format!("no temporary file in {place} for {description}: {error}");
            DataFusionError::IoError(io::Error::new(error.kind(), why))
        })?;
        Ok(Arc::new(UnnamedFile { file, bytes: Arc::default() }))
    }
}

struct UnnamedFile {
    file: Arc<dyn strait::SpillFile>,
    bytes: Arc<AtomicU64>,
}

impl SpillFile for UnnamedFile {
    fn size(&self) -> Option<u64> {
        Some(self.bytes.load(Ordering::Relaxed))
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let reader = self.file.open()?;
        let chunks = futures_util::stream::unfold(Some(reader), |reader| async move {
            let mut reader = reader?;
            let read = tokio::task::spawn_blocking(move || {
                let mut chunk = Vec::with_capacity(CHUNK);
                let read = reader.by_ref().take(CHUNK as u64).read_to_end(&mut chunk);
                read.map(|_| (reader, chunk))
            });
            match read.await {
                Ok(Ok((_, chunk))) if chunk.is_empty() => None,
                Ok(Ok((reader, chunk))) => Some((Ok(Bytes::from(chunk)), Some(reader))),
                Ok(Err(error)) => Some((Err(DataFusionError::IoError(error)), None)),
                Err(error) => Some((Err(DataFusionError::External(Box::new(error))), None)),
            }
        });
        Ok(Box::pin(chunks))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        let appended = Appended { file: Arc::clone(&self.file), bytes: Arc::clone(&self.bytes) };
        Ok(Box::new(UnnamedWriter(io::BufWriter::with_capacity(CHUNK, appended))))
    }
}

/// Appends to a file without a name.
struct Appended {
    file: Arc<dyn strait::SpillFile>,
    bytes: Arc<AtomicU64>,
}

impl Write for Appended {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.file.append(buffer)?;
        self.bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct UnnamedWriter(io::BufWriter<Appended>);

impl Write for UnnamedWriter {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl SpillWriter for UnnamedWriter {
    fn finish(&mut self) -> Result<()> {
        Ok(self.0.flush()?)
    }
}
