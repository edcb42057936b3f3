//! The log of a translator: JSON lines, one when a block of ports is given and
//! one when it is given back; and its inversion, which names the subscriber of
//! a packet that was seen outside (RFC 6888 §4, RFC 6302).

use super::config::Transport;
use super::inside::Inside;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

/// Length of a line, at most, in bytes.
pub const LINE_MAX: usize = 1024;

/// A subscriber: an address, or the prefix of its network.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(try_from = "String", into = "String")]
pub struct Subscriber {
    /// The address, or the first one of the prefix.
    pub address: IpAddr,
    /// The length of the prefix in bits; `None` of a single address.
    pub len: Option<u8>,
}

impl Subscriber {
    /// The subscriber that the first `len` bits of an address name.
    pub(super) fn of(address: impl Into<IpAddr>, len: u8) -> Subscriber {
        let address = address.into();
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Subscriber {
            address,
            len: (len < bits).then_some(len),
        }
    }

    /// Whether an address is the subscriber's.
    pub fn has(&self, address: IpAddr) -> bool {
        match (self.address, address, self.len) {
            (IpAddr::V6(own), IpAddr::V6(address), Some(len)) => own == address.masked(len),
            (own, address, _) => own == address,
        }
    }
}

impl fmt::Display for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.len {
            Some(len) => write!(f, "{}/{len}", self.address),
            None => self.address.fmt(f),
        }
    }
}

impl From<Subscriber> for String {
    fn from(subscriber: Subscriber) -> String {
        subscriber.to_string()
    }
}

impl TryFrom<String> for Subscriber {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Subscriber, &'static str> {
        let read = || {
            let (address, len) = match text.split_once('/') {
                Some((address, len)) => (address, len.parse().ok()?),
                None => (text.as_str(), 128),
            };
            let address: IpAddr = address.parse().ok()?;
            let is_known = match address {
                IpAddr::V4(_) => len == 128,
                IpAddr::V6(address) => len <= 128 && address.masked(len) == address,
            };
            is_known.then(|| Subscriber::of(address, len))
        };
        read().ok_or("the subscriber is no address, and no IPv6 prefix")
    }
}

/// An event of the log; times are those of the calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    Allocated {
        at: u64,
        subscriber: Subscriber,
        pool: Ipv4Addr,
        ports: (u16, u16),
    },
    Released {
        at: u64,
        subscriber: Subscriber,
        pool: Ipv4Addr,
        ports: (u16, u16),
    },
    Forward {
        at: u64,
        transport: Transport,
        subscriber: (Subscriber, u16),
        outside: (Ipv4Addr, u16),
    },
}

/// The kind of a line.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The translator has begun: all earlier blocks have ended.
    Start,
    /// A subscriber was given a block.
    BlockAllocated,
    /// A subscriber has given a block back.
    BlockReleased,
    /// A static forward, which lasts as long as the translator.
    Forward,
}

/// A line of the log. Fields that a kind does not have are absent.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
pub struct Line {
    /// Unix time in ns.
    pub time_ns: u64,
    /// The event.
    pub event: Kind,
    /// The subscriber: an address, or an IPv6 prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriber: Option<Subscriber>,
    /// The address of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Ipv4Addr>,
    /// The first port of the block, or the port of the forward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u16>,
    /// The last port of the block, or the port of the forward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<u16>,
    /// The transport of a forward, `"tcp"` or `"udp"`; a block is of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// The subscriber's port of a forward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriber_port: Option<u16>,
}

impl Line {
    pub(super) fn start(time_ns: u64) -> Line {
        Line {
            time_ns,
            event: Kind::Start,
            subscriber: None,
            pool: None,
            first: None,
            last: None,
            transport: None,
            subscriber_port: None,
        }
    }

