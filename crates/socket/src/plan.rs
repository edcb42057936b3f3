//! [`HostPlan`]: a host's links and addresses as text, for another process to start the host.

use crate::link::{self, Hairpin, Link};
use crate::net::{Builder, Net};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use weir_stack::iface::{DadMode, Mode};
use weir_stack::{Config, Prefix};
use weir_wire::ethernet::Address;

/// The device of a planned link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// A TAP interface with this name.
    Tap(String),
    /// A port on the live interface with this name.
    Port {
        /// The interface.
        interface: String,
        /// The broker's socket; `None` for its usual place.
        broker: Option<PathBuf>,
    },
    /// A link in shared memory, by this name with `shm:` before it.
    Shm(String),
}

impl Device {
    /// The name of the kernel's interface; of a link without one, a name that no interface has.
    pub fn interface(&self) -> &str {
        match self {
            Device::Tap(name) | Device::Shm(name) => name,
            Device::Port { interface, .. } => interface,
        }
    }
}

/// One link of a planned host, and the host's configuration on it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkPlan {
    device: Device,
    mac: [u8; 6],
    mtu: usize,
    addresses: Vec<String>,
    /// Networks, each with its gateway.
    routes: Vec<(String, IpAddr)>,
    dhcp: bool,
    autoconf: bool,
    /// In hexadecimal digits.
    secret: Option<String>,
}

/// The links of a host that another process starts: see [`HostPlan::to_text`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HostPlan {
    /// The links in the order of their numbers.
    pub links: Vec<LinkPlan>,
    /// Whether 127.0.0.0/8 and ::1 are the host's own, by a link without other stations. The
    /// host can reach its other addresses in any case.
    #[serde(default)]
    pub loopback: bool,
    /// Whether all received packets take the standard path ([`Mode::Mux`]).
    #[serde(default)]
    pub mux: bool,
    /// Exceptions from what the addresses and routes say; the first that matches decides.
    #[serde(default)]
    pub rules: Vec<SocketRule>,
    /// The servers at which names are looked up by the host's sockets; without any, those that DHCP
    /// servers and routers name.
    #[serde(default)]
    pub name_servers: Vec<IpAddr>,
}

/// A transport protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketProtocol {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
}

/// What decides whose a socket is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketCall {
    /// The local address that a program binds.
    Bind,
    /// The remote address that a program connects or sends to.
    Connect,
}

/// Whose sockets are: a condition, in which `None` matches all, and what then holds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SocketRule {
    /// Whether the sockets are the kernel's; otherwise addresses and routes decide.
    pub kernel: bool,
    /// The protocol.
    pub protocol: Option<SocketProtocol>,
    /// The call.
    pub call: Option<SocketCall>,
    /// The network of the address.
    pub address: Option<String>,
    /// The first and the last transport port.
    pub ports: Option<(u16, u16)>,
}

impl SocketRule {
    fn matches(&self, protocol: SocketProtocol, call: SocketCall, address: SocketAddr) -> bool {
        let is_in = |network: &String| {
            let network: Result<Prefix, _> = network.parse();
            network.is_ok_and(|network| network.contains(address.ip()))
        };
        self.protocol.is_none_or(|one| one == protocol)
            && self.call.is_none_or(|one| one == call)
            && self.address.as_ref().is_none_or(is_in)
            && self
                .ports
                .is_none_or(|(first, last)| (first..=last).contains(&address.port()))
    }
}

/// MTU of the loopback link in bytes: the largest there is (Linux takes one byte more).
const LOOPBACK_MTU: usize = 65_535;

/// The folders in which processes of a user have sockets that list theirs, each named by its
/// process: `weir sockets` asks there. A process uses the first that it can.
pub fn status_folders(uid: u32) -> [PathBuf; 2] {
    let first = match uid {
        0 => PathBuf::from("/run/weir-exec"),
        uid => PathBuf::from(format!("/run/user/{uid}/weir-exec")),
    };
    [first, PathBuf::from(format!("/tmp/weir-exec-{uid}"))]
}

fn invalid(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_string())
}

