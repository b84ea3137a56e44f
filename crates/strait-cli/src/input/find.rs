//! Lists the files of a table: a file, a folder or a glob. It reads only names, and the first bytes of files
//! whose names do not show their format.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use glob::{MatchOptions, Pattern};

use super::format::{Format, KNOWN};
use super::hive::{self, Partition};
use crate::arguments::Source;
use crate::store::{self, Location};

/// How globs match: `*` stays within a folder, and hidden files must be named explicitly.
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// The files of a table, all in one format, sorted by path.
#[derive(Debug, Clone)]
pub(crate) struct FoundFiles {
    /// The name that the user gave.
    pub(crate) name: String,
    pub(super) files: Vec<FoundFile>,
    origin: Origin,
}

/// A file of a table.
#[derive(Debug, Clone)]
pub(super) struct FoundFile {
    pub(super) path: PathBuf,
    pub(super) format: Format,
    /// The column values that the names of its folders give.
    pub(super) partitions: Vec<Partition>,
}

#[derive(Debug, Clone)]
enum Origin {
    Stdin,
    File,
    Folder(PathBuf),
    Glob(PathBuf),
    Store(Location),
}

/// Lists the files of a table.
pub(crate) fn find(source: &Source) -> anyhow::Result<FoundFiles> {
    let path = match source {
        Source::Stdin => {
            return Ok(FoundFiles {
                name: "stdin".into(),
                files: Vec::new(),
                origin: Origin::Stdin,
            });
        }
        Source::Object(location) => return in_store(location),
        Source::Path(path) => path,
    };
    let name = path.display().to_string();
    let (files, origin) = match fs::metadata(path) {
        Ok(found) if found.is_dir() => (in_folder(path)?, Origin::Folder(path.clone())),
        Ok(found) if !found.is_file() => bail!(
            "{name} is neither a file nor a folder; pipe an Arrow IPC stream to stdin and write - for it"
        ),
        Ok(_) => (vec![single(path)?], Origin::File),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot read {name}"));
        }
        Err(_) if name.contains(['*', '?', '[']) => (by_glob(&name)?, Origin::Glob(path.clone())),
        Err(_) => bail!("{name} does not exist{}", similar(path)),
    };
    one_format(&name, &files)?;
    log::debug!("{name}: {} file(s)", files.len());
    Ok(FoundFiles { name, files, origin })
}

impl FoundFiles {
    /// Whether the table comes from stdin.
    pub(crate) fn is_stdin(&self) -> bool {
        matches!(self.origin, Origin::Stdin)
    }

    /// Whether an object at `location` would belong to this table.
    pub(crate) fn claims_object(&self, location: &Location) -> bool {
        let path = Path::new(&location.to_string()).to_path_buf();
        let is_below =
            |folder: &Location| folder.is_folder() && path.starts_with(folder.to_string());
        let matches = |glob: &Location| {
            let pattern = Pattern::new(&glob.to_string());
            glob.is_glob() && pattern.is_ok_and(|p| p.matches_path_with(&path, MATCHING))
        };
        let claims = |table: &Location| is_below(table) || matches(table);
        self.files.iter().any(|file| file.path == path)
            || matches!(&self.origin, Origin::Store(table) if claims(table))
    }

    /// Whether a file at `path` (without links) would belong to this table.
    pub(crate) fn claims(&self, path: &Path) -> bool {
        let same = |file: &FoundFile| fs::canonicalize(&file.path).is_ok_and(|file| file == path);
        self.files.iter().any(same)
            || match &self.origin {
                Origin::Stdin | Origin::File | Origin::Store(_) => false,
                Origin::Folder(root) => {
                    fs::canonicalize(root).is_ok_and(|root| path.starts_with(root))
                }
                Origin::Glob(pattern) => std::path::absolute(pattern)
                    .ok()
                    .and_then(|pattern| Pattern::new(&pattern.to_string_lossy()).ok())
                    .is_some_and(|pattern| pattern.matches_path_with(path, MATCHING)),
            }
    }
}

/// Lists the objects of a table in a store.
fn in_store(location: &Location) -> anyhow::Result<FoundFiles> {
    let name = location.to_string();
    let found = store::find(location, MATCHING)?;
    let files = match location.is_folder() || location.is_glob() {
        true => found.names.into_iter().filter_map(|path| by_name(&found.root, path)).collect(),
        false => {
            let objects = found.names.into_iter().map(|path| single_object(&name, path));
            objects.collect::<anyhow::Result<Vec<_>>>()?
        }
    };
    if files.is_empty() {
        bail!(
            "{name} holds no tables; they are recognised by {KNOWN}, and names that begin with `.` or \
             `_` are skipped"
        );
    }
    one_format(&name, &files)?;
    log::debug!("{name}: {} object(s)", files.len());
    Ok(FoundFiles { name, files, origin: Origin::Store(location.clone()) })
}

