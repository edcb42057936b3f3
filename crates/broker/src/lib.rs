//! Ports on live links, for programs of any user.
//!
//! - [`Port`]: what a program uses; needs a broker, or privilege.
//! - [`policy`]: who may do what.
//! - [`protocol`]: what a program and the broker say to each other.
//! - [`daemon`]: serves every user of the machine.
//! - [`engine`]: the ports that are open.
//! - [`interface`]: what they are open on.
//! - [`compile`]: filters from texts that nobody vouches for.
//!
//! ```no_run
//! use std::time::Duration;
//! use weir_broker::{Bytes, Port, Timeout};
//!
//! # fn main() -> Result<(), weir_broker::PortError> {
//! let port = Port::on("eth0").filter("ether proto 0x88b5")?.priority(10);
//! let mut port = port.queue(Bytes(1 << 20)).timestamps(true).tag(7).open()?;
//! loop {
//!     let mut echoes = Vec::new();
//!     for frame in port.recv_batch(Timeout::after(Duration::from_secs(1)))? {
//!         let (len, tag) = (frame.original_len(), frame.tag());
//!         println!("{:?}: {len} bytes for {tag}", frame.timestamp());
//!         if frame.lost_before() > 0 {
//!             println!("{} were lost before it", frame.lost_before());
//!         }
//!         // Back to who has sent it.
//!         let mut echo = frame.bytes().to_vec();
//!         if let Some(addresses) = echo.get_mut(..12) {
//!             addresses.rotate_left(6);
//!             echoes.push(echo);
//!         }
//!     }
//!     let echoes: Vec<&[u8]> = echoes.iter().map(Vec::as_slice).collect();
//!     // All in one system call; says how many were sent.
//!     port.send_batch(&echoes)?;
//! }
//! # }
//! ```

mod byte_size;
mod client;
pub mod compile;
pub mod daemon;
pub mod engine;
pub mod interface;
pub mod policy;
pub mod protocol;
pub mod runtime_dir;

pub use byte_size::{Bytes, NotASize};
pub use client::{
    Builder, Connection, Frame, Frames, LocalPorts, Port, PortCounters, PortError, SOCKET_DEFAULT,
    Signal, Timeout, in_process,
};
