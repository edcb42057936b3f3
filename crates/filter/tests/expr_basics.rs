//! Expressions on hand-made Ethernet frames.

mod expr_frames;

use expr_frames::{arp, check, ip6_tcp, tcp, udp};
use weir_wire::LinkType;

#[test]
fn addresses_and_ports() {
    let web = tcp([10, 0, 0, 1], [10, 0, 0, 2], 40_000, 80);
    let dns = udp([10, 0, 0, 1], [192, 168, 1, 9], 53_000, 53);
    let web6 = ip6_tcp(40_000, 80);
    let who = arp([10, 0, 0, 2], [10, 0, 0, 1]);
    let frames = [&web[..], &dns, &web6, &who];
    let rows: &[(&str, [bool; 4])] = &[
        ("", [true, true, true, true]),
        ("ip", [true, true, false, false]),
        ("ip6", [false, false, true, false]),
        ("arp", [false, false, false, true]),
        ("tcp", [true, false, true, false]),
        ("udp or arp", [false, true, false, true]),
        ("tcp port 80 or 443", [true, false, true, false]),
        ("port 53", [false, true, false, false]),
        ("src port 80", [false, false, false, false]),
        ("dst portrange 50-100", [true, true, true, false]),
        ("host 10.0.0.2", [true, false, false, true]),
        ("src host 10.0.0.2", [false, false, false, true]),
        ("ip host 10.0.0.2", [true, false, false, false]),
        ("net 10.0.0.0/8 and not arp", [true, true, false, false]),
        ("src and dst net 10", [true, false, false, true]),
        ("ip6 host 2001:db8::1", [false, false, true, false]),
        ("net 2001:db8::/32", [false, false, true, false]),
        ("not tcp and not udp", [false, false, false, true]),
        ("udp or tcp and src port 53", [false, false, false, false]),
        ("udp or (tcp and ip)", [true, true, false, false]),
        ("ip[9] = 17", [false, true, false, false]),
        ("tcp[tcpflags] & tcp-syn != 0", [true, false, false, false]),
        ("len < 43", [false, true, false, true]),
        ("less 42", [false, true, false, true]),
        ("ether[12:2] = 0x86dd", [false, false, true, false]),
    ];
    check(LinkType::EN10MB, &frames, rows);
}
