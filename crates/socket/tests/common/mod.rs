//! Two nets on a link in memory.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use weir_link::mem::Impairments;
use weir_socket::link::{Link, Mem, RxSink};
use weir_socket::{Net, link};
use weir_stack::{Config, TxSink};
use weir_wire::ethernet::Address;

/// Our addresses, by net and version.
pub(crate) const V4: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
pub(crate) const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];

pub(crate) fn config(n: usize) -> Config {
    weir_lab::wait::limit_this_test();
    let prefix = |at: &str, len| format!("{at}/{len}").parse().unwrap();
    Config::new(Address([2, 0, 0, 0, 0, n as u8 + 1]))
        .address(prefix(V4[n], 24))
        .address(prefix(V6[n], 64))
}

/// Two nets on a perfect link.
pub(crate) fn nets() -> (Net, Net) {
    let (a, b) = link::mem().unwrap();
    (
        Net::new(a, &config(0)).unwrap(),
        Net::new(b, &config(1)).unwrap(),
    )
}

/// Two nets on a bad link.
pub(crate) fn bad_nets(impairments: Impairments, seed: u64) -> (Net, Net) {
    let (a, b) = link::mem_with(impairments, seed).unwrap();
    (
        Net::new(a, &config(0)).unwrap(),
        Net::new(b, &config(1)).unwrap(),
    )
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The byte at a place of a stream that repeats late.
pub(crate) fn byte(at: usize) -> u8 {
    (at as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_be_bytes()[1]
}

pub(crate) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(byte).collect()
}

/// One end of a link in memory, by which frames come as a test will have it.
pub(crate) struct Through<F>(pub(crate) Mem, pub(crate) F);

impl<F> TxSink for Through<F> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.0.reserve(len)
    }

    fn submit(&mut self) {
        self.0.submit();
    }
}

impl<F> Link for Through<F>
where
    F: FnMut(&mut Mem, &mut RxSink<'_>) -> io::Result<bool> + Send,
{
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn receive(&mut self, take: &mut RxSink<'_>) -> io::Result<bool> {
        (self.1)(&mut self.0, take)
    }

    fn next_arrival(&self) -> Option<Duration> {
        self.0.next_arrival()
    }
}
