//! A host's configuration on each of its links, from the command line.

use super::{Addresses, Source};
use crate::error::CliError;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use weir_stack::Prefix;
use weir_wire::ethernet::Address;

/// A value for one link: `VALUE%LINK`, or `VALUE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LinkScoped<T> {
    pub(super) what: T,
    link: Option<String>,
}

impl<T> FromStr for LinkScoped<T>
where
    T: FromStr,
    T::Err: Display,
{
    type Err = String;

    fn from_str(text: &str) -> Result<LinkScoped<T>, String> {
        let (what, link) = match text.rsplit_once('%') {
            Some((what, link)) => match link.split_once('/') {
                // In the form of an IPv6 zone.
                Some((link, len)) => {
                    return Err(format!("the link comes last: write {what}/{len}%{link}"));
                }
                None => (what, Some(link.to_owned())),
            },
            None => (text, None),
        };
        let what = what.parse().map_err(|error: T::Err| error.to_string())?;
        Ok(LinkScoped { what, link })
    }
}

impl<T: Display> Display for LinkScoped<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.link {
            Some(link) => write!(out, "{}%{link}", self.what),
            None => self.what.fmt(out),
        }
    }
}

/// A router's address, as given to `--gateway`.
pub(super) fn gateway(text: &str) -> Result<LinkScoped<IpAddr>, String> {
    let wrong = |_| format!("`{text}` is not a router's address: write one such as 192.0.2.1");
    text.parse().map_err(wrong)
}

/// One link, and the host's configuration on it.
pub(super) struct LinkHostConfig<'a> {
    /// As given by the user.
    pub(super) link: &'a str,
    pub(super) addresses: Vec<Source>,
    pub(super) gateways: Vec<IpAddr>,
    /// Networks, each with its router.
    pub(super) routes: Vec<(Prefix, IpAddr)>,
    pub(super) mac: Option<Address>,
    pub(super) broker: Option<&'a Path>,
    /// Number of queues to request from a TAP interface.
    pub(super) queues: usize,
}

impl LinkHostConfig<'_> {
    pub(super) fn has(&self, source: Source) -> bool {
        self.addresses.contains(&source)
    }

    pub(super) fn fixed(&self) -> impl Iterator<Item = Prefix> {
        self.addresses.iter().filter_map(|source| match source {
            Source::Fixed(prefix) => Some(*prefix),
            Source::Dhcp | Source::Auto => None,
        })
    }

    fn is_on_link(&self, gateway: IpAddr) -> bool {
        self.fixed().any(|prefix| prefix.contains(gateway))
    }
}

impl Addresses {
    /// The configuration of each link. Without a link's name, an address
    /// belongs to the first link, and a router to the link whose network
    /// contains it.
    pub(super) fn link_configs<'a>(
        &'a self,
        links: &'a [String],
    ) -> Result<Vec<LinkHostConfig<'a>>, CliError> {
        let place = |link: &'a String| LinkHostConfig {
            link,
            addresses: Vec::new(),
            gateways: Vec::new(),
            routes: Vec::new(),
            mac: None,
            broker: self.broker.as_deref(),
            queues: self.shards,
        };
        let mut places: Vec<LinkHostConfig<'_>> = links.iter().map(place).collect();
        for (at, link) in links.iter().enumerate() {
            if links[..at].iter().any(|other| name(other) == name(link)) {
                return Err(CliError::refused(format!("link {link} is given twice")));
            }
        }
        for one in &self.addresses {
            let at = named(links, one.link.as_deref())?.unwrap_or(0);
            places[at].addresses.push(one.what);
        }
        for one in &self.gateways {
            let near = places.iter().position(|place| place.is_on_link(one.what));
            let at = named(links, one.link.as_deref())?.or(near).unwrap_or(0);
            let same = |other: &&IpAddr| other.is_ipv4() == one.what.is_ipv4();
            let every = places.iter().flat_map(|place| &place.gateways);
            if let Some(other) = every.clone().find(same) {
                let version = if one.what.is_ipv4() { "IPv4" } else { "IPv6" };
                return Err(CliError::refused(format!(
                    "{other} and {} are both --gateway of {version}: a host has one router to \
                     other networks of each version",
                    one.what
                )));
            }
            places[at].gateways.push(one.what);
        }
        for one in &self.routes {
            let gateway = one.gateway.what;
            let near = places.iter().position(|place| place.is_on_link(gateway));
            let at = named(links, one.gateway.link.as_deref())?
                .or(near)
                .unwrap_or(0);
            places[at].routes.push((one.to, gateway));
        }
        for one in &self.macs {
            let at = named(links, one.link.as_deref())?.unwrap_or(0);
            if let Some(other) = places[at].mac.replace(one.what) {
                let (link, mac) = (&links[at], one.what);
                return Err(CliError::refused(format!(
                    "{other} and {mac} are both for {link}: give one --mac a link, as in {mac}%LINK"
                )));
            }
        }
        match places.iter().find(|place| place.addresses.is_empty()) {
            Some(place) => Err(CliError::refused(format!(
                "the host has no address on {link}: give one, as in --addr ADDR/LEN%{link}",
                link = place.link
            ))),
            None => Ok(places),
        }
    }
}

