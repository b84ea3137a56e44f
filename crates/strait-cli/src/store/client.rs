//! Connections to stores, and the threads that carry out requests.
//!
//! Settings and credentials come from the environment: `AWS_*`, `GOOGLE_*` and `AZURE_*`.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, anyhow};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use tokio::runtime::{Builder, Handle, Runtime};

use super::failure::explain_settings;
use super::{Kind, Location};

/// A connection to one bucket, container or server.
pub(super) type Store = Arc<dyn ObjectStore>;

/// The threads that send and receive. Requests mostly wait.
const THREADS: usize = 2;

/// A connection is made within this time.
const CONNECTING: Duration = Duration::from_secs(5);

/// The variable that sets the time in which a store must answer, in seconds.
pub(super) const TIMEOUT: &str = "STRAIT_STORE_TIMEOUT";

/// The default of that time.
const DEFAULT_TIMEOUT: u64 = 30;

/// A part of an upload may take this many times the timeout, because several parts share a link that may be slow.
pub(super) const SENDING: u32 = 4;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Bytes of objects. `object.rs` checks each answer, repeats failed requests, and gives up if no bytes come.
    Reading,
    /// Descriptions and listings. The connection repeats failed requests itself.
    Describing,
    /// Uploads. The connection repeats failed requests itself.
    Writing,
    /// Ranges of bytes for another reader. The connection repeats failed requests itself.
    #[cfg(feature = "sql")]
    Scanning,
}

/// Returns the time in which a store must answer a request.
pub(super) fn timeout() -> Duration {
    let set = std::env::var(TIMEOUT).ok().and_then(|seconds| seconds.trim().parse().ok());
    Duration::from_secs(set.unwrap_or(DEFAULT_TIMEOUT).clamp(1, 3600))
}

/// Returns the threads that carry out requests. The first call starts them.
pub(super) fn runtime() -> anyhow::Result<&'static Handle> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let make = || {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("strait-store").enable_all();
        builder.build().map_err(|error| error.to_string())
    };
    match RUNTIME.get_or_init(make) {
        Ok(runtime) => Ok(runtime.handle()),
        Err(why) => Err(anyhow!("cannot start threads for requests: {why}")),
    }
}

/// Carries out a request, and waits for its end.
pub(super) fn wait<T>(request: impl Future<Output = T>) -> anyhow::Result<T> {
    Ok(runtime()?.block_on(request))
}

/// Connects to the store of a location. This sends no request.
pub(super) fn connect(location: &Location, purpose: Purpose) -> anyhow::Result<Store> {
    let built = match location.kind().context("an unknown store")? {
        Kind::S3 => s3(location, purpose),
        Kind::Google => google(location, purpose),
        Kind::Azure => azure(location, purpose),
        Kind::Web => web(location, purpose),
    };
    built.map_err(|error| anyhow!("cannot use {location}: {}", explain_settings(&error, location)))
}

/// Connects to the store of a location, for a reader that does not use this module. This sends no request.
#[cfg(feature = "sql")]
pub(crate) fn client(location: &Location) -> anyhow::Result<Arc<dyn ObjectStore>> {
    connect(location, Purpose::Scanning)
}

/// The times in which a connection must be made, and a request must end.
fn timeouts(purpose: Purpose) -> [(ClientConfigKey, String); 2] {
    let connecting = CONNECTING.min(timeout());
    let request = match purpose {
        // A request may last as long as bytes come.
        Purpose::Reading => Duration::from_secs(24 * 3600),
        Purpose::Describing => timeout(),
        Purpose::Writing => SENDING * timeout(),
        #[cfg(feature = "sql")]
        Purpose::Scanning => SENDING * timeout(),
    };
    let seconds = |time: Duration| format!("{} seconds", time.as_secs());
    [
        (ClientConfigKey::ConnectTimeout, seconds(connecting)),
        (ClientConfigKey::Timeout, seconds(request)),
    ]
}

fn retries(purpose: Purpose) -> RetryConfig {
    let max_retries = if purpose == Purpose::Reading { 0 } else { 3 };
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(2),
        base: 4.0,
    };
    RetryConfig { backoff, max_retries, retry_timeout: timeout() }
}

fn s3(location: &Location, purpose: Purpose) -> object_store::Result<Store> {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(&location.authority);
    for (key, value) in timeouts(purpose) {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
    }
    Ok(Arc::new(builder.with_retry(retries(purpose)).build()?))
}

fn google(location: &Location, purpose: Purpose) -> object_store::Result<Store> {
    let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&location.authority);
    for (key, value) in timeouts(purpose) {
        builder = builder.with_config(GoogleConfigKey::Client(key), value);
    }
    Ok(Arc::new(builder.with_retry(retries(purpose)).build()?))
}

fn azure(location: &Location, purpose: Purpose) -> object_store::Result<Store> {
    let mut builder = MicrosoftAzureBuilder::from_env().with_url(location.with_key("").address());
    for (key, value) in timeouts(purpose) {
        builder = builder.with_config(AzureConfigKey::Client(key), value);
    }
    Ok(Arc::new(builder.with_retry(retries(purpose)).build()?))
}

fn web(location: &Location, purpose: Purpose) -> object_store::Result<Store> {
    let mut builder = HttpBuilder::new().with_url(location.address());
    for (key, value) in timeouts(purpose) {
        builder = builder.with_config(key, value);
    }
    let builder = builder.with_config(ClientConfigKey::AllowHttp, "true");
    Ok(Arc::new(builder.with_retry(retries(purpose)).build()?))
}
