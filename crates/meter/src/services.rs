//! Services: classes of traffic, exactly one for each frame.
//!
//! # Rules
//!
//! The configuration lists services in order; each is defined by transport ports, by IP protocols, by a
//! filter expression, or by several of these, of which one is enough. A frame belongs to the first
//! service in the list that it fits:
//!
//! - **Ports**: the frame is [`Transport::Ports`] of that protocol, and the source *or* the
//!   destination port is listed.
//! - **Protocols**: the frame is [`Transport::Ports`] or [`Transport::Portless`] of that protocol.
//!   A fragment has none.
//! - **Filter**: the expression accepts the captured bytes of the frame, from the link header, as
//!   tcpdump would. This holds for every frame: fragments, and frames that are not IP, too.
//!
//! A frame that fits no service of the list belongs to one of the classes that always exist, which
//! follow the listed services: [`Services::fragments`] for [`Transport::Fragment`],
//! [`Services::portless`] for [`Transport::Portless`], [`Services::non_ip`] for
//! [`Transport::NotIp`], and [`Services::other`] for all else.

use crate::parse::Transport;
use std::ops::RangeInclusive;
use weir_filter::backend::Runner;
use weir_filter::ir::Program;
use weir_filter::lang::expr::{self, Context, Names};
use weir_filter::opt;
use weir_wire::{LinkType, Protocol};

/// Services that a configuration lists, at most: with the classes that always exist, 64.
pub const SERVICES_MAX: usize = 60;

/// Ranges of ports that a service lists, at most.
pub const RANGES_MAX: usize = 4096;

/// Names of the classes that always exist, in their order behind the listed services.
pub const CLASSES: [&str; 4] = ["fragments", "portless", "non-ip", "other"];

/// A service of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Ports of protocols that have ports.
    pub ports: Vec<(Protocol, RangeInclusive<u16>)>,
    /// IP protocols.
    pub protocols: Vec<Protocol>,
    /// An expression in the language of pcap-filter(7).
    pub filter: Option<String>,
}

/// A table of a protocol's ports: the number of the first service that lists a port.
#[derive(Clone, Debug)]
struct PortTable {
    protocol: Protocol,
    services: Box<[u8]>,
}

/// The services of a counter, by number: the listed ones, then [`CLASSES`].
#[derive(Clone, Debug)]
pub struct Services {
    list: Vec<Service>,
    ports: Vec<PortTable>,
    protocols: [u8; 256],
}

/// No service of the list.
const NONE: u8 = u8::MAX;

impl Services {
    /// Arranges the services of a configuration.
    ///
    /// # Panics
    /// If there are more than [`SERVICES_MAX`].
    pub fn new(list: Vec<Service>) -> Services {
        assert!(
            list.len() <= SERVICES_MAX,
            "at most {SERVICES_MAX} services"
        );
        let mut services = Services {
            ports: Vec::new(),
            protocols: [NONE; 256],
            list: Vec::new(),
        };
        for (number, service) in list.iter().enumerate() {
            for (protocol, range) in &service.ports {
                let table = services.port_table(*protocol);
                for port in range.clone() {
                    let entry = &mut table.services[usize::from(port)];
                    *entry = (*entry).min(number as u8);
                }
            }
            for protocol in &service.protocols {
                let entry = &mut services.protocols[usize::from(protocol.0)];
                *entry = (*entry).min(number as u8);
            }
        }
        services.list = list;
        services
    }

    fn port_table(&mut self, protocol: Protocol) -> &mut PortTable {
        let found = self
            .ports
            .iter()
            .position(|table| table.protocol == protocol);
        let at = found.unwrap_or_else(|| {
            self.ports.push(PortTable {
                protocol,
                services: vec![NONE; 1 << 16].into(),
            });
            self.ports.len() - 1
        });
        &mut self.ports[at]
    }

    /// The listed services, in order.
    pub fn list(&self) -> &[Service] {
        &self.list
    }

    /// How many services there are, with the classes that always exist.
    pub fn len(&self) -> usize {
        self.list.len() + CLASSES.len()
    }

    /// Always false: there is at least one service.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The names by number.
    pub fn names(&self) -> Vec<String> {
        let listed = self.list.iter().map(|service| service.name.clone());
        listed.chain(CLASSES.map(str::to_owned)).collect()
    }

    /// The class of fragments that fit no listed service.
    pub fn fragments(&self) -> u16 {
        self.list.len() as u16
    }

    /// The class of packets without transport ports that fit no listed service.
    pub fn portless(&self) -> u16 {
        self.list.len() as u16 + 1
    }

    /// The class of frames without an IP packet that fit no listed service.
    pub fn non_ip(&self) -> u16 {
        self.list.len() as u16 + 2
    }

    /// The class of all other frames.
    pub fn other(&self) -> u16 {
        self.list.len() as u16 + 3
    }

    /// The service of a frame if filters are left out: the first one that lists the frame's port or
    /// protocol, else a class that always exists.
    #[inline]
    pub fn by_tables(&self, transport: Transport) -> u16 {
        let (found, class) = match transport {
            Transport::NotIp => (NONE, self.non_ip()),
            Transport::Fragment(_) => (NONE, self.fragments()),
            Transport::Portless(Protocol(number)) => {
                (self.protocols[usize::from(number)], self.portless())
            }
            Transport::Ports(protocol, src, dst) => {
                let mut first = self.protocols[usize::from(protocol.0)];
                if let Some(table) = self.ports.iter().find(|table| table.protocol == protocol) {
                    let of = |port: u16| table.services[usize::from(port)];
                    first = first.min(of(src)).min(of(dst));
                }
                (first, self.other())
            }
        };
        if found == NONE { class } else { found.into() }
    }

