//! `weir_tap` for C: the functions that `include/weir_tap.h` declares and
//! documents. Each calls the Rust function of the crate `weir_tap` with the same
//! purpose.
//!
//! | C | Rust |
//! |---|---|
//! | `weir_map`, `weir_between`, `weir_join` | [`Tap::map`], two links joined for the bypass, [`Tap::join`] |
//! | `weir_tap`, `weir_untap` | [`Tap::tap`], [`Tap::untap`] |
//! | `weir_pull`, `weir_push` | [`Tap::pull`], [`Tap::push`] |
//! | `weir_take`, `weir_give`, `weir_alloc`, `weir_free` | [`Tap::take`], [`Tap::give`], [`Tap::alloc`], drop of a [`Frame`] |
//! | `weir_share`, `weir_members`, `weir_unmap` | [`Tap::share`], number of processes, [`Tap::unmap`] |
//!
//! A minimal forwarder in C:
//!
//! ```c
//! struct weir *tap = weir_between(NULL, "eth1", "eth2");
//! for (;;) {
//!     struct weir_frame *frame;
//!     if (weir_pull(tap, 0, 100000) < 0) break;   /* message: weir_error() */
//!     for (int link = 0; link < 2; link++)
//!         while (weir_take(tap, link, &frame) > 0)
//!             weir_give(tap, 1 - link, frame);
//!     weir_push(tap);
//! }
//! weir_unmap(tap, NULL);
//! ```
//!
//! Errors are a negative result or a null pointer, with a message for the
//! thread (`weir_error`). A tap and its frames belong to the thread that
//! created them; calls from another thread fail.
//!
//! Next: `docs/how-to/share-a-tap.md`, `examples/`, and the crate `weir_tap`.

// The C ABI: arguments are the caller's pointers.
#![allow(unsafe_code)]

mod owned;
#[cfg(test)]
mod tests;

use owned::Owned;
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use weir_tap::{Bypass, ChunkCounts, Config, Frame, LinkId, Pull, Tap};

/// `struct weir_config`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CConfig {
    chunks: u32,
    chunk_bytes: u32,
    kept: u32,
    ring: u32,
    spin_us: u32,
    hang_us: u32,
    bypass: u32,
}

/// `struct weir_census`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CCensus {
    free: u32,
    process: u32,
    fill: u32,
    tx: u32,
}

/// `struct weir`.
pub type CTap = Owned<Own>;

/// A tap, and the links that it has had.
#[derive(Debug)]
pub struct Own {
    tap: Tap,
    links: Vec<LinkId>,
}

/// `struct weir_frame`.
pub type CFrame = Owned<Frame>;

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

const OTHER_THREAD: &str = "a tap and its frames belong to the thread that made them";

/// The tap, if it belongs to the calling thread.
///
/// # Safety
/// The pointer is null or came from `weir_map` or `weir_join`, was not passed
/// to `weir_unmap` since, and is not used otherwise while the result lives.
unsafe fn ours<'a>(tap: *mut CTap) -> Option<&'a mut Own> {
    // SAFETY: the caller's promise.
    of_this_thread(unsafe { Owned::get(tap) })
}

/// The frame, if it belongs to the calling thread.
///
/// # Safety
/// The pointer is null or came from `weir_take` or `weir_alloc`, was not passed
/// on since, and is not used otherwise by this thread while the result lives.
unsafe fn our_frame<'a>(frame: *mut CFrame) -> Option<&'a mut Frame> {
    // SAFETY: the caller's promise.
    of_this_thread(unsafe { Owned::get(frame) })
}

fn of_this_thread<T>(found: Option<T>) -> Option<T> {
    if found.is_none() {
        failed(OTHER_THREAD);
    }
    found
}

/// The bytes of a C string.
///
/// # Safety
/// The pointer is null or points to a NUL-terminated string that lives as long
/// as the result.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    if text.is_null() {
        failed("a name is missing: it is a null pointer");
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(text) }.to_bytes())
}

fn micros(time: u32) -> Duration {
    Duration::from_micros(time.into())
}

impl CConfig {
    fn of(config: &Config) -> CConfig {
        let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        CConfig {
            chunks: config.chunks,
            chunk_bytes: config.chunk_bytes,
            kept: config.reserved,
            ring: config.ring,
            spin_us: micros(config.spin),
            hang_us: config.hang_max.map_or(0, micros),
            bypass: match config.bypass {
                Bypass::Kernel => 0,
                Bypass::Wire => 1,
                Bypass::Drop => 2,
            },
        }
    }

    fn config(&self) -> Option<Config> {
        let bypass = match self.bypass {
            0 => Bypass::Kernel,
            1 => Bypass::Wire,
            2 => Bypass::Drop,
            other => {
                failed(format!("{other} is not a bypass: see enum weir_bypass"));
                return None;
            }
        };
        Some(Config {
            chunks: self.chunks,
            chunk_bytes: self.chunk_bytes,
            reserved: self.kept,
            ring: self.ring,
            spin: micros(self.spin_us),
            hang_max: (self.hang_us > 0).then(|| micros(self.hang_us)),
            bypass,
            ..Config::default()
        })
    }
}

