//! The smallest test network: two hosts and a link.

use super::{Device, Error, Host, Lab};
use std::io;
use std::net::UdpSocket;
use std::time::Duration;

/// Two hosts and a link: `a` with 10.0.0.1, and `b` with 10.0.0.2, with
/// permanent neighbour entries.
#[derive(Debug)]
pub struct Pair {
    /// The host with 10.0.0.1.
    pub a: Host,
    /// The host with 10.0.0.2.
    pub b: Host,
    /// The device of `a`.
    pub eth_a: Device,
    /// The device of `b`.
    pub eth_b: Device,
    /// The lab, which numbers the devices.
    pub lab: Lab,
}

/// Time limit of a [server](Pair::server)'s receive call.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

impl Pair {
    /// Creates both hosts and waits until frames pass.
    ///
    /// # Errors
    /// Without privilege.
    pub fn new() -> Result<Pair, Error> {
        let lab = Lab::new();
        let (a, b) = (lab.host("a")?, lab.host("b")?);
        let link = lab.link(&a, &b).addresses([10, 0, 0, 1], [10, 0, 0, 2], 24);
        let (eth_a, eth_b) = link.neighbours().connect()?;
        eth_b.wait_running()?;
        Ok(Pair {
            a,
            b,
            eth_a,
            eth_b,
            lab,
        })
    }

    /// Sends datagrams from `a` to a UDP port of `b`; each contains its number
    /// in this call, from 0, in four bytes.
    ///
    /// # Errors
    /// The system's error.
    pub fn send(&self, dst_port: u16, count: u32) -> io::Result<()> {
        self.a.run(|| {
            let socket = UdpSocket::bind("10.0.0.1:0")?;
            (0..count).try_for_each(|number| {
                let sent = socket.send_to(&number.to_be_bytes(), ("10.0.0.2", dst_port));
                sent.map(drop)
            })
        })
    }

    /// A kernel UDP socket of `b`, whose receive calls wait at most 200 ms.
    ///
    /// # Errors
    /// The system's error.
    pub fn server(&self, port: u16) -> io::Result<UdpSocket> {
        let socket = self.b.run(|| UdpSocket::bind(("10.0.0.2", port)))?;
        socket.set_read_timeout(Some(DRAIN_TIMEOUT))?;
        Ok(socket)
    }
}
