//! Links: where frames come from and go to.
//!
//! - [`pcap`]: capture files.
//! - [`names`]: what the system calls hosts, networks, services, protocols.

pub mod names;
pub mod pcap;
