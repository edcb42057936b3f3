//! Tags, labels and tunnels, and the offsets that they shift.

mod expr_frames;

use expr_frames::{check, datagram, ethernet, ip4, ip6, refusal, syn, tcp};
use weir_filter::lang::expr::Context;
use weir_wire::LinkType;

const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [10, 0, 0, 2];

fn web() -> Vec<u8> {
    ip4(6, A, B, &syn(40_000, 80))
}

/// A VLAN tag and an EtherType before a payload.
fn tagged(tag: u16, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = tag.to_be_bytes().to_vec();
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn label(label: u32, bottom: bool, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (label << 12 | u32::from(bottom) << 8 | 64)
        .to_be_bytes()
        .to_vec();
    bytes.extend(payload);
    bytes
}

#[test]
fn vlan_tags_shift_what_follows_in_the_text() {
    let plain = tcp(A, B, 40_000, 80);
    let one = ethernet(0x8100, &tagged(5, 0x0800, &web()));
    let two = ethernet(0x88a8, &tagged(0x6007, 0x8100, &tagged(5, 0x0800, &web())));
    let rows = [
        ("vlan", [false, true, true]),
        ("vlan 5", [false, true, false]),
        ("vlan (7)", [false, false, true]),
        ("vlan 5 and tcp port 80", [false, true, false]),
        ("vlan and vlan 5 and host 10.0.0.1", [false, false, true]),
        // The shift also applies after `or` and under `not`.
        ("vlan 7 or tcp", [false, true, true]),
        ("tcp or vlan", [true, true, true]),
        ("not vlan and tcp", [false, false, false]),
        ("vlan and ether[14:2] & 0xfff = 5", [false, true, false]),
    ];
    check(LinkType::EN10MB, &[&plain, &one, &two], &rows);
    let context = Context::new(LinkType::EN10MB);
    assert!(refusal("vlan 4096", &context).contains("at most 4095"));
    assert!(refusal("mpls and vlan", &context).contains("MPLS"));
    assert!(refusal("vlan", &Context::new(LinkType::RAW)).contains("RAW"));
}

#[test]
fn mpls_labels_stack() {
    let one = ethernet(0x8847, &label(100, true, &web()));
    let two = ethernet(0x8847, &label(200, false, &label(100, true, &web())));
    let ppp = [vec![0xff, 0x03, 0x02, 0x81], label(100, true, &web())].concat();
    let rows = [
        ("mpls", [true, true]),
        ("mpls 100", [true, false]),
        ("mpls 200 and mpls 100", [false, true]),
        ("mpls and mpls", [false, true]),
        ("mpls and ip", [true, false]),
        ("mpls and mpls and tcp port 80", [false, true]),
        ("mpls and host 10.0.0.2", [true, false]),
    ];
    check(LinkType::EN10MB, &[&one, &two], &rows);
    check(LinkType::PPP, &[&ppp], &[("mpls 100 and tcp", [true])]);
    let context = Context::new(LinkType::EN10MB);
    assert!(refusal("mpls and arp", &context).contains("MPLS"));
    assert!(refusal("mpls 1048576", &context).contains("at most 1048575"));
}

#[test]
fn pppoe_sessions_carry_ppp() {
    let mut session = vec![0x11, 0, 0x00, 0x2a, 0, 0, 0x00, 0x21];
    session.extend(web());
    let frame = ethernet(0x8864, &session);
    let discovery = ethernet(0x8863, &[0x11, 0x09, 0, 0, 0, 0]);
    let rows = [
        ("pppoes", [true, false]),
        ("pppoed", [false, true]),
        ("pppoes 42", [true, false]),
        ("pppoes 43", [false, false]),
        ("pppoes and tcp dst port 80", [true, false]),
        ("pppoes and ether[0:2] = 0x21", [true, false]),
    ];
    check(LinkType::EN10MB, &[&frame, &discovery], &rows);
    let context = Context::new(LinkType::EN10MB);
    assert!(refusal("pppoes and vlan", &context).contains("encapsulation"));
}

#[test]
fn vxlan_and_geneve_carry_frames() {
    let inner = tcp(A, B, 40_000, 80);
    let vxlan = [&[0x08, 0, 0, 0, 0, 0x04, 0x57, 0][..], &inner].concat();
    let vxlan4 = ethernet(0x0800, &ip4(17, B, A, &datagram(50_000, 4789, &vxlan)));
    let vxlan6 = ethernet(0x86dd, &ip6(17, &datagram(50_000, 4789, &vxlan)));
    let options = [
        0x02, 0, 0x65, 0x58, 0, 0x00, 0x09, 0, 1, 2, 3, 4, 5, 6, 7, 8,
    ];
    let geneve = [&options[..], &inner].concat();
    let geneve4 = ethernet(0x0800, &ip4(17, B, A, &datagram(50_000, 6081, &geneve)));
    let bare = [&[0, 0, 0x08, 0, 0, 0x00, 0x09, 0][..], &web()].concat();
    let geneve_ip = ethernet(0x0800, &ip4(17, B, A, &datagram(50_000, 6081, &bare)));
    let rows = [
        ("vxlan", [true, true, false, false]),
        ("vxlan 1111", [true, true, false, false]),
        ("vxlan 1112", [false; 4]),
        ("vxlan and tcp port 80", [true, true, false, false]),
        ("vxlan and src host 10.0.0.1", [true, true, false, false]),
        ("vxlan and ip6", [false; 4]),
        ("geneve", [false, false, true, true]),
        ("geneve 9 and tcp dst port 80", [false, false, true, true]),
        (
            "geneve and ether host 2:0:0:0:0:1",
            [false, false, true, false],
        ),
        ("geneve and ether[0] = 2", [false, false, true, false]),
        ("geneve and not tcp", [false; 4]),
    ];
    check(
        LinkType::EN10MB,
        &[&vxlan4, &vxlan6, &geneve4, &geneve_ip],
        &rows,
    );
    let context = Context::new(LinkType::EN10MB);
    assert!(refusal("vxlan 16777216", &context).contains("at most 16777215"));
    let many = ["vxlan"; 6].join(" and ");
    assert!(refusal(&many, &context).contains("more than 5"));
}

#[test]
fn protocol_chains_are_followed() {
    let segment = syn(40_000, 80);
    // Hop-by-hop (8 bytes), destination options (16), authentication (24).
    let mut chain = vec![60, 0, 0, 0, 0, 0, 0, 0, 51, 1];
    chain.extend([0; 14]);
    chain.extend([6, 4]);
    chain.extend([0; 22]);
    chain.extend(&segment);
    let v6 = ip6(0, &chain);
    let v4 = ip4(51, A, B, &[&[6, 4][..], &[0; 22], &segment].concat());
    let endless = ip6(0, &[0; 400]);
    let rows = [
        ("ip6 protochain 6", [true, false, false]),
        ("ip protochain 6", [false, true, false]),
        ("protochain 6", [true, true, false]),
        ("ip6 protochain 51", [true, false, false]),
        ("ip6 proto 6", [false, false, false]),
        ("ip6 protochain 17", [false, false, false]),
        // More headers than the limit reject the frame at once.
        ("ip6 and not ip6 protochain 17", [true, false, false]),
    ];
    check(LinkType::RAW, &[&v6, &v4, &endless], &rows);
}
