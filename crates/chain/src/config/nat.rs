//! `kind = "nat"` and `kind = "nat64"`: the tables as translators' configurations.

use super::{ConfigError, LIFE_MIN, address, duration, end};
use crate::nat::nat64::{Nat64Config, TranslationPrefix};
use crate::nat::{Filtering, Forward, Inside, NatConfig, Prefix, PrefixLimit, Timeouts, Transport};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use toml::Spanned;

/// The keys of both kinds; those of one kind are refused in the other.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NatTable {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "match")]
    pub(super) filter: Option<Spanned<String>>,
    #[serde(default)]
    pool: Vec<Spanned<String>>,
    prefix: Option<Spanned<String>>,
    mtu: Option<Spanned<usize>>,
    subscriber: Option<Spanned<u8>>,
    inside: Option<Vec<Spanned<String>>>,
    filtering: Option<Spanned<String>>,
    block: Option<u32>,
    blocks_max: Option<u32>,
    block_rest: Option<Spanned<String>>,
    sessions_max: Option<u32>,
    subscriber_sessions_max: Option<u32>,
    #[serde(default)]
    limit: Vec<LimitTable>,
    #[serde(default)]
    forward: Vec<Spanned<ForwardTable>>,
    ftp: Option<Spanned<bool>>,
    #[serde(default)]
    timeouts: TimeoutsTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitTable {
    prefix: Spanned<String>,
    sessions_max: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForwardTable {
    protocol: Spanned<String>,
    from: Spanned<String>,
    to: Spanned<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct TimeoutsTable {
    udp: Option<Spanned<String>>,
    tcp: Option<Spanned<String>>,
    tcp_transitory: Option<Spanned<String>>,
    icmp: Option<Spanned<String>>,
}

/// How addresses of the inside are written.
trait Written: Inside + FromStr {
    const PREFIX: &str;
    const END: &str;

    fn of(address: IpAddr) -> Option<Self>;
}

impl Written for Ipv4Addr {
    const PREFIX: &str = "a prefix, as in \"10.0.0.0/8\"";
    const END: &str = "an IPv4 address and a port, as in \"192.0.2.1:80\"";

    fn of(address: IpAddr) -> Option<Ipv4Addr> {
        match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    }
}

impl Written for Ipv6Addr {
    const PREFIX: &str = "a prefix of IPv6, as in \"2001:db8:1::/48\"";
    const END: &str = "an IPv6 address and a port, as in \"[2001:db8::1]:80\"";

    fn of(address: IpAddr) -> Option<Ipv6Addr> {
        match address {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        }
    }
}

/// The refusal of a key that the kind does not have.
fn foreign<T>(key: &Option<Spanned<T>>, message: &str) -> Result<(), ConfigError> {
    match key {
        None => Ok(()),
        Some(key) => Err(ConfigError::new(key.span().start, message)),
    }
}

pub(super) fn nat(table: &NatTable) -> Result<NatConfig, ConfigError> {
    let remedy = "is of kind = \"nat64\": leave it out, or write that kind";
    foreign(&table.prefix, &format!("prefix: {remedy}"))?;
    foreign(&table.mtu, &format!("mtu: {remedy}"))?;
    foreign(&table.subscriber, &format!("subscriber: {remedy}"))?;
    Ok(NatConfig {
        ftp: table.ftp.as_ref().is_some_and(|ftp| *ftp.get_ref()),
        ..translator(table)?
    })
}

pub(super) fn nat64(table: &NatTable) -> Result<Nat64Config, ConfigError> {
    let refused = "match: kind = \"nat64\" has no filter, since what it does not select would leave \
                   untranslated: name the hosts in `inside`";
    foreign(&table.filter, refused)?;
    foreign(
        &table.ftp,
        "ftp: kind = \"nat64\" does not translate it: leave it out",
    )?;
    let usual = Nat64Config::default();
    let prefix = match &table.prefix {
        None => usual.prefix,
        Some(text) => TranslationPrefix::from_str(text.get_ref()).map_err(|error| {
            let message = format!("prefix = \"{}\": {error}", text.get_ref());
            ConfigError::new(text.span().start, message)
        })?,
    };
    let mut nat: NatConfig<Ipv6Addr> = translator(table)?;
    if let Some(len) = &table.subscriber {
        nat.subscriber_len = *len.get_ref();
    }
    Ok(Nat64Config {
        nat,
        prefix,
        mtu: table.mtu.as_ref().map_or(usual.mtu, |mtu| *mtu.get_ref()),
        own: Vec::new(),
    })
}

/// What both kinds have.
fn translator<A: Written>(table: &NatTable) -> Result<NatConfig<A>, ConfigError>
where
    NatConfig<A>: Default,
{
    let defaults = NatConfig::<A>::default();
    let pool = table.pool.iter().map(address).collect::<Result<_, _>>()?;
    let inside = match &table.inside {
        None => defaults.inside,
        Some(prefixes) => prefixes.iter().map(prefix).collect::<Result<_, _>>()?,
    };
    let block = table.block.unwrap_or(defaults.block);
    let forwards = table.forward.iter().map(forward);
    let forwards = forwards.collect::<Result<_, _>>()?;
    let limits = table.limit.iter().map(|limit| {
        Ok(PrefixLimit {
            prefix: prefix(&limit.prefix)?,
            sessions_max: limit.sessions_max,
        })
    });
    let limits = limits.collect::<Result<_, ConfigError>>()?;
    let usual = defaults.timeouts;
    let timeouts = &table.timeouts;
    Ok(NatConfig {
        pool,
        inside,
        block,
        blocks_max: table
            .blocks_max
            .unwrap_or_else(|| (crate::nat::PORTS / block.max(1)).max(1)),
        block_rest: duration(&table.block_rest, 0, defaults.block_rest)?,
        sessions_max: table.sessions_max.unwrap_or(defaults.sessions_max),
        subscriber_len: defaults.subscriber_len,
        subscriber_sessions_max: table
            .subscriber_sessions_max
            .unwrap_or(defaults.subscriber_sessions_max),
        limits,
        filtering: filtering(&table.filtering)?,
        forwards,
        ftp: false,
        timeouts: Timeouts {
            udp: duration(&timeouts.udp, LIFE_MIN, usual.udp)?,
            tcp: duration(&timeouts.tcp, LIFE_MIN, usual.tcp)?,
            tcp_transitory: duration(&timeouts.tcp_transitory, LIFE_MIN, usual.tcp_transitory)?,
            icmp: duration(&timeouts.icmp, LIFE_MIN, usual.icmp)?,
        },
        epoch: 0,
    })
}

fn filtering(word: &Option<Spanned<String>>) -> Result<Filtering, ConfigError> {
    let Some(word) = word else {
        return Ok(Filtering::default());
    };
    match word.get_ref().as_str() {
        "endpoint-independent" => Ok(Filtering::EndpointIndependent),
        "address" => Ok(Filtering::AddressDependent),
        "address-and-port" => Ok(Filtering::AddressAndPortDependent),
        other => {
            let message = format!(
                "filtering = \"{other}\": write \"endpoint-independent\", \"address\" or \
                 \"address-and-port\""
            );
            Err(ConfigError::new(word.span().start, message))
        }
    }
}

fn forward<A: Written>(table: &Spanned<ForwardTable>) -> Result<Forward<A>, ConfigError> {
    let table = table.get_ref();
    let transport = match table.protocol.get_ref().as_str() {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        other => {
            let message = format!("protocol = \"{other}\": write \"tcp\" or \"udp\"");
            return Err(ConfigError::new(table.protocol.span().start, message));
        }
    };
    let outside = end(&table.from)?;
    let read = || {
        let end: SocketAddr = table.to.get_ref().parse().ok()?;
        Some((A::of(end.ip())?, end.port()))
    };
    let inside = read().ok_or_else(|| {
        let message = format!("`{}`: write {}", table.to.get_ref(), A::END);
        ConfigError::new(table.to.span().start, message)
    })?;
    Ok(Forward {
        transport,
        outside,
        inside,
    })
}

fn prefix<A: Written>(text: &Spanned<String>) -> Result<Prefix<A>, ConfigError> {
    let read = || {
        let (address, len) = match text.get_ref().split_once('/') {
            Some((address, len)) => (address, len.parse().ok()?),
            None => (text.get_ref().as_str(), A::BITS),
        };
        let address = address.parse().ok()?;
        (len <= A::BITS).then_some(Prefix { address, len })
    };
    read().ok_or_else(|| {
        let message = format!("`{}`: write {}", text.get_ref(), A::PREFIX);
        ConfigError::new(text.span().start, message)
    })
}
