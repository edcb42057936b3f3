//! Seccomp's filters: the one that refuses `io_uring_setup(2)`, since the kernel would carry out a ring's
//! requests on weir's descriptors, past this library; and the one that traps the control calls of a
//! program without the library ([`crate::all`]).

use crate::host::say;
use crate::sock::last_errno;
use libc::{c_int, c_long, c_ulong, sock_filter, sock_fprog};
use std::os::fd::{FromRawFd, OwnedFd};

/// Offset of the system call's number in `struct seccomp_data`, of the architecture, and of the
/// low half of the first argument.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST: u32 = 16;

#[cfg(target_arch = "x86_64")]
const OURS: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const OURS: u32 = 0xc000_00b7;

fn statement(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// Makes `io_uring_setup(2)` fail with `EPERM` in this process and all that it starts, except for
/// the rings of weir's own links, which differ by their number of entries.
pub(crate) fn refuse_io_uring() {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    // SAFETY: the kernel refuses a null pointer.
    let refused = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) } < 0
        && crate::sock::last_errno() == libc::EPERM;
    if refused {
        // A process before this one has arranged it.
        return;
    }
    let load = BPF_LD | BPF_W | BPF_ABS;
    let equal = BPF_JMP | BPF_JEQ | BPF_K;
    let filter = [
        statement(load, ARCHITECTURE),
        jump(equal, OURS, 0, 5),
        statement(load, NUMBER),
        jump(equal, libc::SYS_io_uring_setup as u32, 0, 3),
        statement(load, FIRST),
        jump(equal, weir_socket::link::RING_ENTRIES, 1, 0),
        statement(
            BPF_RET | BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    let zero: c_ulong = 0;
    // SAFETY: the program lives until the call returns.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as c_ulong, zero, zero, zero);
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER as c_ulong,
            &raw const program,
            zero,
            zero,
        )
    };
    if set < 0 {
        say("io_uring cannot be refused here: a program that uses it must not use weir's sockets");
    }
}

/// The calls that the supervisor answers. Those with data, `close`, `dup` and `fork` are never trapped.
const TRAPPED: &[c_long] = &[
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
];

/// Has the kernel hold the control calls of this process, and of all that it starts, until they are
/// answered at the descriptor that is returned. `io_uring_setup(2)` fails with `EPERM` unless it is
/// allowed. The process gives up gaining rights by `exec`.
///
/// # Errors
/// `EBUSY` if the calls are trapped already.
pub(crate) fn notify(io_uring: bool) -> Result<OwnedFd, c_int> {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let load = BPF_LD | BPF_W | BPF_ABS;
    let equal = BPF_JMP | BPF_JEQ | BPF_K;
    let end = BPF_RET | BPF_K;
    let mut filter = vec![
        statement(load, ARCHITECTURE),
        jump(equal, OURS, 1, 0),
        statement(end, libc::SECCOMP_RET_ALLOW),
        statement(load, NUMBER),
    ];
    for number in TRAPPED {
        filter.push(jump(equal, *number as u32, 0, 1));
        filter.push(statement(end, libc::SECCOMP_RET_USER_NOTIF));
    }
    if !io_uring {
        filter.push(jump(equal, libc::SYS_io_uring_setup as u32, 0, 1));
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        filter.push(statement(end, refused));
    }
    filter.push(statement(end, libc::SECCOMP_RET_ALLOW));
    let program = sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    let zero: c_ulong = 0;
    // SAFETY: the program lives until the call returns.
    let made = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as c_ulong, zero, zero, zero);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    if made < 0 {
        return Err(last_errno());
    }
    // SAFETY: the descriptor is new.
    Ok(unsafe { OwnedFd::from_raw_fd(made as c_int) })
}
