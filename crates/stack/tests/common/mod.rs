//! Two stacks at the ends of an in-memory link, and the time between them.

#![allow(dead_code, reason = "each test file uses its part")]

use std::net::IpAddr;
use weir_link::mem::{End, Impairments, MemLink};
use weir_stack::{Config, Stack};
use weir_wire::ethernet::Address;

pub(crate) const HARDWARE: [Address; 2] =
    [Address([2, 0, 0, 0, 0, 1]), Address([2, 0, 0, 0, 0, 2])];
pub(crate) const V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
pub(crate) const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The configuration of the host at one end.
pub(crate) fn config(end: usize) -> Config {
    Config::new(HARDWARE[end])
        .address(format!("{}/24", V4[end]).parse().unwrap())
        .address(format!("{}/64", V6[end]).parse().unwrap())
}

pub(crate) struct Pair {
    pub(crate) stacks: [Stack; 2],
    pub(crate) link: MemLink,
    pub(crate) now_ns: u64,
    /// When each stack wants to be polled.
    due_ns: [Option<u64>; 2],
}

const ENDS: [End; 2] = [End::A, End::B];

impl Pair {
    pub(crate) fn new(impairments: Impairments, seed: u64) -> Pair {
        Pair::with([config(0), config(1)], impairments, seed)
    }

    pub(crate) fn with(configs: [Config; 2], impairments: Impairments, seed: u64) -> Pair {
        let seeds = [u128::from(seed), u128::from(seed) << 64 | 1];
        let mut stacks = configs
            .iter()
            .zip(seeds)
            .map(|(config, seed)| Stack::new(config, seed).unwrap());
        Pair {
            stacks: [stacks.next().unwrap(), stacks.next().unwrap()],
            link: MemLink::new(impairments, impairments, seed).unwrap(),
            now_ns: 0,
            due_ns: [None; 2],
        }
    }

    /// Lets both stacks do what they can now.
    pub(crate) fn settle(&mut self) {
        for (end, stack) in self.stacks.iter_mut().enumerate() {
            while let Some(frame) = self.link.receive(ENDS[end], self.now_ns) {
                stack.receive(self.now_ns, &frame.bytes);
            }
            let mut frames: Vec<Vec<u8>> = Vec::new();
            self.due_ns[end] = stack.poll(self.now_ns, &mut frames);
            for frame in frames {
                self.link.send(ENDS[end], self.now_ns, &frame).ok();
            }
        }
    }

    /// Goes to the next time at which something happens; false if nothing
    /// ever will.
    pub(crate) fn advance(&mut self) -> bool {
        let arrivals = ENDS.map(|end| self.link.next_arrival_ns(end));
        let next = arrivals.into_iter().chain(self.due_ns).flatten().min();
        // A deadline that has passed must not hold the time.
        let moved = next.map(|next_ns| next_ns.max(self.now_ns));
        self.now_ns = moved.unwrap_or(self.now_ns);
        moved.is_some()
    }

    /// Runs until `done` or for so long; whether it is done.
    pub(crate) fn run(&mut self, for_ns: u64, mut done: impl FnMut(&mut Pair) -> bool) -> bool {
        let end_ns = self.now_ns + for_ns;
        let mut still = 0;
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            let before = self.now_ns;
            if !self.advance() || self.now_ns > end_ns {
                return false;
            }
            still = if self.now_ns == before { still + 1 } else { 0 };
            assert!(still < 10_000, "time stands still at {} ns", self.now_ns);
        }
    }
}