/// The configuration at the pointer; the default for null.
///
/// # Safety
/// The pointer is null or points to a `struct weir_config`.
unsafe fn config(config: *const CConfig) -> Option<Config> {
    // SAFETY: the caller's promise.
    match unsafe { config.as_ref() } {
        Some(config) => config.config(),
        None => Some(Config::default()),
    }
}

fn boxed(tap: Result<Tap, weir_tap::TapError>) -> *mut CTap {
    match tap {
        Ok(tap) => Owned::new(Own {
            links: tap.links().collect(),
            tap,
        }),
        Err(error) => {
            failed(error);
            std::ptr::null_mut()
        }
    }
}

/// The last error message of the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn weir_error() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}

/// Writes the default configuration.
///
/// # Safety
/// The pointer points to room for a `struct weir_config`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_config_default(to: *mut CConfig) {
    // SAFETY: the caller's promise.
    unsafe { to.write(CConfig::of(&Config::default())) };
}

/// `mbuf_map`.
///
/// # Safety
/// The pointer is null or points to a `struct weir_config`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_map(from: *const CConfig) -> *mut CTap {
    // SAFETY: the caller's promise.
    match unsafe { config(from) } {
        Some(config) => boxed(Tap::map(config)),
        None => std::ptr::null_mut(),
    }
}

/// `mbuf_map` and two links, joined for the bypass.
///
/// # Safety
/// As for [`weir_map`]; both names are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_between(
    from: *const CConfig,
    a: *const c_char,
    b: *const c_char,
) -> *mut CTap {
    // SAFETY: the caller's promise.
    let (config, a, b) = unsafe { (config(from), text(a), text(b)) };
    let (Some(config), Some(a), Some(b)) = (config, a, b) else {
        return std::ptr::null_mut();
    };
    let [a, b] = [a, b].map(String::from_utf8_lossy);
    boxed(Tap::between(config, &a, &b))
}

/// Joins a shared tap.
///
/// # Safety
/// As for [`weir_map`]; the path is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_join(path: *const c_char, from: *const CConfig) -> *mut CTap {
    // SAFETY: the caller's promise.
    let (path, config) = unsafe { (text(path), config(from)) };
    match (path, config) {
        (Some(path), Some(config)) => boxed(Tap::join(Path::new(OsStr::from_bytes(path)), config)),
        _ => std::ptr::null_mut(),
    }
}

/// Lets other processes join.
///
/// # Safety
/// A tap, see the header; the path is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_share(tap: *mut CTap, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (tap, path) = unsafe { (ours(tap), text(path)) };
    let (Some(tap), Some(path)) = (tap, path) else {
        return -1;
    };
    let shared = tap.tap.share(Path::new(OsStr::from_bytes(path)));
    shared.map_or_else(failed, |()| 0)
}

/// `mbuf_unmap`.
///
/// # Safety
/// A tap, see the header, which must not be used afterwards. `census` is null
/// or points to room for a `struct weir_census`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_unmap(tap: *mut CTap, census: *mut CCensus) -> c_int {
    // SAFETY: the caller's promise.
    let Some(own) = of_this_thread(unsafe { Owned::take(tap) }) else {
        return -1;
    };
    match own.tap.unmap() {
        Ok(found) => {
            let ChunkCounts {
                free,
                process,
                fill,
                tx,
            } = found;
            let found = CCensus {
                free,
                process,
                fill,
                tx,
            };
            if !census.is_null() {
                // SAFETY: not null, and therefore room for a structure by the
                // caller's promise.
                unsafe { census.write(found) };
            }
            0
        }
        Err(error) => failed(error),
    }
}

/// `mbuf_pull`.
///
/// # Safety
/// A tap, see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pull(tap: *mut CTap, chunks: u32, wait_us: u32) -> c_int {
    // SAFETY: the caller's promise.
    let Some(tap) = (unsafe { ours(tap) }) else {
        return -1;
    };
    let what = match chunks {
        0 => Pull::Frame(micros(wait_us)),
        chunks => Pull::Chunks(chunks),
    };
    tap.tap.pull(what).map_or_else(failed, c_int::from)
}

/// `mbuf_push`.
///
/// # Safety
/// A tap, see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_push(tap: *mut CTap) -> c_int {
    // SAFETY: the caller's promise.
    let Some(tap) = (unsafe { ours(tap) }) else {
        return -1;
    };
    tap.tap.push().map_or_else(failed, |()| 0)
}

