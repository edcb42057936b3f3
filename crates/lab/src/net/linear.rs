//! Three hosts in a line: `a ── left │ right ── b`, for what stands between
//! two hosts.

use super::{Device, Error, Host, Lab, Offloads, traffic};
use crate::load::{Generator, GeneratorError, Udp};
use std::io;
use std::time::Duration;
use weir_link::net::Interface;

/// The line. The ends have a device `eth0` each, the middle `left` and `right`.
#[derive(Debug)]
pub struct Linear {
    /// One end.
    pub a: Host,
    /// What stands between.
    pub middle: Host,
    /// The other end.
    pub b: Host,
    /// Of `a`.
    pub eth_a: Device,
    /// Of the middle, towards `a`.
    pub left: Device,
    /// Of the middle, towards `b`.
    pub right: Device,
    /// Of `b`.
    pub eth_b: Device,
    _lab: Lab,
}

impl Linear {
    /// Without addresses.
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

    /// Gives both ends addresses, 10.9.0.1 and 2; then their kernels send
    /// frames of their own.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn with_addresses(self) -> Result<Linear, Error> {
        for (device, number) in [(&self.eth_a, 1), (&self.eth_b, 2)] {
            device.add_address([10, 9, 0, number], 24)?;
        }
        Ok(self)
    }

    /// Frames from `a` to `b`.
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn generator(&self) -> Result<Generator, GeneratorError> {
        let (from, to) = ([10, 9, 0, 1].into(), [10, 9, 0, 2].into());
        let udp = Udp::new(self.eth_a.mac(), self.eth_b.mac(), from, to);
        Generator::new(&self.eth_a, &udp)
    }

    /// Whether `b` answers one of three echo requests of `a` within a second.
    ///
    /// # Errors
    /// What the system says, but that `b` is unreachable.
    pub fn pings(&self) -> io::Result<bool> {
        let to = [10, 9, 0, 2].into();
        match traffic::ping(&self.a, to, 3, Duration::from_secs(1)) {
            Ok(pings) => Ok(!pings.round_trips.is_empty()),
            Err(error) if error.kind() == io::ErrorKind::HostUnreachable => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a program is at XDP of `left` and of `right`; not where the
    /// device is gone.
    pub fn attached(&self) -> [bool; 2] {
        self.middle.run(|| {
            [&self.left, &self.right].map(|device| {
                let found = Interface::numbered(device.index());
                found.is_ok_and(|interface| interface.xdp.is_some())
            })
        })
    }
}
