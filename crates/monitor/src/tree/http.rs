//! HTTP/1.1 heads (RFC 9112).

use super::{Claim, Fields, Next, View, harmless};

pub(super) const VIEW: View = View {
    name: "HTTP",
    claims: &[
        Claim::Tcp(80),
        Claim::Tcp(8080),
        Claim::Tcp(8000),
        Claim::Udp(1900),
    ],
    looks_like: Some(looks_like),
    decode,
};

const METHODS: [&[u8]; 10] = [
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"CONNECT ",
    b"PATCH ",
    b"M-SEARCH ",
    b"NOTIFY ",
];
/// Largest number of header fields.
const LINES_MAX: usize = 100;

fn looks_like(payload: &[u8]) -> bool {
    payload.starts_with(b"HTTP/1.") || METHODS.iter().any(|method| payload.starts_with(method))
}

fn decode(fields: &mut Fields<'_>) -> Option<Next> {
    let bytes = fields.bytes();
    let mut at = 0;
    for number in 0..LINES_MAX {
        let rest = &bytes[at..];
        let Some(len) = rest.iter().position(|byte| *byte == b'\n') else {
            // The head goes on in another segment.
            fields.field(at..bytes.len(), "Beginning of a line", harmless(rest));
            return None;
        };
        let line = rest[..len].strip_suffix(b"\r").unwrap_or(&rest[..len]);
        let place = at..at + line.len();
        at += len + 1;
        if line.is_empty() {
            return Some(if at < bytes.len() {
                Next::Data(at)
            } else {
                Next::End
            });
        }
        if number == 0 {
            fields.summary(harmless(line));
            let name = if line.starts_with(b"HTTP/") {
                "Status line"
            } else {
                "Request line"
            };
            fields.field(place, name, harmless(line));
            continue;
        }
        let colon = line
            .iter()
            .position(|byte| *byte == b':')
            .unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default().trim_ascii();
        fields.field(place, harmless(&line[..colon]), harmless(value));
    }
    Some(Next::Data(at))
}

/// The value of `Host` in a request.
pub(super) fn host(payload: &[u8]) -> Option<String> {
    if !METHODS.iter().any(|method| payload.starts_with(method)) {
        return None;
    }
    let lines = payload.split(|byte| *byte == b'\n').skip(1).take(LINES_MAX);
    for line in lines {
        let line = line.trim_ascii();
        if line.is_empty() {
            return None;
        }
        if line.len() > 5 && line[..5].eq_ignore_ascii_case(b"host:") {
            return Some(harmless(line[5..].trim_ascii()));
        }
    }
    None
}
