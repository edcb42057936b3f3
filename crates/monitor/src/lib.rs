//! A network monitor without I/O, as "Network Monitoring" of the 1987 paper (§5.4) has it.
//!
//! ```text
//!  frame ─► digest ─┬─► model: totals, talkers, conversations, protocols, rates
//!                   └─► store: the last frames ─┬─► frame_summary: one frame in a line
//!                                               ├─► tree: the fields of one frame
//!                                               └─► follow: the bytes of one connection
//! ```
//!
//! The caller reads frames, from ports or files, and shows what the [`Model`] counts: `weir top` in
//! a terminal. Nothing here has a clock, a descriptor or a thread; times come with the frames, and
//! the seed of the tables from the caller. Every table has a limit, and a row for all that exceeds
//! it, so that the sum over a table is the number of frames.
//!
//! A protocol's view is one file of [`tree`]: `docs/how-to/add-a-protocol-view.md`.

mod digest;
mod follow;
pub mod frame_summary;
mod history;
mod model;
mod protocol;
mod services;
pub mod sockets;
mod store;
mod table;
pub mod tree;

pub use digest::{Digest, Flow, Host, Kind, TcpPart};
pub use follow::{Chunk, Content, Follow, Side};
pub use history::History;
pub use model::{Limits, Model, Seen, Totals};
pub use protocol::Protocol;
pub use services::service_name;
pub use store::{Meta, Store, StoredFrame};
pub use table::{Counts, Row, Table};
