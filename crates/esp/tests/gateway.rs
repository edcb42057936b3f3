//! Two gateways: what leaves one enters the other, and nothing else does.

mod common;
#[path = "common/tape.rs"]
mod tape;

use common::{ENDS, Spec, bytes, config, opened, packet, plain, sealed, state};
use weir_esp::algorithm::Keymat;
use weir_esp::config::Direction;
use weir_esp::{Config, Gateway, Inward, Outward};
use weir_filter::lang::expr::NoNames;
use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;
use weir_wire::field::{read_u16, read_u32};

const SECOND: u64 = 1_000_000_000;

fn random_spec(rng: &mut Rng) -> Spec {
    Spec {
        algorithm: rng.pick(&["aes128gcm", "aes256gcm", "chacha20poly1305"]),
        tunnel: ["", "udp = true"][rng.below(2)].into(),
        sa: [
            "",
            "esn = true",
            "window = 7",
            "esn = true\nsequence = 4294967200",
        ][rng.below(4)]
        .into(),
        v6: rng.chance(50),
        policies: String::new(),
    }
}

#[test]
fn packets_come_through_as_they_were() {
    for seed in seeds(30) {
        let mut rng = Rng::new(seed);
        let spec = random_spec(&mut rng);
        let [mut a, mut b] = spec.gateways();
        for round in 0..50 {
            let len = rng.below(1300);
            let payload = bytes(&mut rng, len);
            let class = (rng.below(64) << 2) as u8;
            let inner = if rng.chance(50) {
                packet("10.1.0.5", "10.2.3.4", class, rng.chance(50), &payload)
            } else {
                packet("2001:db8:a1::5", "2001:db8:a2::6", class, true, &payload)
            };
            let esp = sealed(&mut a, round, &inner);
            assert!(esp.len() <= 1500);
            let at = if spec.v6 { 40 } else { 20 } + if spec.tunnel.is_empty() { 0 } else { 8 };
            assert_eq!(read_u32(&esp, at), 1001);
            let carried = inner.windows(24).skip(20).step_by(8);
            for part in carried {
                assert!(
                    !esp.windows(24).any(|text| text == part),
                    "plain text in ESP"
                );
            }
            assert_eq!(opened(&mut b, round, &esp), Inward::Opened(inner));
        }
        assert_eq!(a.counters().sealed, 50);
        assert_eq!(b.counters().opened, 50);
    }
}

#[test]
fn a_replayed_packet_is_dropped_and_moves_nothing() {
    let [mut a, mut b] = Spec::default().gateways();
    let sent: Vec<Vec<u8>> = (0..3000)
        .map(|n: u16| sealed(&mut a, 0, &plain(&n.to_be_bytes())))
        .collect();
    let mut rng = Rng::new(1);
    let mut came = vec![false; sent.len()];
    let mut top = 0;
    for _ in 0..6000 {
        // Some reordering, much repetition.
        let at = (top + 3).min(sent.len() - 1).saturating_sub(rng.below(12));
        let is_new = !came[at];
        match opened(&mut b, 0, &sent[at]) {
            Inward::Opened(_) => assert!(is_new, "{at} came twice"),
            Inward::Drop("replayed") => assert!(!is_new, "{at} came once"),
            other => panic!("{other:?}"),
        }
        came[at] = true;
        top = top.max(at);
    }
    assert!(opened(&mut b, 0, &sent[0]) == Inward::Drop("replay-too-old"));
}

/// A forged packet with a number far ahead must not move the window.
#[test]
fn a_forged_number_does_not_move_the_window() {
    let [mut a, mut b] = Spec::default().gateways();
    let first = sealed(&mut a, 0, &plain(b"1"));
    let mut forged = first.clone();
    forged[24..28].copy_from_slice(&0xffff_0000_u32.to_be_bytes());
    assert_eq!(opened(&mut b, 0, &forged), Inward::Drop("icv"));
    assert!(matches!(opened(&mut b, 0, &first), Inward::Opened(_)));
}

