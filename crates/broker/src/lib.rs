//! Packet-filter ports on live links, for programs of any user ("The Packet
//! Filter", Mogul, Rashid and Accetta, 1987). A broker opens ports for
//! unprivileged programs by a policy; the kernel then delivers frames to each
//! port's ring without the broker.
//!
//! # Modules, in reading order
//!
//! - [`Port`]: the API of an application; needs a broker, or privilege.
//! - [`policy`]: the rights of users on interfaces.
//! - [`protocol`]: the messages between an application and the broker.
//! - [`daemon`]: the broker process, which serves all users of the machine.
//! - [`engine`]: the open ports, in the broker or in a privileged process.
//! - [`interface`]: the properties of the interfaces with ports.
//! - [`compile`]: compiles filter text from untrusted users.
//! - [`runtime_dir`]: the state that outlives a broker.
//!
//! # Limits and invariants
//!
//! - The broker compiles every filter itself and accepts no bytecode.
//! - A user's ports, ring memory and verifier cost are bounded ([`policy`],
//!   [`engine::limits`], [`compile::limits`]).
//! - A port ends with its process. With a [`runtime_dir`] it outlives the broker.
//!
//! # Example
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
//!         // Back to the sender.
//!         let mut echo = frame.bytes().to_vec();
//!         if let Some(addresses) = echo.get_mut(..12) {
//!             addresses.rotate_left(6);
//!             echoes.push(echo);
//!         }
//!     }
//!     let echoes: Vec<&[u8]> = echoes.iter().map(Vec::as_slice).collect();
//!     // One system call; returns how many frames were sent.
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
mod trusted_path;

pub use byte_size::{Bytes, NotASize};
pub use client::{
    Builder, Connection, Frame, Frames, LocalPorts, Port, PortCounters, PortError, SOCKET_DEFAULT,
    Signal, Timeout, in_process,
};
pub use weir_demux::fanout::{Fanout, FanoutError};
