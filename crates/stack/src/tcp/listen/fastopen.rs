//! TCP Fast Open (RFC 7413): data in a SYN, authorised by a cookie that proves that the client
//! has received packets at its address before.

use super::handshake::Listener;
use crate::links::{Interfaces, strip_zone};
use crate::slab::Handle;
use crate::tcp::input::Arrived;
use crate::tcp::pcb::{Pcb, State};
use crate::tcp::seq::Seq;
use crate::tcp::user_calls::outgoing;
use crate::tcp::{ListenerId, Tcp, TcpError, TcpId};
use siphasher::sip::SipHasher24;
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use weir_wire::tcp::{FastOpen, Flags};

/// Limit on servers whose cookies a stack remembers; a further server displaces the oldest.
pub const COOKIES_MAX: usize = 1024;
/// Bytes that a SYN's payload leaves free for options.
const OPTIONS_MAX: usize = 40;

/// How a listener accepts data in a SYN.
///
/// Data in a SYN may be delivered twice, so that only idempotent requests are suitable
/// (RFC 7413 §2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenServer {
    /// Limit on connections so begun whose handshake is incomplete.
    pub pending_max: usize,
    /// The secret of the cookies. Cookies are made as Linux makes them, so that servers behind
    /// one address can share a secret.
    pub key: [u8; 16],
    /// Whether data is accepted without a cookie. Any host can then make the server work, with
    /// a forged source address.
    pub without_cookie: bool,
}

impl FastOpenServer {
    /// The cookie of a client (RFC 7413 §4.1.2): SipHash-2-4 of both addresses.
    fn cookie(&self, local: IpAddr, remote: IpAddr, experimental: bool) -> Option<FastOpen> {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        for address in [remote, local] {
            match address {
                IpAddr::V4(address) => hasher.write(&address.octets()),
                IpAddr::V6(address) => hasher.write(&address.octets()),
            }
        }
        FastOpen::cookie(&hasher.finish().to_le_bytes(), experimental)
    }
}

/// The state of TCP Fast Open until the connection is open.
#[derive(Clone, Debug)]
pub(in crate::tcp) struct TfoConnect {
    /// The option in this side's first SYN.
    pub(in crate::tcp) option: Option<FastOpen>,
    /// Payload bytes in the first SYN.
    pub(in crate::tcp) len: usize,
    /// The listener that has already handed out the connection.
    pub(in crate::tcp) listener: Option<Handle>,
}

impl TfoConnect {
    /// The state of a connection whose SYN-ACK carries a cookie.
    pub(in crate::tcp) fn with(cookie: FastOpen) -> TfoConnect {
        TfoConnect {
            option: Some(cookie),
            len: 0,
            listener: None,
        }
    }
}

/// The client's knowledge of a server.
#[derive(Clone, Copy, Default, Debug)]
struct CachedCookie {
    mss: Option<u16>,
    cookie: Option<FastOpen>,
    /// The server did not answer a cookie request; the next request uses the experimental
    /// option, once.
    blackholed: u8,
}

/// The client's cookies, by server.
#[derive(Default)]
pub(in crate::tcp) struct Cookies {
    entries: BTreeMap<IpAddr, CachedCookie>,
    order: VecDeque<IpAddr>,
}

impl Cookies {
    fn get(&self, server: IpAddr) -> CachedCookie {
        self.entries.get(&server).copied().unwrap_or_default()
    }

    fn set(&mut self, server: IpAddr, known: CachedCookie) {
        if self.entries.insert(server, known).is_none() {
            self.order.push_back(server);
            if self.order.len() > COOKIES_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.entries.remove(&oldest);
            }
        }
    }

    /// Learns from a server's answer to a SYN with a cookie or a cookie request.
    pub(in crate::tcp) fn learn(
        &mut self,
        server: IpAddr,
        opening: &TfoConnect,
        arrived: &Arrived<'_>,
        retried: bool,
    ) {
        let mut known = self.get(server);
        known.mss = arrived.repr.options.mss.or(known.mss);
        let Some(asked) = opening.option else {
            // An unsolicited cookie is ignored.
            self.set(server, known);
            return;
        };
        let given = arrived.repr.options.fast_open;
        match given.filter(|given| !given.as_slice().is_empty()) {
            Some(cookie) => known.cookie = Some(cookie),
            None if !retried && opening.len == 0 && asked.as_slice().is_empty() => {
                known.blackholed = if asked.experimental {
                    2
                } else {
                    known.blackholed.max(1)
                };
            }
            None => {}
        }
        self.set(server, known);
    }

    /// The option for a SYN to this server: its cookie, or a cookie request.
    fn option(&self, server: IpAddr) -> FastOpen {
        let known = self.get(server);
        let request = FastOpen::request(known.blackholed == 1);
        known.cookie.unwrap_or(request)
    }
}

/// A listener's decision on the Fast Open option of a SYN.
pub(in crate::tcp) enum TfoDecision {
    /// Ignores it.
    Plain,
    /// Sends a cookie in the SYN-ACK.
    Cookie(FastOpen),
    /// Accepts the connection at once, with its data.
    Taken,
}

