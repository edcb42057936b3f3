//! libpcap's functions on a capture of weir's; each does what the manual page of its name says.

use crate::capture::Capture;
use crate::error::Failure;
use crate::functions::real;
use crate::live::{IN, Live, OUT};
use crate::types::{
    BpfProgram, Dumper, ERROR, ERROR_TSTAMP_PRECISION_NOTSUP, Handler, Pcap, PktHdr, Stat,
    TSTAMP_HOST, TSTAMP_PRECISION_MICRO, TSTAMP_PRECISION_NANO, WARNING_TSTAMP_TYPE_NOTSUP,
};
use libc::{FILE, c_char, c_int, c_uchar, c_uint, c_void, size_t};
use std::ffi::CStr;
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::Relaxed;
use weir_filter::lang::cbpf::INSNS_MAX;

/// weir's version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

type Result<T> = std::result::Result<T, c_int>;

/// A result as C has it.
fn status(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|status| status)
}

/// Of an active capture.
fn active(capture: &Capture, value: impl FnOnce(&Live) -> c_int) -> c_int {
    status(capture.live().map(value))
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident($value:ident, $settings:ident) $change:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) unsafe fn $name(capture: &Capture, $value: c_int) -> c_int {
            capture.set(|$settings| $change)
        }
    )*};
}

settings! {
    pcap_set_snaplen(value, settings) settings.snaplen = value;
    pcap_set_timeout(value, settings) settings.milliseconds = value;
    pcap_set_buffer_size(value, settings) settings.buffer = value;
    pcap_set_immediate_mode(value, settings) settings.immediate = value != 0;
    pcap_set_rfmon(value, settings) settings.rfmon = value != 0;
    /// A port receives what its interface does: promiscuous mode is the administrator's.
    pcap_set_promisc(_value, _settings) ();
    /// A port receives frames of all protocols, for its filter to choose from.
    pcap_set_protocol_linux(_value, _settings) ();
}

pub(crate) unsafe fn pcap_set_tstamp_precision(capture: &Capture, precision: c_int) -> c_int {
    if ![TSTAMP_PRECISION_MICRO, TSTAMP_PRECISION_NANO].contains(&precision) {
        return ERROR_TSTAMP_PRECISION_NOTSUP;
    }
    capture.set(|settings| settings.precision = precision)
}

pub(crate) unsafe fn pcap_set_tstamp_type(capture: &Capture, kind: c_int) -> c_int {
    match capture.set(|_| ()) {
        0 if kind != TSTAMP_HOST => WARNING_TSTAMP_TYPE_NOTSUP,
        status => status,
    }
}

pub(crate) unsafe fn pcap_get_tstamp_precision(capture: &Capture) -> c_int {
    capture.settings().precision
}

pub(crate) unsafe fn pcap_activate(capture: &Capture) -> c_int {
    capture.activate()
}

pub(crate) unsafe fn pcap_can_set_rfmon(_: &Capture) -> c_int {
    0
}

pub(crate) unsafe fn pcap_breakloop(capture: &Capture) {
    if let Ok(live) = capture.live() {
        live.break_loop();
    }
}

pub(crate) unsafe fn pcap_bufsize(capture: &Capture) -> c_int {
    active(capture, |live| live.active.queue)
}

pub(crate) unsafe fn pcap_datalink(capture: &Capture) -> c_int {
    active(capture, |live| live.active.linktype)
}

pub(crate) unsafe fn pcap_datalink_ext(capture: &Capture) -> c_int {
    active(capture, |live| live.active.linktype)
}

pub(crate) unsafe fn pcap_snapshot(capture: &Capture) -> c_int {
    active(capture, |live| live.active.snaplen)
}

pub(crate) unsafe fn pcap_is_swapped(capture: &Capture) -> c_int {
    active(capture, |_| 0)
}

pub(crate) unsafe fn pcap_major_version(capture: &Capture) -> c_int {
    active(capture, |_| 2)
}

pub(crate) unsafe fn pcap_minor_version(capture: &Capture) -> c_int {
    active(capture, |_| 4)
}

pub(crate) unsafe fn pcap_file(_: &Capture) -> *mut FILE {
    null_mut()
}

pub(crate) unsafe fn pcap_geterr(capture: &Capture) -> *mut c_char {
    capture.error.as_ptr()
}

pub(crate) unsafe fn pcap_perror(capture: &Capture, prefix: *const c_char) {
    // SAFETY: the caller's C string.
    let prefix = unsafe { CStr::from_ptr(prefix) }.to_string_lossy();
    eprintln!("{prefix}: {}", capture.error.to_text());
}

