//! Objects that are read: their versions, and checked requests for ranges of their bytes.
//!
//! The first request for an object fixes its version. Every later answer must have the same size and the same
//! ETag, so an object that is replaced while it is read is an error and never a wrong answer.

use std::collections::HashMap;
use std::future::Future;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path as Key;
use object_store::{Error, GetOptions, GetRange, ObjectMeta};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::client::{self, Store, runtime, timeout};
use super::failure::{explain, too_slow};
use super::{Kind, Location};
use crate::failure::Told;
use crate::memory::Memory;

/// The most requests for bytes at the same time.
const REQUESTS: usize = 64;

/// The pauses before a request is repeated.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1600)];

/// The bytes at the end of a Parquet object that are fetched for its footer. Most footers fit.
const TAIL: u64 = 64 << 10;

static SLOTS: Semaphore = Semaphore::const_new(REQUESTS);

/// An object of a known version.
pub(crate) struct Object {
    pub(super) location: Location,
    name: PathBuf,
    store: Store,
    key: Key,
    version: Version,
    tail: Mutex<Option<Fetch>>,
    /// The message about the first request that failed. It is kept here, because a decoder would report another
    /// error.
    fault: Mutex<Option<String>>,
}

/// What identifies the content of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    size: u64,
    e_tag: Option<String>,
    /// The second in which it was written.
    written: i64,
}

/// A request that is being carried out. Dropping it ends the request.
pub(super) struct Fetch(JoinHandle<Result<Bytes, String>>);

impl Drop for Fetch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// All objects of this process, by their names.
fn objects() -> MutexGuard<'static, HashMap<PathBuf, Arc<Object>>> {
    static OBJECTS: LazyLock<Mutex<HashMap<PathBuf, Arc<Object>>>> = LazyLock::new(Mutex::default);
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the object of this name. There is none if the name is a path on disk.
pub(crate) fn object(name: &Path) -> Option<Arc<Object>> {
    objects().get(name).cloned()
}

/// Returns the message about the first failed request for an object, if there was one.
pub(crate) fn fault(name: &Path) -> Option<Told> {
    let object = object(name)?;
    let fault = object.fault.lock().unwrap_or_else(PoisonError::into_inner);
    fault.as_ref().map(|fault| Told(fault.clone()))
}

/// Remembers an object in the version that the store described, and returns its name.
pub(super) fn remember(location: Location, store: &Store, meta: ObjectMeta) -> PathBuf {
    let mut objects = objects();
    let shown = location.to_string();
    let names = (1..).map(|number| match number {
        1 => PathBuf::from(&shown),
        // Another web address that differs only in the part that is not shown.
        number => PathBuf::from(format!("{shown} ({number})")),
    });
    let is_free = |name: &PathBuf| objects.get(name).is_none_or(|found| found.location == location);
    let name = names.into_iter().find(is_free).unwrap_or_default();
    objects.entry(name.clone()).or_insert_with(|| {
        Arc::new(Object {
            name: name.clone(),
            store: Arc::clone(store),
            version: Version::of(&meta),
            key: meta.location,
            location,
            tail: Mutex::default(),
            fault: Mutex::default(),
        })
    });
    name
}

#[cfg(feature = "sql")]
impl Object {
    /// The URL of the object.
    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the description of the object, for another reader.
    pub(crate) fn meta(&self) -> ObjectMeta {
        let Version { size, e_tag, written } = self.version.clone();
        let last_modified = chrono::DateTime::from_timestamp(written, 0).unwrap_or_default();
        ObjectMeta { location: self.key.clone(), last_modified, size, e_tag, version: None }
    }
}

impl Object {
    /// The number of bytes.
    pub(crate) fn size(&self) -> u64 {
        self.version.size
    }

    /// Starts a request for a range.
    pub(super) fn fetch(self: &Arc<Object>, range: Range<u64>) -> Result<Fetch, Told> {
        let object = Arc::clone(self);
        let runtime = runtime().map_err(|error| Told(error.to_string()))?;
        Ok(Fetch(runtime.spawn(async move { object.get(range).await })))
    }

    /// Waits for a request. A failure becomes the fault of the object.
    pub(super) fn fetched(&self, mut fetch: Fetch) -> Result<Bytes, Told> {
        let ended = client::wait(async { (&mut fetch.0).await });
        let bytes = match ended {
            Ok(Ok(fetched)) => fetched,
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        bytes.map_err(|why| {
            let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
            let told = || format!("cannot read {}: {why}", self.name.display());
            Told(fault.get_or_insert_with(told).clone())
        })
    }

    /// Starts a request for the end of the object, where a Parquet file has its footer.
    pub(crate) fn fetch_tail(self: &Arc<Object>) -> Result<(), Told> {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.is_none() {
            *tail = Some(self.fetch(self.tail_range())?);
        }
        Ok(())
    }

    /// Returns the end of the object, and where it begins.
    pub(crate) fn tail(self: &Arc<Object>) -> Result<(u64, Bytes), Told> {
        self.fetch_tail()?;
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner).take();
        let bytes = tail.map_or(Ok(Bytes::new()), |tail| self.fetched(tail))?;
        Ok((self.tail_range().start, bytes))
    }

