//! A RADIUS accounting server (RFC 2866): answers a request only when its session event is on the
//! disk.

mod client;
mod server;

pub(crate) use client::{Client, Clients};
pub(crate) use server::{Refused, Server, Stats};
