//! Lists the objects of a table: one object, a folder or a glob.

use std::path::PathBuf;

use anyhow::{anyhow, bail};
use futures_util::TryStreamExt;
use glob::{MatchOptions, Pattern};
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::Location;
use super::client::{Purpose, Store, connect, timeout, wait};
use super::failure::{explain, too_slow};
use super::location::WILD;
use super::object::remember;

/// The objects of a table.
pub(crate) struct Found {
    /// The names of the objects, sorted.
    pub(crate) names: Vec<PathBuf>,
    /// The folder that the names of partition columns are below.
    pub(crate) root: PathBuf,
}

/// Lists the objects of a table, and remembers their versions.
pub(crate) fn find(location: &Location, matching: MatchOptions) -> anyhow::Result<Found> {
    let (store, listed) =
        (connect(location, Purpose::Reading)?, connect(location, Purpose::Describing)?);
    if !location.is_folder() && !location.is_glob() {
        let meta = head(location, &listed)?;
        let name = remember(location.clone(), &store, meta);
        return Ok(Found { root: name.clone(), names: vec![name] });
    }
    let base = base(&location.key);
    let is_taken = taken(location, base, matching)?;
    let mut metas = list(&location.with_key(base), &listed)?;
    // Stores have empty objects that stand for folders.
    metas.retain(|meta| meta.size > 0 && is_taken(meta.location.as_ref()));
    metas.sort_by(|a, b| a.location.cmp(&b.location));
    let name = |meta: ObjectMeta| {
        let location = location.with_key(meta.location.as_ref());
        remember(location, &store, meta)
    };
    let root = PathBuf::from(location.with_key(base).to_string());
    Ok(Found { names: metas.into_iter().map(name).collect(), root })
}

/// Returns the description of an object.
fn head(location: &Location, store: &Store) -> anyhow::Result<ObjectMeta> {
    let key = key(location)?;
    let described = wait(async {
        tokio::time::timeout(2 * timeout(), description(location, store, &key)).await
    })?;
    match described {
        Ok(Ok(meta)) => Ok(meta),
        Ok(Err(error)) => bail!("cannot read {location}: {}", explain(&error, location)),
        Err(_) => bail!("cannot read {location}: {}", slow(location)),
    }
}

/// Asks for the description of an object. Signed web addresses are often valid for reading only, so the first
/// byte is read. If this fails, as it does with an empty file, the description alone is asked for.
async fn description(
    location: &Location,
    store: &Store,
    key: &Key,
) -> object_store::Result<ObjectMeta> {
    if location.kind() == Some(super::Kind::Web) {
        let first = GetOptions { range: Some(GetRange::Bounded(0..1)), ..Default::default() };
        match store.get_opts(key, first).await {
            Ok(found) => return Ok(found.meta),
            Err(object_store::Error::Generic { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    store.head(key).await
}

/// Lists all objects below a folder.
fn list(folder: &Location, store: &Store) -> anyhow::Result<Vec<ObjectMeta>> {
    let prefix = Some(key(folder)?).filter(|prefix| !prefix.as_ref().is_empty());
    let listing = async {
        let mut all = Vec::new();
        let mut objects = store.list(prefix.as_ref());
        loop {
            // Each page of a listing is a request, so a long listing takes as long as it takes.
            match tokio::time::timeout(2 * timeout(), objects.try_next()).await {
                Ok(Ok(Some(meta))) => all.push(meta),
                Ok(Ok(None)) => return Ok(all),
                Ok(Err(error)) => return Err(explain(&error, folder)),
                Err(_) => return Err(slow(folder)),
            }
        }
    };
    wait(listing)?.map_err(|why| anyhow!("cannot list {folder}: {why}"))
}

fn slow(location: &Location) -> String {
    too_slow(location.kind().unwrap_or(super::Kind::Web))
}

/// Returns the store's form of a key. On web servers, the address of the store is the object itself.
pub(super) fn key(location: &Location) -> anyhow::Result<Key> {
    if location.kind() == Some(super::Kind::Web) {
        return Ok(Key::default());
    }
    Key::parse(&location.key).map_err(|error| {
        let error = object_store::Error::from(error);
        anyhow!("cannot use {location}: {}", explain(&error, location))
    })
}

/// Returns the folder of a key: the part before the first wildcard, up to a slash.
fn base(key: &str) -> &str {
    let plain = key.find(WILD).unwrap_or(key.len());
    key[..plain].rfind('/').map_or("", |slash| &key[..slash + 1])
}

/// Returns a function that tells whether a key belongs to the table.
fn taken(
    location: &Location,
    base: &str,
    matching: MatchOptions,
) -> anyhow::Result<impl Fn(&str) -> bool> {
    let glob = &location.key[base.len()..];
    let pattern = match glob.is_empty() {
        true => None,
        false => Some(
            Pattern::new(glob.trim_end_matches('/'))
                .map_err(|error| anyhow!("\"{location}\" is not a glob: {error}"))?,
        ),
    };
    // Names that begin with `_` are skipped, unless the glob spells them out.
    let spelt = glob.split('/').any(|part| part.starts_with('_'));
    let base = base.to_string();
    Ok(move |key: &str| {
        let Some(below) = key.strip_prefix(&base) else { return false };
        let is_hidden = |part: &str| part.starts_with('.') || part.starts_with('_') && !spelt;
        let Some(pattern) = &pattern else { return !below.split('/').any(is_hidden) };
        if !spelt && below.split('/').any(|part| part.starts_with('_')) {
            return false;
        }
        // A glob may also match a folder. Then it takes the objects in it.
        let ends = below.match_indices('/').map(|(at, _)| at).chain([below.len()]);
        ends.into_iter().any(|end| {
            let rest = below[end..].split('/').any(|part| part.starts_with('.'));
            pattern.matches_with(&below[..end], matching) && !rest
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MATCHING: MatchOptions = MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };

    fn takes(url: &str, key: &str) -> bool {
        let location = Location::parse(url).unwrap();
        let base = base(&location.key);
        let taken = taken(&location, base, MATCHING).unwrap();
        taken(key)
    }

    #[test]
    fn folders_take_all_names_but_hidden_ones() {
        assert!(takes("s3://b/a/", "a/y=1/x.csv"));
        assert!(takes("s3://b/", "x.csv"));
        for key in ["a/_SUCCESS", "a/.x.csv", "a/_tmp/x.csv", "ab/x.csv"] {
            assert!(!takes("s3://b/a/", key), "{key}");
        }
    }

    #[test]
    fn globs_match_objects_and_folders() {
        assert!(takes("s3://b/a/*.csv", "a/x.csv"));
        assert!(takes("s3://b/a/y=*/*.csv", "a/y=1/x.csv"));
        assert!(takes("s3://b/a/y=*", "a/y=1/x.csv"));
        assert!(takes("s3://b/a/_*.csv", "a/_x.csv"));
        assert!(takes("s3://b/**/*.csv", "a/b/x.csv"));
        for key in ["a/b/x.csv", "a/x.parquet", "a/.x.csv", "a/_x.csv"] {
            assert!(!takes("s3://b/a/*.csv", key), "{key}");
        }
    }

    #[test]
    fn the_prefix_ends_before_the_first_wildcard() {
        assert_eq!(base("a/b/*.csv"), "a/b/");
        assert_eq!(base("a/b*c/d"), "a/");
        assert_eq!(base("*.csv"), "");
        assert_eq!(base("a/"), "a/");
    }
}
