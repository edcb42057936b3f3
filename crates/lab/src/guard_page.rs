//! Memory between two guard pages: code that reads or writes outside of a frame
//! crashes at once.

#![expect(
    unsafe_code,
    reason = "maps memory and hands out a part of it as a slice"
)]

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ptr::null_mut;

/// Room for one frame, with a guard page on each side.
#[derive(Debug)]
pub struct Guarded {
    /// Address of the first guard page.
    start: *mut u8,
    page: usize,
    /// Bytes between the guard pages.
    room: usize,
}

impl Guarded {
    /// Room for frames of up to `bytes_max` bytes.
    ///
    /// # Panics
    /// If memory cannot be mapped.
    pub fn new(bytes_max: usize) -> Guarded {
        let page = rustix::param::page_size();
        let room = bytes_max.next_multiple_of(page).max(page);
        let len = room + 2 * page;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address.
        let start = unsafe { mmap_anonymous(null_mut(), len, access, flags) }
            .expect("memory can be mapped")
            .cast::<u8>();
        for guard in [start, start.wrapping_add(page + room)] {
            // SAFETY: a page of the mapping above, to which no reference
            // exists.
            unsafe { mprotect(guard.cast(), page, MprotectFlags::empty()) }
                .expect("memory can be protected");
        }
        Guarded { start, page, room }
    }

    /// Copies `bytes` to the end of the room, directly before a guard page.
    ///
    /// # Panics
    /// If `bytes` does not fit.
    pub fn at_end(&mut self, bytes: &[u8]) -> &[u8] {
        self.copy_in(bytes, self.room - bytes.len())
    }

    /// Copies `bytes` to the start of the room, directly behind a guard page.
    ///
    /// # Panics
    /// If `bytes` does not fit.
    pub fn at_start(&mut self, bytes: &[u8]) -> &[u8] {
        self.copy_in(bytes, 0)
    }

    /// A frame that fills the room with zeros, except for `marks`: offsets and
    /// their bytes. If the room was not used before, only the pages with marks
    /// need memory, so that the frame may have many gigabytes.
    pub fn sparse(&mut self, marks: &[(usize, u8)]) -> &[u8] {
        // SAFETY: the whole room, readable, writable and zeroed; the slice
        // borrows `self`, so that no other slice exists.
        let frame = unsafe { std::slice::from_raw_parts_mut(self.start.add(self.page), self.room) };
        for &(position, byte) in marks {
            frame[position] = byte;
        }
        frame
    }

    fn copy_in(&mut self, bytes: &[u8], offset: usize) -> &[u8] {
        assert!(offset + bytes.len() <= self.room, "no room for the frame");
        // SAFETY: inside the room, which is readable, writable and zeroed; the
        // slice borrows `self`, so that no other slice exists.
        let place = unsafe {
            std::slice::from_raw_parts_mut(self.start.add(self.page + offset), bytes.len())
        };
        place.copy_from_slice(bytes);
        place
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and slices of it do not outlive `self`.
        let _ = unsafe { munmap(self.start.cast(), self.room + 2 * self.page) };
    }
}
