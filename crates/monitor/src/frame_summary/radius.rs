//! RADIUS (RFC 2865, RFC 2866, RFC 5176).

use super::{byte, half, harmless};

/// Code, identifier and length, with the user's name and the kind of accounting.
pub(super) fn packet(payload: &[u8]) -> Option<String> {
    const USER_NAME: u8 = 1;
    const ACCT_STATUS_TYPE: u8 = 40;
    /// Largest number of attributes that are looked at.
    const ATTRIBUTES_MAX: usize = 128;
    let (code, id, len) = (byte(payload, 0)?, byte(payload, 1)?, half(payload, 2)?);
    let name = code_name(code);
    let mut text = format!("RADIUS {name} ({code}), id {id:#04x}, length {len}");
    let (mut user, mut status) = (None, None);
    let mut rest = payload
        .get(20..payload.len().min(usize::from(len)))
        .unwrap_or_default();
    for _ in 0..ATTRIBUTES_MAX {
        let (Some(kind), Some(len)) = (byte(rest, 0), byte(rest, 1)) else {
            break;
        };
        let Some(value) = rest.get(2..usize::from(len)) else {
            break;
        };
        match (kind, value) {
            (USER_NAME, name) => user = Some(name),
            (ACCT_STATUS_TYPE, [0, 0, 0, number]) => status = Some(*number),
            _ => {}
        }
        rest = &rest[usize::from(len)..];
    }
    if let Some(status) = status {
        text += &match status {
            1 => ", Start".to_owned(),
            2 => ", Stop".to_owned(),
            3 => ", Interim-Update".to_owned(),
            7 => ", Accounting-On".to_owned(),
            8 => ", Accounting-Off".to_owned(),
            number => format!(", status {number}"),
        };
    }
    if let Some(user) = user {
        text += &format!(", user {}", harmless(user));
    }
    Some(text)
}

fn code_name(code: u8) -> &'static str {
    match code {
        1 => "Access-Request",
        2 => "Access-Accept",
        3 => "Access-Reject",
        4 => "Accounting-Request",
        5 => "Accounting-Response",
        11 => "Access-Challenge",
        12 => "Status-Server",
        13 => "Status-Client",
        40 => "Disconnect-Request",
        41 => "Disconnect-ACK",
        42 => "Disconnect-NAK",
        43 => "CoA-Request",
        44 => "CoA-ACK",
        45 => "CoA-NAK",
        _ => "Unknown Command",
    }
}
