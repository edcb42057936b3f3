//! Primitives that shift the offsets of the text after them: VLAN tags, MPLS labels,
//! PPPoE sessions, Geneve and VXLAN.
//!
//! The shift applies to the rest of the text, regardless of the operator between: in
//! `vlan 5 or tcp`, the second term also looks behind a tag.

use super::*;

/// Maximum number of Geneve and VXLAN headers that one expression passes.
const ENCAPSULATIONS_MAX: u32 = 5;

const GENEVE_PORT: u16 = 6081;
const VXLAN_PORT: u16 = 4789;
/// Lengths of the UDP and VXLAN headers, in bytes.
const UDP_HEADER: u32 = 8;
const VXLAN_HEADER: u32 = 8;
const ETHERNET_HEADER: u32 = weir_wire::ethernet::Repr::LEN as u32;

impl Generator<'_> {
    /// `vlan`: IEEE 802.1Q, 802.1ad, and the old EtherType 0x9100.
    pub(super) fn vlan(&mut self, tag: Option<u32>) -> Fault<PredRef> {
        if self.layout.labels > 0 {
            return Err(self.error("a VLAN tag cannot be tested behind MPLS labels"));
        }
        if self.layout.link != Link::Ethernet {
            return Err(self.not_on_link("`vlan`"));
        }
        let mut tagged = PredRef::FALSE;
        for ethertype in link::VLAN {
            let this = self.link_type(ethertype)?;
            tagged = self.code.or(tagged, this);
        }
        if let Some(tag) = tag {
            self.check_max("VLAN identifier", tag, 0xfff)?;
            let this = self.masked(From::Network, 0, Width::B2, tag, 0xfff);
            tagged = self.code.and(tagged, this);
        }
        self.layout.payload = self.layout.payload.plus(4);
        self.layout.link_type = self.layout.link_type.map(|field| field.plus(4));
        Ok(tagged)
    }

    /// `mpls`: a label stack entry (RFC 3032).
    pub(super) fn mpls(&mut self, label: Option<u32>) -> Fault<PredRef> {
        let mut labelled = if self.layout.labels > 0 {
            self.bottom_label(Cmp::Clear)
        } else {
            match self.layout.link {
                Link::Ethernet => self.link_type(link::MPLS)?,
                Link::Ppp => self.link_type(link::PPP_MPLS)?,
                _ => return Err(self.not_on_link("`mpls`")),
            }
        };
        if let Some(label) = label {
            self.check_max("MPLS label", label, 0xf_ffff)?;
            let this = self.masked(From::Network, 0, Width::B4, label << 12, 0xffff_f000);
            labelled = self.code.and(labelled, this);
        }
        self.layout.network = self.layout.network.wrapping_add(MPLS_ENTRY);
        self.layout.network_no_snap = self.layout.network_no_snap.wrapping_add(MPLS_ENTRY);
        self.layout.labels += 1;
        Ok(labelled)
    }

    /// `pppoes`: a six-byte header, then PPP (RFC 2516).
    pub(super) fn pppoe_session(&mut self, session: Option<u32>) -> Fault<PredRef> {
        let mut carried = self.link_type(link::PPPOE_SESSION)?;
        if let Some(session) = session {
            self.check_max("PPPoE session", session, 0xffff)?;
            let this = self.equal(From::Network, 2, Width::B2, session);
            carried = self.code.and(carried, this);
        }
        let ppp = self.layout.network().plus(6);
        self.layout.link = Link::Ppp;
        self.layout.link_header = ppp;
        self.layout.link_type = Some(ppp);
        self.layout.payload = ppp.plus(2);
        self.layout.network = 0;
        self.layout.network_no_snap = 0;
        self.layout.encapsulated = false;
        Ok(carried)
    }

    /// `geneve`: version 0, options, then any EtherType (RFC 8926).
    pub(super) fn geneve(&mut self, vni: Option<u32>) -> Fault<PredRef> {
        self.code.unoptimised = true;
        self.tunnel(
            "Geneve",
            GENEVE_PORT,
            vni,
            (0, 0xc0),
            Self::geneve_positions,
        )
    }

    /// `vxlan`: the flag of a valid identifier, then Ethernet (RFC 7348).
    pub(super) fn vxlan(&mut self, vni: Option<u32>) -> Fault<PredRef> {
        self.tunnel(
            "VXLAN",
            VXLAN_PORT,
            vni,
            (0x08, u32::MAX),
            Self::vxlan_positions,
        )
    }

    fn tunnel(
        &mut self,
        what: &str,
        port: u16,
        vni: Option<u32>,
        flags: (u32, u32),
        positions: fn(&mut Self, Register) -> PredRef,
    ) -> Fault<PredRef> {
        if self.layout.encapsulations == ENCAPSULATIONS_MAX {
            return Err(self.error(format!(
                "more than {ENCAPSULATIONS_MAX} Geneve or VXLAN headers in one expression"
            )));
        }
        if let Some(vni) = vni {
            self.check_max(&format!("{what} network identifier"), vni, 0xff_ffff)?;
        }
        let header_len = self.code.register();
        let mut versions = [PredRef::FALSE; 2];
        for (ip6, slot) in versions.iter_mut().enumerate() {
            let ip6 = ip6 == 1;
            let from = if ip6 {
                From::Transport6
            } else {
                From::Transport4
            };
            let mut this = if ip6 {
                self.port6(Dir::Dst, Some(proto::UDP), port, port)?
            } else {
                self.port4(Dir::Dst, Some(proto::UDP), port, port)?
            };
            let flagged = self.masked(from, UDP_HEADER, Width::B1, flags.0, flags.1);
            this = self.code.and(this, flagged);
            if let Some(vni) = vni {
                let same = self.masked(from, UDP_HEADER + 4, Width::B4, vni << 8, 0xffff_ff00);
                this = self.code.and(this, same);
            }
            let measured = self.ip_header_measured(header_len, ip6);
            *slot = self.code.and(this, measured);
        }
        let either = self.code.or(versions[0], versions[1]);
        let found = positions(self, header_len);
        self.layout.encapsulations += 1;
        self.layout.encapsulated = true;
        self.layout.link = Link::Ethernet;
        self.layout.network = 0;
        Ok(self.code.and(either, found))
    }

    /// Sets a register to the length of the IP header plus the variable part of its
    /// position.
    fn ip_header_measured(&mut self, register: Register, ip6: bool) -> PredRef {
        let begin = self.code.begin();
        if !ip6 {
            let length = self.ip_header_len();
            self.code.set(register, length);
        } else {
            match self.variable(self.layout.payload) {
                Some(base) => {
                    let length = self.code.bin(BinOp::Add, base, IP6_HEADER);
                    self.code.set(register, length);
                }
                None => self.code.set(register, IP6_HEADER),
            }
        }
        self.code.effect(begin)
    }

    /// The position of the header after UDP.
    fn behind_udp(&mut self, header_len: Register) -> Temp {
        let length = self.code.op(Op::Get(header_len));
        let constant = self.layout.network().constant.wrapping_add(UDP_HEADER);
        self.code.bin(BinOp::Add, length, constant)
    }

    fn vxlan_positions(&mut self, header_len: Register) -> PredRef {
        let registers = [(); 3].map(|()| self.code.register());
        let begin = self.code.begin();
        let vxlan = self.behind_udp(header_len);
        let ethernet = self.code.bin(BinOp::Add, vxlan, VXLAN_HEADER);
        self.set_ethernet(registers, ethernet);
        self.move_to(registers);
        self.code.effect(begin)
    }

    /// Sets the positions inside Geneve, which carries Ethernet or another protocol by its
    /// EtherType. In the latter case link-layer header and payload start at one position.
    fn geneve_positions(&mut self, header_len: Register) -> PredRef {
        let registers = [(); 3].map(|()| self.code.register());
        let [header, link_type, payload] = registers;
        let begin = self.code.begin();
        let geneve = self.behind_udp(header_len);
        let type_field = self.code.bin(BinOp::Add, geneve, 2);
        self.code.set(link_type, type_field);
        let mut load = |width, offset| {
            self.code.op(Op::Load {
                width,
                base: Some(geneve),
                index: None,
                offset,
            })
        };
        let first = load(Width::B1, 0);
        let carried = load(Width::B2, 2);
        let words = self.code.bin(BinOp::And, first, 0x3f);
        let options = self.code.bin(BinOp::Mul, words, 4);
        let length = self.code.bin(BinOp::Add, options, 8);
        let inner = self.code.bin(BinOp::Add, length, geneve);
        self.code.set(header, inner);
        self.code.set(payload, inner);
        let other = self
            .code
            .test(begin, Cmp::Ne, carried, link::BRIDGED_ETHERNET);

        let begin = self.code.begin();
        let inner = self.code.op(Op::Get(header));
        self.set_ethernet(registers, inner);
        let ethernet = self.code.effect(begin);
        self.move_to(registers);
        self.code.or(other, ethernet)
    }

    /// Sets header, type field and payload for an Ethernet frame at `start`.
    fn set_ethernet(&mut self, [header, link_type, payload]: [Register; 3], start: Temp) {
        let field = self.code.bin(BinOp::Add, start, ETHERNET_HEADER - 2);
        let behind = self.code.bin(BinOp::Add, start, ETHERNET_HEADER);
        self.code.set(header, start);
        self.code.set(link_type, field);
        self.code.set(payload, behind);
    }

    fn move_to(&mut self, [header, link_type, payload]: [Register; 3]) {
        let at = |register| Position {
            constant: 0,
            register: Some(register),
        };
        self.layout.link_header = at(header);
        self.layout.link_type = Some(at(link_type));
        self.layout.payload = at(payload);
    }
}
