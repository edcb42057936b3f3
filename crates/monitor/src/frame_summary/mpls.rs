//! MPLS label stacks (RFC 3032), and LDP (RFC 5036).

use super::{DEPTH_MAX, byte, chunk, half, ip, word};
use std::net::Ipv4Addr;

/// A label stack, and the packet below its bottom.
pub(super) fn packet(payload: &[u8], depth: usize) -> Option<String> {
    let mut text = String::from("MPLS");
    for (number, entry) in payload.chunks_exact(4).take(DEPTH_MAX).enumerate() {
        let entry = word(entry, 0)?;
        let (label, class, ttl) = (entry >> 12, entry >> 9 & 7, entry & 0xff);
        let is_bottom = entry & 0x100 != 0;
        let bottom = if is_bottom { ", [S]" } else { "" };
        text += &format!(" (label {label}, tc {class}{bottom}, ttl {ttl})");
        if is_bottom {
            let inner = ip::packet(payload.get(4 * (number + 1)..)?, depth);
            return Some(match inner {
                Some(inner) => format!("{text} {inner}"),
                None => text,
            });
        }
    }
    Some(text)
}

/// The first PDU of LDP, with the names of its messages.
pub(super) fn ldp(payload: &[u8]) -> Option<String> {
    /// Largest number of messages shown.
    const MESSAGES_MAX: usize = 16;
    if half(payload, 0)? != 1 {
        return None;
    }
    let len = usize::from(half(payload, 2)?);
    let router = Ipv4Addr::from(chunk::<4>(payload, 4)?);
    let space = half(payload, 8)?;
    let mut text = format!("LDP, Label-Space-ID {router}:{space}, pdu-length {len}");
    let mut rest = payload.get(10..payload.len().min(4 + len))?;
    for _ in 0..MESSAGES_MAX {
        let (Some(kind), Some(len)) = (half(rest, 0), half(rest, 2)) else {
            break;
        };
        // The most significant bit says what is done with an unknown type.
        text += &match kind & 0x7fff {
            0x0001 => format!(", Notification{}", status(rest)),
            0x0100 => ", Hello".to_owned(),
            0x0200 => ", Initialization".to_owned(),
            0x0201 => ", Keepalive".to_owned(),
            0x0300 => ", Address".to_owned(),
            0x0301 => ", Address Withdraw".to_owned(),
            0x0400 => ", Label Mapping".to_owned(),
            0x0401 => ", Label Request".to_owned(),
            0x0402 => ", Label Withdraw".to_owned(),
            0x0403 => ", Label Release".to_owned(),
            0x0404 => ", Label Abort".to_owned(),
            kind => format!(", message {kind:#06x}"),
        };
        let Some(behind) = rest.get(4 + usize::from(len)..) else {
            break;
        };
        rest = behind;
    }
    Some(text)
}

/// The code of a Notification's Status TLV.
fn status(message: &[u8]) -> String {
    let code = || {
        let is_status = half(message, 8)? & 0x3fff == 0x0300;
        let code = word(message, 12).filter(|_| is_status)?;
        let fatal = if byte(message, 12)? & 0x80 != 0 {
            " fatal"
        } else {
            ""
        };
        Some(format!("{fatal} status {:#x}", code & 0x3fff_ffff))
    };
    code().unwrap_or_default()
}
