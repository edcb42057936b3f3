//! Fan-out: the frames of one binding, spread over several ports by flow, as
//! `PACKET_FANOUT_HASH` of packet(7) spreads them over sockets.
//!
//! ```text
//!  frame ─► flow hash ─► bucket 0 … 511 ─► the port that has the bucket
//! ```
//!
//! A flow is what both directions of a connection have in common, so that both
//! go to one port. [`bucket`] hashes it, and the generated program of
//! [`kernel`](crate::kernel) does the same. Each port of a group has some of the
//! [`BUCKETS`], as the indirection table of receive-side scaling deals them out
//! to queues: when a port leaves, its buckets alone change hands.
//!
//! The flow of a frame, of which only the first [`HEAD_BYTES`] count:
//!
//! | frame | flow |
//! |---|---|
//! | TCP, UDP, UDP-Lite, DCCP, SCTP | both addresses, both transport ports, protocol |
//! | a fragment, the first included; any other IP packet | both addresses, protocol |
//! | no IP packet, or a damaged one | both MAC addresses, EtherType |
//!
//! VLAN tags (at most two, 802.1Q or 802.1ad) are skipped, and so are up to three
//! extension headers of IPv6: hop-by-hop, routing, destination options. Tunnels
//! are not looked into.
//!
//! The hash has no key, so that a capture is shared out as the live traffic was:
//! a sender that wants to can direct all its flows at one port.

mod spec;

pub use spec::{Fanout, FanoutError, Group, Share};

use weir_wire::LinkType;

/// Number of buckets: eight for each port of the largest group.
pub const BUCKETS: usize = 512;
/// Number of ports of one group, and of shares.
pub const MEMBERS_MAX: u32 = 64;
/// Bytes of a frame that the hash reads at most: of Ethernet, two VLAN tags, the
/// longest IPv4 header and transport ports there are 86.
pub const HEAD_BYTES: usize = 96;

/// Bits of the hash that are not the bucket's.
pub(crate) const BUCKET_SHIFT: u32 = u64::BITS - BUCKETS.ilog2();
/// Factor of [`mix`], odd, of well mixed bits (Pelle Evensen's rrxmrrxmsx_0).
pub(crate) const MIX: u64 = 0x9fb2_1c65_1e98_df25;
/// Factor that spreads protocols and EtherTypes over the hash: 2^64 divided by
/// the golden ratio.
pub(crate) const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Set in the kind of a flow that is not of IP, whose other bits are the
/// EtherType.
pub(crate) const NO_IP: u32 = 1 << 16;
/// Extension headers of IPv6 that are skipped.
pub(crate) const EXTENSIONS: [u8; 3] = [0, 43, 60];
/// How many of them.
pub(crate) const EXTENSIONS_MAX: usize = 3;
/// Protocols whose headers begin with two transport ports: TCP, UDP, DCCP, SCTP,
/// UDP-Lite.
pub(crate) const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
/// VLAN tags that are skipped.
pub(crate) const TAGS_MAX: usize = 2;
/// EtherTypes of VLAN tags.
pub(crate) const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// IPv4's fragment offset, and the flag of more fragments.
pub(crate) const FRAGMENT: u16 = 0x3fff;

/// Where frames of a link type say what they hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Where the EtherType stands; without one, IP begins at once.
    pub(crate) type_at: Option<usize>,
    /// Whether the frame begins with two MAC addresses.
    pub(crate) has_macs: bool,
    /// Where the packet, or a VLAN tag, begins.
    pub(crate) packet_at: usize,
}

impl Layout {
    /// Ethernet's.
    pub const ETHERNET: Layout = Layout {
        type_at: Some(12),
        has_macs: true,
        packet_at: 14,
    };

    /// That of a link type; `None` if it has no flows as far as weir knows.
    pub fn of(linktype: LinkType) -> Option<Layout> {
        let plain = |type_at, packet_at| Layout {
            type_at,
            has_macs: false,
            packet_at,
        };
        match linktype {
            LinkType::EN10MB => Some(Layout::ETHERNET),
            LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => Some(plain(None, 0)),
            LinkType::NULL | LinkType::LOOP => Some(plain(None, 4)),
            LinkType::LINUX_SLL => Some(plain(Some(14), 16)),
            LinkType::LINUX_SLL2 => Some(plain(Some(0), 20)),
            _ => None,
        }
    }
}

/// A flow as it is hashed: its two ends, and what kind of frames it has.
#[derive(Clone, Copy)]
struct Flow {
    ends: [u64; 2],
    kind: u32,
}

/// The bucket of a frame, below [`BUCKETS`]: the same for both directions of a
/// connection. A frame that was cut off below [`HEAD_BYTES`] may be in another
/// bucket than the whole one.
pub fn bucket(frame: &[u8], layout: Layout) -> usize {
    let head = &frame[..frame.len().min(HEAD_BYTES)];
    let Flow { ends, kind } = flow(head, layout);
    let sum = mix(ends[0]).wrapping_add(mix(ends[1]));
    let sum = sum.wrapping_add(u64::from(kind).wrapping_mul(SPREAD));
    (mix(sum) >> BUCKET_SHIFT) as usize
}

