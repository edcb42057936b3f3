//! `router.toml`, the configuration of a router.
//!
//! ```toml
//! redirects = true              # send redirects to a better first hop
//! neighbours_max = 8192
//! routes_max = 4000000          # of each version of IP
//!
//! [icmp]                        # errors and redirects
//! per_second = 1000
//! burst = 50
//!
//! [kernel]
//! routes = true                 # learn from the kernel's tables
//! tables = [254]                # which: 254 is `main`
//! host = ["tcp port 179"]       # what of its own frames the host gets; true: all
//!
//! [meter]                       # usage records of subscribers
//! config = "counter.toml"
//!
//! [[link]]
//! name = "eth1"
//! addresses = ["192.0.2.1/24", "2001:db8:1::1/64"]   # default: the interface's
//! mtu = 1500                                          # default: the interface's
//!
//! [[route]]
//! to = "0.0.0.0/0"
//! via = ["192.0.2.254"]         # several: a flow keeps to one
//! link = "eth1"                 # where `via` is ambiguous
//!
//! [[route]]
//! to = "198.51.100.0/24"
//! kind = "unreachable"          # or "prohibit", "blackhole"
//!
//! [[neighbour]]
//! link = "eth1"
//! address = "192.0.2.254"
//! hardware = "02:00:00:00:00:fe"
//! ```

mod error;

pub use error::{ConfigError, TableRef, host_at, link_at};

use super::{HOPS_MAX, Hop, LINKS_MAX, LinkId, LinkSettings, ROUTES_V4_MAX, RouterConfig, Target};
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr};
use weir_stack::Prefix;
use weir_wire::ethernet::Address;

/// Largest size of a configuration file, in bytes.
pub const FILE_BYTES_MAX: u64 = 256 << 20;
/// Smallest MTU of an IPv4 link, in bytes (RFC 791).
const MTU_MIN: usize = super::MTU_MIN;
/// Smallest MTU of an IPv6 link, in bytes (RFC 8200 §5).
const MTU_V6_MIN: usize = 1280;
/// Largest MTU of a link, in bytes.
const MTU_MAX: usize = 65_535;
/// Largest value of `neighbours_max`.
const NEIGHBOURS_MAX: usize = 1 << 20;

/// A configuration, as read from its file.
#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether the router sends ICMP redirects to hosts with a better first
    /// hop.
    pub redirects: bool,
    /// Largest number of neighbours.
    pub neighbours_max: usize,
    /// Largest number of routes of each version of IP, configured or learned.
    pub routes_max: usize,
    /// The rate of ICMP errors.
    pub icmp: Icmp,
    /// The state shared with the kernel.
    pub kernel: Kernel,
    /// The meter of the links, if they have one.
    pub meter: Option<MeterConfig>,
    /// The links, in order.
    #[serde(rename = "link")]
    pub links: Vec<LinkConfig>,
    /// Static routes.
    #[serde(rename = "route")]
    pub routes: Vec<RouteConfig>,
    /// Static neighbours.
    #[serde(rename = "neighbour")]
    pub neighbours: Vec<NeighbourConfig>,
}

impl Default for Config {
    fn default() -> Config {
        let settings = RouterConfig::default();
        Config {
            redirects: settings.redirects,
            neighbours_max: settings.neighbours_max,
            routes_max: settings.routes_max,
            icmp: Icmp::default(),
            kernel: Kernel::default(),
            meter: None,
            links: Vec::new(),
            routes: Vec::new(),
            neighbours: Vec::new(),
        }
    }
}

/// `[icmp]`
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Icmp {
    /// Number of ICMP errors and redirects per second; 0 for none.
    pub per_second: u32,
    /// Largest burst of them.
    pub burst: u32,
}

impl Default for Icmp {
    fn default() -> Icmp {
        let settings = RouterConfig::default();
        Icmp {
            per_second: settings.icmp_per_second,
            burst: settings.icmp_burst,
        }
    }
}

/// `[kernel]`
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Kernel {
    /// Whether routes are learned from the kernel.
    pub routes: bool,
    /// The kernel tables to learn from.
    pub tables: Vec<u32>,
    /// The frames for the router itself that go to the host.
    pub host: HostFrames,
}

impl Default for Kernel {
    fn default() -> Kernel {
        Kernel {
            routes: false,
            tables: vec![254],
            host: HostFrames::default(),
        }
    }
}

