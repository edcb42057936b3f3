//! The subcommands of `weir`, one file each.

pub(crate) mod bridge;
pub(crate) mod broker;
pub(crate) mod demo;
pub(crate) mod demux;
pub(crate) mod echo;
pub(crate) mod exec;
pub(crate) mod experiment;
pub(crate) mod filter;
pub(crate) mod get;
pub(crate) mod host;
pub(crate) mod iperf;
pub(crate) mod lab;
pub(crate) mod listen;
pub(crate) mod mediate;
pub(crate) mod meter;
pub(crate) mod ports;
pub(crate) mod rarpd;
pub(crate) mod route;
pub(crate) mod serve;
pub(crate) mod usage;