/// Compiles and writes files as the system's library does for such a link type and snap length.
fn by_dead<T>(capture: &Capture, missing: T, call: impl FnOnce(*mut Pcap) -> (T, bool)) -> T {
    let Ok(live) = capture.live() else {
        return missing;
    };
    let (result, is_good) = call(live.dead.pcap());
    if !is_good {
        // SAFETY: a handle of the system's, and its C string.
        let error = unsafe { CStr::from_ptr(real::pcap_geterr(live.dead.pcap())) };
        capture.error.set(&error.to_string_lossy());
    }
    result
}

pub(crate) unsafe fn pcap_compile(
    capture: &Capture,
    program: *mut BpfProgram,
    text: *const c_char,
    optimize: c_int,
    netmask: c_uint,
) -> c_int {
    by_dead(capture, ERROR, |dead| {
        // SAFETY: the caller's arguments, and a handle of the system's.
        let result = unsafe { real::pcap_compile(dead, program, text, optimize, netmask) };
        (result, result == 0)
    })
}

pub(crate) unsafe fn pcap_dump_open(capture: &Capture, path: *const c_char) -> *mut Dumper {
    by_dead(capture, null_mut(), |dead| {
        // SAFETY: as in `pcap_compile`.
        let file = unsafe { real::pcap_dump_open(dead, path) };
        (file, !file.is_null())
    })
}

pub(crate) unsafe fn pcap_dump_open_append(capture: &Capture, path: *const c_char) -> *mut Dumper {
    by_dead(capture, null_mut(), |dead| {
        // SAFETY: as in `pcap_compile`.
        let file = unsafe { real::pcap_dump_open_append(dead, path) };
        (file, !file.is_null())
    })
}

pub(crate) unsafe fn pcap_dump_fopen(capture: &Capture, file: *mut FILE) -> *mut Dumper {
    by_dead(capture, null_mut(), |dead| {
        // SAFETY: as in `pcap_compile`.
        let file = unsafe { real::pcap_dump_fopen(dead, file) };
        (file, !file.is_null())
    })
}

pub(crate) unsafe fn pcap_list_datalinks(capture: &Capture, to: *mut *mut c_int) -> c_int {
    by_dead(capture, crate::types::ERROR_NOT_ACTIVATED, |dead| {
        // SAFETY: as in `pcap_compile`.
        let result = unsafe { real::pcap_list_datalinks(dead, to) };
        (result, result >= 0)
    })
}

pub(crate) unsafe fn pcap_set_datalink(capture: &Capture, linktype: c_int) -> c_int {
    active(capture, |live| {
        if linktype == live.active.linktype {
            return 0;
        }
        capture.failed(&Failure::new(format!(
            "link type {linktype} is not one of this device, which has {} alone",
            live.active.linktype
        )))
    })
}

pub(crate) unsafe fn pcap_list_tstamp_types(_: &Capture, to: *mut *mut c_int) -> c_int {
    // What pcap_free_tstamp_types frees.
    // SAFETY: a size.
    let list: *mut c_int = unsafe { libc::malloc(size_of::<c_int>()) }.cast();
    if list.is_null() {
        return ERROR;
    }
    // SAFETY: room for a number, and the caller's room for a pointer.
    unsafe {
        list.write(TSTAMP_HOST);
        to.write(list);
    }
    1
}

pub(crate) unsafe fn pcap_get_selectable_fd(capture: &Capture) -> c_int {
    let Ok(live) = capture.live() else {
        return -1;
    };
    let fd = live.selectable().map(AsRawFd::as_raw_fd);
    fd.unwrap_or_else(|failure| capture.failed(&failure))
}

pub(crate) unsafe fn pcap_fileno(capture: &Capture) -> c_int {
    // SAFETY: nothing is asked for.
    unsafe { pcap_get_selectable_fd(capture) }
}

pub(crate) unsafe fn pcap_get_required_select_timeout(_: &Capture) -> *const libc::timeval {
    null()
}

pub(crate) unsafe fn pcap_getnonblock(capture: &Capture, errbuf: *mut c_char) -> c_int {
    match capture.live() {
        Ok(live) => live.nonblock.load(Relaxed).into(),
        Err(status) => {
            // SAFETY: the caller's buffer of libpcap's size, or null.
            unsafe { crate::error::write(errbuf, &capture.error.to_text()) };
            status
        }
    }
}

pub(crate) unsafe fn pcap_setnonblock(capture: &Capture, on: c_int, _: *mut c_char) -> c_int {
    match capture.live() {
        Ok(live) => {
            live.nonblock.store(on != 0, Relaxed);
            0
        }
        Err(_) => capture.set(|settings| settings.nonblock = on != 0),
    }
}

