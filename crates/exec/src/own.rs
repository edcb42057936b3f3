//! The same calls under own names, for programs that are written for weir (`include/weir_socket.h`):
//! [`weir_open`] takes the place of the environment, and the sockets that [`weir_socket`] makes are all
//! weir's. The C library's own calls stay the kernel's, except on these sockets, where both names do
//! the same.

use crate::calls::{self, answer, opening};
use crate::host::{self, Settings};
use crate::{fork, signals};
use libc::{
    c_char, c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t,
};
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::io;
use std::net::IpAddr;
use std::slice::from_raw_parts;
use weir_socket::{Device, HostPlan, LinkPlan};
use weir_stack::{Config, LINKS_MAX};

/// A link of the host: `struct weir_link`.
#[repr(C)]
pub struct Link {
    /// The interface: `tap0`, or `port:eth0` for a port beside the kernel.
    pub name: *const c_char,
    /// Addresses with the length of their network, `dhcp` or `auto`, separated by spaces.
    pub addresses: *const c_char,
    /// Routers, separated by spaces; or null.
    pub gateways: *const c_char,
}

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// The words of a text of the caller; none if it is null.
///
/// # Safety
/// The text is null or NUL-terminated.
unsafe fn words(text: *const c_char) -> io::Result<Vec<String>> {
    if text.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    let text = text.map_err(|_| invalid("a text is not UTF-8".to_owned()))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// # Safety
/// The texts are NUL-terminated, or null.
unsafe fn plan_of(link: &Link) -> io::Result<LinkPlan> {
    // SAFETY: the caller's promise.
    let (names, addresses, gateways) = unsafe {
        (
            words(link.name)?,
            words(link.addresses)?,
            words(link.gateways)?,
        )
    };
    let [name] = &names[..] else {
        return Err(invalid(
            "name one interface, such as tap0 or port:eth0".to_owned(),
        ));
    };
    if addresses.is_empty() {
        return Err(invalid(format!(
            "{name} has no address: give one such as 192.0.2.5/24"
        )));
    }
    let mut hardware = [0; 6];
    rustix::rand::getrandom(&mut hardware, rustix::rand::GetRandomFlags::empty())?;
    // Locally administered, of one station (IEEE 802).
    hardware[0] = hardware[0] & 0xfc | 2;
    let mut config = Config::new(weir_wire::ethernet::Address(hardware));
    for address in &addresses {
        match address.as_str() {
            "dhcp" => config.dhcp = true,
            "auto" => config.autoconf = true,
            text => {
                let wrong = |error| invalid(format!("{text} is not an address: {error}"));
                config = config.address(text.parse().map_err(wrong)?);
            }
        }
    }
    for gateway in &gateways {
        let router: IpAddr = gateway
            .parse()
            .map_err(|error| invalid(format!("{gateway} is not a router's address: {error}")))?;
        let all = if router.is_ipv4() {
            "0.0.0.0/0"
        } else {
            "::/0"
        };
        let all = all
            .parse()
            .map_err(|error| invalid(format!("{all}: {error}")))?;
        config = config.route(all, router);
    }
    let device = match name.split_once(':') {
        Some(("port", interface)) => Device::Port {
            interface: interface.to_owned(),
            broker: None,
        },
        Some(("shm", _)) => Device::Shm(name.clone()),
        _ => Device::Tap(name.clone()),
    };
    Ok(LinkPlan::new(device, &config))
}

/// Starts the process's host on `count` links.
///
/// # Safety
/// `links` are as many, with NUL-terminated texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_open(links: *const Link, count: size_t) -> c_int {
    let opened = if links.is_null() || !(1..=LINKS_MAX).contains(&count) {
        Err(invalid(format!("a host has 1 to {LINKS_MAX} links")))
    } else {
        // SAFETY: the caller's promise.
        unsafe { open(from_raw_parts(links, count)) }
    };
    let Err(error) = opened else {
        return 0;
    };
    let text = CString::new(error.to_string()).unwrap_or_default();
    ERROR.with_borrow_mut(|last| *last = text);
    answer(Err(match error.raw_os_error() {
        Some(number) => number,
        None if error.kind() == io::ErrorKind::InvalidInput => libc::EINVAL,
        None => libc::ENETDOWN,
    }))
}

/// # Safety
/// The links' texts are NUL-terminated, or null.
unsafe fn open(links: &[Link]) -> io::Result<()> {
    // SAFETY: the caller's promise.
    let links = links.iter().map(|link| unsafe { plan_of(link) });
    let plan = HostPlan {
        links: links.collect::<io::Result<_>>()?,
        ..HostPlan::default()
    };
    let _inside = signals::enter();
    host::open(Settings::by_name(plan))?;
    fork::watch();
    // SAFETY: the function has the type that is asked for.
    unsafe { libc::atexit(crate::end) };
    Ok(())
}

/// Why this thread's last [`weir_open`] failed; valid until its next one.
#[unsafe(no_mangle)]
pub extern "C" fn weir_open_error() -> *const c_char {
    ERROR.with_borrow(|last| last.as_ptr())
}

/// `socket(2)` of a socket of weir.
#[unsafe(no_mangle)]
pub extern "C" fn weir_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    opening::socket_of_weir(domain, kind, protocol)
}

macro_rules! own {
    ($(fn $name:ident = $call:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {$(
        #[doc = concat!("`", stringify!($call), "`, on a socket of weir.")]
        ///
        /// # Safety
        /// As the C library's call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            // SAFETY: the caller's promises.
            unsafe { calls::$call($($arg),*) }
        }
    )*};
}

own! {
    fn weir_bind = bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn weir_listen = listen(fd: c_int, backlog: c_int) -> c_int;
    fn weir_accept = accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn weir_accept4 = accept4(
        fd: c_int,
        address: *mut sockaddr,
        len: *mut socklen_t,
        flags: c_int,
    ) -> c_int;
    fn weir_connect = connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn weir_shutdown = shutdown(fd: c_int, how: c_int) -> c_int;
    fn weir_close = close(fd: c_int) -> c_int;
    fn weir_read = read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t;
    fn weir_write = write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    fn weir_readv = readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn weir_writev = writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn weir_recv = recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn weir_send = send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn weir_recvfrom = recvfrom(
        fd: c_int,
        to: *mut c_void,
        len: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t,
    ) -> ssize_t;
    fn weir_sendto = sendto(
        fd: c_int,
        from: *const c_void,
        len: size_t,
        flags: c_int,
        address: *const sockaddr,
        address_len: socklen_t,
    ) -> ssize_t;
    fn weir_recvmsg = recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn weir_sendmsg = sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn weir_recvmmsg = recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut libc::timespec,
    ) -> c_int;
    fn weir_sendmmsg = sendmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
    ) -> c_int;
    fn weir_setsockopt = setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t,
    ) -> c_int;
    fn weir_getsockopt = getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int;
    fn weir_getsockname = getsockname(
        fd: c_int,
        address: *mut sockaddr,
        len: *mut socklen_t,
    ) -> c_int;
    fn weir_getpeername = getpeername(
        fd: c_int,
        address: *mut sockaddr,
        len: *mut socklen_t,
    ) -> c_int;
}
