//! The table of functions that packetdrill calls, in the order and with the
//! types of its `packetdrill.h`.
//!
//! The caller's pointers are integers here: only `user_memory` dereferences
//! them.

use crate::simulation::Simulation;
use crate::{Answer, Errno, interpose, user_memory};
use libc::{c_int, c_uint, c_ulong, c_void, nfds_t, size_t, socklen_t, ssize_t};

/// The first argument of each function, as `init` set it.
type Userdata = *mut c_void;

macro_rules! interface {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)+) => {
        /// `struct packetdrill_interface`.
        #[repr(C)]
        pub struct Interface {
            userdata: Userdata,
            free: extern "C" fn(Userdata),
            $($name: extern "C" fn(Userdata, $($kind),*) -> $result,)+
        }

        $(
            extern "C" fn $name(userdata: Userdata, $($arg: $kind),*) -> $result {
                answer(simulation(userdata).$name($($arg),*)) as $result
            }
        )+

        fn table(userdata: Userdata) -> Interface {
            Interface { userdata, free, $($name,)+ }
        }
    };
}

// `fcntl` and `ioctl` are variadic in C: one argument of a word's size comes
// as any other does, on the platforms that Rust has for Linux.
interface! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, address: usize, len: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept(fd: c_int, address: usize, len: usize) -> c_int;
    connect(fd: c_int, address: usize, len: socklen_t) -> c_int;
    read(fd: c_int, bytes: usize, len: size_t) -> ssize_t;
    readv(fd: c_int, pieces: usize, count: c_int) -> ssize_t;
    recv(fd: c_int, bytes: usize, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, bytes: usize, len: size_t, flags: c_int, address: usize, address_len: usize) -> ssize_t;
    recvmsg(fd: c_int, message: usize, flags: c_int) -> ssize_t;
    write(fd: c_int, bytes: usize, len: size_t) -> ssize_t;
    writev(fd: c_int, pieces: usize, count: c_int) -> ssize_t;
    send(fd: c_int, bytes: usize, len: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, bytes: usize, len: size_t, flags: c_int, address: usize, address_len: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: usize, flags: c_int) -> ssize_t;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    close(fd: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: usize, len: usize) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: usize, len: socklen_t) -> c_int;
    poll(fds: usize, count: nfds_t, timeout_ms: c_int) -> c_int;
    netdev_send(packet: usize, len: size_t) -> c_int;
    netdev_receive(packet: usize, len: usize, time_us: usize) -> c_int;
    usleep(us: c_uint) -> c_int;
    gettimeofday(time: usize, zone: usize) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: usize) -> c_int;
    epoll_wait(epoll: c_int, events: usize, count: c_int, timeout_ms: c_int) -> c_int;
    pipe(fds: usize) -> c_int;
    splice(from: c_int, from_offset: usize, to: c_int, to_offset: usize, len: size_t, flags: c_uint) -> ssize_t;
}

/// The function that packetdrill looks up in the shared object: it fills the
/// table.
///
/// `flags` is the text of `--so_flags`, or null: `local4=` and `local6=` (the
/// stack's addresses with prefix lengths) and `mtu=`, separated by commas.
///
/// # Safety
/// `interface` points to room for one [`Interface`], to which no reference
/// exists.
// SAFETY: the name is the one that packetdrill looks up, and no other symbol
// has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: usize, interface: *mut Interface) {
    let flags = user_memory::take_text(flags, 1024);
    let world = match Simulation::new(&flags) {
        Ok(world) => Box::into_raw(Box::new(world)),
        Err(error) => {
            eprintln!("weir: {error}");
            std::process::exit(2);
        }
    };
    interpose::begin(world);
    // SAFETY: packetdrill passes room for its table, to which no reference
    // exists yet.
    unsafe { interface.write(table(world.cast())) };
}

extern "C" fn free(userdata: Userdata) {
    interpose::end();
    // SAFETY: `init` created it from a box, and packetdrill calls this function
    // once, last.
    drop(unsafe { Box::from_raw(userdata.cast::<Simulation>()) });
}

fn simulation<'a>(userdata: Userdata) -> &'a Simulation {
    // SAFETY: packetdrill passes back the pointer that `init` set, until
    // `free`; a simulation is changed only under its lock.
    unsafe { &*userdata.cast::<Simulation>() }
}

/// A result in C's form: -1 and `errno` on failure.
pub(crate) fn answer(answer: Answer) -> i64 {
    answer.unwrap_or_else(|Errno(number)| {
        // SAFETY: `errno` belongs to this thread.
        unsafe { *libc::__errno_location() = number };
        -1
    })
}