impl LinkPlan {
    /// The plan of a link with this configuration.
    pub fn new(device: Device, config: &Config) -> LinkPlan {
        let routes = config.routes.iter();
        LinkPlan {
            device,
            mac: config.hardware.0,
            mtu: config.mtu,
            addresses: config.addresses.iter().map(Prefix::to_string).collect(),
            routes: routes
                .map(|route| (route.to.to_string(), route.gateway))
                .collect(),
            dhcp: config.dhcp,
            autoconf: config.autoconf,
            secret: config.secret.map(|secret| format!("{secret:x}")),
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The name of the interface.
    pub fn name(&self) -> &str {
        self.device.interface()
    }

    /// Whether servers or routers assign addresses on the link.
    pub fn is_dynamic(&self) -> bool {
        self.dhcp || self.autoconf
    }

    fn config(&self) -> io::Result<Config> {
        let mut config = Config::new(Address(self.mac));
        config.mtu = self.mtu;
        config.dad_mode = DadMode::Optimistic;
        (config.dhcp, config.autoconf) = (self.dhcp, self.autoconf);
        for address in &self.addresses {
            config = config.address(address.parse().map_err(invalid)?);
        }
        for (to, gateway) in &self.routes {
            config = config.route(to.parse().map_err(invalid)?, *gateway);
        }
        let secret = self.secret.as_deref();
        let secret = secret.map(|digits| u128::from_str_radix(digits, 16));
        config.secret = secret.transpose().map_err(invalid)?;
        Ok(config)
    }

    fn open(&self, config: &Config) -> io::Result<Box<dyn Link>> {
        match &self.device {
            Device::Tap(name) => Ok(Box::new(link::Tap::open_any(name)?)),
            Device::Shm(name) => {
                let name = name.strip_prefix("shm:").unwrap_or(name);
                Ok(Box::new(link::Shm::join(name, config.hardware)?))
            }
            Device::Port { interface, broker } => {
                let options = link::PortOptions {
                    broker: broker.clone(),
                    ..link::PortOptions::default()
                };
                let addresses: Vec<IpAddr> = config.addresses.iter().map(Prefix::address).collect();
                let port = if self.is_dynamic() {
                    link::Port::open_station(interface, config.hardware, &options)
                } else {
                    link::Port::open(interface, config.hardware, &addresses, &options)
                };
                Ok(Box::new(port.map_err(io::Error::other)?))
            }
        }
    }
}

impl HostPlan {
    /// The plan as one line of JSON.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the result of [`HostPlan::to_text`].
    ///
    /// # Errors
    /// If the text is not a plan.
    pub fn from_text(text: &str) -> io::Result<HostPlan> {
        serde_json::from_str(text).map_err(invalid)
    }

    /// Whether a rule gives a socket to the kernel.
    pub fn is_kernels(
        &self,
        protocol: SocketProtocol,
        call: SocketCall,
        address: SocketAddr,
    ) -> bool {
        let mut rules = self.rules.iter();
        let first = rules.find(|rule| rule.matches(protocol, call, address));
        first.is_some_and(|rule| rule.kernel)
    }

    /// The path of received packets.
    fn mode(&self) -> Mode {
        if self.mux { Mode::Mux } else { Mode::Opt }
    }

    /// Opens the links and adds them to a host to be started.
    ///
    /// # Errors
    /// If a link cannot be opened, or an address is not one.
    pub fn open(&self, mut builder: Builder) -> io::Result<Builder> {
        for plan in &self.links {
            let mut config = plan.config()?;
            let link = plan.open(&config)?;
            config.hairpin = true;
            config.mode = self.mode();
            let link = Hairpin::new(link, config.hardware);
            builder = builder.link(link, &config);
        }
        if self.loopback {
            // A device without other stations may have any hardware address.
            let own = Address([2, 0, 0, 0, 0, 1]);
            let mut config = Config::new(own);
            config.hairpin = true;
            config.mode = self.mode();
            config.mtu = LOOPBACK_MTU;
            for address in ["127.0.0.1/8", "::1/128"] {
                config = config.address(address.parse().map_err(invalid)?);
            }
            builder = builder.link(Hairpin::loopback(own)?, &config);
        }
        Ok(builder)
    }

    /// Opens the links and starts the host.
    ///
    /// # Errors
    /// As [`HostPlan::open`] and [`Builder::start`].
    pub fn start(&self) -> io::Result<Net> {
        self.open(Net::builder())?.start()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rule = |kernel, address: &str, ports| SocketRule {
            kernel,
            address: Some(address.to_owned()),
            ports,
            ..SocketRule::default()
        };
        let plan = HostPlan {
            rules: vec![
                rule(false, "192.0.2.9/32", None),
                rule(true, "192.0.2.0/24", Some((50, 60))),
                SocketRule {
                    kernel: true,
                    protocol: Some(SocketProtocol::Udp),
                    call: Some(SocketCall::Bind),
                    ..SocketRule::default()
                },
            ],
            ..HostPlan::default()
        };
        let is_kernels =
            |protocol, call, at: &str| plan.is_kernels(protocol, call, at.parse().unwrap());
        use SocketCall::{Bind, Connect};
        use SocketProtocol::{Tcp, Udp};
        assert!(!is_kernels(Tcp, Connect, "192.0.2.9:53"));
        assert!(is_kernels(Tcp, Connect, "192.0.2.8:53"));
        assert!(is_kernels(Udp, Bind, "192.0.2.8:60"));
        assert!(!is_kernels(Tcp, Bind, "192.0.2.8:61"));
        assert!(is_kernels(Udp, Bind, "[2001:db8::1]:61"));
        assert!(!is_kernels(Udp, Connect, "[2001:db8::1]:53"));
    }

    #[test]
    fn a_plan_is_the_same_after_it_was_text() {
        let mut config = Config::new(Address([2, 0, 0, 0, 0, 5]))
            .address("192.0.2.5/24".parse().unwrap())
            .address("2001:db8::5/64".parse().unwrap())
            .route("0.0.0.0/0".parse().unwrap(), "192.0.2.1".parse().unwrap());
        config.mtu = 9000;
        config.secret = Some(u128::MAX - 5);
        config.dad_mode = DadMode::Optimistic;
        let plan = HostPlan {
            links: vec![LinkPlan::new(Device::Tap("tap0".to_owned()), &config)],
            loopback: true,
            mux: true,
            rules: vec![SocketRule {
                kernel: true,
                ports: Some((53, 53)),
                ..SocketRule::default()
            }],
            name_servers: vec![
                "192.0.2.53".parse().unwrap(),
                "2001:db8::53".parse().unwrap(),
            ],
        };
        let read = HostPlan::from_text(&plan.to_text()).unwrap();
        assert_eq!(read, plan);
        assert_eq!(read.mode(), Mode::Mux);
        // What an earlier version has written.
        let earlier = HostPlan::from_text("{\"links\":[]}").unwrap();
        assert_eq!((earlier.loopback, earlier.mode()), (false, Mode::Opt));
        let again = read.links[0].config().unwrap();
        assert_eq!(format!("{again:?}"), format!("{config:?}"));
        assert!(HostPlan::from_text("{}").is_err() && HostPlan::from_text("tap0").is_err());
    }
}
