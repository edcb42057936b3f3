//! A frame that knows where it comes from, and a measure of fairness.
#![allow(dead_code)] // Not each test uses all of it.

use weir_sched::Frame;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    pub class: usize,
    pub flow: u64,
    pub number: u64,
    pub len: u32,
    pub since: u64,
    pub is_ecn: bool,
    pub is_marked: bool,
}

impl Packet {
    pub fn new(class: usize, flow: u64, number: u64, len: u32, since: u64) -> Packet {
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
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}
