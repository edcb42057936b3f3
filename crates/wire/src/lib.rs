//! Frame formats: link types, header views, parsed values and checksums.
//!
//! Pure: no file descriptors, clocks or threads. Everything here is read from
//! the network or from files and is treated as hostile.

mod linktype;

pub use linktype::{LinkType, UnknownLinkType};