impl Listener {
    /// Decides whether a SYN opens a connection at once (RFC 7413 §4.2.2).
    pub(in crate::tcp) fn decide(
        &self,
        local: IpAddr,
        remote: IpAddr,
        syn: &Arrived<'_>,
    ) -> TfoDecision {
        let Some(server) = self.fast_open else {
            return TfoDecision::Plain;
        };
        let has_room = self.tfo_pending < server.pending_max;
        let option = syn.repr.options.fast_open;
        let concerns = option.is_some() || !syn.payload.is_empty();
        if !has_room || !concerns {
            return TfoDecision::Plain;
        }
        if server.without_cookie {
            return TfoDecision::Taken;
        }
        let Some(option) = option else {
            return TfoDecision::Plain;
        };
        match server.cookie(local, remote, option.experimental) {
            Some(ours) if ours == option => TfoDecision::Taken,
            Some(ours) => TfoDecision::Cookie(ours),
            None => TfoDecision::Plain,
        }
    }
}

impl Tcp {
    /// Sets how a listener accepts data in a SYN.
    pub(crate) fn set_fast_open(
        &mut self,
        id: ListenerId,
        server: Option<FastOpenServer>,
    ) -> Result<(), TcpError> {
        let listener = self.listeners.get_mut(id.0).ok_or(TcpError::Closed)?;
        listener.fast_open = server;
        Ok(())
    }

    /// Whether this server has given a cookie.
    pub(crate) fn has_cookie(&self, server: IpAddr) -> bool {
        self.cookies.get(server).cookie.is_some()
    }

    /// Forgets all servers.
    pub(crate) fn clear_tfo_cookies(&mut self) {
        self.cookies = Cookies::default();
    }

    /// Opens a connection whose SYN carries data if the server's cookie is known, or requests a
    /// cookie; returns how many bytes the SYN takes.
    pub(crate) fn connect_fast(
        &mut self,
        now_ns: u64,
        hosts: &Interfaces,
        ends: (Option<SocketAddr>, SocketAddr),
        bytes: &[u8],
        without_cookie: bool,
    ) -> Result<(TcpId, usize), TcpError> {
        let (local, remote) = ends;
        let host = outgoing(hosts, local, remote)?;
        let (local, remote) = (local.map(strip_zone), strip_zone(remote));
        let option = if without_cookie {
            None
        } else {
            Some(self.cookies.option(remote.ip()))
        };
        let may = option.is_none_or(|option| !option.as_slice().is_empty());
        let known = self.cookies.get(remote.ip());
        let path_mtu = host.path_mtu(now_ns, remote.ip());
        let mut pcb = self.connecting(now_ns, host, local, remote)?;
        let mss = pcb.segment_size.of_path(path_mtu, &pcb.pair);
        let mss = known.mss.map_or(mss, |known| mss.min(known.into()));
        let room = mss.saturating_sub(OPTIONS_MAX);
        let len = if may { bytes.len().min(room) } else { 0 };
        let len = pcb.send.write(&bytes[..len], self.memory_available().bytes);
        pcb.opening.tfo = Some(Box::new(TfoConnect {
            option,
            len,
            listener: None,
        }));
        Ok((TcpId(self.enter(now_ns, pcb)), len))
    }
}

impl Pcb {
    /// Opens a connection at once, so that the SYN's data can be read.
    pub(in crate::tcp) fn accept_early_data(
        &mut self,
        now_ns: u64,
        syn: &Arrived<'_>,
        listener: Handle,
    ) {
        self.receive.advertise_on_syn();
        if !syn.payload.is_empty() {
            self.receive.insert(syn.data_seq(), syn.payload);
            self.count_in(now_ns, syn.payload.len());
            self.opening.syn_data_acked = true;
        }
        let wnd = usize::from(syn.repr.window);
        self.send.first_window(syn.seq, self.send.una, wnd);
        self.ack.last_sent = self.receive.nxt;
        self.opening.tfo = Some(Box::new(TfoConnect {
            option: None,
            len: 0,
            listener: Some(listener),
        }));
    }

    /// Whether the application has the connection before the peer has acknowledged the SYN-ACK.
    pub(in crate::tcp) fn is_early(&self) -> bool {
        self.state == State::SynReceived && self.opening.early_listener().is_some()
    }

    /// Whether the next segment is a SYN.
    pub(in crate::tcp) fn next_is_syn(&self) -> bool {
        if !self.is_early() {
            return self.is_opening();
        }
        let first = self.scoreboard.first();
        let again = first.is_some_and(|first| first.lost && first.start == self.send.iss);
        self.send.nxt == self.send.iss || again
    }

    /// The end of the sequence numbers of the first SYN, with its payload.
    pub(in crate::tcp) fn first_end(&self) -> Seq {
        let len = self.opening.tfo.as_ref().map_or(0, |opening| opening.len);
        self.send.iss.plus(1 + len)
    }

    /// Processes the acknowledgment of our SYN. Bytes of the SYN that are not acknowledged were not
    /// accepted, and are retransmitted at once.
    pub(in crate::tcp) fn end_opening(&mut self, arrived: &Arrived<'_>) {
        let Some(opening) = self.opening.tfo.take() else {
            return;
        };
        if arrived.has(Flags::SYN) && opening.len > 0 {
            self.opening.syn_data_acked = self.scoreboard.is_empty();
            if !self.scoreboard.is_empty() {
                self.scoreboard.mark_lost(|_| true);
                self.recovery.force_retransmit = true;
            }
        }
    }
}
