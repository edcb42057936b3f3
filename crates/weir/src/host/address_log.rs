//! Prints changes of a host's addresses and routers on standard error.

use super::link_config::{LinkHostConfig, LinkScoped};
use super::{Addresses, Source};
use crate::error::{CliError, limited, say};
use crate::signals::ShutdownSignal;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use weir_socket::Net;
use weir_stack::iface::{Event, Origin, RemovalReason};

/// Time limit for printing the result of an address.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for DHCP servers and routers to configure an address.
const CONFIG_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a wait for an address is silent.
const SAID_TIME: Duration = Duration::from_secs(1);
/// How often waits check for a signal.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The addresses whose loss has been printed.
#[derive(Clone, Default, Debug)]
pub(super) struct Announced(Arc<(Mutex<Vec<IpAddr>>, Condvar)>);

impl Announced {
    fn note(&self, event: &Event) {
        if let Event::Lost(prefix, _) = event {
            let (lost, changed) = &*self.0;
            lost.lock().unwrap().push(prefix.address());
            changed.notify_all();
        }
    }

    /// Waits until the loss of all of these was printed, for a limited time:
    /// events beyond the queue's limit are dropped.
    fn wait(&self, of: &[IpAddr]) {
        let (lost, changed) = &*self.0;
        let missing = |lost: &mut Vec<IpAddr>| of.iter().any(|one| !lost.contains(one));
        let _ = changed.wait_timeout_while(lost.lock().unwrap(), ADDRESS_TIMEOUT, missing);
    }
}

/// Waits until each address that servers and routers assign is configured; from
/// then on a thread prints changes, as long as the host exists.
pub(super) fn wait_configured(
    places: &[LinkHostConfig<'_>],
    net: &Net,
    said: &Announced,
    within: Option<Duration>,
    stop: &ShutdownSignal,
) -> Result<(), CliError> {
    let began = Instant::now();
    let within = within.map_or(CONFIG_TIMEOUT, |within| within.min(CONFIG_TIMEOUT));
    let mut events = net.events();
    // The link's name is printed if there are several links.
    let several = places.len() > 1;
    let links = places
        .iter()
        .map(|place| several.then(|| place.link.to_owned()));
    let links: Vec<Option<String>> = links.collect();
    let said = said.clone();
    let tell = move |link: u8, event: &Event| {
        log_change(links[usize::from(link)].as_deref(), event);
        said.note(event);
    };
    let mut wanted = wanted(places);
    let mut is_said = false;
    while let Some((number, _, whose)) = wanted.first() {
        let link = places[usize::from(*number)].link;
        if net.is_link_gone(*number) {
            return Err(CliError::run(format!("{link} is gone")));
        }
        if let Some((at, event)) = events.next_link_timeout(STOP_POLL_INTERVAL) {
            tell(at, &event);
            if let Event::Address(_, got) = event {
                wanted.retain(|(number, origin, _)| (*number, *origin) != (at, got));
            }
        } else if stop.is_requested() {
            return Err(CliError::Stopped(stop.signal()));
        } else if began.elapsed() >= SAID_TIME && !std::mem::replace(&mut is_said, true) {
            say(&format!(
                "weir: waits until a {whose} on {link}, up to {} s",
                within.as_secs_f64()
            ));
        } else if began.elapsed() >= within {
            return Err(CliError::run(format!(
                "no {whose} on {link} within {} s: see whether one is there, or give --addr \
                 ADDR/LEN",
                within.as_secs_f64()
            )));
        }
    }
    // Events that came with the last address are printed before the command
    // continues.
    while let Some((link, event)) = events.next_link_timeout(Duration::ZERO) {
        tell(link, &event);
    }
    let thread = std::thread::Builder::new().name("weir-addresses".to_owned());
    let follows = thread.spawn(move || {
        while let Some((link, event)) = events.next_link() {
            tell(link, &event);
        }
    });
    follows
        .map_err(|error| CliError::run(format!("cannot start a thread: {}", limited(&error))))?;
    Ok(())
}

impl Addresses {
    /// Fails if no link can carry frames any more, or if none of the host's
    /// addresses is left and none can be assigned.
    pub(crate) fn check(&self, net: &Net, links: &[String]) -> Result<(), CliError> {
        let links = links.join(", ");
        if net.is_gone() {
            return Err(CliError::run(format!("{links} is gone")));
        }
        let left = net.addresses();
        let has = |one: &LinkScoped<Source>| match one.what {
            Source::Fixed(prefix) => left.contains(&prefix.address()),
            Source::Dhcp | Source::Auto => true,
        };
        if self.addresses.iter().any(has) {
            return Ok(());
        }
        // Another thread first prints which host has each address.
        let fixed = self.addresses.iter().filter_map(|one| match one.what {
            Source::Fixed(prefix) => Some(prefix.address()),
            Source::Dhcp | Source::Auto => None,
        });
        self.announced.wait(&fixed.collect::<Vec<_>>());
        Err(CliError::run(format!(
            "the host has no address left on {links}: give another --addr"
        )))
    }
}

/// The addresses to be assigned, for each link.
fn wanted(places: &[LinkHostConfig<'_>]) -> Vec<(u8, Origin, &'static str)> {
    let mut wanted = Vec::new();
    for (number, place) in (0..).zip(places) {
        if place.has(Source::Dhcp) {
            wanted.push((number, Origin::Leased, "DHCP server gives an address"));
        }
        if place.has(Source::Auto) {
            wanted.push((number, Origin::Advertised, "router advertises a network"));
        }
    }
    wanted
}

/// Prints a change of the host's addresses, if it is relevant to the user.
fn log_change(link: Option<&str>, event: &Event) {
    let said = match event {
        Event::Address(prefix, Origin::Advertised) => {
            format!("{prefix} by a router's advertisement")
        }
        Event::Lease {
            address,
            server,
            seconds,
            renewed,
        } => {
            let again = if *renewed { " again" } else { "" };
            let time = match *seconds {
                u32::MAX => "ever".to_owned(),
                seconds => format!("{seconds} s"),
            };
            format!("{address} by DHCP from {server}{again}, for {time}")
        }
        Event::Router(router) => format!("router {router}"),
        Event::Refused { server, message } => {
            let server = server.map_or_else(|| "a DHCP server".to_owned(), |one| one.to_string());
            let why = message.as_deref().unwrap_or("without a reason");
            format!("{server} refuses an address: {}", why.escape_debug())
        }
        Event::Lost(prefix, RemovalReason::Duplicate(Some(by))) => format!(
            "{} is {by}'s too: it is not used any more; give another --addr",
            prefix.address()
        ),
        Event::Lost(prefix, RemovalReason::Duplicate(None)) => format!(
            "{} is another's too: it is not used any more; give another --addr",
            prefix.address()
        ),
        Event::Lost(prefix, RemovalReason::OtherLink) => format!(
            "{} is another of our links' already: it is not used on this one",
            prefix.address()
        ),
        Event::Lost(prefix, RemovalReason::Expired) => format!("{prefix} is over"),
        Event::Address(..) => return,
    };
    match link {
        Some(link) => say(&format!("weir: {link}: {said}")),
        None => say(&format!("weir: {said}")),
    }
}
