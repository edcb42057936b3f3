//! The smallest network, which most live tests want.

use super::{Device, Error, Host, Lab};
use std::io;
use std::net::UdpSocket;
use std::time::Duration;

/// Two hosts and a link: `a`, 10.0.0.1, and `b`, 10.0.0.2, which know each
/// other's Ethernet addresses.
#[derive(Debug)]
pub struct Pair {
    /// 10.0.0.1.
    pub a: Host,
    /// 10.0.0.2.
    pub b: Host,
    /// The end of `a`.
    pub eth_a: Device,
    /// The end of `b`.
    pub eth_b: Device,
    /// Whose numbers they have.
    pub lab: Lab,
}

/// How long a [server](Pair::server) waits for a datagram.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

impl Pair {
    /// Makes both, and waits until frames pass.
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

    /// Sends datagrams from `a` to a UDP port of `b`: each is its number in
    /// this call, of four bytes, the first 0.
    ///
    /// # Errors
    /// What the system says.
    pub fn send(&self, dst_port: u16, count: u32) -> io::Result<()> {
        self.a.run(|| {
            let socket = UdpSocket::bind("10.0.0.1:0")?;
            (0..count).try_for_each(|number| {
                let sent = socket.send_to(&number.to_be_bytes(), ("10.0.0.2", dst_port));
                sent.map(drop)
            })
        })
    }

    /// A UDP socket of `b`'s own kernel, which waits for 200 ms at most.
    ///
    /// # Errors
    /// What the system says.
    pub fn server(&self, port: u16) -> io::Result<UdpSocket> {
        let socket = self.b.run(|| UdpSocket::bind(("10.0.0.2", port)))?;
        socket.set_read_timeout(Some(DRAIN_TIMEOUT))?;
        Ok(socket)
    }
}