    fn tail_range(&self) -> Range<u64> {
        self.size().saturating_sub(TAIL)..self.size()
    }

    /// Returns bytes of the object, without reading ahead.
    pub(crate) fn bytes(self: &Arc<Object>, range: Range<u64>) -> Result<Bytes, Told> {
        self.fetched(self.fetch(range)?)
    }

    /// Gets a range, and repeats failed requests for a bounded time.
    async fn get(&self, range: Range<u64>) -> Result<Bytes, String> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let _slot = SLOTS.acquire().await.map_err(|error| error.to_string())?;
        let (mut pauses, began) = (PAUSES.into_iter(), Instant::now());
        loop {
            let failed = match self.attempt(range.clone()).await {
                Ok(bytes) => return Ok(bytes),
                Err(failed) => failed,
            };
            let again = failed.may_pass && began.elapsed() < timeout();
            match pauses.next().filter(|_| again) {
                Some(pause) => {
                    log::debug!("{}: {}; trying again", self.name.display(), failed.why);
                    tokio::time::sleep(pause).await;
                }
                None => return Err(failed.why),
            }
        }
    }

    /// Waits for the next part of an answer. A store that sends nothing for long is given up.
    async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Result<T, Failed> {
        let kind = self.location.kind().unwrap_or(Kind::Web);
        let slow = |_| Failed { why: too_slow(kind), may_pass: true };
        tokio::time::timeout(timeout(), answer).await.map_err(slow)
    }

    /// Sends one request, and checks the answer.
    async fn attempt(&self, range: Range<u64>) -> Result<Bytes, Failed> {
        let of_store = |error: Error| Failed {
            may_pass: matches!(error, Error::Generic { .. }),
            why: explain(&error, &self.location),
        };
        let options =
            GetOptions { range: Some(GetRange::Bounded(range.clone())), ..Default::default() };
        let found =
            self.in_time(self.store.get_opts(&self.key, options)).await?.map_err(of_store)?;
        let version = Version::of(&found.meta);
        if !version.is_same(&self.version) {
            return Err(Failed::finally(
                "the object changed while it was read; start again when nobody writes it",
            ));
        }
        if found.range != range {
            return Err(Failed::finally(
                "the store sent another range of bytes than the requested one; try again later",
            ));
        }
        let length = (range.end - range.start) as usize;
        let mut bytes = Vec::with_capacity(length);
        let mut body = found.into_stream();
        while let Some(more) = self.in_time(body.next()).await? {
            bytes.extend_from_slice(&more.map_err(of_store)?);
            if bytes.len() > length {
                break;
            }
        }
        if bytes.len() != length {
            let why = format!(
                "the store sent {} bytes instead of the requested {length}; try again later",
                bytes.len()
            );
            return Err(Failed { why, may_pass: true });
        }
        Ok(bytes.into())
    }
}

impl Version {
    fn of(meta: &ObjectMeta) -> Version {
        let written = meta.last_modified.timestamp();
        Version { size: meta.size, e_tag: meta.e_tag.clone(), written }
    }

    /// Whether two descriptions are of the same content. Some web servers send no ETag.
    fn is_same(&self, other: &Version) -> bool {
        // Azure writes the same ETag with quotes and, in listings, without.
        let bare = |tag: &str| tag.trim_start_matches("W/").trim_matches('"').to_string();
        let same_tag = match (&self.e_tag, &other.e_tag) {
            (Some(a), Some(b)) => bare(a) == bare(b),
            _ => self.written == other.written,
        };
        self.size == other.size && same_tag
    }
}

/// An attempt that failed.
struct Failed {
    why: String,
    /// Whether the next attempt may succeed.
    may_pass: bool,
}

impl Failed {
    fn finally(why: &str) -> Failed {
        Failed { why: why.to_string(), may_pass: false }
    }
}

/// Returns the size of pieces that are fetched, and the most bytes that one reader fetches ahead.
pub(super) fn piece_and_ahead(memory: &Memory) -> (u64, u64) {
    const PIECE: u64 = 4 << 20;
    match memory.limit() {
        None => (PIECE, 8 * PIECE),
        Some(limit) => {
            let piece = (limit / 128).clamp(64 << 10, PIECE);
            (piece, (limit / 32).clamp(piece, 8 * PIECE))
        }
    }
}
