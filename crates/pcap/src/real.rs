//! The system's libpcap, which all but live captures go to.

use crate::types::{Device, Pcap};
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The variable of the environment that names the system's library, for one that is elsewhere.
const VARIABLE: &str = "WEIR_LIBPCAP";

/// Where systems keep it: Debian's folders of each architecture, those of 64-bit systems, others.
const FOLDERS: [&str; 7] = [
    concat!("/usr/lib/", env!("WEIR_TRIPLET")),
    concat!("/lib/", env!("WEIR_TRIPLET")),
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/local/lib",
];
/// Debian's name, and that of libpcap's own build.
const NAMES: [&str; 2] = ["libpcap.so.0.8", "libpcap.so.1"];

/// A library of the dynamic linker's, never closed.
struct Library(*mut c_void);

// SAFETY: the dynamic linker's handles belong to no thread.
unsafe impl Send for Library {}
// SAFETY: likewise.
unsafe impl Sync for Library {}

static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();

/// Where the system's library is, and what it is not: this one, under one of its names.
fn find() -> Result<PathBuf, String> {
    let own = own_file();
    let is_own = |path: &Path| {
        let found = std::fs::metadata(path).ok();
        found.is_some() && found.map(|file| (file.dev(), file.ino())) == own
    };
    if let Some(given) = std::env::var_os(VARIABLE) {
        let given = PathBuf::from(given);
        return if is_own(&given) {
            Err(format!(
                "{VARIABLE} names weir's own library, {}: name the system's",
                given.display()
            ))
        } else {
            Ok(given)
        };
    }
    let places = FOLDERS.map(Path::new).into_iter();
    let mut places = places.flat_map(|folder| NAMES.map(|name| folder.join(name)));
    let found = places.find(|path| path.is_file() && !is_own(path));
    found.ok_or_else(|| {
        format!(
            "weir needs the system's libpcap, which is in none of {}: install it (libpcap0.8), or \
             name it by {VARIABLE}",
            FOLDERS.join(", ")
        )
    })
}

/// The file that this code was loaded from.
fn own_file() -> Option<(u64, u64)> {
    // SAFETY: all bits of the structure may be zero.
    let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here: fn() -> Result<PathBuf, String> = find;
    // SAFETY: the structure is writable; the address is one of this library.
    if unsafe { libc::dladdr(here as *const c_void, &raw mut about) } == 0 {
        return None;
    }
    // SAFETY: the dynamic linker's own name of a loaded file.
    let name = unsafe { CStr::from_ptr(about.dli_fname) };
    let file = std::fs::metadata(OsStr::from_bytes(name.to_bytes())).ok()?;
    Some((file.dev(), file.ino()))
}

fn open() -> Result<Library, String> {
    let path = find()?;
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // Its calls of its own functions stay its own, though this library has them too.
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
    // SAFETY: the name is NUL-terminated; the library is libpcap, which may be loaded at any time.
    let found = unsafe { libc::dlopen(name.as_ptr(), flags) };
    if found.is_null() {
        let at = path.display();
        return Err(format!("cannot load the system's libpcap, {at}"));
    }
    Ok(Library(found))
}

/// A function of the system's library, looked up once.
pub(crate) struct Symbol(AtomicPtr<c_void>);

impl Symbol {
    pub(crate) const fn new() -> Symbol {
        Symbol(AtomicPtr::new(null_mut()))
    }

    /// The function of this name, which ends with a NUL; null, after a message, if there is none.
    pub(crate) fn find(&self, name: &'static str) -> *mut c_void {
        let known = self.0.load(Relaxed);
        if !known.is_null() {
            return known;
        }
        let library = match LIBRARY.get_or_init(open) {
            Ok(library) => library.0,
            Err(error) => {
                eprintln!("weir: {error}");
                return null_mut();
            }
        };
        // SAFETY: a library that is loaded, and a NUL-terminated name.
        let found = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
        if found.is_null() {
            let name = name.trim_end_matches('\0');
            eprintln!("weir: the system's libpcap has no {name}: it is older than 1.10");
        }
        self.0.store(found, Relaxed);
        found
    }
}

/// `pcap_findalldevs` of the system, without what is no network interface.
///
/// # Safety
/// As `pcap_findalldevs`.
pub(crate) unsafe fn interfaces(to: *mut *mut Device, errbuf: *mut c_char) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { crate::functions::real::pcap_findalldevs(to, errbuf) };
    if result != 0 {
        return result;
    }
    let mut others: *mut Device = null_mut();
    let mut link = to;
    loop {
        // SAFETY: a link of the list, which the library has just made and nothing else uses.
        let device = unsafe { *link };
        if device.is_null() {
            break;
        }
        // SAFETY: an item of the list, with a name.
        let (name, next) = unsafe { (CStr::from_ptr((*device).name), &raw mut (*device).next) };
        if crate::device::is_interface(&name.to_string_lossy()) {
            link = next;
            continue;
        }
        // SAFETY: links of the list: the item goes from it to the list of the others.
        unsafe {
            *link = *next;
            *next = others;
        }
        others = device;
    }
    // SAFETY: a list of items that the library made.
    unsafe { crate::functions::real::pcap_freealldevs(others) };
    0
}

/// A handle of the system's library for no device, closed on drop: for what depends on link type
/// and snap length alone.
#[derive(Debug)]
pub(crate) struct Dead(*mut Pcap);

// SAFETY: libpcap's handles belong to no thread; this one is used by one call at a time, but for
// its error message.
unsafe impl Send for Dead {}

impl Dead {
    pub(crate) fn open(linktype: c_int, snaplen: c_int, precision: c_int) -> Option<Dead> {
        let precision = precision.unsigned_abs();
        // SAFETY: numbers alone.
        let found = unsafe {
            crate::functions::real::pcap_open_dead_with_tstamp_precision(
                linktype, snaplen, precision,
            )
        };
        (!found.is_null()).then_some(Dead(found))
    }

    pub(crate) fn pcap(&self) -> *mut Pcap {
        self.0
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        // SAFETY: the library's handle, which is not used again.
        unsafe { crate::functions::real::pcap_close(self.0) };
    }
}
