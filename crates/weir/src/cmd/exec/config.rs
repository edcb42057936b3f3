//! `exec.toml`: a host of `weir exec`, and which sockets are its own.

use super::Stack;
use crate::config::{Wrong, parse};
use crate::error::CliError;
use crate::host::{Addresses, HostArgs, LinkScoped, Route};
use serde::Deserialize;
use std::fmt::{Display, Write};
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use toml::Spanned;
use weir_socket::{SocketCall, SocketProtocol, SocketRule};

/// Largest file that is read, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Limit on the entries of each list.
const ENTRIES_MAX: usize = 1000;

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    links: Vec<Spanned<String>>,
    addresses: Vec<Spanned<String>>,
    #[serde(default)]
    gateways: Vec<Spanned<String>>,
    #[serde(default)]
    macs: Vec<Spanned<String>>,
    #[serde(default)]
    broker: Option<std::path::PathBuf>,
    #[serde(default)]
    stack: Option<Spanned<String>>,
    #[serde(default)]
    dns: Vec<Spanned<String>>,
    #[serde(default)]
    loopback: bool,
    #[serde(default)]
    io_uring: bool,
    #[serde(default)]
    stats: bool,
    #[serde(default)]
    route: Vec<RouteTable>,
    #[serde(default)]
    socket: Vec<SocketTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteTable {
    to: Spanned<String>,
    gateway: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SocketTable {
    owner: Spanned<String>,
    #[serde(default)]
    protocol: Option<Spanned<String>>,
    #[serde(default)]
    call: Option<Spanned<String>>,
    #[serde(default)]
    address: Option<Spanned<String>>,
    #[serde(default)]
    ports: Option<Spanned<String>>,
}

/// What the file says.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) host: HostArgs,
    pub(super) stack: Option<Stack>,
    pub(super) dns: Vec<IpAddr>,
    pub(super) loopback: bool,
    pub(super) io_uring: bool,
    pub(super) stats: bool,
    pub(super) rules: Vec<SocketRule>,
}

/// Reads a file; `-` is standard input.
///
/// # Errors
/// `FILE:LINE:COLUMN: why` for a file that is not one.
pub(super) fn read(path: &Path) -> Result<Config, CliError> {
    let cannot = |error: std::io::Error| {
        CliError::refused(format!("cannot read {}: {error}", path.display()))
    };
    let mut text = String::new();
    let read = if path == Path::new("-") {
        let input = std::io::stdin().lock();
        input.take(FILE_MAX + 1).read_to_string(&mut text)
    } else {
        let file = std::fs::File::open(path).map_err(cannot)?;
        if !file.metadata().map_err(cannot)?.is_file() {
            return Err(CliError::refused(format!(
                "{} is not a file: give a file such as exec.toml, or - for standard input",
                path.display()
            )));
        }
        file.take(FILE_MAX + 1).read_to_string(&mut text)
    };
    read.map_err(cannot)?;
    if text.len() as u64 > FILE_MAX {
        let why = Wrong::in_all(format!("longer than {FILE_MAX} bytes: shorten it"));
        return Err(why.refused(path));
    }
    config(&text).map_err(|wrong| wrong.refused(path))
}

fn config(text: &str) -> Result<Config, Wrong> {
    let file: File = parse(text)?;
    let lists = [
        ("links", file.links.len()),
        ("addresses", file.addresses.len()),
        ("gateways", file.gateways.len()),
        ("macs", file.macs.len()),
        ("dns", file.dns.len()),
        ("route", file.route.len()),
        ("socket", file.socket.len()),
    ];
    if let Some((name, count)) = lists.iter().find(|(_, count)| *count > ENTRIES_MAX) {
        return Err(Wrong::in_all(format!(
            "{count} entries of `{name}`: give at most {ENTRIES_MAX}"
        )));
    }
    for (name, count) in &lists[..2] {
        if *count == 0 {
            return Err(Wrong::in_all(format!(
                "`{name}` is empty: give links = [\"tap0\"] and addresses = [\"192.0.2.5/24\"]"
            )));
        }
    }
    let routes = file.route.iter().map(|route| {
        Ok(Route {
            to: value(text, &route.to)?,
            gateway: value(text, &route.gateway)?,
        })
    });
    let mut addresses = Addresses::default();
    addresses.addresses = values(text, &file.addresses)?;
    addresses.gateways = values(text, &file.gateways)?;
    addresses.macs = values(text, &file.macs)?;
    addresses.shards = 1;
    addresses.broker = file.broker;
    addresses.routes = routes.collect::<Result<_, Wrong>>()?;
    let links = file.links.into_iter().map(Spanned::into_inner);
    let rules = file.socket.iter().map(|rule| socket_rule(text, rule));
    Ok(Config {
        host: HostArgs {
            links: links.collect(),
            addresses,
        },
        stack: file
            .stack
            .map(|stack| word(text, &stack, STACKS))
            .transpose()?,
        dns: file
            .dns
            .iter()
            .map(|one| value(text, one))
            .collect::<Result<_, Wrong>>()?,
        loopback: file.loopback,
        io_uring: file.io_uring,
        stats: file.stats,
        rules: rules.collect::<Result<_, _>>()?,
    })
}

