//! Hosts and networks by their IP and DECnet addresses, and `gateway`.

use std::net::IpAddr;

use super::super::lexer::number;
use super::super::names::NameKind;
use super::*;

/// Maximum number of addresses of one family for a name.
const ADDRESSES_MAX: usize = 100;

/// Offsets of the source and destination (sender and target) addresses.
const IP_ADDRESSES: (u32, u32) = (12, 16);
const ARP_ADDRESSES: (u32, u32) = (14, 24);
const IP6_ADDRESSES: (u32, u32) = (8, 24);

impl Generator<'_> {
    /// A test for any of the IPv4 addresses with their masks; negated, for none of them.
    /// The protocol is IP, ARP or RARP by the qualifier, or any of them without one.
    pub(super) fn host4(
        &mut self,
        quals: Quals,
        addresses: &[(u32, u32)],
        negated: bool,
    ) -> Fault<PredRef> {
        let (protocol, offsets) = match quals.proto {
            None => {
                let with = |proto| Quals {
                    proto: Some(proto),
                    ..quals
                };
                let ip = self.host4(with(Proto::Ip), addresses, negated)?;
                if self.layout.labels > 0 {
                    return Ok(ip);
                }
                let arp = self.host4(with(Proto::Arp), addresses, negated)?;
                let either = self.code.or(ip, arp);
                let rarp = self.host4(with(Proto::Rarp), addresses, negated)?;
                return Ok(self.code.or(either, rarp));
            }
            Some(Proto::Ip) => (link::IP, IP_ADDRESSES),
            Some(Proto::Arp) => (link::ARP, ARP_ADDRESSES),
            Some(Proto::Rarp) => (link::RARP, ARP_ADDRESSES),
            Some(other) => {
                let error = self.no_qualifier(other.word(), "an IPv4 host or network");
                return Err(error.expected("`ip`, `arp`, `rarp` or nothing before it"));
            }
        };
        let carried = self.link_type(protocol)?;
        if carried == PredRef::FALSE {
            return Ok(PredRef::FALSE);
        }
        let mut any = PredRef::FALSE;
        for &(address, mask) in addresses {
            let this = self.directed(quals.dir, |this, source| {
                let offset = if source { offsets.0 } else { offsets.1 };
                this.masked(From::Network, offset, Width::B4, address, mask)
            });
            any = self.code.or(any, this);
        }
        if negated {
            any = self.code.not(any);
        }
        Ok(self.code.and(carried, any))
    }

    /// A test for any of the IPv6 addresses with their masks.
    pub(super) fn host6(&mut self, quals: Quals, addresses: &[(u128, u128)]) -> Fault<PredRef> {
        if let Some(other) = quals.proto.filter(|proto| *proto != Proto::Ip6) {
            let error = self.no_qualifier(other.word(), "an IPv6 host or network");
            return Err(error.expected("`ip6` or nothing before it"));
        }
        let carried = self.link_type(link::IP6)?;
        let mut any = PredRef::FALSE;
        for &(address, mask) in addresses {
            let this = self.directed(quals.dir, |this, source| {
                let offset = if source {
                    IP6_ADDRESSES.0
                } else {
                    IP6_ADDRESSES.1
                };
                this.address6(offset, address, mask)
            });
            any = self.code.or(any, this);
        }
        Ok(self.code.and(carried, any))
    }

    /// A test of the four words of an address, the first word first.
    fn address6(&mut self, offset: u32, address: u128, mask: u128) -> PredRef {
        let mut all = PredRef::TRUE;
        for word in (0..4).rev() {
            let shift = (3 - word) * 32;
            let (value, mask) = ((address >> shift) as u32, (mask >> shift) as u32);
            let same = self.masked(From::Network, offset + 4 * word, Width::B4, value, mask);
            all = self.code.and(same, all);
        }
        all
    }

    /// A test for any address of a name; negated, for none of its IPv4 addresses.
    pub(super) fn named_host(&mut self, quals: Quals, name: &str, negated: bool) -> Fault<PredRef> {
        let mut v4: Vec<(u32, u32)> = Vec::new();
        let mut v6: Vec<(u128, u128)> = Vec::new();
        for address in self.resolve(name) {
            match address {
                IpAddr::V4(address) => v4.push((address.into(), u32::MAX)),
                IpAddr::V6(address) => v6.push((address.into(), u128::MAX)),
            }
        }
        if v4.is_empty() && v6.is_empty() {
            return Err(self.unknown("host", name, NameKind::Host));
        }
        if v4.len() > ADDRESSES_MAX || v6.len() > ADDRESSES_MAX {
            return Err(self.error(format!(
                "the host `{name}` has more than {ADDRESSES_MAX} addresses of one family"
            )));
        }
        if quals.proto == Some(Proto::Ip6) {
            v4.clear();
        }
        if negated || matches!(quals.proto, Some(Proto::Ip | Proto::Arp | Proto::Rarp)) {
            v6.clear();
        }
        if v4.is_empty() && v6.is_empty() {
            let error = self.error(format!("the host `{name}` has no address of this family"));
            return Err(error.expected("a host that has one, or another qualifier"));
        }
        v4.sort_unstable();
        v6.sort_unstable();
        let mut any = PredRef::FALSE;
        if !v4.is_empty() {
            any = self.host4(quals, &v4, negated)?;
        }
        if !v6.is_empty() {
            let hosts6 = self.host6(quals, &v6)?;
            any = self.code.or(any, hosts6);
        }
        Ok(any)
    }

    fn resolve(&self, name: &str) -> Vec<IpAddr> {
        if let Ok(address) = name.parse() {
            return vec![address];
        }
        match numeric_host(name) {
            Some(address) => vec![IpAddr::V4(address.into())],
            None => self.context.names.hosts(name),
        }
    }

    /// `gateway`: a test for packets that pass through a host, from or to its MAC address
    /// and neither from nor to its IP address.
    pub(super) fn gateway(&mut self, proto: Option<Proto>, name: &str) -> Fault<PredRef> {
        if let Some(other) = proto
            && !matches!(other, Proto::Ip | Proto::Arp | Proto::Rarp)
        {
            let error = self.no_qualifier(other.word(), "`gateway`");
            return Err(error.expected("`ip`, `arp`, `rarp` or nothing before it"));
        }
        if self.layout.labels > 0 || self.layout.encapsulated {
            return Err(self.error("`gateway` cannot be tested behind MPLS, Geneve or VXLAN"));
        }
        let mac = self.named_mac_host(name, Dir::Or)?;
        let quals = Quals {
            proto,
            dir: Dir::Or,
            kind: Kind::Host,
        };
        let not_its = self.named_host(quals, name, true)?;
        Ok(self.code.and(mac, not_its))
    }

    /// `decnet host area.node`.
    pub(super) fn decnet(&mut self, quals: Quals, id: Id) -> Fault<PredRef> {
        if !matches!(quals.kind, Kind::Default | Kind::Host) {
            return Err(self.no_qualifier("decnet", &format!("`{}`", quals.kind.word())));
        }
        let address = match id {
            Id::Dotted => decnet_address(self.span.of(self.text)),
            _ => None,
        };
        let Some(address) = address else {
            let error = self.error(format!("`{}` is no DECnet address", self.word()));
            return Err(
                error.expected("an area of at most 63 and a node of at most 1023, as in 1.15")
            );
        };
        let carried = self.link_type(link::DECNET)?;
        let host = self.directed(quals.dir, |this, source| {
            this.decnet_host(address.swap_bytes().into(), source)
        });
        Ok(self.code.and(carried, host))
    }

    /// A test of DECnet Phase IV routing headers: long and short, each with and without a
    /// padding byte. `address` is in the byte order of the wire.
    fn decnet_host(&mut self, address: u32, source: bool) -> PredRef {
        let (long, short) = if source { (15, 3) } else { (7, 1) };
        let net = From::Network;

        let flags = self.masked(net, 2, Width::B2, 0x8106, 0xff07);
        let host = self.equal(net, 3 + long, Width::B2, address);
        let long_padded = self.code.and(flags, host);

        let flags = self.masked(net, 2, Width::B1, 0x06, 0x07);
        let host = self.equal(net, 2 + long, Width::B2, address);
        let long_plain = self.code.and(flags, host);
        let longs = self.code.or(long_plain, long_padded);

        let short_padded = if source {
            let flags = self.masked(net, 2, Width::B2, 0x8102, 0xff07);
            let host = self.equal(net, 3 + short, Width::B2, address);
            self.code.and(flags, host)
        } else {
            self.masked(net, 2, Width::B4, 0x8102_0000 | address, 0xff07_ffff)
        };
        let some = self.code.or(short_padded, longs);

        let short_plain = if source {
            let flags = self.masked(net, 2, Width::B1, 0x02, 0x07);
            let host = self.equal(net, 2 + short, Width::B2, address);
            self.code.and(flags, host)
        } else {
            self.masked(net, 2, Width::B4, 0x0200_0000 | address << 8, 0x07ff_ff00)
        };
        self.code.or(short_plain, some)
    }
}

/// Parses an address as inet_aton(3) does, for names after a backslash: one to four
/// numbers, of which the last fills the remaining bytes. `None` for other text.
fn numeric_host(name: &str) -> Option<u32> {
    let mut parts = name.splitn(4, '.').peekable();
    let (mut value, mut room) = (0_u32, 32);
    while let Some(part) = parts.next() {
        let numeric = part
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_digit());
        let part = number(part).ok().filter(|_| numeric)?;
        let size = if parts.peek().is_some() { 8 } else { room };
        if u64::from(part) >> size != 0 {
            return None;
        }
        room -= size;
        value |= part << room;
    }
    Some(value)
}

/// Parses `area.node`, of 6 and 10 bits; `None` if malformed or out of range.
fn decnet_address(text: &str) -> Option<u16> {
    let (area, node) = text.split_once('.')?;
    let decimal = |part: &str, max: u32| -> Option<u32> {
        let digits = part.trim_start_matches('0');
        let plain = part.bytes().all(|byte| byte.is_ascii_digit()) && !part.is_empty();
        let value = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
        (plain && value <= max).then_some(value)
    };
    let (area, node) = (decimal(area, 63)?, decimal(node, 1023)?);
    Some((area << 10 | node) as u16)
}
