//! TCP sockets.

mod listener;
mod socket;
mod stream;

pub use listener::{Incoming, TcpListener};
pub use socket::TcpSocket;
pub(crate) use socket::first;
pub use stream::TcpStream;