    /// The line of an event, of a translator that began at `epoch`.
    pub(super) fn of(event: &Event, epoch: u64) -> Line {
        let block = |at: u64, kind, subscriber, pool, ports: (u16, u16)| Line {
            event: kind,
            subscriber: Some(subscriber),
            pool: Some(pool),
            first: Some(ports.0),
            last: Some(ports.1),
            ..Line::start(epoch.saturating_add(at))
        };
        match *event {
            Event::Allocated {
                at,
                subscriber,
                pool,
                ports,
            } => block(at, Kind::BlockAllocated, subscriber, pool, ports),
            Event::Released {
                at,
                subscriber,
                pool,
                ports,
            } => block(at, Kind::BlockReleased, subscriber, pool, ports),
            Event::Forward {
                at,
                transport,
                subscriber,
                outside,
            } => Line {
                transport: Some(transport.name().into()),
                subscriber_port: Some(subscriber.1),
                ..block(
                    at,
                    Kind::Forward,
                    subscriber.0,
                    outside.0,
                    (outside.1, outside.1),
                )
            },
        }
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).expect("a line has text and numbers alone")
    }
}

/// The reason why a line of a log is refused.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// It is too long.
    #[error("line {line}: longer than {LINE_MAX} bytes")]
    TooLong {
        /// Its number, from 1.
        line: usize,
    },
    /// It is not JSON of a translator's log.
    #[error("line {line}: {source}")]
    Json {
        /// Its number, from 1.
        line: usize,
        /// The fault.
        source: serde_json::Error,
    },
    /// A field is missing.
    #[error("line {line}: no `{field}`")]
    Missing {
        /// Its number, from 1.
        line: usize,
        /// The field.
        field: &'static str,
    },
}

/// A time in which a subscriber had ports of an address.
#[derive(Clone, Debug)]
struct Term {
    from: u64,
    /// `u64::MAX` while it lasts.
    to: u64,
    last: u16,
    /// A forward is of one transport.
    transport: Option<String>,
    subscriber: Subscriber,
}

/// A log, arranged for finding subscribers.
#[derive(Clone, Default, Debug)]
pub struct Inverted {
    /// By address and first port, in order of time.
    terms: BTreeMap<(Ipv4Addr, u16), Vec<Term>>,
    lines: usize,
}

impl Inverted {
    /// Adds a line, in the order of the log.
    ///
    /// # Errors
    /// If it is no line of such a log.
    pub fn read(&mut self, text: &str) -> Result<(), LogError> {
        self.lines += 1;
        let line = self.lines;
        if text.len() > LINE_MAX {
            return Err(LogError::TooLong { line });
        }
        let read: Line =
            serde_json::from_str(text).map_err(|source| LogError::Json { line, source })?;
        if read.event == Kind::Start {
            let lasting = self
                .terms
                .values_mut()
                .flatten()
                .filter(|term| term.to == u64::MAX);
            lasting.for_each(|term| term.to = read.time_ns);
            return Ok(());
        }
        let missing = |field| LogError::Missing { line, field };
        let pool = read.pool.ok_or_else(|| missing("pool"))?;
        let first = read.first.ok_or_else(|| missing("first"))?;
        let last = read.last.ok_or_else(|| missing("last"))?;
        let subscriber = read.subscriber.ok_or_else(|| missing("subscriber"))?;
        let terms = self.terms.entry((pool, first)).or_default();
        if read.event == Kind::BlockReleased {
            let lasting = terms.iter_mut().filter(|term| term.to == u64::MAX);
            lasting.for_each(|term| term.to = read.time_ns);
            return Ok(());
        }
        terms.push(Term {
            from: read.time_ns,
            to: u64::MAX,
            last,
            transport: read.transport,
            subscriber,
        });
        Ok(())
    }

    /// The subscriber who had a port of an address at a time; `None` if no subscriber
    /// had it. `transport` is a name, as `"udp"`.
    pub fn find(
        &self,
        time_ns: u64,
        transport: &str,
        pool: Ipv4Addr,
        port: u16,
    ) -> Option<Subscriber> {
        let all = self.find_all(time_ns..=time_ns, transport, pool, port);
        // At the instant of a change, it is who has it from then on.
        all.last().copied()
    }

