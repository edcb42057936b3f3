//! From the text of `counter.toml` to a [`Config`].

mod policy;
mod radius;
mod values;

use super::{
    CAPACITY_MAX, Config, ConfigError, FLOWS_MAX, INSIDE_MAX, LINKS_MAX, Link, MEASURES_MAX,
    MeasureConfig, NS_PER_S, PERIOD_NS, UNATTRIBUTED_MAX, duration_ns, private_prefixes,
};
use crate::engine::{Inside, Unit};
use crate::policy::PolicyAction;
use crate::services::{CLASSES, RANGES_MAX, SERVICES_MAX, Service, compile};
use crate::{Key, KeyKind};
use policy::PolicyTable;
use radius::RadiusTable;
use serde::Deserialize;
use std::fmt;
use toml::Spanned;
use values::{MeasureTable, MeasureValue, OneOrMore, Ordered, ServiceValue};
use weir_filter::lang::expr::Names;
use weir_wire::{LinkType, Protocol};

/// Characters of a name, at most.
const NAME_CHARS_MAX: usize = 64;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct File {
    counter: Option<Spanned<String>>,
    bytes: Option<UnitWord>,
    period: Option<Spanned<String>>,
    keys: Option<Spanned<Vec<KeyKind>>>,
    subscribers: Option<Spanned<String>>,
    each_address: Option<Spanned<bool>>,
    capacity: Option<Spanned<usize>>,
    unattributed_max: Option<Spanned<usize>>,
    adoption: Option<Spanned<String>>,
    chunk_records: Option<Spanned<usize>>,
    link: Vec<Spanned<LinkTable>>,
    radius: Option<Spanned<RadiusTable>>,
    capture: CaptureTable,
    services: Ordered<ServiceValue>,
    measures: Ordered<MeasureValue>,
    policy: Ordered<PolicyTable>,
    default_policy: Option<Spanned<String>>,
    portal: Option<Spanned<String>>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum UnitWord {
    Ip,
    Wire,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkTable {
    inside: Option<String>,
    outside: Option<String>,
    mirror: Option<String>,
    take: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct CaptureTable {
    inside: Option<Spanned<OneOrMore>>,
    from_inside: Option<Spanned<String>>,
}

fn error(at: usize, message: impl Into<String>) -> ConfigError {
    ConfigError {
        at: Some(at),
        message: message.into(),
    }
}

/// As [`error`]: `KEY = VALUE: REMEDY`.
fn wrong<T>(key: &str, value: &Spanned<T>, shown: impl fmt::Display, remedy: &str) -> ConfigError {
    error(value.span().start, format!("{key} = {shown}: {remedy}"))
}

pub(super) fn read(text: &str, names: &dyn Names) -> Result<Config, ConfigError> {
    let file: File = toml::from_str(text).map_err(|refused| ConfigError {
        at: refused.span().map(|span| span.start),
        message: refused.message().to_owned(),
    })?;
    let mut config = Config::empty();
    if let Some(counter) = &file.counter {
        check_name("counter", counter)?;
        config.counter = counter.get_ref().clone();
    }
    if let Some(unit) = file.bytes {
        config.unit = match unit {
            UnitWord::Ip => Unit::Ip,
            UnitWord::Wire => Unit::Wire,
        };
    }
    if let Some(period) = &file.period {
        config.period_ns = duration("period", period, PERIOD_NS)?;
    }
    if let Some(adoption) = &file.adoption {
        config.adoption_ns = duration("adoption", adoption, [0, 3600 * NS_PER_S])?;
    }
    if let Some(keys) = &file.keys {
        if keys.get_ref().is_empty() {
            let kinds = KeyKind::ALL.map(KeyKind::name).join(", ");
            return Err(wrong("keys", keys, "[]", &format!("give some of {kinds}")));
        }
        config.keys = keys.get_ref().clone();
    }
    if file.capacity.is_some() {
        let capacity = number("capacity", &file.capacity, 0, 1, CAPACITY_MAX)?;
        config.capacity = Some(capacity);
    }
    let unattributed = config.unattributed_max;
    config.unattributed_max = number(
        "unattributed_max",
        &file.unattributed_max,
        unattributed,
        0,
        UNATTRIBUTED_MAX,
    )?;
    let records = config.chunk_records;
    config.chunk_records = number("chunk_records", &file.chunk_records, records, 1, 1 << 20)?;
    if let Some(path) = &file.subscribers {
        if path.get_ref().is_empty() {
            return Err(wrong(
                "subscribers",
                path,
                "``",
                "give the path of a CSV file",
            ));
        }
        config.subscribers = Some((path.get_ref().clone(), path.span().start));
    }
    config.links = links(&file.link)?;
    config.radius = file.radius.as_ref().map(radius::radius).transpose()?;
    config.inside = inside(&file.capture, config.subscribers.is_some(), names)?;
    if let Some(each) = &file.each_address {
        config.each_address = *each.get_ref();
        check_each_address(each, &config)?;
    }
    config.services = services(&file.services, names)?;
    config.measures = measures(&file.measures, names)?;
    config.policies = policy::policies(&file.policy)?;
    policy_words(&file, &mut config)?;
    Ok(config)
}

/// Checks the names of policies, and their requirements.
fn policy_words(file: &File, config: &mut Config) -> Result<(), ConfigError> {
    if let Some(name) = &file.default_policy {
        let text = name.get_ref();
        if !config.policies.iter().any(|policy| policy.name == *text) {
            let remedy = format!("there is no such policy: add [policy.{text}]");
            return Err(wrong("default_policy", name, format!("`{text}`"), &remedy));
        }
        config.default_policy = Some(text.clone());
    }
    radius::check_requests(config, &file.policy)?;
    let mut policies = config.policies.iter().zip(&file.policy.0);
    let to_portal = policies.find(|(policy, _)| {
        let uses = |action| action == PolicyAction::Portal;
        uses(policy.over) || uses(policy.spent)
    });
    match (&file.portal, to_portal) {
        (None, Some((policy, (_, value)))) => {
            let message = format!(
                "[policy.{}]: \"portal\": give the interface of the portal as portal = \"IF\"",
                policy.name
            );
            Err(error(value.span().start, message))
        }
        (portal, _) => {
            config.portal = portal.as_ref().map(|name| name.get_ref().clone());
            Ok(())
        }
    }
}

fn check_name(key: &str, name: &Spanned<String>) -> Result<(), ConfigError> {
    let text = name.get_ref();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > NAME_CHARS_MAX || !text.chars().all(is_plain) {
        let remedy = format!(
            "a name has 1 to {NAME_CHARS_MAX} letters, digits, hyphens, dots and underscores"
        );
        let shown: String = text.chars().take(NAME_CHARS_MAX).collect();
        return Err(wrong(key, name, format!("`{shown}`"), &remedy));
    }
    Ok(())
}

fn duration(
    key: &str,
    text: &Spanned<String>,
    [least, most]: [u64; 2],
) -> Result<u64, ConfigError> {
    let refuse = |remedy: &str| wrong(key, text, format!("`{}`", text.get_ref()), remedy);
    let ns = duration_ns(text.get_ref()).map_err(|remedy| refuse(&remedy))?;
    if ns < least || ns > most {
        let remedy = format!("from {} s to {} s", least / NS_PER_S, most / NS_PER_S);
        return Err(refuse(&remedy));
    }
    Ok(ns)
}

fn number(
    key: &str,
    value: &Option<Spanned<usize>>,
    default: usize,
    least: usize,
    most: usize,
) -> Result<usize, ConfigError> {
    let Some(value) = value else {
        return Ok(default);
    };
    if !(least..=most).contains(value.get_ref()) {
        let remedy = format!("give a number from {least} to {most}");
        return Err(wrong(key, value, value.get_ref(), &remedy));
    }
    Ok(*value.get_ref())
}

fn links(tables: &[Spanned<LinkTable>]) -> Result<Vec<Link>, ConfigError> {
    if let Some(table) = tables.get(LINKS_MAX) {
        let message = format!("[[link]]: a counter has at most {LINKS_MAX} links");
        return Err(error(table.span().start, message));
    }
    let mut links = Vec::new();
    for (number, table) in tables.iter().enumerate() {
        let place = format!("[[link]] {}", number + 1);
        let (at, table) = (table.span().start, table.get_ref());
        if table.mirror.is_some() {
            if table.inside.is_some() || table.outside.is_some() {
                let remedy = "a mirror port has both directions: leave `inside` and `outside` out";
                return Err(error(at, format!("{place}: {remedy}")));
            }
            links.push(Link {
                inside: None,
                outside: None,
                mirror: table.mirror.clone(),
                takes: table.take.unwrap_or(false),
            });
            continue;
        }
        if let Some(take) = table.take {
            let remedy = "only frames of a mirror port are copies: leave it out";
            return Err(error(at, format!("{place}: take = {take}: {remedy}")));
        }
        match (&table.inside, &table.outside) {
            (None, None) => {
                let remedy = "name the interface of the subscribers' side as `inside`, the other as \
                              `outside`, or a mirror port as `mirror`";
                return Err(error(at, format!("{place}: {remedy}")));
            }
            (Some(inside), Some(outside)) if inside == outside => {
                let remedy = "both sides are one interface: leave `outside` out";
                return Err(error(at, format!("{place}: inside = `{inside}`: {remedy}")));
            }
            _ => {}
        }
        links.push(Link {
            inside: table.inside.clone(),
            outside: table.outside.clone(),
            mirror: None,
            takes: false,
        });
    }
    Ok(links)
}

fn inside(table: &CaptureTable, has_list: bool, names: &dyn Names) -> Result<Inside, ConfigError> {
    match (&table.inside, &table.from_inside) {
        (None, None) if has_list => Ok(Inside::Sessions),
        (None, None) => Ok(Inside::Prefixes(private_prefixes())),
        (Some(_), Some(from)) => {
            let remedy = "`inside` says it already: leave one of the two out";
            Err(wrong(
                "[capture]: from_inside",
                from,
                format!("`{}`", from.get_ref()),
                remedy,
            ))
        }
        (None, Some(from)) => {
            check_filter(
                "[capture]: from_inside",
                from.span().start,
                from.get_ref(),
                names,
            )?;
            Ok(Inside::From(from.get_ref().clone()))
        }
        (Some(inside), None) => {
            let texts = &inside.get_ref().0;
            if texts.is_empty() || texts.len() > INSIDE_MAX {
                let remedy = format!("give 1 to {INSIDE_MAX} prefixes");
                let count = format!("{} prefixes", texts.len());
                return Err(wrong("[capture]: inside", inside, count, &remedy));
            }
            let prefix = |text: &Spanned<String>| {
                // A single text has no place of its own.
                let at = text.span().start.max(inside.span().start);
                inside_prefix(text.get_ref()).map_err(|remedy| {
                    let text = text.get_ref();
                    error(at, format!("[capture]: inside = `{text}`: {remedy}"))
                })
            };
            texts
                .iter()
                .map(prefix)
                .collect::<Result<_, _>>()
                .map(Inside::Prefixes)
        }
    }
}

/// An address or a prefix, with or without pcap-filter's word `net` before it.
///
/// # Errors
/// The correct form.
pub fn inside_prefix(text: &str) -> Result<Key, String> {
    let bare = text.strip_prefix("net ").unwrap_or(text).trim();
    let key = bare.parse().ok();
    let is_address =
        |key: &Key| matches!(key.kind(), KeyKind::Ipv4 | KeyKind::Ipv6 | KeyKind::Prefix);
    key.filter(is_address).ok_or_else(|| {
        "write a prefix such as 192.0.2.0/24, or an expression for frames from the inside as \
         from_inside = \"src net …\""
            .to_owned()
    })
}

fn check_each_address(each: &Spanned<bool>, config: &Config) -> Result<(), ConfigError> {
    if !each.get_ref() {
        return Ok(());
    }
    let key = "each_address";
    if !matches!(config.inside, Inside::Prefixes(_)) {
        let remedy = "say which addresses, as inside = [\"192.0.2.0/24\"] in [capture]";
        return Err(wrong(key, each, "true", remedy));
    }
    for kind in [KeyKind::Ipv4, KeyKind::Ipv6] {
        if !config.keys.contains(&kind) {
            let remedy = format!("add \"{}\" to `keys`", kind.name());
            return Err(wrong(key, each, "true", &remedy));
        }
    }
    Ok(())
}

fn check_filter(key: &str, at: usize, text: &str, names: &dyn Names) -> Result<(), ConfigError> {
    match compile(text, LinkType::EN10MB, names) {
        Ok(_) => Ok(()),
        Err(refused) => Err(error(at, format!("{key} = `{text}`: {refused}"))),
    }
}

fn services(table: &Ordered<ServiceValue>, names: &dyn Names) -> Result<Vec<Service>, ConfigError> {
    if let Some((name, _)) = table.0.get(SERVICES_MAX) {
        let message = format!(
            "[services]: {} services: at most {SERVICES_MAX}",
            table.0.len()
        );
        return Err(error(name.span().start, message));
    }
    let mut services = Vec::new();
    for (name, value) in &table.0 {
        check_name("[services]: name", name)?;
        if CLASSES.contains(&&**name.get_ref()) {
            let remedy = "a class of this name exists always: choose another name";
            let shown = format!("`{}`", name.get_ref());
            return Err(wrong("[services]: name", name, shown, remedy));
        }
        services.push(service(name.get_ref(), value, names)?);
    }
    Ok(services)
}

fn service(
    name: &str,
    value: &Spanned<ServiceValue>,
    names: &dyn Names,
) -> Result<Service, ConfigError> {
    let key = format!("[services]: {name}");
    let at = value.span().start;
    let mut service = Service {
        name: name.to_owned(),
        ..Service::default()
    };
    match value.get_ref() {
        ServiceValue::Filter(text) => {
            check_filter(&key, at, text, names)?;
            service.filter = Some(text.clone());
        }
        ServiceValue::Table(table) => {
            for (protocol, ranges) in [
                (6, &table.tcp),
                (17, &table.udp),
                (132, &table.sctp),
                (33, &table.dccp),
                (136, &table.udplite),
            ] {
                let ranges = ranges
                    .iter()
                    .map(|range| (Protocol(protocol), range.0.clone()));
                service.ports.extend(ranges);
            }
            service.protocols = table.protocols.iter().map(|number| number.0).collect();
            if let Some(filter) = &table.filter {
                let at = filter.span().start;
                check_filter(&format!("{key}.filter"), at, filter.get_ref(), names)?;
                service.filter = Some(filter.get_ref().clone());
            }
            if service.ports.len() > RANGES_MAX {
                let message = format!("{key}: more than {RANGES_MAX} ports and ranges");
                return Err(error(at, message));
            }
            let is_empty = service.ports.is_empty() && service.protocols.is_empty();
            if is_empty && service.filter.is_none() {
                let remedy =
                    "it fits no frame: give tcp, udp, sctp, dccp, udplite, protocols or filter";
                return Err(error(at, format!("{key} = {{}}: {remedy}")));
            }
        }
    }
    Ok(service)
}

fn measures(
    table: &Ordered<MeasureValue>,
    names: &dyn Names,
) -> Result<Vec<MeasureConfig>, ConfigError> {
    if let Some((name, _)) = table.0.get(MEASURES_MAX) {
        let message = format!(
            "[measures]: {} measures: at most {MEASURES_MAX}",
            table.0.len()
        );
        return Err(error(name.span().start, message));
    }
    let mut measures = Vec::new();
    for (name, value) in &table.0 {
        check_name("[measures]: name", name)?;
        measures.extend(measure(name, value, names)?);
    }
    Ok(measures)
}

/// A measure; `None` if the configuration turns it off.
fn measure(
    name: &Spanned<String>,
    value: &Spanned<MeasureValue>,
    names: &dyn Names,
) -> Result<Option<MeasureConfig>, ConfigError> {
    let default = MeasureTable::default();
    let at = value.span().start;
    let key = format!("[measures]: {}", name.get_ref());
    let table = match value.get_ref() {
        MeasureValue::On(false) => return Ok(None),
        MeasureValue::On(true) => &default,
        MeasureValue::Settings(table) => table,
        MeasureValue::Filter(filter) => {
            let word = name.get_ref();
            let is_taken = matches!(
                &**word,
                "packets" | "bytes" | "flows" | "active" | "active_ms" | "gaps"
            );
            if is_taken || word.starts_with("gap_") {
                let remedy = "the name is that of a measure which exists: choose another";
                return Err(error(at, format!("{key} = `{filter}`: {remedy}")));
            }
            check_filter(&key, at, filter, names)?;
            return Ok(Some(MeasureConfig::Accepted {
                name: word.clone(),
                filter: filter.clone(),
            }));
        }
    };
    let has = [
        table.max.is_some(),
        table.idle.is_some(),
        table.slot.is_some(),
    ];
    let (measure, may_have) = match &**name.get_ref() {
        "flows" => {
            let max = number(&format!("{key}.max"), &table.max, 1 << 20, 1, FLOWS_MAX)?;
            let idle_ns = match &table.idle {
                Some(idle) => {
                    duration(&format!("{key}.idle"), idle, [NS_PER_S, 86_400 * NS_PER_S])?
                }
                None => 60 * NS_PER_S,
            };
            (MeasureConfig::Flows { max, idle_ns }, [true, true, false])
        }
        "active" => {
            let limits = [NS_PER_S / 1000, 3600 * NS_PER_S];
            let slot_ns = match &table.slot {
                Some(slot) => duration(&format!("{key}.slot"), slot, limits)?,
                None => NS_PER_S,
            };
            let slot_ms = slot_ns / (NS_PER_S / 1000);
            (MeasureConfig::Active { slot_ms }, [false, false, true])
        }
        "gaps" => (MeasureConfig::Gaps, [false; 3]),
        "packets" | "bytes" => return Ok(None),
        _ => {
            let remedy = "there are flows, active and gaps; any other name counts the packets that \
                          a filter expression accepts, as in syn = \"tcp[tcpflags] & tcp-syn != 0\"";
            return Err(error(name.span().start, format!("{key}: {remedy}")));
        }
    };
    if has.iter().zip(may_have).any(|(has, may)| *has && !may) {
        let remedy = "`flows` has max and idle, `active` has slot, other measures have no settings";
        return Err(error(at, format!("{key}: {remedy}")));
    }
    Ok(Some(measure))
}
