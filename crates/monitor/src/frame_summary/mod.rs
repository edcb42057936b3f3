//! A one-line summary of a frame: the output of `tcpdump -nS`, and the names in
//! DNS, TLS and HTTP.
//!
//! Frames are untrusted and may be truncated anywhere: every read is checked,
//! and missing fields are omitted. Control characters in text from a frame are
//! escaped.

mod dhcp;
mod dns;
mod icmp;
mod ip;
mod tcp;
mod udp;

use std::borrow::Cow;
use weir_wire::ethernet::Address;
use weir_wire::{EtherType, LinkType, ethernet};

/// Largest number of nested headers.
const DEPTH_MAX: usize = 8;
/// Largest number of characters of one name or text line from a frame.
const TEXT_MAX: usize = 256;

/// The [`summary`] of a frame with `wire_len` bytes; if its IP header states
/// more, preceded by tcpdump's `truncated-ip`.
pub fn line(bytes: &[u8], wire_len: usize, linktype: LinkType) -> String {
    let summary = summary(bytes, linktype);
    match missing_of_ip(bytes, wire_len, linktype) {
        Some((name, missing)) => format!("truncated-{name} - {missing} bytes missing! {summary}"),
        None => summary,
    }
}

/// Number of bytes in the IP header's length beyond those on the wire.
fn missing_of_ip(
    bytes: &[u8],
    wire_len: usize,
    linktype: LinkType,
) -> Option<(&'static str, usize)> {
    let start = match linktype {
        LinkType::EN10MB => {
            let mut start = ethernet::Repr::LEN;
            while EtherType(half(bytes, start - 2)?).is_tag() {
                start += 4;
            }
            if !matches!(
                EtherType(half(bytes, start - 2)?),
                EtherType::IPV4 | EtherType::IPV6
            ) {
                return None;
            }
            start
        }
        LinkType::RAW => 0,
        _ => return None,
    };
    let there = wire_len.saturating_sub(start);
    let (name, len) = match byte(bytes, start)? >> 4 {
        4 => ("ip", usize::from(half(bytes, start + 2)?)),
        // Without the header; a length of 0 is a jumbogram's.
        6 => match half(bytes, start + 4)? {
            0 => return None,
            len => ("ip6", 40 + usize::from(len)),
        },
        _ => return None,
    };
    let missing = len.checked_sub(there)?;
    (missing > 0).then_some((name, missing))
}

/// Sender, receiver and content, as far as the bytes allow; a truncated header
/// is marked as by tcpdump, such as `[|tcp]`.
pub fn summary(bytes: &[u8], linktype: LinkType) -> String {
    match linktype {
        LinkType::EN10MB => of_ethernet(bytes, DEPTH_MAX).ok_or("[|ether]"),
        LinkType::RAW => ip::packet(bytes, DEPTH_MAX).ok_or("[|ip]"),
        _ => Err(""),
    }
    .unwrap_or_else(|cut| format!("{linktype} {cut}").trim_end().to_owned())
}

/// The mark of a payload that is shorter than its first header.
fn cut_mark(ether_type: EtherType, payload: &[u8]) -> &'static str {
    match ether_type {
        EtherType::IPV4 if payload.len() < 20 => " [|ip]",
        EtherType::IPV6 if payload.len() < 40 => " [|ip6]",
        EtherType::ARP if payload.len() < 28 => " [|arp]",
        _ => "",
    }
}

/// The summary of an Ethernet frame, with at most `depth` nested headers.
fn of_ethernet(bytes: &[u8], depth: usize) -> Option<String> {
    let frame = ethernet::Frame::new(bytes).ok()?;
    let (mut ether_type, mut payload) = (frame.ether_type(), frame.payload());
    let mut tags = String::new();
    for _ in 0..depth {
        let Some(tag) = ethernet::Tag::new(payload)
            .ok()
            .filter(|_| ether_type.is_tag())
        else {
            break;
        };
        tags += &format!("vlan {} ", ethernet::TagRepr::parse(&tag).vlan);
        (ether_type, payload) = (tag.ether_type(), tag.payload());
    }
    let what = carried(ether_type, payload, depth).unwrap_or_else(|| {
        let EtherType(number) = ether_type;
        let (src, dst) = (frame.src(), frame.dst());
        let name = match number {
            // An IEEE 802.3 frame has a length there.
            0..0x600 => return format!("{src} > {dst} {}", llc(payload, number)),
            0x0806 => " ARP",
            0x8035 => " RARP",
            0x8863 => " PPPoE discovery",
            0x888e => " EAPOL",
            0x88cc => " LLDP",
            _ => "",
        };
        format!(
            "{src} > {dst}{name} type {number:#06x}, length {}{}",
            payload.len(),
            cut_mark(ether_type, payload)
        )
    });
    Some(tags + &what)
}

