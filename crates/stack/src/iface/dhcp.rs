//! The DHCP client: an IPv4 address from a server (RFC 2131 §4.4, RFC 3442).
//!
//! ```text
//!             offer               ack              half the time
//!  Selecting ───────► Requesting ─────► Bound ──────────────────► Renewing
//!      ▲  ▲               │               ▲       ack                │ 7/8
//!      │  └──── nak ──────┘               ├──────────────────────────┤
//!      └──────────────── nak, the time is over ◄──────────────── Rebinding
//! ```

use super::address::{LocalAddress, after};
use super::config::is_a_hosts;
use super::routes::Entry;
use super::{DropReason, Event, Header, Incoming, Interface, Origin, Prefix, RemovalReason};
use crate::rng::PrfRng;
use std::net::{IpAddr, Ipv4Addr};
use weir_wire::dhcp::{CLIENT_PORT, ClientMessage, MessageType, SERVER_PORT, ServerMessage};
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, Protocol, udp};

const SECOND_NS: u64 = 1_000_000_000;
/// First and longest retransmission time, in nanoseconds, each randomised by up to a second
/// (RFC 2131 §4.1).
const RETRANSMIT_INITIAL_NS: u64 = 4 * SECOND_NS;
const RETRANSMIT_MAX_NS: u64 = 64 * SECOND_NS;
/// Number of requests for one offer before the client looks for other offers.
const REQUESTS_MAX: u32 = 4;
/// Shortest time between two attempts to renew a lease, in nanoseconds (RFC 2131 §4.4.5).
const RENEW_RETRY_MIN_NS: u64 = 60 * SECOND_NS;
/// Pause after declining an address that another station has, in nanoseconds (RFC 2131 §3.1).
const DECLINED_NS: u64 = 10 * SECOND_NS;
/// Shortest time between two messages for a short lease, in nanoseconds.
const SHORT_NS: u64 = SECOND_NS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The client is off.
    Off,
    Selecting,
    Requesting {
        address: Ipv4Addr,
        server: Ipv4Addr,
        asks: u32,
    },
    Bound,
    Renewing,
    Rebinding,
}

/// A lease: an address that a DHCP server granted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The address, with its network.
    pub address: Prefix,
    /// The server.
    pub server: Ipv4Addr,
    /// End of the lease by the stack's clock; [`u64::MAX`] is infinite.
    pub until_ns: u64,
    /// The DNS servers.
    pub dns_servers: Vec<Ipv4Addr>,
    /// Times of renewing (by the server) and of rebinding (by any server).
    renew_ns: u64,
    rebind_ns: u64,
}

/// The DHCP client of one link.
pub(super) struct Dhcp {
    state: State,
    /// The transaction id (xid).
    transaction: u32,
    began_ns: u64,
    next_ns: u64,
    wait_ns: u64,
    lease: Option<Lease>,
    rng: PrfRng,
}

impl Dhcp {
    pub(super) fn new(seed: u128) -> Dhcp {
        Dhcp {
            state: State::Off,
            transaction: 0,
            began_ns: 0,
            next_ns: u64::MAX,
            wait_ns: RETRANSMIT_INITIAL_NS,
            lease: None,
            rng: PrfRng::new(seed, "dhcp"),
        }
    }

    pub(super) fn due_ns(&self) -> u64 {
        self.next_ns
    }

    /// Starts to look for a server; the first message is sent after `wait_ns`.
    fn select(&mut self, now_ns: u64, wait_ns: u64) {
        self.enter(now_ns, State::Selecting);
        self.next_ns = now_ns.saturating_add(wait_ns);
    }

    /// Starts a new exchange.
    fn enter(&mut self, now_ns: u64, state: State) {
        self.state = state;
        if !matches!(state, State::Requesting { .. }) {
            self.transaction = self.rng.bits() as u32;
            self.began_ns = now_ns;
        }
        self.wait_ns = RETRANSMIT_INITIAL_NS;
        self.next_ns = now_ns;
    }

    /// Exponential back-off, randomised.
    fn back_off(&mut self, now_ns: u64) {
        let jitter_ns = u64::from(self.rng.below(2 * SECOND_NS as u32));
        let wait_ns = self.wait_ns - SECOND_NS + jitter_ns;
        self.next_ns = now_ns.saturating_add(wait_ns);
        self.wait_ns = (2 * self.wait_ns).min(RETRANSMIT_MAX_NS);
    }
}

