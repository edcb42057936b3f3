//! weir's captures as the application's `pcap_t`.
//!
//! A `pcap_t` of weir's is the address of a place in a table of this library's own. So comparing an
//! address distinguishes weir's from the system's, and nothing of an unknown handle is read.

use crate::capture::Capture;
use crate::types::Pcap;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Captures of a process at a time; more are refused.
pub(crate) const CAPTURES_MAX: usize = 1024;

/// The captures; null where a place is free.
static PLACES: [AtomicPtr<Capture>; CAPTURES_MAX] = [const { AtomicPtr::new(null_mut()) }; _];

/// Gives a capture a place; `None` if the table is full.
pub(crate) fn insert(capture: Box<Capture>) -> Option<*mut Pcap> {
    let capture = Box::into_raw(capture);
    for place in &PLACES {
        let swapped =
            place.compare_exchange(null_mut(), capture, Ordering::AcqRel, Ordering::Relaxed);
        if swapped.is_ok() {
            return Some(std::ptr::from_ref(place).cast_mut().cast());
        }
    }
    // SAFETY: the pointer came from `Box::into_raw`, and no place has it.
    drop(unsafe { Box::from_raw(capture) });
    None
}

/// The place that a handle is the address of.
fn place(handle: *mut Pcap) -> Option<&'static AtomicPtr<Capture>> {
    let offset = handle.addr().checked_sub(PLACES.as_ptr().addr())?;
    let size = size_of::<AtomicPtr<Capture>>();
    if offset % size != 0 {
        return None;
    }
    PLACES.get(offset / size)
}

/// The capture of a handle; `None` if the handle is the system's. The use of a handle that is
/// closed ends the process, as the application's own mistake.
///
/// # Safety
/// The handle is not closed while the result lives.
pub(crate) unsafe fn find<'a>(handle: *mut Pcap) -> Option<&'a Capture> {
    let place = place(handle)?;
    // SAFETY: a pointer in the table is of a capture, which only `remove` takes from it.
    let capture = unsafe { place.load(Ordering::Acquire).as_ref() };
    if capture.is_none() {
        eprintln!("weir: the program uses a pcap_t that it has closed");
        std::process::abort();
    }
    capture
}

/// Takes the capture of a handle from the table, to be closed; `None` if the handle is the system's.
///
/// # Safety
/// Nothing uses the capture.
pub(crate) unsafe fn remove(handle: *mut Pcap) -> Option<Box<Capture>> {
    let place = place(handle)?;
    let capture = place.swap(null_mut(), Ordering::AcqRel);
    if capture.is_null() {
        eprintln!("weir: the program closes a pcap_t that it has closed");
        std::process::abort();
    }
    // SAFETY: the pointer came from `Box::into_raw`, and only the table had it.
    Some(unsafe { Box::from_raw(capture) })
}
