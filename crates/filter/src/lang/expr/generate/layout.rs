//! Where headers lie in a frame, as far as the text has been read.

use weir_wire::LinkType;

use super::predicate::Register;

/// A link layer whose rules are known, as it is at the current place: the
/// frame's own, or one inside it (`pppoes`, `geneve`, `vxlan`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Link {
    Ethernet,
    Ethernet3Mb,
    Raw,
    Ipv4,
    Ipv6,
    Sll,
    Sll2,
    /// BSD loopback, the address family in either byte order.
    Null,
    /// OpenBSD loopback, the address family in network order.
    Loop,
    Ppp,
    /// One weir does not know.
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

    /// Its link type, for messages.
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

/// A position in the frame: a constant, and what a register adds to it.
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

/// What a load is relative to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum From {
    /// The link-layer header.
    LinkHeader,
    /// The field that says which protocol follows.
    LinkType,
    /// The link-layer payload, where an LLC header may stand.
    Llc,
    /// The network header.
    Network,
    /// The network header behind an LLC header without SNAP.
    NetworkNoSnap,
    /// The last MPLS label.
    Label,
    /// The header behind an IPv4 header.
    Transport4,
    /// The header behind an IPv6 header without extensions.
    Transport6,
}

/// Bytes of an IPv6 header.
pub(super) const IP6_HEADER: u32 = 40;
/// Bytes of an MPLS label stack entry.
pub(super) const MPLS_ENTRY: u32 = 4;

/// Where the headers are that come next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) link: Link,
    pub(super) link_header: Position,
    /// `None` where no such field exists.
    pub(super) link_type: Option<Position>,
    pub(super) payload: Position,
    /// From the payload to the network header, without LLC and with one.
    pub(super) network: u32,
    pub(super) network_no_snap: u32,
    /// How many MPLS labels have been passed.
    pub(super) labels: u32,
    /// Whether the link layer is one inside Geneve or VXLAN.
    pub(super) encapsulated: bool,
    /// How many Geneve and VXLAN headers have been passed.
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

    /// The network header.
    pub(super) fn network(&self) -> Position {
        self.payload.plus(self.network)
    }
}