impl Interface {
    pub(super) fn begin_dhcp(&mut self, now_ns: u64) {
        let wait_ns = self.start_jitter();
        self.dhcp.select(now_ns, wait_ns);
    }

    /// Sends due messages.
    pub(super) fn poll_dhcp(&mut self, now_ns: u64) {
        if self.dhcp.next_ns > now_ns {
            return;
        }
        match self.dhcp.state {
            State::Off => self.dhcp.next_ns = u64::MAX,
            State::Selecting => {
                self.ask(now_ns, MessageType::Discover);
                self.dhcp.back_off(now_ns);
            }
            State::Requesting { asks, .. } if asks == REQUESTS_MAX => self.dhcp.select(now_ns, 0),
            State::Requesting {
                address,
                server,
                asks,
            } => {
                self.ask(now_ns, MessageType::Request);
                self.dhcp.state = State::Requesting {
                    address,
                    server,
                    asks: asks + 1,
                };
                self.dhcp.back_off(now_ns);
            }
            State::Bound => {
                self.dhcp.enter(now_ns, State::Renewing);
                self.keep(now_ns);
            }
            State::Renewing | State::Rebinding => self.keep(now_ns),
        }
    }

    /// Renews the lease, or ends it at its end time.
    fn keep(&mut self, now_ns: u64) {
        let Some(lease) = &self.dhcp.lease else {
            return;
        };
        let (until_ns, rebind_ns) = (lease.until_ns, lease.rebind_ns);
        if now_ns >= until_ns {
            self.end_lease(RemovalReason::Expired);
            self.dhcp.select(now_ns, 0);
            return;
        }
        if now_ns >= rebind_ns && self.dhcp.state == State::Renewing {
            self.dhcp.enter(now_ns, State::Rebinding);
        }
        self.ask(now_ns, MessageType::Request);
        let until_ns = match self.dhcp.state {
            State::Renewing => rebind_ns,
            _ => until_ns,
        };
        let half_ns = ((until_ns - now_ns) / 2).max(RENEW_RETRY_MIN_NS);
        self.dhcp.next_ns = now_ns.saturating_add(half_ns).min(until_ns);
    }

    fn ask(&mut self, now_ns: u64, kind: MessageType) {
        let dhcp = &self.dhcp;
        let seconds = now_ns.saturating_sub(dhcp.began_ns) / SECOND_NS;
        let mut ask = ClientMessage {
            message_type: kind,
            transaction: dhcp.transaction,
            seconds: u16::try_from(seconds).unwrap_or(u16::MAX),
            client: None,
            hardware: self.hardware,
            requested: None,
            server: None,
            len_max: self.mtu.min(u16::MAX.into()) as u16,
        };
        let mut to = None;
        match (dhcp.state, &dhcp.lease) {
            (
                State::Requesting {
                    address, server, ..
                },
                _,
            ) => {
                ask.requested = Some(address);
                ask.server = Some(server);
            }
            (State::Renewing | State::Rebinding, Some(lease)) => {
                ask.client = v4(&lease.address);
                to = (dhcp.state == State::Renewing).then_some(lease.server);
            }
            _ => {}
        }
        self.send_dhcp(now_ns, &ask, to);
    }

    /// Sends a message, broadcast unless `to` is given.
    fn send_dhcp(&mut self, now_ns: u64, ask: &ClientMessage, to: Option<Ipv4Addr>) {
        let src = ask.client.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let addresses = AddrPair::V4(src, to.unwrap_or(Ipv4Addr::BROADCAST));
        let mut datagram = vec![0; udp::Repr::LEN];
        datagram.extend(ask.to_bytes());
        let repr = udp::Repr {
            src_port: CLIENT_PORT,
            dst_port: SERVER_PORT,
        };
        repr.emit(&mut datagram, addresses);
        let header = Header::new(addresses, Protocol::UDP);
        match to {
            Some(_) => self.send(now_ns, &header, &datagram),
            None => self.send_to_hardware(&header, Address::BROADCAST, &datagram),
        }
    }

    /// Whether a datagram is for the client, not for a socket.
    pub(crate) fn is_dhcp(&self, incoming: &Incoming<'_>) -> bool {
        let to_client = udp::Datagram::new(incoming.payload)
            .is_ok_and(|one| (one.src_port(), one.dst_port()) == (SERVER_PORT, CLIENT_PORT));
        self.dhcp.state != State::Off && to_client
    }

