//! A host of weir's own on its links, as configured by commands.

mod address_log;
mod link_config;
mod metrics;
mod open;
mod resolve;

pub(crate) use link_config::LinkScoped;
pub(crate) use metrics::metrics;
pub(crate) use resolve::{any_of, any_towards, connect, resolve, unreached};

use crate::error::CliError;
use crate::signals::ShutdownSignal;
use clap::builder::RangedU64ValueParser;
use link_config::LinkHostConfig;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use weir_socket::{HostPlan, Net};
use weir_stack::{Prefix, SHARDS_MAX};
use weir_wire::ethernet::Address;

/// Help on the host's links and addresses, for every command that has a host.
pub(crate) const HELP: &str = "\
Links:
  tap:NAME   a TAP interface, with the kernel as its peer. Root can create it by this command; any
             other user needs one that root has created: ip tuntap add dev tap0 mode tap user ada
             If created with multi_queue, each of several stacks (--shards) has a queue.
  port:IF    a live interface, beside the kernel, with the interface's MAC address: frames for the
             host's addresses are taken from the kernel; the host gets copies of ARP and neighbour
             discovery. Needs the broker or root. This machine itself cannot reach the host.
  shm:NAME   a link in shared memory, of all hosts of this user on it, up to 16, and of no
             interface of the kernel. The first host makes it.
  NAME       a TAP interface if there is one with that name; otherwise a live interface

Addresses (--addr):
  ADDR/LEN   this address, with duplicate address detection while it is in use
  dhcp       an IPv4 address and routers from a DHCP server; released at the end
  auto       IPv6 addresses and routes from router advertisements
             On port:IF the last two need a separate MAC address: --mac

Several links: repeat --link, and append the link to an address, a router or a MAC address:
--link tap0 --addr 192.0.2.5/24 --link tap1 --addr 198.51.100.5/24%tap1. Without a link, an address
belongs to the first link, and a router to the link with its network. Replies leave by the link of
the request; other packets by the link with the longest route.";

/// The source of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The given address.
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

impl std::fmt::Display for Source {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Fixed(prefix) => prefix.fmt(out),
            Source::Dhcp => "dhcp".fmt(out),
            Source::Auto => "auto".fmt(out),
        }
    }
}

/// The addresses of a host beside the kernel's.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Host")]
pub(crate) struct Addresses {
    /// An address of the host with its network's prefix length, or `dhcp`, or
    /// `auto`: see below; can be repeated
    #[arg(long = "addr", value_name = "ADDR/LEN[%LINK]", required = true)]
    pub(crate) addresses: Vec<LinkScoped<Source>>,

    /// The router to other networks, one for each version of IP
    #[arg(long = "gateway", value_name = "ADDR[%LINK]", value_parser = link_config::gateway)]
    pub(crate) gateways: Vec<LinkScoped<IpAddr>>,

    /// The host's MAC address; by default a live interface's own, or one
    /// derived from the TAP interface's name and the first address, or on
    /// shm:NAME a random one
    #[arg(long = "mac", value_name = "MAC[%LINK]")]
    pub(crate) macs: Vec<LinkScoped<Address>>,

    /// Number of TCP/IP stacks (shards) of the host, to which connections are
    /// distributed; one for each core is a good number
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=SHARDS_MAX as u64),
    )]
    pub(crate) shards: usize,

    /// The socket of the broker that opens the ports on a live interface
    #[arg(long, value_name = "SOCKET")]
    pub(crate) broker: Option<PathBuf>,

    /// Further routes, which only configuration files have.
    #[arg(skip)]
    pub(crate) routes: Vec<Route>,

    #[arg(skip)]
    announced: address_log::Announced,
}

/// A route to other networks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    pub(crate) to: Prefix,
    pub(crate) gateway: LinkScoped<IpAddr>,
}

/// The links and the addresses of a host beside the kernel's.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Host")]
pub(crate) struct HostArgs {
    /// A link of the host: see below; can be repeated
    #[arg(long = "link", value_name = "LINK", required = true)]
    pub(crate) links: Vec<String>,

    #[command(flatten)]
    pub(crate) addresses: Addresses,
}

/// The required state of a link's interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkRequirement {
    /// The interface must be up.
    Up,
    /// The interface may come up later; a message says so.
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

    /// As [`open`](Self::open), within a time limit.
    pub(crate) fn open_within(
        &self,
        need: LinkRequirement,
        within: Option<Duration>,
        stop: &ShutdownSignal,
    ) -> Result<Net, CliError> {
        self.addresses.open_within(&self.links, need, within, stop)
    }

    /// Opens the links and closes them again; returns what another process needs in order to
    /// start the host.
    ///
    /// # Errors
    /// If a link cannot be opened, or the host would have several stacks.
    pub(crate) fn plan(&self) -> Result<HostPlan, CliError> {
        self.addresses.plan(&self.links)
    }

    /// As [`Addresses::check`].
    pub(crate) fn check(&self, net: &Net) -> Result<(), CliError> {
        self.addresses.check(net, &self.links)
    }

    /// Opens the links, starts the host, and returns the first address of a
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
    /// Opens links and starts the host; waits for assigned addresses, and
    /// prints them.
    pub(crate) fn open(
        &self,
        links: &[String],
        need: LinkRequirement,
        stop: &ShutdownSignal,
    ) -> Result<Net, CliError> {
        self.open_within(links, need, None, stop)
    }

    fn plan(&self, links: &[String]) -> Result<HostPlan, CliError> {
        if self.shards != 1 {
            return Err(CliError::refused(format!(
                "--shards {}: a program that weir runs has one stack",
                self.shards
            )));
        }
        let places = self.link_configs(links)?;
        let plans = places.iter().map(LinkHostConfig::plan);
        Ok(HostPlan {
            links: plans.collect::<Result<_, _>>()?,
            ..HostPlan::default()
        })
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