/// `[meter]`: where the links' counter has its configuration and its records. Paths are relative to the
/// configuration's folder.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct MeterConfig {
    /// The counter's configuration.
    pub config: String,
    /// The ledger, if not the usual one.
    pub store: Option<String>,
    /// The spool, if not the usual one.
    pub spool: Option<String>,
    /// Whether the records stay in the spool.
    #[serde(default)]
    pub no_store: bool,
}

/// The frames for the router itself that go to the host.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(
    untagged,
    expecting = "expected true, false, a filter, or a list of filters"
)]
pub enum HostFrames {
    /// All frames that the router does not answer itself, or none.
    All(bool),
    /// Those of these frames that one of the filters accepts.
    Some(OneOrMore),
}

impl Default for HostFrames {
    fn default() -> HostFrames {
        HostFrames::All(false)
    }
}

impl HostFrames {
    /// The filters joined into one, empty for all frames; `None` for no frames.
    pub fn filter(&self) -> Option<String> {
        match self {
            HostFrames::All(all) => all.then(String::new),
            HostFrames::Some(filters) => {
                let filters = filters.all().iter().map(|filter| format!("({filter})"));
                let filters: Vec<String> = filters.collect();
                (!filters.is_empty()).then(|| filters.join(" or "))
            }
        }
    }
}

/// `[[link]]`
#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// The interface.
    pub name: String,
    /// The router's addresses on the link, each with its network; by default
    /// the interface's addresses.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The MTU in bytes; by default the interface's.
    pub mtu: Option<usize>,
}

/// `[[route]]`
#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// The prefix.
    pub to: String,
    /// The gateways; empty for a route to a network on the link.
    #[serde(default)]
    pub via: OneOrMore,
    /// The link; necessary if `via` does not determine it.
    pub link: Option<String>,
    /// The kind of a route that does not forward.
    pub kind: Option<RejectKind>,
}

/// A string or a list of strings.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(untagged, expecting = "expected a text, or a list of texts")]
pub enum OneOrMore {
    /// One.
    One(String),
    /// Any number.
    More(Vec<String>),
}

impl Default for OneOrMore {
    fn default() -> OneOrMore {
        OneOrMore::More(Vec::new())
    }
}

impl OneOrMore {
    fn all(&self) -> &[String] {
        match self {
            OneOrMore::One(text) => std::slice::from_ref(text),
            OneOrMore::More(texts) => texts,
        }
    }
}

/// The treatment of packets that a route does not forward.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum RejectKind {
    /// The packet is dropped; the sender gets "destination unreachable".
    Unreachable,
    /// The packet is dropped; the sender gets "administratively prohibited".
    Prohibit,
    /// The packet is dropped silently.
    Blackhole,
}

impl RejectKind {
    /// The word of the configuration file.
    fn word(self) -> &'static str {
        match self {
            RejectKind::Unreachable => "unreachable",
            RejectKind::Prohibit => "prohibit",
            RejectKind::Blackhole => "blackhole",
        }
    }
}

/// `[[neighbour]]`
#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct NeighbourConfig {
    /// The neighbour's link.
    pub link: String,
    /// The neighbour's IP address.
    pub address: String,
    /// The neighbour's hardware address.
    pub hardware: String,
}

/// The properties of an interface that serve as defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceInfo {
    /// Its hardware address.
    pub hardware: Address,
    /// The interface's MTU, in bytes.
    pub mtu: usize,
    /// Its addresses.
    pub addresses: Vec<Prefix>,
}

/// The router's configuration and the static routes, with the interfaces
/// applied.
pub type Instantiated = (RouterConfig, Vec<(Prefix, Target)>);

impl Config {
    /// Reads a configuration; `interfaces` become further links.
    ///
    /// # Errors
    /// For text that is not TOML and for unknown keys, with the line.
    pub fn parse(text: &str, interfaces: &[String]) -> Result<Config, ConfigError> {
        let mut config: Config = toml::from_str(text).map_err(|error| form(&error))?;
        config
            .links
            .extend(interfaces.iter().map(|name| LinkConfig {
                name: name.clone(),
                addresses: Vec::new(),
                mtu: None,
            }));
        config.check()?;
        Ok(config)
    }

