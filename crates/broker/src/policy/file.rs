//! The policy file: TOML with strict keys, and errors with positions.

use super::warnings::{self, RulePositions, WARNINGS_MAX, Warning};
use super::{Accounts, Glob, Grant, Grantees, Policy, Reservation, Send, limits};
use crate::Bytes;
use crate::compile::{Compiler, Source};
use crate::engine::limits::NAME_LEN_MAX;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::cell::RefCell;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use toml::Spanned;
use weir_wire::LinkType;
use weir_wire::ethernet::Address;

/// An error in a policy, with its position.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct PolicyError {
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters from 1.
    pub column: usize,
    /// The error, and a correct form.
    pub message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTable {
    #[serde(default)]
    grant: Vec<Spanned<GrantTable>>,
    #[serde(default)]
    host: Vec<HostTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantTable {
    #[serde(default)]
    users: Vec<Spanned<Name>>,
    #[serde(default)]
    groups: Vec<Spanned<Name>>,
    interfaces: Vec<Spanned<String>>,
    #[serde(default)]
    priority_max: u16,
    #[serde(default = "single")]
    ports_max: u32,
    #[serde(default)]
    memory_max: Option<Spanned<Size>>,
    #[serde(default)]
    ports_total: Option<Spanned<u32>>,
    #[serde(default)]
    memory_total: Option<Spanned<Size>>,
    #[serde(default)]
    take: bool,
    #[serde(default)]
    send: Option<Spanned<SendTable>>,
    #[serde(default)]
    filter: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTable {
    interfaces: Vec<Spanned<String>>,
    #[serde(default = "host_priority")]
    priority: u16,
    filter: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a name or a number")]
enum Name {
    Number(u32),
    Text(String),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a size such as \"8 MiB\", or a number of bytes"
)]
enum Size {
    Number(u64),
    Text(String),
}

/// `send = true`, `send = "FILTER"`, or a table.
enum SendTable {
    Flag(bool),
    Filter(String),
    Table(SendRule),
}

/// As an untagged enum, but with the errors inside the table.
impl<'de> Deserialize<'de> for SendTable {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<SendTable, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = SendTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "true, false, a filter, or a table of filter, source, addresses, \
                     ethertypes and any_source",
                )
            }

            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<SendTable, E> {
                Ok(SendTable::Flag(flag))
            }

            fn visit_str<E: de::Error>(self, filter: &str) -> Result<SendTable, E> {
                Ok(SendTable::Filter(filter.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<SendTable, A::Error> {
                let table = MapAccessDeserializer::new(table);
                Ok(SendTable::Table(SendRule::deserialize(table)?))
            }
        }
        from.deserialize_any(Any)
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SendRule {
    #[serde(default)]
    filter: Option<Spanned<String>>,
    #[serde(default)]
    source: Option<Spanned<String>>,
    #[serde(default)]
    addresses: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    ethertypes: Vec<u16>,
    #[serde(default)]
    any_source: bool,
}

fn single() -> u32 {
    1
}

/// Above the priorities of grants that do not state more than 32,767.
fn host_priority() -> u16 {
    1 << 15
}

/// The memory of a grant that states none, in bytes: one ring of the default
/// size.
const MEMORY_DEFAULT: Bytes = Bytes(1 << 20);
/// Number of ports of all users of a grant that does not state it; at least one
/// user's number.
const PORTS_TOTAL_DEFAULT: u32 = 256;
/// Memory of all users of a grant that does not state it, in bytes; at least
/// one user's memory.
const MEMORY_TOTAL_DEFAULT: Bytes = Bytes(256 << 20);

impl Policy {
    /// Parses a policy; see `examples/policy.toml`. Resolves every name and
    /// compiles every filter, so that the broker reports mistakes when it
    /// starts, not at a request.
    ///
    /// # Errors
    /// The first mistake, with its position.
    pub fn parse(text: &str, accounts: &Accounts) -> Result<Policy, PolicyError> {
        let reader = Reader {
            text,
            accounts,
            positions: RefCell::default(),
        };
        if text.len() as u64 > limits::FILE_LEN_MAX {
            let max = limits::FILE_LEN_MAX;
            return reader.fail(0..0, format!("{} bytes; at most {max}", text.len()));
        }
        let file: FileTable = match toml::from_str(text) {
            Ok(file) => file,
            Err(error) => {
                let span = error.span().unwrap_or(0..0);
                return reader.fail(span, error.message().to_owned());
            }
        };
        for rules in [file.grant.len(), file.host.len()] {
            if rules > limits::RULES_MAX {
                let max = limits::RULES_MAX;
                return reader.fail(0..0, format!("{rules} rules of a kind; at most {max}"));
            }
        }
        let grants = file.grant.into_iter().map(|table| reader.grant(table));
        let grants = grants.collect::<Result<_, _>>()?;
        let claims = file.host.into_iter().map(|table| reader.claim(table));
        Ok(Policy {
            grants,
            claims: claims.collect::<Result<_, _>>()?,
            positions: reader.positions.into_inner(),
        })
    }
}

struct Reader<'a> {
    text: &'a str,
    accounts: &'a Accounts,
    positions: RefCell<RulePositions>,
}

impl Reader<'_> {
    fn fail<T>(&self, span: Range<usize>, message: String) -> Result<T, PolicyError> {
        let (line, column) = self.line_column(&span);
        Err(PolicyError {
            line,
            column,
            message,
        })
    }

    /// Line and column.
    fn line_column(&self, span: &Range<usize>) -> (usize, usize) {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.matches('\n').count() + 1;
        (line, before[line_start..].chars().count() + 1)
    }

    /// Stores a warning; only the first [`WARNINGS_MAX`].
    fn warning(&self, span: &Range<usize>, message: String) {
        let warnings = &mut self.positions.borrow_mut().warnings;
        if warnings.len() < WARNINGS_MAX {
            let (line, column) = self.line_column(span);
            warnings.push(Warning {
                line,
                column,
                message,
            });
        }
    }

    fn grant(&self, table: Spanned<GrantTable>) -> Result<Grant, PolicyError> {
        let span = table.span();
        let place = self.line_column(&span);
        self.positions.borrow_mut().grants.push(place);
        let table = table.into_inner();
        let to = self.grantees(&table)?;
        if to == Grantees::default() {
            let message = "this grant is for nobody: give users or groups".to_owned();
            return self.fail(span, message);
        }
        let memory_max = match &table.memory_max {
            Some(size) => self.size(size)?,
            None => MEMORY_DEFAULT,
        };
        let ports_total = match &table.ports_total {
            Some(total) if *total.get_ref() < table.ports_max => {
                let (less, max) = (total.get_ref(), table.ports_max);
                let message = format!("ports_total is {less}, less than ports_max, which is {max}");
                return self.fail(total.span(), message);
            }
            Some(total) => *total.get_ref(),
            None => PORTS_TOTAL_DEFAULT.max(table.ports_max),
        };
        let memory_total = match &table.memory_total {
            Some(total) => {
                let bytes = self.size(total)?;
                if bytes < memory_max {
                    let message = format!(
                        "memory_total is {bytes}, less than memory_max, which is {memory_max}"
                    );
                    return self.fail(total.span(), message);
                }
                bytes
            }
            None => MEMORY_TOTAL_DEFAULT.max(memory_max),
        };
        let filter = match table.filter {
            Some(filter) => self.filter(filter.span(), filter.into_inner())?,
            None => String::new(),
        };
        let grant = Grant {
            ports_total,
            memory_total,
            to,
            interfaces: self.globs(span.clone(), &table.interfaces)?,
            priority_max: table.priority_max,
            ports_max: table.ports_max,
            memory_max,
            take: table.take,
            send: self.send(table.send)?,
            filter,
        };
        for odd in warnings::of_numbers(&grant, table.memory_max.is_some()) {
            self.warning(&span, odd);
        }
        if grant.to.everyone {
            let (ports, memory) = (grant.ports_total, grant.memory_total);
            let message = format!(
                "this grant is for every user (users = [\"*\"]): any process of this machine, \
                 those of services and containers included, may open ports, up to {ports} \
                 and {memory} for all together"
            );
            self.warning(&span, message);
        }
        Ok(grant)
    }

    fn claim(&self, table: HostTable) -> Result<Reservation, PolicyError> {
        let span = table.filter.span();
        Ok(Reservation {
            interfaces: self.globs(span.clone(), &table.interfaces)?,
            priority: table.priority,
            filter: self.filter(span, table.filter.into_inner())?,
        })
    }

    fn grantees(&self, table: &GrantTable) -> Result<Grantees, PolicyError> {
        let mut to = Grantees::default();
        for user in &table.users {
            match user.get_ref() {
                Name::Number(uid) => {
                    if self.accounts.name(*uid).is_none() {
                        self.foreign(user.span(), "user", *uid, "/etc/passwd");
                    }
                    to.uids.push(*uid);
                }
                Name::Text(name) if name == "*" => to.everyone = true,
                Name::Text(name) => match self.accounts.uid(name) {
                    Some(uid) => to.uids.push(uid),
                    None => return self.unknown(user.span(), "user", name),
                },
            }
        }
        for group in &table.groups {
            match group.get_ref() {
                Name::Number(gid) => {
                    if !self.accounts.has_gid(*gid) {
                        self.foreign(group.span(), "group", *gid, "/etc/group");
                    }
                    to.gids.push(*gid);
                }
                Name::Text(name) => match self.accounts.gid(name) {
                    Some(gid) => to.gids.push(gid),
                    None => return self.unknown(group.span(), "group", name),
                },
            }
        }
        Ok(to)
    }

    fn unknown<T>(&self, span: Range<usize>, what: &str, name: &str) -> Result<T, PolicyError> {
        let message = format!(
            "there is no {what} `{name}` in /etc; one from elsewhere can be given by number"
        );
        self.fail(span, message)
    }

    fn foreign(&self, span: Range<usize>, what: &str, number: u32, file: &str) {
        let message =
            format!("{what} {number} is not in {file}, which is right for one from elsewhere");
        self.warning(&span, message);
    }

    fn globs(
        &self,
        span: Range<usize>,
        patterns: &[Spanned<String>],
    ) -> Result<Vec<Glob>, PolicyError> {
        if patterns.is_empty() {
            let message = "`interfaces` is empty; [\"*\"] is every interface".to_owned();
            return self.fail(span, message);
        }
        let glob = |pattern: &Spanned<String>| {
            let text = pattern.get_ref();
            let Some(glob) = Glob::new(text) else {
                let message = format!(
                    "`{text}` matches no interface: write a name, with * for any characters and ? for one"
                );
                return self.fail(pattern.span(), message);
            };
            if glob.len_min() > NAME_LEN_MAX {
                let message = format!(
                    "`{text}` matches no interface: a name has at most {NAME_LEN_MAX} bytes"
                );
                self.warning(&pattern.span(), message);
            } else if glob.is_literal() {
                let place = self.line_column(&pattern.span());
                let names = &mut self.positions.borrow_mut().names;
                if names.len() < WARNINGS_MAX {
                    names.push((text.clone(), place));
                }
            }
            Ok(glob)
        };
        patterns.iter().map(glob).collect()
    }

    fn size(&self, size: &Spanned<Size>) -> Result<Bytes, PolicyError> {
        match size.get_ref() {
            Size::Number(bytes) => Ok(Bytes(*bytes)),
            Size::Text(text) => match text.parse() {
                Ok(bytes) => Ok(bytes),
                Err(error) => self.fail(size.span(), error.to_string()),
            },
        }
    }

    fn send(&self, send: Option<Spanned<SendTable>>) -> Result<Option<Send>, PolicyError> {
        let Some(send) = send else { return Ok(None) };
        let span = send.span();
        let rule = match send.into_inner() {
            SendTable::Flag(false) => return Ok(None),
            SendTable::Flag(true) => SendRule::default(),
            SendTable::Filter(filter) => SendRule {
                filter: Some(Spanned::new(span.clone(), filter)),
                ..SendRule::default()
            },
            SendTable::Table(rule) => rule,
        };
        let limits_sources =
            rule.source.is_some() || rule.addresses.is_some() || !rule.ethertypes.is_empty();
        if rule.any_source && limits_sources {
            let message = "any_source leaves nothing of source, addresses and ethertypes: give it alone, or with a filter";
            return self.fail(span, message.to_owned());
        }
        let source = rule.source.map(|text| match text.get_ref().parse() {
            Ok(Address(bytes)) => Ok(bytes),
            Err(error) => self.fail(text.span(), format!("source: {error}")),
        });
        let address = |text: &Spanned<String>| match text.get_ref().parse::<IpAddr>() {
            Ok(address) => Ok(address),
            Err(_) => {
                let message = format!(
                    "addresses: `{}` is no IP address: write one such as 10.0.0.9, without a prefix",
                    text.get_ref()
                );
                self.fail(text.span(), message)
            }
        };
        let addresses = rule.addresses.map(|all| all.iter().map(address).collect());
        let filter = match rule.filter {
            Some(filter) => self.filter(filter.span(), filter.into_inner())?,
            None => String::new(),
        };
        let send = Send {
            filter,
            source: source.transpose()?,
            addresses: addresses.transpose()?,
            ethertypes: rule.ethertypes,
            any_source: rule.any_source,
        };
        // As for an interface with addresses of both families.
        let own = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let rules = send.rules([0; 6], &own);
        match rules.program() {
            Ok(_) => Ok(Some(send)),
            Err(error) => self.fail(span, error.to_string()),
        }
    }

    /// Checks a filter by compiling it for Ethernet; other link types compile
    /// it again when such an interface is first used.
    fn filter(&self, span: Range<usize>, text: String) -> Result<String, PolicyError> {
        if text.len() > limits::FILTER_LEN_MAX {
            let max = limits::FILTER_LEN_MAX;
            return self.fail(
                span,
                format!("a filter of {} bytes; at most {max}", text.len()),
            );
        }
        let compiler = Compiler::for_linktype(LinkType::EN10MB);
        match compiler.compile(&Source::expr(&text)) {
            Ok(_) => Ok(text),
            Err(error) => self.fail(span, format!("the filter `{text}`: {error}")),
        }
    }
}