#[test]
fn extended_numbers_go_on_across_the_wrap() {
    let start = (1_u64 << 32) - 500;
    let spec = Spec {
        sa: format!("esn = true\nwindow = 128\nsequence = {start}"),
        ..Spec::default()
    };
    let [mut a, mut b] = spec.gateways();
    let mut late = Vec::new();
    for number in 0..1000_u16 {
        let inner = plain(&number.to_be_bytes());
        let esp = sealed(&mut a, 0, &inner);
        if number % 7 == 0 {
            late.push((inner, esp));
            if late.len() > 10 {
                let (inner, esp) = late.remove(0);
                assert_eq!(opened(&mut b, 0, &esp), Inward::Opened(inner), "{number}");
                assert_eq!(opened(&mut b, 0, &esp), Inward::Drop("replayed"));
            }
        } else {
            assert_eq!(opened(&mut b, 0, &esp), Inward::Opened(inner), "{number}");
        }
    }
    assert_eq!(state(&a, Direction::Out, 1001), Some((start + 1000, 1000)));
    assert_eq!(
        state(&b, Direction::In, 1001).map(|it| it.0),
        Some(start + 1000)
    );
}

#[test]
fn the_last_sequence_number_stops_an_sa() {
    for (extra, last) in [("", u64::from(u32::MAX)), ("esn = true", u64::MAX)] {
        let spec = Spec {
            // TOML's integers have 63 bits.
            sa: format!("{extra}\nsequence = {}", (last - 2).min(i64::MAX as u64)),
            ..Spec::default()
        };
        let mut config = config(&spec.text(0, 1));
        config
            .sas
            .iter_mut()
            .for_each(|sa| sa.sa.sequence = last - 2);
        let mut a = Gateway::new(&config, 0, 1).unwrap();
        for _ in 0..2 {
            sealed(&mut a, 0, &plain(b"x"));
        }
        for _ in 0..3 {
            let dropped = a.outward(0, &mut plain(b"x"));
            assert_eq!(dropped, Outward::Drop("sequence-exhausted", None));
        }
        // Nor does a reload begin anew.
        a.reload(&config, 0).unwrap();
        let dropped = a.outward(0, &mut plain(b"x"));
        assert_eq!(dropped, Outward::Drop("sequence-exhausted", None));
    }
}

#[test]
fn lifetimes_end_an_sa_on_both_sides() {
    for (limit, packets, now) in [
        ("packets_max = 3", 3, 0),
        ("bytes_max = 96", 3, 0),
        ("lifetime = \"2s\"", 5, 2 * SECOND),
    ] {
        let limited = Spec {
            sa: limit.into(),
            ..Spec::default()
        };
        let free = Spec::default();
        let mut a = Gateway::new(&config(&limited.text(0, 1)), 0, 1).unwrap();
        let mut b = Gateway::new(&config(&free.text(1, 1)), 0, 2).unwrap();
        for _ in 0..packets {
            sealed(&mut a, 0, &plain(b"1234"));
        }
        let dropped = a.outward(now, &mut plain(b"1234"));
        assert_eq!(dropped, Outward::Drop("sa-expired", None), "{limit}");
        // The other way: it is the receiver's SA that ends.
        let back = packet("10.2.0.6", "10.1.0.5", 0, false, b"1234");
        for _ in 0..packets {
            let esp = sealed(&mut b, 0, &back);
            assert!(
                matches!(opened(&mut a, 0, &esp), Inward::Opened(_)),
                "{limit}"
            );
        }
        let esp = sealed(&mut b, 0, &back);
        assert_eq!(
            opened(&mut a, now, &esp),
            Inward::Drop("sa-expired"),
            "{limit}"
        );
    }
}

