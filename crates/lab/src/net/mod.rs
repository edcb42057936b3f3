//! A test network on this machine: hosts, links and bridges, with a network
//! namespace for each host.
//!
//! Everything is created by system calls of this process and held by it alone:
//! no external tool runs, no name appears in the file system, and when the
//! process ends in any way, even by SIGKILL, nothing remains.
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
//! All of it needs root: tests call [`need::root`](crate::testenv::root) first.

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
pub use host::{Host, PIN_FOLDERS};
pub use linear::Linear;
pub use link::LinkBuilder;
pub use offloads::Offloads;
pub use option::{get_option, set_option, set_option_bytes};
pub use pair::Pair;
pub use process::Process;
pub use rustix::process::Signal;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The first number of a lab's devices: `lo` has number 1 in every namespace.
const FIRST_NUMBER: u32 = 2;

/// A network of hosts. Device numbers and MAC addresses are unique in a lab,
/// and the same in every run.
#[derive(Debug)]
pub struct Lab {
    numbers: Arc<AtomicU32>,
}

impl Lab {
    /// An empty network.
    #[expect(clippy::new_without_default, reason = "making a lab is an act")]
    pub fn new() -> Lab {
        Lab {
            numbers: Arc::new(AtomicU32::new(FIRST_NUMBER)),
        }
    }

    /// Creates a host. The name is for messages only.
    ///
    /// # Errors
    /// Without privilege.
    pub fn host(&self, name: &str) -> Result<Host, Error> {
        Host::new(name, Arc::clone(&self.numbers))
    }

    /// The calling thread's network namespace as a host of this lab. It is not
    /// changed, and remains when the lab is dropped; so does a device created
    /// in it, except one whose peer is removed.
    ///
    /// # Errors
    /// Without privilege, or if `/proc` is not mounted.
    pub fn current_host(&self) -> Result<Host, Error> {
        Host::current(Arc::clone(&self.numbers))
    }

    /// Starts the settings of a link between two hosts, which may be the same.
    pub fn link<'a>(&self, a: &'a Host, b: &'a Host) -> LinkBuilder<'a> {
        LinkBuilder::new(a, b)
    }
}
