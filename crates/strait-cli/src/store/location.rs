//! URLs of objects, folders and globs: parsed and checked, without any request.

use std::fmt;

/// Messages about a missing feature say how to get it.
const FEATURE: &str = "this build of strait has no object stores; build it with \
     `cargo build --release --features object-stores`, or install it with \
     `cargo install --path crates/strait-cli --features object-stores`";

/// The characters that make a URL a glob.
pub(crate) const WILD: [char; 3] = ['*', '?', '['];

/// The URL of an object, a folder or a glob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    scheme: String,
    /// The bucket or container, or the host of a web server.
    pub(super) authority: String,
    /// The key of the object, without a slash at the start.
    pub(super) key: String,
    /// The part of a web address after the question mark. It may be a signature, so no message shows it.
    query: Option<String>,
}

/// The store that a scheme stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    S3,
    Google,
    Azure,
    Web,
}

impl Location {
    /// Parses a URL. Returns `None` if the text is a path.
    pub(crate) fn parse(text: &str) -> Option<Location> {
        let (scheme, rest) = text.split_once("://")?;
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(is_scheme)
        {
            return None;
        }
        let scheme = scheme.to_ascii_lowercase();
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        let (mut key, mut query) = (key.to_string(), None);
        if Kind::of(&scheme) == Some(Kind::Web) {
            let address = key.split('#').next().unwrap_or_default().to_string();
            query = address.split_once('?').map(|(_, query)| query.to_string());
            key = address.split('?').next().unwrap_or_default().to_string();
        }
        Some(Location { scheme, authority: authority.to_string(), key, query })
    }

    /// The store, if the scheme is known.
    pub(crate) fn kind(&self) -> Option<Kind> {
        Kind::of(&self.scheme)
    }

    /// Rejects a URL that cannot be read, or cannot be written. Returns what is wrong with it.
    pub(crate) fn check(&self, is_output: bool) -> Result<(), String> {
        let Some(kind) = self.kind() else {
            let advice = match self.scheme.as_str() {
                "file" => "write the path alone",
                "s3a" | "s3n" => "write s3://",
                "gcs" => "write gs://",
                "wasb" | "wasbs" => "write abfss://",
                _ => "use s3://, gs://, az://, abfs://, abfss://, http:// or https://",
            };
            return Err(format!("{self}: strait does not know {}://; {advice}", self.scheme));
        };
        if kind == Kind::Web && is_output {
            return Err(format!(
                "{self} cannot be written: http:// and https:// are for input; write to a file, or to s3://, gs:// or az://"
            ));
        }
        if cfg!(not(feature = "object-stores")) {
            return Err(format!("{self} cannot be used: {FEATURE}"));
        }
        if self.authority.is_empty() {
            return Err(format!("{self} names no {}", kind.container()));
        }
        if kind == Kind::Web && self.authority.contains('@') {
            return Err(format!(
                "{self} has a user name or a password, which strait does not send; remove it"
            ));
        }
        if (kind == Kind::Web || is_output) && self.is_folder() {
            return Err(format!("{self} names a folder; name one file"));
        }
        if is_output && self.key.contains(WILD) {
            return Err(format!("{self} is a glob; name one file"));
        }
        Ok(())
    }

    /// Whether the URL names all objects below it.
    pub(crate) fn is_folder(&self) -> bool {
        self.key.is_empty() || self.key.ends_with('/')
    }

    /// Whether the URL is an address of a web server.
    #[cfg(all(feature = "object-stores", feature = "sql"))]
    pub(crate) fn is_web(&self) -> bool {
        self.kind() == Some(Kind::Web)
    }

    /// The URL of the store alone.
    #[cfg(all(feature = "object-stores", feature = "sql"))]
    pub(crate) fn store_url(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }

    /// Whether the URL has wildcards. In web addresses there are none.
    pub(crate) fn is_glob(&self) -> bool {
        self.kind() != Some(Kind::Web) && self.key.contains(WILD)
    }
}

// Only requests need these.
#[cfg_attr(not(feature = "object-stores"), allow(dead_code))]
impl Location {
    /// The location of another object in the same store.
    pub(super) fn with_key(&self, key: &str) -> Location {
        Location { key: key.to_string(), ..self.clone() }
    }

    /// The whole URL, for requests. It may have a signature, so it must not be shown.
    pub(super) fn address(&self) -> String {
        let query = self.query.as_ref().map_or(String::new(), |query| format!("?{query}"));
        format!("{}://{}/{}{query}", self.scheme, self.authority, self.key)
    }
}

/// Shows a location without anything that may be a secret.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = match self.kind() {
            // An Azure container may be written as container@account.
            Some(Kind::Azure) => &*self.authority,
            _ => self.authority.rsplit('@').next().unwrap_or_default(),
        };
        write!(f, "{}://{authority}/{}", self.scheme, self.key)
    }
}

impl Kind {
    fn of(scheme: &str) -> Option<Kind> {
        Some(match scheme {
            "s3" => Kind::S3,
            "gs" => Kind::Google,
            "az" | "abfs" | "abfss" => Kind::Azure,
            "http" | "https" => Kind::Web,
            _ => return None,
        })
    }

    /// The word for the thing that objects are in.
    pub(super) fn container(self) -> &'static str {
        match self {
            Kind::S3 | Kind::Google => "bucket",
            Kind::Azure => "container",
            Kind::Web => "server",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Location {
        Location::parse(text).unwrap()
    }

    #[test]
    fn paths_are_no_urls() {
        for text in ["a.csv", "/a/b.csv", "C:\\a.csv", "a:b", "./s3://a", "", "://x"] {
            assert_eq!(Location::parse(text), None, "{text}");
        }
    }

    #[test]
    fn urls_have_a_store_and_a_key() {
        let s3 = of("s3://bucket/a b/c%20.parquet");
        assert_eq!(
            (s3.kind(), &*s3.authority, &*s3.key),
            (Some(Kind::S3), "bucket", "a b/c%20.parquet")
        );
        assert!(of("gs://bucket").is_folder() && of("az://c/a/").is_folder());
        assert!(of("s3://b/a?.csv").is_glob() && !of("https://h/a.csv?b=*").is_glob());
        assert_eq!(
            of("abfss://c@account.dfs.core.windows.net/x").authority,
            "c@account.dfs.core.windows.net"
        );
        assert_eq!(of("ftp://h/x").kind(), None);
    }

    #[test]
    fn signatures_and_passwords_are_not_shown() {
        let signed = of("https://user:pass@host/a.csv?sig=secret#x");
        assert_eq!(signed.to_string(), "https://host/a.csv");
        assert!(signed.address().ends_with("@host/a.csv?sig=secret"));
        assert!(!signed.check(false).unwrap_err().contains("pass@"));
    }

    #[test]
    #[cfg(feature = "object-stores")]
    fn outputs_are_single_objects() {
        assert_eq!(of("s3://b/x.csv").check(true), Ok(()));
        for text in ["s3://b/", "s3://b/*.csv", "https://h/x.csv", "s3:///x.csv", "ftp://h/x.csv"] {
            assert!(of(text).check(true).is_err(), "{text}");
        }
        assert_eq!(of("s3://b/*.csv").check(false), Ok(()));
        assert!(of("https://h/a/").check(false).is_err());
    }

    #[test]
    #[cfg(not(feature = "object-stores"))]
    fn the_feature_is_named() {
        assert!(of("s3://b/x.csv").check(false).unwrap_err().contains("--features object-stores"));
    }
}