    /// The subscribers who had it at any time of these, each once, in order of time.
    pub fn find_all(
        &self,
        times_ns: RangeInclusive<u64>,
        transport: &str,
        pool: Ipv4Addr,
        port: u16,
    ) -> Vec<Subscriber> {
        let here = self.terms.range((pool, 0)..=(pool, port));
        let then = here.flat_map(|(_, terms)| terms).filter(|term| {
            term.from <= *times_ns.end() && *times_ns.start() <= term.to && port <= term.last
        });
        let (mut forwards, mut blocks) = (Vec::new(), Vec::new());
        for term in then {
            match &term.transport {
                Some(of) if of == transport => forwards.push(term),
                None => blocks.push(term),
                Some(_) => {}
            }
        }
        forwards.sort_by_key(|term| term.from);
        // A forward inside of a block is the forward's, as long as there is one.
        let has_some = |block: &&Term| {
            let (mut from, to) = (
                block.from.max(*times_ns.start()),
                block.to.min(*times_ns.end()),
            );
            for forward in &forwards {
                if forward.from <= from && from <= forward.to {
                    from = forward.to.saturating_add(1);
                }
            }
            from <= to
        };
        blocks.retain(|block| has_some(block));
        let mut found = [forwards, blocks].concat();
        found.sort_by_key(|term| term.from);
        let mut subscribers: Vec<Subscriber> = Vec::new();
        for term in found {
            if !subscribers.contains(&term.subscriber) {
                subscribers.push(term.subscriber);
            }
        }
        subscribers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);

    fn subscriber(last: u8) -> Subscriber {
        Subscriber::of(Ipv4Addr::new(10, 0, 0, last), 32)
    }

    /// A block, or a forward of UDP, of ports 2000 on.
    fn line(time_ns: u64, event: Kind, last: u8) -> Line {
        let is_forward = event == Kind::Forward;
        Line {
            event,
            subscriber: Some(subscriber(last)),
            pool: Some(POOL),
            first: Some(2000),
            last: Some(if is_forward { 2000 } else { 2063 }),
            transport: is_forward.then(|| "udp".into()),
            ..Line::start(time_ns)
        }
    }

    fn found(lines: &[Line], times_ns: RangeInclusive<u64>) -> Vec<Subscriber> {
        let mut log = Inverted::default();
        for line in lines {
            log.read(&line.json()).unwrap();
        }
        log.find_all(times_ns, "udp", POOL, 2000)
    }

    #[test]
    fn a_subscriber_is_read_as_it_is_written() {
        let read = |text: &str| Subscriber::try_from(text.to_owned());
        for text in ["10.0.0.5", "2001:db8::5", "2001:db8:0:1::/64"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        for text in ["", "10.0.0.0/8", "2001:db8::5/64", "::/129", "::/x"] {
            assert!(read(text).is_err(), "{text}");
        }
        let network = read("2001:db8:0:1::/64").unwrap();
        assert!(network.has("2001:db8:0:1::9".parse().unwrap()));
        assert!(!network.has("2001:db8:0:2::9".parse().unwrap()));
    }

    #[test]
    fn a_subscriber_is_named_once() {
        use Kind::{BlockAllocated, BlockReleased};
        let lines = [
            line(1, BlockAllocated, 1),
            line(2, BlockReleased, 1),
            line(3, BlockAllocated, 2),
            line(4, BlockReleased, 2),
            line(5, BlockAllocated, 1),
        ];
        assert_eq!(found(&lines, 0..=9), [subscriber(1), subscriber(2)]);
        assert_eq!(found(&lines, 3..=9), [subscriber(2), subscriber(1)]);
    }

    #[test]
    fn a_forward_hides_a_block_only_while_there_is_one() {
        let lines = [
            line(1, Kind::BlockAllocated, 1),
            line(5, Kind::Forward, 2),
            Line::start(8),
            line(9, Kind::BlockAllocated, 3),
        ];
        assert_eq!(found(&lines, 2..=4), [subscriber(1)]);
        assert_eq!(found(&lines, 4..=6), [subscriber(1), subscriber(2)]);
        assert_eq!(found(&lines, 5..=7), [subscriber(2)], "the block is hidden");
        let all = [1, 2, 3].map(subscriber);
        assert_eq!(found(&lines, 0..=9), all);
    }
}
