//! A frame that knows where it comes from, and a measure of fairness.
#![allow(dead_code)] // Not each test uses all of it.

use weir_sched::Frame;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Packet {
    pub(crate) class: usize,
    pub(crate) flow: u64,
    pub(crate) number: u64,
    pub(crate) len: u32,
    pub(crate) since: u64,
    pub(crate) is_ecn: bool,
    pub(crate) is_marked: bool,
}

impl Packet {
    pub(crate) fn new(class: usize, flow: u64, number: u64, len: u32, since: u64) -> Packet {
        Packet {
            class,
            flow,
            number,
            len,
            since,
            is_ecn: false,
            is_marked: false,
        }
    }
}

impl Frame for Packet {
    fn wire_len(&self) -> u32 {
        self.len
    }

    fn mark(&mut self) -> bool {
        self.is_marked |= self.is_ecn;
        self.is_marked
    }
}

/// Jain's index of fairness: 1 if all are equal.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}
