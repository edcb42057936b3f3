//! Egress rules over chains of extension headers, compared with a receiver that accepts every
//! header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_filter::interp;
use weir_filter::ir::Program;
use weir_lab::program::Tape;
use weir_link::live::EgressRules;

const MAC: [u8; 6] = [2, 0, 0, 0, 7, 7];
const OWN4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OWN: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const OTHER4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 7, 8];
const OTHER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ICMP6: u8 = 58;
/// Extension headers whose second byte is a length in units of 8 bytes.
const BY_EIGHTS: [u8; 6] = [0, 43, 60, 135, 139, 140];

fn program() -> Program {
    let rules = EgressRules {
        source: MAC,
        addresses: vec![IpAddr::V4(OWN4), IpAddr::V6(OWN)],
        ethertypes: Vec::new(),
        predicate: String::new(),
        any_source: false,
    };
    rules.program().expect("the rules are a filter")
}

fn may(program: &Program, ethertype: u16, packet: &[u8]) -> bool {
    let mut frame = vec![0xff; 6];
    frame.extend(MAC);
    frame.extend(ethertype.to_be_bytes());
    frame.extend(packet);
    interp::run(program, &frame, frame.len() as u32) != 0
}

/// An IPv6 packet with these headers; `first` is the first one's number.
fn ip6(src: Ipv6Addr, first: u8, headers: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, headers.len() as u8, first, 255];
    packet.extend(src.octets());
    packet.extend(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets());
    packet.extend(headers);
    packet
}

/// An ICMPv6 message about a target.
fn icmp6(kind: u8, target: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    message
}

/// A neighbour discovery message with options, each a type, a length in units of 8 bytes, and a
/// link-layer address.
fn discovery(kind: u8, flags: u8, target: Ipv6Addr, options: &[(u8, u8, [u8; 6])]) -> Vec<u8> {
    let mut message = icmp6(kind, target);
    if kind == 133 {
        message.truncate(8);
    }
    message[4] = flags;
    for (option, units, address) in options {
        message.extend([*option, *units]);
        message.extend(address);
    }
    message
}

/// The end of a header chain.
#[derive(PartialEq, Eq, Debug)]
enum Meant {
    /// A message of that type, and its target.
    Icmp6(u8, Vec<u8>),
    /// Any other error.
    Other,
}

/// What a receiver that supports every header finds in the first fragment.
fn read_ip6(packet: &[u8]) -> Meant {
    let (mut next, mut rest) = (packet[6], &packet[40..]);
    while rest.len() >= 8 {
        let units = usize::from(rest[1]);
        let length = match next {
            FRAGMENT if rest[2] != 0 || rest[3] & 0xf8 != 0 => return Meant::Other,
            FRAGMENT => 8,
            AUTHENTICATION => 4 * (units + 2),
            next if BY_EIGHTS.contains(&next) => 8 * (units + 1),
            ICMP6 => {
                let target = rest.get(8..24).unwrap_or_default();
                return Meant::Icmp6(rest[0], target.to_vec());
            }
            _ => return Meant::Other,
        };
        next = rest[0];
        let Some(behind) = rest.get(length..) else {
            break;
        };
        rest = behind;
    }
    Meant::Other
}

/// Router advertisements, redirects, and neighbour advertisements for other addresses.
fn is_harmful(meant: &Meant) -> bool {
    match meant {
        Meant::Icmp6(134 | 137, _) => true,
        Meant::Icmp6(136, target) => *target != OWN.octets(),
        _ => false,
    }
}

