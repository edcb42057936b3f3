//! `getsockopt` and `sendfile` of the whole process.
//!
//! packetdrill reads `TCP_INFO` for a script's assertions by the function of
//! the C library, not by the table it was given, and so it sends files. Loaded
//! ahead of that library (`LD_PRELOAD`), these answer for our descriptors and
//! leave all others to the kernel.

use crate::abi::answer;
use crate::simulation::Simulation;
use libc::{c_int, c_long};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The world that packetdrill has made; null before and after.
static WORLD: AtomicPtr<Simulation> = AtomicPtr::new(std::ptr::null_mut());

/// There is a world now.
pub(crate) fn begin(world: *mut Simulation) {
    WORLD.store(world, Ordering::Release);
}

/// There is none any more.
pub(crate) fn end() {
    WORLD.store(std::ptr::null_mut(), Ordering::Release);
}

/// The world, if a descriptor is one of its.
fn simulation_of(fd: c_int) -> Option<&'static Simulation> {
    // SAFETY: the pointer is null, or the world that lives until `free`, which
    // packetdrill calls last of all.
    let world = unsafe { WORLD.load(Ordering::Acquire).as_ref() };
    world.filter(|world| world.owns(fd))
}

/// As getsockopt(2).
// SAFETY: the name is the C library's, and so is the meaning: what is not ours
// goes to the kernel as it came.
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
    // SAFETY: the caller's own system call; the kernel judges its pointers.
    let result: c_long =
        unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) };
    result as c_int
}

/// As sendfile(2).
// SAFETY: the name is the C library's, and so is the meaning: what is not ours
// goes to the kernel as it came.
#[unsafe(no_mangle)]
pub extern "C" fn sendfile(to: c_int, from: c_int, offset: usize, count: usize) -> isize {
    if let Some(world) = simulation_of(to) {
        return answer(world.sendfile(to, from, offset, count)) as isize;
    }
    // SAFETY: the caller's own system call; the kernel judges its pointers.
    let result: c_long = unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, count) };
    result as isize
}
