//! The state of a translator as bytes, for the next one: mappings, sessions, and blocks that rest.
//!
//! ```text
//!  "weirnat1", or "weirn641" with an inside of IPv6;  block size, pool: number, addresses
//!  mappings:   number; of each transport, inside, outside, whether it is static
//!  sessions:   number; of each mapping, remote, last use, what it has seen, who began it
//!  resting:    number; of each the time until, pool address, block
//! ```
//!
//! Numbers are big-endian; times are of the stage's clock, which goes on. What the next
//! configuration no longer allows (an address that is not in the pool, a port that is forwarded
//! now) is left out. The kernel's entries are none of it: they ended with the process.

use super::config::Transport;
use super::inside::Inside;
use std::net::Ipv4Addr;

/// A mapping, as saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SavedMapping<A> {
    pub(super) transport: Transport,
    pub(super) inside: (A, u16),
    pub(super) outside: (Ipv4Addr, u16),
    pub(super) is_static: bool,
}

/// A session, as saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SavedSession {
    /// The number of its mapping in the list.
    pub(super) mapping: u32,
    pub(super) remote: (Ipv4Addr, u16),
    pub(super) used: u64,
    pub(super) seen: u8,
    pub(super) is_inbound: bool,
}

/// A block that rests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SavedRest {
    pub(super) until: u64,
    pub(super) address: Ipv4Addr,
    pub(super) block: u16,
}

/// Everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Saved<A> {
    pub(super) block: u32,
    pub(super) mappings: Vec<SavedMapping<A>>,
    pub(super) sessions: Vec<SavedSession>,
    pub(super) resting: Vec<SavedRest>,
}

impl<A> Default for Saved<A> {
    fn default() -> Saved<A> {
        Saved {
            block: 0,
            mappings: Vec::new(),
            sessions: Vec::new(),
            resting: Vec::new(),
        }
    }
}

/// Bytes of a saved mapping.
const fn mapping_len<A: Inside>() -> usize {
    10 + A::BITS as usize / 8
}

impl<A: Inside> Saved<A> {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let room = 32 + self.mappings.len() * mapping_len::<A>() + self.sessions.len() * 20;
        let mut out = Vec::with_capacity(room + self.resting.len() * 14);
        out.extend_from_slice(A::MAGIC);
        out.extend(self.block.to_be_bytes());
        let end = |out: &mut Vec<u8>, (address, port): (Ipv4Addr, u16)| {
            out.extend(address.octets());
            out.extend(port.to_be_bytes());
        };
        out.extend((self.mappings.len() as u32).to_be_bytes());
        for mapping in &self.mappings {
            out.push(mapping.transport.index() as u8);
            mapping.inside.0.put(&mut out);
            out.extend(mapping.inside.1.to_be_bytes());
            end(&mut out, mapping.outside);
            out.push(mapping.is_static.into());
        }
        out.extend((self.sessions.len() as u32).to_be_bytes());
        for session in &self.sessions {
            out.extend(session.mapping.to_be_bytes());
            end(&mut out, session.remote);
            out.extend(session.used.to_be_bytes());
            out.push(session.seen);
            out.push(session.is_inbound.into());
        }
        out.extend((self.resting.len() as u32).to_be_bytes());
        for rest in &self.resting {
            out.extend(rest.until.to_be_bytes());
            out.extend(rest.address.octets());
            out.extend(rest.block.to_be_bytes());
        }
        out
    }

    /// Reads what [`bytes`](Self::bytes) wrote; `None` if it is something else.
    pub(super) fn read(bytes: &[u8]) -> Option<Saved<A>> {
        let mut reader = Reader(bytes.strip_prefix(A::MAGIC)?);
        let mut saved = Saved {
            block: reader.u32()?,
            ..Saved::default()
        };
        for _ in 0..reader.count(mapping_len::<A>())? {
            let transport = match reader.u8()? {
                0 => Transport::Tcp,
                1 => Transport::Udp,
                2 => Transport::Icmp,
                _ => return None,
            };
            saved.mappings.push(SavedMapping {
                transport,
                inside: (reader.inside()?, reader.u16()?),
                outside: reader.end()?,
                is_static: reader.u8()? != 0,
            });
        }
        for _ in 0..reader.count(20)? {
            saved.sessions.push(SavedSession {
                mapping: reader.u32()?,
                remote: reader.end()?,
                used: reader.u64()?,
                seen: reader.u8()?,
                is_inbound: reader.u8()? != 0,
            });
        }
        for _ in 0..reader.count(14)? {
            saved.resting.push(SavedRest {
                until: reader.u64()?,
                address: reader.address()?,
                block: reader.u16()?,
            });
        }
        reader.0.is_empty().then_some(saved)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.array()?))
    }

    fn address(&mut self) -> Option<Ipv4Addr> {
        Some(self.array::<4>()?.into())
    }

    fn inside<A: Inside>(&mut self) -> Option<A> {
        let (address, rest) = A::read(self.0)?;
        self.0 = rest;
        Some(address)
    }

    fn end(&mut self) -> Option<(Ipv4Addr, u16)> {
        Some((self.address()?, self.u16()?))
    }

    /// A number of things of `len` bytes each, which must be there.
    fn count(&mut self, len: usize) -> Option<u32> {
        let count = self.u32()?;
        let room = (count as usize).checked_mul(len)?;
        (room <= self.0.len()).then_some(count)
    }
}
