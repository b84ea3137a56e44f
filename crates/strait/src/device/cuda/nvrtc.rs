//! NVRTC, NVIDIA's compiler as a library. It is found at run time, so that no toolkit is needed to build
//! this crate.
//!
//! `STRAIT_NVRTC` names the file to use; then nothing else is tried. Otherwise the search order is: the
//! system's search path, the toolkit's usual folder, and the folders where pip and conda install it.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::library::Library;
use crate::error::{Error, Result};

/// The environment variable that names the library.
const VARIABLE: &str = "STRAIT_NVRTC";
/// The names to ask the system's linker for, newest first.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// Where the CUDA toolkit installs it.
const TOOLKIT: [&str; 2] = ["/usr/local/cuda/lib64/libnvrtc.so", "/opt/cuda/lib64/libnvrtc.so"];
/// Where Python packages install it, below `site-packages`.
const PACKAGES: [&str; 2] =
    ["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"];

/// The compiler of the GPU kernels. Holding it proves that it was found.
///
/// ```
/// match strait::gpu::Nvrtc::find() {
///     Ok(compiler) => println!("NVRTC {:?}", compiler.version()),
///     Err(why) => println!("{why}"),
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Nvrtc {
    version: (u32, u32),
    path: Option<PathBuf>,
    functions: Functions,
}

type Program = *mut c_void;

/// The functions that are called. All except `explain` return zero for success.
#[derive(Debug, Clone, Copy)]
struct Functions {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    explain: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// A source to compile.
pub(super) struct Source<'a> {
    /// The name in the compiler's messages.
    pub(super) name: &'a str,
    pub(super) text: &'a str,
    /// The names, as in `#include "name"`, and the texts.
    pub(super) headers: &'a [(&'a str, &'a str)],
}

impl Nvrtc {
    /// Looks for the compiler once, and keeps the answer. If there is none, the error says where it was
    /// looked for and what to install.
    pub fn find() -> Result<Nvrtc> {
        static FOUND: OnceLock<Result<Nvrtc>> = OnceLock::new();
        FOUND.get_or_init(search).clone()
    }

    /// Returns its version, as in 13.0.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Returns the file it was loaded from, if known.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Compiles to machine code. If that fails, returns the compiler's messages.
    pub(super) fn compile(
        &self,
        source: &Source<'_>,
        options: &[String],
    ) -> Result<Vec<u8>, String> {
        let zero = |_| "a zero byte in a source or an option".to_string();
        let strings = |texts: &mut dyn Iterator<Item = &str>| {
            texts.map(CString::new).collect::<Result<Vec<_>, _>>().map_err(zero)
        };
        let name = CString::new(source.name).map_err(zero)?;
        let text = CString::new(source.text).map_err(zero)?;
        let header_names = strings(&mut source.headers.iter().map(|header| header.0))?;
        let header_texts = strings(&mut source.headers.iter().map(|header| header.1))?;
        let options = strings(&mut options.iter().map(String::as_str))?;
        let (header_names, header_texts, options) =
            (pointers(&header_names), pointers(&header_texts), pointers(&options));

        let mut program = std::ptr::null_mut();
        // SAFETY: strings that end with zero bytes and live until the call returns; the call copies them.
        let code = unsafe {
            (self.functions.create)(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                header_names.len() as c_int,
                header_texts.as_ptr(),
                header_names.as_ptr(),
            )
        };
        if code != 0 {
            return Err(self.explain(code));
        }
        let program = Running { program, functions: self.functions };
        // SAFETY: an existing program, and strings as above.
        let code = unsafe {
            (self.functions.compile)(program.program, options.len() as c_int, options.as_ptr())
        };
        if code != 0 {
            let log = program.read(self.functions.log_size, self.functions.log);
            let log =
                log.map(|log| String::from_utf8_lossy(&log).trim_end_matches('\0').to_string());
            return Err(log.filter(|log| !log.is_empty()).unwrap_or_else(|| self.explain(code)));
        }
        program
            .read(self.functions.cubin_size, self.functions.cubin)
            .filter(|cubin| !cubin.is_empty())
            .ok_or_else(|| "it compiled, but gave no code".to_string())
    }