/// The summary of a frame with a length in place of its type (IEEE 802.2).
fn llc(payload: &[u8], length: u16) -> String {
    let name = match payload {
        [0x42, 0x42, ..] => "802.1d",
        [0xfe, 0xfe, ..] => "IS-IS",
        [0xaa, 0xaa, _, 0, 0, 0xc, 0x20, 0, ..] => "CDP",
        [0xaa, 0xaa, ..] => "SNAP",
        _ => "802.3",
    };
    format!("{name}, length {length}")
}

/// The summary of the content behind an EtherType; `None` if it is unknown or
/// truncated.
fn carried(ether_type: EtherType, payload: &[u8], depth: usize) -> Option<String> {
    let deeper = depth.checked_sub(1)?;
    match ether_type {
        EtherType::ARP => arp(payload),
        EtherType::IPV4 | EtherType::IPV6 => ip::packet(payload, deeper),
        // MPLS (RFC 3032).
        EtherType(0x8847 | 0x8848) => mpls(payload, deeper),
        // A PPPoE session frame (RFC 2516).
        EtherType(0x8864) => {
            let session = half(payload, 2)?;
            let inner = match half(payload, 6)? {
                0x21 | 0x57 => ip::packet(payload.get(8..)?, deeper),
                protocol => Some(format!("PPP protocol {protocol:#06x}")),
            };
            Some(format!("PPPoE session {session:#x} {}", inner?))
        }
        _ => None,
    }
}

fn mpls(payload: &[u8], depth: usize) -> Option<String> {
    let mut text = String::from("MPLS");
    for (number, entry) in payload.chunks_exact(4).take(DEPTH_MAX).enumerate() {
        let entry = word(entry, 0)?;
        let (label, ttl) = (entry >> 12, entry & 0xff);
        text += &format!(" (label {label}, ttl {ttl})");
        if entry & 0x100 != 0 {
            let inner = ip::packet(payload.get(4 * (number + 1)..)?, depth);
            return Some(match inner {
                Some(inner) => format!("{text} {inner}"),
                None => text,
            });
        }
    }
    Some(text)
}

/// ARP (RFC 826) of IPv4 over Ethernet.
fn arp(payload: &[u8]) -> Option<String> {
    let is_ours = word(payload, 0)? == 0x0001_0800 && half(payload, 4)? == 0x0604;
    if !is_ours {
        return None;
    }
    let hardware = |at| Some(Address(chunk(payload, at)?));
    let ip = |at| Some(std::net::Ipv4Addr::from(chunk::<4>(payload, at)?));
    let (sender, sender_ip, target_ip) = (hardware(8)?, ip(14)?, ip(24)?);
    let what = match half(payload, 6)? {
        1 => {
            let target = hardware(18)?;
            let known = match target.0 {
                [0, 0, 0, 0, 0, 0] => String::new(),
                _ => format!(" ({target})"),
            };
            format!("Request who-has {target_ip}{known} tell {sender_ip}")
        }
        2 => format!("Reply {sender_ip} is-at {sender}"),
        number => format!("operation {number} of {sender_ip}"),
    };
    Some(format!("ARP, {what}, length {}", payload.len()))
}

/// The byte at an offset.
fn byte(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// The 16 bits at an offset.
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    chunk(bytes, at).map(u16::from_be_bytes)
}

/// The 32 bits at an offset.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    chunk(bytes, at).map(u32::from_be_bytes)
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Text from a frame, cut to the limit, with all but printable ASCII escaped.
fn harmless(text: &[u8]) -> Cow<'_, str> {
    let text = &text[..text.len().min(TEXT_MAX)];
    match std::str::from_utf8(text) {
        Ok(plain) if text.iter().all(|byte| (b' '..=b'~').contains(byte)) => plain.into(),
        _ => text.escape_ascii().to_string().into(),
    }
}

#[cfg(test)]
mod tests;
