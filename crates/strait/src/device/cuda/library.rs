//! Shared libraries that may not be there: opened by name, asked for functions, never closed.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// An open library.
#[derive(Debug, Clone, Copy)]
pub(super) struct Library(*mut libc::c_void);

// SAFETY: a handle that is never closed; looking functions up is safe from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens a library by name, looked for as the system does, or by path; else says why not.
    ///
    /// # Safety
    /// The library's initialisers run: it has to be one that may be loaded into any process.
    pub(super) unsafe fn open(name: &OsStr) -> Result<Library, String> {
        let name = CString::new(name.as_bytes()).map_err(|_| "a zero byte in its name")?;
        // SAFETY: a string that ends with a zero; the caller vouches for the library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after a failure it is null or a string that lives until the next call here.
            let message = unsafe { libc::dlerror() };
            if message.is_null() {
                return Err("it cannot be opened".to_string());
            }
            // SAFETY: not null, and ends with a zero.
            return Err(unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned());
        }
        Ok(Library(handle))
    }

    /// The function of that name.
    ///
    /// # Safety
    /// `F` is a function pointer of the function's type.
    pub(super) unsafe fn function<F: Copy>(self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut libc::c_void>()) };
        // SAFETY: an open library and a string that ends with a zero.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: an address of a function, as large as `F`, whose type the caller vouches for.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
    }

    /// The file that has the function of that name.
    pub(super) fn path(self, name: &CStr) -> Option<PathBuf> {
        // SAFETY: an open library and a string that ends with a zero.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: plain integers and pointers, for which zeros are a value.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: looks the address up, whatever it is, and fills the structure in.
        let known = unsafe { libc::dladdr(address, &mut found) } != 0;
        if !known || found.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the name of a loaded file, kept as long as the file is loaded.
        let name = unsafe { CStr::from_ptr(found.dli_fname) };
        Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }
}