/// The interface's name alone.
fn name(link: &str) -> &str {
    link.split_once(':').map_or(link, |(_, name)| name)
}

/// The index of the named link.
pub(super) fn named(links: &[String], said: Option<&str>) -> Result<Option<usize>, CliError> {
    let Some(said) = said else {
        return Ok(None);
    };
    let found = links.iter().position(|link| name(link) == name(said));
    match found {
        Some(at) => Ok(Some(at)),
        None => Err(CliError::refused(format!(
            "`%{said}` is not one of the host's links: they are {}",
            links.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        host: crate::host::HostArgs,
    }

    fn host(words: &str) -> crate::host::HostArgs {
        let all = ["weir"].into_iter().chain(words.split_whitespace());
        Args::try_parse_from(all).unwrap().host
    }

    #[test]
    fn what_was_said_is_divided_among_links() {
        let host = host(
            "--link tap0 --link port:eth1 --addr 192.0.2.5/24 --addr dhcp%eth1 \
             --addr 198.51.100.5/24%port:eth1 --addr auto --gateway 198.51.100.1 \
             --gateway fe80::1%tap0 --mac 02:00:00:00:00:07%eth1",
        );
        let places = host.addresses.link_configs(&host.links).unwrap();
        let fixed = |text: &str| Source::Fixed(text.parse().unwrap());
        let addresses: Vec<_> = places.iter().map(|one| one.addresses.clone()).collect();
        assert_eq!(
            addresses,
            [
                vec![fixed("192.0.2.5/24"), Source::Auto],
                vec![Source::Dhcp, fixed("198.51.100.5/24")],
            ]
        );
        let gateways: Vec<_> = places.iter().map(|one| one.gateways.clone()).collect();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(gateways, [vec![ip("fe80::1")], vec![ip("198.51.100.1")]]);
        let macs: Vec<_> = places.iter().map(|one| one.mac).collect();
        assert_eq!(macs, [None, Some(Address([2, 0, 0, 0, 0, 7]))]);
    }

    #[test]
    fn an_address_that_is_none_says_what_to_write() {
        for (words, said) in [
            ("--addr fe80::5%tap0/64", "write fe80::5/64%tap0"),
            (
                "--addr 192.0.2.5/24 --gateway router",
                "`router` is not a router's address",
            ),
        ] {
            let all = ["weir", "--link", "tap0"].into_iter();
            let parsed = Args::try_parse_from(all.chain(words.split_whitespace()));
            let error = parsed.err().unwrap().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn what_is_of_no_link_or_of_two_is_refused() {
        let mac = "--mac 02:00:00:00:00:07";
        for (words, said) in [
            ("--link tap0 --link tap0 --addr dhcp", "tap0 is given twice"),
            ("--link tap0 --link tap:tap0 --addr dhcp", "given twice"),
            ("--link tap0 --addr dhcp%tap9", "%tap9"),
            ("--link tap0 --link tap1 --addr dhcp", "%tap1"),
            (
                &format!("--link tap0 --addr dhcp {mac} {mac}"),
                "both for tap0",
            ),
            (
                "--link tap0 --addr dhcp --gateway 192.0.2.1 --gateway 192.0.2.2",
                "192.0.2.1 and 192.0.2.2 are both --gateway of IPv4",
            ),
            (
                "--link tap0 --link tap1 --addr dhcp%tap0 --addr dhcp%tap1 --gateway fe80::1%tap0 \
                 --gateway fe80::1%tap1",
                "both --gateway of IPv6",
            ),
        ] {
            let host = host(words);
            let Err(CliError::Refused(failure)) = host.addresses.link_configs(&host.links) else {
                panic!("{words} is taken");
            };
            assert!(failure.to_string().contains(said), "{words}: {failure}");
        }
    }
}
