//! `weir pup gateway`: forwards Pups between links.

use super::link::{LinkName, failure, host, host_address};
use crate::error::{CliError, say};
use crate::report::stdout;
use crate::same_address;
use crate::signals::ShutdownSignal;
use serde_json::json;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use weir_protocols::pup::{GatewayNode, Link};
use weir_pup::datagram::Address;

/// Forward Pups between links, as a gateway of the Pup internet
///
/// Prints `ready` on standard error, forwards until SIGINT, SIGTERM or SIGHUP, and prints its counts.
/// Advertises its routes each 30 seconds and on request, and learns those of other gateways. It
/// answers for the time and to echoes, as every host does.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The gateway's address on each link, and the link: 1#1#@port:eth0 (see `weir pup --help`)
    #[arg(value_name = "NET#HOST#@LINK", required = true, num_args = 2..=LINKS_MAX)]
    links: Vec<Place>,

    /// The broker's socket; then ports are opened through the broker only
    #[arg(long, value_name = "SOCKET")]
    broker: Option<PathBuf>,

    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
}

/// Links of a gateway at most.
const LINKS_MAX: usize = 16;
/// How long a turn waits at most: so often signals are looked for.
const TURN: Duration = Duration::from_millis(100);

/// An address on a link.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    own: Address,
    link: LinkName,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let (own, link) = text.split_once('@').ok_or_else(|| {
            format!("`{text}` is no address on a link: write one such as 1#1#@port:eth0")
        })?;
        let own = own
            .parse()
            .map_err(|error: weir_pup::datagram::ParseAddressError| error.to_string())?;
        Ok(Place {
            own,
            link: link.parse()?,
        })
    }
}

pub(super) fn run(args: &Args, stop: &ShutdownSignal) -> Result<(), CliError> {
    let mut on = Vec::new();
    for (number, place) in args.links.iter().enumerate() {
        let own = host_address(place.own)?;
        if own.net == 0 {
            return Err(CliError::refused(format!(
                "{} has no net: a gateway needs the number of each, as in 1#1#",
                place.own
            )));
        }
        let before = &args.links[..number];
        if let Some(same) = before.iter().find(|one| one.own.0.net == own.net) {
            return Err(CliError::refused(format!(
                "{} and {} are of one net: each link is a net of its own",
                same.own, place.own
            )));
        }
        if before.iter().any(|one| one.link == place.link) {
            return Err(CliError::refused(format!(
                "{} is named twice: each link is a net of its own",
                place.link
            )));
        }
        let link = match &place.link {
            LinkName::Port(interface) => Link::of_gateway(interface, args.broker.as_deref(), own),
            LinkName::Udp(peers) => Link::on_udp(*peers, own),
        };
        on.push((host(own), link.map_err(failure)?));
    }
    let mut gateway = GatewayNode::new(on);
    let mut claims = Vec::new();
    for Place { own, link } in &args.links {
        claims.push(same_address::claim(
            "pup",
            &own.to_string(),
            &link.to_string(),
        ));
        say(&format!("weir: pup gateway {own} on {link}"));
    }
    say("ready");
    while !stop.is_requested() {
        gateway.turn(TURN).map_err(failure)?;
    }
    let passed = gateway.passed();
    let routes = gateway.routes();
    let json = json!({
        "forwarded": passed.forwarded,
        "own": passed.own,
        "refused": passed.refused,
        "dropped": passed.dropped,
        "nets": routes.iter().map(|route| route.net).collect::<Vec<_>>(),
    });
    stdout::report(args.json, &json, || {
        format!(
            "{} forwarded, {} for the gateway itself, {} refused, {} dropped; {} nets",
            passed.forwarded,
            passed.own,
            passed.refused,
            passed.dropped,
            routes.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_and_a_link() {
        let place: Place = "1#12#@port:eth0".parse().unwrap();
        assert_eq!(place.own, "1#12#".parse().unwrap());
        assert_eq!(place.link.to_string(), "port:eth0");
        for (text, word) in [
            ("1#1#", "no address on a link"),
            ("1#400#@port:eth0", "at most 377"),
            ("1#1#@tap:x", "is no link"),
        ] {
            let error = text.parse::<Place>().unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
