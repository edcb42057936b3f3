//! A one-line summary of a frame: at least the facts in the output of `tcpdump -nS`, and the names in
//! TLS.
//!
//! Frames are untrusted and may be truncated anywhere: every read is checked,
//! and missing fields are omitted. Control characters in text from a frame are
//! escaped. Loops over options, records and nested headers have limits.

mod arp;
mod dhcp;
pub(crate) mod dns;
mod icmp;
mod ike;
mod ip;
mod link;
mod mpls;
mod multicast;
mod ppp;
mod radius;
mod routing;
mod rpc;
mod sctp;
mod services;
mod snmp;
mod tcp;
mod text;
mod tunnel;
mod udp;

use crate::protocol::ether_type_name;
use std::borrow::Cow;
use std::ops::BitAnd;
use weir_wire::{EtherType, LinkType, ethernet};

/// Largest number of nested headers.
const DEPTH_MAX: usize = 8;
/// Largest number of characters of one name or text line from a frame.
const TEXT_MAX: usize = 1024;
/// Largest number of bytes of a line.
pub const LINE_MAX: usize = 64 << 10;

/// The [`summary`] of a frame with `wire_len` bytes; if its IP header states
/// more, preceded by tcpdump's `truncated-ip`.
pub fn line(bytes: &[u8], wire_len: usize, linktype: LinkType) -> String {
    let summary = summary(bytes, linktype);
    let mut line = match missing_of_ip(bytes, wire_len, linktype) {
        Some((name, missing)) => format!("truncated-{name} - {missing} bytes missing! {summary}"),
        None => summary,
    };
    if line.len() > LINE_MAX {
        line.truncate(line.floor_char_boundary(LINE_MAX));
    }
    line
}

/// Bytes of the headers of [`LinkType::NULL`] and [`LinkType::LOOP`], and of both "cooked" headers.
const FAMILY_LEN: usize = 4;
const SLL_LEN: usize = 16;
const SLL2_LEN: usize = 20;

fn is_ip(ether_type: u16) -> bool {
    matches!(EtherType(ether_type), EtherType::IPV4 | EtherType::IPV6)
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
            if !is_ip(half(bytes, start - 2)?) {
                return None;
            }
            start
        }
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => 0,
        LinkType::NULL | LinkType::LOOP => FAMILY_LEN,
        LinkType::LINUX_SLL if is_ip(half(bytes, SLL_LEN - 2)?) => SLL_LEN,
        LinkType::LINUX_SLL2 if is_ip(half(bytes, 0)?) => SLL2_LEN,
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
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => {
            ip::packet(bytes, DEPTH_MAX).ok_or("[|ip]")
        }
        LinkType::NULL | LinkType::LOOP => bytes
            .get(FAMILY_LEN..)
            .and_then(|packet| ip::packet(packet, DEPTH_MAX))
            .ok_or("[|null]"),
        LinkType::LINUX_SLL => sll(bytes).ok_or("[|sll]"),
        LinkType::LINUX_SLL2 => sll2(bytes).ok_or("[|sll2]"),
        LinkType::PPP => ppp::packet(bytes, bytes.len(), DEPTH_MAX).ok_or("[|ppp]"),
        _ => Err(""),
    }
    .unwrap_or_else(|cut| format!("{linktype} {cut}").trim_end().to_owned())
}

/// A frame of Linux' "cooked" capture.
fn sll(bytes: &[u8]) -> Option<String> {
    cooked(half(bytes, SLL_LEN - 2)?, bytes.get(SLL_LEN..)?)
}

/// A frame of its version 2, which names the interface and the direction.
fn sll2(bytes: &[u8]) -> Option<String> {
    let (interface, kind) = (word(bytes, 4)?, byte(bytes, 10)?);
    let way = match kind {
        0 => "In",
        1 => "B",
        2 => "M",
        3 => "P",
        4 => "Out",
        _ => "?",
    };
    let what = cooked(half(bytes, 0)?, bytes.get(SLL2_LEN..)?)?;
    Some(format!("ifindex {interface} {way} {what}"))
}

