//! A network in virtual time: it loses, repeats and reorders packets, by a seed.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use weir_vmtp::{Client, Destination, Entity, Event, Incoming, Reply, Request, Server};
use weir_wire::rng::SplitMix64;

/// What the network does to each packet.
#[derive(Clone, Copy)]
pub(crate) struct Weather {
    /// Packets in 1,000 that are lost.
    pub(crate) loss: u64,
    /// Packets in 1,000 that come twice.
    pub(crate) twice: u64,
    /// Longest delay, in microseconds; a packet's own is random.
    pub(crate) delay_us: u64,
}

/// The weather of the exactly-once test.
pub(crate) const STORM: Weather = Weather {
    loss: 50,
    twice: 50,
    delay_us: 3000,
};

/// A packet under way.
struct Flight {
    from: usize,
    to: usize,
    bytes: Vec<u8>,
}

/// Clients and servers; a link address is an index: servers first.
pub(crate) struct Sim {
    pub(crate) now: Duration,
    pub(crate) weather: Weather,
    pub(crate) servers: Vec<Server<usize>>,
    pub(crate) clients: Vec<Client<usize>>,
    rng: SplitMix64,
    flights: BTreeMap<(Duration, u64), Flight>,
    sent: u64,
    /// Requests that applications have, until their time.
    work: BTreeMap<(Duration, u64), (usize, Incoming)>,
    /// How often each transaction was executed.
    pub(crate) executed: HashMap<(usize, Entity, u32), u32>,
    /// Longest time that an application needs, in microseconds.
    pub(crate) work_us: u64,
    pub(crate) idempotent: bool,
}

pub(crate) fn server_entity(index: usize) -> Entity {
    Entity::process(1045, [10, 0, 1, index as u8].into())
}

pub(crate) fn group() -> Entity {
    Entity::group(9, [232, 0, 0, 9].into())
}

impl Sim {
    pub(crate) fn new(seed: u64, servers: usize, clients: usize, weather: Weather) -> Sim {
        let server = |index| {
            let mut server = Server::new(server_entity(index), index as u64);
            server.join(group());
            server
        };
        let client = |index: usize| {
            let entity = Entity::process(index as u32, [10, 0, 2, 1].into());
            // Some wrap around.
            Client::new(entity, 0xffff_fff0_u32.wrapping_add(index as u32))
        };
        Sim {
            now: Duration::ZERO,
            weather,
            servers: (0..servers).map(server).collect(),
            clients: (0..clients).map(client).collect(),
            rng: SplitMix64::new(seed),
            flights: BTreeMap::new(),
            sent: 0,
            work: BTreeMap::new(),
            executed: HashMap::new(),
            work_us: 200,
            idempotent: false,
        }
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.rng.bits() % limit.max(1)
    }

    fn launch(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let lost = self.below(1000) < self.weather.loss;
        let copies = if lost {
            0
        } else {
            1 + u64::from(self.below(1000) < self.weather.twice)
        };
        for _ in 0..copies {
            let delay = Duration::from_micros(1 + self.below(self.weather.delay_us));
            self.sent += 1;
            let bytes = bytes.to_vec();
            self.flights
                .insert((self.now + delay, self.sent), Flight { from, to, bytes });
        }
    }

    /// Sends all pending packets.
    fn transmit(&mut self, node: usize) {
        let count = self.servers.len();
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let to = if node < count {
                self.servers[node].poll_transmit(&mut bytes)
            } else {
                self.clients[node - count].poll_transmit(&mut bytes)
            };
            match to {
                None => return,
                Some(Destination::Known(to)) => self.launch(node, to, &bytes),
                Some(Destination::Group(_)) => {
                    for to in 0..count {
                        self.launch(node, to, &bytes);
                    }
                }
            }
        }
    }

    /// Answers a request: three words and as many bytes as the request says, made
    /// of the client's words.
    fn answer(request: &Incoming, idempotent: bool) -> Reply {
        let [len, first, _] = request.user_data;
        let sum = request.segment.iter().map(|byte| u32::from(*byte)).sum();
        Reply {
            code: 0,
            user_data: [first, sum, request.transaction],
            segment: pattern(len as usize, first),
            idempotent,
        }
    }

    /// Goes on to the next thing that happens; `false` if nothing will.
    pub(crate) fn step(&mut self) -> bool {
        let count = self.servers.len();
        let flight = self.flights.first_key_value().map(|((time, _), _)| *time);
        let work = self.work.first_key_value().map(|((time, _), _)| *time);
        let servers = self.servers.iter().filter_map(Server::next_timeout);
        let clients = self.clients.iter().filter_map(Client::next_timeout);
        let timer = servers.chain(clients).min();
        let Some(next) = [flight, work, timer].into_iter().flatten().min() else {
            return false;
        };
        self.now = self.now.max(next);
        if flight == Some(next) {
            let (_, flight) = self.flights.pop_first().unwrap();
            let (now, to) = (self.now, flight.to);
            if to < count {
                self.servers[to].handle(now, flight.from, &flight.bytes);
                while let Some(request) = self.servers[to].poll_request() {
                    self.sent += 1;
                    let ready = now + Duration::from_micros(self.below(self.work_us));
                    self.work.insert((ready, self.sent), (to, request));
                }
            } else {
                self.clients[to - count].handle(now, flight.from, &flight.bytes);
            }
            self.transmit(to);
        } else if work == Some(next) {
            let (_, (server, request)) = self.work.pop_first().unwrap();
            let key = (server, request.client, request.transaction);
            *self.executed.entry(key).or_default() += 1;
            let reply = Sim::answer(&request, self.idempotent);
            self.servers[server].respond(self.now, &request, reply);
            self.transmit(server);
        } else {
            for node in 0..count + self.clients.len() {
                let due = if node < count {
                    self.servers[node].next_timeout()
                } else {
                    self.clients[node - count].next_timeout()
                };
                if due.is_some_and(|due| due <= self.now) {
                    if node < count {
                        self.servers[node].handle_timeout(self.now);
                    } else {
                        self.clients[node - count].handle_timeout(self.now);
                    }
                    self.transmit(node);
                }
            }
        }
        true
    }

    /// Starts a transaction of a client; returns its number.
    pub(crate) fn call(&mut self, client: usize, request: Request) -> u32 {
        let transaction = self.clients[client].call(self.now, request).unwrap();
        self.transmit(self.servers.len() + client);
        transaction
    }

    /// The events of a client until its transaction ends.
    pub(crate) fn finish(&mut self, client: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while self.clients[client].is_busy() {
            assert!(self.step(), "a client waits for nothing");
            events.extend(std::iter::from_fn(|| self.clients[client].poll_event()));
        }
        events.extend(std::iter::from_fn(|| self.clients[client].poll_event()));
        events
    }
}

