//! The functions around captures: weir's devices and the system's, opened and closed.

use crate::capture::Capture;
use crate::device::Device;
use crate::error::{c_string, write};
use crate::functions::real;
use crate::types::{self, ERRBUF_SIZE, ERROR, ERROR_NO_SUCH_DEVICE, Pcap};
use crate::{ours, table};
use libc::{c_char, c_int};
use std::ffi::{CStr, CString};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// `pcap_create`.
///
/// # Safety
/// The name is null or a C string; the buffer is libpcap's `errbuf`.
pub(crate) unsafe fn pcap_create(device: *const c_char, errbuf: *mut c_char) -> *mut Pcap {
    let name = if device.is_null() {
        "any".into()
    } else {
        // SAFETY: the caller's promise.
        unsafe { CStr::from_ptr(device) }.to_string_lossy()
    };
    let parsed = match Device::parse(&name) {
        // SAFETY: the caller's promise.
        None if is_of_system(&name) => return unsafe { real::pcap_create(device, errbuf) },
        None => Ok(Device::missing(&name)),
        Some(parsed) => parsed,
    };
    let error = match parsed {
        Err(error) => error,
        Ok(device) => match table::insert(Box::new(Capture::new(device))) {
            Some(handle) => return handle,
            None => format!(
                "more than {} captures in a process: close one first",
                table::CAPTURES_MAX
            ),
        },
    };
    // SAFETY: the caller's promise.
    unsafe { write(errbuf, &error) };
    null_mut()
}

/// Whether a device may be one of the system's library: those with an argument, such as `nflog:5`, are
/// not in its list.
fn is_of_system(name: &str) -> bool {
    if name.contains([':', '/']) {
        return true;
    }
    let mut list = null_mut();
    let mut errbuf = [0; ERRBUF_SIZE];
    // SAFETY: room for a pointer, and for a message.
    let found = unsafe { real::pcap_findalldevs(&raw mut list, errbuf.as_mut_ptr()) };
    if found == ERROR {
        return true;
    }
    let mut at = list;
    let mut is_listed = false;
    // SAFETY: an item of the library's list, or its end.
    while let Some(device) = unsafe { at.as_ref() } {
        // SAFETY: the item's name.
        is_listed |= unsafe { CStr::from_ptr(device.name) }.to_bytes() == name.as_bytes();
        at = device.next;
    }
    // SAFETY: the list is not used again.
    unsafe { real::pcap_freealldevs(list) };
    is_listed
}

/// `pcap_open_live`.
///
/// # Safety
/// As [`pcap_create`].
pub(crate) unsafe fn pcap_open_live(
    device: *const c_char,
    snaplen: c_int,
    promisc: c_int,
    milliseconds: c_int,
    errbuf: *mut c_char,
) -> *mut Pcap {
    // SAFETY: the caller's promise.
    let handle = unsafe { pcap_create(device, errbuf) };
    if handle.is_null() {
        return handle;
    }
    // SAFETY: the handle is new.
    let Some(capture) = (unsafe { table::find(handle) }) else {
        // Not one of weir's devices.
        // SAFETY: the system's handle, which is not used again.
        unsafe { real::pcap_close(handle) };
        // SAFETY: the caller's promise.
        return unsafe { real::pcap_open_live(device, snaplen, promisc, milliseconds, errbuf) };
    };
    let status = capture.set(|settings| {
        settings.snaplen = snaplen;
        settings.milliseconds = milliseconds;
    });
    let status = if status == 0 {
        capture.activate()
    } else {
        status
    };
    let mut text = capture.error.to_text();
    if status >= 0 {
        // As libpcap, an empty text stands for no warning.
        let warning = if status == 0 { "" } else { &text };
        // SAFETY: the caller's promise.
        unsafe { write(errbuf, warning) };
        return handle;
    }
    if status == ERROR_NO_SUCH_DEVICE {
        // As libpcap has it, whose programs may look for these words.
        // SAFETY: C strings of the caller and of the library.
        let (name, words) = unsafe {
            (
                CStr::from_ptr(device),
                CStr::from_ptr(real::pcap_statustostr(status)),
            )
        };
        text = format!(
            "{}: {} ({text})",
            name.to_string_lossy(),
            words.to_string_lossy()
        );
    }
    // SAFETY: the caller's promise.
    unsafe { write(errbuf, &text) };
    // SAFETY: the handle is new, and not used again.
    unsafe { pcap_close(handle) };
    null_mut()
}

/// `pcap_close`.
///
/// # Safety
/// The handle is not in use, and not used again.
pub(crate) unsafe fn pcap_close(handle: *mut Pcap) {
    // SAFETY: the caller's promise.
    if unsafe { table::remove(handle) }.is_none() {
        // SAFETY: likewise; the handle is the system's.
        unsafe { real::pcap_close(handle) };
    }
}

/// `pcap_findalldevs`: the system's devices that ports can be of.
///
/// # Safety
/// As libpcap's.
pub(crate) unsafe fn pcap_findalldevs(to: *mut *mut types::Device, errbuf: *mut c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { crate::real::interfaces(to, errbuf) }
}

/// `pcap_lookupdev`: the first device. As in libpcap, its memory is of the library.
///
/// # Safety
/// As libpcap's.
pub(crate) unsafe fn pcap_lookupdev(errbuf: *mut c_char) -> *mut c_char {
    static NAME: OnceLock<CString> = OnceLock::new();
    let mut list = null_mut();
    // SAFETY: the caller's promise.
    if unsafe { pcap_findalldevs(&raw mut list, errbuf) } == ERROR || list.is_null() {
        // SAFETY: the caller's promise.
        unsafe { write(errbuf, "no suitable device found") };
        return null_mut();
    }
    // SAFETY: an item of a list of the library's, with a name.
    let name = NAME.get_or_init(|| unsafe { CStr::from_ptr((*list).name) }.to_owned());
    // SAFETY: the list is not used again.
    unsafe { real::pcap_freealldevs(list) };
    name.as_ptr().cast_mut()
}

/// `pcap_lib_version`.
///
/// # Safety
/// None.
pub(crate) unsafe fn pcap_lib_version() -> *const c_char {
    static VERSION: OnceLock<CString> = OnceLock::new();
    let version = VERSION.get_or_init(|| {
        // SAFETY: a C string of the library's own.
        let system = unsafe { CStr::from_ptr(real::pcap_lib_version()) };
        let system = system.to_string_lossy();
        c_string(&format!(
            "{system}; live captures by weir {}",
            ours::VERSION
        ))
    });
    version.as_ptr()
}
