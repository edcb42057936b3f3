//! Links: where frames come from and go to.
//!
//! - [`bpf`]: programs in the kernel.
//! - [`net`]: interfaces, and what happens to them.
//! - [`live`]: programs at an interface's hooks, and sending.
//! - [`pcap`]: capture files.
//! - [`mem`]: two ends joined in memory, with impairments; traffic to send.
//! - [`plan`]: a plan in the kernel.
//! - [`gso`]: super-frames, cut.
//! - [`xdp`]: taps, frames by pointer.
//! - [`names`]: what the system calls hosts, networks, services, protocols.

pub mod bpf;
pub mod gso;
pub mod live;
pub mod mem;
pub mod names;
pub mod net;
pub mod pcap;
pub mod plan;
pub mod xdp;
