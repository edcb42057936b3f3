//! ICMP errors about datagrams that a socket has sent (RFC 1122 §4.1.3.3): the error that the socket's
//! next call reports, and the queue of sockets with `IP_RECVERR` (ip(7)).
//!
//! ```text
//!  ICMP error ─► socket with a queue ─► queue ─► Sockets::take_icmp_error
//!                    │                └────────► pending error ─► next call
//!                    └ without: connected, and the error is hard ─► pending error
//! ```

use super::{Arrival, Sockets, UdpId};
use crate::iface::Report;
use std::net::{IpAddr, SocketAddr};

/// Limit on the queued ICMP errors of one socket; further ones are not queued.
pub const ICMP_ERRORS_MAX: usize = 64;
/// Limit on the bytes of a datagram that are kept of its ICMP error: those of the longest (RFC 4443
/// §2.4 (c)).
const QUOTE_MAX: usize = 1280;

/// The payload that an error quotes, behind UDP's header.
fn quoted(transport: &[u8]) -> &[u8] {
    let payload = transport.get(8..).unwrap_or_default();
    &payload[..payload.len().min(QUOTE_MAX)]
}

/// Type and code of an ICMP error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpCause {
    /// Whether the message is of ICMPv6 (RFC 4443); otherwise of ICMP (RFC 792).
    pub v6: bool,
    /// The type.
    pub kind: u8,
    /// The code.
    pub code: u8,
}

impl IcmpCause {
    /// Whether a connected socket without a queue reports the error, as Linux decides
    /// (`icmp_err_convert`, `icmpv6_err_convert`): the others may be temporary.
    pub fn is_hard(self) -> bool {
        match (self.v6, self.kind, self.code) {
            (false, 3, code) => matches!(code, 2 | 3 | 6..=10 | 13..=15),
            (false, 12, _) => true,
            (true, 1, code) => !matches!(code, 0 | 2 | 3),
            (true, 4, _) => true,
            _ => false,
        }
    }

    /// Whether the destination reports that no application has a socket there.
    pub fn is_port_unreachable(self) -> bool {
        let unreachable = if self.v6 { (1, 4) } else { (3, 3) };
        (self.kind, self.code) == unreachable
    }
}

/// An ICMP error about a datagram that a socket has sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IcmpError {
    /// Type and code.
    pub cause: IcmpCause,
    /// The MTU of a packet that was too big, the offset of a wrong field, or 0.
    pub info: u32,
    /// The router or host that sent the error; the own address if no station answered on the
    /// link.
    pub offender: IpAddr,
    /// The destination of the datagram.
    pub to: SocketAddr,
    /// The source of the datagram.
    pub from: IpAddr,
    /// How the error was received.
    pub arrival: Arrival,
    /// The payload of the datagram, as far as the error quotes it.
    pub bytes: Vec<u8>,
}

impl Sockets {
    /// Handles an ICMP error about a datagram from `local` to `remote`; returns whether the datagram
    /// can be one that the host sent by this link.
    pub(crate) fn icmp_error(
        &mut self,
        now_ns: u64,
        link: u8,
        (local, remote): (SocketAddr, SocketAddr),
        report: &Report<'_>,
    ) -> bool {
        let Some(name) = self.find(local, remote) else {
            return false;
        };
        let Some(socket) = self.sockets.get_mut(name) else {
            return false;
        };
        if socket.remote.is_some() && socket.link != link {
            return false;
        }
        let cause = report.cause;
        if socket.options.queues_errors(cause.v6) {
            if socket.errors.len() < ICMP_ERRORS_MAX {
                socket.errors.push_back(IcmpError {
                    cause,
                    info: report.info,
                    offender: report.offender,
                    to: remote,
                    from: local.ip(),
                    arrival: Arrival {
                        link,
                        hop_limit: report.hop_limit,
                        traffic_class: report.traffic_class,
                        at_ns: now_ns,
                    },
                    bytes: quoted(report.transport).to_vec(),
                });
            }
        } else if socket.remote.is_none() || !cause.is_hard() {
            return true;
        }
        socket.pending_error = Some(cause);
        self.notify(name);
        true
    }

    /// Takes the oldest ICMP error of a socket's queue; `None` if it is empty. The pending error is
    /// then the next one of the queue, as in Linux.
    pub(crate) fn take_icmp_error(&mut self, id: UdpId) -> Option<IcmpError> {
        let socket = self.sockets.get_mut(id.0)?;
        let error = socket.errors.pop_front()?;
        socket.pending_error = socket.errors.front().map(|next| next.cause);
        Some(error)
    }

    /// Discards a socket's queue.
    pub(crate) fn discard_icmp_errors(&mut self, id: UdpId) {
        if let Some(socket) = self.sockets.get_mut(id.0) {
            socket.errors.clear();
        }
    }

    /// Number of ICMP errors in a socket's queue.
    pub(crate) fn icmp_errors(&self, id: UdpId) -> usize {
        let socket = self.sockets.get(id.0);
        socket.map_or(0, |socket| socket.errors.len())
    }

    /// Takes the pending error of a socket; `None` if there is none.
    pub(crate) fn take_pending_error(&mut self, id: UdpId) -> Option<IcmpCause> {
        self.sockets.get_mut(id.0)?.pending_error.take()
    }

    /// Whether [`Sockets::take_pending_error`] would return one.
    pub(crate) fn has_pending_error(&self, id: UdpId) -> bool {
        let socket = self.sockets.get(id.0);
        socket.is_some_and(|socket| socket.pending_error.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_errors_are_those_of_linux() {
        let cause = |v6, kind, code| IcmpCause { v6, kind, code };
        for (v6, kind, hard) in [
            (false, 3, &[2, 3, 6, 7, 8, 9, 10, 13, 14, 15][..]),
            (false, 11, &[]),
            (true, 1, &[1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
            (true, 2, &[]),
            (true, 3, &[]),
        ] {
            for code in 0..16 {
                let is_hard = cause(v6, kind, code).is_hard();
                assert_eq!(is_hard, hard.contains(&code), "{v6} {kind} {code}");
            }
        }
        assert!(cause(false, 12, 0).is_hard() && cause(true, 4, 1).is_hard());
        assert!(cause(true, 1, 4).is_port_unreachable());
        assert!(!cause(true, 3, 3).is_port_unreachable());
    }
}
