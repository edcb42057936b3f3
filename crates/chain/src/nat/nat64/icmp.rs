//! ICMP errors in the other version of IP (RFC 7915 §4.2, §5.2).

use std::ops::Range;
use weir_wire::icmp::Repr;

/// Smallest MTU of IPv6, in bytes (RFC 8200 §5).
pub(super) const MTU_MIN: u32 = 1280;

/// Bytes by which a header of IPv6 exceeds one of IPv4.
const LONGER: u32 = 20;

/// Length of a fragment header, in bytes.
const FRAGMENT: u32 = 8;

/// Longest error of IPv4 (RFC 1812 §4.3.2.3) and of IPv6 (RFC 4443 §2.4), in bytes.
pub(super) const ERROR_V4_MAX: usize = 576;
pub(super) const ERROR_V6_MAX: usize = 1280;

/// Usual MTUs, in bytes (RFC 1191 §7.1), that IPv6 can have.
const PLATEAUS: [u32; 7] = [65_535, 32_000, 17_914, 8166, 4352, 2002, 1492];

/// Fields of an IPv4 header, and those of an IPv6 header that correspond (RFC 7915, figures 3 and 6).
const FIELDS: [[Range<u32>; 2]; 7] = [
    [0..1, 0..1],
    [1..2, 1..2],
    [2..4, 4..6],
    [8..9, 7..8],
    [9..10, 6..7],
    [12..16, 8..24],
    [16..20, 24..40],
];

/// The begin of the field that corresponds to the one at an offset, of the version with the number `from`
/// in [`FIELDS`]; `None` without a counterpart.
fn pointer(at: u32, from: usize) -> Option<u32> {
    let mut fields = FIELDS.iter();
    let field = fields.find(|field| field[from].contains(&at));
    field.map(|field| field[1 - from].start)
}

/// Whether a type of ICMPv6 is an error's.
pub(super) fn is_error_v6(kind: u8) -> bool {
    kind < 128
}

/// An error of ICMPv6 in ICMP; `None` if it has no counterpart. `has_fragment` says that the packet
/// that it quotes has a fragment header: IPv4 has none, so its packets must be shorter by that, too.
pub(super) fn to_v4(error: Repr, has_fragment: bool) -> Option<Repr> {
    let Repr { kind, code, rest } = error;
    let (kind, code, rest) = match (kind, code) {
        // No route, beyond scope, address unreachable: host unreachable.
        (1, 0 | 2 | 3) => (3, 1, 0),
        (1, 1) => (3, 10, 0),
        (1, 4) => (3, 3, 0),
        (2, _) => (3, 4, mtu_to_v4(rest, has_fragment)),
        (3, 0 | 1) => (11, code, 0),
        (4, 0) => (12, 0, pointer(rest, 1)? << 24),
        // An unknown next header: protocol unreachable.
        (4, 1) => (3, 2, 0),
        _ => return None,
    };
    Some(Repr { kind, code, rest })
}

/// An error of ICMP in ICMPv6; `None` if it has no counterpart. `quoted_len` is the total length of
/// the packet that it quotes.
pub(super) fn to_v6(error: Repr, quoted_len: usize) -> Option<Repr> {
    let Repr { kind, code, rest } = error;
    let (kind, code, rest) = match (kind, code) {
        (3, 0 | 1 | 5..=8 | 11 | 12) => (1, 0, 0),
        // Protocol unreachable: an unknown next header.
        (3, 2) => (4, 1, 6),
        (3, 3) => (1, 4, 0),
        (3, 4) => (2, 0, mtu_to_v6(rest & 0xffff, quoted_len)),
        (3, 9 | 10 | 13 | 15) => (1, 1, 0),
        (11, 0 | 1) => (3, code, 0),
        (12, 0 | 2) => (4, 0, pointer(rest >> 24, 0)?),
        _ => return None,
    };
    Some(Repr { kind, code, rest })
}

/// The MTU for packets of IPv4, which is at least 68 bytes (RFC 791 §3.2).
fn mtu_to_v4(stated: u32, has_fragment: bool) -> u32 {
    let headers = LONGER + if has_fragment { FRAGMENT } else { 0 };
    stated.saturating_sub(headers).clamp(68, 0xffff)
}

/// The MTU for packets of IPv6. A fragment of IPv4 may be longer by a fragment header, but the sender's
/// next packet may have none. A router that does not know RFC 1191 states 0: the next usual MTU
/// below the packet's length is likely.
fn mtu_to_v6(stated: u32, quoted_len: usize) -> u32 {
    let mtu = match stated {
        0 => PLATEAUS
            .into_iter()
            .find(|mtu| (*mtu as usize) < quoted_len),
        stated => Some(stated),
    };
    mtu.map_or(MTU_MIN, |mtu| (mtu + LONGER).max(MTU_MIN))
}

/// The packet that an error of ICMPv6 quotes, without extensions (RFC 4884).
pub(super) fn quoted_v6(message: &[u8]) -> &[u8] {
    let len = match message[0] {
        1 | 3 => usize::from(message[4]) * 8,
        _ => 0,
    };
    without_extensions(&message[Repr::LEN..], len)
}

