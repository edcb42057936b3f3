//! Two servers of one address on one host, which would each take some of the requests.

use crate::error::say;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Takes an address of a link for this process, as long as the value lives; warns if another process
/// of the network namespace has it.
pub(crate) fn claim(protocol: &str, address: &str, link: &str) -> Option<UnixDatagram> {
    let name = format!("weir/{protocol}/{link}/{address}");
    let taken = SocketAddr::from_abstract_name(&name).and_then(|at| UnixDatagram::bind_addr(&at));
    match taken {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            say(&format!(
                "weir: another process serves {address} on {link}, too: each takes some of the \
                 requests; end one of them"
            ));
            None
        }
        taken => taken.ok(),
    }
}
