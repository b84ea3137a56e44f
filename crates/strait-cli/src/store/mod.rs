//! Tables in object stores (S3, Google Cloud Storage, Azure) and on web servers.
//!
//! [`Location`] is the URL of an object. [`fn@find`] lists the objects of a table, and remembers the version of
//! each. After that, each object has a name that looks like a path, and [`fn@object`] finds the object by this name.
//! [`Sequential`] and [`Ranges`] read it ahead of its decoder. [`Upload`] writes an object.
//!
//! All of this needs the cargo feature `object-stores`. Without it, `absent.rs` takes the place of the other
//! files: the arguments are rejected, and there are no objects.

mod location;

#[cfg(not(feature = "object-stores"))]
mod absent;
#[cfg(feature = "object-stores")]
mod client;
#[cfg(feature = "object-stores")]
mod failure;
#[cfg(feature = "object-stores")]
mod list;
#[cfg(feature = "object-stores")]
mod object;
#[cfg(feature = "object-stores")]
mod ranges;
#[cfg(feature = "object-stores")]
mod sequential;
#[cfg(feature = "object-stores")]
mod upload;

#[cfg(not(feature = "object-stores"))]
pub(crate) use absent::*;
#[cfg(all(feature = "object-stores", feature = "sql"))]
pub(crate) use client::client;
#[cfg(feature = "object-stores")]
pub(crate) use list::find;
#[cfg(feature = "object-stores")]
pub(crate) use object::{Object, fault, object};
#[cfg(feature = "object-stores")]
pub(crate) use ranges::Ranges;
#[cfg(feature = "object-stores")]
pub(crate) use sequential::Sequential;
#[cfg(feature = "object-stores")]
pub(crate) use upload::{Upload, UploadBytes, abort_uploads};

#[cfg(feature = "object-stores")]
use location::Kind;
pub(crate) use location::Location;
