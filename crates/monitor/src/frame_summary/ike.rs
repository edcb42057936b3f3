//! IKE (RFC 2408, RFC 7296), and what UDP's port 4500 carries (RFC 3948).

use super::{byte, chunk, flag_letters, half, hex, word};

/// A datagram of port 4500: IKE behind a marker, ESP, or a keepalive.
pub(super) fn nat_traversal(payload: &[u8]) -> Option<String> {
    if payload == [0xff] {
        return Some("NAT-T keepalive".to_owned());
    }
    match word(payload, 0)? {
        0 => {
            let message = payload.get(4..).and_then(message);
            Some(format!("NAT-T {}", message.as_deref().unwrap_or("IKE")))
        }
        spi => {
            let seq = word(payload, 4)?;
            let len = payload.len();
            Some(format!(
                "NAT-T ESP(spi={spi:#010x},seq={seq:#x}), length {len}"
            ))
        }
    }
}

/// A message's header.
pub(super) fn message(payload: &[u8]) -> Option<String> {
    const ENCRYPTED_V1: u8 = 0x01;
    const COMMIT_V1: u8 = 0x02;
    const INITIATOR_V2: u8 = 0x08;
    const VERSION_V2: u8 = 0x10;
    const RESPONSE_V2: u8 = 0x20;
    let spi = |at| Some(hex(&chunk::<8>(payload, at)?));
    let (initiator, responder) = (spi(0)?, spi(8)?);
    let (version, exchange, flags) = (byte(payload, 17)?, byte(payload, 18)?, byte(payload, 19)?);
    let (id, len) = (word(payload, 20)?, word(payload, 24)?);
    let name = match exchange {
        1 => "Base".to_owned(),
        2 => "Main Mode".to_owned(),
        3 => "Authentication Only".to_owned(),
        4 => "Aggressive".to_owned(),
        5 => "Informational".to_owned(),
        6 => "Transaction".to_owned(),
        32 => "Quick Mode".to_owned(),
        33 => "New Group Mode".to_owned(),
        34 => "IKE_SA_INIT".to_owned(),
        35 => "IKE_AUTH".to_owned(),
        36 => "CREATE_CHILD_SA".to_owned(),
        37 => "INFORMATIONAL".to_owned(),
        38 => "IKE_SESSION_RESUME".to_owned(),
        43 => "IKE_INTERMEDIATE".to_owned(),
        44 => "IKE_FOLLOWUP_KE".to_owned(),
        number => format!("exchange {number}"),
    };
    let text = match version >> 4 {
        1 => {
            let phase = if id == 0 { "phase 1" } else { "phase 2" };
            let marks = flag_letters(
                flags,
                &[(ENCRYPTED_V1, " encrypted"), (COMMIT_V1, " commit")],
            );
            // The initiator's first message has no cookie of the responder.
            let side = if responder.bytes().all(|digit| digit == b'0') {
                " by initiator"
            } else {
                ""
            };
            format!("IKEv1 {phase} {name}{side}{marks}, msgid {id:#010x}")
        }
        2 => {
            let kind = if flags & RESPONSE_V2 == 0 {
                "request"
            } else {
                "response"
            };
            let side = if flags & INITIATOR_V2 == 0 {
                "responder"
            } else {
                "initiator"
            };
            let higher = if flags & VERSION_V2 == 0 {
                ""
            } else {
                ", higher version"
            };
            format!("IKEv2 {name} {kind} by {side}{higher}, msgid {id}")
        }
        _ => return None,
    };
    Some(format!(
        "{text}, spi {initiator} {responder}, length {len}{}",
        notify(payload, version, flags)
    ))
}

/// The type of a clear-text Notify payload that comes first.
fn notify(payload: &[u8], version: u8, flags: u8) -> String {
    let kind = match (version >> 4, byte(payload, 16)) {
        (1, Some(11)) if flags & 1 == 0 => half(payload, 28 + 10),
        (2, Some(41)) => half(payload, 28 + 6),
        _ => None,
    };
    kind.map_or_else(String::new, |kind| format!(", notify {kind}"))
}
