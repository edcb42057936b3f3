//! Fragments (RFC 6146 §3.4): each goes as the first one of its packet does; of a datagram without
//! checksum the whole goes.

use super::datagrams::First;
use super::header::{self, Header};
use super::{Nat64, Packets, Refused};
use crate::flow::Direction;
use crate::fragments::FragmentKey;
use crate::nat::inside::Inside;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_wire::field::read_u16;

impl Nat64 {
    /// A later fragment of the inside.
    pub(super) fn later_out(
        &mut self,
        now: u64,
        packet: &[u8],
        header: &Header<Ipv6Addr>,
    ) -> Result<Packets, Refused> {
        let key = key(Direction::Outward, header).ok_or("malformed")?;
        match self.fragments.find(now, &key) {
            Some(IpAddr::V4(to)) => {
                let made = self.readdressed_out(packet, to).ok_or("too-long")?;
                Ok(vec![made])
            }
            _ => self.wait(now, key, packet),
        }
    }

    fn wait(&mut self, now: u64, key: FragmentKey, packet: &[u8]) -> Result<Packets, Refused> {
        let owner = |source| match source {
            IpAddr::V6(source) => source.masked(self.config.nat.subscriber_len).into(),
            of_outside => of_outside,
        };
        if !self.fragments.has_room(&key, owner) {
            return Err("fragments-full".into());
        }
        self.fragments.wait(now, key, packet.to_vec());
        Err(Refused::Waits)
    }

    /// A later fragment with this source; `None` if it fits no IPv4 packet.
    pub(super) fn readdressed_out(&self, packet: &[u8], to: Ipv4Addr) -> Option<Vec<u8>> {
        let header = header::v6(packet).ok()?;
        let remote = self.config.prefix.extract(header.dst)?;
        let header4 = header.to_v4((to, remote), 0);
        if header4.is_beyond() {
            return None;
        }
        header4.emit(header.payload(packet)?)
    }

    /// A later fragment of the outside.
    pub(super) fn later_in(
        &mut self,
        now: u64,
        packet: &[u8],
        header: &Header<Ipv4Addr>,
    ) -> Result<Packets, Refused> {
        let key = key(Direction::Inward, header).ok_or("malformed")?;
        if self.datagrams.has(&key) {
            let payload = header.payload(packet).ok_or("malformed")?;
            return self.gathered(&key, header, payload);
        }
        match self.fragments.find(now, &key) {
            Some(IpAddr::V6(to)) => self.readdressed_in(packet, to),
            _ => self.wait(now, key, packet),
        }
    }

    /// A later fragment with this destination.
    pub(super) fn readdressed_in(
        &mut self,
        packet: &[u8],
        to: Ipv6Addr,
    ) -> Result<Packets, Refused> {
        let header = header::v4(packet).map_err(|_| "malformed")?;
        let payload = header.payload(packet).ok_or("malformed")?;
        let src = self.config.prefix.embed(header.src);
        self.fitting(&header.to_v6((src, to)), payload)
    }

    /// The first fragment of a datagram without checksum, and those that have waited for it.
    pub(super) fn gather(
        &mut self,
        now: u64,
        key: FragmentKey,
        first: First,
        payload: &[u8],
    ) -> Result<Packets, Refused> {
        if !self.datagrams.begin(now, key, first) {
            return Err("fragments-full".into());
        }
        let mut outcome = self.gathered(&key, &first.header, payload);
        for waited in self.fragments.waited(key) {
            if !matches!(outcome, Err(Refused::Waits)) {
                break;
            }
            let header = header::v4(&waited).map_err(|_| "malformed")?;
            let payload = header.payload(&waited).ok_or("malformed")?;
            outcome = self.gathered(&key, &header, payload);
        }
        outcome
    }

    /// A fragment of a datagram without checksum: with the last one that was missing, the datagram.
    fn gathered(
        &mut self,
        key: &FragmentKey,
        header: &Header<Ipv4Addr>,
        payload: &[u8],
    ) -> Result<Packets, Refused> {
        let part = header.part().ok_or("malformed")?;
        let Some((first, whole)) = self.datagrams.add(key, part, payload)? else {
            return Err(Refused::Waits);
        };
        if whole.len() < 8 || usize::from(read_u16(&whole, 4)) != whole.len() {
            return Err("malformed".into());
        }
        self.reassembled += 1;
        let header = Header {
            fragment: None,
            dont_fragment: false,
            len: whole.len(),
            ..first.header
        };
        self.readdressed(&header, first.to, &whole)
    }
}

/// The key of a fragment; `None` of a whole packet.
pub(super) fn key<A: Inside>(direction: Direction, header: &Header<A>) -> Option<FragmentKey> {
    Some(FragmentKey {
        direction,
        src: header.src.into(),
        dst: header.dst.into(),
        protocol: header.protocol.0,
        id: header.part()?.id,
    })
}