/// Bytes that depend on their place and a number.
pub(crate) fn pattern(len: usize, number: u32) -> Vec<u8> {
    let byte = |at: usize| (at as u32).wrapping_mul(31).wrapping_add(number) as u8;
    (0..len).map(byte).collect()
}

/// What a run of the exactly-once test found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) transactions: u64,
    pub(crate) failed: u64,
    pub(crate) packets: u64,
}

/// Runs `count` transactions of several clients; each must be executed exactly
/// once, and its response must be its own.
///
/// # Panics
/// If one is not; the message has the seed.
pub(crate) fn exactly_once(seed: u64, count: u64, weather: Weather) -> Outcome {
    const CLIENTS: usize = 8;
    let mut sim = Sim::new(seed, 1, CLIENTS, weather);
    let mut begun: Vec<Option<(u32, [u32; 3], u32)>> = vec![None; CLIENTS];
    let (mut started, mut ended, mut failed) = (0, 0, 0);
    while ended < count {
        for (client, begun) in begun.iter_mut().enumerate() {
            if begun.is_none() && started < count {
                // One message in eight is long, both ways.
                let long = sim.below(8) == 0;
                let limit = if long { 16_385 } else { 100 };
                let [len, up] = [0, 0].map(|_: u32| sim.below(limit) as u32);
                let up = if sim.below(2) == 0 { up } else { 0 };
                let request = Request {
                    user_data: [len, started as u32, 0],
                    segment: pattern(up as usize, started as u32),
                    ..Request::new(server_entity(0), 5)
                };
                let sum = request.segment.iter().map(|byte| u32::from(*byte)).sum();
                let words = request.user_data;
                let transaction = sim.call(client, request);
                *begun = Some((transaction, words, sum));
                started += 1;
            }
        }
        assert!(sim.step(), "seed {seed}: clients wait for nothing");
        for (client, begun) in begun.iter_mut().enumerate() {
            let Some(event) = sim.clients[client].poll_event() else {
                continue;
            };
            let (transaction, [len, number, _], sum) = begun.take().unwrap();
            let key = (0, sim.clients[client].entity(), transaction);
            let executed = sim.executed.remove(&key).unwrap_or(0);
            ended += 1;
            match event {
                Event::Response(response) => {
                    assert_eq!(
                        executed, 1,
                        "seed {seed}: {key:?} was executed {executed} times"
                    );
                    assert_eq!(
                        response.user_data,
                        [number, sum, transaction],
                        "seed {seed}"
                    );
                    assert_eq!(
                        response.segment,
                        pattern(len as usize, number),
                        "seed {seed}"
                    );
                }
                Event::Failed(_) => {
                    assert!(executed <= 1, "seed {seed}: {key:?} {executed} times");
                    failed += 1;
                }
                Event::Collected => unreachable!("no group was asked"),
            }
        }
    }
    // Duplicates that come late execute nothing either.
    let end = sim.now + Duration::from_secs(300);
    while sim.now < end && sim.step() {}
    assert!(
        sim.executed.is_empty(),
        "seed {seed}: late: {:?}",
        sim.executed
    );
    assert_eq!(sim.servers[0].clients(), 0, "seed {seed}: records stay");
    Outcome {
        transactions: ended,
        failed,
        packets: sim.sent,
    }
}
