//! `weir_broker::Port` for C: the functions that `include/weir_port.h` declares and
//! documents. Each calls the Rust function of [`Port`] with the same purpose.
//!
//! | C | Rust |
//! |---|---|
//! | `weir_port_open`, `weir_port_close` | [`Port::on`] and [`Builder::open`](weir_broker::Builder::open), drop |
//! | `weir_port_recv`, `weir_port_wait`, `weir_port_fd` | [`Port::recv_at_most`], [`Port::wait`], [`Port::arm`] |
//! | `weir_port_send`, `weir_port_send_batch` | [`Port::send_batch`] |
//! | `weir_port_set_filter`, `weir_port_counters`, `weir_port_linktype` | [`Port::set_filter`], [`Port::counters`], [`Port::linktype`] |
//!
//! A minimal receiver in C:
//!
//! ```c
//! struct weir_port *port = weir_port_open("eth0", "udp port 53", NULL);
//! struct weir_port_frame frames[64];
//! int count;
//! while ((count = weir_port_recv(port, frames, 64, 1000000)) >= 0)
//!     for (int i = 0; i < count; i++)
//!         use(frames[i].bytes, frames[i].caplen);   /* until the next call */
//! puts(weir_port_error());
//! weir_port_close(port);
//! ```
//!
//! Errors are a negative result or a null pointer, with a message for the thread
//! (`weir_port_error`). A port is locked during each call, but not while it sleeps for
//! frames. A panic ends the process: none unwinds into C.
//!
//! Next: `docs/how-to/ports-in-c.md`, `examples/port_count.c`, and the crate `weir_broker`.

// The C ABI: arguments are the caller's pointers.
#![allow(unsafe_code)]

mod live;

use live::Live;
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::fmt::Display;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{copy_nonoverlapping, null};
use std::time::{Duration, SystemTime};
use weir_broker::{Builder, Bytes, Fanout, Frame, Port};

/// Largest number of frames of one `weir_port_send_batch`, as of [`Port::send_batch`].
const SEND_FRAMES_MAX: usize = 1024;
/// Largest length of a frame to be sent, in bytes: more than any interface's MTU. A longer one is
/// a mistake of the caller.
const SEND_BYTES_MAX: usize = 1 << 20;

/// `enum weir_port_option`.
mod option {
    pub(super) const TAKE: u32 = 1;
    pub(super) const SEND: u32 = 2;
    pub(super) const LATENCY: u32 = 4;
    pub(super) const UNTIMED: u32 = 8;
    pub(super) const ALL: u32 = TAKE | SEND | LATENCY | UNTIMED;
}

/// `enum weir_port_flag`.
mod flag {
    pub(super) const OUTGOING: u32 = 1;
    pub(super) const CUT: u32 = 2;
    pub(super) const VLAN: u32 = 4;
}

/// `struct weir_port_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct COptions {
    size: u32,
    flags: u32,
    queue_bytes: u64,
    snap_len: u32,
    priority: u32,
    broker: *const c_char,
    fanout: *const c_char,
}

impl COptions {
    const NONE: COptions = COptions {
        size: 0,
        flags: 0,
        queue_bytes: 0,
        snap_len: 0,
        priority: 0,
        broker: null(),
        fanout: null(),
    };
}

/// `struct weir_port_frame`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CFrame {
    bytes: *const u8,
    time_ns: i64,
    caplen: u32,
    len: u32,
    lost_before: u32,
    segment_bytes: u32,
    flags: u32,
}

/// `struct weir_port_counters`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CCounters {
    delivered: u64,
    lost: u64,
    interface_lost: u64,
    sent: u64,
    refused: u64,
}

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CVector {
    base: *const u8,
    len: usize,
}

/// `struct weir_port`.
#[derive(Debug)]
pub struct CPort(Live);

thread_local! {
    /// The last error message.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Stores the error message.
fn failed(error: impl Display) -> c_int {
    let text = error.to_string().replace('\0', " ");
    MESSAGE.set(CString::new(text).unwrap_or_default());
    -1
}

/// The port.
///
/// # Safety
/// The pointer is null or came from `weir_port_open`, and is not passed to
/// `weir_port_close` while the result lives.
unsafe fn port<'a>(port: *const CPort) -> Option<&'a Live> {
    // SAFETY: the caller's promise; the structure is shared by reference only, and `Live` is `Sync`.
    let port = unsafe { port.as_ref() };
    if port.is_none() {
        failed("the port is a null pointer: was weir_port_open's result checked?");
    }
    port.map(|port| &port.0)
}

/// A C string; `what` is its name for messages.
///
/// # Safety
/// The pointer is null or points to a NUL-terminated string that lives as long as the
/// result.
unsafe fn text<'a>(what: &str, text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        failed(format!("the {what} is a null pointer"));
        return None;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(text) };
    match bytes.to_str() {
        Ok(text) => Some(text),
        Err(error) => {
            let at = error.valid_up_to();
            failed(format!("the {what} is not UTF-8 at byte {at}"));
            None
        }
    }
}

