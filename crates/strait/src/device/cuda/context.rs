//! The driver's state for a GPU: one a GPU and process, made on first use and kept to the end, so
//! that joins one after the other do not wait for it, nor for kernels to be loaded, again.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys;

use super::compile;
use super::detect::{Architecture, Gpu};
use super::error::check;
use crate::error::Result;
use crate::schedule::lock;
use crate::word::Width;

static OPEN: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());

/// A GPU's primary context, and what has been loaded into it.
pub(super) struct Context {
    raw: sys::CUcontext,
    device: sys::CUdevice,
    architecture: Architecture,
    modules: Mutex<HashMap<(&'static str, Width), Module>>,
}

/// A context that is the calling thread's current one while this lives. Dropping it makes the one before
/// current again, or none where there was none. Not `Send`: it belongs to its thread.
#[must_use = "the context is current only while this lives"]
pub(super) struct Bound {
    /// The context before, where it was another.
    before: Option<sys::CUcontext>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        // SAFETY: the context that was current, or null for none.
        if let Err(error) = check(unsafe { sys::cuCtxSetCurrent(before) }, "restoring a context") {
            log::debug!("{error}");
        }
    }
}

/// A loaded module and the entries that were asked for.
struct Module {
    raw: sys::CUmodule,
    entries: HashMap<String, sys::CUfunction>,
}

// SAFETY: the driver's handles may be used from any thread that has bound the context.
unsafe impl Send for Context {}
// SAFETY: as above; the map has a lock.
unsafe impl Sync for Context {}

impl Context {
    /// The context of a GPU.
    pub(super) fn of(gpu: &Gpu) -> Result<Arc<Context>> {
        let mut open = lock(&OPEN);
        if let Some(context) = open.iter().find(|context| context.device == gpu.device) {
            return Ok(context.clone());
        }
        let mut raw = std::ptr::null_mut();
        // SAFETY: a device of the driver's; writes a handle. It is never released.
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

    /// Makes it the calling thread's current context for as long as what is returned lives. The driver
    /// keeps one for each thread, and the thread may be the caller's, who may use another.
    pub(super) fn bind(&self) -> Result<Bound> {
        let doing = "binding a context";
        let mut before = std::ptr::null_mut();
        // SAFETY: writes a handle.
        check(unsafe { sys::cuCtxGetCurrent(&mut before) }, doing)?;
        if before == self.raw {
            return Ok(Bound { before: None });
        }
        // SAFETY: a context that is never released.
        check(unsafe { sys::cuCtxSetCurrent(self.raw) }, doing)?;
        Ok(Bound { before: Some(before) })
    }

    /// An entry of a module for words of that width: compiled and loaded on first use.
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
            .map_err(|_| crate::Error::Setting(format!("{doing}: a zero byte in its name")))?;
        let mut function = std::ptr::null_mut();
        // SAFETY: a loaded module, a string that ends with a zero; writes a handle.
        let code = unsafe { sys::cuModuleGetFunction(&mut function, loaded.raw, name.as_ptr()) };
        check(code, &doing)?;
        loaded.entries.insert(entry.to_string(), function);
        Ok(function)
    }

    fn load(&self, module: &'static str, word: Width) -> Result<Module> {
        let cubin = compile::cubin(module, self.architecture, word)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: code of the compiler's, whole and checked; the driver copies it.
        let code = unsafe { sys::cuModuleLoadData(&mut raw, cubin.code.as_ptr().cast()) };
        check(code, &format!("loading kernel {module}"))?;
        Ok(Module { raw, entries: HashMap::new() })
    }
}
