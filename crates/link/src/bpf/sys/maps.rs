//! bpf(2) commands for maps.

use super::{NAME_BYTES, address, address_mut, bpf, bpf_fd, count, number};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

const CREATE: u32 = 0;
const LOOKUP_ELEM: u32 = 1;
const UPDATE_ELEM: u32 = 2;
const DELETE_ELEM: u32 = 3;
const GET_NEXT_KEY: u32 = 4;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const FREEZE: u32 = 22;
const LOOKUP_BATCH: u32 = 24;
const UPDATE_BATCH: u32 = 26;
const DELETE_BATCH: u32 = 27;

/// The arguments of [`map_create`].
pub(in super::super) struct MapCreate<'a> {
    pub(in super::super) map_type: u32,
    pub(in super::super) key_bytes: u32,
    pub(in super::super) value_bytes: u32,
    pub(in super::super) entries_max: u32,
    pub(in super::super) flags: u32,
    /// For maps of maps: the template of the inner maps.
    pub(in super::super) inner: Option<BorrowedFd<'a>>,
    pub(in super::super) name: [u8; NAME_BYTES],
}

#[repr(C)]
struct CreateAttr {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    name: [u8; NAME_BYTES],
}

pub(in super::super) fn map_create(map: MapCreate<'_>) -> io::Result<OwnedFd> {
    let mut attr = CreateAttr {
        map_type: map.map_type,
        key_bytes: map.key_bytes,
        value_bytes: map.value_bytes,
        entries_max: map.entries_max,
        flags: map.flags,
        inner_map_fd: map.inner.map_or(0, number),
        numa_node: 0,
        name: map.name,
    };
    // SAFETY: the argument has no pointers.
    unsafe { bpf_fd(CREATE, &mut attr) }
}

