//! The composed entry: what all stages and the base do to each frame of a flow,
//! folded to one value, and its interpreter.
//!
//! The stages are the oracle of the entry, and the entry's interpreter is the
//! oracle of the program in the kernel: whatever a frame of the flow is like,
//! either the entry gives the bytes that the stages would give, or the frame
//! goes up to the stages.

use crate::edits::{self, Edits};
use crate::flow::{Direction, Flow};
use crate::layers::{ETHERNET, Layers};
use crate::packet::{TCP_CONTROL, Trace};
use crate::{Fate, STAGES_MAX};
use weir_wire::field::{read_u16, write};
use weir_wire::{Protocol, checksum};

/// The kernel's treatment of the frames of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Composed {
    /// The flow of the frames as they come.
    pub flow: Flow,
    /// Their direction.
    pub direction: Direction,
    /// The frames are dropped, and counted for the entry.
    pub is_drop: bool,
    /// The edits.
    pub edits: Edits,
    /// The cookie of each stage, 0 for none; see [`Packet::remember`](crate::Packet::remember).
    pub cookies: [u64; STAGES_MAX],
}

/// An entry's treatment of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The frame is sent, with its first `len` bytes.
    Sent {
        /// The length without padding.
        len: usize,
    },
    /// The frame is dropped.
    Dropped,
    /// The frame is not the entry's to decide, and unchanged: it goes to the
    /// stages.
    Up,
}

impl Composed {
    /// The entry of a packet that has gone through the chain in a direction;
    /// `None` if it is not cacheable.
    pub(crate) fn of(trace: &Trace, direction: Direction) -> Option<Composed> {
        let flow = *trace.came()?;
        let is_drop = match trace.fate() {
            Fate::Pass => false,
            Fate::Drop(_) => true,
            Fate::Held(_) | Fate::Taken => return None,
        };
        trace.is_cacheable().then(|| Composed {
            flow,
            direction,
            is_drop,
            edits: *trace.edits(),
            cookies: trace.cookies(),
        })
    }

    /// Whether the edits translate addresses or ports.
    pub fn translates(&self) -> bool {
        let edits = &self.edits;
        edits.source.is_some()
            || edits.destination.is_some()
            || edits.source_port.is_some()
            || edits.destination_port.is_some()
    }

    /// Whether frames go on as they are, and no stage has remembered the entry.
    pub fn is_plain(&self) -> bool {
        let is_remembered = self.cookies.iter().any(|cookie| *cookie != 0);
        !self.is_drop && !is_remembered && self.edits == Edits::default()
    }

    /// Does to a frame what the program in the kernel does.
    pub fn apply(&self, frame: &mut [u8]) -> Outcome {
        let Some(layers) = Layers::of(frame) else {
            return Outcome::Up;
        };
        if layers.flow(frame) != Some(self.flow) {
            return Outcome::Up;
        }
        let is_tcp = layers.protocol == Protocol::TCP;
        if is_tcp && frame[layers.payload + 13] & TCP_CONTROL != 0 {
            return Outcome::Up;
        }
        if self.is_drop {
            return Outcome::Dropped;
        }
        let Some(len) = self.check(frame, &layers) else {
            return Outcome::Up;
        };
        self.rewrite(&mut frame[..len], &layers);
        Outcome::Sent { len }
    }

    /// The checks of a router for each packet (RFC 1812 §5.2.2, RFC 8200 §3);
    /// returns the number of bytes to send.
    fn check(&self, frame: &[u8], layers: &Layers) -> Option<usize> {
        let ip = layers.ip;
        let (ttl, stated) = if layers.is_v6 {
            (frame[ip + 7], 40 + usize::from(read_u16(frame, ip + 4)))
        } else {
            (frame[ip + 8], usize::from(read_u16(frame, ip + 2)))
        };
        let is_right = layers.is_v6 || checksum::internet_checksum(&frame[ip..layers.payload]) == 0;
        let mtu = match self.edits.mtu {
            0 => usize::MAX,
            mtu => mtu as usize,
        };
        let fits = stated <= mtu && ETHERNET + stated <= frame.len();
        if !is_right || ttl <= self.edits.ttl || !fits {
            return None;
        }
        // A router removes padding; other bases leave it.
        Some(match self.edits.mtu {
            0 => frame.len(),
            _ => ETHERNET + stated,
        })
    }

    fn rewrite(&self, frame: &mut [u8], layers: &Layers) {
        let edits = &self.edits;
        if let Some((src, dst)) = edits.stations {
            write(frame, 0, &dst.0);
            write(frame, 6, &src.0);
        }
        let (src, dst) = if layers.is_v6 { (8, 24) } else { (12, 16) };
        for (address, at) in [(edits.source, src), (edits.destination, dst)] {
            match address {
                Some(std::net::IpAddr::V4(address)) => {
                    write(frame, layers.ip + at, &address.octets());
                }
                Some(std::net::IpAddr::V6(address)) => {
                    write(frame, layers.ip + at, &address.octets());
                }
                None => {}
            }
        }
        for (port, at) in [(edits.source_port, 0), (edits.destination_port, 2)] {
            if let Some(port) = port {
                write(frame, layers.payload + at, &port.to_be_bytes());
            }
        }
        if self.translates() {
            if !layers.is_v6 {
                edits::follow(frame, layers.ip + 10, edits.header);
            }
            if let Some(at) = layers.transport_checksum() {
                let is_udp = layers.protocol == Protocol::UDP;
                edits::follow_transport(frame, at, is_udp, edits.transport);
            }
        }
        if let Some(dscp) = edits.dscp {
            edits::set_dscp(frame, layers.ip, layers.is_v6, dscp);
        }
        for _ in 0..edits.ttl {
            edits::less_ttl(frame, layers.ip, layers.is_v6);
        }
    }
}
