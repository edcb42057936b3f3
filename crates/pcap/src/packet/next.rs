//! The C library's own functions, or those of a library that is loaded behind this one.

use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use std::ffi::CStr;
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The next definition of a function after this library's, found once.
fn find(at: &AtomicPtr<c_void>, name: &'static CStr) -> *mut c_void {
    let found = at.load(Relaxed);
    if !found.is_null() {
        return found;
    }
    // SAFETY: the name is NUL-terminated.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!found.is_null(), "the C library has no {name:?}");
    at.store(found, Relaxed);
    found
}

macro_rules! next {
    ($($name:ident = $text:literal: fn($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {$(
        /// # Safety
        /// As the C library's function of this name.
        pub(super) unsafe fn $name($($arg: $type),*) -> $result {
            static AT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            // SAFETY: the C library's function of this name has this type.
            let function = unsafe { transmute::<*mut c_void, Function>(find(&AT, $text)) };
            // SAFETY: the caller's arguments are those of the call.
            unsafe { function($($arg),*) }
        }
    )*};
}

next! {
    socket = c"socket": fn(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind = c"bind": fn(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int;
    setsockopt = c"setsockopt": fn(fd: c_int, level: c_int, name: c_int, value: *const c_void,
        len: socklen_t) -> c_int;
    sendto = c"sendto": fn(fd: c_int, from: *const c_void, len: size_t, flags: c_int,
        to: *const sockaddr, to_len: socklen_t) -> ssize_t;
    send = c"send": fn(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendmsg = c"sendmsg": fn(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg = c"sendmmsg": fn(fd: c_int, messages: *mut mmsghdr, count: c_uint,
        flags: c_int) -> c_int;
    write = c"write": fn(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    writev = c"writev": fn(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    recv = c"recv": fn(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom = c"recvfrom": fn(fd: c_int, to: *mut c_void, len: size_t, flags: c_int,
        from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t;
    recvmsg = c"recvmsg": fn(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
}