/// A time to wait; `None` without limit.
fn timeout(us: i64) -> Option<Duration> {
    u64::try_from(us).ok().map(Duration::from_micros)
}

/// Applies the options; `None` (after `failed`) if they are invalid.
///
/// # Safety
/// `broker` and `fanout` are null or C strings.
unsafe fn configured(builder: Builder, options: &COptions) -> Option<Builder> {
    let unknown = options.flags & !option::ALL;
    if unknown != 0 {
        failed(format!(
            "options: flags {unknown:#x} are unknown: see enum weir_port_option"
        ));
        return None;
    }
    let Ok(priority) = u16::try_from(options.priority) else {
        failed(format!(
            "options: priority {} is too high: at most 65535",
            options.priority
        ));
        return None;
    };
    let has = |flag| options.flags & flag != 0;
    let mut builder = builder
        .priority(priority)
        .take(has(option::TAKE))
        .send(has(option::SEND))
        .timestamps(!has(option::UNTIMED));
    if options.queue_bytes > 0 {
        builder = builder.queue(Bytes(options.queue_bytes));
    }
    if options.snap_len > 0 {
        builder = builder.snap_len(options.snap_len);
    }
    if !options.broker.is_null() {
        // SAFETY: not null, and therefore a C string by the caller's promise.
        let path = unsafe { CStr::from_ptr(options.broker) };
        builder = builder.broker(Path::new(OsStr::from_bytes(path.to_bytes())));
    }
    if !options.fanout.is_null() {
        // SAFETY: the caller's promise.
        let fanout = unsafe { text("fan-out", options.fanout) }?;
        let fanout = fanout.parse::<Fanout>();
        let fanout = fanout.map_err(|error| format!("options: fanout: {error}"));
        builder = builder.fanout(reported(fanout)?);
    }
    Some(builder)
}

/// The last error message of the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn weir_port_error() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}

/// Opens a port.
///
/// # Safety
/// The name is null or a C string, and so is the filter. The options are null or point to
/// a `struct weir_port_options`, or to a shorter structure that begins with its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_port_open(
    interface: *const c_char,
    filter: *const c_char,
    options: *const COptions,
) -> *mut CPort {
    // SAFETY: the caller's promise.
    match unsafe { opened(interface, filter, options) } {
        Some(live) => Box::into_raw(Box::new(CPort(live))),
        None => std::ptr::null_mut(),
    }
}

/// # Safety
/// As for [`weir_port_open`].
unsafe fn opened(
    interface: *const c_char,
    filter: *const c_char,
    options: *const COptions,
) -> Option<Live> {
    // SAFETY: the caller's promise.
    let interface = unsafe { text("name of the interface", interface) }?;
    let mut builder = Port::on(interface).timestamps(true);
    if !filter.is_null() {
        // SAFETY: the caller's promise.
        let filter = unsafe { text("filter", filter) }?;
        builder = reported(builder.filter(filter))?;
    }
    let (mut latency, mut is_local) = (false, true);
    if !options.is_null() {
        // SAFETY: not null, and therefore room for a length by the caller's promise; the rest may
        // be missing.
        let size = unsafe { (&raw const (*options).size).read() };
        let (own, before) = (size_of::<COptions>(), offset_of!(COptions, fanout));
        let size = size as usize;
        if size != own && size != before {
            failed(format!(
                "options: a size of {size} bytes, but the library's options have {own}: \
                 set `size` to sizeof(struct weir_port_options), and compile with the \
                 library's header"
            ));
            return None;
        }
        let mut given = COptions::NONE;
        // SAFETY: the structure has this length, which is at most that of `given`; what a shorter
        // one leaves out stays null.
        unsafe { copy_nonoverlapping(options.cast::<u8>(), (&raw mut given).cast::<u8>(), size) };
        let options = given;
        // SAFETY: the caller's promise.
        builder = unsafe { configured(builder, &options) }?;
        latency = options.flags & option::LATENCY != 0;
        is_local = options.broker.is_null();
    }
    reported(Live::open(interface, builder, latency, is_local))
}

/// The result; `None`, after its message is stored, if it is an error.
fn reported<T, E: Display>(result: Result<T, E>) -> Option<T> {
    result.map_err(failed).ok()
}

/// Closes a port.
///
/// # Safety
/// A port, see the header, which no thread uses, now or afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_port_close(port: *mut CPort) {
    if !port.is_null() {
        // SAFETY: the pointer came from `Box::into_raw`, and is not used again.
        drop(unsafe { Box::from_raw(port) });
    }
}

