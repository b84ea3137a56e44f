//! Takes the place of object stores in a build without them. There are no objects, so no method can be called.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use glob::MatchOptions;

use super::Location;
use crate::failure::Told;
use crate::memory::Memory;

/// A value that cannot exist. The types that contain it cannot exist either.
enum Never {}

pub(crate) struct Object(Never);

pub(crate) struct Sequential(Never);

pub(crate) struct Ranges(Never);

pub(crate) struct Upload(Never);

pub(crate) struct UploadBytes(Never);

/// The objects of a table.
pub(crate) struct Found {
    pub(crate) names: Vec<PathBuf>,
    pub(crate) root: PathBuf,
}

/// Fails. The arguments were checked before, so nobody calls it.
pub(crate) fn find(location: &Location, _: MatchOptions) -> anyhow::Result<Found> {
    location.check(false).map_err(anyhow::Error::msg)?;
    anyhow::bail!("{location} cannot be read")
}

/// Returns `None`: all names are paths.
pub(crate) fn object(_: &Path) -> Option<Arc<Object>> {
    None
}

/// Returns `None`: no request has failed.
pub(crate) fn fault(_: &Path) -> Option<Told> {
    None
}

/// Does nothing: there are no uploads.
pub(crate) fn abort_uploads() {}

impl Object {
    pub(crate) fn size(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn fetch_tail(&self) -> Result<(), Told> {
        match self.0 {}
    }

    pub(crate) fn tail(&self) -> Result<(u64, Bytes), Told> {
        match self.0 {}
    }

    pub(crate) fn bytes(&self, _: Range<u64>) -> Result<Bytes, Told> {
        match self.0 {}
    }
}

impl Sequential {
    pub(crate) fn new(object: &Arc<Object>, _: &Memory) -> strait::Result<Sequential> {
        match object.0 {}
    }

    pub(crate) fn size(&self) -> u64 {
        match self.0 {}
    }
}

impl Read for Sequential {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
}

impl Seek for Sequential {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        match self.0 {}
    }
}

impl Ranges {
    pub(crate) fn new(object: &Arc<Object>, _: Vec<Range<u64>>, _: &Memory) -> Ranges {
        match object.0 {}
    }

    pub(crate) fn size(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn begin(&self) {
        match self.0 {}
    }

    pub(crate) fn bytes(&self, _: u64, _: usize) -> strait::Result<Bytes> {
        match self.0 {}
    }
}

impl Upload {
    /// Fails. The arguments were checked before, so nobody calls it.
    pub(crate) fn check(location: &Location, _: bool) -> anyhow::Result<()> {
        location.check(true).map_err(anyhow::Error::msg)
    }

    /// Fails. The arguments were checked before, so nobody calls it.
    pub(crate) fn begin(
        location: &Location,
        overwrite: bool,
        _: &Memory,
    ) -> anyhow::Result<Upload> {
        Upload::check(location, overwrite)?;
        anyhow::bail!("{location} cannot be written")
    }

    pub(crate) fn bytes(&self) -> UploadBytes {
        match self.0 {}
    }

    pub(crate) fn complete(self) -> anyhow::Result<()> {
        match self.0 {}
    }
}

impl Write for UploadBytes {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}
