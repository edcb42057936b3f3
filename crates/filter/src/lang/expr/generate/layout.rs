//! The layout: positions of headers in a frame at the current place in the text.

use weir_wire::LinkType;

use super::predicate::Register;

/// A link layer with known rules: the frame's own, or one inside it (`pppoes`,
/// `geneve`, `vxlan`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Link {
    Ethernet,
    Ethernet3Mb,
    Raw,
    Ipv4,
    Ipv6,
    Sll,
    Sll2,
    /// BSD loopback, with the address family in either byte order.
    Null,
    /// OpenBSD loopback, with the address family in network order.
    Loop,
    Ppp,
    /// An unsupported link type.
    Other(LinkType),
}

impl Link {
    pub(super) fn of(linktype: LinkType) -> Link {
        match linktype {
            LinkType::EN10MB => Link::Ethernet,
            LinkType::EN3MB => Link::Ethernet3Mb,
            LinkType::RAW => Link::Raw,
            LinkType::IPV4 => Link::Ipv4,
            LinkType::IPV6 => Link::Ipv6,
            LinkType::LINUX_SLL => Link::Sll,
            LinkType::LINUX_SLL2 => Link::Sll2,
            LinkType::NULL => Link::Null,
            LinkType::LOOP => Link::Loop,
            LinkType::PPP => Link::Ppp,
            other => Link::Other(other),
        }
    }

    /// The link type, for messages.
    pub(super) fn linktype(self) -> LinkType {
        match self {
            Link::Ethernet => LinkType::EN10MB,
            Link::Ethernet3Mb => LinkType::EN3MB,
            Link::Raw => LinkType::RAW,
            Link::Ipv4 => LinkType::IPV4,
            Link::Ipv6 => LinkType::IPV6,
            Link::Sll => LinkType::LINUX_SLL,
            Link::Sll2 => LinkType::LINUX_SLL2,
            Link::Null => LinkType::NULL,
            Link::Loop => LinkType::LOOP,
            Link::Ppp => LinkType::PPP,
            Link::Other(linktype) => linktype,
        }
    }
}

/// A position in the frame: a constant, plus a register if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Position {
    pub(super) constant: u32,
    pub(super) register: Option<Register>,
}

impl Position {
    pub(super) fn at(constant: u32) -> Position {
        Position {
            constant,
            register: None,
        }
    }

    pub(super) fn plus(self, more: u32) -> Position {
        Position {
            constant: self.constant.wrapping_add(more),
            ..self
        }
    }
}

/// The origin of a load's offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum From {
    /// The link-layer header.
    LinkHeader,
    /// The field with the protocol of the payload.
    LinkType,
    /// The link-layer payload, where an LLC header may be.
    Llc,
    /// The network header.
    Network,
    /// The network header behind an LLC header without SNAP.
    NetworkNoSnap,
    /// The last MPLS label.
    Label,
    /// The header after an IPv4 header.
    Transport4,
    /// The header after an IPv6 header without extensions.
    Transport6,
}

/// Length of an IPv6 header, in bytes.
pub(super) const IP6_HEADER: u32 = 40;
/// Length of an MPLS label stack entry, in bytes.
pub(super) const MPLS_ENTRY: u32 = 4;

/// The positions of the headers that come next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) link: Link,
    pub(super) link_header: Position,
    /// The field with the protocol; `None` if the link layer has none.
    pub(super) link_type: Option<Position>,
    pub(super) payload: Position,
    /// Offset of the network header from the payload, without LLC and with it.
    pub(super) network: u32,
    pub(super) network_no_snap: u32,
    /// Number of MPLS labels passed.
    pub(super) labels: u32,
    /// Whether the link layer is inside Geneve or VXLAN.
    pub(super) encapsulated: bool,
    /// Number of Geneve and VXLAN headers passed.
    pub(super) encapsulations: u32,
}

impl Layout {
    pub(super) fn of(link: Link) -> Layout {
        let (link_type, payload, network_no_snap) = match link {
            Link::Ethernet => (Some(12), 14, 3),
            Link::Null | Link::Loop => (Some(0), 4, 0),
            Link::Ppp => (Some(2), 4, 0),
            Link::Sll => (Some(14), 16, 0),
            Link::Sll2 => (Some(0), 20, 0),
            Link::Raw | Link::Ipv4 | Link::Ipv6 => (None, 0, 0),
            Link::Ethernet3Mb | Link::Other(_) => (None, 0, 0),
        };
        Layout {
            link,
            link_header: Position::at(0),
            link_type: link_type.map(Position::at),
            payload: Position::at(payload),
            network: 0,
            network_no_snap,
            labels: 0,
            encapsulated: false,
            encapsulations: 0,
        }
    }

    /// The position of the network header.
    pub(super) fn network(&self) -> Position {
        self.payload.plus(self.network)
    }
}