/// What is behind a "cooked" header: an EtherType, or the number of a frame without one.
fn cooked(protocol: u16, payload: &[u8]) -> Option<String> {
    /// `ETH_P_802_2`: a frame of IEEE 802.2.
    const LLC: u16 = 4;
    let (mut ether_type, mut payload) = (EtherType(protocol), payload);
    let mut tags = String::new();
    (ether_type, payload) = behind_tags(ether_type, payload, &mut tags);
    let what = match ether_type.0 {
        LLC => link::llc(payload, payload.len() as u16, DEPTH_MAX),
        _ => carried(ether_type, payload, DEPTH_MAX).or_else(|| link::control(ether_type, payload)),
    };
    let what = what.unwrap_or_else(|| {
        let (EtherType(number), len) = (ether_type, payload.len());
        let cut = cut_mark(ether_type, payload);
        format!("type {number:#06x}, length {len}{cut}")
    });
    Some(tags + &what)
}

/// The EtherType and the payload behind VLAN tags, which are added to `tags`.
fn behind_tags<'a>(
    mut ether_type: EtherType,
    mut payload: &'a [u8],
    tags: &mut String,
) -> (EtherType, &'a [u8]) {
    for _ in 0..DEPTH_MAX {
        let Some(tag) = ethernet::Tag::new(payload)
            .ok()
            .filter(|_| ether_type.is_tag())
        else {
            break;
        };
        *tags += &format!("vlan {} ", ethernet::TagRepr::parse(&tag).vlan);
        (ether_type, payload) = (tag.ether_type(), tag.payload());
    }
    (ether_type, payload)
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
    let mut tags = String::new();
    let (ether_type, payload) = behind_tags(frame.ether_type(), frame.payload(), &mut tags);
    let EtherType(number) = ether_type;
    let what = carried(ether_type, payload, depth).unwrap_or_else(|| {
        let (src, dst) = (frame.src(), frame.dst());
        let what = match number {
            // An IEEE 802.3 frame has a length there.
            0..0x600 => link::llc(payload, number, depth)
                .unwrap_or_else(|| format!("802.3, length {number}")),
            _ => link::control(ether_type, payload).unwrap_or_else(|| {
                let name = ether_type_name(number)
                    .filter(|_| !is_ip(number))
                    .map_or_else(String::new, |name| format!("{name} "));
                let (len, cut) = (payload.len(), cut_mark(ether_type, payload));
                format!("{name}type {number:#06x}, length {len}{cut}")
            }),
        };
        format!("{src} > {dst} {what}")
    });
    Some(tags + &what)
}

/// The summary of the content behind an EtherType that is carried across links; `None` if it is
/// another, or truncated.
fn carried(ether_type: EtherType, payload: &[u8], depth: usize) -> Option<String> {
    const RARP: EtherType = EtherType(0x8035);
    let deeper = depth.checked_sub(1)?;
    match ether_type {
        EtherType::ARP | RARP => arp::packet(payload),
        EtherType::IPV4 | EtherType::IPV6 => ip::packet(payload, deeper),
        // MPLS (RFC 3032).
        EtherType(0x8847 | 0x8848) => mpls::packet(payload, deeper),
        EtherType(0x8864) => ppp::session(payload, deeper),
        _ => None,
    }
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

/// Bytes in hexadecimal, as many as texts have characters at most.
fn hex(bytes: &[u8]) -> String {
    let bytes = bytes.iter().take(TEXT_MAX);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// The names of the bits that are set, with commas; "none" without one.
pub(crate) fn flag_names<T>(bits: T, names: &[(T, &str)]) -> String
where
    T: Copy + Default + PartialEq + BitAnd<Output = T>,
{
    let set = names.iter().filter(|(bit, _)| bits & *bit != T::default());
    let set: Vec<&str> = set.map(|(_, name)| *name).collect();
    if set.is_empty() {
        "none".to_owned()
    } else {
        set.join(", ")
    }
}

/// The letters of the bits that are set.
fn flag_letters<Bits: Into<u16> + Copy>(bits: Bits, letters: &[(Bits, &str)]) -> String {
    let is_set = |bit: Bits| bits.into() & bit.into() != 0;
    let set = letters.iter().filter(|(bit, _)| is_set(*bit));
    set.map(|(_, letter)| *letter).collect()
}

/// Text from a frame, cut to the limit, with all but printable ASCII escaped.
fn harmless(text: &[u8]) -> Cow<'_, str> {
    let text = &text[..text.len().min(TEXT_MAX)];
    match std::str::from_utf8(text) {
        Ok(plain) if text.iter().all(|byte| (b' '..=b'~').contains(byte)) => plain.into(),
        _ => text.escape_ascii().to_string().into(),
    }
}
