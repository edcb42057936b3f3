//! TLS records (RFC 8446 section 5), and the ClientHello in them.

use super::fields::named;
use super::{Claim, Fields, Next, View, harmless};

pub(super) const VIEW: View = View {
    name: "TLS",
    claims: &[
        Claim::Tcp(443),
        Claim::Tcp(8443),
        Claim::Tcp(853),
        Claim::Tcp(993),
    ],
    looks_like: Some(looks_like),
    decode,
};

/// Bytes of a record's header.
const RECORD_LEN: usize = 5;
/// Largest number of records that are shown of one segment.
const RECORDS_MAX: usize = 32;

fn looks_like(payload: &[u8]) -> bool {
    matches!(payload, [20..=24, 3, 0..=4, high, ..] if *high <= 0x48)
}

fn decode(fields: &mut Fields<'_>) -> Option<Next> {
    let mut at = 0;
    for number in 0..RECORDS_MAX {
        if at >= fields.bytes().len() {
            return Some(Next::End);
        }
        if !looks_like(&fields.bytes()[at..]) {
            return Some(Next::Data(at.max(1)));
        }
        let (kind, version, len) = (
            fields.byte(at)?,
            fields.half(at + 1)?,
            usize::from(fields.half(at + 3)?),
        );
        let name = match kind {
            20 => "change cipher spec",
            21 => "alert",
            22 => "handshake",
            23 => "application data",
            _ => "heartbeat",
        };
        if number == 0 {
            fields.summary(format!("{name}, {len} bytes"));
        }
        fields.field(
            at..at + RECORD_LEN + len,
            "Record",
            format!("{name}, {len} bytes"),
        );
        let body = at + RECORD_LEN;
        fields.under(|fields| {
            fields.field(at + 1..at + 3, "Version", version_name(version));
            match kind {
                22 => handshake(fields, body),
                // Encrypted, it has more than two bytes.
                21 if len == 2 => {
                    fields.field(body..body + 2, "Alert", fields.byte(body + 1)?);
                    Some(())
                }
                _ => Some(()),
            }
        })?;
        at = body + len;
    }
    Some(Next::End)
}

fn handshake(fields: &mut Fields<'_>, at: usize) -> Option<()> {
    let kind = fields.byte(at)?;
    let name = match kind {
        0 => "HelloRequest",
        1 => "ClientHello",
        2 => "ServerHello",
        4 => "NewSessionTicket",
        8 => "EncryptedExtensions",
        11 => "Certificate",
        12 => "ServerKeyExchange",
        13 => "CertificateRequest",
        14 => "ServerHelloDone",
        15 => "CertificateVerify",
        16 => "ClientKeyExchange",
        20 => "Finished",
        // After the change of the cipher the message is encrypted.
        _ => return Some(()),
    };
    fields.summary(name);
    fields.field(at..at + 4, "Handshake", named(kind, Some(name)));
    if !matches!(kind, 1 | 2) {
        return Some(());
    }
    fields.under(|fields| {
        let mut name = None;
        let extensions = fixed_part(fields, at + 4, kind == 1)?;
        let end = extensions + 2 + usize::from(fields.half(extensions)?);
        let mut at = extensions + 2;
        while at + 4 <= end {
            let (number, len) = (fields.half(at)?, usize::from(fields.half(at + 2)?));
            extension(fields, number, at + 4, len, &mut name)?;
            at += 4 + len;
        }
        if let Some(name) = name {
            fields.summary(format!("ClientHello for {name}"));
        }
        Some(())
    })
}

/// Reads the part before the extensions of a hello; returns where these begin.
fn fixed_part(fields: &mut Fields<'_>, at: usize, is_client: bool) -> Option<usize> {
    fields.field(at..at + 2, "Legacy version", version_name(fields.half(at)?));
    fields.field(
        at + 2..at + 34,
        "Random",
        harmless_hex(fields.slice(at + 2, 32)?),
    );
    let session = usize::from(fields.byte(at + 34)?);
    let at = at + 35 + session;
    if !is_client {
        fields.field(
            at..at + 2,
            "Cipher suite",
            format!("{:#06x}", fields.half(at)?),
        );
        return Some(at + 3);
    }
    let ciphers = usize::from(fields.half(at)?);
    fields.field(at..at + 2 + ciphers, "Cipher suites", ciphers / 2);
    let at = at + 2 + ciphers;
    Some(at + 1 + usize::from(fields.byte(at)?))
}

fn extension(
    fields: &mut Fields<'_>,
    number: u16,
    at: usize,
    len: usize,
    name: &mut Option<String>,
) -> Option<()> {
    let place = at.saturating_sub(4)..at + len;
    match number {
        // RFC 6066: a list of names, of which a host name is of type 0.
        0 if len >= 5 => {
            let text = harmless(fields.slice(at + 5, usize::from(fields.half(at + 3)?))?);
            fields.field(place, "Server name", &text);
            *name = Some(text);
        }
        16 => fields.field(place, "ALPN", alpn(fields, at, len)?.join(", ")),
        43 => {
            let (first, step) = if len == 2 { (at, 2) } else { (at + 1, 2) };
            let numbers = (first..at + len).step_by(step).take(32);
            let versions = numbers.filter_map(|at| fields.half(at)).map(version_name);
            let versions: Vec<String> = versions.collect();
            fields.field(place, "Supported versions", versions.join(", "));
        }
        _ => fields.field(place, format!("Extension {number}"), format!("{len} bytes")),
    }
    Some(())
}

fn alpn(fields: &Fields<'_>, at: usize, len: usize) -> Option<Vec<String>> {
    let (mut names, mut at, end) = (Vec::new(), at + 2, at + len);
    while at < end && names.len() < 32 {
        let len = usize::from(fields.byte(at)?);
        names.push(harmless(fields.slice(at + 1, len)?));
        at += 1 + len;
    }
    Some(names)
}

fn version_name(version: u16) -> String {
    match version {
        0x300 => "SSL 3.0".to_owned(),
        0x301 => "TLS 1.0".to_owned(),
        0x302 => "TLS 1.1".to_owned(),
        0x303 => "TLS 1.2".to_owned(),
        0x304 => "TLS 1.3".to_owned(),
        other => format!("{other:#06x}"),
    }
}

fn harmless_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name in a ClientHello's extension `server_name`; `None` if it is not a ClientHello or is cut
/// before the name.
pub(super) fn server_name(payload: &[u8]) -> Option<String> {
    let half = |at: usize| {
        let bytes = payload.get(at..)?.first_chunk()?;
        Some(usize::from(u16::from_be_bytes(*bytes)))
    };
    let byte = |at: usize| payload.get(at).map(|byte| usize::from(*byte));
    if !looks_like(payload) || byte(RECORD_LEN)? != 1 {
        return None;
    }
    let session = RECORD_LEN + 4 + 34;
    let ciphers = session + 1 + byte(session)?;
    let methods = ciphers + 2 + half(ciphers)?;
    let extensions = methods + 1 + byte(methods)?;
    let end = extensions + 2 + half(extensions)?;
    let mut at = extensions + 2;
    while at + 4 <= end {
        let len = half(at + 2)?;
        if half(at)? == 0 {
            let name = payload.get(at + 9..at + 9 + half(at + 7)?)?;
            return (!name.is_empty()).then(|| harmless(name));
        }
        at += 4 + len;
    }
    None
}
