//! Shared libraries that may be missing: opened by name, searched for functions, never closed.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// An open library.
#[derive(Debug, Clone, Copy)]
pub(super) struct Library(*mut libc::c_void);

// SAFETY: the handle is never closed, and functions may be looked up from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens a library by path, or by name with the system's search. If that fails, returns the reason.
    ///
    /// # Safety
    /// The library's initialisers run, so it must be a library that may be loaded into any process.
    pub(super) unsafe fn open(name: &OsStr) -> Result<Library, String> {
        let name = CString::new(name.as_bytes()).map_err(|_| "a zero byte in its name")?;
        // SAFETY: the string ends with a zero byte; the caller guarantees that the library may be loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after a failure, this is null or a string that lives until the next call here.
            let message = unsafe { libc::dlerror() };
            if message.is_null() {
                return Err("it cannot be opened".to_string());
            }
            // SAFETY: not null, and ends with a zero byte.
            return Err(unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned());
        }
        Ok(Library(handle))
    }

    /// Returns the function with this name.
    ///
    /// # Safety
    /// `F` must be a function pointer of the function's type.
    pub(super) unsafe fn function<F: Copy>(self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut libc::c_void>()) };
        // SAFETY: an open library, and a string that ends with a zero byte.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: the address of a function, as large as `F`; the caller guarantees the type.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
    }

    /// Returns the file that contains the function with this name.
    pub(super) fn path(self, name: &CStr) -> Option<PathBuf> {
        // SAFETY: an open library, and a string that ends with a zero byte.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: plain integers and pointers, for which zeros are valid.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: looks up any address, and fills in the structure.
        let known = unsafe { libc::dladdr(address, &mut found) } != 0;
        if !known || found.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the name of a loaded file, which lives as long as the file is loaded.
        let name = unsafe { CStr::from_ptr(found.dli_fname) };
        Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }
}