/// The packet that an error of ICMP quotes, without extensions.
pub(super) fn quoted_v4(message: &[u8]) -> &[u8] {
    let len = usize::from(message[5]) * 4;
    without_extensions(&message[Repr::LEN..], len)
}

fn without_extensions(quoted: &[u8], len: usize) -> &[u8] {
    match len {
        0 => quoted,
        len => &quoted[..len.min(quoted.len())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: u8, code: u8, rest: u32) -> Repr {
        Repr { kind, code, rest }
    }

    /// RFC 7915 §4.2, word for word.
    #[test]
    fn errors_of_ipv4_become_those_of_ipv6() {
        let to = |kind, code, rest| {
            let made = to_v6(error(kind, code, rest), 1500)?;
            Some((made.kind, made.code, made.rest))
        };
        let no_route = Some((1, 0, 0));
        let prohibited = Some((1, 1, 0));
        let codes = [
            no_route,
            no_route,
            Some((4, 1, 6)),
            Some((1, 4, 0)),
            Some((2, 0, 1492 + 20)),
            no_route,
            no_route,
            no_route,
            no_route,
            prohibited,
            prohibited,
            no_route,
            no_route,
            prohibited,
            None,
            prohibited,
            None,
        ];
        for (code, made) in (0..).zip(codes) {
            assert_eq!(to(3, code, 0), made, "code {code}");
        }
        assert_eq!(to(11, 0, 0), Some((3, 0, 0)));
        assert_eq!(to(11, 1, 0), Some((3, 1, 0)));
        for (kind, code) in [(4, 0), (5, 0), (12, 1), (12, 3), (11, 2), (13, 0), (9, 0)] {
            assert_eq!(to(kind, code, 0), None, "{kind} {code}");
        }
        let pointers = [
            Some(0),
            Some(1),
            Some(4),
            Some(4),
            None,
            None,
            None,
            None,
            Some(7),
            Some(6),
            None,
            None,
            Some(8),
            Some(8),
            Some(8),
            Some(8),
            Some(24),
            Some(24),
            Some(24),
            Some(24),
            None,
        ];
        for (at, made) in (0..).zip(pointers) {
            let made = made.map(|at| (4, 0, at));
            assert_eq!(to(12, 0, at << 24), made, "pointer {at}");
            assert_eq!(to(12, 2, at << 24), made, "pointer {at}");
        }
    }

    /// RFC 7915 §5.2, word for word.
    #[test]
    fn errors_of_ipv6_become_those_of_ipv4() {
        let to = |kind, code, rest| {
            let made = to_v4(error(kind, code, rest), false)?;
            Some((made.kind, made.code, made.rest))
        };
        let unreachable = [
            Some((3, 1, 0)),
            Some((3, 10, 0)),
            Some((3, 1, 0)),
            Some((3, 1, 0)),
            Some((3, 3, 0)),
            None,
        ];
        for (code, made) in (0..).zip(unreachable) {
            assert_eq!(to(1, code, 0), made, "code {code}");
        }
        assert_eq!(to(3, 0, 0), Some((11, 0, 0)));
        assert_eq!(to(3, 1, 0), Some((11, 1, 0)));
        assert_eq!(to(4, 1, 40), Some((3, 2, 0)));
        assert_eq!(to(4, 2, 0), None);
        // Of each byte of the header, and the first one behind it; 99 has no counterpart.
        let pointers = [
            0, 1, 99, 99, 2, 2, 9, 8, //
            12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, //
            16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, //
            99,
        ];
        for (at, made) in (0..).zip(pointers) {
            let made = (made < 99).then_some((12, 0, made << 24));
            assert_eq!(to(4, 0, at), made, "pointer {at}");
        }
        assert_eq!(to(4, 0, u32::MAX), None);
    }

    #[test]
    fn an_mtu_is_that_of_the_other_header() {
        let to6 = |stated, len| to_v6(error(3, 4, stated), len).unwrap().rest;
        assert_eq!(to6(1400, 1500), 1420);
        assert_eq!(to6(576, 1500), 1280, "IPv6 has no smaller one");
        for (len, mtu) in [(1500, 1512), (1492, 1280), (3000, 2022), (65_535, 32_020)] {
            assert_eq!(to6(0, len), mtu, "the plateau below {len}");
        }
        // The length of extensions is beside it.
        assert_eq!(to6(0x0010_0000 | 1400, 1500), 1420);
        let to4 = |stated, has| to_v4(error(2, 0, stated), has).unwrap().rest;
        for (has, shorter) in [(false, 20), (true, 28)] {
            assert_eq!(to4(1500, has), 1500 - shorter);
            assert_eq!(to4(1280, has), 1280 - shorter);
            assert_eq!(to4(68 + shorter, has), 68);
            assert_eq!(to4(0, has), 68);
            assert_eq!(to4(u32::MAX, has), 0xffff);
        }
    }

    #[test]
    fn extensions_are_no_part_of_what_is_quoted() {
        let mut message = vec![0; 8 + 160];
        message[0] = 3;
        message[4] = 16;
        assert_eq!(quoted_v6(&message).len(), 128);
        message[4] = 0;
        message[5] = 32;
        assert_eq!(quoted_v4(&message).len(), 128);
        message[5] = 255;
        assert_eq!(quoted_v4(&message).len(), 160);
    }
}
