//! A RADIUS accounting server (RFC 2866): answers a request only when its session event is on the
//! disk. Beside it: a listener to the exchange of others, and dynamic authorization (RFC 5176).

mod client;
mod dynamic;
mod server;
mod sniffer;

pub(crate) use client::{Client, Clients, Secret};
pub(crate) use server::{Refused, Server, Stats};
pub(crate) use sniffer::Sniffer;

/// Counts of the packets of a server and of a listener by outcome, if there is either.
pub(crate) fn stats_of(server: Option<&Server>, sniffer: Option<&Sniffer>) -> Option<Stats> {
    match (server.map(Server::stats), sniffer.map(Sniffer::stats)) {
        (Some(server), Some(sniffer)) => Some(server.and(&sniffer)),
        (server, sniffer) => server.or(sniffer),
    }
}
