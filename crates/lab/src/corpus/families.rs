//! Templates of expressions: each family of pcap-filter(7), combined with its
//! values.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::values::*;

/// A family's name and the function that generates its expressions.
type Family = (&'static str, fn() -> Vec<String>);

/// Every family of templates.
pub(super) const FAMILIES: [Family; 14] = [
    ("hosts", hosts),
    ("nets", nets),
    ("ports", ports),
    ("portranges", port_ranges),
    ("ether", ether),
    ("protocols", protocols),
    ("chains", chains),
    ("abbreviations", abbreviations),
    ("qualifiers", qualifiers),
    ("accessors", accessors),
    ("operators", operators),
    ("constants", constants),
    ("tags", tags),
    ("lengths", lengths),
];

fn hosts() -> Vec<String> {
    let mut all = Vec::new();
    for direction in DIRECTIONS {
        for proto in ["", "ip ", "arp ", "rarp "] {
            all.push(format!("{proto}{direction}host 10.0.2.15"));
            all.push(format!("{proto}{direction}host 192.168.1.2"));
        }
        for proto in ["", "ip6 "] {
            all.push(format!("{proto}{direction}host ff02::1:2"));
            all.push(format!("{proto}{direction}host 2001:db8:1:2::1000"));
        }
        all.push(format!("{direction}172.16.0.8"));
        all.push(format!("{direction}fe80::c50d:519f:96a4:e108"));
    }
    for address in IPV4 {
        all.push(format!("host {address}"));
        all.push(format!("src {address}"));
        all.push(format!("ip dst host {address}"));
        all.push(format!("arp host {address}"));
    }
    for address in IPV6 {
        all.push(format!("host {address}"));
        all.push(format!("src {address}"));
        all.push(format!("ip6 dst host {address}"));
    }
    for pair in IPV4.windows(2) {
        all.push(format!("host {} and {}", pair[0], pair[1]));
        all.push(format!("src {} or dst {}", pair[0], pair[1]));
    }
    all
}

fn nets() -> Vec<String> {
    let mut all = Vec::new();
    for net in IPV4_NETS {
        for direction in DIRECTIONS {
            all.push(format!("{direction}net {net}"));
        }
        for proto in ["ip", "arp", "rarp", "ip6"] {
            all.push(format!("{proto} net {net}"));
        }
        all.push(format!("not net {net}"));
    }
    for net in IPV6_NETS {
        for direction in DIRECTIONS {
            all.push(format!("{direction}net {net}"));
        }
        all.push(format!("ip6 net {net}"));
        all.push(format!("ip net {net}"));
    }
    // Host bits must be zero and are cleared here; the last lengths of each
    // family are too long on purpose.
    for bits in 0..=33 {
        let net = Ipv4Addr::from_bits(0x0a00_020f & prefix(bits + 96) as u32);
        all.push(format!("net {net}/{bits}"));
    }
    for bits in (0..=136).step_by(8) {
        let address: u128 = 0x2001_0db8_0001_0002_0000_0000_0000_1000;
        let net = Ipv6Addr::from_bits(address & prefix(bits));
        all.push(format!("src net {net}/{bits}"));
        all.push(format!("net {net}/{}", bits + 3));
    }
    all
}

/// 128 bits of which the first `bits` are set; all of them for 128 and more.
fn prefix(bits: u32) -> u128 {
    !u128::MAX.checked_shr(bits).unwrap_or(0)
}

fn ports() -> Vec<String> {
    let mut all = Vec::new();
    let ids = PORTS.iter().chain(&SERVICES);
    for (index, id) in ids.enumerate() {
        all.push(format!("port {id}"));
        for proto in ["tcp", "udp", "sctp"] {
            let direction = DIRECTIONS[index % DIRECTIONS.len()];
            all.push(format!("{proto} {direction}port {id}"));
            all.push(format!("{proto} port {id}"));
        }
        all.push(format!("src port {id}"));
        all.push(format!("dst port {id}"));
    }
    for direction in DIRECTIONS {
        all.push(format!("{direction}port 53"));
        all.push(format!("udp {direction}port 53"));
        all.push(format!("tcp {direction}port 443"));
        all.push(format!("{direction}port domain"));
    }
    all
}

fn port_ranges() -> Vec<String> {
    let mut all = Vec::new();
    for range in PORT_RANGES {
        for direction in DIRECTIONS {
            all.push(format!("{direction}portrange {range}"));
        }
        for proto in ["tcp", "udp", "sctp", "icmp", "ip"] {
            all.push(format!("{proto} portrange {range}"));
            all.push(format!("{proto} dst portrange {range}"));
        }
    }
    all
}

fn ether() -> Vec<String> {
    let mut all = Vec::new();
    for address in ETHER {
        for direction in DIRECTIONS {
            all.push(format!("ether {direction}host {address}"));
        }
        all.push(format!("ether src {address}"));
        all.push(format!("link dst {address}"));
        all.push(format!("wlan src host {address}"));
        let dashed = address.replace(':', "-");
        let dotted = address.replace(':', ".");
        let bare = address.replace(':', "");
        let cisco = format!("{}.{}.{}", &bare[..4], &bare[4..8], &bare[8..]);
        for form in [dashed, dotted, bare.to_uppercase(), bare, cisco] {
            all.push(format!("ether host {form}"));
        }
    }
    for link in ["ether", "link", "fddi", "tr", "wlan", "ppp", "slip"] {
        all.push(format!("{link} broadcast"));
        all.push(format!("{link} multicast"));
        all.push(format!("{link} host ff:ff:ff:ff:ff:ff"));
        for id in ETHER_TYPES.iter().chain(&ETHER_TYPE_NAMES) {
            all.push(format!("{link} proto {id}"));
        }
    }
    for number in [0x21, 0x23, 0x27, 0x29, 0x2b, 0x57, 0x281, 0x283, 0xc021] {
        all.push(format!("link proto {number}"));
    }
    all
}

fn protocols() -> Vec<String> {
    let mut all = Vec::new();
    for id in PROTOCOLS.iter().chain(&PROTOCOL_NAMES) {
        for proto in ["", "ip ", "ip6 ", "iso ", "isis ", "arp ", "tcp "] {
            all.push(format!("{proto}proto {id}"));
        }
        all.push(format!("not ip proto {id}"));
    }
    for id in ["\\clnp", "\\esis", "\\isis", "0x81", "0x82", "0x83"] {
        all.push(format!("iso proto {id}"));
    }
    for id in 15..=28 {
        all.push(format!("isis proto {id}"));
    }
    all
}

fn chains() -> Vec<String> {
    let mut all = Vec::new();
    for id in PROTOCOLS.iter().chain(&PROTOCOL_NAMES) {
        for proto in ["", "ip ", "ip6 ", "tcp "] {
            all.push(format!("{proto}protochain {id}"));
        }
    }
    for rest in ["tcp", "ip6 protochain 58", "len > 100", "port 53"] {
        all.push(format!("ip6 protochain 17 and {rest}"));
        all.push(format!("ip protochain 17 or {rest}"));
        all.push(format!("{rest} and not ip6 protochain 6"));
    }
    all
}

fn abbreviations() -> Vec<String> {
    let mut all = Vec::new();
    for word in ABBREVIATIONS {
        all.push(word.to_owned());
        all.push(format!("not {word}"));
        all.push(format!("{word} or tcp"));
        all.push(format!("vlan and {word}"));
    }
    for word in ["llc", "llc i", "llc s", "llc u", "llc rr", "llc rnr"] {
        all.push(word.to_owned());
        all.push(format!("{word} and ether[14] = 0xaa"));
    }
    for word in ["ui", "ua", "disc", "dm", "sabme", "test", "xid", "frmr"] {
        all.push(format!("llc {word} or arp"));
    }
    all
}

/// Every protocol qualifier with every type of id: most combinations are
/// errors, and which are valid is part of the language.
fn qualifiers() -> Vec<String> {
    let mut all = Vec::new();
    let protos = [
        "ether", "link", "ip", "ip6", "arp", "rarp", "tcp", "udp", "sctp", "icmp", "icmp6", "igmp",
        "igrp", "pim", "vrrp", "carp", "ah", "esp", "atalk", "aarp", "decnet", "lat", "sca",
        "moprc", "mopdl", "iso", "esis", "isis", "clnp", "l1", "stp", "ipx", "netbeui", "radio",
    ];
    for proto in protos {
        for rest in [
            "host 10.0.2.15",
            "host ff02::1:2",
            "host 08:00:27:e6:e5:59",
            "net 10.0.0.0/8",
            "net 10",
            "port 53",
            "portrange 1-100",
            "proto 6",
            "protochain 6",
            "gateway localhost",
            "broadcast",
            "multicast",
            "src 10.0.2.15",
            "dst 80",
            "53",
            "host localhost",
        ] {
            all.push(format!("{proto} {rest}"));
        }
    }
    all
}

fn accessors() -> Vec<String> {
    let mut all = Vec::new();
    for word in ACCESSORS {
        all.push(format!("{word}[0] = 0x45"));
        all.push(format!("{word}[0] & 1 != 0"));
        all.push(format!("{word}[2:2] > 80"));
        all.push(format!("{word}[4:4] != 0"));
        all.push(format!("{word}[{word}[0] & 3] > 4"));
    }
    let fields = [
        "ether[12:2]",
        "ether[6:4]",
        "ip[8]",
        "ip[2:2]",
        "ip[12:4]",
        "ip6[6]",
        "ip6[4:2]",
        "ip6[8:4]",
        "tcp[0:2]",
        "tcp[13]",
        "tcp[14:2]",
        "udp[2:2]",
        "udp[4:2]",
        "icmp[0]",
        "arp[6:2]",
        "sctp[2:2]",
        "len",
    ];
    let values = [
        "0",
        "6",
        "64",
        "80",
        "0x35",
        "443",
        "1500",
        "0x0800",
        "0xffffffff",
    ];
    let relations = [">", "<", ">=", "<=", "=", "==", "!="];
    for (row, field) in fields.iter().enumerate() {
        for (column, relation) in relations.iter().enumerate() {
            let value = values[(row + column) % values.len()];
            all.push(format!("{field} {relation} {value}"));
            let other = fields[(row + column + 1) % fields.len()];
            all.push(format!("{field} {relation} {other}"));
        }
    }
    all
}

fn operators() -> Vec<String> {
    let mut all = Vec::new();
    for operator in ["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"] {
        for (a, b) in [
            ("len", "3"),
            ("len", "0"),
            ("100", "len"),
            ("ip[2:2]", "20"),
            ("ip[8]", "ip[9]"),
            ("ether[13]", "2"),
            ("tcp[0:2]", "tcp[2:2]"),
            ("ip[12:4]", "0xffffff00"),
            ("7", "3"),
            ("0x80000000", "2"),
            ("5", "0"),
            ("len", "32"),
        ] {
            all.push(format!("{a} {operator} {b} > 60"));
            all.push(format!("({a} {operator} {b}) & 1 = 1"));
        }
        all.push(format!("len {operator} 5 {operator} 2 != 20"));
        all.push(format!("len {operator} (5 {operator} 2) != 20"));
        all.push(format!("ip[len {operator} 50] != 0"));
    }
    all
}

fn constants() -> Vec<String> {
    let mut all = Vec::new();
    for name in CONSTANTS {
        let field = match name {
            _ if name.starts_with("icmp6-") => "icmp6[icmp6type]",
            _ if name.starts_with("icmp-") => "icmp[icmptype]",
            _ => "tcp[tcpflags]",
        };
        all.push(format!("{field} = {name}"));
        all.push(format!("{field} & {name} != 0"));
        all.push(format!("udp[{name}] > 100"));
    }
    all
}

fn tags() -> Vec<String> {
    let mut all = Vec::new();
    let inner = ["", " and ip", " and tcp", " and port 443", " and ip6"];
    for id in VLANS {
        for rest in inner {
            all.push(format!("vlan {id}{rest}"));
        }
        all.push(format!("vlan and vlan {id} and ip"));
    }
    for label in LABELS {
        for rest in inner {
            all.push(format!("mpls {label}{rest}"));
        }
        all.push(format!("mpls and mpls {label}"));
    }
    for id in ["59", "23", "0", "65535"] {
        for rest in inner {
            all.push(format!("pppoes {id}{rest}"));
        }
    }
    for word in ["geneve", "vxlan"] {
        for id in ["1111", "0", "16777215"] {
            for rest in inner {
                all.push(format!("{word} {id}{rest}"));
            }
        }
    }
    let words = ["vlan", "mpls", "pppoes", "geneve", "vxlan"];
    for outer in words {
        for inner in words {
            all.push(format!("{outer} and {inner} and tcp port 80"));
            all.push(format!("({outer} or {inner}) and ip"));
            all.push(format!("{outer} or {inner} and udp"));
        }
    }
    all
}

fn lengths() -> Vec<String> {
    let mut all = Vec::new();
    for length in [0, 1, 14, 42, 60, 64, 66, 74, 128, 576, 1499, 1514, 65535] {
        all.push(format!("less {length}"));
        all.push(format!("greater {length}"));
        all.push(format!("len = {length}"));
        all.push(format!("length > {length} and tcp"));
        all.push(format!("byte 13 < {}", length & 0xff));
        all.push(format!("byte {} > 5", length % 100));
    }
    all
}