    /// Handles a server's answer.
    pub(crate) fn dhcp_answer(
        &mut self,
        now_ns: u64,
        incoming: &Incoming<'_>,
    ) -> Result<(), DropReason> {
        let datagram = udp::Datagram::new(incoming.payload).map_err(|_| DropReason::Malformed)?;
        if datagram.checksum_is_right(incoming.addresses) == Some(false) && !incoming.checksum_ok {
            return Err(DropReason::ChecksumWrong);
        }
        let answer = ServerMessage::parse(datagram.payload()).map_err(|_| DropReason::Malformed)?;
        let (kind, answer) = answer.ok_or(DropReason::DhcpRefused)?;
        if (answer.transaction, answer.hardware) != (self.dhcp.transaction, self.hardware) {
            return Err(DropReason::DhcpRefused);
        }
        let done = match (self.dhcp.state, kind) {
            (State::Selecting, MessageType::Offer) => self.offered(now_ns, &answer),
            (State::Requesting { server, .. }, MessageType::Ack | MessageType::Nak)
                if answer.server == Some(server) =>
            {
                self.decided(now_ns, kind, &answer)
            }
            (State::Renewing | State::Rebinding, MessageType::Ack | MessageType::Nak) => {
                self.decided(now_ns, kind, &answer)
            }
            _ => None,
        };
        self.reschedule();
        done.ok_or(DropReason::DhcpRefused)
    }

    fn offered(&mut self, now_ns: u64, offer: &ServerMessage) -> Option<()> {
        let (address, server) = (offer.yiaddr?, offer.server?);
        prefix(address, offer)?;
        let asks = 0;
        self.dhcp.enter(
            now_ns,
            State::Requesting {
                address,
                server,
                asks,
            },
        );
        self.poll_dhcp(now_ns);
        Some(())
    }

    fn decided(&mut self, now_ns: u64, kind: MessageType, answer: &ServerMessage) -> Option<()> {
        if kind == MessageType::Nak {
            self.events.push(Event::Refused {
                server: answer.server,
                message: answer.message.clone(),
            });
            self.end_lease(RemovalReason::Expired);
            // After a delay: the server may refuse every time.
            self.dhcp.select(now_ns, SECOND_NS);
            return Some(());
        }
        let address = prefix(answer.yiaddr?, answer)?;
        // A lease time of zero or without a value is invalid: the option is mandatory (RFC 2131
        // §3.1, table 3).
        let seconds = answer.lease_s.filter(|seconds| *seconds > 0)?;
        let kept = self.dhcp.lease.as_ref();
        let server = answer.server.or(kept.map(|lease| lease.server))?;
        if kept.is_some_and(|lease| lease.address != address) {
            self.end_lease(RemovalReason::Expired);
        }
        let is_new = self.dhcp.lease.is_none();
        let lease = lease(now_ns, address, server, seconds, answer);
        self.dhcp.enter(now_ns, State::Bound);
        self.dhcp.next_ns = lease.renew_ns;
        self.dhcp.lease = Some(lease);
        if is_new && self.routes.find(address.address()).is_none() {
            self.take_address(now_ns, LocalAddress::new(address, Origin::Leased));
        }
        self.take_routes(answer);
        self.events.push(Event::Lease {
            address: answer.yiaddr?,
            server,
            seconds,
            renewed: !is_new,
        });
        // Resolved now, since the release when the host ends leaves no time for resolution.
        if let Some(next_hop) = self.routes.next_hop(server.into()) {
            self.neighbours.resolve(now_ns, next_hop);
            self.send_solicits(now_ns);
        }
        Some(())
    }

    /// Applies the routes and the MTU of a lease.
    fn take_routes(&mut self, answer: &ServerMessage) {
        let default = |entry: &Entry| entry.to.is_empty() && entry.origin == Origin::Leased;
        let known = self.routes.routes().iter().filter(|entry| default(entry));
        let known: Vec<_> = known.filter_map(|entry| entry.gateway).collect();
        self.forget_leased_routes();
        let all = Ipv4Addr::UNSPECIFIED;
        let defaults = answer.routers.iter().map(|router| (all, 0, *router));
        let routes: Vec<_> = if answer.routes.is_empty() {
            defaults.collect()
        } else {
            // RFC 3442: classless routes replace the router option.
            answer.routes.clone()
        };
        for (to, len, router) in routes {
            let Some(to) = Prefix::new(to.into(), len) else {
                continue;
            };
            let gateway = (!router.is_unspecified()).then_some(router.into());
            self.routes
                .add(Entry::new(to.network(), gateway, Origin::Leased));
            if to.is_empty() && gateway.is_some_and(|router| !known.contains(&router)) {
                self.events.push(Event::Router(router.into()));
            }
        }
        if let Some(mtu) = answer.mtu {
            self.set_mtu_v4(mtu.into());
        }
    }

