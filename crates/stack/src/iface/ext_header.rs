//! IPv6 extension headers (RFC 8200 §4).

use super::{DropReason, Problem};
use weir_wire::{Protocol, ipv6};

/// Largest number of extension headers in a packet (RFC 8504 §5.3 permits a
/// limit).
const HEADERS_MAX: usize = 8;

/// The result of parsing the extension headers.
pub(crate) struct Found<'a> {
    pub(crate) protocol: Protocol,
    /// The fragment header if the packet is a fragment; `payload` is then the
    /// fragment's data.
    pub(crate) fragment: Option<ipv6::FragmentRepr>,
    pub(crate) payload: &'a [u8],
    /// Whether there was a fragment header for a whole datagram (atomic
    /// fragment).
    pub(crate) atomic: bool,
    /// Whether the router alert option was present, with the value for
    /// multicast membership (RFC 2711 §2.1).
    pub(crate) alert: bool,
}

/// Why a packet is dropped, and the ICMP error for its sender.
pub(crate) struct Refused {
    pub(crate) reason: DropReason,
    pub(crate) problem: Option<Problem>,
}

fn refused(reason: DropReason, problem: Option<Problem>) -> Refused {
    Refused { reason, problem }
}

fn malformed() -> Refused {
    refused(DropReason::Malformed, None)
}

/// Parses extension headers from the fixed header's next header on, up to the
/// transport header or a fragment. An atomic fragment's header (RFC 6946) is
/// skipped like any other.
pub(crate) fn walk(first: Protocol, after: &[u8]) -> Result<Found<'_>, Refused> {
    let (mut protocol, mut bytes) = (first, after);
    // Offset of the field with the present header's number, for ICMP errors.
    let mut named_at = 6;
    let (mut atomic, mut alert) = (false, false);
    for index in 0..=HEADERS_MAX {
        let at = ipv6::Repr::LEN + after.len() - bytes.len();
        let (next, len) = match protocol {
            Protocol::IPV6_HOP_BY_HOP if index > 0 => {
                return Err(refused(
                    DropReason::ExtensionRefused,
                    Some(Problem::NextHeader(named_at)),
                ));
            }
            Protocol::IPV6_HOP_BY_HOP | Protocol::IPV6_DESTINATION => {
                let len = length(bytes)?;
                let alerts = options(&bytes[2..len], at + 2)?;
                alert |= alerts && protocol == Protocol::IPV6_HOP_BY_HOP;
                (bytes[0], len)
            }
            Protocol::IPV6_ROUTING => {
                let len = length(bytes)?;
                // A host is not a router: a routing header must have no
                // segments left (RFC 8200 §4.4, RFC 5095).
                if bytes[3] > 0 {
                    let problem = Problem::Header(at as u32 + 2);
                    return Err(refused(DropReason::ExtensionRefused, Some(problem)));
                }
                (bytes[0], len)
            }
            Protocol::IPV6_FRAGMENT => {
                let fragment = ipv6::FragmentRepr::parse(bytes).map_err(|_| malformed())?;
                if fragment.more || fragment.offset > 0 {
                    return Ok(Found {
                        protocol,
                        fragment: Some(fragment),
                        payload: &bytes[ipv6::FragmentRepr::LEN..],
                        atomic,
                        alert,
                    });
                }
                atomic = true;
                (fragment.next_header.0, ipv6::FragmentRepr::LEN)
            }
            Protocol::IPV6_NO_NEXT_HEADER => {
                return Err(refused(DropReason::ProtocolUnknown, None));
            }
            Protocol::TCP | Protocol::UDP | Protocol::ICMPV6 => {
                return Ok(Found {
                    protocol,
                    fragment: None,
                    payload: bytes,
                    atomic,
                    alert,
                });
            }
            _ => {
                let problem = Problem::NextHeader(named_at);
                return Err(refused(DropReason::ProtocolUnknown, Some(problem)));
            }
        };
        (protocol, bytes, named_at) = (Protocol(next), &bytes[len..], at as u32);
    }
    Err(refused(DropReason::ExtensionRefused, None))
}

/// A header's length in bytes, which are present.
fn length(bytes: &[u8]) -> Result<usize, Refused> {
    let len = 8 + usize::from(*bytes.get(1).ok_or_else(malformed)?) * 8;
    if len <= bytes.len() {
        Ok(len)
    } else {
        Err(malformed())
    }
}