    /// Checks what does not depend on the interfaces.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key, value: usize, remedy: String| ConfigError::Value {
            place: TableRef::Top,
            key,
            value: value.to_string(),
            remedy,
        };
        if self.links.is_empty() {
            return Err(ConfigError::Form {
                at: None,
                message: format!(
                    "the router has no link, and needs 1 to {LINKS_MAX}: write [[link]] for each, or \
                     name its interface as an argument"
                ),
            });
        }
        if self.links.len() > LINKS_MAX {
            let remedy = format!(
                "a router has 1 to {LINKS_MAX} links: write [[link]] for each, or name its interface"
            );
            return Err(wrong("[[link]]", self.links.len(), remedy));
        }
        if !(4..=NEIGHBOURS_MAX).contains(&self.neighbours_max) {
            let remedy = format!("give a number from 4 to {NEIGHBOURS_MAX}");
            return Err(wrong("neighbours_max", self.neighbours_max, remedy));
        }
        if !(1..=ROUTES_V4_MAX).contains(&self.routes_max) {
            let remedy = format!("give a number from 1 to {ROUTES_V4_MAX}");
            return Err(wrong("routes_max", self.routes_max, remedy));
        }
        if self.kernel.tables.contains(&0) {
            let remedy = "no table of the kernel's: 254 is `main`, see `ip route show table all`";
            return Err(value(TableRef::Section("kernel"), "tables", "0", remedy));
        }
        for (number, link) in self.links.iter().enumerate() {
            let before = &self.links[..number];
            if before.iter().any(|other| other.name == link.name) {
                return Err(self.same_link(number, &link.name));
            }
        }
        Ok(())
    }

    /// The error for a link whose interface is already an earlier link of the
    /// configuration.
    pub(crate) fn same_link(&self, link: usize, interface: &str) -> ConfigError {
        let remedy = format!("`{interface}` is one link: put its addresses together");
        value(
            TableRef::Table("link", link),
            "name",
            &self.links[link].name,
            &remedy,
        )
    }

    /// The router's addresses on a link whose interface has `own` now. The
    /// caller has called [`settings`](Self::settings) on `self` before.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn addresses(&self, link: usize, own: &[Prefix]) -> Vec<Prefix> {
        let host = self.kernel.host.filter().is_some();
        let addresses = self.links[link].addresses(TableRef::Top, own, host);
        addresses.unwrap_or_default()
    }

    /// The MTU of a link whose interface has the MTU `own` now, in bytes.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn mtu(&self, link: usize, own: usize) -> usize {
        let own = own.min(MTU_MAX);
        self.links[link].mtu.map_or(own, |mtu| mtu.min(own))
    }

    /// Checks that no address occurs twice: its network would be ambiguous.
    /// Several links may have the same unspecified or link-local address.
    fn check_addresses(&self) -> Result<(), ConfigError> {
        let mut seen = HashMap::new();
        for (number, link) in self.links.iter().enumerate() {
            for text in &link.addresses {
                let Ok(prefix) = text.parse::<Prefix>() else {
                    continue;
                };
                let may_share = match prefix.address() {
                    IpAddr::V4(_) => prefix.len() == 32,
                    IpAddr::V6(ip) => prefix.len() == 128 || ip.is_unicast_link_local(),
                };
                let before = seen.insert(prefix.address(), number);
                if before.is_some_and(|before| before == number || !may_share) {
                    let remedy =
                        "the router has this address already: leave it out, or give another";
                    return Err(value(
                        TableRef::Table("link", number),
                        "addresses",
                        text,
                        remedy,
                    ));
                }
            }
        }
        Ok(())
    }

    /// Combines the configuration with the interfaces, one for each link, in
    /// order.
    ///
    /// # Errors
    /// For a value that is invalid, or contradicts the interface.
    ///
    /// # Panics
    /// If there are not as many interfaces as links.
    pub fn settings(&self, interfaces: &[InterfaceInfo]) -> Result<Instantiated, ConfigError> {
        assert_eq!(interfaces.len(), self.links.len(), "one for each link");
        let links = self.links.iter().zip(interfaces).enumerate();
        let host = self.kernel.host.filter().is_some();
        let links = links.map(|(number, (link, facts))| link.settings(number, facts, host));
        let links = links.collect::<Result<Vec<LinkSettings>, ConfigError>>()?;
        self.check_addresses()?;
        let routes = self.routes.iter().enumerate();
        let routes = routes.map(|(number, route)| route.target(number, &links));
        let routes = routes.collect::<Result<Vec<(Prefix, Target)>, ConfigError>>()?;
        let prefixes = routes.iter().map(|(to, _)| to.network());
        if let Some((number, to)) = twice(prefixes) {
            let remedy =
                "there is such a route: put its next routers together, as in via = [\"A\", \"B\"]";
            return Err(value(
                TableRef::Table("route", number),
                "to",
                &to.to_string(),
                remedy,
            ));
        }
        let neighbours = self.neighbours.iter().enumerate();
        let neighbours = neighbours.map(|(number, one)| one.read(number, &links));
        let neighbours = neighbours.collect::<Result<Vec<_>, ConfigError>>()?;
        let places = neighbours.iter().map(|&(link, address, _)| (link, address));
        if let Some((number, (_, address))) = twice(places) {
            let remedy = "a neighbour has one hardware address: leave one of the two out";
            let address = address.to_string();
            return Err(value(
                TableRef::Table("neighbour", number),
                "address",
                &address,
                remedy,
            ));
        }
        let settings = RouterConfig {
            neighbours,
            links,
            neighbours_max: self.neighbours_max,
            routes_max: self.routes_max,
            icmp_per_second: self.icmp.per_second,
            icmp_burst: self.icmp.burst,
            redirects: self.redirects,
            host,
        };
        Ok((settings, routes))
    }
}