#[repr(C)]
struct ElemAttr {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl ElemAttr {
    fn new(map: BorrowedFd<'_>, key: &[u8], value: u64, flags: u64) -> ElemAttr {
        ElemAttr {
            map_fd: number(map),
            padding: 0,
            key: address(key),
            value,
            flags,
        }
    }
}

/// # Safety
/// `key` and `value` have the sizes that the kernel reads for this map.
pub(in super::super) unsafe fn map_update(
    map: BorrowedFd<'_>,
    key: &[u8],
    value: &[u8],
    flags: u64,
) -> io::Result<()> {
    let mut attr = ElemAttr::new(map, key, address(value), flags);
    // SAFETY: the kernel reads a key and a value, whose sizes the caller
    // promises.
    unsafe { bpf(UPDATE_ELEM, &mut attr)? };
    Ok(())
}

/// # Safety
/// As for [`map_update`], where the kernel writes the value.
pub(in super::super) unsafe fn map_lookup(
    map: BorrowedFd<'_>,
    key: &[u8],
    value: &mut [u8],
) -> io::Result<()> {
    let mut attr = ElemAttr::new(map, key, address_mut(value), 0);
    // SAFETY: the kernel reads a key and writes a value, whose sizes the
    // caller promises.
    unsafe { bpf(LOOKUP_ELEM, &mut attr)? };
    Ok(())
}

/// # Safety
/// `key` has the size that the map was made with.
pub(in super::super) unsafe fn map_delete(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<()> {
    let mut attr = ElemAttr::new(map, key, 0, 0);
    // SAFETY: the kernel reads a key, whose size the caller promises.
    unsafe { bpf(DELETE_ELEM, &mut attr)? };
    Ok(())
}

/// The first key if `key` is empty.
///
/// # Safety
/// `key` (if not empty) and `next` have the size that the map was made with.
pub(in super::super) unsafe fn map_next_key(
    map: BorrowedFd<'_>,
    key: &[u8],
    next: &mut [u8],
) -> io::Result<()> {
    let mut attr = ElemAttr::new(map, key, address_mut(next), 0);
    // SAFETY: the kernel reads a key and writes another, whose sizes the
    // caller promises.
    unsafe { bpf(GET_NEXT_KEY, &mut attr)? };
    Ok(())
}

#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// The progress of a batch.
pub(in super::super) struct Batch {
    pub(in super::super) done: usize,
    pub(in super::super) result: io::Result<()>,
}

/// # Safety
/// The pointers in `attr` point to memory for `count` keys and values.
unsafe fn batch(command: u32, mut attr: BatchAttr) -> Batch {
    let asked = attr.count;
    // SAFETY: the caller's promise.
    let result = unsafe { bpf(command, &mut attr) };
    // After an error some entries were not processed. If the kernel refused the
    // arguments themselves, it left the count unchanged. The end of a map is
    // also an error (ENOENT), and may come with the last entries read.
    let at_end = command == LOOKUP_BATCH
        && matches!(&result, Err(error) if error.kind() == io::ErrorKind::NotFound);
    let untouched = result.is_err() && attr.count == asked && !at_end;
    Batch {
        done: if untouched { 0 } else { attr.count as usize },
        result: result.map(drop),
    }
}

/// # Safety
/// `keys` and `values` hold `count` entries each, of the sizes that the
/// kernel reads for this map.
pub(in super::super) unsafe fn map_update_batch(
    map: BorrowedFd<'_>,
    count: u32,
    keys: &[u8],
    values: &[u8],
) -> Batch {
    let attr = BatchAttr {
        in_batch: 0,
        out_batch: 0,
        keys: address(keys),
        values: address(values),
        count,
        map_fd: number(map),
        elem_flags: 0,
        flags: 0,
    };
    // SAFETY: the kernel only reads the slices, whose sizes the caller
    // promises.
    unsafe { batch(UPDATE_BATCH, attr) }
}

/// # Safety
/// `keys` holds `count` keys of the size that the map was made with.
pub(in super::super) unsafe fn map_delete_batch(
    map: BorrowedFd<'_>,
    count: u32,
    keys: &[u8],
) -> Batch {
    // SAFETY: a deletion reads no values; the rest is the caller's promise.
    unsafe {
        let attr = BatchAttr {
            in_batch: 0,
            out_batch: 0,
            keys: address(keys),
            values: 0,
            count,
            map_fd: number(map),
            elem_flags: 0,
            flags: 0,
        };
        batch(DELETE_BATCH, attr)
    }
}

/// Reads up to `count` entries. `cursor` is the position to continue from
/// (empty at first); `next` receives the following position.
///
/// # Safety
/// `keys` and `values` have room for `count` entries of the sizes that the
/// kernel writes for this map; `next` for the larger of 4 bytes and a key,
/// and so has `cursor` unless it is empty.
pub(in super::super) unsafe fn map_lookup_batch(
    map: BorrowedFd<'_>,
    count: u32,
    cursor: &[u8],
    next: &mut [u8],
    keys: &mut [u8],
    values: &mut [u8],
) -> Batch {
    let attr = BatchAttr {
        in_batch: address(cursor),
        out_batch: address_mut(next),
        keys: address_mut(keys),
        values: address_mut(values),
        count,
        map_fd: number(map),
        elem_flags: 0,
        flags: 0,
    };
    // SAFETY: the caller's promise on the sizes.
    unsafe { batch(LOOKUP_BATCH, attr) }
}

pub(in super::super) fn map_freeze(map: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = number(map);
    // SAFETY: the argument has no pointers.
    unsafe { bpf(FREEZE, &mut attr)? };
    Ok(())
}

/// The start of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
pub(in super::super) struct MapInfo {
    pub(in super::super) map_type: u32,
    pub(in super::super) id: u32,
    pub(in super::super) key_bytes: u32,
    pub(in super::super) value_bytes: u32,
    pub(in super::super) entries_max: u32,
    pub(in super::super) flags: u32,
    pub(in super::super) name: [u8; NAME_BYTES],
}

#[repr(C)]
pub(super) struct InfoAttr {
    pub(super) fd: u32,
    pub(super) info_bytes: u32,
    pub(super) info: u64,
}

/// Queries information about an object.
///
/// # Safety
/// `T` has the layout of the start of the kernel's structure for this kind of
/// object, is valid for any bytes, and contains no pointer that the kernel
/// would write through.
pub(super) unsafe fn info<T>(fd: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    let mut attr = InfoAttr {
        fd: number(fd),
        info_bytes: count(size_of::<T>())?,
        info: std::ptr::from_mut(info) as u64,
    };
    // SAFETY: the kernel writes at most `info_bytes` there; the rest is the
    // caller's promise.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attr)? };
    Ok(())
}

pub(in super::super) fn map_info(map: BorrowedFd<'_>) -> io::Result<MapInfo> {
    let mut out = MapInfo::default();
    // SAFETY: the layout is the kernel's; there are no pointers.
    unsafe { info(map, &mut out)? };
    Ok(out)
}
