//! Links: where frames come from and go to.
//!
//! - [`pcap`]: capture files.

pub mod pcap;
