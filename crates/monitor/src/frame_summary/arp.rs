//! ARP (RFC 826), RARP (RFC 903) and InARP (RFC 2390) of IPv4 over Ethernet.

use super::{chunk, half};
use std::net::Ipv4Addr;
use weir_wire::ethernet::Address;

pub(super) fn packet(payload: &[u8]) -> Option<String> {
    let is_ours = half(payload, 2)? == 0x0800 && half(payload, 4)? == 0x0604;
    if !is_ours {
        return None;
    }
    let hardware = |at| Some(Address(chunk(payload, at)?));
    let ip = |at| Some(Ipv4Addr::from(chunk::<4>(payload, at)?));
    let (sender, sender_ip, target, target_ip) = (hardware(8)?, ip(14)?, hardware(18)?, ip(24)?);
    let what = match half(payload, 6)? {
        1 => {
            let known = match target.0 {
                [0, 0, 0, 0, 0, 0] => String::new(),
                _ => format!(" ({target})"),
            };
            format!("Request who-has {target_ip}{known} tell {sender_ip}")
        }
        2 => format!("Reply {sender_ip} is-at {sender}"),
        3 => format!("Reverse Request who-is {target} tell {sender}"),
        4 => format!("Reverse Reply {target} at {target_ip}"),
        8 => format!("Inverse Request who-is {target} tell {sender}"),
        9 => format!("Inverse Reply {sender} at {sender_ip}"),
        number => format!("operation {number} of {sender_ip}"),
    };
    Some(format!("ARP, {what}, length {}", payload.len()))
}
