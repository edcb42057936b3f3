//! `box.toml`: a router with a chain of stages between it and its outside link.
//!
//! The file is a `router.toml` (see [`config`](crate::router::engine::config)) with more keys:
//!
//! ```toml
//! outside = "eth1"        # the link behind the stages; the others are the inside
//! log = "nat.ndjson"      # where stages log
//!
//! [[stage]]               # in order, outward
//! kind = "nat"
//!
//! [[scheduler]]           # the queues of a link, see [`shape::config`](crate::shape::config)
//! link = "eth1"
//! rate = "100M"
//! ```

use crate::router::engine::config::{
    Config, ConfigError as RouterError, LinkConfig, NeighbourConfig, OneOrMore, RouteConfig,
};
use crate::shape::config::{LinkConfig as SchedulerConfig, schedulers_of};
use crate::shape::{Shaped, Shaper};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};
use weir_chain::config::{ConfigError, Context, SaSource, StageConfig};
use weir_chain::nat;
use weir_chain::{Chain, STAGES_MAX};
use weir_filter::lang::expr::Names;
use weir_stack::Prefix;

/// A router and its chain, as configured.
#[derive(Clone, Debug)]
pub struct BoxConfig {
    /// The router.
    pub router: Config,
    /// The index of the outside link.
    pub outside: usize,
    /// The stages, in order.
    pub stages: Vec<StageConfig>,
    /// The file for the stages' logs.
    pub log: Option<String>,
    /// Where their lines go as syslog messages: an address and a port, or the path of a socket.
    pub syslog: Option<String>,
    /// The collector that gets what a translator logs, by IPFIX (RFC 8158).
    pub ipfix: Option<SocketAddr>,
    /// The scheduler of each link, if it has one.
    pub schedulers: Vec<Option<SchedulerConfig>>,
}

/// The hardware address of frames to a stage, which no station has: it is locally administered, and
/// none of these frames leaves.
const STAGE: &str = "02:00:00:00:00:40";

/// The keys that a router does not have.
const OWN: [&str; 6] = ["outside", "log", "syslog", "ipfix", "stage", "scheduler"];

