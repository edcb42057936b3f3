//! Load: frames at a fixed rate, counting sinks, and the search for the highest rate without loss.
//!
//! ```no_run
//! use weir_lab::load::{Generator, Rate, Sink, Udp};
//! use weir_lab::net::Lab;
//! use weir_link::bpf::Hook;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let lab = Lab::new();
//! let (a, b) = (lab.host("a")?, lab.host("b")?);
//! let (eth_a, eth_b) = lab.link(&a, &b).connect()?;
//! let sink = Sink::new(&eth_b, Hook::XdpNative)?;
//! let flows = Udp {
//!     dst_ports: 1000,
//!     ..Udp::new(eth_a.mac(), eth_b.mac(), [10, 0, 0, 1].into(), [10, 0, 0, 2].into())
//! };
//! let sent = Generator::new(&eth_a, &flows)?.send(1_000_000, Rate::PerSecond(1e6))?;
//! assert_eq!(sink.counted()?.frames + sent.dropped, 1_000_000);
//! # Ok(())
//! # }
//! ```

mod generator;
mod ingress;
mod program;
mod search;
mod sink;
mod template;
mod thread;

pub(crate) use program::compare_fields;

pub use generator::{Generator, GeneratorError, Rate, Sending, Sent};
pub use search::{Outcome, RatedTrial, Search, SearchError, Trial};
pub use sink::{Counted, Sink, SinkError};
pub use template::{FRAME_BYTES_MAX, FRAME_BYTES_MIN, Field, Order, Template, TemplateError, Udp};
