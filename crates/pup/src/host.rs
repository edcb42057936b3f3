//! A host: sockets, connections, and the services that every host has.

use crate::bsp::{Connection, rfc_port};
use crate::datagram::{Port, Pup, error, kind, socket};
use crate::gateway::{Gateway, Route};
use crate::services::{self, Clock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Connections of a host at one time.
pub const CONNECTIONS_MAX: usize = 256;
/// Of these, connections that one peer has opened.
pub const CONNECTIONS_OF_PEER_MAX: usize = 32;
/// Pups of bound sockets that wait to be read.
const DATAGRAMS_MAX: usize = 256;
/// Answers that wait to be sent.
const ANSWERS_MAX: usize = 1024;
/// Names and routes that a host knows at most.
const TABLE_MAX: usize = 256;

/// Counts of dropped Pups, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Drops {
    /// The Pup is cut short, contradicts the format, or its checksum is wrong.
    pub malformed: u64,
    /// The Pup is for another host.
    pub not_ours: u64,
    /// No service listens at its socket.
    pub no_socket: u64,
    /// There was no room for it, or for the answer.
    pub no_room: u64,
}

/// A connection that a peer has opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The connection, by its socket.
    pub connection: u32,
    /// The socket that was asked.
    pub socket: u32,
}

/// A Pup host.
#[derive(Debug)]
pub struct Host {
    address: Port,
    connections: BTreeMap<u32, Connection>,
    listening: BTreeSet<u32>,
    bound: BTreeSet<u32>,
    accepted: VecDeque<Accepted>,
    datagrams: VecDeque<Pup>,
    answers: VecDeque<Pup>,
    names: Vec<(String, Port)>,
    routes: Vec<Route>,
    /// Routes to other nets, as gateways have advertised them.
    gateways: Gateway,
    clock: Option<Clock>,
    next_socket: u32,
    drops: Drops,
}

impl Host {
    /// A host with this net and host number; `seed` should be random: it numbers
    /// sockets and connections.
    pub fn new(net: u8, host: u8, seed: u32) -> Host {
        let address = Port {
            net,
            host,
            socket: 0,
        };
        Host {
            address,
            connections: BTreeMap::new(),
            listening: BTreeSet::new(),
            bound: BTreeSet::new(),
            accepted: VecDeque::new(),
            datagrams: VecDeque::new(),
            answers: VecDeque::new(),
            names: Vec::new(),
            routes: vec![Route {
                net,
                gateway_net: net,
                gateway_host: host,
                hops: 0,
            }],
            gateways: Gateway::new(&[address]),
            clock: None,
            next_socket: seed | 0x1_0000,
            drops: Drops::default(),
        }
    }

    /// The host's port with a socket.
    pub fn port(&self, socket: u32) -> Port {
        Port {
            socket,
            ..self.address
        }
    }

    /// Counts of dropped Pups.
    pub fn drops(&self) -> Drops {
        self.drops
    }

    /// Accepts connections at a socket.
    pub fn listen(&mut self, socket: u32) {
        self.listening.insert(socket);
    }

    /// Receives Pups at a new socket, which is returned.
    pub fn bind(&mut self) -> u32 {
        let socket = self.new_socket();
        self.bound.insert(socket);
        socket
    }

    /// Receives Pups at a well-known socket.
    pub fn bind_at(&mut self, socket: u32) {
        self.bound.insert(socket);
    }

    /// Adds a name that the host answers look-ups with; `false` without room.
    pub fn add_name(&mut self, name: &str, port: Port) -> bool {
        let room = self.names.len() < TABLE_MAX;
        if room {
            self.names.push((name.to_lowercase(), port));
        }
        room
    }

