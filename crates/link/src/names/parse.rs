//! Parsers of services(5), protocols(5), networks(5) and ethers(5).

use std::collections::HashMap;

use weir_filter::lang::expr::Transport;

/// Entries by all of their names, in the file's order.
#[derive(Debug)]
pub(super) struct Table<E> {
    entries: HashMap<String, Vec<E>>,
}

/// A line's names and its entry; `None` if the line is malformed.
type Line<'a, E> = Option<(Vec<&'a str>, E)>;

impl<E: Copy> Table<E> {
    /// Parses `text`; `parse` reads the words of a line. Malformed lines and
    /// comments (from `#` on) are skipped.
    pub(super) fn parse<'a>(
        text: &'a str,
        parse: impl Fn(&mut dyn Iterator<Item = &'a str>) -> Line<'a, E>,
    ) -> Table<E> {
        let mut entries: HashMap<String, Vec<E>> = HashMap::new();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let Some((names, entry)) = parse(&mut line.split_ascii_whitespace()) else {
                continue;
            };
            for name in names {
                entries.entry(name.to_owned()).or_default().push(entry);
            }
        }
        Table { entries }
    }

    /// The first entry named `name` for which `fits` is true.
    pub(super) fn find(&self, name: &str, fits: impl Fn(&E) -> bool) -> Option<&E> {
        self.entries.get(name)?.iter().find(|entry| fits(entry))
    }

    /// Every name, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.entries.keys().cloned().collect();
        names.sort_unstable();
        names
    }
}

/// A service's transport port and protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Service {
    pub(super) port: u16,
    pub(super) transport: Transport,
}

/// A protocol's number. Names of numbers above 255 exist (`mptcp`), although no
/// packet can contain them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Protocol {
    pub(super) number: u32,
}

/// `http 80/tcp www`
pub(super) fn service<'a>(words: &mut dyn Iterator<Item = &'a str>) -> Line<'a, Service> {
    let name = words.next()?;
    let (port, transport) = words.next()?.split_once('/')?;
    let port = port.parse().ok()?;
    let transport = match transport {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        _ => return None,
    };
    let names = [name].into_iter().chain(words).collect();
    Some((names, Service { port, transport }))
}

/// `tcp 6 TCP`
pub(super) fn protocol<'a>(words: &mut dyn Iterator<Item = &'a str>) -> Line<'a, Protocol> {
    let name = words.next()?;
    let number = words.next()?.parse().ok()?;
    let names = [name].into_iter().chain(words).collect();
    Some((names, Protocol { number }))
}

/// `loopback 127.0.0.0`
pub(super) fn network<'a>(words: &mut dyn Iterator<Item = &'a str>) -> Line<'a, u32> {
    let name = words.next()?;
    let number = network_number(words.next()?)?;
    let names = [name].into_iter().chain(words).collect();
    Some((names, number))
}

/// `02:00:5e:10:00:01 gateway`
pub(super) fn ether<'a>(words: &mut dyn Iterator<Item = &'a str>) -> Line<'a, [u8; 6]> {
    let mut address = [0; 6];
    let mut digits = words.next()?.split(':');
    for byte in &mut address {
        *byte = u8::from_str_radix(digits.next()?, 16).ok()?;
    }
    if digits.next().is_some() {
        return None;
    }
    Some((vec![words.next()?], address))
}

/// A number of one to four bytes with dots between, as inet_network(3) reads
/// it, octal and hexadecimal included.
fn network_number(text: &str) -> Option<u32> {
    let mut number = 0;
    for (index, part) in text.split('.').enumerate() {
        let byte = match part.as_bytes() {
            [b'0', b'x' | b'X', ..] => u8::from_str_radix(&part[2..], 16),
            [b'0', _, ..] => u8::from_str_radix(part, 8),
            _ => part.parse::<u8>(),
        };
        if index == 4 {
            return None;
        }
        number = number << 8 | u32::from(byte.ok()?);
    }
    Some(number)
}
