//! A translator's log as IPFIX (RFC 7011) with the records of RFC 8158.
//!
//! | line | record |
//! |---|---|
//! | `block-allocated`, `block-released` | natEvent 16, 17: observationTimeMilliseconds, natEvent, sourceIPv4Address, postNATSourceIPv4Address, portRangeStart, portRangeEnd (RFC 8158 §5.6.11) |
//! | `forward` | natEvent 8, NAT44 BIB create: observationTimeMilliseconds, natEvent, sourceIPv4Address, postNATSourceIPv4Address, protocolIdentifier, sourceTransportPort, postNAPTSourceTransportPort (RFC 8158 §5.6.5) |
//! | `start` | none: there is no such event |

use std::net::Ipv4Addr;
use weir_chain::nat::log::{Kind, Line};
use weir_wire::Protocol;

/// The protocol's version (RFC 7011 §3.1).
const VERSION: u16 = 10;
/// Bytes of a message's header.
const HEADER_LEN: usize = 16;
/// The Observation Domain: there is one.
const DOMAIN: u32 = 1;
/// The Set ID of templates.
const TEMPLATE_SET: u16 = 2;
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

/// Values of natEvent (RFC 8158 §4.3).
mod nat_event {
    pub(super) const BIB_CREATE: u8 = 8;
    pub(super) const BLOCK_ALLOCATED: u8 = 16;
    pub(super) const BLOCK_RELEASED: u8 = 17;
}

/// Makes messages of lines, one of each. A message has both templates: datagrams are lost, and a
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
        let mut message = Vec::with_capacity(128);
        message.extend(VERSION.to_be_bytes());
        message.extend([0; 2]);
        message.extend(export_s.to_be_bytes());
        message.extend(self.sequence.to_be_bytes());
        message.extend(DOMAIN.to_be_bytes());
        debug_assert_eq!(message.len(), HEADER_LEN);
        let mut templates = Vec::new();
        for (number, fields) in [BLOCK, FORWARD] {
            templates.extend(number.to_be_bytes());
            templates.extend((fields.len() as u16).to_be_bytes());
            for (element, len) in fields {
                templates.extend([element.to_be_bytes(), len.to_be_bytes()].concat());
            }
        }
        for (set, content) in [(TEMPLATE_SET, templates), (template, record)] {
            message.extend(set.to_be_bytes());
            message.extend((content.len() as u16 + 4).to_be_bytes());
            message.extend(content);
        }
        let len = message.len() as u16;
        message[2..4].copy_from_slice(&len.to_be_bytes());
        self.sequence = self.sequence.wrapping_add(1);
        Some(message)
    }
}

/// The record of a line, and its template.
fn record(line: &Line) -> Option<(u16, Vec<u8>)> {
    let mut record = Vec::with_capacity(24);
    let mut begin = |event: u8, inside: Ipv4Addr, outside: Ipv4Addr| {
        record.extend((line.time_ns / 1_000_000).to_be_bytes());
        record.push(event);
        record.extend(inside.octets());
        record.extend(outside.octets());
    };
    let (first, last) = (line.first?, line.last?);
    let event = match line.event {
        Kind::Start => return None,
        Kind::BlockAllocated => nat_event::BLOCK_ALLOCATED,
        Kind::BlockReleased => nat_event::BLOCK_RELEASED,
        Kind::Forward => nat_event::BIB_CREATE,
    };
    begin(event, line.subscriber?, line.pool?);
    if line.event == Kind::Forward {
        let protocol = match line.transport.as_deref()? {
            "tcp" => Protocol::TCP,
            _ => Protocol::UDP,
        };
        record.push(protocol.0);
        record.extend(line.subscriber_port?.to_be_bytes());
        record.extend(first.to_be_bytes());
        return Some((FORWARD.0, record));
    }
    record.extend(first.to_be_bytes());
    record.extend(last.to_be_bytes());
    Some((BLOCK.0, record))
}
