//! `router.toml`: what a router is told by its user.
//!
//! ```toml
//! redirects = true              # tell hosts of a better first hop
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
//! [[link]]
//! name = "eth1"
//! addresses = ["192.0.2.1/24", "2001:db8:1::1/64"]   # default: the interface's
//! mtu = 1500                                          # default: the interface's
//!
//! [[route]]
//! to = "0.0.0.0/0"
//! via = ["192.0.2.254"]         # several: a flow keeps to one
//! link = "eth1"                 # where `via` does not tell
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

use super::{HOPS_MAX, Hop, LINKS_MAX, LinkId, LinkSettings, ROUTES_V4_MAX, RouterConfig, Target};
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr};
use toml::de::DeTable;
use weir_stack::Prefix;
use weir_wire::ethernet::Address;

/// Bytes of the longest file.
pub const FILE_BYTES_MAX: u64 = 256 << 20;
/// The shortest longest packet of a link, in bytes: what every link of IPv4
/// carries (RFC 791).
const MTU_MIN: usize = super::MTU_MIN;
/// The same for IPv6 (RFC 8200 §5).
const MTU_V6_MIN: usize = 1280;
/// The longest packet of any link.
const MTU_MAX: usize = 65_535;
/// Most neighbours.
const NEIGHBOURS_MAX: usize = 1 << 20;

/// Why a configuration is not taken: what is wrong where, and what would do.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// No TOML, or a key or a type that is none of ours.
    #[error("{message}")]
    Form {
        /// The byte of the text where it is.
        at: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// A value that makes no sense.
    #[error("{place}{key} = {value}: {remedy}")]
    Value {
        /// Which table.
        place: TableRef,
        /// Which key of it.
        key: &'static str,
        /// Its value.
        value: String,
        /// What would do.
        remedy: String,
    },
}

/// A table of a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableRef {
    /// None: what stands before the first.
    Top,
    /// The only one of its kind, such as `[kernel]`.
    Section(&'static str),
    /// One of several, such as `[[route]]`, by its number from 0.
    Table(&'static str, usize),
}

impl fmt::Display for TableRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableRef::Top => Ok(()),
            TableRef::Section(name) => write!(f, "[{name}]: "),
            TableRef::Table(name, number) => write!(f, "[[{name}]] {}: ", number + 1),
        }
    }
}

impl ConfigError {
    /// The byte of the configuration's text where it is; `None` where the text
    /// does not have it, as an interface of the command line.
    pub fn at(&self, text: &str) -> Option<usize> {
        match self {
            ConfigError::Form { at, .. } => *at,
            ConfigError::Value { place, key, .. } => {
                let document = DeTable::parse(text).ok()?;
                let top = document.get_ref();
                let (table, begin) = match place {
                    TableRef::Top => (top, None),
                    TableRef::Section(name) => {
                        let table = top.get(*name)?;
                        (table.get_ref().as_table()?, Some(table.span().start))
                    }
                    TableRef::Table(name, number) => {
                        let table = top.get(*name)?.get_ref().as_array()?.get(*number)?;
                        (table.get_ref().as_table()?, Some(table.span().start))
                    }
                };
                table.get(*key).map(|value| value.span().start).or(begin)
            }
        }
    }
}

/// The byte of a configuration's text where `host` of `[kernel]` is.
pub fn host_at(text: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let kernel = document.get_ref().get("kernel")?;
    let host = kernel.get_ref().as_table()?.get("host")?;
    Some(host.span().start)
}

/// The byte of a configuration's text where the link of an interface has its
/// name.
pub fn link_at(text: &str, interface: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let links = document.get_ref().get("link")?.get_ref().as_array()?;
    let names = links
        .iter()
        .filter_map(|link| link.get_ref().as_table()?.get("name"));
    let mut names = names.filter(|name| name.get_ref().as_str() == Some(interface));
    names.next().map(|name| name.span().start)
}

/// A configuration, as it is written.
#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether hosts are told of a better first hop.
    pub redirects: bool,
    /// Neighbours that are known at once.
    pub neighbours_max: usize,
    /// Routes of each version of IP, configured or learned.
    pub routes_max: usize,
    /// The rate of ICMP errors.
    pub icmp: Icmp,
    /// What is shared with the kernel.
    pub kernel: Kernel,
    /// The links, in order.
    #[serde(rename = "link")]
    pub links: Vec<LinkConfig>,
    /// Routes that stay.
    #[serde(rename = "route")]
    pub routes: Vec<RouteConfig>,
    /// Neighbours that are told.
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
    /// Errors and redirects in a second; 0 for none.
    pub per_second: u32,
    /// How many at once.
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
    /// From which of its tables.
    pub tables: Vec<u32>,
    /// Which frames for the router itself are the host's.
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

/// Which frames for the router itself are the host's.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(
    untagged,
    expecting = "expected true, false, a filter, or a list of filters"
)]
pub enum HostFrames {
    /// All that the router does not answer itself, or none.
    All(bool),
    /// Those of them that one of these filters accepts.
    Some(OneOrMore),
}

impl Default for HostFrames {
    fn default() -> HostFrames {
        HostFrames::All(false)
    }
}

