//! bpf(2) commands for objects of any kind: ids, pins, information.

use super::{NAME_BYTES, bpf, bpf_fd, maps, number};
use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

const PIN: u32 = 6;
const GET: u32 = 7;

/// The commands that return the next id of programs, maps and links.
pub(in super::super) const GET_NEXT_ID: [u32; 3] = [11, 12, 31];

/// The commands that return a descriptor by id, of programs, maps and links.
pub(in super::super) const GET_FD: [u32; 3] = [13, 14, 30];

#[repr(C)]
struct PinAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

pub(in super::super) fn obj_pin(object: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    let mut attr = PinAttr {
        path: path.as_ptr() as u64,
        fd: number(object),
        flags: 0,
    };
    // SAFETY: the path ends in zero, and is only read.
    unsafe { bpf(PIN, &mut attr)? };
    Ok(())
}

pub(in super::super) fn obj_get(path: &CStr) -> io::Result<OwnedFd> {
    let mut attr = PinAttr {
        path: path.as_ptr() as u64,
        fd: 0,
        flags: 0,
    };
    // SAFETY: the path ends in zero, and is only read.
    unsafe { bpf_fd(GET, &mut attr) }
}

#[repr(C)]
struct IdAttr {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

/// `command` is one of [`GET_NEXT_ID`].
pub(in super::super) fn next_id(command: u32, id: u32) -> io::Result<u32> {
    let mut attr = IdAttr {
        id,
        next_id: 0,
        open_flags: 0,
    };
    // SAFETY: the argument has no pointers.
    unsafe { bpf(command, &mut attr)? };
    Ok(attr.next_id)
}

/// `command` is one of [`GET_FD`].
pub(in super::super) fn fd_by_id(command: u32, id: u32, open_flags: u32) -> io::Result<OwnedFd> {
    let mut attr = IdAttr {
        id,
        next_id: 0,
        open_flags,
    };
    // SAFETY: there are no pointers, and each of these commands makes a
    // descriptor.
    unsafe { bpf_fd(command, &mut attr) }
}

/// The start of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
pub(in super::super) struct ProgInfo {
    pub(in super::super) program_type: u32,
    pub(in super::super) id: u32,
    pub(in super::super) tag: [u8; 8],
    pub(in super::super) machine_bytes: u32,
    pub(in super::super) translated_bytes: u32,
    /// Pointers to buffers for machine code and instructions: zero.
    machine: u64,
    translated: u64,
    pub(in super::super) loaded_ns: u64,
    pub(in super::super) uid: u32,
    pub(in super::super) maps: u32,
    map_ids: u64,
    pub(in super::super) name: [u8; NAME_BYTES],
}

/// `MAX_USED_MAPS`: maps of a program, at most.
const PROG_MAPS_MAX: usize = 64;

/// The ids of the maps that a program uses.
pub(in super::super) fn prog_map_ids(program: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; PROG_MAPS_MAX];
    let mut out = ProgInfo {
        maps: PROG_MAPS_MAX as u32,
        map_ids: ids.as_mut_ptr() as u64,
        ..ProgInfo::default()
    };
    // SAFETY: the layout is the kernel's; through `map_ids`, the one pointer whose length is not
    // zero, the kernel writes at most `maps` numbers, for which there is room until after the call.
    unsafe { maps::info(program, &mut out)? };
    ids.truncate(out.maps as usize);
    Ok(ids)
}

pub(in super::super) fn prog_info(program: BorrowedFd<'_>) -> io::Result<ProgInfo> {
    let mut out = ProgInfo::default();
    // SAFETY: the layout is the kernel's; the lengths beside the pointers are
    // zero, so nothing is written through them.
    unsafe { maps::info(program, &mut out)? };
    Ok(out)
}
