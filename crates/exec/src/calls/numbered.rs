//! `syscall(2)`: programs make calls on descriptors by number, too, as libuv (and so Node.js) does `close`.
//!
//! Most calls that programs make so, as futex(2), have nothing to do with sockets: for these the function is the
//! system call itself and a look at one byte. It has to leave registers and stack as they are, since a number
//! may start a process or thread.

use super::set_errno;
use crate::cancel;
use libc::{c_int, c_long};

/// The calls that go to this library's functions. A number that is not here is the kernel's.
const NUMBERS: &[c_long] = &[
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

/// Above every number of [`NUMBERS`].
const END: usize = 512;

/// By number: 1 for those of [`NUMBERS`].
static OURS: [u8; END] = {
    let mut ours = [0; END];
    let mut at = 0;
    while at < NUMBERS.len() {
        ours[NUMBERS[at] as usize] = 1;
        at += 1;
    }
    ours
};

/// `syscall(2)`.
///
/// # Safety
/// As the system call.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() {
    // The number and five arguments are in registers, the sixth is above the return address.
    std::arch::naked_asm!(
        "cmp rdi, {end}",
        "jae 2f",
        "lea rax, [rip + {ours}]",
        "cmp byte ptr [rax + rdi], 0",
        "jne {by_number}",
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "3:",
        "mov rdi, rax",
        "jmp {failed}",
        end = const END,
        ours = sym OURS,
        by_number = sym by_number,
        failed = sym failed,
    )
}

/// `syscall(2)`.
///
/// # Safety
/// As the system call.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() {
    std::arch::naked_asm!(
        "cmp x0, #{end}",
        "b.hs 2f",
        "adrp x9, {ours}",
        "add x9, x9, :lo12:{ours}",
        "ldrb w9, [x9, x0]",
        "cbnz w9, 4f",
        "2:",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc #0",
        "cmn x0, #4095",
        "b.hs 3f",
        "ret",
        "3:",
        "b {failed}",
        "4:",
        "b {by_number}",
        end = const END,
        ours = sym OURS,
        by_number = sym by_number,
        failed = sym failed,
    )
}

/// What the kernel has answered, as C has it.
extern "C" fn failed(result: c_long) -> c_long {
    set_errno(-result as c_int);
    -1
}

/// A call of [`NUMBERS`].
///
/// # Safety
/// As the system call.
unsafe extern "C" fn by_number(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // As the C library's function, this is no cancellation point.
    let state = cancel::off();
    // SAFETY: the caller's promises.
    let result = unsafe { called(number, [a, b, c, d, e, f]) };
    cancel::set(state);
    result
}

/// # Safety
/// As the system call.
unsafe fn called(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> c_long {
    let fd = a as c_int;
    // A length of C that the kernel takes as a word.
    let [b_int, c_int, d_int] = [b, c, d].map(|word| word as c_int);
    // SAFETY: the caller's promises are those of each call; registers have the arguments in this order.
    unsafe {
        match number {
            libc::SYS_socket => super::socket(fd, b_int, c_int).into(),
            libc::SYS_bind => super::bind(fd, b as _, c as _).into(),
            libc::SYS_listen => super::listen(fd, b_int).into(),
            libc::SYS_accept => super::accept(fd, b as _, c as _).into(),
            libc::SYS_accept4 => super::accept4(fd, b as _, c as _, d_int).into(),
            libc::SYS_connect => super::connect(fd, b as _, c as _).into(),
            libc::SYS_shutdown => super::shutdown(fd, b_int).into(),
            libc::SYS_getsockname => super::getsockname(fd, b as _, c as _).into(),
            libc::SYS_getpeername => super::getpeername(fd, b as _, c as _).into(),
            libc::SYS_getsockopt => super::getsockopt(fd, b_int, c_int, d as _, e as _).into(),
            libc::SYS_setsockopt => super::setsockopt(fd, b_int, c_int, d as _, e as _).into(),
            libc::SYS_read => super::read(fd, b as _, c) as c_long,
            libc::SYS_write => super::write(fd, b as _, c) as c_long,
            libc::SYS_readv => super::readv(fd, b as _, c_int) as c_long,
            libc::SYS_writev => super::writev(fd, b as _, c_int) as c_long,
            libc::SYS_recvfrom => super::recvfrom(fd, b as _, c, d_int, e as _, f as _) as c_long,
            libc::SYS_sendto => super::sendto(fd, b as _, c, d_int, e as _, f as _) as c_long,
            libc::SYS_recvmsg => super::recvmsg(fd, b as _, c_int) as c_long,
            libc::SYS_sendmsg => super::sendmsg(fd, b as _, c_int) as c_long,
            libc::SYS_recvmmsg => super::recvmmsg(fd, b as _, c as _, d_int, e as _).into(),
            libc::SYS_sendmmsg => super::sendmmsg(fd, b as _, c as _, d_int).into(),
            libc::SYS_sendfile => super::sendfile(fd, b_int, c as _, d) as c_long,
            libc::SYS_splice => super::splice(fd, b as _, c_int, d as _, e, f as _) as c_long,
            libc::SYS_close => super::close(fd).into(),
            libc::SYS_close_range => super::close_range(a as _, b as _, c_int).into(),
            libc::SYS_dup => super::dup(fd).into(),
            libc::SYS_dup3 => super::dup3(fd, b_int, c_int).into(),
            libc::SYS_fcntl => super::fcntl(fd, b_int, c).into(),
            libc::SYS_ioctl => super::ioctl(fd, b as _, c).into(),
            libc::SYS_epoll_create1 => super::epoll_create1(fd).into(),
            libc::SYS_epoll_ctl => super::epoll_ctl(fd, b_int, c_int, d as _).into(),
            libc::SYS_epoll_pwait => super::epoll_pwait(fd, b as _, c_int, d_int, e as _).into(),
            libc::SYS_epoll_pwait2 => super::epoll_pwait2(fd, b as _, c_int, d as _, e as _).into(),
            libc::SYS_ppoll => super::ppoll(a as _, b as _, c as _, d as _).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => super::dup2(fd, b_int).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => super::poll(a as _, b as _, c_int).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => super::epoll_wait(fd, b as _, c_int, d_int).into(),
            _ => failed(-c_long::from(libc::ENOSYS)),
        }
    }
}
