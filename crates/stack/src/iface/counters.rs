//! Every drop has a reason, and every reason a counter.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Why something that came, or was to go, went no further.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DropReason {
            /// All of them.
            pub const ALL: &[DropReason] = &[$(DropReason::$name,)+];
        }
    };
}

reasons! {
    /// It came by a link that the stack has not, or by another than its
    /// connection's.
    OtherLink,
    /// A header is cut short or contradicts itself.
    Malformed,
    /// The frame is for another station.
    NotOurFrame,
    /// Neither IPv4, IPv6 nor ARP; tagged frames are such.
    EtherTypeUnknown,
    /// An IPv4 header, or a transport's or ICMP's checksum, is wrong.
    ChecksumWrong,
    /// The destination is not an address of ours, nor a group we are in.
    NotOurAddress,
    /// Nobody can have sent from this address: a group, a loopback address,
    /// or our own.
    SourceImpossible,
    /// A source route, which a host does not follow (RFC 7126).
    SourceRoute,
    /// An IPv6 extension header that may not be passed over.
    ExtensionRefused,
    /// A fragment whose length or place cannot be.
    FragmentMalformed,
    /// A fragment that came before.
    FragmentDuplicate,
    /// Fragments contradict each other; the datagram is lost (RFC 5722).
    FragmentOverlap,
    /// More pieces than a datagram may have.
    FragmentsTooMany,
    /// A datagram was given up to make room for newer ones.
    ReassemblyFull,
    /// A datagram was not whole in time.
    ReassemblyTimeout,
    /// An ARP or neighbour message that says nothing we may believe.
    NeighbourRefused,
    /// A router's message that is not to be believed: from afar, or about what
    /// is not its own.
    RouterRefused,
    /// What a router advertised beyond the limits.
    LearntTooMuch,
    /// A message about groups that is of no meaning here, or from afar.
    GroupRefused,
    /// A DHCP server's answer to nothing that we asked.
    DhcpRefused,
    /// A packet waited for a neighbour that never answered, or for too long.
    NeighbourUnresolved,
    /// An ICMP message of no meaning here.
    IcmpUnknown,
    /// An ICMP error about something we have not sent.
    IcmpUnrelated,
    /// An ICMP error was not sent, to keep their rate bounded.
    IcmpRateLimited,
    /// The protocol is none of ours.
    ProtocolUnknown,
    /// No socket is at the destination's transport port.
    PortUnknown,
    /// A TCP segment for no connection and no listener, or not what a listener
    /// takes.
    SegmentRefused,
    /// A segment that a connection takes nothing of: outside its window, old by
    /// its timestamp, a reset or a SYN that does not have the very next number, or
    /// an acknowledgment of what was never sent. A stranger's guess is such
    /// (RFC 5961), and so is what comes twice.
    SegmentUnexpected,
    /// As many connections as a listener may have wait to be accepted.
    BacklogFull,
    /// A socket's queue of datagrams is full.
    SocketFull,
    /// It was to go from an address that is no longer ours.
    SourceLost,
    /// No route leads there.
    NoRoute,
    /// The queue of frames to be sent is full.
    QueueFull,
}

/// What a stack has counted since it was made.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Frames that came.
    pub frames_in: u64,
    /// Frames that were handed to the link.
    pub frames_out: u64,
    /// TCP segments of connections that took the fast path.
    pub segments_fast: u64,
    /// TCP segments of connections that took the standard path.
    pub segments_standard: u64,
    /// Acknowledgments that asked who sent an unexpected segment for proof
    /// (RFC 5961).
    pub challenges: u64,
    /// SYNs that were answered by a cookie, so that nothing is kept (RFC 4987).
    pub cookies_out: u64,
    /// Connections that such a cookie opened.
    pub cookies_back: u64,
    /// TCP connections in TIME-WAIT, or in FIN-WAIT-2 without an application, that
    /// went before their time to make room for newer ones
    /// ([`TIME_WAIT_MAX`](crate::tcp::TIME_WAIT_MAX)).
    pub time_wait_evicted: u64,
    /// UDP datagrams that took the fast path.
    pub datagrams_fast: u64,
    /// UDP datagrams that took the standard path.
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
    /// How often something was dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// The reasons there were, and how often.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        let all = DropReason::ALL.iter().zip(self.drops);
        all.filter_map(|(&reason, times)| (times > 0).then_some((reason, times)))
    }

    /// Adds what another stack has counted.
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
