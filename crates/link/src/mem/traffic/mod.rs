//! Mixed traffic as on an office network, generated from a seed.
//!
//! Conversations run concurrently, each with its frames in the right order: a
//! TCP connection opens, transfers and closes; a DNS response follows its
//! query. All addresses are reserved for documentation (RFC 5737, RFC 3849, RFC
//! 7042), names are those of RFC 2606, and checksums are correct. The mix of
//! conversations:
//!
//! | per cent | what |
//! |---|---|
//! | 30 | TCP on ports 443, 80, 22 and 25 |
//! | 25 | DNS over UDP |
//! | 15 | other UDP: QUIC, NTP, RTP, syslog |
//! | 10 | ICMP echo |
//! | 10 | ARP |
//! | 10 | Pup |
//!
//! One third of the IP conversations use IPv6; one fifth of all conversations
//! are tagged with one of four VLANs.

mod conversation;
mod packet;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::rng::Rng;
use conversation::Conversation;
use weir_wire::LinkType;

/// Number of concurrent conversations.
const CONVERSATIONS: usize = 48;

/// The kind of link that the traffic is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Ethernet: the whole mix.
    Ethernet,
    /// The 3 Mb/s Ethernet of the 1987 paper: only Pup.
    ThreeMegabit,
}

impl Medium {
    /// The link-layer header type.
    pub fn linktype(self) -> LinkType {
        match self {
            Medium::Ethernet => LinkType::EN10MB,
            Medium::ThreeMegabit => LinkType::EN3MB,
        }
    }
}

/// A generated frame, with its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Generated {
    /// Sending time, in nanoseconds from the start of the traffic; never
    /// decreases.
    pub time_ns: u64,
    /// The frame's bytes, padded to 60 on Ethernet.
    pub bytes: Vec<u8>,
}

/// Endless traffic: take as many frames as needed.
#[derive(Debug)]
pub struct Traffic {
    rng: Rng,
    medium: Medium,
    conversations: Vec<Conversation>,
    /// Time of each conversation's next frame.
    due: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Traffic {
    /// The traffic of a seed, always the same.
    pub fn new(seed: u64, medium: Medium) -> Traffic {
        let mut traffic = Traffic {
            rng: Rng::new(seed),
            medium,
            conversations: Vec::new(),
            due: BinaryHeap::new(),
        };
        for slot in 0..CONVERSATIONS {
            let conversation = Conversation::begin(&mut traffic.rng, medium);
            traffic.conversations.push(conversation);
            let start_ns = traffic.rng.below(5_000_000);
            traffic.due.push(Reverse((start_ns, slot)));
        }
        traffic
    }
}

impl Iterator for Traffic {
    type Item = Generated;

    fn next(&mut self) -> Option<Generated> {
        let Reverse((time_ns, slot)) = self.due.pop()?;
        let conversation = &mut self.conversations[slot];
        let (bytes, pause_ns) = conversation.step(&mut self.rng);
        if conversation.is_over() {
            *conversation = Conversation::begin(&mut self.rng, self.medium);
        }
        self.due.push(Reverse((time_ns + pause_ns, slot)));
        Some(Generated { time_ns, bytes })
    }
}
