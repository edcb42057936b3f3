//! Links: where frames come from and go to.
//!
//! - [`bpf`]: programs in the kernel.
//! - [`pcap`]: capture files.
//! - [`names`]: what the system calls hosts, networks, services, protocols.

pub mod bpf;
pub mod names;
pub mod pcap;