/// Distributes the bits of a word over it.
fn mix(word: u64) -> u64 {
    let product = (word ^ word >> 32).wrapping_mul(MIX);
    product ^ product >> 32
}

fn flow(head: &[u8], layout: Layout) -> Flow {
    let (ether_type, at) = match layout.type_at {
        Some(type_at) => match be16(head, type_at) {
            Some(ether_type) => behind_tags(head, ether_type, layout.packet_at),
            None => return no_ip([0; 2], 0),
        },
        None => (None, layout.packet_at),
    };
    let version = head.get(at).map(|byte| byte >> 4);
    let found = match (ether_type, version) {
        (None | Some(0x0800), Some(4)) => ipv4(head, at),
        (None | Some(0x86dd), Some(6)) => ipv6(head, at),
        _ => None,
    };
    found.unwrap_or_else(|| {
        let macs = [0, 6].map(|at| be64(head, at) >> 16);
        let macs = if layout.has_macs { macs } else { [0; 2] };
        no_ip(macs, ether_type.unwrap_or(0))
    })
}

fn no_ip(ends: [u64; 2], ether_type: u16) -> Flow {
    let kind = NO_IP | u32::from(ether_type);
    Flow { ends, kind }
}

/// The EtherType behind VLAN tags, and where its packet begins.
fn behind_tags(head: &[u8], mut ether_type: u16, mut at: usize) -> (Option<u16>, usize) {
    for _ in 0..TAGS_MAX {
        let next = be16(head, at + 2).filter(|_| TAGS.contains(&ether_type));
        let Some(next) = next else { break };
        (ether_type, at) = (next, at + 4);
    }
    (Some(ether_type), at)
}

fn ipv4(head: &[u8], at: usize) -> Option<Flow> {
    let header = head.get(at..at + 20)?;
    let header_len = usize::from(header[0] & 15) * 4;
    if header_len < 20 {
        return None;
    }
    let end = |at| (be64(header, at) >> 32) << 16;
    let kind = u32::from(header[9]);
    let flow = Flow {
        ends: [end(12), end(16)],
        kind,
    };
    let is_fragment = be16(header, 6)? & FRAGMENT != 0;
    let ports = Some(at + header_len).filter(|_| !is_fragment);
    Some(with_ports(flow, head, ports))
}

fn ipv6(head: &[u8], at: usize) -> Option<Flow> {
    let header = head.get(at..at + 40)?;
    let end = |at| mix(mix(be64(header, at)).wrapping_add(be64(header, at + 8)));
    let (mut next, mut behind) = (header[6], at + 40);
    for _ in 0..EXTENSIONS_MAX {
        if !EXTENSIONS.contains(&next) || behind + 8 > head.len() {
            break;
        }
        next = head[behind];
        behind += (usize::from(head[behind + 1]) + 1) * 8;
    }
    let flow = Flow {
        ends: [end(8), end(24)],
        kind: u32::from(next),
    };
    Some(with_ports(flow, head, Some(behind)))
}

/// The flow with the transport ports that stand at `at`, if its protocol has some
/// and the frame has them.
fn with_ports(mut flow: Flow, head: &[u8], at: Option<usize>) -> Flow {
    let has_ports = WITH_PORTS.iter().any(|one| u32::from(*one) == flow.kind);
    let ports = at.filter(|_| has_ports);
    let ports = ports.and_then(|at| Some([be16(head, at)?, be16(head, at + 2)?]));
    for (end, port) in flow.ends.iter_mut().zip(ports.unwrap_or([0; 2])) {
        *end = end.wrapping_add(port.into());
    }
    flow
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*two))
}

/// The eight bytes at `at`; bytes beyond the end are 0.
fn be64(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    let there = bytes.get(at..).unwrap_or_default();
    let count = there.len().min(8);
    eight[..count].copy_from_slice(&there[..count]);
    u64::from_be_bytes(eight)
}

/// The port that has each bucket, as the program in the kernel reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buckets(Vec<Option<(u32, u32)>>);

impl Buckets {
    /// Buckets that no port has.
    pub fn new() -> Buckets {
        Buckets(vec![None; BUCKETS])
    }

    /// Gives a bucket to the port of a slot, whose records bear this tag.
    ///
    /// # Panics
    /// If there is no such bucket.
    pub fn set(&mut self, bucket: usize, slot: u32, tag: u32) {
        self.0[bucket] = Some((slot, tag));
    }

    /// Slot and tag of the port that has a bucket; `None` if no port has it, or
    /// there is no such bucket.
    pub fn get(&self, bucket: usize) -> Option<(u32, u32)> {
        self.0.get(bucket).copied().flatten()
    }

    /// All buckets, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Option<(u32, u32)>> {
        self.0.iter().copied()
    }
}

impl Default for Buckets {
    fn default() -> Buckets {
        Buckets::new()
    }
}
