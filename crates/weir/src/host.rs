//! A host of weir's own on a link, as commands are told of it.

use crate::failure::{Failure, say};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use weir_link::net::Interface;
use weir_socket::{Net, link};
use weir_stack::{Config, Prefix};
use weir_wire::ethernet::Address;

/// Where the host is: the help of every command that has one.
pub(crate) const HELP: &str = "\
Links:
  tap0, tap:NAME   a TAP interface: the kernel is its peer. Root may let it be made; anybody else
                   opens one that was made for them: ip tuntap add dev tap0 mode tap user ada";

/// The link and the addresses of a host beside the kernel's.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Host")]
pub(crate) struct HostArgs {
    /// The link to be on: see below
    #[arg(long, value_name = "LINK")]
    pub(crate) link: String,

    /// An address of the host's own, with its network's prefix length;
    /// several by saying it again
    #[arg(long = "addr", value_name = "ADDR/LEN", required = true)]
    pub(crate) addresses: Vec<Prefix>,

    /// The router to other networks, one for each version of IP
    #[arg(long = "gateway", value_name = "ADDR")]
    pub(crate) gateways: Vec<IpAddr>,

    /// The host's hardware address; else one is made of the link's name and
    /// the first address
    #[arg(long, value_name = "MAC")]
    pub(crate) mac: Option<Address>,
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
    pub(crate) fn open(&self, need: Need) -> Result<Net, Failure> {
        let name = self.link.strip_prefix("tap:").unwrap_or(&self.link);
        let tap = link::Tap::open(name).map_err(|error| no_tap(name, &error))?;
        let interface = Interface::named(name).map_err(Failure::run)?;
        check_up(&interface, need)?;
        let config = self.config(&interface)?;
        Net::new(tap, &config).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Failure::refused(error),
            _ => Failure::run(error),
        })
    }

    fn config(&self, interface: &Interface) -> Result<Config, Failure> {
        let mac = self.mac.unwrap_or_else(|| self.made_mac());
        let mut config = Config::new(mac);
        config.mtu = interface.mtu as usize;
        config.addresses.clone_from(&self.addresses);
        for gateway in &self.gateways {
            let all = match gateway {
                IpAddr::V4(_) => IpAddr::from([0; 4]),
                IpAddr::V6(_) => IpAddr::from([0; 16]),
            };
            let all = Prefix::new(all, 0).ok_or_else(|| Failure::refused(gateway))?;
            config = config.route(all, *gateway);
        }
        Ok(config)
    }

    /// The same each time, so that neighbours who remember it are right; of
    /// the locally administered kind (IEEE 802).
    fn made_mac(&self) -> Address {
        let mut hasher = DefaultHasher::new();
        self.link.hash(&mut hasher);
        let first = self.addresses.first();
        first.map(Prefix::address).hash(&mut hasher);
        let [a, b, c, d, e, ..] = hasher.finish().to_be_bytes();
        Address([2, a, b, c, d, e])
    }

    /// Whether the host has an address of this one's version.
    fn has_version_of(&self, address: &SocketAddr) -> bool {
        let same = |prefix: &Prefix| prefix.address().is_ipv4() == address.is_ipv4();
        self.addresses.iter().any(same)
    }

    /// The addresses of a name, by the system's resolver, of the versions
    /// that the host has.
    pub(crate) fn resolve(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
        let found = (name, port).to_socket_addrs().map_err(|error| {
            Failure::run(format!(
                "the system's resolver does not know `{name}` ({error})"
            ))
        })?;
        let (ours, others): (Vec<_>, Vec<_>) =
            found.partition(|address| self.has_version_of(address));
        match (ours.is_empty(), others.first()) {
            (false, _) => Ok(ours),
            (true, Some(other)) => Err(Failure::refused(format!(
                "`{name}` is {}, and the host has no address of that version: give one more --addr",
                other.ip()
            ))),
            (true, None) => Err(Failure::run(format!("`{name}` has no address"))),
        }
    }
}

fn check_up(interface: &Interface, need: Need) -> Result<(), Failure> {
    if interface.up {
        return Ok(());
    }
    let name = &interface.name;
    let down = format!("{name} is down, and carries nothing: ip link set {name} up");
    match need {
        Need::Up => Err(Failure::run(down)),
        Need::Later => {
            say(&format!("weir: {down}"));
            Ok(())
        }
    }
}

fn no_tap(name: &str, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => format!(
            ": make it for yourself as root, once: ip tuntap add dev {name} mode tap user $USER; \
             or give another --link"
        ),
        io::ErrorKind::ResourceBusy => ": another program has it open".to_owned(),
        _ => String::new(),
    };
    let message = format!("cannot open TAP interface `{name}`: {error}{remedy}");
    match error.kind() {
        io::ErrorKind::InvalidInput => Failure::refused(message),
        _ => Failure::run(message),
    }
}
