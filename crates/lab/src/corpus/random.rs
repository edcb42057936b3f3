//! Seeded random expressions: compositions of primitives, arithmetic, and
//! mutations that invalidate them.

use super::values::*;
use crate::rng::Rng;

/// Expressions of several primitives joined by `and`, `or`, `not` and
/// parentheses, some with inherited qualifiers.
pub(super) fn compositions(seed: u64, count: usize) -> Vec<String> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| expression(&mut rng, 3)).collect()
}

/// Relations of random arithmetic.
pub(super) fn arithmetic(seed: u64, count: usize) -> Vec<String> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| relation(&mut rng)).collect()
}

/// Compositions with a token removed, duplicated, exchanged or damaged.
pub(super) fn mutations(seed: u64, count: usize) -> Vec<String> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| mutated(&mut rng)).collect()
}

fn expression(rng: &mut Rng, depth: usize) -> String {
    if depth == 0 || rng.chance(15) {
        return primitive(rng);
    }
    let left = expression(rng, depth - 1);
    let joint = rng.pick(&["and", "or", "and", "or", "&&", "||"]);
    match rng.below(10) {
        0 => format!("not ({left})"),
        1 => format!("not {left}"),
        2 => format!("({left}) {joint} {}", primitive(rng)),
        3 => format!("{left} {joint} ({})", expression(rng, depth - 1)),
        4 => inherited(rng),
        5 => format!("{left} {joint} not {}", primitive(rng)),
        _ => format!("{left} {joint} {}", expression(rng, depth - 1)),
    }
}

/// A primitive followed by ids without qualifiers, which inherit its
/// qualifiers.
fn inherited(rng: &mut Rng) -> String {
    let direction = rng.pick(&DIRECTIONS);
    let joint = rng.pick(&["and", "or", "or", "and not", "or not"]);
    let (qualifiers, ids): (&str, &[&str]) = match rng.below(6) {
        0 => ("host", &IPV4),
        1 => ("net", &IPV4_NETS),
        2 => ("port", &PORTS),
        3 => ("portrange", &PORT_RANGES),
        4 => ("host", &IPV6),
        _ => ("net", &IPV6_NETS),
    };
    let (a, b, c) = (rng.pick(ids), rng.pick(ids), rng.pick(ids));
    match rng.below(3) {
        0 => format!("{direction}{qualifiers} {a} {joint} {b}"),
        1 => format!("{direction}{qualifiers} ({a} {joint} {b})"),
        _ => format!("{direction}{qualifiers} ({a} {joint} {b}) {joint} {c}"),
    }
}

fn primitive(rng: &mut Rng) -> String {
    let direction = rng.pick(&DIRECTIONS);
    let transport = rng.pick(&["", "tcp ", "udp ", "sctp "]);
    match rng.below(17) {
        0 => format!("{direction}host {}", rng.pick(&IPV4)),
        1 => format!("{direction}net {}", rng.pick(&IPV4_NETS)),
        2 => format!("{direction}host {}", rng.pick(&IPV6)),
        3 => format!("{direction}net {}", rng.pick(&IPV6_NETS)),
        4 | 5 => format!("{transport}{direction}port {}", rng.pick(&PORTS)),
        6 => format!("{transport}{direction}portrange {}", rng.pick(&PORT_RANGES)),
        7 => format!("ether {direction}host {}", rng.pick(&ETHER)),
        8 => format!("ether proto {}", rng.pick(&ETHER_TYPES)),
        9 => format!("ip proto {}", rng.pick(&PROTOCOLS)),
        10 | 11 => rng.pick(&ABBREVIATIONS[..16]).to_owned(),
        12 => rng
            .pick(&["broadcast", "multicast", "ip multicast"])
            .to_owned(),
        13 => format!("vlan {}", rng.pick(&VLANS)),
        14 => rng.pick(&["vlan", "mpls", "vxlan", "len > 100"]).to_owned(),
        _ => relation(rng),
    }
}