impl LinkConfig {
    /// The router's addresses on the link, whose interface has `own`.
    fn addresses(
        &self,
        place: TableRef,
        own: &[Prefix],
        host: bool,
    ) -> Result<Vec<Prefix>, ConfigError> {
        let mut addresses = Vec::new();
        for text in &self.addresses {
            let prefix: Prefix = text.parse().map_err(|error| {
                if text.contains('%') {
                    value(
                        place,
                        "addresses",
                        text,
                        "it is of this link: leave out `%…`",
                    )
                } else {
                    value(place, "addresses", text, &format!("{error}"))
                }
            })?;
            let ip = prefix.address();
            if !is_unicast(ip) || prefix.is_network() || is_to_all(&prefix, ip) {
                let remedy = "no address of one router on a link";
                return Err(value(place, "addresses", text, remedy));
            }
            addresses.push(prefix);
        }
        // The router answers for the host's addresses.
        if addresses.is_empty() || host {
            for own in own {
                if !addresses.contains(own) {
                    addresses.push(*own);
                }
            }
        }
        Ok(addresses)
    }

    fn settings(
        &self,
        number: usize,
        facts: &InterfaceInfo,
        host: bool,
    ) -> Result<LinkSettings, ConfigError> {
        let place = TableRef::Table("link", number);
        let addresses = self.addresses(place, &facts.addresses, host)?;
        if addresses.is_empty() {
            let remedy = format!(
                "give the router an address here, as in addresses = [\"192.0.2.1/24\"]; `{}` has none",
                self.name
            );
            return Err(value(place, "addresses", "[]", &remedy));
        }
        let mtu = self.mtu.unwrap_or(facts.mtu.min(MTU_MAX));
        let has_v6 = addresses.iter().any(|prefix| prefix.address().is_ipv6());
        let least = if has_v6 { MTU_V6_MIN } else { MTU_MIN };
        if mtu < least || mtu > facts.mtu {
            let remedy = format!(
                "from {least} to {} bytes, the longest packet of `{}`",
                facts.mtu, self.name
            );
            return Err(value(place, "mtu", &mtu.to_string(), &remedy));
        }
        Ok(LinkSettings {
            name: self.name.clone(),
            hardware: facts.hardware,
            mtu,
            addresses,
        })
    }
}

impl RouteConfig {
    fn target(
        &self,
        number: usize,
        links: &[LinkSettings],
    ) -> Result<(Prefix, Target), ConfigError> {
        let place = TableRef::Table("route", number);
        let to: Prefix = self
            .to
            .parse()
            .map_err(|error| value(place, "to", &self.to, &format!("{error}")))?;
        if to != to.network() {
            let remedy = format!("{to} has host bits: write {}", to.network());
            return Err(value(place, "to", &self.to, &remedy));
        }
        let link = match &self.link {
            None => None,
            Some(name) => Some(named(place, name, links)?),
        };
        let via = self.via.all();
        if let Some(kind) = self.kind {
            if !via.is_empty() || link.is_some() {
                let remedy = "such a route leads nowhere: leave out `via` and `link`";
                return Err(value(place, "kind", kind.word(), remedy));
            }
            let target = match kind {
                RejectKind::Unreachable => Target::Unreachable,
                RejectKind::Prohibit => Target::Prohibit,
                RejectKind::Blackhole => Target::Blackhole,
            };
            return Ok((to, target));
        }
        if via.len() > HOPS_MAX {
            let remedy = format!("at most {HOPS_MAX} next hops");
            return Err(value(place, "via", &via.len().to_string(), &remedy));
        }
        let hops = via.iter().map(|text| hop(place, text, link, links));
        let mut hops = hops.collect::<Result<Vec<Hop>, ConfigError>>()?;
        match (hops.is_empty(), link) {
            (true, Some(link)) => hops.push(Hop {
                link,
                gateway: None,
            }),
            (true, None) => {
                let remedy = "say where it leads: via = \"ADDRESS\", link = \"NAME\" or kind = \"blackhole\"";
                return Err(value(place, "to", &self.to, remedy));
            }
            _ => {}
        }
        Ok((to, Target::Forward(hops.into())))
    }
}

