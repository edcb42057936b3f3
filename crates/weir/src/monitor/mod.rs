//! The network monitor: frames from ports or files into `weir_monitor`'s model, which a terminal or a
//! browser shows.
//!
//! ```text
//!  ports, capture file ─► input ─► session ─┬─► model, store
//!                                           └─► recorder ─► pcapng
//!  /proc, broker ─► facts (own thread) ─────► owners, ports
//!  frames that are looked at ─► views (a thread and a python3 each) ─► fields
//! ```

pub(crate) mod dissect;
pub(crate) mod facts;
pub(crate) mod filter;
pub(crate) mod input;
pub(crate) mod lines;
pub(crate) mod options;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod session;
pub(crate) mod views;