impl BoxConfig {
    /// Reads a configuration.
    ///
    /// # Errors
    /// The fault and its position.
    pub fn parse(text: &str, names: &dyn Names) -> Result<BoxConfig, ConfigError> {
        let mut document = DeTable::parse(text)?;
        let top = document.get_mut();
        let mut own = OWN.map(|key| top.remove(key));
        let meter_at = top.get("meter").map(|meter| meter.span().start);
        let router = Config::deserialize(Deserializer::from(document))?;
        router.check().map_err(|error| of_router(&error, text))?;
        let [outside, log, syslog, ipfix, stages, schedulers] = &mut own;
        let string = |key: &str, value: &Spanned<DeValue<'_>>| match value.get_ref() {
            DeValue::String(text) => Ok(text.clone().into_owned()),
            _ => Err(wrong(
                Some(value.span().start),
                format!("{key}: write a text"),
            )),
        };
        let Some(outside) = outside else {
            let names: Vec<&str> = router.links.iter().map(|link| &*link.name).collect();
            let message = format!(
                "no `outside`: name the link behind the stages, one of {}",
                names.join(", ")
            );
            return Err(wrong(None, message));
        };
        let name = string("outside", outside)?;
        let Some(number) = router.links.iter().position(|link| link.name == name) else {
            let message = format!("outside = \"{name}\": no [[link]] has this name");
            return Err(wrong(Some(outside.span().start), message));
        };
        let log = log.as_ref().map(|log| string("log", log)).transpose()?;
        let syslog = syslog.as_ref().map(|to| {
            let text = string("syslog", to)?;
            if text.starts_with('/') || text.parse::<SocketAddr>().is_ok() {
                return Ok(text);
            }
            let message = format!(
                "syslog = \"{text}\": write an address and a port, as in 192.0.2.1:514, or the path \
                 of a socket, as in /dev/log"
            );
            Err(wrong(Some(to.span().start), message))
        });
        let syslog = syslog.transpose()?;
        let ipfix = ipfix.as_ref().map(|to| {
            let text = string("ipfix", to)?;
            text.parse::<SocketAddr>().map_err(|_| {
                let message = format!(
                    "ipfix = \"{text}\": write a collector's address and port, as in 192.0.2.1:4739"
                );
                wrong(Some(to.span().start), message)
            })
        });
        let ipfix = ipfix.transpose()?;
        let stages = read_stages(stages.take(), names)?;
        check_ipsec(&stages)?;
        check_translators(&stages, &[])?;
        check_direct(&stages)?;
        let links: Vec<&str> = router.links.iter().map(|link| &*link.name).collect();
        let schedulers = schedulers_of(schedulers.take(), &links, names)?;
        // Without a stage that says so, false.
        let may_be_one_armed = stages.iter().filter_map(StageConfig::may_be_one_armed);
        if router.links.len() < 2 && !may_be_one_armed.min().unwrap_or(false) {
            let message = "a chain needs an inside, too: write a second [[link]]";
            return Err(wrong(Some(outside.span().start), message.into()));
        }
        if let (1, Some(at)) = (links.len(), meter_at) {
            let message = "[meter]: frames of both directions come in at the one link: write a second \
                           [[link]], for the inside";
            return Err(wrong(Some(at), message.into()));
        }
        let mut router = router;
        // A host that answers through weir, or sends by it, must not be sent around it.
        let is_direct = stages.iter().any(|stage| stage.direct_return().is_some());
        router.redirects &= router.links.len() > 1 && !is_direct;
        for stage in &stages {
            lead_to(stage, &mut router, number);
        }
        Ok(BoxConfig {
            router,
            outside: number,
            stages,
            log,
            syslog,
            ipfix,
            schedulers,
        })
    }

    /// Whether one link is inside and outside.
    pub fn is_one_armed(&self) -> bool {
        self.router.links.len() == 1
    }

    /// The source of tunnels, SAs and policies, if a stage is `ipsec`.
    pub fn sa_source(&self) -> Option<&SaSource> {
        self.stages.iter().find_map(StageConfig::sa_source)
    }

    /// Whether a stage translates addresses.
    pub fn translates(&self) -> bool {
        self.stages.iter().any(StageConfig::translates)
    }

    /// Whether a frame of the outside has a subscriber's address only behind the stages.
    pub fn hides_inside(&self) -> bool {
        self.translates() || self.sa_source().is_some()
    }

    /// Gives the outside link, which has `own` addresses (with prefix lengths),
    /// all addresses of the stages' pools: the router answers ARP for them.
    pub fn add_pool(&mut self, own: &[String]) {
        let pool: Vec<Ipv4Addr> = self
            .stages
            .iter()
            .flat_map(StageConfig::pool)
            .copied()
            .collect();
        let link: &mut LinkConfig = &mut self.router.links[self.outside];
        let mut addresses = if link.addresses.is_empty() {
            own.to_vec()
        } else {
            link.addresses.clone()
        };
        let before = addresses.len();
        for address in pool {
            let is_there = |text: &String| {
                let plain = text.split('/').next().unwrap_or_default();
                plain.parse() == Ok(address)
            };
            if !addresses.iter().any(is_there) {
                addresses.push(format!("{address}/32"));
            }
        }
        if addresses.len() > before {
            link.addresses = addresses;
        }
    }

    /// The IPv4 addresses of the outside link: those configured, or else the
    /// interface's own.
    pub fn outside_addresses(&self, own: &[String]) -> Vec<Ipv4Addr> {
        let link = &self.router.links[self.outside];
        let texts = if link.addresses.is_empty() {
            own
        } else {
            &link.addresses
        };
        let plain = texts.iter().filter_map(|text| text.split('/').next());
        plain.filter_map(|text| text.parse().ok()).collect()
    }

    /// The IPv4 addresses of all links, each with its network: those configured, or else those that
    /// `own` knows of an interface by its name. Of an interface of which it knows none, `0.0.0.0/0`.
    pub fn networks(&self, own: impl Fn(&str) -> Option<Vec<String>>) -> Vec<nat::Prefix> {
        let unknown = nat::Prefix {
            address: Ipv4Addr::UNSPECIFIED,
            len: 0,
        };
        let mut networks = Vec::new();
        for link in &self.router.links {
            let texts = match &link.addresses[..] {
                [] => own(&link.name),
                stated => Some(stated.to_vec()),
            };
            let Some(texts) = texts else {
                networks.push(unknown);
                continue;
            };
            let prefixes = texts.iter().filter_map(|text| text.parse::<Prefix>().ok());
            networks.extend(prefixes.filter_map(|prefix| match prefix.address() {
                IpAddr::V4(address) => Some(nat::Prefix {
                    address,
                    len: prefix.len(),
                }),
                IpAddr::V6(_) => None,
            }));
        }
        networks
    }

    /// Addresses that may stand for those of the outside's interface while there is none: those of
    /// forwards of stages without a `pool`, or one of a documentation network (RFC 5737).
    pub fn stand_in_addresses(&self) -> Vec<String> {
        let without = self.stages.iter().filter(|stage| stage.pool().is_empty());
        let forwarded = without.flat_map(StageConfig::forwarded);
        let texts: Vec<String> = forwarded.map(|address| format!("{address}/32")).collect();
        if texts.is_empty() {
            vec!["192.0.2.1/24".to_owned()]
        } else {
            texts
        }
    }

    /// The links that have a scheduler, by name, each with it.
    pub fn scheduled(&self) -> impl Iterator<Item = (&str, &SchedulerConfig)> {
        let links = self.router.links.iter().zip(&self.schedulers);
        links.filter_map(|(link, scheduler)| Some((&*link.name, scheduler.as_ref()?)))
    }

    /// Chunks of memory that frames in the links' queues occupy, at most; 0 if no link has a
    /// scheduler.
    pub fn chunks_max(&self) -> u32 {
        let schedulers = self.schedulers.iter().flatten();
        schedulers.map(|link| link.chunks_max).sum()
    }

    /// Makes the queues of the links.
    ///
    /// # Errors
    /// As [`Shaper::new`].
    pub fn shapers<B: Shaped>(&self, seed: u64) -> Result<Vec<Option<Shaper<B>>>, ConfigError> {
        let links = self.schedulers.iter().zip(0..);
        links
            .map(|(link, number)| {
                let link = link.as_ref();
                link.map(|link| Shaper::new(link, seed ^ number))
                    .transpose()
            })
            .collect()
    }

    /// Makes the chain.
    ///
    /// # Errors
    /// If a stage refuses its configuration, the pool of one is that of another, or the filters do
    /// not fit.
    pub fn chain(&self, context: &Context<'_>) -> Result<Chain, ConfigError> {
        check_translators(&self.stages, context.outside)?;
        let stages = self.stages.iter().enumerate().map(|(number, stage)| {
            stage.build(&Context {
                seed: context.seed ^ number as u64,
                ..context.clone()
            })
        });
        let stages = stages.collect::<Result<Vec<_>, ConfigError>>()?;
        let made = Chain::new(stages, context.seed.into());
        made.map_err(|error| wrong(None, error.to_string()))
    }
}

