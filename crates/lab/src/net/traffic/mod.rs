//! Ordinary traffic between hosts, by kernel sockets: for tests that frames
//! still pass.

mod bulk;
mod ping;
mod session;
mod udp_flows;

pub use bulk::{Bulk, bulk, bulk_on};
pub use ping::{Pings, echoes, ping};
pub use session::{Session, SessionReport};
pub use udp_flows::{UdpFlows, spread};
