//! A translator's log as IPFIX (RFC 7011) with the records of RFC 8158.
//!
//! | line | record |
//! |---|---|
//! | `block-allocated`, `block-released` | natEvent 16, 17: observationTimeMilliseconds, natEvent, sourceIPv4Address, postNATSourceIPv4Address, portRangeStart, portRangeEnd (template "Port block allocation and de-allocation") |
//! | `forward` | natEvent 8, NAT44 BIB create: observationTimeMilliseconds, natEvent, sourceIPv4Address, postNATSourceIPv4Address, protocolIdentifier, sourceTransportPort, postNAPTSourceTransportPort (template "NAT44 BIB entry") |
//! | `start` | none: there is no such event |
//!
//! Of a NAT64 the subscriber is sourceIPv6Address, of a network its first address, with
//! sourceIPv6PrefixLength; a forward is natEvent 10, NAT64 BIB create.

use std::net::IpAddr;
use weir_chain::nat::log::{Kind, Line};
use weir_wire::Protocol;
use weir_wire::ipfix::Message;

/// The Observation Domain: there is one.
const DOMAIN: u32 = 1;
/// The template of blocks: elements and their lengths.
const BLOCK: (u16, &[(u16, u16)]) = (
    256,
    &[(323, 8), (230, 1), (8, 4), (225, 4), (361, 2), (362, 2)],
);
/// The template of forwards.
const FORWARD: (u16, &[(u16, u16)]) = (
    257,
    &[
        (323, 8),
        (230, 1),
        (8, 4),
        (225, 4),
        (4, 1),
        (7, 2),
        (227, 2),
    ],
);

/// As [`BLOCK`], of a subscriber with IPv6.
const BLOCK_V6: (u16, &[(u16, u16)]) = (
    258,
    &[
        (323, 8),
        (230, 1),
        (27, 16),
        (29, 1),
        (225, 4),
        (361, 2),
        (362, 2),
    ],
);
/// As [`FORWARD`], to IPv6.
const FORWARD_V6: (u16, &[(u16, u16)]) = (
    259,
    &[
        (323, 8),
        (230, 1),
        (27, 16),
        (29, 1),
        (225, 4),
        (4, 1),
        (7, 2),
        (227, 2),
    ],
);

/// Values of natEvent (RFC 8158).
mod nat_event {
    pub(super) const BIB_CREATE: u8 = 8;
    pub(super) const BIB64_CREATE: u8 = 10;
    pub(super) const BLOCK_ALLOCATED: u8 = 16;
    pub(super) const BLOCK_RELEASED: u8 = 17;
}

/// Makes messages of lines, one of each. A message has all templates: datagrams are lost, and a
/// collector may begin late.
#[derive(Default)]
pub(super) struct Encoder {
    /// Data Records so far (RFC 7011 §3.1, Sequence Number).
    sequence: u32,
}

impl Encoder {
    /// The message of a line; `None` if it has no record.
    pub(super) fn message(&mut self, line: &str, export_s: u32) -> Option<Vec<u8>> {
        let line: Line = serde_json::from_str(line).ok()?;
        let (template, record) = record(&line)?;
        let mut message = Message::default();
        for (number, fields) in [BLOCK, FORWARD, BLOCK_V6, FORWARD_V6] {
            message.template(number, fields.iter().copied());
        }
        message.record(template, &record);
        let message = message.finish(export_s, self.sequence, DOMAIN).to_vec();
        self.sequence = self.sequence.wrapping_add(1);
        Some(message)
    }
}

/// The record of a line, and its template.
fn record(line: &Line) -> Option<(u16, Vec<u8>)> {
    // A start has none.
    let subscriber = line.subscriber?;
    let is_v6 = subscriber.address.is_ipv6();
    let block = if is_v6 { BLOCK_V6.0 } else { BLOCK.0 };
    let (template, event) = match line.event {
        Kind::Start => return None,
        Kind::BlockAllocated => (block, nat_event::BLOCK_ALLOCATED),
        Kind::BlockReleased => (block, nat_event::BLOCK_RELEASED),
        Kind::Forward if is_v6 => (FORWARD_V6.0, nat_event::BIB64_CREATE),
        Kind::Forward => (FORWARD.0, nat_event::BIB_CREATE),
    };
    let mut record = Vec::with_capacity(40);
    record.extend((line.time_ns / 1_000_000).to_be_bytes());
    record.push(event);
    match subscriber.address {
        IpAddr::V4(address) => record.extend(address.octets()),
        IpAddr::V6(address) => {
            record.extend(address.octets());
            record.push(subscriber.len.unwrap_or(128));
        }
    }
    record.extend(line.pool?.octets());
    if line.event == Kind::Forward {
        let protocol = match line.transport.as_deref()? {
            "tcp" => Protocol::TCP,
            _ => Protocol::UDP,
        };
        record.push(protocol.0);
        record.extend(line.subscriber_port?.to_be_bytes());
        record.extend(line.first?.to_be_bytes());
    } else {
        record.extend(line.first?.to_be_bytes());
        record.extend(line.last?.to_be_bytes());
    }
    Some((template, record))
}
