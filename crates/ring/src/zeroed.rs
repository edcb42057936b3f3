//! Large values of zeros, straight from the kernel.
#![allow(unsafe_code)] // Mapped memory.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ops::{Deref, DerefMut};
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
    /// The kernel gives each small page when it is first written, in a microsecond; but the
    /// first sixteen at once, in a third of that each.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn bit_by_bit() -> io::Result<Zeroed<T>> {
        let zeroed = Self::map()?;
        // A system may be set to give large pages unasked; those without any refuse this.
        zeroed.advise(Advice::LinuxNoHugepage).ok();
        let len = size_of::<T>().min(16 * PAGE_MIN);
        // SAFETY: the beginning of our mapping, or all of it; its bytes stay as they are.
        unsafe {
            madvise(zeroed.0.as_ptr().cast(), len, Advice::LinuxPopulateWrite).ok();
        }
        Ok(zeroed)
    }

    /// All pages are there, and large where the value is of such and the system has them
    /// (since Linux 6.7 puts it at a multiple of its size). Takes the kernel some 0.1 ms for
    /// each 2 MiB, or 0.5 ms where they are small.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn at_once() -> io::Result<Zeroed<T>> {
        let zeroed = Self::map()?;
        zeroed.advise(Advice::LinuxHugepage).ok();
        // Page by page: the kernel's own way (`MADV_POPULATE_WRITE`) holds up all who map
        // memory meanwhile.
        for at in (0..size_of::<T>()).step_by(PAGE_MIN) {
            // SAFETY: inside of the mapping, which nobody else knows yet; it is zeros.
            unsafe { zeroed.0.cast::<u8>().add(at).write_volatile(0) };
        }
        Ok(zeroed)
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
        // SAFETY: as above, and nobody else has a reference.
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

    #[test]
    fn it_is_all_zeros_and_keeps_what_is_written() {
        type Value = [u64; 3 << 18];
        for make in [Zeroed::<Value>::bit_by_bit, Zeroed::<Value>::at_once] {
            let mut value = make().unwrap();
            assert!(value.iter().all(|&word| word == 0));
            value[5] = 7;
            value[(3 << 18) - 1] = 9;
            let value = std::thread::spawn(move || value).join().unwrap();
            assert_eq!(value.iter().sum::<u64>(), 16);
        }
    }

    #[test]
    fn no_room_is_an_error() {
        assert!(Zeroed::<[u8; 1 << 60]>::bit_by_bit().is_err());
        assert!(Zeroed::<[u8; 1 << 60]>::at_once().is_err());
    }
}