    /// Sets the time that the host answers with.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = Some(clock);
    }

    /// Sets the routes that the host advertises.
    pub fn set_routes(&mut self, routes: Vec<Route>) {
        self.routes = routes;
    }

    /// Asks the gateways of the link for their routes.
    pub fn ask_for_routes(&mut self) {
        let all = Port {
            net: 0,
            host: 0,
            socket: socket::GATEWAY,
        };
        let own = self.port(socket::GATEWAY);
        self.send(Pup::new(kind::GATEWAY_REQUEST, 0, all, own, &[]));
    }

    /// Advertises the host's routes to all hosts of the link, as a gateway does.
    pub fn advertise_routes(&mut self) {
        let own = self.port(socket::GATEWAY);
        let all = Port { host: 0, ..own };
        let routes = services::gateway_information(&self.routes);
        self.send(Pup::new(kind::GATEWAY_INFORMATION, 0, all, own, &routes));
    }

    /// Whether the host knows the way to a net: its own, or that of a gateway.
    pub fn has_route(&self, now: Duration, net: u8) -> bool {
        let dst = Port {
            net,
            host: 0,
            socket: 0,
        };
        net == 0 || self.gateways.next_hop(now, dst).is_some()
    }

    /// The host of the link that takes a Pup to `dst` next, 0 for all. Without a route that
    /// is `dst` itself: the host's net may have numbers that it does not know.
    pub fn next_hop(&self, now: Duration, dst: Port) -> u8 {
        let hop = self.gateways.next_hop(now, dst);
        hop.filter(|_| dst.net != 0).map_or(dst.host, |hop| hop.1)
    }

    /// Takes the routes that a gateway advertises.
    fn learn(&mut self, now: Duration, pup: &Pup) {
        let Port { net, host, .. } = pup.head.src;
        if self.gateways.links()[0].net == 0 && net != 0 {
            // Now it knows the number of its link's net.
            self.gateways = Gateway::new(&[Port {
                net,
                ..self.address
            }]);
        }
        if [0, self.gateways.links()[0].net].contains(&net) {
            self.gateways.learn(now, 0, host, &pup.payload);
        }
    }

    fn new_socket(&mut self) -> u32 {
        loop {
            self.next_socket = self.next_socket.wrapping_add(1) | 0x1_0000;
            let number = self.next_socket;
            if !self.connections.contains_key(&number) && !self.bound.contains(&number) {
                return number;
            }
        }
    }

    /// Opens a connection to a port; `None` if there are [`CONNECTIONS_MAX`].
    pub fn open(&mut self, now: Duration, remote: Port) -> Option<u32> {
        if self.connections.len() >= CONNECTIONS_MAX {
            return None;
        }
        let number = self.new_socket();
        // The connection's number need not be secret, but new.
        let id = number.wrapping_mul(0x9e37_79b9);
        let connection = Connection::open(now, self.port(number), remote, id);
        self.connections.insert(number, connection);
        Some(number)
    }

    /// The connections that peers have opened.
    pub fn poll_accepted(&mut self) -> Option<Accepted> {
        self.accepted.pop_front()
    }

    /// A connection, until it is [released](Host::release) and finished.
    pub fn connection(&mut self, number: u32) -> Option<&mut Connection> {
        self.connections.get_mut(&number)
    }

    /// The application needs a connection no longer: an open one is aborted, and
    /// one that dallies stays until it has ended.
    pub fn release(&mut self, number: u32) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if connection.ended().is_none() {
            connection.abort(0, "the application has ended");
        }
    }

    /// The next Pup of a bound socket.
    pub fn poll_datagram(&mut self) -> Option<Pup> {
        self.datagrams.pop_front()
    }

    /// Sends a Pup.
    pub fn send(&mut self, pup: Pup) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back(pup);
        } else {
            self.drops.no_room += 1;
        }
    }

    /// Takes a Pup without its link's header.
    pub fn handle_bytes(&mut self, now: Duration, bytes: &[u8]) {
        match Pup::parse(bytes) {
            Some(pup) => self.handle(now, pup),
            None => self.drops.malformed += 1,
        }
    }

    /// Takes a Pup.
    pub fn handle(&mut self, now: Duration, pup: Pup) {
        let (dst, own) = (pup.head.dst, self.address);
        let to_us = dst.host == own.host || dst.host == 0;
        if !to_us || (dst.net != own.net && dst.net != 0 && own.net != 0) {
            self.drops.not_ours += 1;
            return;
        }
        let is_routes = pup.head.pup_type == kind::GATEWAY_INFORMATION;
        if dst.socket == socket::GATEWAY && is_routes {
            self.learn(now, &pup);
        } else if let Some(connection) = self.connections.get_mut(&dst.socket) {
            connection.handle(now, &pup);
        } else if self.bound.contains(&dst.socket) {
            if self.datagrams.len() < DATAGRAMS_MAX {
                self.datagrams.push_back(pup);
            } else {
                self.drops.no_room += 1;
            }
        } else if pup.head.pup_type == kind::RFC && self.listening.contains(&dst.socket) {
            self.accept(now, &pup);
        } else {
            self.serve(pup);
        }
    }

    fn accept(&mut self, now: Duration, pup: &Pup) {
        let mut connections = self.connections.values_mut();
        if let Some(known) = connections.find(|one| one.is_request(pup)) {
            known.handle(now, pup);
            return;
        }
        if rfc_port(pup).is_none() {
            self.drops.malformed += 1;
            return;
        }
        if !self.has_room(pup.head.src) {
            self.drops.no_room += 1;
            self.send(pup.error(error::NO_ROOM, "too many connections"));
            return;
        }
        let number = self.new_socket();
        let Some(connection) = Connection::accept(now, self.port(number), pup) else {
            self.drops.malformed += 1;
            return;
        };
        self.connections.insert(number, connection);
        self.accepted.push_back(Accepted {
            connection: number,
            socket: pup.head.dst.socket,
        });
    }

    /// Whether there is room for a connection of this peer. A connection whose peer has sent
    /// nothing but its request, or that has ended but for the dally, makes room for another.
    fn has_room(&mut self, peer: Port) -> bool {
        let is_peers = |one: &Connection| {
            let remote = one.remote();
            (remote.net, remote.host) == (peer.net, peer.host)
        };
        let of_peer = self.connections.values().filter(|one| is_peers(one));
        let is_peer_full = of_peer.count() >= CONNECTIONS_OF_PEER_MAX;
        if !is_peer_full && self.connections.len() < CONNECTIONS_MAX {
            return true;
        }
        let idle = self.connections.iter().filter(|(_, one)| {
            (one.is_dallying() || !one.is_proven()) && (!is_peer_full || is_peers(one))
        });
        // Ended connections first, then the oldest.
        let oldest = idle.min_by_key(|(_, one)| (!one.is_dallying(), one.received_at()));
        let oldest = oldest.map(|(number, _)| *number);
        oldest.is_some_and(|number| self.connections.remove(&number).is_some())
    }

    /// The services of every host; other Pups are refused by an error Pup.
    fn serve(&mut self, pup: Pup) {
        let broadcast = pup.head.dst.host == 0;
        let answer = match pup.head.dst.socket {
            socket::ECHO if pup.head.pup_type == kind::ECHO_ME => {
                Some(pup.reply(kind::ECHO, &pup.payload))
            }
            socket::MISCELLANEOUS => services::answer(&pup, &self.names, self.clock.as_ref()),
            socket::GATEWAY if pup.head.pup_type == kind::GATEWAY_REQUEST => {
                let routes = services::gateway_information(&self.routes);
                Some(pup.reply(kind::GATEWAY_INFORMATION, &routes))
            }
            _ => None,
        };
        match answer {
            Some(mut answer) => {
                // The answer names the host that answers, not "every host", and gives
                // a host its net.
                answer.head.src.host = self.address.host;
                answer.head.src.net = self.address.net;
                if answer.head.dst.net == 0 {
                    answer.head.dst.net = self.address.net;
                }
                self.send(answer);
            }
            None => {
                self.drops.no_socket += 1;
                // Errors are not answered, or two hosts would answer for ever.
                let is_error = matches!(pup.head.pup_type, kind::ERROR | kind::ABORT);
                if !broadcast && !is_error && pup.head.src.host != 0 {
                    self.send(pup.error(error::NO_SOCKET, "no such socket"));
                }
            }
        }
    }

    /// The next Pup to send, appended to `out`, and its destination host, 0 for
    /// all; `None` if there is none now.
    pub fn poll_transmit(&mut self, now: Duration, out: &mut Vec<u8>) -> Option<Port> {
        let pup = match self.answers.pop_front() {
            Some(pup) => pup,
            None => {
                let mut connections = self.connections.values_mut();
                connections.find_map(|connection| connection.poll_transmit(now))?
            }
        };
        pup.emit(out);
        Some(pup.head.dst)
    }

    /// When [`handle_timeout`](Host::handle_timeout) is due.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.connections
            .values()
            .filter_map(Connection::next_timeout)
            .min()
    }

    /// Does what is due at `now`, and forgets connections that are finished.
    pub fn handle_timeout(&mut self, now: Duration) {
        for connection in self.connections.values_mut() {
            if connection.next_timeout().is_some_and(|due| due <= now) {
                connection.handle_timeout(now);
            }
        }
    }

    /// Forgets connections that are finished and that the application has
    /// released.
    pub fn forget_finished(&mut self, is_held: impl Fn(u32) -> bool) {
        self.connections
            .retain(|number, one| !one.is_finished() || is_held(*number));
    }
}
