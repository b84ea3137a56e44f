//! A place in memory for the rows of joins that spill.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use strait::{SpillFile, SpillStore};

/// Keeps its files in memory.
#[derive(Debug)]
pub(crate) struct InMemory;

#[derive(Default)]
struct File(Mutex<Arc<Vec<u8>>>);

impl SpillStore for InMemory {
    fn create(&self) -> io::Result<Arc<dyn SpillFile>> {
        Ok(Arc::new(File::default()))
    }

    fn place(&self) -> String {
        "memory".to_string()
    }
}

impl File {
    fn bytes(&self) -> std::sync::MutexGuard<'_, Arc<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpillFile for File {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.bytes();
        // The contract: no append after the file was opened.
        let file = Arc::get_mut(&mut file).ok_or(io::Error::other("the file is being read"))?;
        file.extend_from_slice(bytes);
        Ok(())
    }

    fn open(&self) -> io::Result<Box<dyn io::Read + Send>> {
        Ok(Box::new(Reader { file: Arc::clone(&self.bytes()), at: 0 }))
    }
}

/// Reads a file from its start.
struct Reader {
    file: Arc<Vec<u8>>,
    at: usize,
}

impl io::Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = io::Read::read(&mut &self.file[self.at..], buffer)?;
        self.at += read;
        Ok(read)
    }
}
