//! The link and the address of a Pup host, as options.

use crate::error::CliError;
use crate::input::live_port;
use crate::signals::ShutdownSignal;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use weir_protocols::pup::{Link, LinkError, Node, StreamError};
use weir_protocols::station::StationError;
use weir_pup::Host;
use weir_pup::datagram::{Address, Port};
use weir_pup::link::UDP_PORT;

/// Options of the link.
#[derive(clap::Args, Debug)]
pub(super) struct LinkArgs {
    /// The link: see below
    #[arg(long, value_name = "LINK")]
    link: LinkName,

    /// This host's own address, which a server needs; a client's is by default of net 0, which
    /// means "this one", with a random host number
    #[arg(long, value_name = "NET#HOST#")]
    own: Option<Address>,

    /// The broker's socket; then the port is opened through the broker only
    #[arg(long, value_name = "SOCKET")]
    broker: Option<PathBuf>,
}

/// How long a client waits for a gateway that knows the route to its server's net.
const ROUTE_TIMEOUT: Duration = Duration::from_millis(200);

/// A link by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LinkName {
    Port(String),
    Udp(SocketAddrV4),
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkName::Port(interface) => write!(f, "port:{interface}"),
            LinkName::Udp(peers) => write!(f, "udp:{peers}"),
        }
    }
}

impl FromStr for LinkName {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkName, String> {
        let wrong = || format!("`{text}` is no link: write port:IF or udp:ADDR[:PORT]");
        match text.split_once(':') {
            None if !text.is_empty() => Ok(LinkName::Port(text.to_owned())),
            Some(("port", interface)) if !interface.is_empty() => {
                Ok(LinkName::Port(interface.to_owned()))
            }
            Some(("udp", to)) => {
                let alone = to.parse::<Ipv4Addr>().ok();
                let alone = alone.map(|ip| SocketAddrV4::new(ip, UDP_PORT));
                let address = alone.or_else(|| to.parse().ok()).filter(|to| to.port() > 0);
                address.map(LinkName::Udp).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }
}

impl LinkArgs {
    /// The link, as it was given.
    pub(super) fn name(&self) -> String {
        self.link.to_string()
    }

    /// Whether the own address was given.
    pub(super) fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// A host on the link that asks `peer`.
    pub(super) fn client(&self, peer: Address) -> Result<Node, CliError> {
        let is_one_net = |own: Port| own.net == peer.0.net || own.net == 0 || peer.0.net == 0;
        if self
            .own
            .is_some_and(|own| own.0.host == peer.0.host && is_one_net(own.0))
        {
            return Err(CliError::refused(format!(
                "{peer} has the number of this host itself: give --own another one"
            )));
        }
        let mut node = self.node(peer.0.host)?;
        if !node.host.has_route(node.now(), peer.0.net) {
            node.find_route(peer.0.net, ROUTE_TIMEOUT)
                .map_err(failure)?;
            // The question may show that nothing can be sent at all.
            node.link().check_sent().map_err(failure)?;
        }
        Ok(node)
    }

    /// A host on the link that only answers.
    pub(super) fn server(&self) -> Result<Node, CliError> {
        let mut node = self.node(0)?;
        node.host.ask_for_routes();
        Ok(node)
    }

    fn node(&self, peer: u8) -> Result<Node, CliError> {
        let own = match self.own {
            Some(own) => host_address(own)?,
            None => Port {
                net: 0,
                host: other_than(peer, random()),
                socket: 0,
            },
        };
        let link = match &self.link {
            LinkName::Port(interface) => Link::on_port(interface, self.broker.as_deref(), own),
            LinkName::Udp(peers) => Link::on_udp(*peers, own),
        };
        Ok(Node::new(host(own), link.map_err(failure)?))
    }
}

/// Random for each call.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A host of that address, with random numbers of sockets.
pub(super) fn host(own: Port) -> Host {
    Host::new(own.net, own.host, random() as u32)
}

/// The address of one host.
pub(super) fn host_address(own: Address) -> Result<Port, CliError> {
    match own.0 {
        Port {
            host: 1..,
            socket: 0,
            ..
        } => Ok(own.0),
        _ => Err(CliError::refused(format!(
            "{own} is not a host's address: write one such as 1#2#"
        ))),
    }
}

/// A host number from 1 to 254 that is not the peer's: a link drops its own host's Pups.
fn other_than(peer: u8, random: u64) -> u8 {
    let is_among = (1..=254).contains(&peer);
    let number = 1 + (random % (254 - u64::from(is_among))) as u8;
    number + u8::from(is_among && number >= peer)
}

/// The exit status for an error of a link.
pub(super) fn failure(error: LinkError) -> CliError {
    match error {
        LinkError::Station(StationError::Port(error)) => live_port::failure(error),
        LinkError::Station(error @ StationError::Refused { .. }) => CliError::refused(error),
        other => CliError::run(other),
    }
}

/// The exit status for an error of a stream.
pub(super) fn stream_failure(error: StreamError, stop: &ShutdownSignal) -> CliError {
    match error {
        StreamError::Link(error) => failure(error),
        StreamError::Stopped => CliError::Stopped(stop.signal()),
        other => CliError::run(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_never_has_the_number_of_its_server() {
        for peer in 0..=255 {
            let numbers: std::collections::BTreeSet<u8> =
                (0..1000).map(|random| other_than(peer, random)).collect();
            assert!(!numbers.contains(&peer) && !numbers.contains(&0), "{peer}");
            assert!(!numbers.contains(&255) && numbers.len() >= 253, "{peer}");
        }
    }

    #[test]
    fn links_are_ports_or_udp() {
        let udp = |text: &str| LinkName::Udp(text.parse().unwrap());
        for (text, link) in [
            ("eth0", LinkName::Port("eth0".into())),
            ("port:eth0", LinkName::Port("eth0".into())),
            ("udp:10.0.0.255", udp("10.0.0.255:42424")),
            ("udp:10.0.0.255:7", udp("10.0.0.255:7")),
        ] {
            assert_eq!(text.parse(), Ok(link));
        }
        for text in ["", "port:", "udp:", "udp:x", "udp:10.0.0.1:0", "tap:tap0"] {
            assert!(text.parse::<LinkName>().is_err(), "{text}");
        }
    }
}
