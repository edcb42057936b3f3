//! Three hosts in a row: `a ── left │ right ── b`, for tests of a device
//! between two hosts.

use super::{Device, Error, Host, Lab, Offloads, traffic};
use crate::load::{Generator, GeneratorError, Udp};
use std::io;
use std::time::Duration;
use weir_link::net::Interface;

/// Three hosts in a row. Both ends have a device `eth0`, the middle has `left`
/// and `right`.
#[derive(Debug)]
pub struct Linear {
    /// One end.
    pub a: Host,
    /// The host in the middle.
    pub middle: Host,
    /// The other end.
    pub b: Host,
    /// The device of `a`.
    pub eth_a: Device,
    /// The middle's device towards `a`.
    pub left: Device,
    /// The middle's device towards `b`.
    pub right: Device,
    /// The device of `b`.
    pub eth_b: Device,
    _lab: Lab,
}

impl Linear {
    /// Creates the hosts without addresses.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn new(offloads: Offloads) -> Result<Linear, Error> {
        let lab = Lab::new();
        let (a, middle, b) = (lab.host("a")?, lab.host("middle")?, lab.host("b")?);
        let link = |one: &Host, other: &Host, names: [&str; 2]| {
            let link = lab.link(one, other).names(names[0], names[1]);
            link.offloads(offloads).connect()
        };
        let (eth_a, left) = link(&a, &middle, ["eth0", "left"])?;
        let (right, eth_b) = link(&middle, &b, ["right", "eth0"])?;
        Ok(Linear {
            a,
            middle,
            b,
            eth_a,
            left,
            right,
            eth_b,
            _lab: lab,
        })
    }

    /// Gives both ends addresses, 10.9.0.1 and 10.9.0.2; their kernels then
    /// also send frames of their own.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn with_addresses(self) -> Result<Linear, Error> {
        for (device, number) in [(&self.eth_a, 1), (&self.eth_b, 2)] {
            device.add_address([10, 9, 0, number], 24)?;
        }
        Ok(self)
    }

    /// A generator of frames from `a` to `b`.
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn generator(&self) -> Result<Generator, GeneratorError> {
        let (from, to) = ([10, 9, 0, 1].into(), [10, 9, 0, 2].into());
        let udp = Udp::new(self.eth_a.mac(), self.eth_b.mac(), from, to);
        Generator::new(&self.eth_a, &udp)
    }

    /// Whether `b` answers one of three echo requests from `a` within a second.
    ///
    /// # Errors
    /// The system's error, except that `b` is unreachable.
    pub fn pings(&self) -> io::Result<bool> {
        let to = [10, 9, 0, 2].into();
        match traffic::ping(&self.a, to, 3, Duration::from_secs(1)) {
            Ok(pings) => Ok(!pings.round_trips.is_empty()),
            Err(error) if error.kind() == io::ErrorKind::HostUnreachable => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether an XDP program is attached to `left` and to `right`; `false` for
    /// a device that is gone.
    pub fn attached(&self) -> [bool; 2] {
        self.middle.run(|| {
            [&self.left, &self.right].map(|device| {
                let found = Interface::numbered(device.index());
                found.is_ok_and(|interface| interface.xdp.is_some())
            })
        })
    }
}