fn read_stages(
    stages: Option<Spanned<DeValue<'_>>>,
    names: &dyn Names,
) -> Result<Vec<StageConfig>, ConfigError> {
    let Some(stages) = stages else {
        return Ok(Vec::new());
    };
    let at = stages.span().start;
    let DeValue::Array(tables) = stages.into_inner() else {
        return Err(wrong(Some(at), "write each stage as [[stage]]".into()));
    };
    if tables.len() > STAGES_MAX {
        let message = format!("{} stages: a chain has at most {STAGES_MAX}", tables.len());
        return Err(wrong(Some(at), message));
    }
    let mut read = Vec::new();
    for table in tables {
        let span = table.span();
        let DeValue::Table(table) = table.into_inner() else {
            return Err(wrong(
                Some(span.start),
                "write each stage as [[stage]]".into(),
            ));
        };
        read.push(StageConfig::read(Spanned::new(span, table), names)?);
    }
    Ok(read)
}

/// Whether only the last stage is `ipsec`: stages behind it would see nothing
/// but ESP.
fn check_ipsec(stages: &[StageConfig]) -> Result<(), ConfigError> {
    let before = stages.split_last().map_or(&[][..], |(_, before)| before);
    match before.iter().find(|stage| stage.sa_source().is_some()) {
        Some(stage) => Err(wrong(
            Some(stage.at()),
            "kind = \"ipsec\": it must be the last stage, and there may be one".into(),
        )),
        None => Ok(()),
    }
}

