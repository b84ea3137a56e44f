//! Gives DataFusion the object stores that `strait join` uses. A store is connected when a statement first needs it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::object_store::ObjectStore;

use super::tables::told;
use crate::store::{Location, client};

/// The stores of a session, by the start of their URLs. Files on disk have the default store.
#[derive(Debug, Default)]
pub(super) struct Stores {
    disk: DefaultObjectStoreRegistry,
    connected: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
}

impl Stores {
    fn connected(&self) -> MutexGuard<'_, HashMap<String, Arc<dyn ObjectStore>>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the location of a store, unless the URL is one of the disk.
fn remote(url: &url::Url) -> Option<Location> {
    Location::parse(url.as_str()).filter(|_| url.scheme() != "file")
}

impl ObjectStoreRegistry for Stores {
    fn register_store(
        &self,
        url: &url::Url,
        store: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore>> {
        match remote(url) {
            Some(location) => self.connected().insert(location.store_url(), store),
            None => self.disk.register_store(url, store),
        }
    }

    fn get_store(&self, url: &url::Url) -> Result<Arc<dyn ObjectStore>> {
        let Some(location) = remote(url) else { return self.disk.get_store(url) };
        location.check(false).map_err(told)?;
        let key = location.store_url();
        if let Some(store) = self.connected().get(&key) {
            return Ok(Arc::clone(store));
        }
        let store = client(&location).map_err(|error| told(format!("{error:#}")))?;
        self.connected().insert(key, Arc::clone(&store));
        Ok::<_, DataFusionError>(store)
    }
}
