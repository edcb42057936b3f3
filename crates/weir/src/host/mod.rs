//! A host of weir's own on its links, as commands are told of it.

mod address_log;
mod link_config;
mod open;
mod resolve;

pub(crate) use resolve::{any_of, any_towards, connect, resolve, unreached};

use crate::error::CliError;
use crate::signals::ShutdownSignal;
use clap::builder::RangedU64ValueParser;
use link_config::LinkScoped;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use weir_socket::Net;
use weir_stack::{Prefix, SHARDS_MAX};
use weir_wire::ethernet::Address;

/// Where the host is: the help of every command that has one.
pub(crate) const HELP: &str = "\
Links:
  tap:NAME   a TAP interface: the kernel is its peer. Root may let it be made; anybody else opens
             one that was made for them, once: ip tuntap add dev tap0 mode tap user ada
             With multi_queue behind it, each of several stacks (--shards) has a queue.
  port:IF    a live interface, beside the kernel, by the interface's hardware address: frames for
             the host's addresses are taken from the kernel, and it gets copies of ARP and neighbour
             discovery. By the broker, or as root. This machine itself does not reach the host.
  NAME       a TAP interface if there is one of that name; else a live interface

Addresses (--addr):
  ADDR/LEN   this one, while others are asked whether they have it
  dhcp       of IPv4, as a DHCP server gives it, with routers; given back at the end
  auto       of IPv6, as routers advertise networks, with routes
             On port:IF the last two need a hardware address of their own: --mac

Several links: say --link again, and behind an address, a router or a hardware address which link
it is of: --link tap0 --addr 192.0.2.5/24 --link tap1 --addr 198.51.100.5/24%tap1. Without it, it is
the first link's; a router's is that of its network. What is asked by a link is answered by that
link; otherwise the longest route decides.";

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
    #[arg(long = "addr", value_name = "ADDR/LEN[%LINK]", required = true)]
    pub(crate) addresses: Vec<LinkScoped<Source>>,

    /// The router to other networks, one for each version of IP
    #[arg(long = "gateway", value_name = "ADDR[%LINK]", value_parser = link_config::gateway)]
    pub(crate) gateways: Vec<LinkScoped<IpAddr>>,

    /// The host's hardware address; else a live interface's own, or one made
    /// of the TAP interface's name and the first address
    #[arg(long = "mac", value_name = "MAC[%LINK]")]
    pub(crate) macs: Vec<LinkScoped<Address>>,

    /// How many stacks the host is made of, one a core: connections are dealt
    /// out to them
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=SHARDS_MAX as u64),
    )]
    pub(crate) shards: usize,

    /// The broker that opens the ports on a live interface
    #[arg(long, value_name = "SOCKET")]
    pub(crate) broker: Option<PathBuf>,

    #[arg(skip)]
    announced: address_log::Announced,
}

/// The links and the addresses of a host beside the kernel's.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Host")]
pub(crate) struct HostArgs {
    /// The link to be on: see below; several by saying it again
    #[arg(long = "link", value_name = "LINK", required = true)]
    pub(crate) links: Vec<String>,

    #[command(flatten)]
    pub(crate) addresses: Addresses,
}

/// What a link's interface must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkRequirement {
    /// Up, now.
    Up,
    /// It may come up later: that is said.
    Later,
}

impl HostArgs {
    /// Opens the links and starts the host.
    pub(crate) fn open(
        &self,
        need: LinkRequirement,
        stop: &ShutdownSignal,
    ) -> Result<Net, CliError> {
        self.open_within(need, None, stop)
    }

    /// The same, within this time, too.
    pub(crate) fn open_within(
        &self,
        need: LinkRequirement,
        within: Option<Duration>,
        stop: &ShutdownSignal,
    ) -> Result<Net, CliError> {
        self.addresses.open_within(&self.links, need, within, stop)
    }

    /// As [`Addresses::check`].
    pub(crate) fn check(&self, net: &Net) -> Result<(), CliError> {
        self.addresses.check(net, &self.links)
    }

    /// Opens the links, starts the host, and gives the first address of a
    /// server's name.
    pub(crate) fn open_towards(
        &self,
        server: &str,
        port: u16,
        stop: &ShutdownSignal,
    ) -> Result<(Net, SocketAddr), CliError> {
        let net = self.open(LinkRequirement::Up, stop)?;
        let found = resolve(&net, &self.links, server, port, stop)?;
        let to = found.first().copied();
        Ok((net, to.ok_or_else(|| CliError::refused(server))?))
    }
}

impl Addresses {
    /// Opens links and starts the host; waits for the addresses that others
    /// give, and says which they are.
    pub(crate) fn open(
        &self,
        links: &[String],
        need: LinkRequirement,
        stop: &ShutdownSignal,
    ) -> Result<Net, CliError> {
        self.open_within(links, need, None, stop)
    }

    fn open_within(
        &self,
        links: &[String],
        need: LinkRequirement,
        within: Option<Duration>,
        stop: &ShutdownSignal,
    ) -> Result<Net, CliError> {
        let places = self.link_configs(links)?;
        let opened = places.iter().map(|place| place.open(need));
        let net = open::start(opened.collect::<Result<_, _>>()?, self.shards)?;
        address_log::wait_configured(&places, &net, &self.announced, within, stop)?;
        self.check(&net, links)?;
        Ok(net)
    }
}