/// Parses options. The two high bits of an unknown option's type determine its
/// treatment (RFC 8200 §4.2); `start` is the options' offset in the packet.
/// Returns whether there is a router alert for multicast membership.
fn options(bytes: &[u8], start: usize) -> Result<bool, Refused> {
    const ALERT_OF_GROUPS: [u8; 4] = [5, 2, 0, 0];
    let mut alerts = false;
    let mut rest = bytes;
    while let [kind, ..] = *rest {
        let len = match *rest {
            [0, ..] => 1,
            [_, len, ..] => 2 + usize::from(len),
            _ => return Err(malformed()),
        };
        if len > rest.len() {
            return Err(malformed());
        }
        alerts |= rest[..len] == ALERT_OF_GROUPS;
        let at = (start + bytes.len() - rest.len()) as u32;
        match (kind, kind >> 6) {
            (0 | 1, _) | (_, 0) => {}
            (_, 1) => return Err(refused(DropReason::ExtensionRefused, None)),
            (_, action) => {
                let problem = Problem::Option {
                    at,
                    even_to_groups: action == 2,
                };
                return Err(refused(DropReason::ExtensionRefused, Some(problem)));
            }
        }
        rest = &rest[len..];
    }
    Ok(alerts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(first: u8, after: &[u8]) -> (DropReason, Option<Problem>) {
        let refused = walk(Protocol(first), after).err().expect("refused");
        (refused.reason, refused.problem)
    }

    #[test]
    fn headers_are_walked_over() {
        // Hop-by-hop options with PadN, destination options with Pad1 and a
        // skippable option, a routing header without segments left, an atomic
        // fragment.
        let headers = [
            &[60, 0, 1, 4, 0, 0, 0, 0][..],
            &[43, 0, 0, 0x1e, 2, 9, 9, 0],
            &[44, 0, 0, 0, 0, 0, 0, 0],
            &[17, 0, 0, 0, 0, 0, 0, 7],
            b"datagram",
        ]
        .concat();
        let found = walk(Protocol(0), &headers).ok().unwrap();
        assert_eq!(
            (found.protocol, found.payload),
            (Protocol::UDP, &b"datagram"[..])
        );
        assert!(found.fragment.is_none() && found.atomic && !found.alert);
        let alert = [58, 0, 5, 2, 0, 0, 1, 0];
        let found = walk(Protocol(0), &alert).ok().unwrap();
        assert!(found.alert && !found.atomic);
        // Ignored outside hop-by-hop options, or with another value.
        let other = [58, 0, 5, 2, 0, 1, 1, 0];
        assert!(!walk(Protocol(60), &alert).ok().unwrap().alert);
        assert!(!walk(Protocol(0), &other).ok().unwrap().alert);
        let found = walk(Protocol(44), &[6, 0, 0, 9, 0, 0, 0, 7, 1, 2])
            .ok()
            .unwrap();
        let fragment = found.fragment.unwrap();
        assert_eq!(
            (fragment.offset, fragment.more, found.payload),
            (8, true, &[1, 2][..])
        );
    }

    #[test]
    fn what_may_not_be_passed_over_is_refused() {
        use DropReason::{ExtensionRefused, Malformed, ProtocolUnknown};
        let option = |kind: u8| [17, 0, kind, 4, 0, 0, 0, 0];
        let problem = |even_to_groups| {
            Some(Problem::Option {
                at: 42,
                even_to_groups,
            })
        };
        assert_eq!(reason(60, &option(0x40)), (ExtensionRefused, None));
        assert_eq!(reason(60, &option(0x80)), (ExtensionRefused, problem(true)));
        assert_eq!(
            reason(60, &option(0xc0)),
            (ExtensionRefused, problem(false))
        );
        assert_eq!(reason(60, &[17, 0, 1, 9, 0, 0, 0, 0]), (Malformed, None));
        assert_eq!(reason(60, &[17, 1, 1, 4, 0, 0, 0, 0]), (Malformed, None));
        assert_eq!(
            reason(43, &[17, 0, 0, 1, 0, 0, 0, 0]),
            (ExtensionRefused, Some(Problem::Header(42)))
        );
        assert_eq!(reason(44, &[17, 0, 0]), (Malformed, None));
        assert_eq!(reason(59, &[]), (ProtocolUnknown, None));
        assert_eq!(
            reason(200, &[]),
            (ProtocolUnknown, Some(Problem::NextHeader(6)))
        );
        let late = [&[0, 0, 1, 4, 0, 0, 0, 0][..], &option(1)].concat();
        assert_eq!(
            reason(60, &late),
            (ExtensionRefused, Some(Problem::NextHeader(40)))
        );
    }

    #[test]
    fn a_chain_has_an_end() {
        let endless = [60, 0, 1, 4, 0, 0, 0, 0].repeat(1000);
        assert_eq!(reason(60, &endless), (DropReason::ExtensionRefused, None));
    }
}