/// New SAs beside old ones: first inbound, then outbound, then the old ones go.
#[test]
fn rekeying_loses_nothing() {
    let spec = Spec::default();
    let [mut a, mut b] = spec.gateways();
    let mut in_flight = Vec::new();
    let both = |which| {
        let mut both = config(&spec.text_of(which, &[1, 11]));
        // The new outbound SA only once the peer has the inbound one.
        both.sas
            .retain(|sa| sa.sa.spi < 1005 || sa.direction == Direction::In);
        both
    };
    for round in 0..60_u16 {
        match round {
            10 => a.reload(&both(0), 0).unwrap(),
            12 => b.reload(&both(1), 0).unwrap(),
            20 => a.reload(&config(&spec.text_of(0, &[1, 11])), 0).unwrap(),
            22 => b.reload(&config(&spec.text_of(1, &[1, 11])), 0).unwrap(),
            40 => a.reload(&config(&spec.text_of(0, &[11])), 0).unwrap(),
            42 => b.reload(&config(&spec.text_of(1, &[11])), 0).unwrap(),
            _ => {}
        }
        let inner = plain(&round.to_be_bytes());
        in_flight.push((inner.clone(), sealed(&mut a, 0, &inner)));
        if in_flight.len() > 8 {
            let (inner, esp) = in_flight.remove(0);
            assert_eq!(opened(&mut b, 0, &esp), Inward::Opened(inner), "{round}");
            assert_eq!(opened(&mut b, 0, &esp), Inward::Drop("replayed"));
        }
    }
    assert_eq!(state(&a, Direction::Out, 1011).map(|it| it.1), Some(40));
    assert_eq!(state(&a, Direction::Out, 1001), None);
    // An old key that comes again goes on, on both sides.
    a.reload(&config(&spec.text_of(0, &[11, 1])), 0).unwrap();
    b.reload(&config(&spec.text_of(1, &[11, 1])), 0).unwrap();
    let esp = sealed(&mut a, 0, &plain(b"again"));
    assert_eq!((read_u32(&esp, 20), read_u32(&esp, 24)), (1001, 21));
    assert!(matches!(opened(&mut b, 0, &esp), Inward::Opened(_)));
}

/// Of more keys of a key exchange than are remembered, the oldest ones are forgotten.
#[test]
fn the_newest_keys_are_remembered() {
    let of = |numbers: std::ops::Range<u32>, sequence| {
        let mut made = config(&Spec::default().text(0, 1));
        made.is_negotiated = true;
        let mut inbound = made.sas.iter().filter(|sa| sa.direction == Direction::In);
        let template = inbound.next().unwrap().clone();
        let sas = numbers.map(|number| {
            let mut entry = template.clone();
            entry.sa.spi = number;
            entry.sa.keymat = Keymat::of_hex(&format!("{number:064x}{number:08x}")).unwrap();
            entry.sa.sequence = sequence;
            entry
        });
        made.sas = sas.collect();
        made
    };
    let many = |round: u32| of(round * 8000..(round + 1) * 8000, 0);
    let [one, other] = [600_000, 600_001].map(|number| number..number + 1);
    let mut gateway = Gateway::new(&many(1), 0, 1).unwrap();
    for round in 2..9 {
        gateway.reload(&many(round), 0).unwrap();
    }
    let steps = [
        of(one.clone(), 7),
        of(other.clone(), 0),
        many(9),
        of(other, 0),
        of(one, 0),
    ];
    for step in steps {
        gateway.reload(&step, 0).unwrap();
    }
    assert_eq!(state(&gateway, Direction::In, 600_000), Some((7, 0)));
}

#[test]
fn only_bypass_lets_plain_packets_pass() {
    let spec = Spec {
        policies: "[[policy]]\nmatch = \"tcp port 9\"\naction = \"discard\"\n".into(),
        ..Spec::default()
    };
    let [mut a, _] = spec.gateways();
    let ike = |src: &str, dst: &str| {
        let mut ike = packet(src, dst, 0, false, b"ike");
        ike[22..24].copy_from_slice(&500_u16.to_be_bytes());
        ike
    };
    let [here, there] = ENDS[0];
    // Between the ends all is protected, and elsewhere IKE may pass.
    assert_eq!(
        a.outward(0, &mut ike("10.9.0.1", "10.9.0.2")),
        Outward::Pass
    );
    assert_eq!(a.inward(0, &mut ike("10.9.0.1", "10.9.0.2")), Inward::Pass);
    assert!(matches!(
        a.outward(0, &mut ike(here, there)),
        Outward::Protected(_)
    ));
    assert_eq!(
        a.inward(0, &mut ike(there, here)),
        Inward::Drop("unprotected")
    );
    let mut plain = packet("10.2.0.6", "10.1.0.5", 0, false, b"plain");
    assert_eq!(a.inward(0, &mut plain), Inward::Drop("unprotected"));
    let mut other = packet("10.3.0.6", "10.1.0.5", 0, false, b"plain");
    assert_eq!(a.inward(0, &mut other), Inward::Drop("no-policy"));
    assert_eq!(a.outward(0, &mut other), Outward::Drop("no-policy", None));
    // Ports 9 and 4001 of TCP.
    let mut tcp = packet("10.1.0.5", "10.2.0.6", 0, false, &[0; 20]);
    tcp[9] = 6;
    tcp[22..24].copy_from_slice(&9_u16.to_be_bytes());
    assert_eq!(a.outward(0, &mut tcp), Outward::Drop("policy", None));
}

