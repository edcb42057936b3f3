//! The table of functions that packetdrill calls, in the order and with the
//! types of its `packetdrill.h`.
//!
//! Pointers of the caller's are numbers here: nobody but `memory` follows them.

use crate::simulation::Simulation;
use crate::{Answer, Errno, interpose, user_memory};
use libc::{c_int, c_uint, c_ulong, c_void, nfds_t, size_t, socklen_t, ssize_t};

/// What is given back to each function first.
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

/// What packetdrill looks up in the shared object: fills its table.
///
/// `flags` is the text of `--so_flags`, or null: `local4=`, `local6=` (our
/// addresses with their prefix lengths) and `mtu=`, separated by commas.
///
/// # Safety
/// `interface` is a place for one [`Interface`], which nothing refers to.
// SAFETY: the name is the one that packetdrill looks for, and nobody else has.
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
    // SAFETY: packetdrill gives a place for its table, which nothing refers to
    // yet.
    unsafe { interface.write(table(world.cast())) };
}

extern "C" fn free(userdata: Userdata) {
    interpose::end();
    // SAFETY: `init` made it of a box, and packetdrill calls this once, last.
    drop(unsafe { Box::from_raw(userdata.cast::<Simulation>()) });
}

fn simulation<'a>(userdata: Userdata) -> &'a Simulation {
    // SAFETY: packetdrill hands back what `init` gave it, until `free`; a world
    // is changed only behind its lock.
    unsafe { &*userdata.cast::<Simulation>() }
}

/// An answer as C has it: -1, and `errno`.
pub(crate) fn answer(answer: Answer) -> i64 {
    answer.unwrap_or_else(|Errno(number)| {
        // SAFETY: `errno` of this thread, which nobody else writes.
        unsafe { *libc::__errno_location() = number };
        -1
    })
}
