//! bpf(2) commands for BPF links, which attach programs to hooks.

use super::{address_mut, bpf, bpf_fd, count, maps, number};
use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

const PROG_QUERY: u32 = 16;
const RAW_TRACEPOINT_OPEN: u32 = 17;
const CREATE: u32 = 28;
const UPDATE: u32 = 29;
const DETACH: u32 = 34;

/// The arguments of [`link_create`].
pub(in super::super) struct LinkCreate<'a> {
    pub(in super::super) program: BorrowedFd<'a>,
    pub(in super::super) ifindex: u32,
    pub(in super::super) attach_type: u32,
    pub(in super::super) flags: u32,
}

#[repr(C)]
struct CreateAttr {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative: u32,
    padding: u32,
    revision: u64,
}

pub(in super::super) fn link_create(link: &LinkCreate<'_>) -> io::Result<OwnedFd> {
    let mut attr = CreateAttr {
        program: number(link.program),
        ifindex: link.ifindex,
        attach_type: link.attach_type,
        flags: link.flags,
        relative: 0,
        padding: 0,
        revision: 0,
    };
    // SAFETY: the argument has no pointers.
    unsafe { bpf_fd(CREATE, &mut attr) }
}

#[repr(C)]
struct TracepointAttr {
    name: u64,
    program: u32,
    padding: u32,
}

pub(in super::super) fn raw_tracepoint_open(
    name: &CStr,
    program: BorrowedFd<'_>,
) -> io::Result<OwnedFd> {
    let mut attr = TracepointAttr {
        name: name.as_ptr() as u64,
        program: number(program),
        padding: 0,
    };
    // SAFETY: the name is a NUL-terminated string, which the kernel copies.
    unsafe { bpf_fd(RAW_TRACEPOINT_OPEN, &mut attr) }
}

#[repr(C)]
struct UpdateAttr {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

pub(in super::super) fn link_update(
    link: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut attr = UpdateAttr {
        link: number(link),
        program: number(program),
        flags: 0,
        old_program: 0,
    };
    // SAFETY: the argument has no pointers.
    unsafe { bpf(UPDATE, &mut attr)? };
    Ok(())
}

pub(in super::super) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = number(link);
    // SAFETY: the argument has no pointers.
    unsafe { bpf(DETACH, &mut attr)? };
    Ok(())
}

/// The start of `struct bpf_link_info`, for XDP and tcx.
#[repr(C)]
#[derive(Default)]
pub(in super::super) struct LinkInfo {
    pub(in super::super) link_type: u32,
    pub(in super::super) id: u32,
    pub(in super::super) program_id: u32,
    padding: u32,
    pub(in super::super) ifindex: u32,
    pub(in super::super) attach_type: u32,
}

pub(in super::super) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut out = LinkInfo::default();
    // SAFETY: the layout is the kernel's for the link types that weir creates.
    // In these 24 bytes no link type has a pointer that the kernel would follow
    // with a length of zero.
    unsafe { maps::info(link, &mut out)? };
    Ok(out)
}

#[repr(C)]
#[derive(Default)]
struct QueryAttr {
    ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    count: u32,
    padding: u32,
    program_flags: u64,
    link_ids: u64,
    link_flags: u64,
    revision: u64,
}

/// The result of [`prog_query`]: as many ids as fit.
pub(in super::super) struct Query {
    pub(in super::super) program_ids: Vec<u32>,
}

/// The programs at a hook of an interface, in the order in which they run.
pub(in super::super) fn prog_query(ifindex: u32, attach_type: u32) -> io::Result<Query> {
    const PROGRAMS_MAX: usize = 64;
    let mut program_ids = vec![0; PROGRAMS_MAX];
    let mut attr = QueryAttr {
        ifindex,
        attach_type,
        program_ids: address_mut(&mut program_ids),
        count: count(PROGRAMS_MAX)?,
        ..QueryAttr::default()
    };
    // SAFETY: the kernel writes at most `count` ids there.
    unsafe { bpf(PROG_QUERY, &mut attr)? };
    program_ids.truncate(attr.count as usize);
    Ok(Query { program_ids })
}
