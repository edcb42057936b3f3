//! A small network in this machine: hosts, links and bridges, each host a
//! network namespace.
//!
//! Everything is made by system calls of this process and held by it alone:
//! no tool is run, no name appears in the file system, and whatever becomes
//! of the process, a kill included, nothing is left behind.
//!
//! ```no_run
//! use weir_lab::net::Lab;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let lab = Lab::new();
//! let (a, b) = (lab.host("a")?, lab.host("b")?);
//! let (eth_a, eth_b) = lab
//!     .link(&a, &b)
//!     .addresses([10, 0, 0, 1], [10, 0, 0, 2], 24)
//!     .connect()?;
//! let server = b.run(|| std::net::UdpSocket::bind("10.0.0.2:53"))?;
//! a.run(|| std::net::UdpSocket::bind("0.0.0.0:0")?.send_to(b"?", "10.0.0.2:53"))?;
//! assert_eq!(server.recv(&mut [0; 9])?, 1);
//! println!("{:?} {:?}", eth_a.counters()?, eth_b.counters()?);
//! # Ok(())
//! # }
//! ```
//!
//! All of it needs root: tests ask [`need::root`](crate::testenv::root) first.

mod capture;
mod device;
mod error;
mod host;
mod linear;
mod link;
mod offloads;
mod option;
mod pair;
mod process;
mod routes;
pub mod traffic;
mod tun;
pub mod unprivileged;

pub use device::{Counters, Device, DeviceState};
pub use error::Error;
pub use host::Host;
pub use linear::Linear;
pub use link::LinkBuilder;
pub use offloads::Offloads;
pub use option::{get_option, set_option, set_option_bytes};
pub use pair::Pair;
pub use process::Process;
pub use rustix::process::Signal;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The first number of a lab's devices: `lo` is 1 everywhere.
const FIRST_NUMBER: u32 = 2;

/// A network of hosts. Numbers of devices and Ethernet addresses are
/// different for every device of a lab, and the same from run to run.
#[derive(Debug)]
pub struct Lab {
    numbers: Arc<AtomicU32>,
}

impl Lab {
    /// Nothing yet.
    #[expect(clippy::new_without_default, reason = "making a lab is an act")]
    pub fn new() -> Lab {
        Lab {
            numbers: Arc::new(AtomicU32::new(FIRST_NUMBER)),
        }
    }

    /// Makes a host. The name is for people only.
    ///
    /// # Errors
    /// Without privilege.
    pub fn host(&self, name: &str) -> Result<Host, Error> {
        Host::new(name, Arc::clone(&self.numbers))
    }

    /// The network namespace that the calling thread is in, as a host of this
    /// lab. It is left as it is, and it stays when the lab is gone; so does a
    /// device made in it, but for a link whose other end goes.
    ///
    /// # Errors
    /// Without privilege, or if `/proc` is not mounted.
    pub fn current_host(&self) -> Result<Host, Error> {
        Host::current(Arc::clone(&self.numbers))
    }

    /// Plans a link of two hosts, which may be the same.
    pub fn link<'a>(&self, a: &'a Host, b: &'a Host) -> LinkBuilder<'a> {
        LinkBuilder::new(a, b)
    }
}
