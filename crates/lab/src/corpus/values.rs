//! Values that occur in the captures, most frequent first, and a few others.

/// IPv4 addresses.
pub const IPV4: [&str; 14] = [
    "10.0.2.15",
    "172.16.0.8",
    "192.168.1.7",
    "192.168.1.2",
    "192.168.1.1",
    "10.0.0.2",
    "64.13.134.52",
    "122.234.41.48",
    "23.246.11.141",
    "10.1.1.10",
    "10.2.2.2",
    "172.17.0.20",
    "192.168.203.1",
    "203.0.113.77",
];

/// IPv4 networks in every notation.
pub const IPV4_NETS: [&str; 16] = [
    "10",
    "192.168",
    "192.168.1",
    "10.0.2.0",
    "10.0.2.0/24",
    "10.0.0.0/8",
    "192.168.0.0/16",
    "172.16.0.0/12",
    "64.13.134.52/32",
    "0.0.0.0/0",
    "128.0.0.0/1",
    "10.0/16",
    "192.168.1/24",
    "10/8",
    "10.0.2.0 mask 255.255.255.0",
    "192.168.0.0 mask 255.255.0.0",
];

/// IPv6 addresses.
pub const IPV6: [&str; 10] = [
    "2a00:d40:1:3:7aac:c0ff:fea7:d4c",
    "fe80::c50d:519f:96a4:e108",
    "2001:470:1f17:13f:3e97:eff:fe73:4dec",
    "2604:a880:1:20::224:b001",
    "2a00:1450:4001:803::1017",
    "2001:db8:1:2::1000",
    "ff02::16",
    "ff02::1:2",
    "8c74:a4eb:df0b:e6d5:e345:16bd:c096:79",
    "2001:db8:ffff::1",
];

/// IPv6 networks.
pub const IPV6_NETS: [&str; 12] = [
    "fe80::/10",
    "ff00::/8",
    "2000::/3",
    "2a00::/16",
    "2001:db8:1:2::/64",
    "2001:db8:1::/48",
    "2001:db8:1:2::1000/128",
    "2001:db8:1:2::/63",
    "2001:db8:1:2::1000/125",
    "2604:a880:1:20::224:0/111",
    "ff02::1:0:0/96",
    "::/0",
];

/// Ethernet addresses.
pub const ETHER: [&str; 8] = [
    "08:00:27:e6:e5:59",
    "00:25:b3:bf:91:ee",
    "52:54:00:12:35:02",
    "b4:02:16:62:8c:82",
    "10:f3:11:1d:80:63",
    "ff:ff:ff:ff:ff:ff",
    "33:33:00:00:00:16",
    "02:00:00:00:00:01",
];

/// Transport ports.
pub const PORTS: [&str; 18] = [
    "80", "443", "53", "22", "8554", "50738", "4500", "28681", "6346", "5060", "67", "500", "4789",
    "137", "5247", "23548", "32836", "1",
];

/// Services by name.
pub const SERVICES: [&str; 12] = [
    "http",
    "https",
    "domain",
    "ssh",
    "ftp",
    "ftp-data",
    "bootps",
    "isakmp",
    "ntp",
    "telnet",
    "tftp",
    "nosuchservice",
];

/// Ranges of transport ports.
pub const PORT_RANGES: [&str; 9] = [
    "0-65535",
    "0-1023",
    "1024-65535",
    "80-443",
    "53-53",
    "443-80",
    "50000-60000",
    "ftp-http",
    "5060-14500",
];

/// VLAN ids of tags in the captures.
pub const VLANS: [&str; 9] = ["217", "301", "303", "5", "1", "1508", "50", "0", "4095"];

/// MPLS labels.
pub const LABELS: [&str; 6] = ["18", "100704", "19", "46", "0", "1048575"];

/// IP protocol numbers.
pub const PROTOCOLS: [&str; 12] = [
    "6", "17", "1", "2", "41", "47", "50", "58", "132", "0", "44", "255",
];

/// IP protocol names.
pub const PROTOCOL_NAMES: [&str; 12] = [
    "\\tcp", "\\udp", "\\icmp", "\\igmp", "\\sctp", "\\esp", "\\ah", "\\pim", "gre", "ospf", "tcp",
    "\\nosuch",
];

