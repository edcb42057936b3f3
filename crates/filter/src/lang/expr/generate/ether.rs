//! Primitives of the link-layer header: MAC addresses, broadcast and multicast, LLC
//! frames, single bytes, direction and interface.

use super::super::ast::ByteOp;
use super::super::names::NameKind;
use super::*;

/// The packet type of outgoing frames in a cooked capture (`PACKET_OUTGOING`).
const COOKED_OUTGOING: u32 = 4;

impl Generator<'_> {
    /// A test whether an inner packet of Geneve or VXLAN has an Ethernet header.
    fn has_link_header(&mut self) -> PredRef {
        let layout = self.layout;
        if !layout.encapsulated {
            return PredRef::TRUE;
        }
        let begin = self.code.begin();
        match (
            self.variable(layout.link_header),
            self.variable(layout.payload),
        ) {
            (Some(header), Some(payload)) => self.code.test(begin, Cmp::Ne, header, payload),
            _ => PredRef::TRUE,
        }
    }

    pub(super) fn mac_host(&mut self, mac: [u8; 6], dir: Dir) -> Fault<PredRef> {
        if self.layout.link != Link::Ethernet {
            return Err(self.not_on_link("a MAC address"));
        }
        let present = self.has_link_header();
        let host = self.directed(dir, |this, source| {
            this.bytes(From::LinkHeader, if source { 6 } else { 0 }, &mac)
        });
        Ok(self.code.and(present, host))
    }

    pub(super) fn named_mac_host(&mut self, name: &str, dir: Dir) -> Fault<PredRef> {
        if self.layout.link != Link::Ethernet {
            return Err(self.not_on_link("a MAC address"));
        }
        let Some(mac) = self.context.names.ether_host(name) else {
            return Err(self.unknown("Ethernet host", name, NameKind::EtherHost));
        };
        self.mac_host(mac, dir)
    }

    pub(super) fn broadcast(&mut self, proto: Option<Proto>) -> Fault<PredRef> {
        match proto {
            None | Some(Proto::Link) if self.layout.link != Link::Ethernet => {
                Err(self.not_on_link("`broadcast`"))
            }
            None | Some(Proto::Link) => self.mac_host([0xff; 6], Dir::Dst),
            Some(Proto::Ip) => {
                let Some(netmask) = self.context.netmask else {
                    let error =
                        self.error("`ip broadcast` needs the network's mask, which is not known");
                    return Err(error.expected("a netmask in the context, or `ether broadcast`"));
                };
                let hosts = !u32::from(netmask);
                let carried = self.link_type(link::IP)?;
                let (_, destination) = (12, 16);
                let zeros = self.masked(From::Network, destination, Width::B4, 0, hosts);
                let ones = self.masked(From::Network, destination, Width::B4, hosts, hosts);
                let either = self.code.or(zeros, ones);
                Ok(self.code.and(carried, either))
            }
            Some(other) => {
                let error = self.no_qualifier(other.word(), "`broadcast`");
                Err(error.expected("`ether`, `ip` or nothing before it"))
            }
        }
    }

    pub(super) fn multicast(&mut self, proto: Option<Proto>) -> Fault<PredRef> {
        match proto {
            None | Some(Proto::Link) if self.layout.link != Link::Ethernet => {
                Err(self.not_on_link("`multicast`"))
            }
            None | Some(Proto::Link) => {
                let present = self.has_link_header();
                let group = self.bits(From::LinkHeader, 0, Width::B1, Cmp::Set, 0x01);
                Ok(self.code.and(present, group))
            }
            Some(Proto::Ip) => {
                let carried = self.link_type(link::IP)?;
                let group = self.masked(From::Network, 16, Width::B1, 0xe0, 0xf0);
                Ok(self.code.and(carried, group))
            }
            Some(Proto::Ip6) => {
                let carried = self.link_type(link::IP6)?;
                let group = self.equal(From::Network, 24, Width::B1, 0xff);
                Ok(self.code.and(carried, group))
            }
            Some(other) => {
                let error = self.no_qualifier(other.word(), "`multicast`");
                Err(error.expected("`ether`, `ip`, `ip6` or nothing before it"))
            }
        }
    }

    /// `llc`: a length in the type field, and no Novell header (0xffff) after it.
    pub(super) fn llc(&mut self, kind: LlcKind) -> Fault<PredRef> {
        if self.layout.link != Link::Ethernet {
            return Err(self.not_on_link("`llc`"));
        }
        let length = self.is_length();
        let not_novell = self.compare(From::Llc, 0, Width::B2, Cmp::Ne, 0xffff);
        let llc = self.code.and(length, not_novell);
        let control = match kind {
            LlcKind::Any => return Ok(llc),
            LlcKind::Information => self.bits(From::Llc, 2, Width::B1, Cmp::Clear, 0x01),
            LlcKind::Supervisory => self.masked(From::Llc, 2, Width::B1, 0x01, 0x03),
            LlcKind::Unnumbered => self.masked(From::Llc, 2, Width::B1, 0x03, 0x03),
            LlcKind::S(command) => self.masked(From::Llc, 2, Width::B1, command.into(), 0x0f),
            LlcKind::U(command) => self.masked(From::Llc, 2, Width::B1, command.into(), 0xef),
        };
        Ok(self.code.and(llc, control))
    }

    /// `byte index op value`; the index counts from the link-layer header.
    pub(super) fn byte(&mut self, index: u32, op: ByteOp, value: u32) -> Fault<PredRef> {
        self.check_link_known("`byte`")?;
        self.check_max("value of a byte", value, 0xff)?;
        let begin = self.code.begin();
        let loaded = self.load(From::LinkHeader, index, Width::B1);
        Ok(match op {
            ByteOp::Compare(cmp) => self.code.test(begin, cmp, loaded, value),
            ByteOp::NonZero(op) => {
                let result = self.code.bin(op, loaded, value);
                self.code.test(begin, Cmp::Ne, result, 0)
            }
        })
    }

    /// Refuses a load relative to the link-layer header of an unsupported link type.
    pub(super) fn check_link_known(&self, what: &str) -> Fault<()> {
        match self.layout.link {
            Link::Other(_) => Err(self.not_on_link(what)),
            _ => Ok(()),
        }
    }

    /// `inbound` and `outbound`, on link layers whose header has the direction.
    pub(super) fn direction(&mut self, word: &str, cmp: Cmp) -> Fault<PredRef> {
        let from = From::LinkHeader;
        match self.layout.link {
            Link::Sll => Ok(self.compare(from, 0, Width::B2, cmp, COOKED_OUTGOING)),
            Link::Sll2 => Ok(self.compare(from, 10, Width::B1, cmp, COOKED_OUTGOING)),
            Link::Ethernet => {
                let not = if cmp == Cmp::Ne { "not " } else { "" };
                let error = self.not_on_link(&format!("`{word}`"));
                Err(error.expected(format!(
                    "a test of addresses, such as `{not}ether src ADDR` with the interface's own: \
                     a frame does not tell its direction"
                )))
            }
            _ => Err(self.not_on_link(&format!("`{word}`"))),
        }
    }

    pub(super) fn interface(&mut self, index: u32) -> Fault<PredRef> {
        match self.layout.link {
            Link::Sll2 => Ok(self.equal(From::LinkHeader, 4, Width::B4, index)),
            _ => Err(self.not_on_link("`ifindex`")),
        }
    }
}
