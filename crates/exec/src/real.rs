//! The C library's own functions, behind the ones of this library with the same names. Unwinding may leave those
//! that are cancellation points ([`crate::cancel`]).

use libc::{c_char, c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr};
use libc::{socklen_t, ssize_t, timespec};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The next definition of a function after this library's, found once.
fn next(at: &AtomicPtr<c_void>, name: &'static std::ffi::CStr) -> *mut c_void {
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

macro_rules! real {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// As the C library's function of this name.
        #[allow(clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
            static AT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            // The names are those of C.
            const NAME: &std::ffi::CStr =
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no NUL"),
                };
            type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
            // SAFETY: the C library's function of this name has this type.
            let function = unsafe { transmute::<*mut c_void, Function>(next(&AT, NAME)) };
            // SAFETY: the caller's arguments are those of the call.
            unsafe { function($($arg),*) }
        }
    )*};
}

real! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fn dup2(fd: c_int, to: c_int) -> c_int;
    fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t;
    fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(
        fd: c_int,
        to: *mut c_void,
        len: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t,
    ) -> ssize_t;
    fn sendto(
        fd: c_int,
        from: *const c_void,
        len: size_t,
        flags: c_int,
        address: *const sockaddr,
        address_len: socklen_t,
    ) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn splice(
        input: c_int,
        in_offset: *mut i64,
        out: c_int,
        out_offset: *mut i64,
        len: size_t,
        flags: c_uint,
    ) -> ssize_t;
    fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int;
    fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t,
    ) -> c_int;
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, time_ms: c_int) -> c_int;
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        time: *const timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
    fn select(
        count: c_int,
        read: *mut libc::fd_set,
        write: *mut libc::fd_set,
        except: *mut libc::fd_set,
        time: *mut libc::timeval,
    ) -> c_int;
    fn pselect(
        count: c_int,
        read: *mut libc::fd_set,
        write: *mut libc::fd_set,
        except: *mut libc::fd_set,
        time: *const timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_wait(
        set: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        time_ms: c_int,
    ) -> c_int;
    fn epoll_pwait(
        set: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        time_ms: c_int,
        mask: *const libc::sigset_t,
    ) -> c_int;
    fn epoll_pwait2(
        set: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        time: *const timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
    fn epoll_ctl(set: c_int, how: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    fn fork() -> libc::pid_t;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn sigaction(
        signal: c_int,
        new: *const libc::sigaction,
        old: *mut libc::sigaction,
    ) -> c_int;
    fn _exit(status: c_int) -> ();
    fn posix_spawn_file_actions_adddup2(
        actions: *mut libc::posix_spawn_file_actions_t,
        fd: c_int,
        to: c_int,
    ) -> c_int;
    fn execve(
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvp(name: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvpe(
        name: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
    fn fexecve(
        program: c_int,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
    fn posix_spawn(
        child: *mut libc::pid_t,
        path: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
    fn posix_spawnp(
        child: *mut libc::pid_t,
        name: *const c_char,
        actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
    fn system(line: *const c_char) -> c_int;
    fn popen(line: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fn getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const libc::addrinfo,
        found: *mut *mut libc::addrinfo,
    ) -> c_int;
    fn getnameinfo(
        address: *const sockaddr,
        len: socklen_t,
        host: *mut c_char,
        host_len: socklen_t,
        service: *mut c_char,
        service_len: socklen_t,
        flags: c_int,
    ) -> c_int;
    fn gethostbyname(name: *const c_char) -> *mut libc::hostent;
    fn gethostbyname2(name: *const c_char, family: c_int) -> *mut libc::hostent;
    fn gethostbyname_r(
        name: *const c_char,
        to: *mut libc::hostent,
        buffer: *mut c_char,
        len: size_t,
        found: *mut *mut libc::hostent,
        error: *mut c_int,
    ) -> c_int;
    fn gethostbyname2_r(
        name: *const c_char,
        family: c_int,
        to: *mut libc::hostent,
        buffer: *mut c_char,
        len: size_t,
        found: *mut *mut libc::hostent,
        error: *mut c_int,
    ) -> c_int;
    fn gethostbyaddr(
        address: *const c_void,
        len: socklen_t,
        family: c_int,
    ) -> *mut libc::hostent;
    fn gethostbyaddr_r(
        address: *const c_void,
        len: socklen_t,
        family: c_int,
        to: *mut libc::hostent,
        buffer: *mut c_char,
        buffer_len: size_t,
        found: *mut *mut libc::hostent,
        error: *mut c_int,
    ) -> c_int;
    fn __res_init() -> c_int;
    fn __res_ninit(state: *mut c_void) -> c_int;
}

/// Whether the C library has a function.
pub(crate) fn has(name: &std::ffi::CStr) -> bool {
    // SAFETY: the name is NUL-terminated.
    unsafe { !libc::dlsym(libc::RTLD_NEXT, name.as_ptr()).is_null() }
}

/// The C library's function with the first of these names that there is: glibc 2.34 has renamed those of
/// its resolver.
pub(crate) fn address_of_any(
    at: &AtomicPtr<c_void>,
    names: [&'static std::ffi::CStr; 2],
) -> *mut c_void {
    next(at, if has(names[0]) { names[0] } else { names[1] })
}

/// The C library's function of this name, for the functions of this library that go on to it with
/// their arguments as they are.
pub(crate) fn address_of(at: &AtomicPtr<c_void>, name: &'static std::ffi::CStr) -> *mut c_void {
    next(at, name)
}

/// `fcntl(2)`, with its argument as a word.
///
/// # Safety
/// As the C library's function.
pub(crate) unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    static AT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    type Function = unsafe extern "C-unwind" fn(c_int, c_int, ...) -> c_int;
    // SAFETY: the C library's function has this type.
    let function = unsafe { transmute::<*mut c_void, Function>(next(&AT, c"fcntl")) };
    // SAFETY: the caller's arguments are those of the call.
    unsafe { function(fd, command, argument) }
}

/// `ioctl(2)`, with its argument as a word.
///
/// # Safety
/// As the C library's function.
pub(crate) unsafe fn ioctl(fd: c_int, command: libc::c_ulong, argument: usize) -> c_int {
    static AT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    type Function = unsafe extern "C-unwind" fn(c_int, libc::c_ulong, ...) -> c_int;
    // SAFETY: the C library's function has this type.
    let function = unsafe { transmute::<*mut c_void, Function>(next(&AT, c"ioctl")) };
    // SAFETY: the caller's arguments are those of the call.
    unsafe { function(fd, command, argument) }
}