impl NeighbourConfig {
    fn read(
        &self,
        number: usize,
        links: &[LinkSettings],
    ) -> Result<(LinkId, IpAddr, Address), ConfigError> {
        let place = TableRef::Table("neighbour", number);
        let link = named(place, &self.link, links)?;
        let address = self.address.parse();
        let address =
            address.map_err(|_| value(place, "address", &self.address, "write an IP address"))?;
        let hardware = self.hardware.parse();
        let hardware: Address = hardware
            .map_err(|error| value(place, "hardware", &self.hardware, &format!("{error}")))?;
        check_peer(place, "address", address, link, links)?;
        if hardware.is_multicast() || hardware == Address::default() {
            let remedy = "no hardware address of one station: write the neighbour's own";
            return Err(value(place, "hardware", &self.hardware, remedy));
        }
        Ok((link, address, hardware))
    }
}

/// The error for a text that the TOML parser rejects.
fn form(error: &toml::de::Error) -> ConfigError {
    ConfigError::Form {
        at: error.span().map(|span| span.start),
        message: error.message().to_owned(),
    }
}

/// A gateway as a hop: on the link that is stated, or on the link whose network
/// contains the gateway.
fn hop(
    place: TableRef,
    text: &str,
    link: Option<LinkId>,
    links: &[LinkSettings],
) -> Result<Hop, ConfigError> {
    let gateway: IpAddr = text.parse().map_err(|_| match text.split_once('%') {
        Some((address, zone)) => {
            let remedy = format!("write `{address}`, and the link as link = \"{zone}\"");
            value(place, "via", text, &remedy)
        }
        None => value(place, "via", text, "write an IP address"),
    })?;
    let of_a_link = is_of_a_link(gateway);
    let near = |link: &LinkSettings| link.addresses.iter().any(|own| own.contains(gateway));
    let found = links.iter().position(|link| !of_a_link && near(link));
    let Some(link) = link.or(found.map(|number| number as LinkId)) else {
        let remedy = if of_a_link {
            "the same may be on every link: say on which, as in link = \"NAME\""
        } else {
            "in no network of any link: say which link it is on, as in link = \"NAME\""
        };
        return Err(value(place, "via", text, remedy));
    };
    check_peer(place, "via", gateway, link, links)?;
    let gateway = Some(gateway);
    Ok(Hop { link, gateway })
}

/// Whether an address may be the unicast address of a station on a link.
fn is_unicast(ip: IpAddr) -> bool {
    !(ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() || ip == Ipv4Addr::BROADCAST)
}

fn is_to_all(network: &Prefix, ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if network.is_broadcast(ip))
}

/// Whether an address is link-local (RFC 4007): a station on another link may
/// have the same address.
fn is_of_a_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Checks that an address is a unicast address, and not one of the router's.
fn check_peer(
    place: TableRef,
    key: &'static str,
    ip: IpAddr,
    link: LinkId,
    links: &[LinkSettings],
) -> Result<(), ConfigError> {
    let is_ours = if is_of_a_link(ip) {
        links[usize::from(link)].has(ip)
    } else {
        links.iter().any(|link| link.has(ip))
    };
    let remedy = if is_ours {
        "an address of this router itself: write another station's"
    } else if !is_unicast(ip) {
        "no address of one station: write the one that its link knows it by"
    } else {
        return Ok(());
    };
    Err(value(place, key, &ip.to_string(), remedy))
}

/// The first repeated value, and its index; `None` if all differ.
fn twice<T: Copy + Eq + Hash>(all: impl Iterator<Item = T>) -> Option<(usize, T)> {
    let mut seen = HashSet::new();
    all.enumerate().find(|(_, one)| !seen.insert(*one))
}

fn named(place: TableRef, name: &str, links: &[LinkSettings]) -> Result<LinkId, ConfigError> {
    let found = links.iter().position(|link| link.name == name);
    found.map(|number| number as LinkId).ok_or_else(|| {
        let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
        let remedy = format!("no [[link]] has this name; there are {}", names.join(", "));
        value(place, "link", name, &remedy)
    })
}

fn value(place: TableRef, key: &'static str, value: &str, remedy: &str) -> ConfigError {
    ConfigError::Value {
        place,
        key,
        value: format!("`{value}`"),
        remedy: remedy.to_owned(),
    }
}