    fn explain(&self, code: c_int) -> String {
        // SAFETY: takes any code, and returns a string of the library that ends with a zero byte.
        let text = unsafe { (self.functions.explain)(code) };
        if text.is_null() {
            return format!("NVRTC's error {code}");
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// A program that is destroyed when dropped.
struct Running {
    program: Program,
    functions: Functions,
}

impl Running {
    /// Reads a text. One function returns its size, the other its content.
    fn read(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        content: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Option<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: a live program; the call writes a size.
        if unsafe { size(self.program, &mut bytes) } != 0 {
            return None;
        }
        let mut buffer = vec![0u8; bytes];
        // SAFETY: the buffer has as many bytes as the size function asked for.
        (unsafe { content(self.program, buffer.as_mut_ptr().cast()) } == 0).then_some(buffer)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: created by `create`, and destroyed once.
        unsafe { (self.functions.destroy)(&mut self.program) };
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

/// Tries the places in order.
fn search() -> Result<Nvrtc> {
    let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
    let places = match &named {
        Some(name) => vec![name.clone()],
        None => places(),
    };
    let mut failure = String::new();
    for place in &places {
        match load(place) {
            Ok(found) => {
                log::debug!("NVRTC {}.{} from {place:?}", found.version.0, found.version.1);
                return Ok(found);
            }
            Err(why) => {
                log::trace!("no NVRTC in {place:?}: {why}");
                // A missing file is normal. A file that does not load is worth reporting.
                if named.is_some() {
                    failure = format!(" at the path in {VARIABLE} ({why})");
                } else if Path::new(place).is_file() {
                    failure = format!(" in a form that can be loaded ({why})");
                }
            }
        }
    }
    let looked = places.iter().map(|place| place.to_string_lossy().into_owned()).collect();
    Err(Error::NoCompiler { looked, failure })
}

fn places() -> Vec<OsString> {
    let mut places: Vec<OsString> = NAMES.iter().chain(&TOOLKIT).map(OsString::from).collect();
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = set("HOME").map(|home| Path::new(&home).join(".local"));
    let bases = [set("VIRTUAL_ENV"), set("CONDA_PREFIX")].into_iter().flatten().map(PathBuf::from);
    for base in bases.chain(home).chain([PathBuf::from("/usr/local")]) {
        let library = base.join("lib").join("libnvrtc.so");
        if library.exists() {
            places.push(library.into());
        }
        places.extend(packaged(&base.join("lib")));
    }
    places
}

/// Returns the libraries in the Python packages below `lib`, but only existing files: there are too many
/// possible places to list them all in a message.
fn packaged(lib: &Path) -> Vec<OsString> {
    let Ok(entries) = std::fs::read_dir(lib) else { return Vec::new() };
    let mut pythons: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| entry.path())
        .collect();
    pythons.sort();
    let packages = pythons.iter().flat_map(|python| {
        ["site-packages", "dist-packages"].map(|packages| python.join(packages))
    });
    let files = packages.flat_map(|folder| PACKAGES.map(|file| folder.join(file)));
    files.filter(|file| file.is_file()).map(OsString::from).collect()
}

fn load(place: &OsStr) -> Result<Nvrtc, String> {
    // SAFETY: NVRTC may be loaded into any process.
    let library = unsafe { Library::open(place) }?;
    /// Looks up a function. Its type is that of the field or variable it is assigned to.
    macro_rules! function {
        ($name:literal) => {
            // SAFETY: the type is the one in nvrtc.h.
            unsafe { library.function($name) }
                .ok_or_else(|| format!("it has no {:?}; a newer one is needed", $name))?
        };
    }
    let tell: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = function!(c"nvrtcVersion");
    let functions = Functions {
        create: function!(c"nvrtcCreateProgram"),
        compile: function!(c"nvrtcCompileProgram"),
        log_size: function!(c"nvrtcGetProgramLogSize"),
        log: function!(c"nvrtcGetProgramLog"),
        cubin_size: function!(c"nvrtcGetCUBINSize"),
        cubin: function!(c"nvrtcGetCUBIN"),
        destroy: function!(c"nvrtcDestroyProgram"),
        explain: function!(c"nvrtcGetErrorString"),
    };
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the call writes two numbers.
    if unsafe { tell(&mut major, &mut minor) } != 0 {
        return Err("it does not tell its version".to_string());
    }
    let path = library.path(c"nvrtcVersion");
    if let Some(folder) = path.as_deref().and_then(Path::parent) {
        load_builtins(folder, major);
    }
    Ok(Nvrtc { version: (major as u32, minor as u32), path, functions })
}

/// Loads the library that NVRTC later opens by name, from the same folder as NVRTC. The system does not
/// search that folder. If the library is not there, the system's own search may still find one.
fn load_builtins(folder: &Path, major: c_int) {
    let start = format!("libnvrtc-builtins.so.{major}.");
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&start) {
            // SAFETY: a part of NVRTC.
            let loaded = unsafe { Library::open(entry.path().as_os_str()) };
            if let Err(why) = loaded {
                log::debug!("{}: {why}", entry.path().display());
            }
        }
    }
}
