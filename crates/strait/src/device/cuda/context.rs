//! The driver's state for a GPU: one per GPU and process. It is created on first use and kept to the end, so
//! that later joins wait neither for the context nor for kernels to be loaded.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys;

use super::compile;
use super::error::check;
use crate::device::gpu::{Architecture, Gpu};
use crate::error::Result;
use crate::schedule::lock;
use crate::word::Width;

static OPEN: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());

/// A GPU's primary context, and the modules loaded into it.
pub(super) struct Context {
    raw: sys::CUcontext,
    device: sys::CUdevice,
    architecture: Architecture,
    modules: Mutex<HashMap<(&'static str, Width), Module>>,
}

/// While this lives, a context is the current one of the calling thread. Dropping it restores the previous
/// context, or none. It is not `Send`, because it belongs to its thread.
#[must_use = "the context is current only while this lives"]
pub(super) struct Bound {
    /// The previous context, if it was a different one.
    before: Option<sys::CUcontext>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        // SAFETY: the context that was current before, or null for none.
        if let Err(error) = check(unsafe { sys::cuCtxSetCurrent(before) }, "restoring a context") {
            log::debug!("{error}");
        }
    }
}

/// A loaded module, and the entries that were looked up.
struct Module {
    raw: sys::CUmodule,
    entries: HashMap<String, sys::CUfunction>,
}

// SAFETY: the driver's handles may be used from any thread that has bound the context.
unsafe impl Send for Context {}
// SAFETY: as above; a lock protects the map.
unsafe impl Sync for Context {}

impl Context {
    /// Returns whether the context of a GPU exists already.
    pub(super) fn is_open(gpu: &Gpu) -> bool {
        lock(&OPEN).iter().any(|context| context.device == gpu.device)
    }

    /// Returns the context of a GPU.
    pub(super) fn of(gpu: &Gpu) -> Result<Arc<Context>> {
        let mut open = lock(&OPEN);
        if let Some(context) = open.iter().find(|context| context.device == gpu.device) {
            return Ok(context.clone());
        }
        let mut raw = std::ptr::null_mut();
        // SAFETY: a device of the driver; the call writes a handle, which is never released.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, gpu.device) };
        check(code, "making a context")?;
        let context = Arc::new(Context {
            raw,
            device: gpu.device,
            architecture: gpu.architecture,
            modules: Mutex::default(),
        });
        open.push(context.clone());
        Ok(context)
    }

    /// Makes this the current context of the calling thread until the returned value is dropped. The driver
    /// keeps one current context per thread, and the thread's owner may use a different one.
    pub(super) fn bind(&self) -> Result<Bound> {
        let doing = "binding a context";
        let mut before = std::ptr::null_mut();
        // SAFETY: the call writes a handle.
        check(unsafe { sys::cuCtxGetCurrent(&mut before) }, doing)?;
        if before == self.raw {
            return Ok(Bound { before: None });
        }
        // SAFETY: the context is never released.
        check(unsafe { sys::cuCtxSetCurrent(self.raw) }, doing)?;
        Ok(Bound { before: Some(before) })
    }

    /// Returns an entry of a module for words of this width. The module is compiled and loaded on first use.
    pub(super) fn function(
        &self,
        module: &'static str,
        word: Width,
        entry: &str,
    ) -> Result<sys::CUfunction> {
        let mut modules = lock(&self.modules);
        if let Some(function) = modules.get(&(module, word)).and_then(|m| m.entries.get(entry)) {
            return Ok(*function);
        }
        let _bound = self.bind()?;
        let loaded = match modules.entry((module, word)) {
            std::collections::hash_map::Entry::Occupied(loaded) => loaded.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(self.load(module, word)?)
            }
        };
        let doing = format!("finding entry {entry} of kernel {module}");
        let name = CString::new(entry)
            .map_err(|_| crate::Error::internal(format!("{doing}: a zero byte in its name")))?;
        let mut function = std::ptr::null_mut();
        // SAFETY: a loaded module and a string that ends with a zero byte; the call writes a handle.
        let code = unsafe { sys::cuModuleGetFunction(&mut function, loaded.raw, name.as_ptr()) };
        check(code, &doing)?;
        loaded.entries.insert(entry.to_string(), function);
        Ok(function)
    }

    fn load(&self, module: &'static str, word: Width) -> Result<Module> {
        let cubin = compile::cubin(module, self.architecture, word)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the compiler's complete and checked code; the driver copies it.
        let code = unsafe { sys::cuModuleLoadData(&mut raw, cubin.code.as_ptr().cast()) };
        check(code, &format!("loading kernel {module}"))?;
        Ok(Module { raw, entries: HashMap::new() })
    }
}
