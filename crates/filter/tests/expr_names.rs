//! Addresses in all spellings, and names through the `Names` trait.

mod expr_frames;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use expr_frames::{arp, check, check_in, ethernet, ip4, refusal, tcp, udp};
use weir_filter::lang::expr::{Context, NameKind, Names, Transport};
use weir_wire::LinkType;

struct Table;

impl Names for Table {
    fn hosts(&self, name: &str) -> Vec<IpAddr> {
        match name {
            "server" => vec![
                Ipv6Addr::LOCALHOST.into(),
                Ipv4Addr::new(10, 0, 0, 2).into(),
                Ipv4Addr::new(10, 0, 0, 9).into(),
            ],
            "router" => vec![Ipv4Addr::new(10, 0, 0, 254).into()],
            _ => Vec::new(),
        }
    }

    fn network(&self, name: &str) -> Option<u32> {
        (name == "office").then_some(0x0a00)
    }

    fn service(&self, name: &str, transport: Transport) -> Option<u16> {
        match (name, transport) {
            ("http", Transport::Tcp) => Some(80),
            ("domain", _) => Some(53),
            ("syslog", Transport::Udp) => Some(514),
            _ => None,
        }
    }

    fn protocol(&self, name: &str) -> Option<u8> {
        (name == "tcp").then_some(6)
    }

    fn ether_host(&self, name: &str) -> Option<[u8; 6]> {
        (name == "router").then_some([2, 0, 0, 0, 0, 2])
    }

    fn candidates(&self, kind: NameKind) -> Vec<String> {
        match kind {
            NameKind::Service => vec!["http".to_owned(), "domain".to_owned()],
            _ => Vec::new(),
        }
    }
}

#[test]
fn names_are_looked_up() {
    let context = Context::new(LinkType::EN10MB).with_names(&Table);
    let web = tcp([10, 0, 0, 1], [10, 0, 0, 2], 40_000, 80);
    let dns = udp([10, 0, 0, 9], [192, 168, 1, 9], 53_000, 53);
    let rows = [
        ("host server", [true, true]),
        ("dst host server", [true, false]),
        ("ip6 host server", [false, false]),
        ("net office", [true, true]),
        ("dst net office", [true, false]),
        ("port http", [true, false]),
        ("port domain or http", [true, true]),
        ("portrange http-81", [true, false]),
        ("ip proto \\tcp", [true, false]),
        ("ether dst router", [true, true]),
        // Through the router: from or to its MAC address, not its IP address.
        ("gateway router", [true, true]),
        ("ether proto \\ip", [true, true]),
        ("port \\53", [false, true]),
        ("host \\10.1", [true, false]),
    ];
    check_in(&context, &[&web, &dns], &rows);
    for (text, words) in [
        ("udp port http", &["one of tcp"][..]),
        ("sctp port syslog", &["one of udp"]),
        ("port htpt", &["unknown port `htpt`", "`http`"]),
        ("host nobody", &["unknown host `nobody`"]),
        ("net nowhere", &["unknown network"]),
        ("ip proto \\xyz", &["unknown protocol"]),
        ("ether host server", &["unknown Ethernet host"]),
        ("gateway server", &["unknown Ethernet host"]),
        ("ip6 host router", &["no address of this family"]),
        ("portrange http", &["no range"]),
    ] {
        let refused = refusal(text, &context);
        assert!(
            words.iter().all(|word| refused.contains(word)),
            "{text}: {refused}"
        );
    }
}

#[test]
fn addresses_have_many_spellings() {
    let web = tcp([10, 0, 0, 1], [10, 0, 0, 2], 40_000, 80);
    let rows: [(&str, [bool; 1]); 19] = [
        ("ether host 02:00:00:00:00:01", [true]),
        ("ether src 2:0:0:0:0:1", [true]),
        ("ether dst 02-00-00-00-00-02", [true]),
        ("ether src 2.0.0.0.0.1", [true]),
        ("ether src 0200.0000.0001", [true]),
        ("ether src 020000000001", [true]),
        ("ether src and dst 2:0:0:0:0:1", [false]),
        ("net 10", [true]),
        ("net 10.0", [true]),
        ("net 10.0.0", [true]),
        ("net 10.0.0.0/30", [true]),
        ("net 10.0.0.0 mask 255.255.255.252", [true]),
        ("net 10.0.0.4/30", [false]),
        ("net 0.0.0.0/0", [true]),
        ("src net 10 and dst net 10.0.0.2/32", [true]),
        ("host 010.0.0.1", [true]),
        ("net ::/0", [false]),
        ("host 10.0.0.1 or ::1", [true]),
        ("portrange 80", [true]),
    ];
    check(LinkType::EN10MB, &[&web], &rows);
    let context = Context::new(LinkType::EN10MB);
    for (text, word) in [
        ("net 10.0.0.1/8", "10.0.0.0"),
        ("net 2001:db8::1/32", "2001:db8::/32"),
        ("host 10.0.0.0/8", "`net`"),
        ("ip host ::1", "`ip`"),
        ("tcp host 10.0.0.1", "`tcp`"),
        ("host 256.1.1.1", "at most 255"),
        ("host 1:2:3:4:5:6", "`ether"),
        ("ether host 10.0.0.1", "MAC"),
        ("net 10.0.0.0/33", "at most 32"),
        ("net ::/129", "at most 128"),
        ("host $1f", "ARCnet"),
    ] {
        let refused = refusal(text, &context);
        assert!(refused.contains(word), "{text}: {refused}");
    }
}

#[test]
fn broadcast_and_multicast() {
    let mut all = arp([10, 0, 0, 1], [10, 0, 0, 2]);
    all[..6].fill(0xff);
    let mut group = ethernet(0x0800, &ip4(2, [10, 0, 0, 1], [224, 0, 0, 1], &[]));
    group[..3].copy_from_slice(&[1, 0, 0x5e]);
    let directed = ethernet(0x0800, &ip4(17, [10, 0, 0, 1], [10, 0, 0, 255], &[0; 8]));
    let frames = [&all[..], &group, &directed];
    let rows = [
        ("broadcast", [true, false, false]),
        ("ether multicast", [true, true, false]),
        ("ip multicast", [false, true, false]),
        ("ip6 multicast", [false; 3]),
    ];
    check(LinkType::EN10MB, &frames, &rows);
    let context = Context {
        netmask: Some(Ipv4Addr::new(255, 255, 255, 0)),
        ..Context::new(LinkType::EN10MB)
    };
    check_in(&context, &frames, &[("ip broadcast", [false, false, true])]);
    let refused = refusal("ip broadcast", &Context::new(LinkType::EN10MB));
    assert!(refused.contains("mask"), "{refused}");
}

#[test]
fn decnet_addresses() {
    // A short routing header after a length and a padding byte: to 1.16, from 1.15.
    let node = |n: u16| (1 << 10 | n).to_le_bytes();
    let mut header = vec![20, 0, 0x81, 0x02];
    header.extend(node(16));
    header.extend(node(15));
    header.extend([0; 20]);
    let frame = ethernet(0x6003, &header);
    let rows = [
        ("decnet", [true]),
        ("decnet host 1.15", [true]),
        ("decnet src 1.15", [true]),
        ("decnet dst 1.15", [false]),
        ("decnet src 1.15 and decnet dst 1.16", [true]),
    ];
    check(LinkType::EN10MB, &[&frame], &rows);
    let context = Context::new(LinkType::EN10MB);
    assert!(refusal("decnet host 64.1", &context).contains("at most 63"));
    assert!(refusal("decnet host 1.1024", &context).contains("1023"));
}
