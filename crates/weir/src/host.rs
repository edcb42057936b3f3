//! A host of weir's own on a link, as commands are told of it.

use crate::failure::{Failure, say};
use crate::stop::Stop;
use rustix::io::Errno;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};
use weir_link::net::{Interface, InterfaceError};
use weir_socket::{Net, link};
use weir_stack::host::{Detect, Event, Lost, Origin};
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

/// How long servers and routers may take to tell of an address.
const TOLD_WITHIN: Duration = Duration::from_secs(20);
/// How often it is looked whether they did.
const LOOK_EACH: Duration = Duration::from_millis(10);

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
        self.settle(&net, link, stop)?;
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

    /// Waits until each address is had that others give.
    fn settle(&self, net: &Net, link: &str, stop: &Stop) -> Result<(), Failure> {
        let began = Instant::now();
        let mut wanted = Vec::new();
        for (source, origin, whose) in [
            (Source::Dhcp, Origin::Leased, "DHCP server gives an address"),
            (
                Source::Auto,
                Origin::Advertised,
                "router advertises a network",
            ),
        ] {
            if self.has(source) {
                wanted.push((origin, whose));
            }
        }
        while let Some((_, whose)) = wanted.first() {
            if let Some(event) = net.next_event() {
                tell(&event);
                if let Event::Address(_, got) = event {
                    wanted.retain(|(origin, _)| *origin != got);
                }
            } else if stop.asked() {
                return Err(Failure::Stopped(stop.signal()));
            } else if net.is_gone() {
                return Err(Failure::run(format!("{link} is gone")));
            } else if began.elapsed() >= TOLD_WITHIN {
                return Err(Failure::run(format!(
                    "no {whose} on {link} within {} s: see whether one is there, or give --addr \
                     ADDR/LEN",
                    TOLD_WITHIN.as_secs()
                )));
            } else {
                stop.wait(LOOK_EACH);
            }
        }
        while let Some(event) = net.next_event() {
            tell(&event);
        }
        Ok(())
    }

    /// Opens a link and starts the host.
    fn start(&self, link: &str, need: Need) -> Result<Net, Failure> {
        match link.split_once(':') {
            Some(("tap", name)) => self.on_tap(name, tap(name), need),
            Some(("port", name)) => self.on_port(name, need),
            Some((kind, _)) => Err(Failure::refused(format!(
                "there are no links of kind `{kind}`: give tap:NAME, port:IF or a name"
            ))),
            // Root would make one of whatever name.
            None if matches!(Interface::named(link), Err(InterfaceError::Missing { .. }))
                && rustix::process::geteuid().is_root() =>
            {
                Err(Failure::run(format!(
                    "there is no interface `{link}`: look at `ip link`; to make a TAP interface \
                     say tap:{link}"
                )))
            }
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
        self.check_free(&interface)?;
        let mac = self.mac.unwrap_or_else(|| self.made_mac(name));
        let config = self.config(mac, &interface)?;
        Net::new(tap, &config).map_err(failure)
    }

    fn on_port(&self, name: &str, need: Need) -> Result<Net, Failure> {
        let interface = Interface::named(name).map_err(Failure::run)?;
        check_up(&interface, need)?;
        self.check_free(&interface)?;
        let dynamic = self.has(Source::Dhcp) || self.has(Source::Auto);
        if dynamic && self.mac.is_none() {
            return Err(Failure::refused(format!(
                "`dhcp` and `auto` on {name} need a hardware address beside the kernel's: give \
                 one with --mac, such as {}",
                self.made_mac(name)
            )));
        }
        let own: Option<[u8; 6]> = interface.address.as_slice().try_into().ok();
        let mac = self.mac.or(own.map(Address)).ok_or_else(|| {
            Failure::refused(format!("{name} is no Ethernet interface: choose another"))
        })?;
        let mut config = self.config(mac, &interface)?;
        // The kernel has the link-local address that is made of the hardware
        // address.
        let has_v6 = config.addresses.iter().any(|one| one.address().is_ipv6());
        if has_v6 && !config.autoconf && !config.addresses.iter().any(is_link_local) {
            config.addresses.extend(self.made_link_local(name));
        }
        let addresses: Vec<IpAddr> = config.addresses.iter().map(Prefix::address).collect();
        let options = link::PortOptions {
            broker: self.broker.clone(),
            ..link::PortOptions::default()
        };
        let port = match dynamic {
            true => link::Port::open_station(name, mac, &options),
            false => link::Port::open(name, mac, &addresses, &options),
        };
        let port = port.map_err(|error| match error.downcast() {
            Ok(error) => crate::live::failure(error),
            Err(error) => Failure::run(format!("cannot open ports on {name}: {error}")),
        })?;
        Net::new(port, &config).map_err(failure)
    }

    fn config(&self, mac: Address, interface: &Interface) -> Result<Config, Failure> {
        let mut config = Config::new(mac);
        config.mtu = interface.mtu as usize;
        config.addresses = self.fixed().collect();
        config.detect = Detect::Meanwhile;
        config.dhcp = self.has(Source::Dhcp);
        config.autoconf = self.has(Source::Auto);
        config.secret = Some(secret(&interface.name));
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
        let first = self.fixed().next();
        first.map(|prefix| prefix.address()).hash(&mut hasher);
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

    /// The kernel answers for its addresses, and for nobody's that mean all.
    fn check_free(&self, interface: &Interface) -> Result<(), Failure> {
        for prefix in self.fixed() {
            let its = |one: &&weir_link::net::Address| one.ip == prefix.address();
            if let Some(taken) = interface.addresses.iter().find(its) {
                return Err(Failure::refused(format!(
                    "{} is this machine's own on {}: give the host another of its network",
                    taken.ip, interface.name
                )));
            }
            if prefix.is_network() {
                return Err(Failure::refused(format!(
                    "{prefix} is the network's address, no host's: give one in it, such as {}",
                    first_of(prefix)
                )));
            }
        }
        Ok(())
    }
}

/// The first address of a network that a host can have.
fn first_of(prefix: Prefix) -> IpAddr {
    match prefix.network().address() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() | 1).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() | 1).into(),
    }
}