/// Up to four extension headers, and the header behind them.
fn chain(tape: &mut Tape) -> (u8, Vec<u8>) {
    let target = tape.pick(&[OWN, OTHER]);
    let kind = tape.pick(&[
        1, 128, 130, 131, 133, 134, 134, 135, 136, 136, 137, 143, 200,
    ]);
    let last = tape.pick(&[ICMP6, ICMP6, ICMP6, ICMP6, 6, 17, 59, 4, 41]);
    let (mut next, mut bytes) = (last, icmp6(kind, target));
    for _ in 0..tape.below(5) {
        let this = tape.pick(&[0, 43, FRAGMENT, AUTHENTICATION, 60, 135, 139, 140]);
        let units = tape.below(3);
        let mut header = match this {
            FRAGMENT => {
                let offset = if tape.chance(70) {
                    0
                } else {
                    tape.byte() & 0xf8
                };
                vec![0, 0, 0, offset | tape.byte() & 1, 1, 2, 3, 4]
            }
            // Whole units of 8 bytes.
            AUTHENTICATION => vec![0; 16 + 8 * units],
            _ => vec![0; 8 + 8 * units],
        };
        header[0] = next;
        if this != FRAGMENT {
            header[1] = if this == AUTHENTICATION {
                (header.len() / 4 - 2) as u8
            } else {
                units as u8
            };
        }
        header.extend(bytes);
        (next, bytes) = (this, header);
    }
    (next, bytes)
}

#[test]
fn no_chain_of_headers_hides_what_would_harm_others() {
    let program = program();
    let (mut harmful, mut passed) = (0, 0);
    for seed in 0..20_000 {
        let mut tape = Tape::seeded(seed, 400);
        let (first, headers) = chain(&mut tape);
        let packet = ip6(OWN, first, &headers);
        let meant = read_ip6(&packet);
        let allowed = may(&program, 0x86dd, &packet);
        harmful += u32::from(is_harmful(&meant));
        passed += u32::from(allowed);
        assert!(
            !(allowed && is_harmful(&meant)),
            "seed {seed}: {meant:?} in {packet:02x?}"
        );
    }
    assert!(harmful > 2_000 && passed > 2_000, "{harmful}, {passed}");
}

#[test]
fn what_ipv6_hosts_send_for_themselves_may_go() {
    let program = program();
    let unspecified = Ipv6Addr::UNSPECIFIED;
    let alert = [ICMP6, 0, 5, 2, 0, 0, 1, 0];
    let behind_alert = |message: Vec<u8>| [&alert[..], &message].concat();
    let fragment = |next: u8, offset: u8| [next, 0, 0, offset, 0, 0, 0, 1];
    let echo = icmp6(128, OTHER);
    for (name, packet) in [
        ("tcp", ip6(OWN, 6, &[0; 20])),
        ("udp", ip6(OWN, 17, &[0; 8])),
        ("echo", ip6(OWN, ICMP6, &echo)),
        ("solicitation", ip6(OWN, ICMP6, &icmp6(135, OTHER))),
        ("probe", ip6(unspecified, ICMP6, &icmp6(135, OWN))),
        ("advertisement", ip6(OWN, ICMP6, &icmp6(136, OWN))),
        ("report", ip6(OWN, 0, &behind_alert(icmp6(143, OTHER)))),
        (
            "early report",
            ip6(unspecified, 0, &behind_alert(icmp6(143, OTHER))),
        ),
        (
            "udp fragment",
            ip6(
                OWN,
                FRAGMENT,
                &[fragment(17, 1).to_vec(), vec![0; 8]].concat(),
            ),
        ),
        (
            "echo fragment",
            ip6(
                OWN,
                FRAGMENT,
                &[fragment(ICMP6, 1).to_vec(), echo.clone()].concat(),
            ),
        ),
        (
            "later fragment",
            ip6(
                OWN,
                FRAGMENT,
                &[fragment(ICMP6, 8).to_vec(), vec![134; 8]].concat(),
            ),
        ),
    ] {
        assert!(may(&program, 0x86dd, &packet), "{name}: {packet:02x?}");
    }
    for (name, packet) in [
        (
            "a probe for another",
            ip6(unspecified, ICMP6, &icmp6(135, OTHER)),
        ),
        (
            "a report of another",
            ip6(OTHER, 0, &behind_alert(icmp6(143, OTHER))),
        ),
        ("a query", ip6(OWN, 0, &behind_alert(icmp6(130, OTHER)))),
        (
            "an advertisement behind the alert",
            ip6(OWN, 0, &behind_alert(icmp6(134, OTHER))),
        ),
        (
            "a tunnel",
            ip6(OWN, 41, &ip6(OTHER, ICMP6, &icmp6(134, OTHER))),
        ),
        (
            "an advertisement in a fragment",
            ip6(
                OWN,
                FRAGMENT,
                &[fragment(ICMP6, 0).to_vec(), icmp6(136, OWN)].concat(),
            ),
        ),
        ("ospf", ip6(OWN, 89, &[0; 24])),
    ] {
        assert!(!may(&program, 0x86dd, &packet), "{name}: {packet:02x?}");
    }
}

