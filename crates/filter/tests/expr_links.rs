//! The rules of the link types.

mod expr_frames;

use expr_frames::{check, ethernet, ip4, ip6, refusal, syn};
use weir_filter::lang::expr::{Context, compile};
use weir_wire::LinkType;

fn packets() -> (Vec<u8>, Vec<u8>) {
    let web = ip4(6, [10, 0, 0, 1], [10, 0, 0, 2], &syn(40_000, 80));
    (web, ip6(6, &syn(40_000, 80)))
}

fn after(head: &[u8], packet: &[u8]) -> Vec<u8> {
    [head, packet].concat()
}

#[test]
fn raw_ip_is_told_by_its_version() {
    let (v4, v6) = packets();
    let rows = [
        ("ip", [true, false]),
        ("ip6", [false, true]),
        ("tcp port 80", [true, true]),
        ("host 10.0.0.1", [true, false]),
    ];
    check(LinkType::RAW, &[&v4, &v6], &rows);
    check(
        LinkType::IPV4,
        &[&v4],
        &[("tcp port 80", [true]), ("ip", [true])],
    );
    check(
        LinkType::IPV6,
        &[&v6],
        &[("tcp port 80", [true]), ("not ip", [true])],
    );
    for linktype in [LinkType::RAW, LinkType::IPV4, LinkType::IPV6] {
        let refused = refusal("arp", &Context::new(linktype));
        assert!(refused.contains("no packet"), "{refused}");
    }
    let refused = refusal("ip6", &Context::new(LinkType::IPV4));
    assert!(refused.contains("no packet"), "{refused}");
}

#[test]
fn loopback_families_are_read_in_either_order() {
    let (v4, v6) = packets();
    let little = after(&[2, 0, 0, 0], &v4);
    let big = after(&[0, 0, 0, 2], &v4);
    let little6 = after(&[30, 0, 0, 0], &v6);
    let big6 = after(&[0, 0, 0, 28], &v6);
    let frames = [&little[..], &big, &little6, &big6];
    let null = [
        ("ip", [true, true, false, false]),
        ("ip6", [false, false, true, true]),
        ("tcp port 80", [true; 4]),
    ];
    check(LinkType::NULL, &frames, &null);
    let open = [
        ("ip", [false, true, false, false]),
        ("ip6", [false, false, false, true]),
        ("link[3] = 2", [false, true, false, false]),
    ];
    check(LinkType::LOOP, &frames, &open);
}

#[test]
fn cooked_captures_know_direction_and_interface() {
    let (v4, _) = packets();
    let head = |kind: u8| [0, kind, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0x08, 0];
    let (inward, outward) = (after(&head(0), &v4), after(&head(4), &v4));
    let stp = after(
        &[0, 2, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0, 4],
        &[0x42, 0x42, 0x03, 0, 0],
    );
    let rows = [
        ("inbound", [true, false, true]),
        ("outbound", [false, true, false]),
        ("tcp port 80", [true, true, false]),
        ("stp", [false, false, true]),
    ];
    check(LinkType::LINUX_SLL, &[&inward, &outward, &stp], &rows);

    let head2 = |index: u8, kind: u8| {
        [
            0x08, 0, 0, 0, 0, 0, 0, index, 0, 1, kind, 6, 2, 0, 0, 0, 0, 1, 0, 0,
        ]
    };
    let (first, second) = (after(&head2(1, 0), &v4), after(&head2(2, 4), &v4));
    let rows = [
        ("ifindex 2", [false, true]),
        ("inbound", [true, false]),
        ("tcp port 80", [true, true]),
    ];
    check(LinkType::LINUX_SLL2, &[&first, &second], &rows);
    for text in ["inbound", "outbound", "ifindex 1"] {
        let refused = refusal(text, &Context::new(LinkType::EN10MB));
        assert!(refused.contains("EN10MB"), "{refused}");
    }
    for (text, instead) in [("inbound", "`not ether src "), ("outbound", "`ether src ")] {
        let refused = refusal(text, &Context::new(LinkType::EN10MB));
        assert!(refused.contains(instead), "{refused}");
    }
}

