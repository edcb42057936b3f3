//! Sockets on a TCP/IP stack in the program's own process.
//!
//! A [`Net`] is a host of its own on a link: it drives one
//! [`Stack`](weir_stack::Stack) on one thread. Sockets on it are those of
//! `std::net`, with the net as one more argument:
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
//! let mut heard = [0; 5];
//! server.read_exact(&mut heard)?;
//! assert_eq!(&heard, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`Net`] | a host on a link: the stack, its thread, its timers |
//! | [`link`] | what it can be on: a TAP interface, a port beside the kernel, memory |
//! | [`TcpListener`], [`TcpStream`], [`UdpSocket`] | sockets that block, or do not |
//! | `tokio` | the same for programs on tokio (feature `tokio`) |
//!
//! Calls are POSIX's, one to one, and so are the errors: what a kernel's
//! socket would fail with is in [`std::io::Error::raw_os_error`]. Each socket
//! can be given a descriptor ([`TcpStream::ready_fd`]) that `poll` and `epoll`
//! find readable and writable when the socket is.

mod debug;
mod errno;
pub mod link;
mod net;
mod tcp;
#[cfg(feature = "tokio")]
pub mod tokio;
mod udp;

pub use net::{Builder, Events, Net, NetStats};
pub use tcp::{Incoming, TcpListener, TcpSocket, TcpStream};
pub use udp::UdpSocket;
