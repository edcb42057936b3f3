//! The policy's file: TOML, every word checked, errors with their place.

use super::{Accounts, Claim, Glob, Grant, Grantees, Policy, Send, limits};
use crate::Bytes;
use crate::compile::{Compiler, Source};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use toml::Spanned;
use weir_wire::LinkType;
use weir_wire::ethernet::Address;

/// What is wrong with a policy, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct PolicyError {
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters from 1.
    pub column: usize,
    /// What is wrong, and what would be right.
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
    #[serde(default = "one")]
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

/// `send = true`, or `send = "FILTER"`, or a table.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected true, false, a filter, or a table of filter, source, addresses, ethertypes and any_source"
)]
enum SendTable {
    Flag(bool),
    Filter(String),
    Table(SendRule),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SendRule {
    #[serde(default)]
    filter: String,
    #[serde(default)]
    source: Option<String>,
    #[serde(default)]
    addresses: Option<Vec<IpAddr>>,
    #[serde(default)]
    ethertypes: Vec<u16>,
    #[serde(default)]
    any_source: bool,
}

fn one() -> u32 {
    1
}

/// Above what a grant gives unless it says more than 32,767.
fn host_priority() -> u16 {
    1 << 15
}

/// The memory of a grant that states none: one ring of the default size.
const MEMORY_DEFAULT: Bytes = Bytes(1 << 20);
/// The ports of all users of a grant that does not state them; one user's, if
/// those are more.
const PORTS_TOTAL_DEFAULT: u32 = 256;
/// The memory of all users of a grant that does not state it; one user's, if
/// that is more.
const MEMORY_TOTAL_DEFAULT: Bytes = Bytes(256 << 20);

impl Policy {
    /// Reads a policy's text; see `examples/policy.toml`. Every name is
    /// looked up, and every filter compiled, so that a mistake shows when the
    /// broker starts and not when somebody asks.
    ///
    /// # Errors
    /// The first mistake, with its place.
    pub fn parse(text: &str, accounts: &Accounts) -> Result<Policy, PolicyError> {
        let reader = Reader { text, accounts };
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
        let claims = file.host.into_iter().map(|table| reader.claim(table));
        Ok(Policy {
            grants: grants.collect::<Result<_, _>>()?,
            claims: claims.collect::<Result<_, _>>()?,
        })
    }
}

struct Reader<'a> {
    text: &'a str,
    accounts: &'a Accounts,
}

impl Reader<'_> {
    fn fail<T>(&self, span: Range<usize>, message: String) -> Result<T, PolicyError> {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Err(PolicyError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message,
        })
    }

    fn grant(&self, table: Spanned<GrantTable>) -> Result<Grant, PolicyError> {
        let span = table.span();
        let table = table.into_inner();
        let to = self.grantees(&table)?;
        if to == Grantees::default() {
            let message = "this grant is for nobody: give users or groups".to_owned();
            return self.fail(span, message);
        }
        let memory_max = match table.memory_max {
            Some(size) => self.size(&size)?,
            None => MEMORY_DEFAULT,
        };
        let ports_total = match &table.ports_total {
            Some(total) if *total.get_ref() < table.ports_max => {
                let message = format!("less than ports_max, which is {}", table.ports_max);
                return self.fail(total.span(), message);
            }
            Some(total) => *total.get_ref(),
            None => PORTS_TOTAL_DEFAULT.max(table.ports_max),
        };
        let memory_total = match &table.memory_total {
            Some(total) => {
                let bytes = self.size(total)?;
                if bytes < memory_max {
                    let message = format!("less than memory_max, which is {memory_max}");
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
        Ok(Grant {
            ports_total,
            memory_total,
            to,
            interfaces: self.globs(span, &table.interfaces)?,
            priority_max: table.priority_max,
            ports_max: table.ports_max,
            memory_max,
            take: table.take,
            send: self.send(table.send)?,
            filter,
        })
    }

    fn claim(&self, table: HostTable) -> Result<Claim, PolicyError> {
        let span = table.filter.span();
        Ok(Claim {
            interfaces: self.globs(span.clone(), &table.interfaces)?,
            priority: table.priority,
            filter: self.filter(span, table.filter.into_inner())?,
        })
    }

    fn grantees(&self, table: &GrantTable) -> Result<Grantees, PolicyError> {
        let mut to = Grantees::default();
        for user in &table.users {
            match user.get_ref() {
                Name::Number(uid) => to.uids.push(*uid),
                Name::Text(name) if name == "*" => to.everyone = true,
                Name::Text(name) => match self.accounts.uid(name) {
                    Some(uid) => to.uids.push(uid),
                    None => return self.unknown(user.span(), "user", name),
                },
            }
        }
        for group in &table.groups {
            match group.get_ref() {
                Name::Number(gid) => to.gids.push(*gid),
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
            match Glob::new(pattern.get_ref()) {
            Some(glob) => Ok(glob),
            None => self.fail(
                pattern.span(),
                format!(
                    "`{}` matches no interface: write a name, with * for any characters and ? for one",
                    pattern.get_ref()
                ),
            ),
        }
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
                filter,
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
        let source = rule.source.map(|text| match text.parse::<Address>() {
            Ok(address) => Ok(address.0),
            Err(error) => self.fail(span.clone(), format!("source: {error}")),
        });
        let send = Send {
            filter: self.filter(span.clone(), rule.filter)?,
            source: source.transpose()?,
            addresses: rule.addresses,
            ethertypes: rule.ethertypes,
            any_source: rule.any_source,
        };
        // As it will be for an interface with addresses of both families.
        let own = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let rules = send.rules([0; 6], &own);
        match rules.program() {
            Ok(_) => Ok(Some(send)),
            Err(error) => self.fail(span, error.to_string()),
        }
    }

    /// Checks a filter by compiling it for Ethernet; for other link types it
    /// is compiled again when an interface of theirs is first used.
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