/// A value that is written as on the command line.
fn value<T>(text: &str, written: &Spanned<String>) -> Result<T, Wrong>
where
    T: FromStr,
    T::Err: Display,
{
    let parsed = written.get_ref().parse();
    parsed.map_err(|error| Wrong::at(text, written.span().start, error))
}

fn values<T>(text: &str, written: &[Spanned<String>]) -> Result<Vec<LinkScoped<T>>, Wrong>
where
    T: FromStr,
    T::Err: Display,
{
    written.iter().map(|one| value(text, one)).collect()
}

const STACKS: &[(&str, Stack)] = &[
    ("sys", Stack::Sys),
    ("mux", Stack::Mux),
    ("opt", Stack::Opt),
];
const OWNERS: &[(&str, bool)] = &[("kernel", true), ("weir", false)];
const PROTOCOLS: &[(&str, SocketProtocol)] =
    &[("tcp", SocketProtocol::Tcp), ("udp", SocketProtocol::Udp)];
const CALLS: &[(&str, SocketCall)] =
    &[("bind", SocketCall::Bind), ("connect", SocketCall::Connect)];

/// One of a few words.
fn word<T: Copy>(text: &str, written: &Spanned<String>, words: &[(&str, T)]) -> Result<T, Wrong> {
    let found = words.iter().find(|(word, _)| word == written.get_ref());
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let all: Vec<_> = words
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        let why = format!("`{}` is none of {}", written.get_ref(), all.join(", "));
        Wrong::at(text, written.span().start, why)
    })
}

fn socket_rule(text: &str, rule: &SocketTable) -> Result<SocketRule, Wrong> {
    let address = rule.address.as_ref().map(|written| {
        let prefix: weir_stack::Prefix = value(text, written)?;
        Ok(prefix.to_string())
    });
    Ok(SocketRule {
        kernel: word(text, &rule.owner, OWNERS)?,
        protocol: optional(text, &rule.protocol, PROTOCOLS)?,
        call: optional(text, &rule.call, CALLS)?,
        address: address.transpose()?,
        ports: rule
            .ports
            .as_ref()
            .map(|one| ports(text, one))
            .transpose()?,
    })
}

fn optional<T: Copy>(
    text: &str,
    written: &Option<Spanned<String>>,
    words: &[(&str, T)],
) -> Result<Option<T>, Wrong> {
    let written = written.as_ref();
    written.map(|one| word(text, one, words)).transpose()
}

/// A transport port, or `FIRST-LAST`.
fn ports(text: &str, written: &Spanned<String>) -> Result<(u16, u16), Wrong> {
    let all = written.get_ref();
    let (first, last) = all.split_once('-').unwrap_or((all, all));
    let parsed = first.parse().ok().zip(last.parse().ok());
    parsed.filter(|(first, last)| first <= last).ok_or_else(|| {
        let why =
            format!("`{all}` is not a port or a range: write one such as \"53\" or \"1-1023\"");
        Wrong::at(text, written.span().start, why)
    })
}