impl HostFrames {
    /// As one filter, empty for all; `None` for none.
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
    /// The router's addresses on it, each with its network; those of the
    /// interface if none are given.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The longest packet; the interface's if none is given.
    pub mtu: Option<usize>,
}

/// `[[route]]`
#[derive(Deserialize, Clone, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// The prefix.
    pub to: String,
    /// The next routers.
    #[serde(default)]
    pub via: OneOrMore,
    /// The link, where `via` does not tell.
    pub link: Option<String>,
    /// What becomes of packets that are not forwarded.
    pub kind: Option<RejectKind>,
}

/// A text or a list of texts.
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

/// What becomes of packets that are not forwarded.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum RejectKind {
    /// Dropped, and the sender is told that nobody is reached.
    Unreachable,
    /// Dropped, and the sender is told that it is not allowed.
    Prohibit,
    /// Dropped without a word.
    Blackhole,
}

impl RejectKind {
    /// As it is written.
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
    /// The link it is on.
    pub link: String,
    /// Its address.
    pub address: String,
    /// Its hardware address.
    pub hardware: String,
}

/// What an interface is by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceInfo {
    /// Its hardware address.
    pub hardware: Address,
    /// Its longest packet, in bytes.
    pub mtu: usize,
    /// Its addresses.
    pub addresses: Vec<Prefix>,
}

/// What a configuration makes of its interfaces.
pub type Instantiated = (RouterConfig, Vec<(Prefix, Target)>);

impl Config {
    /// Reads a configuration, with these interfaces as links besides.
    ///
    /// # Errors
    /// With the line, for what is no TOML and for keys that are none of ours.
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

    fn check(&self) -> Result<(), ConfigError> {
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

    /// A link's interface is one before it, which is called so.
    pub(crate) fn same_link(&self, link: usize, interface: &str) -> ConfigError {
        let remedy = format!("`{interface}` is one link: put its addresses together");
        value(
            TableRef::Table("link", link),
            "name",
            &self.links[link].name,
            &remedy,
        )
    }

    /// The router's addresses on a link whose interface has these now; `self`
    /// made [`settings`](Self::settings) before.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn addresses(&self, link: usize, own: &[Prefix]) -> Vec<Prefix> {
        let host = self.kernel.host.filter().is_some();
        let addresses = self.links[link].addresses(TableRef::Top, own, host);
        addresses.unwrap_or_default()
    }

    /// Bytes of the longest packet of a link whose interface sends so many now.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn mtu(&self, link: usize, own: usize) -> usize {
        let own = own.min(MTU_MAX);
        self.links[link].mtu.map_or(own, |mtu| mtu.min(own))
    }

    /// No address is given twice: where its network is would be left to chance.
    /// Several links may have one that has none, or that is of each link alone.
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

    /// What it makes of interfaces: one for each link, in order.
    ///
    /// # Errors
    /// For a value that makes no sense, or contradicts the interface.
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
    /// The router's addresses on it, where its interface has these.
    fn addresses(
        &self,
        place: TableRef,
        own: &[Prefix],
        host: bool,
    ) -> Result<Vec<Prefix>, ConfigError> {
        let mut addresses = Vec::new();
        for text in &self.addresses {
            let prefix: Prefix = text.parse().map_err(|error| match text.contains('%') {
                true => value(
                    place,
                    "addresses",
                    text,
                    "it is of this link: leave out `%…`",
                ),
                false => value(place, "addresses", text, &format!("{error}")),
            })?;
            let ip = prefix.address();
            if !is_unicast(ip) || prefix.is_network() || is_to_all(&prefix, ip) {
                let remedy = "no address of one router on a link";
                return Err(value(place, "addresses", text, remedy));
            }
            addresses.push(prefix);
        }
        // The host's are answered for by the router.
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

/// What is wrong with the form.
fn form(error: &toml::de::Error) -> ConfigError {
    ConfigError::Form {
        at: error.span().map(|span| span.start),
        message: error.message().to_owned(),
    }
}

/// A next router: on the link that is said, or on the one it is a neighbour of.
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
        let remedy = match of_a_link {
            true => "the same may be on every link: say on which, as in link = \"NAME\"",
            false => "in no network of any link: say which link it is on, as in link = \"NAME\"",
        };
        return Err(value(place, "via", text, remedy));
    };
    check_peer(place, "via", gateway, link, links)?;
    let gateway = Some(gateway);
    Ok(Hop { link, gateway })
}

/// Whether an address may be that of one station on a link.
fn is_unicast(ip: IpAddr) -> bool {
    !(ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() || ip == Ipv4Addr::BROADCAST)
}

fn is_to_all(network: &Prefix, ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if network.is_broadcast(ip))
}

/// Whether an address is one of a link alone (RFC 4007): another station may
/// have the same on another link.
fn is_of_a_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// It must be the address of a station other than the router, on its link.
fn check_peer(
    place: TableRef,
    key: &'static str,
    ip: IpAddr,
    link: LinkId,
    links: &[LinkSettings],
) -> Result<(), ConfigError> {
    let is_ours = match is_of_a_link(ip) {
        true => links[usize::from(link)].has(ip),
        false => links.iter().any(|link| link.has(ip)),
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

/// The first that was there before, and its number.
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
