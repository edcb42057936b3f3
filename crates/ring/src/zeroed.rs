//! Large values of zeros, straight from the kernel.
#![allow(unsafe_code)] // Mapped memory.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::{NonNull, null_mut};
use zerocopy::FromZeros;

/// No system has smaller pages.
const PAGE_MIN: usize = 4096;

/// A value that began as zeros, in memory of its own: a box whose pages come when they are
/// first written, or large ones all at once.
pub struct Zeroed<T>(NonNull<T>);

// SAFETY: it owns the value, as a box does.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: a shared reference to it gives one to the value.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

impl<T: FromZeros> Zeroed<T> {
    /// The kernel gives each small page when it is first written, in 0.6 to 1.5 µs, or
    /// several by one call: see [`Zeroed::populate`].
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn lazy() -> io::Result<Zeroed<T>> {
        let zeroed = Self::map()?;
        // A system may be set to give large pages unasked; those without any refuse this.
        zeroed.advise(Advice::LinuxNoHugepage).ok();
        Ok(zeroed)
    }

    /// All pages are there, and large where the value is of such and the system has them
    /// (since Linux 6.7 puts it at a multiple of its size). Takes the kernel some 0.1 ms for
    /// each 2 MiB, or 0.5 ms where they are small.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn populated() -> io::Result<Zeroed<T>> {
        let zeroed = Self::map()?;
        zeroed.advise(Advice::LinuxHugepage).ok();
        // Page by page: `MADV_POPULATE_WRITE` would block all threads that map memory meanwhile.
        for at in (0..size_of::<T>()).step_by(PAGE_MIN) {
            // SAFETY: inside of the mapping, which has no other reference yet; it is zeros.
            unsafe { zeroed.0.cast::<u8>().add(at).write_volatile(0) };
        }
        Ok(zeroed)
    }

    /// Has the kernel give the pages of these bytes now, as far as there are such: by one
    /// call, not by a fault for each. Before Linux 5.14 nothing happens.
    pub fn populate(&mut self, bytes: Range<usize>) {
        let end = bytes.end.min(size_of::<T>());
        let start = bytes.start.min(end) / PAGE_MIN * PAGE_MIN;
        // SAFETY: within our mapping, whose bytes stay as they are.
        unsafe {
            let first = self.0.as_ptr().byte_add(start).cast();
            madvise(first, end - start, Advice::LinuxPopulateWrite).ok();
        }
    }

    fn map() -> io::Result<Zeroed<T>> {
        const {
            assert!(size_of::<T>() > 0 && align_of::<T>() <= PAGE_MIN);
            assert!(!std::mem::needs_drop::<T>());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping in a place of the kernel's choice.
        let start =
            unsafe { mmap_anonymous(null_mut(), size_of::<T>(), access, MapFlags::PRIVATE)? };
        let start = NonNull::new(start.cast()).expect("nothing is mapped at 0 unasked");
        Ok(Zeroed(start))
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the whole of our mapping; none of these changes a byte of it.
        unsafe { madvise(self.0.as_ptr().cast(), size_of::<T>(), advice) }
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: begun as zeros, which are a value of this type; aligned, since a page is.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Zeroed<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and there is no other reference.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length; nothing borrows it now, and the value need
        // not be dropped.
        unsafe {
            let _ = munmap(self.0.as_ptr().cast(), size_of::<T>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn it_is_all_zeros_and_keeps_what_is_written() {
        type Value = [u64; 3 << 18];
        for make in [Zeroed::<Value>::lazy, Zeroed::<Value>::populated] {
            let mut value = make().unwrap();
            assert!(value.iter().all(|&word| word == 0));
            value[5] = 7;
            value[(3 << 18) - 1] = 9;
            // Wherever these begin and end, also outside, and in the wrong order.
            for (start, end) in [(0, 1), (5, 9000), (6 << 20, 7 << 20), (7 << 20, 8), (9, 9)] {
                value.populate(start..end);
            }
            let value = std::thread::spawn(move || value).join().unwrap();
            assert_eq!(value.iter().sum::<u64>(), 16);
        }
    }

    /// Whether each page has memory of its own (proc_pid_pagemap(5)).
    fn present<T: FromZeros>(value: &Zeroed<T>) -> Vec<bool> {
        let page = rustix::param::page_size();
        let count = size_of::<T>().div_ceil(page);
        let mut entries = vec![0; 8 * count];
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        let first = value.0.as_ptr().addr() / page;
        map.read_exact_at(&mut entries, 8 * first as u64).unwrap();
        entries
            .chunks(8)
            .map(|entry| entry[7] & 0x80 != 0)
            .collect()
    }

    #[test]
    fn pages_are_there_when_they_should_be() {
        type Value = [u8; 2 << 20];
        let page = rustix::param::page_size();
        let mut value = Zeroed::<Value>::lazy().unwrap();
        assert!(present(&value).iter().all(|&is| !is));
        value.populate(3 * page..7 * page);
        let wanted = (0..size_of::<Value>() / page).map(|at| (3..7).contains(&at));
        assert!(present(&value).into_iter().eq(wanted));
        let value = Zeroed::<Value>::populated().unwrap();
        assert!(present(&value).iter().all(|&is| is));
    }

    #[test]
    fn no_room_is_an_error() {
        assert!(Zeroed::<[u8; 1 << 60]>::lazy().is_err());
        assert!(Zeroed::<[u8; 1 << 60]>::populated().is_err());
    }
}
