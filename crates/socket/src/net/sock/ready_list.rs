//! [`ReadyList`]: the readable connections of one epoll set, for an application that waits for the
//! set by [`Net::poll_listed`](crate::Net::poll_listed).
//!
//! A descriptor shows by a message in its queue that its socket is readable ([`super::ready_fd`]):
//! a system call when bytes arrive, and another one when they are read. A connection in a list is
//! put there instead, and its descriptor shows nothing new of that. All else, the end and errors
//! too, the descriptor shows as before.
//!
//! Only calls of this process see the list. It *ends* when another thread is about to wait for
//! descriptors while the net is driven, or when its owner ends it: from then on the
//! descriptors show everything again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections that have become readable, by the numbers that their owner gave them.
#[derive(Clone, Default)]
pub struct ReadyList(Arc<Inner>);

#[derive(Default)]
struct Inner {
    numbers: Mutex<Vec<u64>>,
    len: AtomicUsize,
    is_ended: AtomicBool,
}

impl ReadyList {
    /// An empty list.
    pub fn new() -> ReadyList {
        ReadyList::default()
    }

    fn numbers(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0
            .numbers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the numbers of the list to the end of `to`.
    pub fn take(&self, to: &mut Vec<u64>) {
        if self.is_empty() {
            return;
        }
        let mut numbers = self.numbers();
        to.append(&mut numbers);
        self.0.len.store(0, Relaxed);
    }

    /// Whether no connection has become readable since the last [`ReadyList::take`].
    pub fn is_empty(&self) -> bool {
        self.0.len.load(Relaxed) == 0
    }

    /// Whether the list has ended.
    pub fn is_ended(&self) -> bool {
        self.0.is_ended.load(Relaxed)
    }

    pub(in crate::net) fn push(&self, number: u64) {
        let mut numbers = self.numbers();
        // The owner may take none for long. The list stays in proportion to its connections.
        if numbers.len() == numbers.capacity() {
            numbers.sort_unstable();
            numbers.dedup();
            // The next time is as many numbers later.
            let len = numbers.len();
            numbers.reserve(len);
        }
        numbers.push(number);
        self.0.len.store(numbers.len(), Relaxed);
    }

    pub(in crate::net) fn end(&self) {
        self.0.is_ended.store(true, Relaxed);
    }

    pub(in crate::net) fn is_same(&self, other: &ReadyList) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A connection's place in a list.
pub(super) struct Listed {
    pub(super) list: ReadyList,
    pub(super) number: u64,
    /// The connection is readable, and its descriptor does not show it.
    pub(super) is_ready: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_not_taken_has_each_number_a_few_times() {
        let list = ReadyList::new();
        for round in 0..100_000 {
            list.push(round % 10);
        }
        let mut numbers = Vec::new();
        list.take(&mut numbers);
        assert!((10..=40).contains(&numbers.len()), "{}", numbers.len());
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers, (0..10).collect::<Vec<u64>>());
        assert!(list.is_empty());
    }
}
