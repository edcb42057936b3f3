//! `getsockopt` and `sendfile` of the whole process.
//!
//! packetdrill calls the C library's functions, not its table, to read
//! `TCP_INFO` for a script's assertions and to send files. Loaded before that
//! library (`LD_PRELOAD`), these functions handle the simulation's descriptors
//! and pass all others to the kernel.

use crate::abi::answer;
use crate::simulation::Simulation;
use libc::{c_int, c_long};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The simulation that packetdrill has created; null before and after.
static WORLD: AtomicPtr<Simulation> = AtomicPtr::new(std::ptr::null_mut());

/// Registers the simulation.
pub(crate) fn begin(world: *mut Simulation) {
    WORLD.store(world, Ordering::Release);
}

/// Unregisters the simulation.
pub(crate) fn end() {
    WORLD.store(std::ptr::null_mut(), Ordering::Release);
}

/// The simulation, if the descriptor is one of its own.
fn simulation_of(fd: c_int) -> Option<&'static Simulation> {
    // SAFETY: the pointer is null, or refers to the simulation, which lives
    // until `free`, packetdrill's last call.
    let world = unsafe { WORLD.load(Ordering::Acquire).as_ref() };
    world.filter(|world| world.owns(fd))
}

/// As getsockopt(2).
// SAFETY: name and meaning are the C library's; calls for other descriptors are
// passed to the kernel unchanged.
#[unsafe(no_mangle)]
pub extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: usize,
    len: usize,
) -> c_int {
    if let Some(world) = simulation_of(fd) {
        return answer(world.getsockopt(fd, level, name, value, len)) as c_int;
    }
    // SAFETY: the caller's own system call; the kernel checks its pointers.
    let result: c_long =
        unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) };
    result as c_int
}

/// As sendfile(2).
// SAFETY: name and meaning are the C library's; calls for other descriptors are
// passed to the kernel unchanged.
#[unsafe(no_mangle)]
pub extern "C" fn sendfile(to: c_int, from: c_int, offset: usize, count: usize) -> isize {
    if let Some(world) = simulation_of(to) {
        return answer(world.sendfile(to, from, offset, count)) as isize;
    }
    // SAFETY: the caller's own system call; the kernel checks its pointers.
    let result: c_long = unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, count) };
    result as isize
}
