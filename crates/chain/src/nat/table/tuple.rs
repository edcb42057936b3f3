//! One packet, as the table sees it.

use crate::nat::config::Transport;
use crate::nat::inside::Inside;
use std::hash::{Hash, Hasher};
use std::net::Ipv4Addr;

/// Addresses, ports and transport of a packet: one direction of a session. Outward the source is of
/// the inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::nat) struct Tuple<A = Ipv4Addr> {
    pub(in crate::nat) transport: Transport,
    pub(in crate::nat) src: (A, u16),
    pub(in crate::nat) dst: (Ipv4Addr, u16),
}

/// One word, or two with IPv6: the fields one by one are seven.
impl<A: Inside> Hash for Tuple<A> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let end = |address: u32, port: u16| u128::from(address) << 16 | u128::from(port);
        let src = end(self.src.0.short(), self.src.1);
        let dst = end(self.dst.0.to_bits(), self.dst.1);
        if let Some(long) = self.src.0.long() {
            state.write_u128(long);
        }
        state.write_u128((self.transport as u128) << 96 | src << 48 | dst);
    }
}

/// How a packet is translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::nat) struct Translation<T = Ipv4Addr> {
    /// Outward the new source, inward the new destination.
    pub(in crate::nat) to: (T, u16),
    pub(in crate::nat) cookie: u64,
    /// The kernel may translate the next packets.
    pub(in crate::nat) is_cacheable: bool,
    /// The session, if it is a control connection of FTP.
    pub(in crate::nat) control: Option<u32>,
}

/// What a packet's session makes of it: the ends of its mapping, and the rest of a [`Translation`].
pub(super) struct Hit<A> {
    pub(super) inside: (A, u16),
    pub(super) outside: (Ipv4Addr, u16),
    pub(super) cookie: u64,
    pub(super) is_cacheable: bool,
    pub(super) control: Option<u32>,
}

impl<A> Hit<A> {
    #[inline]
    pub(super) fn outward(self) -> Translation {
        let Hit {
            outside,
            cookie,
            is_cacheable,
            control,
            ..
        } = self;
        Translation {
            to: outside,
            cookie,
            is_cacheable,
            control,
        }
    }

    #[inline]
    pub(super) fn inward(self) -> Translation<A> {
        let Hit {
            inside,
            cookie,
            is_cacheable,
            control,
            ..
        } = self;
        Translation {
            to: inside,
            cookie,
            is_cacheable,
            control,
        }
    }
}

/// Both directions of a session.
pub(super) fn tuples<A>(
    transport: Transport,
    inside: (A, u16),
    outside: (Ipv4Addr, u16),
    remote: (Ipv4Addr, u16),
) -> (Tuple<A>, Tuple) {
    let out = Tuple {
        transport,
        src: inside,
        dst: remote,
    };
    let back = Tuple {
        transport,
        src: remote,
        dst: outside,
    };
    (out, back)
}