/// `interface_tap`.
///
/// # Safety
/// A tap, see the header; the name is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_tap(tap: *mut CTap, interface: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let (tap, name) = unsafe { (ours(tap), text(interface)) };
    let (Some(tap), Some(name)) = (tap, name) else {
        return -1;
    };
    match tap.tap.tap(&String::from_utf8_lossy(name)) {
        Ok(link) => {
            if !tap.links.contains(&link) {
                tap.links.push(link);
            }
            link.number() as c_int
        }
        Err(error) => failed(error),
    }
}

impl Own {
    fn link(&self, number: c_int) -> Option<LinkId> {
        let mut links = self.links.iter();
        let found = links.find(|link| link.number() as c_int == number);
        if found.is_none() {
            failed(format!("link {number} is not tapped"));
        }
        found.copied()
    }
}

/// `interface_untap`.
///
/// # Safety
/// A tap, see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_untap(tap: *mut CTap, link: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let Some((tap, link)) = (unsafe { ours(tap) }).and_then(|tap| {
        let link = tap.link(link)?;
        Some((tap, link))
    }) else {
        return -1;
    };
    tap.tap.untap(link).map_or_else(failed, c_int::from)
}

/// The next frame of a link, `tap_in`.
///
/// # Safety
/// A tap, see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_take(tap: *mut CTap, link: c_int, to: *mut *mut CFrame) -> c_int {
    // SAFETY: the caller's promise.
    let Some(tap) = (unsafe { ours(tap) }) else {
        return -1;
    };
    if to.is_null() {
        return failed("the pointer for the frame is null");
    }
    let Some(link) = tap.link(link) else {
        return -1;
    };
    match tap.tap.take(link) {
        Ok(Some(frame)) => {
            // SAFETY: not null, and therefore room for a pointer by the
            // caller's promise; the room may be uninitialised.
            unsafe { to.write(Owned::new(frame)) };
            1
        }
        Ok(None) => 0,
        Err(error) => failed(error),
    }
}

/// Takes ownership of a frame back from the caller.
///
/// # Safety
/// The pointer is null or came from `weir_take` or `weir_alloc`, and was not
/// passed on since.
unsafe fn unframed(frame: *mut CFrame) -> Option<Frame> {
    // SAFETY: the caller's promise.
    of_this_thread(unsafe { Owned::take(frame) })
}

/// Sends a frame on a link, `tap_out`.
///
/// # Safety
/// A tap and a frame, see the header; the frame must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_give(tap: *mut CTap, link: c_int, frame: *mut CFrame) -> c_int {
    // SAFETY: the caller's promise.
    let (tap, frame) = unsafe { (ours(tap), unframed(frame)) };
    let (Some(tap), Some(frame)) = (tap, frame) else {
        return -1;
    };
    let Some(link) = tap.link(link) else {
        return -1;
    };
    tap.tap.give(link, frame).map_or_else(failed, c_int::from)
}

/// A new frame, `mbuf_alloc`.
///
/// # Safety
/// A tap, see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_alloc(tap: *mut CTap) -> *mut CFrame {
    // SAFETY: the caller's promise.
    let frame = unsafe { ours(tap) }.and_then(|tap| tap.tap.alloc());
    frame.map_or(std::ptr::null_mut(), Owned::new)
}

/// Drops a frame, `mbuf_dealloc`.
///
/// # Safety
/// A frame, see the header, which must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_free(frame: *mut CFrame) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { unframed(frame) }.map_or(-1, |_| 0)
}

/// The bytes of a fragment of a frame.
///
/// # Safety
/// A frame, see the header, and room for a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_bytes(frame: *mut CFrame, piece: u32, len: *mut usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    let frame = unsafe { our_frame(frame) };
    let Some(frame) = frame.filter(|_| !len.is_null()) else {
        return std::ptr::null_mut();
    };
    match frame.frag_mut(piece as usize) {
        Some(bytes) => {
            // SAFETY: not null, and therefore room for a length by the caller's
            // promise; the room may be uninitialised.
            unsafe { len.write(bytes.len()) };
            bytes.as_mut_ptr()
        }
        None => std::ptr::null_mut(),
    }
}

/// Sets the bytes of a frame.
///
/// # Safety
/// A frame, see the header, and `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_set(frame: *mut CFrame, bytes: *const u8, len: usize) -> c_int {
    // SAFETY: the caller's promise.
    let frame = unsafe { our_frame(frame) };
    let Some(frame) = frame else {
        return -1;
    };
    if bytes.is_null() {
        return failed("the pointer to the bytes is null");
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, len) };
    if frame.set(bytes) {
        0
    } else {
        failed(format!("no room for a frame of {len} bytes"))
    }
}

/// Number of processes that share the tap.
///
/// # Safety
/// A tap, see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_members(tap: *mut CTap) -> c_int {
    // SAFETY: the caller's promise.
    let tap = unsafe { ours(tap) };
    tap.map_or(-1, |tap| tap.tap.members() as c_int)
}
