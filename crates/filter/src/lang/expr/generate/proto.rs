//! Protocols by name and number: IP, IPv6, and OSI.

use super::*;

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const SCTP: u8 = 132;
pub(super) const FRAGMENT: u32 = 44;
const ICMP6: u32 = 58;

/// Offsets of the protocol field in IPv4 and IPv6 headers.
pub(super) const IP_PROTOCOL: u32 = 9;
pub(super) const IP6_NEXT: u32 = 6;

const ISO_ISIS: u32 = 0x83;
/// The protocol names of `iso proto`: network layer protocol identifiers (ISO 9577).
pub(super) const NAMED_ISO: [(&str, u32); 3] = [("esis", 0x82), ("isis", ISO_ISIS), ("clnp", 0x81)];

/// IS-IS PDU types (ISO 10589 §9).
const ISIS_L1_HELLO: u32 = 15;
const ISIS_L2_HELLO: u32 = 16;
const ISIS_POINT_HELLO: u32 = 17;
const ISIS_L1_LSP: u32 = 18;
const ISIS_L2_LSP: u32 = 20;
const ISIS_L1_CSNP: u32 = 24;
const ISIS_L2_CSNP: u32 = 25;
const ISIS_L1_PSNP: u32 = 26;
const ISIS_L2_PSNP: u32 = 27;
const ISIS_TYPE_MAX: u32 = 0x1f;

/// The IP protocol number of a keyword; `None` if it is not an IP protocol.
pub(super) fn ip_protocol(proto: Proto) -> Option<u32> {
    Some(match proto {
        Proto::Icmp => 1,
        Proto::Igmp => 2,
        Proto::Tcp => TCP.into(),
        Proto::Igrp => 9,
        Proto::Udp => UDP.into(),
        Proto::Esp => 50,
        Proto::Ah => 51,
        Proto::Icmp6 => ICMP6,
        Proto::Pim => 103,
        Proto::Vrrp | Proto::Carp => 112,
        Proto::Sctp => SCTP.into(),
        _ => return None,
    })
}

impl Generator<'_> {
    /// A test for the name of a protocol alone.
    pub(super) fn abbreviation(&mut self, proto: Proto) -> Fault<PredRef> {
        if let Some(number) = link::keyword_type(proto) {
            return self.link_type(number);
        }
        if let Some(number) = ip_protocol(proto) {
            return match proto {
                Proto::Icmp | Proto::Igmp | Proto::Igrp | Proto::Vrrp | Proto::Carp => {
                    self.protocol(Some(Proto::Ip), number)
                }
                Proto::Icmp6 => self.protocol(Some(Proto::Ip6), number),
                _ => self.protocol(None, number),
            };
        }
        let types: &[u32] = match proto {
            Proto::Clnp => return self.protocol(Some(Proto::Iso), 0x81),
            Proto::Esis => return self.protocol(Some(Proto::Iso), 0x82),
            Proto::Isis => return self.protocol(Some(Proto::Iso), ISO_ISIS),
            Proto::IsisL1 => &[
                ISIS_L1_HELLO,
                ISIS_POINT_HELLO,
                ISIS_L1_LSP,
                ISIS_L1_CSNP,
                ISIS_L1_PSNP,
            ],
            Proto::IsisL2 => &[
                ISIS_L2_HELLO,
                ISIS_POINT_HELLO,
                ISIS_L2_LSP,
                ISIS_L2_CSNP,
                ISIS_L2_PSNP,
            ],
            Proto::IsisIih => &[ISIS_L1_HELLO, ISIS_L2_HELLO, ISIS_POINT_HELLO],
            Proto::IsisLsp => &[ISIS_L1_LSP, ISIS_L2_LSP],
            Proto::IsisSnp => &[ISIS_L1_CSNP, ISIS_L2_CSNP, ISIS_L1_PSNP, ISIS_L2_PSNP],
            Proto::IsisCsnp => &[ISIS_L1_CSNP, ISIS_L2_CSNP],
            Proto::IsisPsnp => &[ISIS_L1_PSNP, ISIS_L2_PSNP],
            other => {
                let error = self.error(format!("`{}` alone tests nothing", other.word()));
                return Err(error.expected("a qualifier behind it, such as `host`"));
            }
        };
        let mut any = PredRef::FALSE;
        for &kind in types.iter().rev() {
            let this = self.protocol(Some(Proto::Isis), kind)?;
            any = self.code.or(this, any);
        }
        Ok(any)
    }

    /// A test of `proto number` with a protocol qualifier.
    pub(super) fn protocol(&mut self, qualifier: Option<Proto>, number: u32) -> Fault<PredRef> {
        match qualifier {
            None => {
                let v4 = self.protocol(Some(Proto::Ip), number)?;
                let v6 = self.protocol(Some(Proto::Ip6), number)?;
                Ok(self.code.or(v4, v6))
            }
            Some(Proto::Link) => self.link_type(number),
            Some(Proto::Ip) => {
                self.check_max("IP protocol", number, 0xff)?;
                let carried = self.link_type(link::IP)?;
                let this = self.equal(From::Network, IP_PROTOCOL, Width::B1, number);
                Ok(self.code.and(carried, this))
            }
            Some(Proto::Ip6) => {
                self.check_max("IP protocol", number, 0xff)?;
                let carried = self.link_type(link::IP6)?;
                let direct = self.equal(From::Network, IP6_NEXT, Width::B1, number);
                let fragment = self.equal(From::Network, IP6_NEXT, Width::B1, FRAGMENT);
                let behind = self.equal(From::Network, IP6_HEADER, Width::B1, number);
                let behind = self.code.and(fragment, behind);
                let either = self.code.or(direct, behind);
                Ok(self.code.and(carried, either))
            }
            Some(Proto::Iso) => {
                self.check_max("ISO protocol", number, 0xff)?;
                let carried = self.link_type(link::SAP_ISO)?;
                let this = self.equal(From::NetworkNoSnap, 0, Width::B1, number);
                Ok(self.code.and(carried, this))
            }
            Some(Proto::Isis) => {
                self.check_max("IS-IS PDU type", number, ISIS_TYPE_MAX)?;
                let isis = self.protocol(Some(Proto::Iso), ISO_ISIS)?;
                let from = From::NetworkNoSnap;
                let this = self.masked(from, 4, Width::B1, number, ISIS_TYPE_MAX);
                Ok(self.code.and(isis, this))
            }
            Some(other) => {
                let error = self.no_qualifier(other.word(), "`proto`");
                Err(error.expected("`ether`, `ip`, `ip6`, `iso`, `isis` or nothing before it"))
            }
        }
    }

    /// A test whether an IPv4 packet is unfragmented or a first fragment.
    pub(super) fn first_fragment(&mut self) -> PredRef {
        self.bits(From::Network, 6, Width::B2, Cmp::Clear, 0x1fff)
    }

    /// The test before a load from a protocol's header.
    pub(super) fn guard(&mut self, proto: Proto) -> Fault<PredRef> {
        match proto {
            Proto::Icmp6 => {
                let carried = self.link_type(link::IP6)?;
                let this = self.equal(From::Network, IP6_NEXT, Width::B1, ICMP6);
                Ok(self.code.and(carried, this))
            }
            _ => {
                let carried = self.link_type(link::IP)?;
                let number = ip_protocol(proto).unwrap_or(0);
                let this = self.equal(From::Network, IP_PROTOCOL, Width::B1, number);
                let carried = self.code.and(carried, this);
                let unfragmented = self.first_fragment();
                Ok(self.code.and(carried, unfragmented))
            }
        }
    }
}
