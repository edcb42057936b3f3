//! [`Counters`] and [`DropReason`]: each drop has a reason, and each reason a counter.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Why a frame, packet or message was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DropReason {
            /// All reasons.
            pub const ALL: &[DropReason] = &[$(DropReason::$name,)+];
        }
    };
}

reasons! {
    /// A frame by a link that the stack does not have, or by another link than its
    /// connection's.
    OtherLink,
    /// A header is cut short or contradicts itself.
    Malformed,
    /// The frame is for another station.
    NotOurFrame,
    /// An EtherType other than IPv4, IPv6 and ARP, such as a VLAN tag.
    EtherTypeUnknown,
    /// A wrong checksum of an IPv4 header, a transport header or ICMP.
    ChecksumWrong,
    /// The destination is neither an address of the host nor a group that it has joined.
    NotOurAddress,
    /// The source cannot be a sender's: a group, a loopback address, or the host's own address.
    SourceImpossible,
    /// A source route, which a host does not follow (RFC 7126).
    SourceRoute,
    /// An IPv6 extension header that must not be skipped.
    ExtensionRefused,
    /// A fragment with an impossible length or offset.
    FragmentMalformed,
    /// A fragment that had already arrived.
    FragmentDuplicate,
    /// Overlapping fragments; the datagram is discarded (RFC 5722).
    FragmentOverlap,
    /// More fragments than a datagram may have.
    FragmentsTooMany,
    /// A partial datagram was discarded to make room for newer ones.
    ReassemblyFull,
    /// A datagram was incomplete at its time-out.
    ReassemblyTimeout,
    /// An ARP or neighbour discovery message that fails validation.
    NeighbourRefused,
    /// A router's message that fails validation: not from the link, or about matters of another
    /// router.
    RouterRefused,
    /// An advertised address, route or server beyond the limits.
    LearntTooMuch,
    /// A multicast membership message without meaning for a host, or not from the link.
    GroupRefused,
    /// A DHCP answer that matches no request.
    DhcpRefused,
    /// A packet for a neighbour that did not answer, or not in time.
    NeighbourUnresolved,
    /// An ICMP message of a type that the host does not handle.
    IcmpUnknown,
    /// An ICMP error that quotes a packet which the host did not send.
    IcmpUnrelated,
    /// An ICMP error that was not sent because of the rate limit.
    IcmpRateLimited,
    /// An IP protocol that the host does not implement.
    ProtocolUnknown,
    /// No socket has the destination's transport port.
    PortUnknown,
    /// A TCP segment without a connection, and without a listener that accepts it.
    SegmentRefused,
    /// A segment that a connection rejects: outside the window, old by its timestamp, a RST or
    /// SYN without the exact sequence number, or an acknowledgment of unsent data. Duplicates
    /// are such segments, and so are blind attacks (RFC 5961).
    SegmentUnexpected,
    /// A listener's accept queue is full.
    BacklogFull,
    /// A UDP socket's receive queue is full.
    SocketFull,
    /// A packet to be sent from an address that the host no longer has.
    SourceLost,
    /// No route leads to the destination.
    NoRoute,
    /// The output queue is full.
    QueueFull,
}

/// Counts of a stack since its start.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Frames received.
    pub frames_in: u64,
    /// Frames sent to the link.
    pub frames_out: u64,
    /// TCP segments of connections on the fast path.
    pub segments_fast: u64,
    /// TCP segments of connections on the standard path.
    pub segments_standard: u64,
    /// Challenge ACKs sent for unexpected segments (RFC 5961).
    pub challenges: u64,
    /// SYN cookies sent, which need no state (RFC 4987).
    pub cookies_out: u64,
    /// Connections that a valid SYN cookie opened.
    pub cookies_back: u64,
    /// TCP connections in TIME-WAIT, or in FIN-WAIT-2 without an application, that were ended
    /// early to make room for newer ones
    /// ([`TIME_WAIT_MAX`](crate::tcp::TIME_WAIT_MAX)).
    pub time_wait_evicted: u64,
    /// UDP datagrams on the fast path.
    pub datagrams_fast: u64,
    /// UDP datagrams on the standard path.
    pub datagrams_standard: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            frames_in: 0,
            frames_out: 0,
            segments_fast: 0,
            segments_standard: 0,
            challenges: 0,
            cookies_out: 0,
            cookies_back: 0,
            time_wait_evicted: 0,
            datagrams_fast: 0,
            datagrams_standard: 0,
            drops: [0; DropReason::ALL.len()],
        }
    }
}

impl Counters {
    /// Number of drops for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// The reasons with at least one drop, and their numbers.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        let all = DropReason::ALL.iter().zip(self.drops);
        all.filter_map(|(&reason, times)| (times > 0).then_some((reason, times)))
    }

    /// Adds the counts of another stack.
    pub fn add(&mut self, other: &Counters) {
        self.frames_in += other.frames_in;
        self.frames_out += other.frames_out;
        self.segments_fast += other.segments_fast;
        self.segments_standard += other.segments_standard;
        self.challenges += other.challenges;
        self.cookies_out += other.cookies_out;
        self.cookies_back += other.cookies_back;
        self.time_wait_evicted += other.time_wait_evicted;
        self.datagrams_fast += other.datagrams_fast;
        self.datagrams_standard += other.datagrams_standard;
        for (sum, times) in self.drops.iter_mut().zip(other.drops) {
            *sum += times;
        }
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.drop_many(reason, 1);
    }

    pub(crate) fn drop_many(&mut self, reason: DropReason, times: u64) {
        self.drops[reason as usize] += times;
    }
}
