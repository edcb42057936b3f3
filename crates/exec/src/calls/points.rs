//! The functions that are cancellation points ([`crate::cancel`]): a thread that was cancelled ends in these,
//! where nothing is due any more.

use crate::{cancel, table};
use libc::{c_int, c_uint, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, pollfd};
use libc::{sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval};

macro_rules! points {
    ($(
        $(#[$doc:meta])*
        $of:ident fn $name:ident($first:ident: $first_type:ty $(, $arg:ident: $type:ty)* $(,)?) -> $result:ty
            = $module:ident;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub unsafe extern "C-unwind" fn $name($first: $first_type $(, $arg: $type)*) -> $result {
            let is_known = points!(@is_known $of $first);
            if is_known {
                cancel::test();
            }
            // SAFETY: the caller's promises.
            let result = unsafe { super::$module::$name($first $(, $arg)*) };
            if points!(@acts $of is_known, result) {
                cancel::act();
            }
            result
        }
    )*};
    // A call on a descriptor: on one of others the C library's function is the point.
    (@is_known on $fd:ident) => { table::is_known($fd) };
    (@acts on $is_known:ident, $result:ident) => { $is_known };
    // A call on several: it finds out whether one is weir's.
    (@is_known among $first:ident) => { false };
    (@acts among $is_known:ident, $result:ident) => { $result < 0 };
}

points! {
    /// `accept(2)`.
    on fn accept(fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int = opening;
    /// `accept4(2)`.
    on fn accept4(fd: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int
        = opening;
    /// `connect(2)`.
    on fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int = connect;
    /// `close(2)`.
    on fn close(fd: c_int) -> c_int = descriptor;
    /// `read(2)`.
    on fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t = data;
    /// `read(2)`, as programs call it that are built with `_FORTIFY_SOURCE`.
    on fn __read_chk(fd: c_int, to: *mut c_void, len: size_t, to_len: size_t) -> ssize_t = data;
    /// `write(2)`.
    on fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t = data;
    /// `readv(2)`.
    on fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = data;
    /// `writev(2)`.
    on fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t = data;
    /// `recv(2)`.
    on fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t = data;
    /// `recv(2)`, as programs call it that are built with `_FORTIFY_SOURCE`.
    on fn __recv_chk(
        fd: c_int,
        to: *mut c_void,
        len: size_t,
        to_len: size_t,
        flags: c_int,
    ) -> ssize_t = data;
    /// `recvfrom(2)`.
    on fn recvfrom(
        fd: c_int,
        to: *mut c_void,
        len: size_t,
        flags: c_int,
        from: *mut sockaddr,
        from_len: *mut socklen_t,
    ) -> ssize_t = data;
    /// `recvfrom(2)`, as programs call it that are built with `_FORTIFY_SOURCE`.
    on fn __recvfrom_chk(
        fd: c_int,
        to: *mut c_void,
        len: size_t,
        to_len: size_t,
        flags: c_int,
        from: *mut sockaddr,
        from_len: *mut socklen_t,
    ) -> ssize_t = data;
    /// `send(2)`.
    on fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t = data;
    /// `sendto(2)`.
    on fn sendto(
        fd: c_int,
        from: *const c_void,
        len: size_t,
        flags: c_int,
        to: *const sockaddr,
        to_len: socklen_t,
    ) -> ssize_t = data;
    /// `recvmsg(2)`.
    on fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = message;
    /// `sendmsg(2)`.
    on fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = message;
    /// `recvmmsg(2)`.
    on fn recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int = message;
    /// `sendmmsg(2)`.
    on fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
        = message;
    /// `splice(2)`: between a pipe and a socket of weir the bytes are copied.
    among fn splice(
        input: c_int,
        in_offset: *mut i64,
        out: c_int,
        out_offset: *mut i64,
        len: size_t,
        flags: c_uint,
    ) -> ssize_t = file;
    /// `poll(2)`.
    among fn poll(fds: *mut pollfd, count: nfds_t, time_ms: c_int) -> c_int = polling;
    /// `poll(2)`, as programs call it that are built with `_FORTIFY_SOURCE`.
    among fn __poll_chk(fds: *mut pollfd, count: nfds_t, time_ms: c_int, len: usize) -> c_int
        = polling;
    /// `ppoll(2)`.
    among fn ppoll(
        fds: *mut pollfd,
        count: nfds_t,
        time: *const timespec,
        mask: *const sigset_t,
    ) -> c_int = polling;
    /// `ppoll(2)`, as programs call it that are built with `_FORTIFY_SOURCE`.
    among fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        time: *const timespec,
        mask: *const sigset_t,
        len: usize,
    ) -> c_int = polling;
    /// `epoll_wait(2)`.
    among fn epoll_wait(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        time_ms: c_int,
    ) -> c_int = polling;
    /// `epoll_pwait(2)`.
    among fn epoll_pwait(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        time_ms: c_int,
        mask: *const sigset_t,
    ) -> c_int = polling;
    /// `epoll_pwait2(2)`.
    among fn epoll_pwait2(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        time: *const timespec,
        mask: *const sigset_t,
    ) -> c_int = polling;
    /// `select(2)`.
    among fn select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        time: *mut timeval,
    ) -> c_int = polling;
    /// `pselect(2)`.
    among fn pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        time: *const timespec,
        mask: *const sigset_t,
    ) -> c_int = polling;
}