/// A neighbour that accepts an option with another link-layer address sends the host's packets
/// there (RFC 4861 sections 7.2.3, 7.2.5).
#[test]
fn neighbour_messages_carry_no_other_link_layer_address() {
    let program = program();
    let unspecified = Ipv6Addr::UNSPECIFIED;
    let (source, target, nonce, mtu) = (1, 2, 14, 5);
    let sent = |src, message: &[u8]| may(&program, 0x86dd, &ip6(src, ICMP6, message));
    for (kind, target_address, option) in
        [(133, OWN, source), (135, OTHER, source), (136, OWN, target)]
    {
        let message = |options: &[(u8, u8, [u8; 6])]| discovery(kind, 0, target_address, options);
        let passes = |options: &[(u8, u8, [u8; 6])]| sent(OWN, &message(options));
        assert!(passes(&[]), "{kind} without options");
        assert!(passes(&[(option, 1, MAC)]), "{kind} with its own address");
        for (at, byte) in MAC.iter().enumerate() {
            let mut near = MAC;
            near[at] = byte ^ 1;
            assert!(!passes(&[(option, 1, near)]), "{kind}: {near:02x?}");
        }
        for options in [
            &[(option, 1, OTHER_MAC)][..],
            &[(option, 1, MAC), (option, 1, OTHER_MAC)],
            &[(option, 1, MAC), (option, 1, MAC)],
            &[(mtu, 1, [0; 6]), (option, 1, OTHER_MAC)],
            &[(nonce, 1, [7; 6]), (option, 1, OTHER_MAC)],
            &[(3 - option, 1, MAC)],
            &[(option, 0, MAC)],
            &[(option, 2, MAC), (0, 0, OTHER_MAC)],
            &[(nonce, 1, MAC)],
        ] {
            assert!(!passes(options), "{kind}: {options:02x?}");
        }
        // The packet has bytes that its payload length does not count, or the reverse.
        let mut packet = ip6(OWN, ICMP6, &message(&[(option, 1, OTHER_MAC)]));
        packet[5] -= 8;
        assert!(may(&program, 0x86dd, &packet), "{kind}: padding");
        for len in [0, 1, 7, 9, 23, 25, 31, 33, 40, 255] {
            packet[5] = len;
            assert!(!may(&program, 0x86dd, &packet), "{kind}: {len} bytes");
        }
        let mut cut = ip6(OWN, ICMP6, &message(&[(option, 1, MAC)]));
        cut.pop();
        assert!(!may(&program, 0x86dd, &cut), "{kind}: cut");
        // Behind extension headers, as no host sends it.
        let evil = message(&[(option, 1, OTHER_MAC)]);
        for (first, header) in [
            (FRAGMENT, vec![ICMP6, 0, 0, 0, 0, 0, 0, 1]),
            (FRAGMENT, vec![ICMP6, 0, 0, 1, 0, 0, 0, 1]),
            (AUTHENTICATION, [&[ICMP6, 2][..], &[0; 14]].concat()),
            (0, vec![ICMP6, 0, 5, 2, 0, 0, 1, 0]),
            (60, vec![ICMP6, 0, 1, 4, 0, 0, 0, 0]),
        ] {
            let packet = ip6(OWN, first, &[header, evil.clone()].concat());
            assert!(!may(&program, 0x86dd, &packet), "{kind} behind {first}");
        }
    }
    // Router, solicited, override.
    for flags in 0..8 {
        let flags = flags << 5;
        let options = [(target, 1, MAC)];
        let passes = sent(OWN, &discovery(136, flags, OWN, &options));
        assert_eq!(passes, flags & 0x80 == 0, "flags {flags:#x}");
    }
    let probe = |options: &[(u8, u8, [u8; 6])]| sent(unspecified, &discovery(135, 0, OWN, options));
    assert!(probe(&[]), "a probe");
    assert!(probe(&[(nonce, 1, [7; 6])]), "a probe with a nonce");
    assert!(!probe(&[(source, 1, MAC)]), "RFC 4861 section 4.3");
    assert!(!probe(&[(source, 1, OTHER_MAC)]));
    assert!(!probe(&[(nonce, 1, [7; 6]), (source, 1, OTHER_MAC)]));
}

