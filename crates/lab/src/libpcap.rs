//! Loads libpcap at run time.
#![expect(unsafe_code, reason = "a library is loaded, and its initialisers run")]

use libloading::{Error, Library};
use std::ffi::OsStr;

/// Environment variable with the path of another libpcap than the system's.
pub(crate) const VARIABLE: &str = "WEIR_LIBPCAP";

/// How to install libpcap.
pub(crate) const REMEDY: &str = "install libpcap0.8, or set WEIR_LIBPCAP to a libpcap.so";

/// Opens the library that [`VARIABLE`] names, otherwise the system's.
pub(crate) fn open() -> Result<Library, Error> {
    match std::env::var_os(VARIABLE) {
        Some(name) => load(&name),
        None => load("libpcap.so.1".as_ref()).or_else(|_| load("libpcap.so.0.8".as_ref())),
    }
}

fn load(name: &OsStr) -> Result<Library, Error> {
    // SAFETY: the initialisers of a libpcap do nothing beyond setting up its
    // own data.
    unsafe { Library::new(name) }
}
