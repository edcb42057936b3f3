//! The counters of a router.

/// Defines an enum, the list of its variants and their names in one place.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// The reason why a frame was dropped. Each reason has a counter.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Reason { $($(#[$doc])* $variant,)* }

        impl Reason {
            /// All reasons.
            pub const ALL: &[Reason] = &[$(Reason::$variant,)*];

            /// The reason's name in statistics: lower case, words joined by
            /// `_`.
            pub fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// The packet is shorter than its headers, or the headers contradict each
    /// other.
    Malformed "malformed",
    /// The destination hardware address is another station's.
    OtherStation "other_station",
    /// The frame is neither ARP nor IP, and no host takes it.
    EtherTypeUnknown "ether_type_unknown",
    /// The frame has an 802.1Q tag; links of the router are untagged.
    Tagged "tagged",
    /// The checksum of the IPv4 header or of an ICMP message is wrong.
    ChecksumWrong "checksum_wrong",
    /// The source address is invalid: multicast, loopback, or an address of the
    /// router (RFC 1812 §5.3.7, RFC 4291 §2.5).
    SourceMartian "source_martian",
    /// The destination address is not routable: loopback, this network (RFC
    /// 1812 §5.3.7).
    DestinationMartian "destination_martian",
    /// The source or destination address is valid on one link only (RFC 4291
    /// §2.5.6).
    BeyondScope "beyond_scope",
    /// A unicast packet in a link-layer group frame (RFC 1812 §5.3.4).
    GroupFrame "group_frame",
    /// The destination is a multicast group; the router has no multicast
    /// routing.
    Multicast "multicast",
    /// A directed broadcast to a network of the router from elsewhere (RFC
    /// 2644).
    DirectedBroadcast "directed_broadcast",
    /// The packet has a source route (RFC 7126 §4.3, RFC 5095).
    SourceRoute "source_route",
    /// An IPv4 option is malformed (RFC 791 §3.1).
    OptionMalformed "option_malformed",
    /// The TTL or hop limit has expired (RFC 1812 §5.3.1).
    TtlExceeded "ttl_exceeded",
    /// The packet exceeds the MTU of the next link and may not be fragmented.
    TooBig "too_big",
    /// There is no route to the destination.
    NoRoute "no_route",
    /// An unreachable route covers the destination.
    Unreachable "unreachable",
    /// A prohibit route covers the destination.
    Prohibited "prohibited",
    /// A blackhole route covers the destination.
    Blackhole "blackhole",
    /// Every link of the route is down.
    LinkDown "link_down",
    /// The neighbour did not answer, or frames waited for the answer for too
    /// long.
    NeighbourUnresolved "neighbour_unresolved",
    /// The number of unresolved neighbours is at its limit.
    NeighbourTableFull "neighbour_table_full",
    /// An ARP or neighbour discovery message that may not be trusted.
    NeighbourRefused "neighbour_refused",
    /// ARP or neighbour discovery for another station's address.
    NotForUs "not_for_us",
    /// A packet to the router itself that no service takes.
    NoService "no_service",
    /// An ICMP error was suppressed by the rate limit.
    IcmpRateLimited "icmp_rate_limited",
    /// The queue of the router's own frames is full, or has no room for all
    /// fragments of a packet.
    QueueFull "queue_full",
    /// The link did not accept the frame.
    LinkFull "link_full",
}

/// The traffic counters of one link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkCounts {
    /// Number of frames received.
    pub rx_frames: u64,
    /// Bytes of these frames.
    pub rx_bytes: u64,
    /// Number of frames passed to the link for sending.
    pub tx_frames: u64,
    /// Bytes of these frames.
    pub tx_bytes: u64,
}

/// The counters of a router since it was made.
#[derive(Clone, Debug)]
pub struct Counters {
    /// The counters of each link, in the order of the links.
    pub links: Vec<LinkCounts>,
    /// Number of IPv4 packets forwarded; a fragmented packet counts once.
    pub forwarded_v4: u64,
    /// Number of IPv6 packets forwarded.
    pub forwarded_v6: u64,
    /// Number of IPv4 packets that were fragmented.
    pub fragmented: u64,
    /// Number of fragments made of them.
    pub fragments: u64,
    /// Number of echo requests to the router answered.
    pub echoes: u64,
    /// Number of ARP requests and neighbour solicitations answered.
    pub neighbours_answered: u64,
    /// Number of ARP requests and neighbour solicitations sent.
    pub neighbours_asked: u64,
    /// Number of ICMP errors sent, without redirects.
    pub icmp_errors: u64,
    /// Number of redirects sent.
    pub redirects: u64,
    drops: Vec<u64>,
}

impl Counters {
    pub(super) fn new(links: usize) -> Counters {
        Counters {
            links: vec![LinkCounts::default(); links],
            forwarded_v4: 0,
            forwarded_v6: 0,
            fragmented: 0,
            fragments: 0,
            echoes: 0,
            neighbours_answered: 0,
            neighbours_asked: 0,
            icmp_errors: 0,
            redirects: 0,
            drops: vec![0; Reason::ALL.len()],
        }
    }

    /// Number of frames dropped for this reason.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.drops[reason as usize]
    }

    /// Every reason, with the number of frames dropped for it.
    pub fn drops(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.iter().copied().zip(self.drops.iter().copied())
    }

    /// Counts dropped frames.
    pub(super) fn drop(&mut self, reason: Reason, frames: u64) {
        self.drops[reason as usize] += frames;
    }
}