/// A probe for an address that another host is about to use would make that host choose another
/// address (RFC 5227 section 2.1.1).
#[test]
fn arp_probes_are_for_own_addresses() {
    let program = program();
    let arp = |operation: u8, hardware: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr| {
        let mut packet = vec![0, 1, 8, 0, 6, 4, 0, operation];
        packet.extend(hardware);
        packet.extend(sender.octets());
        packet.extend([0; 6]);
        packet.extend(target.octets());
        may(&program, 0x0806, &packet)
    };
    let none = Ipv4Addr::UNSPECIFIED;
    assert!(arp(1, MAC, none, OWN4), "a probe");
    assert!(arp(1, MAC, OWN4, OTHER4), "a request");
    assert!(arp(2, MAC, OWN4, OTHER4), "a reply");
    assert!(arp(1, MAC, OWN4, OWN4), "an announcement");
    for operation in [1, 2] {
        assert!(!arp(operation, MAC, none, OTHER4), "a probe for another");
        assert!(!arp(operation, OTHER_MAC, none, OWN4));
        assert!(!arp(operation, MAC, OTHER4, OWN4));
    }
}

/// An IPv4 packet of a protocol, with options, at an offset of its datagram.
fn ip4(protocol: u8, options: &[u8], offset: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 20];
    packet[0] = 0x45 + (options.len() / 4) as u8;
    packet[6..8].copy_from_slice(&offset.to_be_bytes());
    packet[9] = protocol;
    packet[12..16].copy_from_slice(&OWN4.octets());
    packet.extend(options);
    packet.extend(payload);
    packet
}

#[test]
fn ipv4_that_redirects_others_is_refused_however_it_is_dressed() {
    let program = program();
    let alert = [0x94, 4, 0, 0];
    for (name, packet) in [
        ("tcp", ip4(6, &[], 0, &[0; 20])),
        ("a later fragment", ip4(1, &[], 2, &[5; 20])),
        ("echo", ip4(1, &[], 0, &[8; 20])),
        ("unreachable", ip4(1, &[], 0, &[3; 20])),
        ("a report", ip4(2, &alert, 0, &[0x22; 20])),
        ("a report without alert", ip4(2, &[], 0, &[0x16; 20])),
        ("authenticated udp", ip4(51, &[], 0, &[17; 32])),
    ] {
        assert!(may(&program, 0x0800, &packet), "{name}: {packet:02x?}");
    }
    for (name, packet) in [
        ("a redirect", ip4(1, &[], 0, &[5; 20])),
        ("a redirect in a fragment", ip4(1, &[], 0x2000, &[5; 24])),
        (
            "a redirect behind options",
            ip4(1, &[1, 1, 1, 0], 0, &[5; 20]),
        ),
        ("a redirect behind the alert", ip4(1, &alert, 0, &[5; 20])),
        (
            "a redirect that is authenticated",
            ip4(51, &[], 0, &[1; 32]),
        ),
        ("a router advertisement", ip4(1, &[], 0, &[9; 20])),
        ("a query", ip4(2, &alert, 0, &[0x11; 20])),
        ("a tunnel", ip4(4, &[], 0, &ip4(1, &[], 0, &[5; 20]))),
        ("source routing", ip4(17, &[131, 3, 4, 0], 0, &[0; 8])),
        ("ospf", ip4(89, &[], 0, &[0; 24])),
    ] {
        assert!(!may(&program, 0x0800, &packet), "{name}: {packet:02x?}");
    }
}
