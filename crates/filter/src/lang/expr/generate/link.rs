//! The protocol of a link layer's payload.
//!
//! A type field of at most 1500 is a length, and an LLC header follows. Sources:
//! IEEE 802.3 and 802.2, RFC 1042 (SNAP), RFC 1661 (PPP), and the LINKTYPE_ registry of
//! tcpdump.org (cooked and loopback captures).

use super::*;

pub(super) const IP: u32 = 0x0800;
pub(super) const ARP: u32 = 0x0806;
pub(super) const DECNET: u32 = 0x6003;
pub(super) const BRIDGED_ETHERNET: u32 = 0x6558;
pub(super) const RARP: u32 = 0x8035;
pub(super) const VLAN: [u32; 3] = [0x8100, 0x88a8, 0x9100];
pub(super) const IP6: u32 = 0x86dd;
pub(super) const MPLS: u32 = 0x8847;
pub(super) const PPPOE_DISCOVERY: u32 = 0x8863;
pub(super) const PPPOE_SESSION: u32 = 0x8864;
const NS: u32 = 0x0600;
const ATALK: u32 = 0x809b;
const AARP: u32 = 0x80f3;
const IPX: u32 = 0x8137;

/// MPLS as a PPP protocol (RFC 3032 §4.3).
pub(super) const PPP_MPLS: u32 = 0x0281;

const SAP_IP: u32 = 0x06;
const SAP_STP: u32 = 0x42;
const SAP_IPX: u32 = 0xe0;
const SAP_NETBEUI: u32 = 0xf0;
pub(super) const SAP_ISO: u32 = 0xfe;

/// The largest length in an 802.3 length field, in bytes.
const LENGTH_MAX: u32 = 1500;

/// Protocol fields of cooked captures: 802.3 without LLC (Novell), and 802.2
/// (`ETH_P_802_3`, `ETH_P_802_2`).
const COOKED_802_3: u32 = 0x0001;
const COOKED_802_2: u32 = 0x0004;

/// Address families in loopback captures: IPv4 on all systems; IPv6 on NetBSD and
/// OpenBSD, on FreeBSD, and on Darwin.
const AF_INET: u32 = 2;
const AF_INET6: [u32; 3] = [24, 28, 30];

/// The link-layer number of a protocol keyword: an EtherType, or an LLC service access
/// point (at most 255). `None` if the keyword has none.
pub(super) fn keyword_type(proto: Proto) -> Option<u32> {
    Some(match proto {
        Proto::Ip => IP,
        Proto::Ip6 => IP6,
        Proto::Arp => ARP,
        Proto::Rarp => RARP,
        Proto::Atalk => ATALK,
        Proto::Aarp => AARP,
        Proto::Decnet => DECNET,
        Proto::Sca => 0x6007,
        Proto::Lat => 0x6004,
        Proto::Mopdl => 0x6001,
        Proto::Moprc => 0x6002,
        Proto::Iso => SAP_ISO,
        Proto::Stp => SAP_STP,
        Proto::Ipx => SAP_IPX,
        Proto::Netbeui => SAP_NETBEUI,
        _ => return None,
    })
}

/// The protocol names of `ether proto`.
pub(super) const NAMED_TYPES: [(&str, u32); 18] = [
    ("aarp", AARP),
    ("arp", ARP),
    ("atalk", ATALK),
    ("decnet", DECNET),
    ("ip", IP),
    ("ip6", IP6),
    ("lat", 0x6004),
    ("lldp", 0x88cc),
    ("loopback", 0x9000),
    ("mopdl", 0x6001),
    ("moprc", 0x6002),
    ("rarp", RARP),
    ("sca", 0x6007),
    ("slow", 0x8809),
    ("iso", SAP_ISO),
    ("stp", SAP_STP),
    ("ipx", SAP_IPX),
    ("netbeui", SAP_NETBEUI),
];

