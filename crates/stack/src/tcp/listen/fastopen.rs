//! TCP Fast Open (RFC 7413): bytes in a SYN, by a cookie that shows that the
//! client has been at its address before.

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

/// Servers whose cookies a stack remembers; the oldest is forgotten for more.
pub const COOKIES_MAX: usize = 1024;
/// Bytes of a SYN that options may take, which its payload leaves to them.
const OPTIONS_MAX: usize = 40;

/// How a listener takes connections that begin with bytes.
///
/// Bytes in a SYN may come twice: a listener should be for what may be asked
/// twice (RFC 7413 §2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenServer {
    /// Connections so begun whose peer has not answered, at most.
    pub pending_max: usize,
    /// The key of the cookies. They are made as Linux makes them, so that
    /// servers behind one address can share it.
    pub key: [u8; 16],
    /// Whether bytes are taken without a cookie. Anybody can then make the
    /// server work with a false address.
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

/// What a connection that opens fast remembers until it is open.
#[derive(Clone, Debug)]
pub(in crate::tcp) struct TfoConnect {
    /// What goes with our first SYN.
    pub(in crate::tcp) option: Option<FastOpen>,
    /// Bytes of payload in it.
    pub(in crate::tcp) len: usize,
    /// The listener that has it already.
    pub(in crate::tcp) listener: Option<Handle>,
}

impl TfoConnect {
    /// One whose answer carries a cookie.
    pub(in crate::tcp) fn with(cookie: FastOpen) -> TfoConnect {
        TfoConnect {
            option: Some(cookie),
            len: 0,
            listener: None,
        }
    }
}

/// What is known of a server.
#[derive(Clone, Copy, Default, Debug)]
struct CachedCookie {
    mss: Option<u16>,
    cookie: Option<FastOpen>,
    /// It did not answer the wish for a cookie, which goes as an experiment
    /// next, once.
    blackholed: u8,
}

/// Cookies of servers.
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

    /// A server has answered a SYN that asked for a cookie, or used one.
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
            // A cookie that nobody asked for says nothing.
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

    /// What to send to a server: its cookie, or the wish for one.
    fn option(&self, server: IpAddr) -> FastOpen {
        let known = self.get(server);
        let request = FastOpen::request(known.blackholed == 1);
        known.cookie.unwrap_or(request)
    }
}

/// What a listener does with a SYN.
pub(in crate::tcp) enum TfoDecision {
    /// Nothing special.
    Plain,
    /// The answer carries a cookie.
    Cookie(FastOpen),
    /// The connection is taken at once, with its bytes.
    Taken,
}

impl Listener {
    /// Whether a SYN opens a connection at once (RFC 7413 §4.2.2).
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
    /// Sets how a listener takes connections that begin with bytes.
    pub(crate) fn set_fast_open(
        &mut self,
        id: ListenerId,
        server: Option<FastOpenServer>,
    ) -> Result<(), TcpError> {
        let listener = self.listeners.get_mut(id.0).ok_or(TcpError::Closed)?;
        listener.fast_open = server;
        Ok(())
    }

    /// Whether a server has given us a cookie.
    pub(crate) fn has_cookie(&self, server: IpAddr) -> bool {
        self.cookies.get(server).cookie.is_some()
    }

    /// Forgets what is known of servers.
    pub(crate) fn clear_tfo_cookies(&mut self) {
        self.cookies = Cookies::default();
    }

    /// Opens a connection whose SYN carries bytes, if the server's cookie is
    /// known, or asks for one; gives how many bytes went along.
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
        let mss = pcb.path_mss(path_mtu);
        let mss = known.mss.map_or(mss, |known| mss.min(known.into()));
        let room = mss.saturating_sub(OPTIONS_MAX);
        let len = if may { bytes.len().min(room) } else { 0 };
        let len = pcb.send.write(&bytes[..len], self.memory_available().bytes);
        pcb.tfo = Some(Box::new(TfoConnect {
            option,
            len,
            listener: None,
        }));
        Ok((TcpId(self.enter(now_ns, pcb)), len))
    }
}

impl Pcb {
    /// A connection that a SYN opens at once: its bytes can be read.
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
            self.syn_data_acked = true;
        }
        let wnd = usize::from(syn.repr.window);
        self.send.first_window(syn.seq, self.send.una, wnd);
        self.acknowledged = self.receive.nxt;
        self.tfo = Some(Box::new(TfoConnect {
            option: None,
            len: 0,
            listener: Some(listener),
        }));
    }

    /// Whether the application has this connection, though the peer has not
    /// acknowledged our SYN.
    pub(in crate::tcp) fn is_early(&self) -> bool {
        let listener = self.tfo.as_ref().and_then(|opening| opening.listener);
        self.state == State::SynReceived && listener.is_some()
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

    /// The numbers that our SYN takes: bytes may be behind it, the first time.
    pub(in crate::tcp) fn first_end(&self) -> Seq {
        let len = self.tfo.as_ref().map_or(0, |opening| opening.len);
        self.send.iss.plus(1 + len)
    }

    /// Our SYN was acknowledged, perhaps without its bytes: these were not
    /// taken, and go again at once.
    pub(in crate::tcp) fn end_opening(&mut self, arrived: &Arrived<'_>) {
        let Some(opening) = self.tfo.take() else {
            return;
        };
        if arrived.has(Flags::SYN) && opening.len > 0 {
            self.syn_data_acked = self.scoreboard.is_empty();
            if !self.scoreboard.is_empty() {
                self.scoreboard.mark_lost(|_| true);
                self.recovery.force_retransmit = true;
            }
        }
    }
}