pub(crate) unsafe fn pcap_setdirection(capture: &Capture, direction: c_uint) -> c_int {
    active(capture, |live| {
        if direction > IN.max(OUT) {
            let error = format!("{direction} is no direction: give 0 (both), {IN} or {OUT}");
            return capture.failed(&Failure::new(error));
        }
        live.direction.store(direction, Relaxed);
        0
    })
}

pub(crate) unsafe fn pcap_setfilter(capture: &Capture, program: *mut BpfProgram) -> c_int {
    active(capture, |live| {
        // SAFETY: the caller's program, or null.
        let Some(program) = (unsafe { program.as_ref() }) else {
            return capture.failed(&Failure::new("no filter specified"));
        };
        let len = program.len as usize;
        if len > INSNS_MAX || program.insns.is_null() {
            let error = format!("a filter of {len} instructions: there may be 1 to {INSNS_MAX}");
            return capture.failed(&Failure::new(error));
        }
        // SAFETY: the program's instructions, which libpcap lays out as the kernel does.
        let insns = unsafe { std::slice::from_raw_parts(program.insns, len) };
        let set = live.set_filter(insns);
        set.map_or_else(|failure| capture.failed(&failure), |()| 0)
    })
}

/// Reads with a C function as receiver.
///
/// # Safety
/// The function may be called with `user`.
unsafe fn read(
    capture: &Capture,
    count: c_int,
    forever: bool,
    handler: Handler,
    user: *mut c_uchar,
) -> c_int {
    let count = usize::try_from(count).ok().filter(|count| *count > 0);
    active(capture, |live| {
        let read = live.read(count, forever, |header, bytes| {
            // SAFETY: the caller's promise; header and bytes live during the call.
            unsafe { handler(user, header, bytes.as_ptr()) };
        });
        match read {
            Ok(_) if forever => 0,
            Ok(frames) => c_int::try_from(frames).unwrap_or(c_int::MAX),
            Err(failure) => capture.failed(&failure),
        }
    })
}

pub(crate) unsafe fn pcap_dispatch(
    capture: &Capture,
    count: c_int,
    handler: Handler,
    user: *mut c_uchar,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { read(capture, count, false, handler, user) }
}

pub(crate) unsafe fn pcap_loop(
    capture: &Capture,
    count: c_int,
    handler: Handler,
    user: *mut c_uchar,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { read(capture, count, true, handler, user) }
}

pub(crate) unsafe fn pcap_next_ex(
    capture: &Capture,
    header: *mut *const PktHdr,
    packet: *mut *const c_uchar,
) -> c_int {
    active(capture, |live| {
        let read = live.read(Some(1), false, |to, bytes| {
            // SAFETY: the caller's room for two pointers.
            unsafe {
                header.write(to);
                packet.write(bytes.as_ptr());
            }
        });
        match read {
            Ok(frames) => c_int::from(frames > 0),
            Err(failure) => capture.failed(&failure),
        }
    })
}

pub(crate) unsafe fn pcap_next(capture: &Capture, to: *mut PktHdr) -> *const c_uchar {
    let (mut header, mut packet) = (null(), null());
    // SAFETY: room for two pointers.
    if unsafe { pcap_next_ex(capture, &raw mut header, &raw mut packet) } != 1 {
        return null();
    }
    // SAFETY: the header of a frame, and the caller's room for one.
    unsafe { to.write(*header) };
    packet
}

pub(crate) unsafe fn pcap_stats(capture: &Capture, to: *mut Stat) -> c_int {
    active(capture, |live| {
        // SAFETY: the caller's room for the counts.
        unsafe { to.write(live.stats()) };
        0
    })
}

pub(crate) unsafe fn pcap_inject(capture: &Capture, packet: *const c_void, len: size_t) -> c_int {
    active(capture, |live| {
        // SAFETY: the caller's bytes.
        let frame = unsafe { std::slice::from_raw_parts(packet.cast::<u8>(), len) };
        match live.send(frame) {
            Ok(()) => c_int::try_from(len).unwrap_or(c_int::MAX),
            Err(failure) => {
                capture.failed(&failure);
                ERROR
            }
        }
    })
}

pub(crate) unsafe fn pcap_sendpacket(
    capture: &Capture,
    packet: *const c_uchar,
    len: c_int,
) -> c_int {
    let len = usize::try_from(len).unwrap_or(0);
    // SAFETY: the caller's bytes.
    unsafe { pcap_inject(capture, packet.cast(), len) }.min(0)
}
