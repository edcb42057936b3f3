//! A host of weir's own on a link, as commands are told of it.

use crate::failure::{Failure, say};
use rustix::io::Errno;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use weir_link::net::{Interface, InterfaceError};
use weir_socket::{Net, link};
use weir_stack::{Config, Prefix};
use weir_wire::ethernet::Address;

/// Where the host is: the help of every command that has one.
pub(crate) const HELP: &str = "\
Links:
  tap:NAME   a TAP interface: the kernel is its peer. Root may let it be made; anybody else opens
             one that was made for them, once: ip tuntap add dev tap0 mode tap user ada
  port:IF    a live interface, beside the kernel, by the interface's hardware address: frames for
             the host's addresses are taken from the kernel, and it gets copies of ARP and neighbour
             discovery. By the broker, or as root. This machine itself does not reach the host.
  NAME       a TAP interface if there is one or none of that name; else a live interface";

/// The addresses of a host beside the kernel's.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Host")]
pub(crate) struct Addresses {
    /// An address of the host's own, with its network's prefix length;
    /// several by saying it again
    #[arg(long = "addr", value_name = "ADDR/LEN", required = true)]
    pub(crate) addresses: Vec<Prefix>,

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
    pub(crate) fn open(&self, need: Need) -> Result<Net, Failure> {
        self.addresses.open(&self.link, need)
    }

    /// Opens the link, starts the host, and gives the first address of a
    /// server's name.
    pub(crate) fn open_towards(
        &self,
        server: &str,
        port: u16,
    ) -> Result<(Net, SocketAddr), Failure> {
        let net = self.open(Need::Up)?;
        let found = self.resolve(server, port)?;
        let to = found.first().copied();
        Ok((net, to.ok_or_else(|| Failure::refused(server))?))
    }

    /// See [`Addresses::resolve`].
    pub(crate) fn resolve(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
        self.addresses.resolve(name, port)
    }
}

impl Addresses {
    /// Opens a link and starts the host.
    pub(crate) fn open(&self, link: &str, need: Need) -> Result<Net, Failure> {
        match link.split_once(':') {
            Some(("tap", name)) => self.on_tap(name, tap(name), need),
            Some(("port", name)) => self.on_port(name, need),
            Some((kind, _)) => Err(Failure::refused(format!(
                "there are no links of kind `{kind}`: give tap:NAME, port:IF or a name"
            ))),
            None => match tap(link) {
                // An interface of another kind.
                Err(error) if is(&error, Errno::INVAL) && Interface::named(link).is_ok() => {
                    self.on_port(link, need)
                }
                opened => self.on_tap(link, opened, need),
            },
        }
    }

    fn on_tap(&self, name: &str, tap: io::Result<link::Tap>, need: Need) -> Result<Net, Failure> {
        let tap = tap.map_err(|error| no_tap(name, &error))?;
        let interface = Interface::named(name).map_err(Failure::run)?;
        check_up(&interface, need)?;
        let mac = self.mac.unwrap_or_else(|| self.made_mac(name));
        let config = self.config(mac, &interface)?;
        Net::new(tap, &config).map_err(failure)
    }

    fn on_port(&self, name: &str, need: Need) -> Result<Net, Failure> {
        let interface = Interface::named(name).map_err(Failure::run)?;
        check_up(&interface, need)?;
        let own: Option<[u8; 6]> = interface.address.as_slice().try_into().ok();
        let mac = self.mac.or(own.map(Address)).ok_or_else(|| {
            Failure::refused(format!("{name} is no Ethernet interface: choose another"))
        })?;
        let mut config = self.config(mac, &interface)?;
        // The kernel has the link-local address that is made of the hardware
        // address.
        let has_v6 = config.addresses.iter().any(|one| one.address().is_ipv6());
        if has_v6 && !config.addresses.iter().any(is_link_local) {
            config.addresses.extend(self.made_link_local(name));
        }
        let addresses: Vec<IpAddr> = config.addresses.iter().map(Prefix::address).collect();
        let options = link::PortOptions {
            broker: self.broker.clone(),
            ..link::PortOptions::default()
        };
        let port = link::Port::open(name, mac, &addresses, &options);
        let port = port.map_err(|error| match error.downcast() {
            Ok(error) => crate::live::failure(error),
            Err(error) => Failure::run(format!("cannot open ports on {name}: {error}")),
        })?;
        Net::new(port, &config).map_err(failure)
    }

    fn config(&self, mac: Address, interface: &Interface) -> Result<Config, Failure> {
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

    /// The same each time, so that neighbours who remember it are right.
    fn made_of(&self, name: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let first = self.addresses.first();
        first.map(Prefix::address).hash(&mut hasher);
        hasher.finish()
    }

    /// Of the locally administered kind (IEEE 802).
    fn made_mac(&self, name: &str) -> Address {
        let [a, b, c, d, e, ..] = self.made_of(name).to_be_bytes();
        Address([2, a, b, c, d, e])
    }

    fn made_link_local(&self, name: &str) -> Option<Prefix> {
        let low = u128::from(self.made_of(name));
        Prefix::new(Ipv6Addr::from_bits(0xfe80 << 112 | low).into(), 64)
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

/// The unspecified addresses of the versions that the net has.
pub(crate) fn any_of(net: &Net, port: u16) -> Vec<SocketAddr> {
    let addresses = net.addresses();
    let any = [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
    ];
    let has = |v4: bool| addresses.iter().any(|address| address.is_ipv4() == v4);
    any.into_iter().filter(|any| has(any.is_ipv4())).collect()
}

/// The unspecified address of a peer's version, and any transport port.
pub(crate) fn any_towards(peer: SocketAddr) -> SocketAddr {
    match peer {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

/// Whether a link's interface still is.
pub(crate) fn is_there(link: &str) -> bool {
    let name = link.split_once(':').map_or(link, |(_, name)| name);
    !matches!(Interface::named(name), Err(InterfaceError::Missing { .. }))
}

/// With the kernel's offload, or without it if the kernel has none.
fn tap(name: &str) -> io::Result<link::Tap> {
    match link::Tap::open(name) {
        Err(error) if is(&error, Errno::INVAL) => link::Tap::open_plain(name),
        opened => opened,
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn is_link_local(prefix: &Prefix) -> bool {
    match prefix.address() {
        IpAddr::V6(address) => address.is_unicast_link_local(),
        IpAddr::V4(_) => false,
    }
}

fn failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::InvalidInput => Failure::refused(error),
        _ => Failure::run(error),
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