/// The addresses of a name, by the system's resolver, of the versions that the
/// host has.
pub(crate) fn resolve(net: &Net, name: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    let found = (name, port).to_socket_addrs().map_err(|error| {
        Failure::run(format!(
            "the system's resolver does not know `{name}` ({error})"
        ))
    })?;
    let addresses = net.addresses();
    let has = |v4: bool| addresses.iter().any(|address| address.is_ipv4() == v4);
    let (ours, others): (Vec<_>, Vec<_>) = found.partition(|address| has(address.is_ipv4()));
    match (ours.is_empty(), others.first()) {
        (false, _) => Ok(ours),
        (true, Some(other)) => Err(Failure::refused(format!(
            "`{name}` is {}, and the host has no address of that version: give one more --addr",
            other.ip()
        ))),
        (true, None) => Err(Failure::run(format!("`{name}` has no address"))),
    }
}

/// Says what happened to the host's addresses, if it is worth to be known.
pub(crate) fn tell(event: &Event) {
    let said = match event {
        Event::Address(prefix, Origin::Advertised) => {
            format!("{prefix} by a router's advertisement")
        }
        Event::Lease {
            address,
            server,
            seconds,
        } => match *seconds {
            u32::MAX => format!("{address} by DHCP from {server}, for ever"),
            seconds => format!("{address} by DHCP from {server}, for {seconds} s"),
        },
        Event::Router(router) => format!("router {router}"),
        Event::Refused { server, message } => {
            let server = server.map_or_else(|| "a DHCP server".to_owned(), |one| one.to_string());
            let why = message.as_deref().unwrap_or("without a reason");
            format!("{server} refuses an address: {}", why.escape_debug())
        }
        Event::Lost(prefix, Lost::Duplicate(Some(by))) => format!(
            "{} is {by}'s too: it is not used any more; give another --addr",
            prefix.address()
        ),
        Event::Lost(prefix, Lost::Duplicate(None)) => format!(
            "{} is another's too: it is not used any more; give another --addr",
            prefix.address()
        ),
        Event::Lost(prefix, Lost::Over) => format!("{prefix} is over"),
        Event::Address(..) => return,
    };
    say(&format!("weir: {said}"));
}

/// The same each time on this machine and link, and unknown elsewhere.
fn secret(link: &str) -> u128 {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let half = |number: u8| {
        let mut hasher = DefaultHasher::new();
        (&machine, link, number).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
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
        _ if is(error, Errno::INVAL) && Interface::named(name).is_ok() => {
            format!(": it is of another kind; on a live interface say port:{name}")
        }
        _ => String::new(),
    };
    let message = format!("cannot open TAP interface `{name}`: {error}{remedy}");
    match error.kind() {
        io::ErrorKind::InvalidInput => Failure::refused(message),
        _ => Failure::run(message),
    }
}
