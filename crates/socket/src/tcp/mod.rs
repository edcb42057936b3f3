//! TCP sockets.

mod listener;
mod socket;
mod stream;

pub use listener::{Incoming, TcpListener};
pub use socket::TcpSocket;
pub(crate) use socket::first;
pub use stream::TcpStream;

use rustix::io::Errno;
use weir_stack::tcp::TcpOptions;

/// Refuses a hop limit of 0.
fn valid(options: TcpOptions) -> Result<TcpOptions, Errno> {
    match options.hop_limit {
        0 => Err(Errno::INVAL),
        _ => Ok(options),
    }
}
