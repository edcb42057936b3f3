//! Opens a host's links: a TAP interface, ports on a live interface, or a link in shared memory.

use super::link_config::LinkHostConfig;
use super::{LinkRequirement, Source};
use crate::error::{CliError, limited, say};
use crate::report::format;
use rustix::io::Errno;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use weir_link::net::{Interface, InterfaceError};
use weir_socket::{Builder, Device, LinkPlan, Net, link};
use weir_stack::iface::{DadMode, MTU};
use weir_stack::{Config, Prefix};
use weir_wire::ethernet::Address;

/// A link's queues, and the host's configuration on it.
pub(super) type Opened = (Queues, Config);
type Queues = Vec<Box<dyn link::Link>>;

/// Starts the host, with this number of stacks.
pub(super) fn start(links: Vec<Opened>, shards: usize) -> Result<Net, CliError> {
    let add = |builder: Builder, (queues, config)| builder.queues(queues, &config);
    let builder = links.into_iter().fold(Net::builder(), add);
    // That a link is gone is said by the command; here, why its ports have ended.
    let builder = builder.on_link_gone(|_, error| {
        if let Some(reason) = error.get_ref() {
            say(&format!("weir: {reason}"));
        }
    });
    builder.shards(shards).start().map_err(failure)
}

impl LinkHostConfig<'_> {
    /// Opens the link.
    pub(super) fn open(&self, need: LinkRequirement) -> Result<Opened, CliError> {
        let link = self.link;
        match link.split_once(':') {
            Some(("tap", name)) => self.on_tap(name, tap(name, self.queues), need),
            Some(("port", name)) => self.on_port(name, need),
            Some(("shm", name)) => self.on_shm(name),
            Some((kind, _)) => Err(CliError::refused(format!(
                "there are no links of kind `{kind}`: give tap:NAME, port:IF, shm:NAME or a name"
            ))),
            None => match Interface::named(link) {
                Ok(interface) if !interface.tun => self.on_port(link, need),
                // Root would create an interface with any name.
                Err(InterfaceError::Missing { .. }) if rustix::process::geteuid().is_root() => {
                    Err(CliError::run(format!(
                        "there is no interface `{link}`: look at `ip link`; to make a TAP \
                         interface say tap:{link}"
                    )))
                }
                _ => self.on_tap(link, tap(link, self.queues), need),
            },
        }
    }

    /// Opens the link and closes it again; returns what another process needs in order to open
    /// it.
    pub(super) fn plan(&self) -> Result<LinkPlan, CliError> {
        let (kind, name) = self.link.split_once(':').unwrap_or(("", self.link));
        let before = Interface::named(name);
        if kind == "tap" && before.is_err() {
            return Err(CliError::run(format!(
                "there is no interface `{name}`, and the program could not make it: make it first, \
                 as root: ip tuntap add dev {name} mode tap; ip link set {name} up"
            )));
        }
        let is_tap = kind == "tap" || kind.is_empty() && before.is_ok_and(|one| one.tun);
        let (_, config) = self.open(LinkRequirement::Up)?;
        // The program would learn it after its start.
        config.check().map_err(CliError::refused)?;
        let name = name.to_owned();
        let device = if kind == "shm" {
            Device::Shm(self.link.to_owned())
        } else if is_tap {
            Device::Tap(name)
        } else {
            Device::Port {
                interface: name,
                broker: self.broker.map(Path::to_owned),
            }
        };
        Ok(LinkPlan::new(device, &config))
    }

    fn on_tap(
        &self,
        name: &str,
        tap: io::Result<Queues>,
        need: LinkRequirement,
    ) -> Result<Opened, CliError> {
        let tap = tap.map_err(|error| no_tap(name, &error))?;
        let interface = Interface::named(name).map_err(CliError::run)?;
        check_up(&interface, need)?;
        self.check_free(&interface)?;
        let mac = self.mac.unwrap_or_else(|| self.made_mac(name));
        let config = self.config(mac, &interface.name, interface.mtu as usize)?;
        Ok((tap, config))
    }

    fn on_shm(&self, name: &str) -> Result<Opened, CliError> {
        self.check_no_network()?;
        // Two hosts with one address find each other by their hardware addresses (RFC 5227).
        let mac = self.mac.unwrap_or_else(|| {
            let [a, b, c, d, e, ..] = RandomState::new().hash_one(name).to_be_bytes();
            Address([2, a, b, c, d, e])
        });
        let config = self.config(mac, self.link, link::SHM_MTU)?;
        let joined = link::Shm::join(name, mac);
        let shm = joined.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => CliError::refused(error),
            _ => CliError::run(format!("cannot join {}: {}", self.link, limited(&error))),
        })?;
        Ok((vec![Box::new(shm)], config))
    }

    fn on_port(&self, name: &str, need: LinkRequirement) -> Result<Opened, CliError> {
        let interface = Interface::named(name).map_err(CliError::run)?;
        check_up(&interface, need)?;
        self.check_free(&interface)?;
        let dynamic = self.has(Source::Dhcp) || self.has(Source::Auto);
        if dynamic && self.mac.is_none() {
            return Err(CliError::refused(format!(
                "`dhcp` and `auto` on {name} need a hardware address beside the kernel's: give \
                 one with --mac, such as {}",
                self.made_mac(name)
            )));
        }
        let own: Option<[u8; 6]> = interface.address.as_slice().try_into().ok();
        // The loopback interface has an all-zero address.
        let own = own.filter(|own| *own != [0; 6]);
        let mac = self.mac.or(own.map(Address)).ok_or_else(|| {
            CliError::refused(format!(
                "{name} is not an Ethernet interface: choose another"
            ))
        })?;
        let mut config = self.config(mac, &interface.name, interface.mtu as usize)?;
        // The kernel has the link-local address derived from the MAC address.
        let has_v6 = config.addresses.iter().any(|one| one.address().is_ipv6());
        if has_v6 && !config.autoconf && !config.addresses.iter().any(is_link_local) {
            config.addresses.extend(self.made_link_local(name));
        }
        let addresses: Vec<IpAddr> = config.addresses.iter().map(Prefix::address).collect();
        let options = link::PortOptions {
            broker: self.broker.map(Path::to_owned),
            ..link::PortOptions::default()
        };
        let port = if dynamic {
            link::Port::open_station(name, mac, &options)
        } else {
            link::Port::open(name, mac, &addresses, &options)
        };
        let mut port = port.map_err(|error| match error.downcast() {
            Ok(error) => crate::input::live_port::failure(error),
            Err(error) => CliError::run(format!("cannot open ports on {name}: {error}")),
        })?;
        // Link-local addresses that are made follow from the first of the others.
        let is_given = |address: &&str| {
            dynamic
                || self
                    .fixed()
                    .any(|one| one.address().to_string() == *address)
        };
        let shared: Vec<&str> = port.shared_addresses().filter(is_given).collect();
        if !shared.is_empty() {
            let option = if dynamic { "--mac" } else { "--addr" };
            say(&format!(
                "weir: another host on {name} has {}, too: each takes some of the frames; end one of \
                 them, or give another {option}",
                shared.join(", ")
            ));
        }
        let needed = needed_grant(mac, own.map(Address), &addresses);
        let interface = name.to_owned();
        port.on_refusal(move |count| {
            say(&format!(
                "weir: {interface}: the policy refuses what the host sends ({} so far): what it \
                 needs is a grant with {needed}; docs/reference/policy.md says what may be sent",
                format::frames(count)
            ));
        });
        Ok((vec![Box::new(port)], config))
    }

    fn config(&self, mac: Address, name: &str, mtu: usize) -> Result<Config, CliError> {
        let mut config = Config::new(mac);
        config.mtu = mtu;
        if !MTU.contains(&config.mtu) {
            let (least, most) = (MTU.start(), MTU.end());
            return Err(CliError::refused(format!(
                "{name}'s MTU is {} bytes, a host takes {least} to {most}: ip link set {name} mtu \
                 {least}",
                config.mtu
            )));
        }
        config.addresses = self.fixed().collect();
        config.dad_mode = DadMode::Optimistic;
        config.dhcp = self.has(Source::Dhcp);
        config.autoconf = self.has(Source::Auto);
        config.secret = Some(secret(name));
        for gateway in &self.gateways {
            let all = match gateway {
                IpAddr::V4(_) => IpAddr::from([0; 4]),
                IpAddr::V6(_) => IpAddr::from([0; 16]),
            };
            let all = Prefix::new(all, 0).ok_or_else(|| CliError::refused(gateway))?;
            config = config.route(all, *gateway);
        }
        for (to, gateway) in &self.routes {
            config = config.route(*to, *gateway);
        }
        Ok(config)
    }

    /// A hash that is the same in every run, so that neighbours' caches stay
    /// right.
    fn made_of(&self, name: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let first = self.fixed().next();
        first.map(|prefix| prefix.address()).hash(&mut hasher);
        hasher.finish()
    }

    /// A locally administered address (IEEE 802).
    fn made_mac(&self, name: &str) -> Address {
        let [a, b, c, d, e, ..] = self.made_of(name).to_be_bytes();
        Address([2, a, b, c, d, e])
    }

    fn made_link_local(&self, name: &str) -> Option<Prefix> {
        let low = u128::from(self.made_of(name));
        Prefix::new(Ipv6Addr::from_bits(0xfe80 << 112 | low).into(), 64)
    }

    /// Refuses addresses that the kernel answers for, and addresses that are
    /// not unicast.
    fn check_free(&self, interface: &Interface) -> Result<(), CliError> {
        for prefix in self.fixed() {
            let its = |one: &&weir_link::net::Address| one.ip == prefix.address();
            if let Some(taken) = interface.addresses.iter().find(its) {
                return Err(CliError::refused(format!(
                    "{} is this machine's own on {}: give the host another of its network",
                    taken.ip, interface.name
                )));
            }
        }
        self.check_no_network()
    }

    fn check_no_network(&self) -> Result<(), CliError> {
        for prefix in self.fixed() {
            if prefix.is_network() {
                return Err(CliError::refused(format!(
                    "{prefix} is the network's address, not a host's: give one in it, such as {}",
                    first_of(prefix)
                )));
            }
        }
        Ok(())
    }
}