/// The file that says what these options say.
pub(super) fn print(args: &super::Args) -> String {
    let list = |values: Vec<String>| {
        let quoted: Vec<_> = values.iter().map(|one| quoted(one)).collect();
        quoted.join(", ")
    };
    let shown = |scoped: &dyn Display| scoped.to_string();
    let host = &args.host;
    let mut out = String::new();
    let mut line = |text: String| {
        let written = writeln!(out, "{text}");
        debug_assert!(written.is_ok(), "a string takes all");
    };
    line(format!("links = [{}]", list(host.links.clone())));
    let addresses = host.addresses.addresses.iter();
    let addresses = addresses.map(|one| shown(one)).collect();
    line(format!("addresses = [{}]", list(addresses)));
    if !host.addresses.gateways.is_empty() {
        let gateways = host.addresses.gateways.iter();
        let gateways = gateways.map(|one| shown(one)).collect();
        line(format!("gateways = [{}]", list(gateways)));
    }
    if !host.addresses.macs.is_empty() {
        let macs = host.addresses.macs.iter().map(|one| shown(one)).collect();
        line(format!("macs = [{}]", list(macs)));
    }
    if let Some(broker) = &host.addresses.broker {
        line(format!(
            "broker = {}",
            quoted(&broker.display().to_string())
        ));
    }
    if let Some((word, _)) = STACKS.iter().find(|(_, stack)| Some(*stack) == args.stack) {
        line(format!("stack = \"{word}\""));
    }
    if !args.dns.is_empty() {
        let dns = args.dns.iter().map(|one| shown(one)).collect();
        line(format!("dns = [{}]", list(dns)));
    }
    for (name, on) in [
        ("loopback", args.loopback),
        ("io_uring", args.io_uring),
        ("stats", args.stats),
    ] {
        if on {
            line(format!("{name} = true"));
        }
    }
    out
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    const WHOLE: &str = "\
links = ['tap0', 'port:eth1']
addresses = ['192.0.2.5/24', 'dhcp%eth1']
gateways = ['192.0.2.1']
macs = ['02:00:00:00:00:07%eth1']
stack = 'mux'
dns = ['192.0.2.53', '2001:db8::53']
loopback = true

[[route]]
to = '198.51.100.0/24'
gateway = '192.0.2.9'

[[socket]]
owner = 'kernel'
protocol = 'udp'
call = 'connect'
address = '192.0.2.53/32'
ports = '53-54'

[[socket]]
owner = 'weir'
";

    #[test]
    fn a_file_says_what_options_say_and_more() {
        let config = config(WHOLE).unwrap();
        assert_eq!(config.host.links, ["tap0", "port:eth1"]);
        assert_eq!(config.stack, Some(Stack::Mux));
        assert!(config.loopback && !config.stats && !config.io_uring);
        assert_eq!(
            config.rules,
            [
                SocketRule {
                    kernel: true,
                    protocol: Some(SocketProtocol::Udp),
                    call: Some(SocketCall::Connect),
                    address: Some("192.0.2.53/32".to_owned()),
                    ports: Some((53, 54)),
                },
                SocketRule::default(),
            ]
        );
        assert_eq!(config.host.addresses.routes.len(), 1);
        let dns: Vec<_> = config.dns.iter().map(IpAddr::to_string).collect();
        assert_eq!(dns, ["192.0.2.53", "2001:db8::53"]);
    }

    #[test]
    fn a_mistake_has_its_place_and_a_remedy() {
        for (good, bad, line, why) in [
            ("192.0.2.5/24", "192.0.2.5/99", 2, "99"),
            ("'192.0.2.1'", "'router'", 3, "address"),
            ("'192.0.2.53'", "'ns.example'", 6, "address"),
            ("'mux'", "'fast'", 5, "none of \"sys\", \"mux\", \"opt\""),
            ("198.51.100.0/24", "net", 10, "net"),
            ("'kernel'", "'linux'", 14, "\"kernel\", \"weir\""),
            ("'udp'", "'sctp'", 15, "\"tcp\", \"udp\""),
            ("'connect'", "'send'", 16, "\"bind\", \"connect\""),
            ("53-54", "54-53", 18, "write one such as"),
            ("53-54", "65536", 18, "write one such as"),
            ("loopback", "lopback", 7, "unknown field `lopback`"),
        ] {
            let text = WHOLE.replacen(good, bad, 1);
            let wrong = config(&text).unwrap_err();
            assert_eq!(
                wrong.place.map(|at| at.line),
                Some(line),
                "{bad}: {wrong:?}"
            );
            assert!(wrong.why.contains(why), "{bad}: {wrong:?}");
        }
        let empty = config("links = []\naddresses = []\n").unwrap_err();
        assert!(empty.why.contains("`links` is empty"), "{empty:?}");
        let many = vec!["'tap0'"; ENTRIES_MAX + 1].join(",");
        let many = config(&format!("links = [{many}]\naddresses = ['dhcp']\n")).unwrap_err();
        assert!(many.why.contains("at most 1000"), "{many:?}");
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: super::super::Args,
    }

    #[test]
    fn what_is_printed_is_read_as_the_same() {
        let line = "weir --link tap0 --link port:eth1 --addr 192.0.2.5/24 --addr dhcp%eth1 \
                    --gateway 192.0.2.1 --mac 02:00:00:00:00:07%eth1 --stack mux --loopback \
                    --dns 192.0.2.53,2001:db8::53 --print";
        let line = Line::try_parse_from(line.split_whitespace()).unwrap();
        let text = print(&line.args);
        let read = config(&text).unwrap();
        assert_eq!(
            format!("{:?}", read.host),
            format!("{:?}", line.args.host),
            "{text}"
        );
        assert_eq!((read.stack, read.loopback), (Some(Stack::Mux), true));
        assert_eq!((read.dns.len(), read.dns), (2, line.args.dns));
    }
}