    /// For each protocol with listed ports: the number of the first service that lists the port of
    /// that index, or 255.
    pub fn port_tables(&self) -> impl Iterator<Item = (Protocol, &[u8])> {
        let tables = self.ports.iter();
        tables.map(|table| (table.protocol, &*table.services))
    }

    /// The number of the first service that lists the protocol of that index, or 255.
    pub fn protocol_table(&self) -> &[u8; 256] {
        &self.protocols
    }

    /// Compiles the services' filters for frames of a link type. Also returns the numbers of the
    /// services whose expression the link type refuses, and why: such a filter accepts no frame.
    pub fn compile_each(
        &self,
        linktype: LinkType,
        names: &dyn Names,
    ) -> (Filters, Vec<(usize, expr::Error)>) {
        let (mut filters, mut refused) = (Vec::new(), Vec::new());
        for (number, service) in self.list.iter().enumerate() {
            if let Some(text) = &service.filter {
                match compile(text, linktype, names) {
                    Ok(program) => filters.push((number as u16, Runner::new(program))),
                    Err(error) => refused.push((number, error)),
                }
            }
        }
        (Filters(filters), refused)
    }
}

/// Compiles an expression for frames of a link type, optimised.
///
/// # Errors
/// If the language refuses the text for this link type.
pub fn compile(text: &str, linktype: LinkType, names: &dyn Names) -> Result<Program, expr::Error> {
    // As tcpdump -r: of the network nothing is known, and the limited broadcast address is one
    // under every mask.
    let context = Context {
        netmask: Some(std::net::Ipv4Addr::UNSPECIFIED),
        ..Context::new(linktype).with_names(names)
    };
    let mut program = expr::compile(text, &context)?;
    opt::optimise(&mut program);
    Ok(program)
}

/// The filters of services, compiled for one link type.
#[derive(Debug, Default)]
pub struct Filters(Vec<(u16, Runner)>);

impl Filters {
    /// The service of a frame: of `services` that this was compiled from.
    #[inline]
    pub fn classify(
        &self,
        services: &Services,
        transport: Transport,
        bytes: &[u8],
        wire_len: u32,
    ) -> u16 {
        let by_tables = services.by_tables(transport);
        let before = self.0.iter().take_while(|(number, _)| *number < by_tables);
        let mut accepts = before.filter(|(_, filter)| filter.run(bytes, wire_len) != 0);
        accepts.next().map_or(by_tables, |(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_filter::lang::expr::NoNames;

    fn services() -> Services {
        let ports = |protocol, first, last| (protocol, first..=last);
        Services::new(vec![
            Service {
                name: "dns".into(),
                ports: vec![ports(Protocol::TCP, 53, 53), ports(Protocol::UDP, 53, 53)],
                ..Service::default()
            },
            Service {
                name: "arp".into(),
                filter: Some("arp or host 10.0.0.9".into()),
                ..Service::default()
            },
            Service {
                name: "web".into(),
                ports: vec![ports(Protocol::TCP, 0, 1000)],
                protocols: vec![Protocol::ICMPV4],
                ..Service::default()
            },
        ])
    }

    #[test]
    fn a_frame_belongs_to_the_first_service_that_it_fits() {
        let services = services();
        let of = |transport| services.by_tables(transport);
        let tcp = |src, dst| Transport::Ports(Protocol::TCP, src, dst);
        assert_eq!(of(tcp(53, 80)), 0);
        assert_eq!(of(tcp(80, 53)), 0);
        assert_eq!(of(tcp(2000, 80)), 2);
        assert_eq!(of(tcp(2000, 1001)), services.other());
        assert_eq!(
            of(Transport::Ports(Protocol::UDP, 80, 80)),
            services.other()
        );
        assert_eq!(of(Transport::Portless(Protocol::ICMPV4)), 2);
        assert_eq!(of(Transport::Portless(Protocol::TCP)), services.portless());
        assert_eq!(of(Transport::Fragment(Protocol::TCP)), services.fragments());
        assert_eq!(of(Transport::NotIp), services.non_ip());
        assert_eq!(services.names()[usize::from(services.other())], "other");
        assert_eq!(services.len(), 7);
    }

    #[test]
    fn filters_are_asked_in_their_place() {
        let services = services();
        let (filters, refused) = services.compile_each(LinkType::EN10MB, &NoNames);
        assert!(refused.is_empty());
        let mut frame = vec![0; 34];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[26..30].copy_from_slice(&[10, 0, 0, 9]);
        let of = |transport, frame: &[u8]| filters.classify(&services, transport, frame, 34);
        let tcp = |src, dst| Transport::Ports(Protocol::TCP, src, dst);
        assert_eq!(of(tcp(53, 80), &frame), 0);
        assert_eq!(of(tcp(80, 80), &frame), 1);
        assert_eq!(of(Transport::Fragment(Protocol::TCP), &frame), 1);
        assert_eq!(of(tcp(80, 80), &[]), 2);
        frame[13] = 6;
        assert_eq!(of(Transport::NotIp, &frame), 1);
    }

    #[test]
    fn a_refused_filter_names_its_service() {
        let wrong = Service {
            filter: Some("tcp prot 80".into()),
            ..Service::default()
        };
        let services = Services::new(vec![Service::default(), wrong]);
        let (_, refused) = services.compile_each(LinkType::EN10MB, &NoNames);
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].0, 1);
    }
}
