//! A value behind a pointer of C, for the thread that made it alone.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value and the number of its thread.
///
/// No exclusive reference to the whole structure is created: another thread may
/// read the thread number meanwhile.
#[derive(Debug)]
pub struct Owned<T> {
    thread: usize,
    value: UnsafeCell<T>,
}

impl<T> Owned<T> {
    /// A pointer to a value of the calling thread.
    pub(crate) fn new(value: T) -> *mut Owned<T> {
        Box::into_raw(Box::new(Owned {
            thread: thread(),
            value: UnsafeCell::new(value),
        }))
    }

    /// The value; `None` for null and in another thread.
    ///
    /// # Safety
    /// The pointer is null or came from [`new`](Self::new), was not passed to
    /// [`take`](Self::take) with success since, and is not used otherwise by this
    /// thread while the result lives.
    pub(crate) unsafe fn get<'a>(this: *mut Owned<T>) -> Option<&'a mut T> {
        // SAFETY: the caller's promise; the reference only reads, and the fields
        // read before the comparison of the thread number are never written.
        let this = unsafe { this.as_ref() }.filter(|this| this.thread == thread())?;
        // SAFETY: the value belongs to this thread, which has no other reference by
        // the caller's promise; other threads do not get here.
        Some(unsafe { &mut *this.value.get() })
    }

    /// Takes the value back, and frees its memory; `None` for null and in another
    /// thread.
    ///
    /// # Safety
    /// As for [`get`](Self::get); the pointer is not used afterwards, unless the
    /// result is `None`.
    pub(crate) unsafe fn take(this: *mut Owned<T>) -> Option<T> {
        // SAFETY: the caller's promise; only read, as above.
        let is_ours = unsafe { this.as_ref() }.is_some_and(|this| this.thread == thread());
        // SAFETY: the pointer came from `Box::into_raw`, and is not used again.
        is_ours.then(|| unsafe { Box::from_raw(this) }.value.into_inner())
    }
}

/// The calling thread's number, which is unique among all threads, including
/// those that have ended.
fn thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static THREAD: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    THREAD.with(|number| *number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicPtr;

    /// In Miri, which reports a reference that another thread's exclusive one excludes, this shows
    /// that the thread is compared before there is such a reference.
    #[test]
    fn another_thread_gets_nothing_while_the_owner_writes() {
        let pointer = Owned::new(vec![1]);
        let shared = AtomicPtr::new(pointer);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                for _ in 0..10 {
                    let pointer = shared.load(Ordering::Relaxed);
                    // SAFETY: the pointer is of `new`, and this thread has no reference.
                    assert!(unsafe { Owned::get(pointer) }.is_none());
                    // SAFETY: as above.
                    assert!(unsafe { Owned::take(pointer) }.is_none());
                    std::thread::yield_now();
                }
            });
            // SAFETY: the only reference of this thread.
            let value = unsafe { Owned::get(pointer) }.unwrap();
            for number in 0..10 {
                value.push(number);
                std::thread::yield_now();
            }
            other.join().unwrap();
            value.push(10);
        });
        // SAFETY: the last use.
        let value = unsafe { Owned::take(pointer) }.unwrap();
        assert_eq!(value.len(), 12);
        // SAFETY: null is allowed.
        assert!(unsafe { Owned::<u8>::take(std::ptr::null_mut()) }.is_none());
    }

    #[test]
    fn a_thread_that_has_ended_leaves_its_number_to_no_other() {
        let made = std::thread::spawn(|| AtomicPtr::new(Owned::new(1)));
        let pointer = made.join().unwrap().into_inner();
        let next = AtomicPtr::new(pointer);
        let got = std::thread::spawn(move || {
            // SAFETY: of `new`, and the only use.
            unsafe { Owned::get(next.into_inner()) }.is_some()
        });
        assert!(!got.join().unwrap());
        // SAFETY: of `Box::into_raw`, and not used again: the owner has ended.
        drop(unsafe { Box::from_raw(pointer) });
    }
}