impl Generator<'_> {
    /// A test whether the link layer carries a protocol, given as an EtherType or an LLC
    /// service access point.
    pub(super) fn link_type(&mut self, protocol: u32) -> Fault<PredRef> {
        if self.layout.labels > 0 {
            return self.behind_labels(protocol);
        }
        match self.layout.link {
            Link::Ethernet => self.ethernet_type(protocol),
            Link::Sll => self.cooked_type(protocol),
            Link::Sll2 => {
                self.check_max("EtherType", protocol, 0xffff)?;
                Ok(self.equal(From::LinkType, 0, Width::B2, protocol))
            }
            Link::Ppp => {
                let protocol = self.ppp_protocol(protocol)?;
                Ok(self.equal(From::LinkType, 0, Width::B2, protocol))
            }
            Link::Raw => Ok(match protocol {
                IP => self.ip_version(4, From::LinkHeader),
                IP6 => self.ip_version(6, From::LinkHeader),
                _ => PredRef::FALSE,
            }),
            Link::Ipv4 if protocol == IP => Ok(PredRef::TRUE),
            Link::Ipv6 if protocol == IP6 => Ok(PredRef::TRUE),
            Link::Ipv4 | Link::Ipv6 => Ok(PredRef::FALSE),
            Link::Null => {
                let host = self.address_family(protocol, false);
                let other = self.address_family(protocol, true);
                Ok(self.code.or(host, other))
            }
            Link::Loop => Ok(self.address_family(protocol, false)),
            Link::Ethernet3Mb | Link::Other(_) => Err(self.not_on_link("the protocol")),
        }
    }

    fn ethernet_type(&mut self, protocol: u32) -> Fault<PredRef> {
        Ok(match protocol {
            SAP_ISO | SAP_IP | SAP_NETBEUI => {
                let length = self.is_length();
                let saps = self.equal(From::Llc, 0, Width::B2, protocol << 8 | protocol);
                self.code.and(length, saps)
            }
            SAP_IPX => {
                // An IPX header directly after the length starts with 0xffff.
                let sap = self.equal(From::Llc, 0, Width::B1, SAP_IPX);
                let novell = self.equal(From::Llc, 0, Width::B2, 0xffff);
                let either = self.code.or(sap, novell);
                let snap = self.snap(0, IPX);
                let any = self.code.or(snap, either);
                self.length_and_or_type(any, IPX)
            }
            ATALK | AARP => {
                let snap = self.snap_of(protocol);
                self.length_and_or_type(snap, protocol)
            }
            0..=LENGTH_MAX => {
                self.check_max("LLC service access point", protocol, 0xff)?;
                let length = self.is_length();
                let sap = self.equal(From::LinkType, 2, Width::B1, protocol);
                self.code.and(length, sap)
            }
            _ => {
                self.check_max("EtherType", protocol, 0xffff)?;
                self.equal(From::LinkType, 0, Width::B2, protocol)
            }
        })
    }

    pub(super) fn is_length(&mut self) -> PredRef {
        self.compare(From::LinkType, 0, Width::B2, Cmp::Le, LENGTH_MAX)
    }

    fn length_and_or_type(&mut self, llc: PredRef, ethertype: u32) -> PredRef {
        let length = self.is_length();
        let llc = self.code.and(length, llc);
        let direct = self.equal(From::LinkType, 0, Width::B2, ethertype);
        self.code.or(direct, llc)
    }

    fn cooked_type(&mut self, protocol: u32) -> Fault<PredRef> {
        let field = |this: &mut Self, value| this.equal(From::LinkType, 0, Width::B2, value);
        Ok(match protocol {
            SAP_ISO | SAP_IP | SAP_NETBEUI => {
                let llc = field(self, COOKED_802_2);
                let saps = self.equal(From::Llc, 0, Width::B2, protocol << 8 | protocol);
                self.code.and(llc, saps)
            }
            SAP_IPX => {
                let sap = self.equal(From::Llc, 0, Width::B1, SAP_IPX);
                let snap = self.snap(0, IPX);
                let either = self.code.or(sap, snap);
                let llc = field(self, COOKED_802_2);
                let llc = self.code.and(llc, either);
                let novell = field(self, COOKED_802_3);
                let old = self.code.or(novell, llc);
                let direct = field(self, IPX);
                self.code.or(direct, old)
            }
            ATALK | AARP => {
                let llc = field(self, COOKED_802_2);
                let snap = self.snap_of(protocol);
                let llc = self.code.and(llc, snap);
                let direct = field(self, protocol);
                self.code.or(direct, llc)
            }
            0..=LENGTH_MAX => {
                self.check_max("LLC service access point", protocol, 0xff)?;
                let llc = field(self, COOKED_802_2);
                let sap = self.equal(From::Llc, 0, Width::B1, protocol);
                self.code.and(llc, sap)
            }
            _ => {
                self.check_max("EtherType", protocol, 0xffff)?;
                field(self, protocol)
            }
        })
    }

    fn snap_of(&mut self, protocol: u32) -> PredRef {
        self.snap(if protocol == ATALK { 0x08_0007 } else { 0 }, protocol)
    }

    /// A test for an LLC and SNAP header with a protocol of an organisation.
    fn snap(&mut self, organisation: u32, protocol: u32) -> PredRef {
        let [_, o1, o2, o3] = organisation.to_be_bytes();
        let [_, _, p1, p2] = protocol.to_be_bytes();
        self.bytes(From::Llc, 0, &[0xaa, 0xaa, 0x03, o1, o2, o3, p1, p2])
    }

    fn ppp_protocol(&self, protocol: u32) -> Fault<u32> {
        Ok(match protocol {
            IP => 0x0021,
            IP6 => 0x0057,
            DECNET => 0x0027,
            ATALK => 0x0029,
            NS => 0x0025,
            SAP_ISO => 0x0023,
            SAP_STP => 0x0031,
            SAP_IPX => 0x002b,
            _ => {
                self.check_max("PPP protocol", protocol, 0xffff)?;
                protocol
            }
        })
    }

    fn address_family(&mut self, protocol: u32, swapped: bool) -> PredRef {
        let families: &[u32] = match protocol {
            IP => &[AF_INET],
            IP6 => &AF_INET6,
            _ => &[],
        };
        let mut any = PredRef::FALSE;
        for &family in families {
            let family = if swapped { family.swap_bytes() } else { family };
            let this = self.equal(From::LinkHeader, 0, Width::B4, family);
            any = self.code.or(any, this);
        }
        any
    }

    pub(super) fn ip_version(&mut self, version: u32, from: From) -> PredRef {
        self.masked(from, 0, Width::B1, version << 4, 0xf0)
    }

    /// After MPLS labels, only the first nibble identifies the protocol.
    fn behind_labels(&mut self, protocol: u32) -> Fault<PredRef> {
        let version = match protocol {
            IP => 4,
            IP6 => 6,
            _ => {
                let error = self.error("only IPv4 and IPv6 can be tested behind MPLS labels");
                return Err(error.expected("`ip`, `ip6` or what they carry"));
            }
        };
        let bottom = self.bottom_label(Cmp::Set);
        let version = self.ip_version(version, From::Network);
        Ok(self.code.and(bottom, version))
    }

    /// A test whether the last label passed is (`Set`) or is not (`Clear`) the bottom of
    /// its stack.
    pub(super) fn bottom_label(&mut self, cmp: Cmp) -> PredRef {
        self.bits(From::Label, 2, Width::B1, cmp, 0x01)
    }
}
