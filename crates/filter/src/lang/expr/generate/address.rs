//! Code generation for identifiers, by their qualifiers.

use std::net::Ipv6Addr;

use super::super::lexer::{dotted_value, mac_bytes, number};
use super::super::names::{NameKind, Transport};
use super::super::parse::unescaped;
use super::super::suggest::nearest;
use super::super::token::KEYWORDS;
use super::*;

impl Generator<'_> {
    pub(super) fn identifier(&mut self, quals: Quals, id: Id) -> Fault<PredRef> {
        if quals.proto == Some(Proto::Decnet) {
            return self.decnet(quals, id);
        }
        match id {
            Id::Num(number) => self.numbered(quals, number),
            Id::Name => self.named(quals),
            Id::Dotted => self.dotted(quals),
            Id::DottedBits(address, bits) => self.prefix(quals, address, bits),
            Id::DottedMask(address, mask) => self.masked_net(quals, address, mask),
            Id::Ip6 => self.prefix6(quals, self.span, 128),
            Id::Ip6Bits(address, bits) => self.prefix6(quals, address, bits),
            Id::Mac => self.mac(quals),
            Id::Arcnet => {
                let error = self.error("an ARCnet address fits only ARCnet link types");
                Err(error.expected("an address of this link type"))
            }
        }
    }

    fn numbered(&mut self, quals: Quals, number: u32) -> Fault<PredRef> {
        match quals.kind {
            Kind::Default | Kind::Host | Kind::Net if quals.proto == Some(Proto::Link) => {
                let error = self.error(format!("`{number}` is no link-layer address"));
                Err(error.expected("a MAC address such as 0:1b:c:d:e:ff"))
            }
            Kind::Default | Kind::Host => self.host4(quals, &[(number, u32::MAX)], false),
            Kind::Net => {
                // `net 10` is 10.0.0.0/8: the mask covers the octets that are given.
                let missing = match number {
                    0 => 0,
                    _ => number.leading_zeros() & !7,
                };
                self.host4(quals, &[(number << missing, u32::MAX << missing)], false)
            }
            Kind::Port | Kind::PortRange => {
                let transport = self.port_transport(quals)?;
                self.check_max("port", number, 0xffff)?;
                Ok(self.port(quals.dir, transport, number as u16, number as u16)?)
            }
            Kind::Proto => self.protocol(quals.proto, number),
            Kind::ProtoChain => self.protocol_chain(quals.proto, number),
            Kind::Gateway => Err(self
                .no_qualifier("gateway", "a number")
                .expected("a host's name")),
        }
    }

    fn dotted(&mut self, quals: Quals) -> Fault<PredRef> {
        let (value, bits) = self.dotted_address(self.span)?;
        match quals.kind {
            Kind::Default | Kind::Host | Kind::Net if quals.proto == Some(Proto::Link) => {
                let error = self.error(format!("`{}` is no link-layer address", self.word()));
                Err(error.expected("a MAC address such as 0:1b:c:d:e:ff"))
            }
            Kind::Default | Kind::Host | Kind::Net => {
                let missing = 32 - bits;
                self.host4(quals, &[(value << missing, u32::MAX << missing)], false)
            }
            kind => Err(self.no_qualifier(kind.word(), "an IPv4 address")),
        }
    }

    /// The value of one to four octets, and their number of bits.
    fn dotted_address(&self, span: Span) -> Fault<(u32, u32)> {
        let text = span.of(self.text);
        dotted_value(text).ok_or_else(|| {
            let message = format!("`{}` is no IPv4 address", shortened(text));
            Error::new(span.range(), message).expected("decimal octets of at most 255")
        })
    }

    fn prefix(&mut self, quals: Quals, address: Span, bits: u32) -> Fault<PredRef> {
        let (value, given) = self.dotted_address(address)?;
        self.check_max("prefix length", bits, 32)?;
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
        self.network(quals, value << (32 - given), mask)
    }

    fn masked_net(&mut self, quals: Quals, address: Span, mask: Span) -> Fault<PredRef> {
        let (value, given) = self.dotted_address(address)?;
        let (mask, mask_given) = self.dotted_address(mask)?;
        self.network(quals, value << (32 - given), mask << (32 - mask_given))
    }

    fn network(&mut self, quals: Quals, value: u32, mask: u32) -> Fault<PredRef> {
        if quals.kind != Kind::Net {
            let error = self.no_qualifier(quals.kind.word(), "a network");
            return Err(error.expected("`net` before an address with a mask"));
        }
        if value & !mask != 0 {
            let error = self.error(format!(
                "`{}` has bits set that its mask clears",
                self.word()
            ));
            let network = std::net::Ipv4Addr::from(value & mask);
            return Err(error.expected(format!("the network's address, {network}")));
        }
        self.host4(quals, &[(value, mask)], false)
    }

    fn prefix6(&mut self, quals: Quals, address: Span, bits: u32) -> Fault<PredRef> {
        let text = address.of(self.text);
        let parsed: Result<Ipv6Addr, _> = text.parse();
        let Ok(parsed) = parsed else {
            return Err(self.error(format!("`{text}` is no IPv6 address")));
        };
        self.check_max("prefix length", bits, 128)?;
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        let value = u128::from(parsed);
        if value & !mask != 0 {
            let error = self.error(format!("`{}` has bits set beyond its prefix", self.word()));
            let network = Ipv6Addr::from(value & mask);
            return Err(error.expected(format!("the network's address, {network}/{bits}")));
        }
        match quals.kind {
            Kind::Net => {}
            Kind::Default | Kind::Host if bits == 128 => {}
            kind => {
                let what = if bits == 128 {
                    "an IPv6 address"
                } else {
                    "an IPv6 prefix"
                };
                return Err(self
                    .no_qualifier(kind.word(), what)
                    .expected("`net` or `host`"));
            }
        }
        self.host6(quals, &[(value, mask)])
    }

    fn mac(&mut self, quals: Quals) -> Fault<PredRef> {
        let host = matches!(quals.kind, Kind::Default | Kind::Host);
        if !host || quals.proto != Some(Proto::Link) {
            let error = self.error(format!(
                "the MAC address `{}` is not behind `ether`",
                self.word()
            ));
            return Err(error.expected("`ether host`, `ether src` or `ether dst` before it"));
        }
        let mac = mac_bytes(self.span.of(self.text));
        self.mac_host(mac, quals.dir)
    }

    fn named(&mut self, quals: Quals) -> Fault<PredRef> {
        let text = self.text;
        let name = unescaped(self.span.of(text));
        match quals.kind {
            Kind::Default | Kind::Host if quals.proto == Some(Proto::Link) => {
                self.named_mac_host(name, quals.dir)
            }
            Kind::Default | Kind::Host => self.named_host(quals, name, false),
            Kind::Net => self.named_network(quals, name),
            Kind::Port => {
                self.port_transport(quals)?;
                let (port, named) = self.service(name)?;
                let transport = self.agreed_transport(quals, named, name)?;
                self.port(quals.dir, transport, port, port)
            }
            Kind::PortRange => self.named_port_range(quals, name),
            Kind::Gateway => self.gateway(quals.proto, name),
            Kind::Proto => {
                let number = self.protocol_number(quals.proto, name)?;
                self.protocol(quals.proto, number)
            }
            Kind::ProtoChain => {
                let number = self.protocol_number(quals.proto, name)?;
                self.protocol_chain(quals.proto, number)
            }
        }
    }

    fn named_network(&mut self, quals: Quals, name: &str) -> Fault<PredRef> {
        let network = self.context.names.network(name).unwrap_or(0);
        if network == 0 {
            return Err(self.unknown("network", name, NameKind::Network));
        }
        let missing = network.leading_zeros() & !7;
        self.host4(quals, &[(network << missing, u32::MAX << missing)], false)
    }

    /// The port of a service, and its transport if only one transport has this port.
    fn service(&self, name: &str) -> Fault<(u16, Option<u8>)> {
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            // A number after a backslash, or with an 8 or 9 after a leading 0.
            let value = name.bytes().fold(0_u16, |value, byte| {
                value.wrapping_mul(10).wrapping_add(u16::from(byte - b'0'))
            });
            return Ok((value, None));
        }
        let names = self.context.names;
        let tcp = names.service(name, Transport::Tcp);
        let udp = names.service(name, Transport::Udp);
        match (tcp, udp) {
            (Some(tcp), udp) => Ok((tcp, (udp != Some(tcp)).then_some(proto::TCP))),
            (None, Some(udp)) => Ok((udp, Some(proto::UDP))),
            (None, None) => Err(self.unknown("port", name, NameKind::Service)),
        }
    }

    fn named_port_range(&mut self, quals: Quals, name: &str) -> Fault<PredRef> {
        self.port_transport(quals)?;
        let parts = name.split_once('-');
        let Some((first, last)) = parts
            .filter(|(first, last)| !first.is_empty() && !last.is_empty() && !last.contains('-'))
        else {
            let error = self.error(format!("`{}` is no range of ports", self.word()));
            return Err(error.expected("two ports with one `-` between them, as in 6000-6008"));
        };
        let (first, first_protocol) = self.range_end(first)?;
        let (last, last_protocol) = self.range_end(last)?;
        let named = if first_protocol == last_protocol {
            first_protocol
        } else {
            None
        };
        let transport = self.agreed_transport(quals, named, name)?;
        self.check_max("port", first, 0xffff)?;
        self.check_max("port", last, 0xffff)?;
        self.port(quals.dir, transport, first as u16, last as u16)
    }

    fn range_end(&self, text: &str) -> Fault<(u32, Option<u8>)> {
        use super::super::lexer::NumberFault;
        let numeric = text
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_digit());
        match number(text) {
            Ok(port) if numeric => Ok((port, None)),
            Err(NumberFault::Overflow) => {
                Err(self.error(format!("the port {} is too large", shortened(text))))
            }
            _ => self
                .service(text)
                .map(|(port, named)| (u32::from(port), named)),
        }
    }

    /// The transport on which qualifier and service agree.
    fn agreed_transport(&self, quals: Quals, named: Option<u8>, name: &str) -> Fault<Option<u8>> {
        let asked = self.port_transport(quals)?;
        match (asked, named) {
            (Some(asked), Some(named)) if asked != named => {
                let word = if named == proto::TCP { "tcp" } else { "udp" };
                let message = format!("the service `{}` is one of {word}", shortened(name));
                Err(self
                    .error(message)
                    .expected(format!("`{word}` before it, or its number")))
            }
            (Some(asked), _) => Ok(Some(asked)),
            (None, named) => Ok(named),
        }
    }

    fn protocol_number(&self, qualifier: Option<Proto>, name: &str) -> Fault<u32> {
        let known = match qualifier {
            None | Some(Proto::Ip | Proto::Ip6) => self.context.names.protocol(name).map(u32::from),
            Some(Proto::Link) => row(&link::NAMED_TYPES, name),
            Some(Proto::Iso) => row(&proto::NAMED_ISO, name),
            _ => None,
        };
        known.ok_or_else(|| {
            let message = format!("unknown protocol `{}`", shortened(name));
            let error = self.error(message).expected("a protocol's number or name");
            let suggestion = match qualifier {
                Some(Proto::Link) => nearest(name, link::NAMED_TYPES.iter().map(|row| row.0)),
                Some(Proto::Iso) => nearest(name, proto::NAMED_ISO.iter().map(|row| row.0)),
                _ => self.suggestion(name, NameKind::Protocol),
            };
            error.suggest(suggestion)
        })
    }

    /// An error for an unknown name; suggests a keyword or a name of this kind.
    pub(super) fn unknown(&self, what: &str, name: &str, kind: NameKind) -> Error {
        let message = format!("unknown {what} `{}`", shortened(name));
        let expected = match kind {
            NameKind::Service => "a port's number or name, or a test such as `tcp`",
            NameKind::Network => "a network's address or name",
            NameKind::EtherHost => "a MAC address, or a name that has one",
            NameKind::Host | NameKind::Protocol => "an address or a name that has one",
        };
        let suggestion = match kind {
            NameKind::Service if is_range(name) => Some(format!("portrange {}", shortened(name))),
            _ => self.suggestion(name, kind),
        };
        self.error(message).expected(expected).suggest(suggestion)
    }

    fn suggestion(&self, name: &str, kind: NameKind) -> Option<String> {
        let candidates = self.context.names.candidates(kind);
        let words = KEYWORDS.iter().map(|(word, _)| *word);
        nearest(name, candidates.iter().map(String::as_str).chain(words))
    }
}

/// Whether the name is two numbers with a hyphen between them.
fn is_range(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.split_once('-')
        .is_some_and(|(first, last)| number(first) && number(last))
}

fn row(table: &[(&str, u32)], name: &str) -> Option<u32> {
    let row = table.iter().find(|(known, _)| *known == name);
    row.map(|(_, number)| *number)
}
