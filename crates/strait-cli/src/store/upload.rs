//! Writes an object in parts. It appears when all parts are there and the upload is completed.
//!
//! Parts are sent while the next one is filled. An upload that is dropped, or interrupted by a signal, is
//! aborted: the store then forgets its parts, and an object of that name is unchanged.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use object_store::path::Path as Key;
use object_store::{Error, MultipartUpload, ObjectStoreExt, PutPayload};
use strait::MemoryReservation;
use tokio::task::{AbortHandle, JoinHandle};

use super::Location;
use super::client::{self, Purpose, Store, connect, runtime, timeout, wait};
use super::failure::explain;
use super::list::key;
use crate::interrupt;
use crate::memory::Memory;

/// The length of the first parts. Stores accept no shorter ones than 5 MiB.
const PART: usize = 8 << 20;

/// Parts become twice as long after this many, because an upload has at most 10,000.
const DOUBLING: usize = 1000;

/// The most parts that are sent at the same time.
const SENDING: usize = 4;

/// The request that aborts an upload may take this long. After that, the store keeps the parts.
const ABORTING: Duration = Duration::from_secs(10);

/// The uploads that a signal aborts.
static RUNNING: Mutex<Vec<Arc<Running>>> = Mutex::new(Vec::new());

/// An upload as the store sees it.
#[derive(Default)]
struct Running {
    upload: Mutex<Option<Box<dyn MultipartUpload>>>,
    /// Whether a request that begins or completes the upload is running. Meanwhile `upload` is empty.
    is_changing: AtomicBool,
    /// The parts that are being sent.
    sending: Mutex<Vec<AbortHandle>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Aborts all uploads of this process. Only the signal handler calls it.
pub(crate) fn abort_uploads() {
    let running = std::mem::take(&mut *locked(&RUNNING));
    for running in running {
        // An upload that is being completed appears as a whole, or it can be aborted afterwards.
        let since = Instant::now();
        while running.is_changing.load(Ordering::SeqCst) && since.elapsed() < ABORTING {
            std::thread::sleep(Duration::from_millis(10));
        }
        running.abort();
    }
}

impl Running {
    /// Calls `change`, which begins or completes the upload, and keeps what it returns.
    fn change<T>(
        &self,
        change: impl FnOnce(Option<Box<dyn MultipartUpload>>) -> (Option<Box<dyn MultipartUpload>>, T),
    ) -> T {
        self.is_changing.store(true, Ordering::SeqCst);
        let before = locked(&self.upload).take();
        let (after, result) = change(before);
        *locked(&self.upload) = after;
        self.is_changing.store(false, Ordering::SeqCst);
        result
    }

    fn abort(&self) {
        locked(&self.sending).drain(..).for_each(|part| part.abort());
        let Some(mut upload) = locked(&self.upload).take() else { return };
        match wait(async { tokio::time::timeout(ABORTING, upload.abort()).await }) {
            Ok(Ok(Ok(()))) => {}
            _ => log::warn!(
                "an upload could not be aborted; the store keeps its parts until it removes old uploads"
            ),
        }
    }
}

/// An object that is being written. If it is dropped before [`Upload::complete`], there is no object.
pub(crate) struct Upload {
    location: Location,
    store: Store,
    key: Key,
    overwrite: bool,
    running: Arc<Running>,
    parts: Arc<Mutex<Parts>>,
}

/// The writer of an upload's bytes.
pub(crate) struct UploadBytes(Arc<Mutex<Parts>>);

struct Parts {
    location: Location,
    running: Arc<Running>,
    memory: Memory,
    /// The part that is being filled, and its memory.
    filling: Vec<u8>,
    reservation: MemoryReservation,
    sending: VecDeque<JoinHandle<(Result<(), Error>, MemoryReservation)>>,
    /// The number of parts so far.
    count: usize,
    bytes: u64,
}

impl Upload {
    /// Checks that an object may be written, without changing anything.
    pub(crate) fn check(location: &Location, overwrite: bool) -> anyhow::Result<()> {
        let store = connect(location, Purpose::Describing)?;
        absent(location, &store, &key(location)?, overwrite, "exists already")
    }

    /// Begins an upload.
    pub(crate) fn begin(
        location: &Location,
        overwrite: bool,
        memory: &Memory,
    ) -> anyhow::Result<Upload> {
        Upload::check(location, overwrite)?;
        let (store, key) = (connect(location, Purpose::Writing)?, key(location)?);
        let reservation = memory.reserve(PART as u64, "a part of an upload");
        let reservation = reservation.map_err(crate::failure::of_join)?;
        // If a signal arrives, the upload is aborted. This also holds while the upload begins.
        let running = Arc::new(Running::default());
        locked(&RUNNING).push(Arc::clone(&running));
        let begun = running.change(|_| {
            let request = store.put_multipart(&key);
            match wait(async { tokio::time::timeout(2 * timeout(), request).await }) {
                Ok(Ok(Ok(upload))) => (Some(upload), Ok(())),
                Ok(Ok(Err(error))) => (None, Err(explain(&error, location))),
                Ok(Err(_)) => (None, Err(slow(location))),
                Err(error) => (None, Err(error.to_string())),
            }
        });
        begun.map_err(|why| anyhow!("cannot write {location}: {why}"))?;
        let parts = Parts {
            location: location.clone(),
            running: Arc::clone(&running),
            memory: memory.clone(),
            filling: Vec::with_capacity(PART),
            reservation,
            sending: VecDeque::new(),
            count: 0,
            bytes: 0,
        };
        let (location, parts) = (location.clone(), Arc::new(Mutex::new(parts)));
        Ok(Upload { location, store, key, overwrite, running, parts })
    }