/// The grant that a host needs in order to send with its addresses, in addition
/// to the interface's own.
fn needed_grant(mac: Address, own: Option<Address>, addresses: &[IpAddr]) -> String {
    let quoted: Vec<String> = addresses.iter().map(|one| format!("\"{one}\"")).collect();
    let source = if own == Some(mac) {
        String::new()
    } else {
        format!("source = \"{mac}\", ")
    };
    if quoted.is_empty() {
        // Assigned addresses are not known yet.
        "send = { any_source = true }".to_owned()
    } else {
        format!("send = {{ {source}addresses = [{}] }}", quoted.join(", "))
    }
}

/// The first host address of a network.
fn first_of(prefix: Prefix) -> IpAddr {
    match prefix.network().address() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() | 1).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() | 1).into(),
    }
}

/// A secret that is the same in every run on this machine and link.
fn secret(link: &str) -> u128 {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let half = |number: u8| {
        let mut hasher = DefaultHasher::new();
        (&machine, link, number).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// Opens a TAP interface with a queue for each stack, or with one queue if the
/// interface was created with one or does not exist; with the kernel's
/// offloads, or without them if the kernel lacks them.
fn tap(name: &str, queues: usize) -> io::Result<Queues> {
    let one = |tap| vec![Box::new(tap) as Box<dyn link::Link>];
    let ways: [&dyn Fn() -> io::Result<Queues>; 4] = [
        &|| link::Tap::queues(name, queues),
        &|| link::Tap::open(name).map(one),
        &|| link::Tap::queues_plain(name, queues),
        &|| link::Tap::open_plain(name).map(one),
    ];
    // With one stack, the interface is created as in earlier versions.
    let order = if queues > 1 {
        [0, 1, 2, 3]
    } else {
        [1, 0, 3, 2]
    };
    let mut opened = ways[order[0]]();
    for next in &order[1..] {
        match opened {
            Err(error) if is(&error, Errno::INVAL) => opened = ways[*next](),
            done => return done,
        }
    }
    opened
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

fn failure(error: io::Error) -> CliError {
    match error.kind() {
        io::ErrorKind::InvalidInput => CliError::refused(error),
        _ => CliError::run(format!("cannot start the host: {}", limited(&error))),
    }
}

fn check_up(interface: &Interface, need: LinkRequirement) -> Result<(), CliError> {
    if interface.up {
        return Ok(());
    }
    let name = &interface.name;
    let down = format!("{name} is down, and carries nothing: ip link set {name} up");
    match need {
        LinkRequirement::Up => Err(CliError::run(down)),
        LinkRequirement::Later => {
            say(&format!("weir: {down}"));
            Ok(())
        }
    }
}

fn no_tap(name: &str, error: &io::Error) -> CliError {
    let remedy = match error.kind() {
        // The kernel's driver, which every TAP interface needs.
        io::ErrorKind::NotFound => ": /dev/net/tun is not there: load the driver as root \
             (modprobe tun), or give it to the container"
            .to_owned(),
        // The interface is refused with EPERM.
        io::ErrorKind::PermissionDenied if is(error, Errno::ACCESS) => {
            ": you may not open /dev/net/tun: chmod 0666 /dev/net/tun as root, or run as root"
                .to_owned()
        }
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
    let message = format!(
        "cannot open TAP interface `{name}`: {}{remedy}",
        limited(error)
    );
    match error.kind() {
        io::ErrorKind::InvalidInput => CliError::refused(message),
        _ => CliError::run(message),
    }
}