/// EtherTypes, and numbers that are lengths.
pub const ETHER_TYPES: [&str; 16] = [
    "0x0800", "0x0806", "0x86dd", "0x8100", "0x88a8", "0x8847", "0x8864", "0x8863", "0x8035",
    "0x9000", "0x2573", "0xfe", "0xaa", "0xe0", "0x42", "1500",
];

/// Ethernet types by name.
pub const ETHER_TYPE_NAMES: [&str; 18] = [
    "\\ip",
    "\\ip6",
    "\\arp",
    "\\rarp",
    "\\stp",
    "\\ipx",
    "\\netbeui",
    "\\iso",
    "\\atalk",
    "\\aarp",
    "\\decnet",
    "\\lat",
    "\\sca",
    "\\moprc",
    "\\mopdl",
    "lldp",
    "slow",
    "loopback",
];

/// Words that form a primitive alone.
pub const ABBREVIATIONS: [&str; 45] = [
    "ip", "ip6", "arp", "rarp", "tcp", "udp", "sctp", "icmp", "icmp6", "igmp", "igrp", "pim",
    "vrrp", "carp", "ah", "esp", "atalk", "aarp", "decnet", "lat", "sca", "moprc", "mopdl", "iso",
    "esis", "es-is", "isis", "is-is", "clnp", "l1", "l2", "iih", "lsp", "snp", "csnp", "psnp",
    "stp", "ipx", "netbeui", "ether", "link", "fddi", "wlan", "ppp", "radio",
];

/// Protocols before `[` in a packet data accessor, valid and invalid.
pub const ACCESSORS: [&str; 34] = [
    "ether", "link", "fddi", "tr", "wlan", "ppp", "slip", "arp", "rarp", "ip", "ip6", "tcp", "udp",
    "sctp", "icmp", "icmp6", "igmp", "igrp", "pim", "vrrp", "carp", "atalk", "decnet", "lat",
    "sca", "moprc", "mopdl", "radio", "ah", "esp", "stp", "iso", "isis", "ipx",
];

/// Named constants: ICMP, ICMPv6 and TCP flags.
pub const CONSTANTS: [&str; 57] = [
    "icmptype",
    "icmpcode",
    "icmp6type",
    "icmp6code",
    "tcpflags",
    "icmp-echoreply",
    "icmp-unreach",
    "icmp-sourcequench",
    "icmp-redirect",
    "icmp-echo",
    "icmp-routeradvert",
    "icmp-routersolicit",
    "icmp-timxceed",
    "icmp-paramprob",
    "icmp-tstamp",
    "icmp-tstampreply",
    "icmp-ireq",
    "icmp-ireqreply",
    "icmp-maskreq",
    "icmp-maskreply",
    "icmp6-destinationunreach",
    "icmp6-packettoobig",
    "icmp6-timeexceeded",
    "icmp6-parameterproblem",
    "icmp6-echo",
    "icmp6-echoreply",
    "icmp6-multicastlistenerquery",
    "icmp6-multicastlistenerreportv1",
    "icmp6-multicastlistenerdone",
    "icmp6-routersolicit",
    "icmp6-routeradvert",
    "icmp6-neighborsolicit",
    "icmp6-neighboradvert",
    "icmp6-redirect",
    "icmp6-routerrenum",
    "icmp6-nodeinformationquery",
    "icmp6-nodeinformationresponse",
    "icmp6-ineighbordiscoverysolicit",
    "icmp6-ineighbordiscoveryadvert",
    "icmp6-multicastlistenerreportv2",
    "icmp6-homeagentdiscoveryrequest",
    "icmp6-homeagentdiscoveryreply",
    "icmp6-mobileprefixsolicit",
    "icmp6-mobileprefixadvert",
    "icmp6-certpathsolicit",
    "icmp6-certpathadvert",
    "icmp6-multicastrouteradvert",
    "icmp6-multicastroutersolicit",
    "icmp6-multicastrouterterm",
    "tcp-fin",
    "tcp-syn",
    "tcp-rst",
    "tcp-push",
    "tcp-ack",
    "tcp-urg",
    "tcp-ece",
    "tcp-cwr",
];

/// Direction qualifiers, including none.
pub const DIRECTIONS: [&str; 7] = [
    "",
    "src ",
    "dst ",
    "src or dst ",
    "src and dst ",
    "dst or src ",
    "dst and src ",
];
