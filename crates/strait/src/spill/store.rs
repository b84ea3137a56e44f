//! The interface between a join and the place where it writes rows.

use std::fmt;
use std::io;
use std::sync::Arc;

/// Where a join writes rows that do not fit its memory limit. [`TempFolders`](crate::TempFolders) is the
/// default.
///
/// Many workers call it at the same time.
///
/// ```
/// use std::io::{Cursor, Read, Result};
/// use std::sync::{Arc, Mutex};
/// use strait::{SpillFile, SpillStore};
///
/// /// A store for tests, in memory.
/// #[derive(Debug)]
/// struct InMemory;
///
/// struct File(Mutex<Vec<u8>>);
///
/// impl SpillStore for InMemory {
///     fn create(&self) -> Result<Arc<dyn SpillFile>> {
///         Ok(Arc::new(File(Mutex::default())))
///     }
///
///     fn place(&self) -> String {
///         "memory".to_string()
///     }
/// }
///
/// impl SpillFile for File {
///     fn append(&self, bytes: &[u8]) -> Result<()> {
///         self.0.lock().expect("no panic").extend_from_slice(bytes);
///         Ok(())
///     }
///
///     fn open(&self) -> Result<Box<dyn Read + Send>> {
///         Ok(Box::new(Cursor::new(self.0.lock().expect("no panic").clone())))
///     }
/// }
///
/// let file = InMemory.create()?;
/// file.append(b"some rows")?;
/// let mut text = String::new();
/// file.open()?.read_to_string(&mut text)?;
/// assert_eq!(text, "some rows");
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait SpillStore: Send + Sync + fmt::Debug {
    /// Creates an empty file. The store may delete it when the last reference is dropped.
    fn create(&self) -> io::Result<Arc<dyn SpillFile>>;

    /// Names the place for messages, such as its folders.
    fn place(&self) -> String;
}

/// A file to which bytes are appended, and which is then read from front to back.
///
/// ```
/// use std::io::Read;
/// use strait::{SpillStore, TempFolders};
///
/// let file = TempFolders::new(vec![]).create()?;
/// file.append(b"first, ")?;
/// file.append(b"second")?;
/// // Each reader starts at the front.
/// for mut reader in [file.open()?, file.open()?] {
///     let mut text = String::new();
///     reader.read_to_string(&mut text)?;
///     assert_eq!(text, "first, second");
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait SpillFile: Send + Sync {
    /// Appends all bytes, or fails. The join makes one call at a time per file. It does not use the file
    /// again after an error.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Opens the file for reading from its start. The join calls this only after the last append. Several threads may
    /// call it, also at the same time.
    fn open(&self) -> io::Result<Box<dyn io::Read + Send>>;
}