    /// Returns the writer of the bytes.
    pub(crate) fn bytes(&self) -> UploadBytes {
        UploadBytes(Arc::clone(&self.parts))
    }

    /// Sends the rest, and completes the upload.
    pub(crate) fn complete(self) -> anyhow::Result<()> {
        let location = &self.location;
        let failed = |why: &dyn std::fmt::Display| {
            anyhow!("cannot write {location}: {why}; what was there before is untouched")
        };
        locked(&self.parts).finish().map_err(|error| failed(&error))?;
        // Another process may have written the object since the beginning.
        let meanwhile = "was written by another process in the meantime";
        absent(location, &self.store, &self.key, self.overwrite, meanwhile)?;
        let patience = client::SENDING * timeout();
        if locked(&self.parts).bytes == 0 {
            // An upload without parts cannot be completed. It is aborted, and an empty object is written.
            let put = self.store.put(&self.key, PutPayload::new());
            let put = wait(async { tokio::time::timeout(patience, put).await })?;
            let put = put.map_err(|_| failed(&slow(location)))?;
            return put.map(drop).map_err(|error| failed(&explain(&error, location)));
        }
        let completed = self.running.change(|upload| {
            let Some(mut upload) = upload else { return (None, Err("it was aborted".to_string())) };
            match wait(async { tokio::time::timeout(patience, upload.complete()).await }) {
                Ok(Ok(Ok(_))) => (None, Ok(())),
                // The drop of this value aborts the upload.
                Ok(Ok(Err(error))) => (Some(upload), Err(explain(&error, location))),
                Ok(Err(_)) => (Some(upload), Err(slow(location))),
                Err(error) => (Some(upload), Err(error.to_string())),
            }
        });
        completed.map_err(|why| anyhow!("cannot write {location}: {why}"))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The signal handler aborts it, or this thread, but not both.
        interrupt::uninterrupted(|| {
            self.running.abort();
            locked(&RUNNING).retain(|running| !Arc::ptr_eq(running, &self.running));
        });
    }
}

/// Fails if there is an object of this name, unless it may be replaced.
fn absent(
    location: &Location,
    store: &Store,
    key: &Key,
    overwrite: bool,
    exists: &str,
) -> anyhow::Result<()> {
    if overwrite {
        return Ok(());
    }
    match wait(async { tokio::time::timeout(2 * timeout(), store.head(key)).await })? {
        Ok(Ok(_)) => {
            bail!("{location} {exists}; add --overwrite to replace it, or write elsewhere")
        }
        Ok(Err(Error::NotFound { .. })) => Ok(()),
        Ok(Err(error)) => bail!("cannot write {location}: {}", explain(&error, location)),
        Err(_) => bail!("cannot write {location}: {}", slow(location)),
    }
}

fn slow(location: &Location) -> String {
    super::failure::too_slow(location.kind().unwrap_or(super::Kind::Web))
}

impl Parts {
    /// The length of the part that is being filled.
    fn length(&self) -> usize {
        PART << (self.count / DOUBLING).min(9)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.filling.len() >= self.length() {
            self.send()?;
            self.make_room()?;
        }
        let taken = bytes.len().min(self.length() - self.filling.len());
        self.filling.extend_from_slice(&bytes[..taken]);
        self.bytes += taken as u64;
        Ok(taken)
    }

    /// Sends the part that was filled.
    fn send(&mut self) -> io::Result<()> {
        while self.sending.len() >= SENDING {
            self.sent()?;
        }
        let payload = PutPayload::from(std::mem::take(&mut self.filling));
        let part = match &mut *locked(&self.running.upload) {
            Some(upload) => upload.put_part(payload),
            None => return Err(io::Error::other("it was aborted")),
        };
        let empty = self.memory.reserve(0, "a part of an upload").map_err(refused)?;
        let reservation = std::mem::replace(&mut self.reservation, empty);
        let runtime = runtime().map_err(io::Error::other)?;
        let task = runtime.spawn(async move { (part.await, reservation) });
        let mut sending = locked(&self.running.sending);
        sending.retain(|part| !part.is_finished());
        sending.push(task.abort_handle());
        drop(sending);
        self.sending.push_back(task);
        self.count += 1;
        Ok(())
    }

    /// Waits until the oldest part has arrived. Its memory is free then.
    fn sent(&mut self) -> io::Result<()> {
        let Some(part) = self.sending.pop_front() else { return Ok(()) };
        let ended = wait(part).map_err(io::Error::other)?;
        match ended {
            Ok((Ok(()), _)) => Ok(()),
            Ok((Err(error), _)) => Err(io::Error::other(explain(&error, &self.location))),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }

    /// Reserves and allocates the next part. Under a memory limit, it waits for parts that are being sent.
    fn make_room(&mut self) -> io::Result<()> {
        let length = self.length();
        loop {
            let what = "a part of an upload";
            match self.memory.resize(&mut self.reservation, length as u64, what) {
                Ok(()) => break,
                Err(_) if !self.sending.is_empty() => self.sent()?,
                Err(error) => return Err(refused(error)),
            }
        }
        self.filling = Vec::with_capacity(length);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        if !self.filling.is_empty() {
            self.send()?;
        }
        while !self.sending.is_empty() {
            self.sent()?;
        }
        Ok(())
    }
}

fn refused(error: strait::Error) -> io::Error {
    io::Error::other(format!("{:#}", crate::failure::of_join(error)))
}

impl Write for UploadBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        locked(&self.0).write(bytes)
    }

    /// Bytes are sent when a part is full, and at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
