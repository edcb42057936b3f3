//! The C library's calls that look up names: before each, the thread's resolver gets weir's servers
//! ([`crate::dns`]). The look-up itself is the C library's.

use crate::{dns, real};
use libc::{addrinfo, c_char, c_int, c_uchar, c_void, hostent, size_t, sockaddr, socklen_t};
use std::ffi::CStr;
use std::mem::transmute;
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

/// `getaddrinfo(3)`. An address in place of a name needs no server, and so no host.
///
/// # Safety
/// As `getaddrinfo(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    found: *mut *mut addrinfo,
) -> c_int {
    // SAFETY: the caller's promise.
    let flags = unsafe { hints.as_ref() }.map_or(0, |hints| hints.ai_flags);
    if !node.is_null() && flags & libc::AI_NUMERICHOST == 0 {
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(node) }.to_str();
        if !name.is_ok_and(|name| name.parse::<IpAddr>().is_ok()) {
            dns::prepare();
        }
    }
    // SAFETY: the caller's promises.
    unsafe { real::getaddrinfo(node, service, hints, found) }
}

/// `getnameinfo(3)`.
///
/// # Safety
/// As `getnameinfo(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getnameinfo(
    address: *const sockaddr,
    len: socklen_t,
    host: *mut c_char,
    host_len: socklen_t,
    service: *mut c_char,
    service_len: socklen_t,
    flags: c_int,
) -> c_int {
    if flags & libc::NI_NUMERICHOST == 0 {
        dns::prepare();
    }
    // SAFETY: the caller's promises.
    unsafe { real::getnameinfo(address, len, host, host_len, service, service_len, flags) }
}

/// Defines calls that go on to the C library's once the resolver is prepared.
macro_rules! names {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            dns::prepare();
            // SAFETY: the caller's promises.
            unsafe { real::$name($($arg),*) }
        }
    )*};
}

names! {
    /// `gethostbyname(3)`.
    fn gethostbyname(name: *const c_char) -> *mut hostent;
    /// `gethostbyname2(3)`.
    fn gethostbyname2(name: *const c_char, family: c_int) -> *mut hostent;
    /// `gethostbyname_r(3)`.
    fn gethostbyname_r(
        name: *const c_char,
        to: *mut hostent,
        buffer: *mut c_char,
        len: size_t,
        found: *mut *mut hostent,
        error: *mut c_int,
    ) -> c_int;
    /// `gethostbyname2_r(3)`.
    fn gethostbyname2_r(
        name: *const c_char,
        family: c_int,
        to: *mut hostent,
        buffer: *mut c_char,
        len: size_t,
        found: *mut *mut hostent,
        error: *mut c_int,
    ) -> c_int;
    /// `gethostbyaddr(3)`.
    fn gethostbyaddr(address: *const c_void, len: socklen_t, family: c_int) -> *mut hostent;
    /// `gethostbyaddr_r(3)`.
    fn gethostbyaddr_r(
        address: *const c_void,
        len: socklen_t,
        family: c_int,
        to: *mut hostent,
        buffer: *mut c_char,
        buffer_len: size_t,
        found: *mut *mut hostent,
        error: *mut c_int,
    ) -> c_int;
}

/// Defines a call of the resolver under both names that the C library has had for it.
macro_rules! resolver {
    ($(
        #[doc = $doc:literal]
        fn $name:ident, $old:ident, $text:literal, $old_text:literal
        ($($arg:ident: $type:ty),* $(,)?);
    )*) => {$(
        #[doc = $doc]
        ///
        /// # Safety
        /// As the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            static AT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            type Function = unsafe extern "C-unwind" fn($($type),*) -> c_int;
            dns::prepare();
            let found = real::address_of_any(&AT, [$text, $old_text]);
            // SAFETY: the C library's function of this name has this type.
            let function = unsafe { transmute::<*mut c_void, Function>(found) };
            // SAFETY: the caller's promises.
            unsafe { function($($arg),*) }
        }

        #[doc = $doc]
        ///
        /// # Safety
        /// As the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $old($($arg: $type),*) -> c_int {
            // SAFETY: the caller's promises.
            unsafe { $name($($arg),*) }
        }
    )*};
}

resolver! {
    /// `res_query(3)`.
    fn res_query, __res_query, c"res_query", c"__res_query"(
        name: *const c_char,
        class: c_int,
        kind: c_int,
        answer: *mut c_uchar,
        len: c_int,
    );
    /// `res_search(3)`.
    fn res_search, __res_search, c"res_search", c"__res_search"(
        name: *const c_char,
        class: c_int,
        kind: c_int,
        answer: *mut c_uchar,
        len: c_int,
    );
    /// `res_querydomain(3)`.
    fn res_querydomain, __res_querydomain, c"res_querydomain", c"__res_querydomain"(
        name: *const c_char,
        domain: *const c_char,
        class: c_int,
        kind: c_int,
        answer: *mut c_uchar,
        len: c_int,
    );
    /// `res_send(3)`.
    fn res_send, __res_send, c"res_send", c"__res_send"(
        query: *const c_uchar,
        query_len: c_int,
        answer: *mut c_uchar,
        len: c_int,
    );
}

/// `res_init(3)`, which resolv.h calls so.
///
/// # Safety
/// As `res_init(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __res_init() -> c_int {
    // SAFETY: the call takes nothing.
    let done = unsafe { real::__res_init() };
    if done == 0 {
        dns::prepare_anew();
    }
    done
}

/// `res_ninit(3)`, which resolv.h calls so.
///
/// # Safety
/// As `res_ninit(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __res_ninit(state: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let done = unsafe { real::__res_ninit(state) };
    if done == 0 {
        // SAFETY: the caller's promise.
        unsafe { dns::give_to(state) };
    }
    done
}
