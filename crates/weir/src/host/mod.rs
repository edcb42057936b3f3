//! A host of weir's own on a link, as commands are told of it.

mod names;
mod open;
mod told;

pub(crate) use names::{any_of, any_towards, resolve, unreached};
pub(crate) use told::check;

use crate::failure::Failure;
use crate::stop::Stop;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use weir_socket::Net;
use weir_stack::Prefix;
use weir_wire::ethernet::Address;

/// Where the host is: the help of every command that has one.
pub(crate) const HELP: &str = "\
Links:
  tap:NAME   a TAP interface: the kernel is its peer. Root may let it be made; anybody else opens
             one that was made for them, once: ip tuntap add dev tap0 mode tap user ada
  port:IF    a live interface, beside the kernel, by the interface's hardware address: frames for
             the host's addresses are taken from the kernel, and it gets copies of ARP and neighbour
             discovery. By the broker, or as root. This machine itself does not reach the host.
  NAME       a TAP interface if there is one of that name; else a live interface

Addresses (--addr):
  ADDR/LEN   this one, while others are asked whether they have it
  dhcp       of IPv4, as a DHCP server gives it, with routers; given back at the end
  auto       of IPv6, as routers advertise networks, with routes
             On port:IF the last two need a hardware address of their own: --mac";

/// How an address is come by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// As it was said.
    Fixed(Prefix),
    /// From a DHCP server.
    Dhcp,
    /// From routers' advertisements.
    Auto,
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        match text {
            "dhcp" => Ok(Source::Dhcp),
            "auto" => Ok(Source::Auto),
            other => match other.parse() {
                Ok(prefix) => Ok(Source::Fixed(prefix)),
                Err(error) => Err(format!("{error}; or `dhcp`, or `auto`")),
            },
        }
    }
}

/// The addresses of a host beside the kernel's.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Host")]
pub(crate) struct Addresses {
    /// An address of the host's own, with its network's prefix length, or
    /// `dhcp`, or `auto`: see below; several by saying it again
    #[arg(long = "addr", value_name = "ADDR/LEN", required = true)]
    pub(crate) addresses: Vec<Source>,

    /// The router to other networks, one for each version of IP
    #[arg(long = "gateway", value_name = "ADDR")]
    pub(crate) gateways: Vec<IpAddr>,

    /// The host's hardware address; else a live interface's own, or one made
    /// of the TAP interface's name and the first address
    #[arg(long, value_name = "MAC")]
    pub(crate) mac: Option<Address>,

    /// The broker that opens the ports on a live interface
    #[arg(long, value_name = "SOCKET")]
    pub(crate) broker: Option<PathBuf>,
}

/// The link and the addresses of a host beside the kernel's.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Host")]
pub(crate) struct HostArgs {
    /// The link to be on: see below
    #[arg(long, value_name = "LINK")]
    pub(crate) link: String,

    #[command(flatten)]
    pub(crate) addresses: Addresses,
}

/// What a link's interface must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// Up, now.
    Up,
    /// It may come up later: that is said.
    Later,
}

impl HostArgs {
    /// Opens the link and starts the host.
    pub(crate) fn open(&self, need: Need, stop: &Stop) -> Result<Net, Failure> {
        self.addresses.open(&self.link, need, stop)
    }

    /// As [`check`].
    pub(crate) fn check(&self, net: &Net) -> Result<(), Failure> {
        check(net, &self.link)
    }

    /// Opens the link, starts the host, and gives the first address of a
    /// server's name.
    pub(crate) fn open_towards(
        &self,
        server: &str,
        port: u16,
        stop: &Stop,
    ) -> Result<(Net, SocketAddr), Failure> {
        let net = self.open(Need::Up, stop)?;
        let found = resolve(&net, server, port)?;
        let to = found.first().copied();
        Ok((net, to.ok_or_else(|| Failure::refused(server))?))
    }
}

impl Addresses {
    /// Opens a link and starts the host; waits for the addresses that others
    /// give, and says which they are.
    pub(crate) fn open(&self, link: &str, need: Need, stop: &Stop) -> Result<Net, Failure> {
        let net = self.start(link, need)?;
        told::settle(self, &net, link, stop)?;
        Ok(net)
    }

    fn has(&self, source: Source) -> bool {
        self.addresses.contains(&source)
    }

    fn fixed(&self) -> impl Iterator<Item = Prefix> {
        self.addresses.iter().filter_map(|source| match source {
            Source::Fixed(prefix) => Some(*prefix),
            Source::Dhcp | Source::Auto => None,
        })
    }
}
