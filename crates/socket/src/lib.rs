//! Sockets on a TCP/IP stack in the application's own process.
//!
//! A [`Net`] is a host on a link: one thread drives one [`Stack`](weir_stack::Stack), or
//! several threads drive one stack each ([`Builder::shards`]). The sockets are those of
//! `std::net`, with the net as an additional argument:
//!
//! ```
//! use std::io::{Read, Write};
//! use weir_socket::{Net, TcpListener, TcpStream, link};
//! use weir_stack::Config;
//! use weir_wire::ethernet::Address;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (a, b) = link::mem()?;
//! let config = |n, at: &str| -> Result<_, Box<dyn std::error::Error>> {
//!     Ok(Config::new(Address([2, 0, 0, 0, 0, n])).address(at.parse()?))
//! };
//! let here = Net::new(a, &config(1, "192.0.2.1/24")?)?;
//! let there = Net::new(b, &config(2, "192.0.2.2/24")?)?;
//!
//! let listener = TcpListener::bind(&there, "192.0.2.2:7")?;
//! let mut client = TcpStream::connect(&here, "192.0.2.2:7")?;
//! let (mut server, _) = listener.accept()?;
//! client.write_all(b"hello")?;
//! let mut received = [0; 5];
//! server.read_exact(&mut received)?;
//! assert_eq!(&received, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! In reading order:
//!
//! | module or type | what |
//! |---|---|
//! | [`Net`], [`Builder`] | a host on one link or several: stacks, threads, timers |
//! | [`link`] | the devices of a host: a TAP interface, a port beside the kernel, memory |
//! | [`TcpListener`], [`TcpStream`], [`UdpSocket`] | sockets, blocking or non-blocking |
//! | [`TcpSocket`] | a TCP socket with options that is not yet connected or listening |
//! | [`Events`] | changes of the host's addresses and routers |
//! | [`HostPlan`] | a host's links and addresses as text, for another process |
//! | `tokio` | the same sockets for applications on tokio (feature `tokio`) |
//!
//! Calls correspond one to one to POSIX calls, and so do errors:
//! [`std::io::Error::raw_os_error`] holds the number with which a kernel socket would
//! fail. Each socket can have a descriptor ([`TcpStream::ready_fd`]) that `poll` and
//! `epoll` report as readable and writable whenever the socket is.
//!
//! # Limits
//!
//! A host has at most [`LINKS_MAX`](weir_stack::LINKS_MAX) links and
//! [`SHARDS_MAX`](weir_stack::SHARDS_MAX) stacks; the limits of each stack are those of
//! [`weir_stack`].
//!
//! # Invariants
//!
//! - One lock guards each stack; a thread or a call holds the lock while it uses the stack.
//! - A call that blocks must not run on one of the net's own threads.
//! - A host ends with the last clone of its [`Net`] and the last of its sockets.

mod debug;
mod errno;
pub mod link;
mod net;
mod plan;
mod tcp;
#[cfg(feature = "tokio")]
pub mod tokio;
mod udp;

pub use errno::icmp_error_number;
pub use net::{Builder, Events, Net, NetStats, PollWait, ReadyList};
pub use plan::{
    Device, HostPlan, LinkPlan, SocketCall, SocketProtocol, SocketRule, status_folders,
};
pub use tcp::{Incoming, TcpListener, TcpSocket, TcpStream};
pub use udp::UdpSocket;
