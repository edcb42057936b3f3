//! The ordinary traffic of hosts, by the kernel's own sockets: what must go
//! on undisturbed, or arrive, whatever is done to the frames.

mod bulk;
mod ping;
mod session;
mod udp_flows;

pub use bulk::{Bulk, bulk, bulk_on};
pub use ping::{Pings, echoes, ping};
pub use session::{Session, SessionReport};
pub use udp_flows::{UdpFlows, spread};