/// A frame as C sees it.
fn described(frame: &Frame<'_>) -> CFrame {
    let bytes = frame.bytes();
    let since = frame
        .timestamp()
        .and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    let flags = [
        (frame.is_outgoing(), flag::OUTGOING),
        (frame.is_cut(), flag::CUT),
        (frame.had_vlan_tag(), flag::VLAN),
    ];
    CFrame {
        bytes: bytes.as_ptr(),
        time_ns: since.map_or(0, |time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)),
        caplen: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        len: frame.original_len(),
        lost_before: frame.lost_before(),
        segment_bytes: frame.segment_size().unwrap_or(0).into(),
        flags: flags.iter().map(|(is, flag)| u32::from(*is) * flag).sum(),
    }
}

/// Receives frames.
///
/// # Safety
/// A port, see the header, and room for this many frames.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_port_recv(
    from: *mut CPort,
    frames: *mut CFrame,
    frames_max: usize,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(port) = (unsafe { port(from) }) else {
        return -1;
    };
    if frames.is_null() || frames_max == 0 {
        return failed(format!(
            "no room for a frame (frames {frames:?}, frames_max {frames_max}): at least 1"
        ));
    }
    let mut place = frames;
    let received = port.recv(frames_max, timeout(timeout_us), |frame| {
        // SAFETY: at most `frames_max` frames are passed to this function, for which there is
        // room by the caller's promise; the room may be uninitialised.
        unsafe {
            place.write(described(frame));
            place = place.add(1);
        }
    });
    received.map_or_else(failed, |count| count as c_int)
}

/// Waits for frames.
///
/// # Safety
/// A port, see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_port_wait(from: *mut CPort, timeout_us: i64) -> c_int {
    // SAFETY: the caller's promise.
    let Some(port) = (unsafe { port(from) }) else {
        return -1;
    };
    port.wait(timeout(timeout_us))
        .map_or_else(failed, c_int::from)
}

/// The descriptor for event loops.
///
/// # Safety
/// A port, see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_port_fd(from: *mut CPort) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { port(from) }.map_or(-1, Live::fd)
}

/// Sends a frame.
///
/// # Safety
/// A port, see the header, and `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_port_send(to: *mut CPort, bytes: *const u8, len: usize) -> c_int {
    let frame = CVector { base: bytes, len };
    // SAFETY: the caller's promise.
    unsafe { weir_port_send_batch(to, &raw const frame, 1) }
}

/// Sends frames.
///
/// # Safety
/// A port, see the header; `count` structures, each of which states readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_port_send_batch(
    to: *mut CPort,
    frames: *const CVector,
    count: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(port) = (unsafe { port(to) }) else {
        return -1;
    };
    if count == 0 {
        return 0;
    }
    if frames.is_null() {
        return failed(format!("the array of {count} frames is a null pointer"));
    }
    // SAFETY: not null, and therefore that many structures by the caller's promise.
    let vectors = unsafe { std::slice::from_raw_parts(frames, count.min(SEND_FRAMES_MAX)) };
    let mut frames = Vec::with_capacity(vectors.len());
    for (number, vector) in vectors.iter().enumerate() {
        let len = vector.len;
        if vector.base.is_null() {
            return failed(format!("frame {number} of {len} bytes is a null pointer"));
        }
        if len > SEND_BYTES_MAX {
            return failed(format!(
                "frame {number} has {len} bytes: at most the MTU and the link-layer header"
            ));
        }
        // SAFETY: not null, and therefore that many bytes by the caller's promise.
        frames.push(unsafe { std::slice::from_raw_parts(vector.base, len) });
    }
    port.send(&frames).map_or_else(failed, |sent| sent as c_int)
}

/// Replaces the filter.
///
/// # Safety
/// A port, see the header; the filter is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_port_set_filter(of: *mut CPort, filter: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (port, filter) = unsafe { (port(of), text("filter", filter)) };
    let (Some(port), Some(filter)) = (port, filter) else {
        return -1;
    };
    port.set_filter(filter).map_or_else(failed, |()| 0)
}

/// Writes the counters.
///
/// # Safety
/// A port, see the header; null or room for a `struct weir_port_counters`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_port_counters(of: *mut CPort, counters: *mut CCounters) -> c_int {
    // SAFETY: the caller's promise.
    let Some(port) = (unsafe { port(of) }) else {
        return -1;
    };
    if counters.is_null() {
        return failed("the pointer for the counters is null");
    }
    let Some(now) = reported(port.counters()) else {
        return -1;
    };
    let now = CCounters {
        delivered: now.delivered,
        lost: now.lost,
        interface_lost: now.interface_lost,
        sent: now.sent,
        refused: now.refused,
    };
    // SAFETY: not null, and therefore room for a structure by the caller's promise; the room may
    // be uninitialised.
    unsafe { counters.write(now) };
    0
}

/// The link type of the frames.
///
/// # Safety
/// A port, see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_port_linktype(of: *mut CPort) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { port(of) }.map_or(-1, |port| port.linktype() as c_int)
}