/// An SA may only carry what its policy protects: here the peer sends what it
/// should not.
#[test]
fn what_an_sa_carried_has_to_fit_its_policy() {
    let everything = "[[policy]]\naction = \"protect\"\ntunnel = \"t\"\n";
    let loose = Spec {
        policies: everything.into(),
        ..Spec::default()
    };
    let mut a = Gateway::new(&config(&loose.text(0, 1)), 0, 1).unwrap();
    let mut b = Gateway::new(&config(&Spec::default().text(1, 1)), 0, 2).unwrap();
    for (src, dst, fits) in [
        ("10.1.0.5", "10.2.0.6", true),
        ("10.1.0.5", "10.3.0.6", false),
        ("10.9.0.5", "10.2.0.6", false),
        ("10.2.0.6", "10.1.0.5", false),
    ] {
        let esp = sealed(&mut a, 0, &packet(src, dst, 0, false, b"x"));
        match opened(&mut b, 0, &esp) {
            Inward::Opened(_) => assert!(fits, "{src} {dst}"),
            Inward::Drop("policy-mismatch") => assert!(!fits, "{src} {dst}"),
            other => panic!("{other:?}"),
        }
    }
}

/// RFC 6040, figure 4: rows are the inner field, columns the outer one.
#[test]
fn ecn_and_dscp_are_copied_and_combined() {
    let table = [
        [Some(0), Some(0), Some(0), None],
        [Some(1), Some(1), Some(1), Some(3)],
        [Some(2), Some(1), Some(2), Some(3)],
        [Some(3), Some(3), Some(3), Some(3)],
    ];
    for v6 in [false, true] {
        let spec = Spec {
            v6,
            ..Spec::default()
        };
        let [mut a, mut b] = spec.gateways();
        for (inner_ecn, row) in (0..).zip(table) {
            for (outer_ecn, expected) in (0..).zip(row) {
                let inner = if v6 {
                    packet(
                        "2001:db8:a1::5",
                        "2001:db8:a2::6",
                        46 << 2 | inner_ecn,
                        true,
                        b"x",
                    )
                } else {
                    packet("10.1.0.5", "10.2.0.6", 46 << 2 | inner_ecn, false, b"x")
                };
                let mut esp = sealed(&mut a, 0, &inner);
                let class = |packet: &[u8]| {
                    if v6 {
                        packet[0] << 4 | packet[1] >> 4
                    } else {
                        packet[1]
                    }
                };
                assert_eq!(class(&esp), 46 << 2 | inner_ecn, "copied");
                if v6 {
                    esp[1] = esp[1] & !0x30 | outer_ecn << 4
                } else {
                    esp[1] = esp[1] & !3 | outer_ecn
                }
                match (opened(&mut b, 0, &esp), expected) {
                    (Inward::Opened(packet), Some(ecn)) => {
                        assert_eq!(class(&packet), 46 << 2 | ecn, "{inner_ecn} {outer_ecn}");
                        let is_right =
                            v6 || weir_wire::checksum::internet_checksum(&packet[..20]) == 0;
                        assert!(is_right);
                    }
                    (Inward::Drop("congestion"), None) => {}
                    other => panic!("{inner_ecn} {outer_ecn}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn df_and_dscp_are_as_configured() {
    for (option, df, outer) in [
        ("", true, 0x40),
        ("", false, 0),
        ("dont_fragment = \"set\"", false, 0x40),
        ("dont_fragment = \"clear\"", true, 0),
    ] {
        let spec = Spec {
            tunnel: format!("{option}\ndscp = 10"),
            ..Spec::default()
        };
        let [mut a, _] = spec.gateways();
        let esp = sealed(&mut a, 0, &packet("10.1.0.5", "10.2.0.6", 0xb9, df, b"x"));
        assert_eq!(esp[6] & 0x40, outer, "{option} {df}");
        assert_eq!(esp[1], 10 << 2 | 1);
    }
}

#[test]
fn a_packet_too_big_is_fragmented_or_reported_to_its_sender() {
    for (tunnel, v6, inner_mtu) in [
        ("", false, 1446),
        ("udp = true", false, 1438),
        ("", true, 1426),
        ("mtu = 1364\nudp = true", true, 1282),
    ] {
        let spec = Spec {
            tunnel: tunnel.into(),
            v6,
            ..Spec::default()
        };
        let [mut a, mut b] = spec.gateways();
        let fits = packet("10.1.0.5", "10.2.0.6", 0, true, &vec![1; inner_mtu - 28]);
        let esp = sealed(&mut a, 0, &fits);
        assert_eq!(opened(&mut b, 0, &esp), Inward::Opened(fits));
        // With DF: an error.
        let mut big = packet("10.1.0.5", "10.2.0.6", 0, true, &vec![1; inner_mtu - 27]);
        let Outward::Drop("too-big", Some(error)) = a.outward(0, &mut big) else {
            panic!("{tunnel}");
        };
        assert_eq!(
            (error[20], error[21], read_u16(&error, 26)),
            (3, 4, inner_mtu as u16)
        );
        assert_eq!(error[16..20], [10, 1, 0, 5]);
        assert_eq!(error[28..56], big[..28]);
        let mut big = packet(
            "2001:db8:a1::5",
            "2001:db8:a2::6",
            0,
            true,
            &vec![1; inner_mtu - 47],
        );
        let Outward::Drop("too-big", Some(error)) = a.outward(0, &mut big) else {
            panic!("{tunnel}");
        };
        assert_eq!((error[40], read_u32(&error, 44)), (2, inner_mtu as u32));
        assert!(error.len() <= 1280);
        // Without: cut, and all pieces come.
        let mut big = packet("10.1.0.5", "10.2.0.6", 0, false, &vec![7; 4000]);
        let Outward::Protected(pieces) = a.outward(0, &mut big) else {
            panic!("{tunnel}");
        };
        let mut whole = vec![0; big.len() - 20];
        for piece in pieces {
            assert!(piece.len() <= 1500);
            let Inward::Opened(fragment) = opened(&mut b, 0, &piece) else {
                panic!()
            };
            let at = usize::from(read_u16(&fragment, 6) & 0x1fff) * 8;
            whole[at..at + fragment.len() - 20].copy_from_slice(&fragment[20..]);
            assert_eq!(weir_wire::checksum::internet_checksum(&fragment[..20]), 0);
        }
        assert_eq!(whole, big[20..]);
    }
}

/// No error about an error, and at most the limit a second.
#[test]
fn errors_about_size_are_limited() {
    let [mut a, _] = Spec::default().gateways();
    let mut told = 0;
    for _ in 0..1000 {
        let mut big = packet("10.1.0.5", "10.2.0.6", 0, true, &[1; 1450]);
        told += usize::from(matches!(
            a.outward(5, &mut big),
            Outward::Drop("too-big", Some(_))
        ));
    }
    assert_eq!(told, 100);
    let mut error = packet("10.1.0.5", "10.2.0.6", 0, true, &[1; 1450]);
    (error[9], error[20]) = (1, 3);
    assert_eq!(
        a.outward(SECOND, &mut error),
        Outward::Drop("too-big", None)
    );
}

/// One link of hosts and peers: hosts' packets enter first and leave afterwards, those out of the
/// tunnel leave as they are, and a plain one that looks like these does not enter.
#[test]
fn a_gateway_of_one_link_tells_both_sides_by_policies() {
    let [a, b] = Spec::default().gateways();
    let mut gateways = [a.one_armed(), b.one_armed()];
    for generation in 0..2 {
        let out = plain(b"to the other network");
        let back = packet("10.2.0.6", "10.1.0.5", 0, false, b"and back");
        for sent in [&out, &back] {
            let [from, to] = &mut gateways;
            assert_eq!(from.inward(generation, &mut sent.clone()), Inward::Pass);
            let esp = sealed(from, generation, sent);
            assert_eq!(opened(to, generation, &esp), Inward::Opened(sent.clone()));
            assert_eq!(to.outward(generation, &mut sent.clone()), Outward::Pass);
            // The same, plain, as another one at the link may write it.
            let forged = to.inward(generation, &mut sent.clone());
            assert_eq!(forged, Inward::Drop("unprotected"));
            gateways.reverse();
        }
        // A new configuration changes nothing of this.
        for (which, gateway) in gateways.iter_mut().enumerate() {
            let same = config(&Spec::default().text(which, 1));
            gateway.reload(&same, generation).unwrap();
        }
    }
    let [a, _] = &mut gateways;
    // What no policy names goes nowhere, but for errors of the gateway itself.
    let mut other = packet("10.1.0.5", "203.0.113.9", 0, false, b"x");
    assert_eq!(a.inward(0, &mut other), Inward::Drop("no-policy"));
    assert_eq!(a.outward(0, &mut other), Outward::Drop("no-policy", None));
    let mut big = packet("10.1.0.5", "10.2.0.6", 0, true, &[1; 1450]);
    assert_eq!(a.inward(0, &mut big), Inward::Pass);
    let Outward::Drop("too-big", Some(mut error)) = a.outward(0, &mut big) else {
        panic!("no error about the size");
    };
    // Once, and no other: an error of the router may quote what was in a tunnel.
    let mut other = error.clone();
    other[20] = 11;
    for (packet, expected) in [
        (&mut other, Outward::Drop("no-policy", None)),
        (&mut error.clone(), Outward::Pass),
        (&mut error, Outward::Drop("no-policy", None)),
    ] {
        assert_eq!(a.outward(0, packet), expected);
    }
}

/// A policy for both directions at once does not say on which side a packet is.
#[test]
fn a_gateway_of_one_link_drops_what_is_protected_either_way() {
    let policies = "[[policy]]\nmatch = \"net 10.0.0.0/8\"\naction = \"protect\"\ntunnel = \"t\"\n";
    let spec = Spec {
        policies: policies.into(),
        ..Spec::default()
    };
    let [mut a, _] = spec.gateways();
    let Outward::Protected(_) = a.outward(0, &mut plain(b"x")) else {
        panic!("two links know");
    };
    let mut a = a.one_armed();
    assert_eq!(a.inward(0, &mut plain(b"x")), Inward::Drop("both-ways"));
    assert_eq!(
        a.outward(0, &mut plain(b"x")),
        Outward::Drop("both-ways", None)
    );
}

#[test]
fn transport_mode_keeps_addresses_and_options() {
    for v6 in [false, true] {
        let spec = Spec {
            tunnel: "mode = \"transport\"".into(),
            v6,
            ..Spec::default()
        };
        let [mut a, mut b] = spec.gateways();
        let [here, there] = ENDS[usize::from(v6)];
        let inner = packet(here, there, 3, true, b"between the ends");
        let esp = sealed(&mut a, 0, &inner);
        let next = if v6 { esp[6] } else { esp[9] };
        assert_eq!(next, 50);
        assert_eq!(opened(&mut b, 0, &esp), Inward::Opened(inner));
        let other = if v6 {
            packet("2001:db8:a1::5", "2001:db8:a2::6", 0, true, b"x")
        } else {
            packet("10.1.0.5", "10.2.0.6", 0, true, b"x")
        };
        let dropped = a.outward(0, &mut other.clone());
        assert_eq!(dropped, Outward::Drop("transport-address", None));
    }
    // Behind an IPv6 extension header.
    let spec = Spec {
        tunnel: "mode = \"transport\"".into(),
        v6: true,
        ..Spec::default()
    };
    let [mut a, mut b] = spec.gateways();
    let mut inner = packet(ENDS[1][0], ENDS[1][1], 0, true, b"x");
    inner.splice(40..40, [17, 0, 1, 4, 0, 0, 0, 0]);
    inner[6] = 0;
    inner[5] += 8;
    let esp = sealed(&mut a, 0, &inner);
    assert_eq!((esp[6], esp[40]), (0, 50));
    assert_eq!(opened(&mut b, 0, &esp), Inward::Opened(inner));
}

#[test]
fn udp_encapsulation_leaves_ike_alone_and_keeps_alive() {
    let spec = Spec {
        tunnel: "udp = true".into(),
        policies: "[[policy]]\nmatch = \"udp port 4500\"\naction = \"bypass\"\n".into(),
        ..Spec::default()
    };
    let [mut a, mut b] = spec.gateways();
    let [here, there] = ENDS[0];
    let mut ike = packet(here, there, 0, true, &[0, 0, 0, 0, 1, 2, 3]);
    ike[20..24].copy_from_slice(&[0x11, 0x94, 0x11, 0x94]);
    assert_eq!(a.outward(0, &mut ike.clone()), Outward::Pass);
    assert_eq!(b.inward(0, &mut ike), Inward::Pass);
    let esp = sealed(&mut a, 0, &plain(b"x"));
    assert_eq!(
        (esp[9], read_u16(&esp, 20), read_u16(&esp, 22)),
        (17, 4500, 4500)
    );
    assert_eq!(read_u16(&esp, 26), 0, "no checksum");
    // What the gateway has sealed already passes, as it is.
    assert_eq!(a.outward(0, &mut esp.clone()), Outward::Pass);
    assert_eq!(a.next_deadline(), Some(20 * SECOND));
    assert!(a.poll(19 * SECOND).is_empty());
    let mut keepalives = a.poll(20 * SECOND);
    assert_eq!(keepalives.len(), 1);
    assert_eq!(keepalives[0].len(), 29);
    assert_eq!(a.outward(0, &mut keepalives[0].clone()), Outward::Pass);
    assert_eq!(b.inward(0, &mut keepalives[0]), Inward::Consumed);
    assert_eq!(b.counters().keepalives_received, 1);
    assert_eq!(a.next_deadline(), Some(40 * SECOND));
}

/// A later fragment goes the way of the first one; without it, nowhere.
#[test]
fn later_fragments_follow_the_first() {
    let spec = Spec {
        policies: "[[policy]]\nmatch = \"udp dst port 7\"\naction = \"bypass\"\n".into(),
        ..Spec::default()
    };
    let [mut a, _] = spec.gateways();
    let mut first = packet("10.1.0.5", "10.2.0.6", 0, false, &[1; 64]);
    first[6] = 0x20;
    let mut later = packet("10.1.0.5", "10.2.0.6", 0, false, &[2; 64]);
    later[7] = 9;
    assert_eq!(
        a.outward(0, &mut later.clone()),
        Outward::Drop("fragment-unknown", None)
    );
    assert_eq!(a.outward(0, &mut first), Outward::Pass);
    assert_eq!(a.outward(SECOND, &mut later.clone()), Outward::Pass);
    later[5] = 8;
    assert_eq!(
        a.outward(0, &mut later.clone()),
        Outward::Drop("fragment-unknown", None)
    );
    later[5] = 7;
    assert_eq!(
        a.outward(61 * SECOND, &mut later),
        Outward::Drop("fragment-unknown", None)
    );
}

#[test]
fn dummies_and_padding_for_confidentiality_are_ignored() {
    use weir_esp::sa::OutboundSa;
    let mut peer = config(&Spec::default().text(0, 1));
    let entry = peer.sas.remove(0);
    let mut sa = OutboundSa::new(&entry.sa, 0, 9).unwrap();
    let [_, mut b] = Spec::default().gateways();
    let template = sealed(&mut Spec::default().gateways()[0], 0, &plain(b"x"));
    let mut send = |payload: &[u8], next: u8| {
        let mut esp = template[..20].to_vec();
        sa.seal(0, payload, next, &mut esp).unwrap();
        let len = esp.len() as u16;
        esp[2..4].copy_from_slice(&len.to_be_bytes());
        opened(&mut b, 0, &esp)
    };
    let inner = plain(b"short");
    let padded = [&inner[..], &[0xaa; 300]].concat();
    assert_eq!(send(&padded, 4), Inward::Opened(inner.clone()));
    assert_eq!(send(&[7; 60], 59), Inward::Consumed);
    assert_eq!(send(&inner, 41), Inward::Drop("next-header"));
    assert_eq!(send(&inner, 6), Inward::Drop("next-header"));
    assert_eq!(send(&inner[..24], 4), Inward::Drop("inner-malformed"));
    assert_eq!(send(&[], 4), Inward::Drop("next-header"));
}

/// Cut anywhere, and each byte changed: dropped, and counted by a reason.
#[test]
fn damaged_packets_are_dropped() {
    for tunnel in ["", "udp = true"] {
        let spec = Spec {
            tunnel: tunnel.into(),
            ..Spec::default()
        };
        let [mut a, mut b] = spec.gateways();
        let whole = sealed(&mut a, 0, &plain(b"a payload"));
        for len in 0..whole.len() {
            let mut cut = whole[..len].to_vec();
            if len >= 20 {
                cut[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            }
            let fate = b.inward(0, &mut cut);
            assert!(matches!(fate, Inward::Drop(_)), "{len}: {fate:?}");
        }
        let at = if tunnel.is_empty() { 20 } else { 28 };
        for place in at..whole.len() {
            for bit in [1, 0x80] {
                let mut changed = whole.clone();
                changed[place] ^= bit;
                let fate = b.inward(0, &mut changed);
                let is_dropped = matches!(fate, Inward::Drop(_) | Inward::NoSa(None));
                assert!(is_dropped, "{place}: {fate:?}");
            }
        }
        assert!(matches!(opened(&mut b, 0, &whole), Inward::Opened(_)));
    }
}

#[test]
fn tapes_of_packets_and_changes() {
    for seed in seeds(300) {
        let mut rng = Rng::new(seed);
        let len = 200 + rng.below(4000);
        tape::run(&bytes(&mut rng, len));
    }
}

#[test]
fn mistakes_are_refused_with_place_and_remedy_and_without_keys() {
    let good = Spec::default().text(0, 1);
    let key = common::key(1, "aes256gcm");
    for (from, to, why) in [
        ("spi = 1001", "spi = 5", "256"),
        ("spi = 1002", "spi = 1002\nspy = 1", "spy"),
        ("aes256gcm", "aes192gcm", "chacha20poly1305"),
        (&key[..4], &format!("zz{}", &key[2..4]), "72 hexadecimal"),
        (&key[..4], &key[..2], "needs 36"),
        ("tunnel = \"t\"", "tunnel = \"u\"", "write one of t"),
        (
            "remote = \"198.51.100.1\"",
            "remote = \"::1\"",
            "another version",
        ),
        (
            "action = \"protect\"\ntunnel = \"t\"",
            "action = \"protect\"",
            "tunnel",
        ),
        ("udp port 500", "udp prt 500", "match:"),
        ("name = \"t\"", "name = \"t\"\nmtu = 100", "1364"),
        ("name = \"t\"", "name = \"t\"\nlocal_port = 1", "udp = true"),
        (
            "name = \"t\"",
            "name = \"t\"\nkeepalive = \"5\"",
            "number with",
        ),
        ("spi = 1001", "spi = 1001\nwindow = 0", "window"),
        ("spi = 1001", "spi = 1001\nsequence = 5000000000", "esn"),
        (&common::key(2, "aes256gcm"), &key, "the same key"),
    ] {
        assert!(good.contains(from), "{from}");
        let text = good.replacen(from, to, 1);
        let error = Config::parse(&text, &NoNames, 1500).unwrap_err();
        assert!(error.message.contains(why), "{to}: {error}");
        assert!(
            !error.message.contains(&key[8..16]),
            "a key is shown: {error}"
        );
        assert!(error.at.is_some() || why == "the same key", "{to}");
    }
    let keymat = Keymat::of_hex(&key).unwrap();
    assert_eq!(format!("{keymat:?}"), "Keymat(36 bytes)");
    let shown = format!("{:?}", config(&good));
    assert!(!shown.contains(&key[..8]), "{shown}");
}
