//! The bpf(2) system call: the layouts of its arguments.
//!
//! One function for each command; each takes slices and returns owned
//! descriptors, so that callers need no `unsafe`. Layouts are those of `union
//! bpf_attr` in `linux/bpf.h`; every command may pass a prefix of the union.
#![allow(unsafe_code)] // System calls take pointers.

mod links;
mod maps;
mod objects;

pub(super) use links::{
    LinkCreate, link_create, link_detach, link_info, link_update, prog_query, raw_tracepoint_open,
};
pub(super) use maps::{
    Batch, MapCreate, map_create, map_delete, map_delete_batch, map_freeze, map_info, map_lookup,
    map_lookup_batch, map_next_key, map_update, map_update_batch,
};
pub(super) use objects::{
    GET_FD, GET_NEXT_ID, fd_by_id, next_id, obj_get, obj_pin, prog_info, prog_map_ids,
};

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const PROG_LOAD: u32 = 5;
const PROG_TEST_RUN: u32 = 10;

/// `BPF_XDP` in `enum bpf_attach_type`.
pub(super) const ATTACH_XDP: u32 = 37;

/// Bytes of an object's name, including the terminating NUL.
pub(super) const NAME_BYTES: usize = 16;

/// Calls bpf(2).
///
/// # Safety
/// `attr` has the layout of the command's part of `union bpf_attr`, without
/// padding, and every pointer in it leads to memory that is valid for what
/// the kernel does with it during the call.
unsafe fn bpf<T>(command: u32, attr: &mut T) -> io::Result<i32> {
    let size = size_of::<T>();
    // SAFETY: `attr` is valid for `size` bytes; the rest is the caller's
    // promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as i32)
    }
}

/// As [`bpf`], for commands that return a descriptor.
///
/// # Safety
/// As for [`bpf`], and the command gives a new descriptor.
unsafe fn bpf_fd<T>(command: u32, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let fd = unsafe { bpf(command, attr)? };
    // SAFETY: the kernel has just created this descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address<T>(slice: &[T]) -> u64 {
    if slice.is_empty() {
        0
    } else {
        slice.as_ptr() as u64
    }
}

fn address_mut<T>(slice: &mut [T]) -> u64 {
    if slice.is_empty() {
        0
    } else {
        slice.as_mut_ptr() as u64
    }
}

/// The arguments of [`prog_load`].
pub(super) struct Load<'a> {
    pub(super) program_type: u32,
    pub(super) insns: &'a [u64],
    pub(super) name: [u8; NAME_BYTES],
    pub(super) flags: u32,
    /// In `enum bpf_attach_type`, for the types that need it; else 0.
    pub(super) attach_type: u32,
    /// Descriptors of the maps, by index.
    pub(super) maps: &'a [i32],
    /// Receives the verifier's log; empty to request none.
    pub(super) log: &'a mut [u8],
}

#[repr(C)]
struct LoadAttr {
    program_type: u32,
    insn_count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    flags: u32,
    name: [u8; NAME_BYTES],
    ifindex: u32,
    attach_type: u32,
    /// BTF types and line information: absent.
    btf: [u32; 12],
    fd_array: u64,
}

pub(super) fn prog_load(load: Load<'_>) -> io::Result<OwnedFd> {
    // The kernel's list of licences lacks MIT.
    let license = c"Dual MIT/GPL";
    let mut attr = LoadAttr {
        program_type: load.program_type,
        insn_count: count(load.insns.len())?,
        insns: address(load.insns),
        license: license.as_ptr() as u64,
        log_level: u32::from(!load.log.is_empty()),
        log_size: count(load.log.len())?,
        log_buf: address_mut(load.log),
        kern_version: 0,
        flags: load.flags,
        name: load.name,
        ifindex: 0,
        attach_type: load.attach_type,
        btf: [0; 12],
        fd_array: address(load.maps),
    };
    // SAFETY: the pointers point to slices of the stated lengths and to a
    // NUL-terminated string; only the log is written. The kernel reads those
    // elements of the map array that the program refers to, which the caller
    // has checked against its length.
    unsafe { bpf_fd(PROG_LOAD, &mut attr) }
}

fn count(len: usize) -> io::Result<u32> {
    u32::try_from(len).map_err(|_| io::ErrorKind::ArgumentListTooLong.into())
}

/// The result of [`prog_test_run`].
pub(super) struct Ran {
    pub(super) retval: u32,
    pub(super) duration_ns: u32,
    pub(super) out_len: usize,
}

#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

/// The arguments of [`prog_test_run`].
pub(super) struct TestRun<'a> {
    pub(super) input: &'a [u8],
    pub(super) context: &'a [u8],
    pub(super) output: &'a mut [u8],
    pub(super) repeat: u32,
    pub(super) flags: u32,
    pub(super) batch: u32,
}

pub(super) fn prog_test_run(program: BorrowedFd<'_>, run: TestRun<'_>) -> io::Result<Ran> {
    let mut attr = TestRunAttr {
        prog_fd: number(program),
        data_size_in: count(run.input.len())?,
        data_size_out: count(run.output.len())?,
        data_in: address(run.input),
        data_out: address_mut(run.output),
        repeat: run.repeat,
        ctx_size_in: count(run.context.len())?,
        ctx_in: address(run.context),
        flags: run.flags,
        batch_size: run.batch,
        ..TestRunAttr::default()
    };
    // SAFETY: the pointers point to slices of the stated lengths; only the
    // output is written, up to `data_size_out`.
    unsafe { bpf(PROG_TEST_RUN, &mut attr)? };
    Ok(Ran {
        retval: attr.retval,
        duration_ns: attr.duration,
        out_len: attr.data_size_out as usize,
    })
}

/// The descriptor's number, which is never negative.
fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd() as u32
}