/// Recognises an object by its ending. The content of many objects would take as many requests.
fn by_name(root: &Path, path: PathBuf) -> Option<FoundFile> {
    let format = Format::by_ending(&path);
    if format.is_none() {
        log::debug!("skipping {}: not a table by its name", path.display());
    }
    Some(FoundFile { format: format?, partitions: hive::partitions(root, &path), path })
}

/// Recognises an object by the ending of its URL, or by its content.
fn single_object(url: &str, path: PathBuf) -> anyhow::Result<FoundFile> {
    match Format::by_ending(Path::new(url)) {
        Some(format) => Ok(FoundFile { path, format, partitions: Vec::new() }),
        None => single(&path).map_err(|error| store::fault(&path).map_or(error, Into::into)),
    }
}

fn single(path: &Path) -> anyhow::Result<FoundFile> {
    let shown = path.display();
    let format = Format::of(path).with_context(|| format!("cannot read {shown}"))?;
    let format = format.ok_or_else(|| {
        anyhow!("cannot tell the format of {shown}; rename it so that it ends in {KNOWN}")
    })?;
    Ok(FoundFile { path: path.to_path_buf(), format, partitions: Vec::new() })
}

fn in_folder(root: &Path) -> anyhow::Result<Vec<FoundFile>> {
    let mut files = Vec::new();
    collect(root, root, &mut files)?;
    if files.is_empty() {
        bail!(
            "folder {} holds no tables; they are recognised by {KNOWN}, and names that begin with \
             `.` or `_` are skipped",
            root.display()
        );
    }
    Ok(files)
}

fn by_glob(pattern: &str) -> anyhow::Result<Vec<FoundFile>> {
    let paths = glob::glob_with(pattern, MATCHING)
        .map_err(|error| anyhow!("\"{pattern}\" is not a glob: {error}"))?;
    // The folders above the first wildcard locate the table; they are not part of it.
    let wild = |part: &&std::ffi::OsStr| part.to_string_lossy().contains(['*', '?', '[']);
    let base: PathBuf = Path::new(pattern).iter().take_while(|part| !wild(part)).collect();
    // Skips names that begin with `_`, as in folders, unless the glob spells them out.
    let spelt = Path::new(pattern).iter().any(|part| part.to_string_lossy().starts_with('_'));
    let mut files = Vec::new();
    for path in paths {
        let path = path.with_context(|| format!("cannot list \"{pattern}\""))?;
        let below = path.strip_prefix(&base).unwrap_or(&path);
        if !spelt && below.iter().any(|part| part.to_string_lossy().starts_with('_')) {
            continue;
        }
        if path.is_dir() {
            collect(&base, &path, &mut files)?;
        } else {
            push(&base, path, &mut files)?;
        }
    }
    // The glob may match both a folder and the files in it.
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    if files.is_empty() {
        bail!("no table matches \"{pattern}\"; tables are recognised by {KNOWN}");
    }
    Ok(files)
}

/// Adds the tables in `folder` and its subfolders, sorted by name.
fn collect(root: &Path, folder: &Path, files: &mut Vec<FoundFile>) -> anyhow::Result<()> {
    let context = || format!("cannot list folder {}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(context)? {
        let entry = entry.with_context(context)?;
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with(['.', '_']) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(root, &path, files)?;
        } else {
            push(root, path, files)?;
        }
    }
    Ok(())
}

fn push(root: &Path, path: PathBuf, files: &mut Vec<FoundFile>) -> anyhow::Result<()> {
    let format = Format::of(&path).with_context(|| format!("cannot read {}", path.display()))?;
    match format {
        Some(format) => {
            let partitions = hive::partitions(root, &path);
            files.push(FoundFile { path, format, partitions });
        }
        None => log::debug!("skipping {}: not a table by its name or content", path.display()),
    }
    Ok(())
}

fn one_format(name: &str, files: &[FoundFile]) -> anyhow::Result<()> {
    let Some(first) = files.first() else { return Ok(()) };
    match files.iter().find(|file| file.format.name() != first.format.name()) {
        None => Ok(()),
        Some(other) => bail!(
            "{name} holds both {} ({}) and {} ({}); pick one format with a quoted glob, as in '*.parquet'",
            first.format.name(),
            first.path.display(),
            other.format.name(),
            other.path.display()
        ),
    }
}

/// Returns `; did you mean …?` with a similar name in the same folder.
fn similar(path: &Path) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let names: Vec<String> = fs::read_dir(folder.unwrap_or(Path::new(".")))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    let wanted = path.file_name().unwrap_or_default().to_string_lossy();
    match strait::nearest_name(&wanted, names.iter().map(String::as_str)) {
        Some(name) => format!("; did you mean {}?", path.with_file_name(name).display()),
        None => "; check the path, and quote a glob".to_string(),
    }
}