fn relation(rng: &mut Rng) -> String {
    let relation = rng.pick(&[">", "<", ">=", "<=", "=", "==", "!=", "=", "!="]);
    let left = term(rng, 2);
    let right = if rng.chance(70) {
        constant(rng)
    } else {
        term(rng, 1)
    };
    format!("{left} {relation} {right}")
}

fn term(rng: &mut Rng, depth: usize) -> String {
    if depth == 0 || rng.chance(25) {
        return match rng.below(6) {
            0 => "len".to_owned(),
            1 => constant(rng),
            _ => accessor(rng, depth),
        };
    }
    let operator = rng.pick(&["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "&", "-"]);
    let (left, right) = (term(rng, depth - 1), term(rng, depth - 1));
    match rng.below(6) {
        0 => format!("-{left}"),
        1 => format!("({left} {operator} {right}) {operator} {}", constant(rng)),
        2 => format!("{left} {operator} ({right} {operator} {left})"),
        3 => format!("{left} {operator} {}", constant(rng)),
        _ => format!("{left} {operator} {right}"),
    }
}

fn accessor(rng: &mut Rng, depth: usize) -> String {
    let word = rng.pick(&[
        "ether", "ip", "ip", "tcp", "udp", "ip6", "icmp", "arp", "link",
    ]);
    let size = rng.pick(&["", ":1", ":2", ":4"]);
    if depth > 0 && rng.chance(20) {
        let inner = rng.pick(&[
            "(tcp[12] >> 4) * 4",
            "(ip[0] & 0xf) << 2",
            "len - 20",
            "ip[1]",
        ]);
        return format!("{word}[{inner}{size}]");
    }
    format!("{word}[{}{size}]", rng.below(24))
}

fn constant(rng: &mut Rng) -> String {
    match rng.below(5) {
        0 => rng.below(8).to_string(),
        1 => rng.below(256).to_string(),
        2 => format!("{:#x}", rng.below(65536)),
        3 => rng
            .pick(&["0xffffffff", "0x80000000", "tcp-syn", "33", "1500", "010"])
            .to_owned(),
        _ => rng
            .pick(&["0", "1", "6", "17", "64", "80", "0x45", "0x0800"])
            .to_owned(),
    }
}

fn mutated(rng: &mut Rng) -> String {
    let text = expression(rng, 1);
    let mut tokens: Vec<String> = text.split(' ').map(str::to_owned).collect();
    let at = rng.below(tokens.len());
    match rng.below(9) {
        0 => drop(tokens.remove(at)),
        1 => tokens.insert(at, tokens[at].clone()),
        2 => tokens.swap(at, 0),
        3 => tokens.insert(
            at,
            rng.pick(&["(", ")", "not", "and", "or", "]", "=", "/"])
                .to_owned(),
        ),
        4 => misspell(rng, &mut tokens[at]),
        5 => {
            tokens[at] = rng
                .pick(&["10.0.2.15", "80", "::1", "08:00:27:e6:e5:59"])
                .to_owned()
        }
        6 => tokens[at] = rng.pick(&ABBREVIATIONS).to_owned(),
        7 => tokens[at].push_str(rng.pick(&["/33", "/8", "0", "-", ".1", ":", ":1", "x"])),
        _ => {
            tokens[at] = rng
                .pick(&["host", "net", "port", "src", "dst", "proto"])
                .to_owned()
        }
    }
    tokens.join(" ")
}

/// Exchanges or removes a letter; the tokens are ASCII.
fn misspell(rng: &mut Rng, token: &mut String) {
    let mut bytes = std::mem::take(token).into_bytes();
    if bytes.len() >= 2 {
        let at = rng.below(bytes.len() - 1);
        if rng.chance(50) {
            bytes.swap(at, at + 1);
        } else {
            bytes.remove(at);
        }
    }
    *token = String::from_utf8(bytes).expect("ASCII stays ASCII");
}