    /// Removes the address of a lease.
    fn end_lease(&mut self, why: RemovalReason) {
        self.forget_leased_routes();
        if let Some(lease) = self.dhcp.lease.take() {
            let address = lease.address.address();
            // The address may also be configured.
            let owned = self.routes.find(address);
            if owned.is_some_and(|owned| owned.origin == Origin::Leased) {
                self.lose_address(address, why);
            }
        }
    }

    /// Removes all routes of a lease, except that to the address's network.
    fn forget_leased_routes(&mut self) {
        let lease = self.dhcp.lease.as_ref();
        let own = lease.map(|lease| lease.address);
        self.routes.remove(|entry| {
            let is_own = entry.gateway.is_none() && Some(entry.to) == own;
            entry.origin == Origin::Leased && !is_own
        });
    }

    /// Declines an address that another station has, and requests another one (RFC 2131 §3.1, 5).
    pub(super) fn decline(&mut self, now_ns: u64) {
        let Some(lease) = self.dhcp.lease.clone() else {
            return;
        };
        self.send_release(now_ns, &lease, MessageType::Decline);
        self.end_lease(RemovalReason::Expired);
        self.dhcp.select(now_ns, DECLINED_NS);
        self.reschedule();
    }

    /// Releases the lease, and stops the client.
    pub(crate) fn release_lease(&mut self, now_ns: u64) {
        if let Some(lease) = self.dhcp.lease.clone() {
            self.send_release(now_ns, &lease, MessageType::Release);
            self.end_lease(RemovalReason::Expired);
        }
        self.dhcp.state = State::Off;
        self.dhcp.next_ns = u64::MAX;
        self.reschedule();
    }

    fn send_release(&mut self, now_ns: u64, lease: &Lease, kind: MessageType) {
        self.dhcp.transaction = self.dhcp.rng.bits() as u32;
        let (address, release) = (v4(&lease.address), kind == MessageType::Release);
        let ask = ClientMessage {
            message_type: kind,
            transaction: self.dhcp.transaction,
            seconds: 0,
            client: address.filter(|_| release),
            hardware: self.hardware,
            requested: address.filter(|_| !release),
            server: Some(lease.server),
            len_max: 0,
        };
        self.send_dhcp(now_ns, &ask, release.then_some(lease.server));
    }

    /// The present lease.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.dhcp.lease.as_ref()
    }

    pub(super) fn leased_dns_servers(&self) -> &[Ipv4Addr] {
        self.lease().map_or(&[], |lease| &lease.dns_servers)
    }
}

fn lease(
    now_ns: u64,
    address: Prefix,
    server: Ipv4Addr,
    seconds: u32,
    answer: &ServerMessage,
) -> Lease {
    // RFC 2131 §4.4.5: T1 is half of the lease time, T2 seven eighths.
    let half = if seconds == u32::MAX {
        seconds
    } else {
        seconds / 2
    };
    let late = if seconds == u32::MAX {
        seconds
    } else {
        seconds - seconds / 8
    };
    let rebind_s = answer.t2_s.filter(|t2| *t2 <= seconds).unwrap_or(late);
    let renew_s = answer.t1_s.filter(|t1| *t1 <= rebind_s).unwrap_or(half);
    let soon_ns = now_ns.saturating_add(SHORT_NS);
    Lease {
        address,
        server,
        until_ns: after(now_ns, seconds),
        dns_servers: answer.dns_servers.clone(),
        renew_ns: after(now_ns, renew_s).max(soon_ns),
        rebind_ns: after(now_ns, rebind_s).max(soon_ns),
    }
}

/// The address with its network, by address class if the server gives no mask; `None` if the
/// address cannot be a host's.
fn prefix(address: Ipv4Addr, answer: &ServerMessage) -> Option<Prefix> {
    let class = match address.octets()[0] {
        0..128 => 8,
        128..192 => 16,
        _ => 24,
    };
    let prefix = Prefix::new(address.into(), answer.prefix_len.unwrap_or(class))?;
    is_a_hosts(&prefix).then_some(prefix)
}

fn v4(prefix: &Prefix) -> Option<Ipv4Addr> {
    match prefix.address() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}
