//! Rules and traces in the file formats of ClassBench's tools, which DPDK's
//! `rte_acl` test program and most classification prototypes read.
//!
//! ```text
//! @10.1.0.0/16  192.168.0.1/32  0 : 65535  80 : 80  0x06/0xFF  0x0000/0x0000
//! 167837953  3232235521  1025  80  6  0  0
//! ```

use super::{FiveTuple, Ports, Prefix, Rule};
use std::fmt::Write as _;
use std::net::Ipv4Addr;

/// The rules, one a line, in order of decreasing priority.
pub fn write_rules(rules: &[Rule]) -> String {
    let mut text = String::new();
    for rule in rules {
        let [src, dst] = [&rule.src_ports, &rule.dst_ports]
            .map(|ports| format!("{} : {}", ports.start(), ports.end()));
        let (protocol, mask) = rule.protocol.map_or((0, 0), |protocol| (protocol, 0xff));
        let _ = writeln!(
            text,
            "@{}\t{}\t{src}\t{dst}\t{protocol:#04x}/{mask:#04x}\t0x0000/0x0000",
            rule.src, rule.dst
        );
    }
    text
}

/// The packets, one a line.
pub fn write_trace(tuples: &[FiveTuple]) -> String {
    let mut text = String::new();
    for tuple in tuples {
        let FiveTuple {
            src,
            dst,
            src_port,
            dst_port,
            protocol,
        } = tuple;
        let _ = writeln!(
            text,
            "{src}\t{dst}\t{src_port}\t{dst_port}\t{protocol}\t0\t0"
        );
    }
    text
}

/// Parses rules; `None` if a line is malformed. TCP flags are ignored.
pub fn read_rules(text: &str) -> Option<Vec<Rule>> {
    text.lines().map(rule).collect()
}

fn rule(line: &str) -> Option<Rule> {
    let line = line.strip_prefix('@')?.replace(':', " ");
    let mut words = line.split_whitespace();
    let prefix = |word: &str| {
        let (address, len) = word.split_once('/')?;
        let address: Ipv4Addr = address.parse().ok()?;
        Some(Prefix::of(address.to_bits(), len.parse().ok()?))
    };
    let (src, dst) = (prefix(words.next()?)?, prefix(words.next()?)?);
    let mut ports =
        || -> Option<Ports> { Some(words.next()?.parse().ok()?..=words.next()?.parse().ok()?) };
    let (src_ports, dst_ports) = (ports()?, ports()?);
    let (protocol, mask) = words.next()?.split_once('/')?;
    let hex = |word: &str| u8::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    Some(Rule {
        src,
        dst,
        src_ports,
        dst_ports,
        protocol: (hex(mask)? != 0).then_some(hex(protocol)?),
    })
}

/// Parses packets; `None` if a line is malformed.
pub fn read_trace(text: &str) -> Option<Vec<FiveTuple>> {
    let tuple = |line: &str| {
        let mut words = line.split_whitespace();
        Some(FiveTuple {
            src: words.next()?.parse().ok()?,
            dst: words.next()?.parse().ok()?,
            src_port: words.next()?.parse().ok()?,
            dst_port: words.next()?.parse().ok()?,
            protocol: words.next()?.parse().ok()?,
        })
    };
    text.lines().map(tuple).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Profile, Trace, generate};

    #[test]
    fn what_is_written_is_read() {
        for profile in Profile::ALL {
            let rules = generate(profile, 1, 300);
            assert_eq!(read_rules(&write_rules(&rules)).as_ref(), Some(&rules));
            let tuples: Vec<FiveTuple> = Trace::even(&rules, 2).take(300).collect();
            assert_eq!(read_trace(&write_trace(&tuples)), Some(tuples));
        }
        assert_eq!(read_rules("10.0.0.0/8 0.0.0.0/0"), None);
        assert_eq!(read_trace("1 2 3 x 5"), None);
    }
}
