//! What a router has counted.

/// Makes an enum, the list of its variants and their names in one place.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// Why a frame went no further. Each has a counter.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Reason { $($(#[$doc])* $variant,)* }

        impl Reason {
            /// All of them.
            pub const ALL: &[Reason] = &[$(Reason::$variant,)*];

            /// Its name in statistics: lower case, words joined by `_`.
            pub fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// Shorter than its headers, or headers that contradict each other.
    Malformed "malformed",
    /// To another station's hardware address.
    OtherStation "other_station",
    /// Neither ARP nor IP, and no host to take it.
    EtherTypeUnknown "ether_type_unknown",
    /// With an 802.1Q tag: no link has one.
    Tagged "tagged",
    /// The IPv4 header's or an ICMP message's checksum is wrong.
    ChecksumWrong "checksum_wrong",
    /// From where nobody can send: a group, loopback, an address of ours
    /// (RFC 1812 §5.3.7, RFC 4291 §2.5).
    SourceMartian "source_martian",
    /// To where no router sends: loopback, this network (RFC 1812 §5.3.7).
    DestinationMartian "destination_martian",
    /// From or to an address that is good on one link only (RFC 4291 §2.5.6).
    BeyondScope "beyond_scope",
    /// In a frame to a group, to a single address (RFC 1812 §5.3.4).
    GroupFrame "group_frame",
    /// To a group; there is no multicast routing here.
    Multicast "multicast",
    /// To all hosts of a network of ours from elsewhere (RFC 2644).
    DirectedBroadcast "directed_broadcast",
    /// A source route (RFC 7126 §4.3, RFC 5095).
    SourceRoute "source_route",
    /// An IPv4 option that cannot be (RFC 791 §3.1).
    OptionMalformed "option_malformed",
    /// Its last hop was here (RFC 1812 §5.3.1).
    TtlExceeded "ttl_exceeded",
    /// Longer than the next link takes, and not to be fragmented.
    TooBig "too_big",
    /// No route leads there.
    NoRoute "no_route",
    /// A route says that nobody is reached there.
    Unreachable "unreachable",
    /// A route says that nobody may go there.
    Prohibited "prohibited",
    /// A route says to drop it without a word.
    Blackhole "blackhole",
    /// Every link that the route leads over is down.
    LinkDown "link_down",
    /// The neighbour did not answer, or frames waited for it for too long.
    NeighbourUnresolved "neighbour_unresolved",
    /// As many neighbours are asked for as may be.
    NeighbourTableFull "neighbour_table_full",
    /// An ARP or neighbour message that says nothing we may believe.
    NeighbourRefused "neighbour_refused",
    /// ARP or neighbour discovery that asks for somebody else.
    NotForUs "not_for_us",
    /// For the router itself, and nothing here takes it.
    NoService "no_service",
    /// An ICMP error was not sent, to bound their rate.
    IcmpRateLimited "icmp_rate_limited",
    /// The queue of the router's own frames is full, or has no room for all
    /// pieces of a packet.
    QueueFull "queue_full",
    /// The link did not take the frame.
    LinkFull "link_full",
}

/// What one link has carried.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkCounts {
    /// Frames that came.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames that were given to the link.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
}

/// What a router has counted since it was made.
#[derive(Clone, Debug)]
pub struct Counters {
    /// A row for each link, in the order they were given.
    pub links: Vec<LinkCounts>,
    /// IPv4 packets forwarded, once each even where fragmented.
    pub forwarded_v4: u64,
    /// IPv6 packets forwarded.
    pub forwarded_v6: u64,
    /// IPv4 packets that were cut into fragments.
    pub fragmented: u64,
    /// Fragments they were cut into.
    pub fragments: u64,
    /// Echo requests to the router answered.
    pub echoes: u64,
    /// ARP requests and neighbour solicitations answered.
    pub neighbours_answered: u64,
    /// Neighbours asked for.
    pub neighbours_asked: u64,
    /// ICMP errors sent, redirects apart.
    pub icmp_errors: u64,
    /// Redirects sent.
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

    /// How many frames went no further for this reason.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.drops[reason as usize]
    }

    /// Every reason, and how often there was one.
    pub fn drops(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.iter().copied().zip(self.drops.iter().copied())
    }

    /// Counts frames that went no further.
    pub(super) fn drop(&mut self, reason: Reason, frames: u64) {
        self.drops[reason as usize] += frames;
    }
}