/// Whether the answers that do not come back to a balancer are no other stage's to translate or to
/// protect.
fn check_direct(stages: &[StageConfig]) -> Result<(), ConfigError> {
    let Some(at) = stages.iter().find_map(StageConfig::direct_return) else {
        return Ok(());
    };
    let needs_answers = |stage: &&StageConfig| stage.has_pool() || stage.sa_source().is_some();
    match stages.iter().find(needs_answers) {
        Some(stage) => Err(wrong(
            Some(at),
            format!(
                "direct_return = true: answers do not come back to the stage `{}` of this chain: leave \
                 out one of the two",
                stage.kind()
            ),
        )),
        None => Ok(()),
    }
}

/// Whether each translator has ports and a prefix of its own, as far as the text says, and the addresses
/// of the outside link, which are the pool of stages without one.
fn check_translators(stages: &[StageConfig], outside: &[Ipv4Addr]) -> Result<(), ConfigError> {
    let pool = |stage: &StageConfig| match stage.pool() {
        [] => outside.to_vec(),
        own => own.to_vec(),
    };
    let pools = stages.iter().filter(|stage| stage.has_pool());
    let pools: Vec<&StageConfig> = pools.collect();
    for (number, stage) in pools.iter().enumerate() {
        for before in &pools[..number] {
            if stage.prefix().or(before.prefix()).is_none() {
                // Two translators of IPv4 may be one behind the other.
                continue;
            }
            let is_same = stage.pool().is_empty() && before.pool().is_empty()
                || pool(stage).iter().any(|own| pool(before).contains(own));
            if is_same {
                let message = "an earlier translator has an address of this pool: its ports would be \
                               given twice: write a `pool` of other addresses in each";
                return Err(wrong(Some(stage.at()), message.into()));
            }
            let prefixes = stage.prefix().zip(before.prefix());
            if prefixes.is_some_and(|(own, other)| own.overlaps(other)) {
                let message = "prefix: an earlier stage has its addresses: write another one";
                return Err(wrong(Some(stage.at()), message.into()));
            }
        }
    }
    Ok(())
}

/// Leads packets for a stage's IPv6 prefix to the outside, where a neighbour of no station stands for
/// the stage: the router does its part, and the stage takes them before they leave.
fn lead_to(stage: &StageConfig, router: &mut Config, outside: usize) {
    let Some(prefix) = stage.prefix() else {
        return;
    };
    let link = router.links[outside].name.clone();
    let address = prefix.address().to_string();
    router.routes.push(RouteConfig {
        to: prefix.to_string(),
        via: OneOrMore::One(address.clone()),
        link: Some(link.clone()),
        kind: None,
    });
    router.neighbours.push(NeighbourConfig {
        link,
        address,
        hardware: STAGE.into(),
    });
}

fn wrong(at: Option<usize>, message: String) -> ConfigError {
    ConfigError { at, message }
}

fn of_router(error: &RouterError, text: &str) -> ConfigError {
    wrong(error.at(text), error.to_string())
}