#[test]
fn ppp_has_numbers_of_its_own() {
    let (v4, v6) = packets();
    let four = after(&[0xff, 0x03, 0x00, 0x21], &v4);
    let six = after(&[0xff, 0x03, 0x00, 0x57], &v6);
    let lcp = vec![0xff, 0x03, 0xc0, 0x21, 1, 1, 0, 4];
    let rows = [
        ("ip", [true, false, false]),
        ("ip6 and tcp", [false, true, false]),
        ("ppp proto 0xc021", [false, false, true]),
        ("link proto 0x0800", [true, false, false]),
    ];
    check(LinkType::PPP, &[&four, &six, &lcp], &rows);
}

#[test]
fn logical_links_on_ethernet() {
    // A length, then LLC: IS-IS, a spanning tree hello, NetBEUI, Novell's 0xffff, and
    // IPX and AppleTalk in SNAP.
    let frame = |llc: &[u8]| ethernet(llc.len() as u16, llc);
    let isis = frame(&[0xfe, 0xfe, 0x03, 0x83, 27, 1, 0, 15, 1, 0]);
    let hello = frame(&[0x42, 0x42, 0x03, 0, 0, 0]);
    let novell = frame(&[0xff, 0xff, 0x00, 0x1e, 0, 0, 0, 0, 0, 0]);
    let snap_ipx = frame(&[0xaa, 0xaa, 0x03, 0, 0, 0, 0x81, 0x37, 0xff, 0xff]);
    let snap_atalk = frame(&[0xaa, 0xaa, 0x03, 8, 0, 7, 0x80, 0x9b]);
    let ready = frame(&[0xf0, 0xf0, 0x01, 0x00]);
    let frames = [&isis[..], &hello, &novell, &snap_ipx, &snap_atalk, &ready];
    let rows = [
        ("isis", [true, false, false, false, false, false]),
        (
            "iso proto \\isis",
            [true, false, false, false, false, false],
        ),
        ("iih and l1", [true, false, false, false, false, false]),
        ("isis proto 15", [true, false, false, false, false, false]),
        ("stp", [false, true, false, false, false, false]),
        ("ipx", [false, false, true, true, false, false]),
        ("atalk", [false, false, false, false, true, false]),
        ("netbeui", [false, false, false, false, false, true]),
        ("llc", [true, true, false, true, true, true]),
        ("llc ui", [true, true, false, true, true, false]),
        ("llc s", [false, false, false, false, false, true]),
        ("llc rr", [false, false, false, false, false, true]),
        ("llc rnr", [false; 6]),
        (
            "ether proto 0x42",
            [false, true, false, false, false, false],
        ),
    ];
    check(LinkType::EN10MB, &frames, &rows);
    // `isis` is a keyword, so as a name it needs a backslash.
    let refused = refusal("iso proto isis", &Context::new(LinkType::EN10MB));
    assert!(refused.contains("\\isis"), "{refused}");
}

#[test]
fn the_experimental_ethernet_has_bytes_only() {
    let frame = [3, 9, 0, 2, 0, 0x16];
    let rows = [
        ("ether[2:2] = 2", [true]),
        ("link[0] = 3 and link[1] = 9", [true]),
        ("byte 0 = 3", [true]),
        ("len = 6", [true]),
        ("less 5", [false]),
    ];
    check(LinkType::EN3MB, &[&frame], &rows);
    for text in [
        "ip",
        "tcp port 80",
        "host 10.0.0.1",
        "ether host 1:2:3:4:5:6",
        "broadcast",
    ] {
        let refused = refusal(text, &Context::new(LinkType::EN3MB));
        assert!(refused.contains("EN3MB"), "{refused}");
    }
}

#[test]
fn unknown_links_have_lengths_only() {
    let context = Context::new(LinkType(147));
    for text in ["", "len > 100", "greater 60 and not less 10", "1 + 1 = 2"] {
        assert!(compile(text, &context).is_ok(), "`{text}`");
    }
    for text in [
        "ip",
        "ether[0] = 1",
        "tcp[0] = 1",
        "byte 0 = 1",
        "vlan",
        "inbound",
        "llc",
    ] {
        let refused = refusal(text, &context);
        assert!(refused.contains("147"), "{refused}");
    }
}
