//! Stations that forge, in virtual time: what they cannot take from others.
//!
//! Packets take no time; a link address is a number. The server is at 0, the
//! honest client at 1, forgers from 2 on.

use proptest::prelude::*;
use std::collections::HashMap;
use std::time::Duration;
use weir_vmtp::packet::{Packet, Repr, code, manager};
use weir_vmtp::segment::SEGMENT_LEN_MAX;
use weir_vmtp::server::Limits;
use weir_vmtp::{Client, Destination, Entity, Event, Failure, Reply, Request, Response, Server};

const SERVER: Entity = Entity(0x0000_0415_0a00_0002);
const HONEST: Entity = Entity(0x0000_0007_0a00_0001);
const HOME: u32 = 1;
const FORGER: u32 = 2;

fn packet(client: Entity, transaction: u32, size: u32, delivery: u32) -> Repr {
    Repr {
        client,
        transaction,
        delivery,
        server: SERVER,
        code: 5,
        user_data: [SEGMENT_LEN_MAX as u32, 0, 0],
        segment_size: size,
        ..Repr::default()
    }
}

fn bytes(head: &Repr, fill: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    head.emit(&vec![fill; head.segment_size as usize], &mut bytes);
    bytes
}

fn head(bytes: &[u8]) -> Repr {
    Repr::parse(&Packet::new(bytes).unwrap())
}

/// The answer of a client that awaits this transaction.
fn probe_answer(probe: &Repr, transaction: u32) -> Repr {
    Repr {
        response: true,
        user_data: [transaction, 1, 0],
        ..*probe
    }
}

/// A server whose application answers at once, with as many bytes as it is asked.
struct Net {
    now: Duration,
    server: Server<u32>,
    limits: Limits,
    /// Packets of the server that were not taken yet, and their destinations.
    sent: Vec<(u32, Vec<u8>)>,
    executed: HashMap<(Entity, u32), u32>,
}

impl Net {
    fn new(limits: Limits) -> Net {
        Net {
            now: Duration::ZERO,
            server: Server::with_limits(SERVER, 1987, limits),
            limits,
            sent: Vec::new(),
            executed: HashMap::new(),
        }
    }

    fn send(&mut self, from: u32, packet: &[u8]) {
        self.server.handle(self.now, from, packet);
        self.run();
    }

    fn run(&mut self) {
        while let Some(request) = self.server.poll_request() {
            let key = (request.client, request.transaction);
            *self.executed.entry(key).or_default() += 1;
            let reply = Reply {
                segment: vec![7; request.user_data[0] as usize],
                ..Reply::default()
            };
            self.server.respond(self.now, &request, reply);
        }
        let mut bytes = Vec::new();
        while let Some(to) = self.server.poll_transmit(&mut bytes) {
            let Destination::Known(to) = to else {
                panic!("a server knows whom it answers");
            };
            self.sent.push((to, std::mem::take(&mut bytes)));
        }
        assert!(self.server.clients() <= self.limits.clients);
        assert!(self.server.kept_bytes() <= self.limits.bytes);
    }

    /// What the server has sent to an address.
    fn take(&mut self, to: u32) -> Vec<Vec<u8>> {
        let is_its = |(address, _): &mut (u32, Vec<u8>)| *address == to;
        self.sent
            .extract_if(.., is_its)
            .map(|(_, packet)| packet)
            .collect()
    }

    /// A forger's request that answers its probe; the forger knows no more.
    fn forge(&mut self, from: u32, request: &Repr) {
        self.send(from, &bytes(request, 1));
        for answer in self.take(from) {
            let probe = head(&answer);
            if probe.code == manager::PROBE && !probe.response {
                let answer = probe_answer(&probe, request.transaction);
                self.send(from, &bytes(&answer, 0));
            }
        }
        self.take(from);
    }

    /// The honest client's packets, both ways, until it waits or is done.
    fn exchange(&mut self, client: &mut Client<u32>) {
        loop {
            let mut packet = Vec::new();
            let mut is_idle = true;
            while client.poll_transmit(&mut packet).is_some() {
                self.send(HOME, &packet);
                packet.clear();
                is_idle = false;
            }
            for packet in self.take(HOME) {
                client.handle(self.now, 0, &packet);
                is_idle = false;
            }
            if is_idle {
                return;
            }
        }
    }

    /// Lets a client's call end; returns its event and how long it took.
    fn finish(&mut self, client: &mut Client<u32>) -> (Event, Duration) {
        let began = self.now;
        loop {
            self.exchange(client);
            if let Some(event) = client.poll_event() {
                return (event, self.now - began);
            }
            self.wait(client);
        }
    }

    /// Goes on to the next time-out.
    fn wait(&mut self, client: &mut Client<u32>) {
        let due = [client.next_timeout(), self.server.next_timeout()];
        self.now = due.into_iter().flatten().min().unwrap().max(self.now);
        self.server.handle_timeout(self.now);
        client.handle_timeout(self.now);
        self.run();
    }

    /// One call of the honest client, which must be executed once, at once.
    fn call(&mut self, client: &mut Client<u32>, len: u32) {
        let transaction = client.call(self.now, read(len)).unwrap();
        let (event, time) = self.finish(client);
        let Event::Response(Response { segment, .. }) = event else {
            panic!("{event:?}");
        };
        assert_eq!((segment.len(), time), (len as usize, Duration::ZERO));
        assert_eq!(self.executed[&(client.entity(), transaction)], 1);
    }
}

fn read(len: u32) -> Request {
    Request {
        user_data: [len, 0, 0],
        ..Request::new(SERVER, 5)
    }
}

fn honest() -> Client<u32> {
    Client::new(HONEST, 100)
}

fn made_up(number: u64) -> Entity {
    Entity(0x0100_0000_0a00_0003 + (number << 32))
}

/// What a forger's clients do after the answer to their probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Read once, and say nothing of the response.
    Read,
    /// Send a part of a request.
    Part,
    /// Nothing: the transaction that the server asked for was another.
    Nothing,
}

impl Net {
    fn flood(&mut self, mode: Mode, clients: std::ops::Range<u64>, address: impl Fn(u64) -> u32) {
        for number in clients {
            let mut request = packet(made_up(number), 7, 0, 0);
            match mode {
                Mode::Read => {}
                Mode::Part => (request.segment_size, request.delivery) = (16_384, 1),
                Mode::Nothing => request.transaction = 6,
            }
            self.forge(address(number), &request);
        }
    }
}

#[test]
fn made_up_clients_of_one_address_lock_no_other_out() {
    for mode in [Mode::Read, Mode::Part, Mode::Nothing] {
        let mut net = Net::new(Limits::default());
        net.flood(mode, 0..5000, |_| FORGER);
        assert!(net.server.clients() >= 4000, "{mode:?}");
        let mut client = honest();
        net.call(&mut client, 16_384);
        // Nor while the flood goes on.
        for round in 0..20 {
            let first = 10_000 + round * 500;
            net.flood(mode, first..first + 500, |_| FORGER);
            net.call(&mut client, 3000);
            let other = Entity(HONEST.0 + ((round + 1) << 32));
            net.call(&mut Client::new(other, 1), 3000);
        }
    }
}

/// The honest client's response is lost, and a flood follows: the repeated request
/// finds the response.
#[test]
fn a_flood_makes_no_request_run_twice() {
    let addresses: [&dyn Fn(u64) -> u32; 3] = [
        &|_| FORGER,
        &|number| FORGER + (number % 8) as u32,
        // As many addresses as the table has places.
        &|number| FORGER + number as u32,
    ];
    for address in addresses {
        let mut net = Net::new(Limits::default());
        let mut client = honest();
        net.call(&mut client, 10);
        let transaction = client.call(net.now, read(10)).unwrap();
        let mut request = Vec::new();
        client.poll_transmit(&mut request).unwrap();
        net.send(HOME, &request);
        assert_eq!(net.take(HOME).len(), 1, "the response, which is lost");
        net.flood(Mode::Read, 0..6000, address);
        let (event, time) = net.finish(&mut client);
        assert!(matches!(event, Event::Response(_)), "{event:?}");
        assert!(time < Duration::from_secs(1), "{time:?}");
        assert_eq!(net.executed[&(HONEST, transaction)], 1);
    }
}

/// A table full of clients with an address each: a further client waits until some
/// are quiet, instead of for their whole time.
#[test]
fn a_flood_of_addresses_ends_soon_after_it_stops() {
    let mut net = Net::new(Limits::default());
    net.flood(Mode::Read, 0..5000, |number| FORGER + number as u32);
    let mut client = honest();
    client.call(net.now, read(10)).unwrap();
    let (event, time) = net.finish(&mut client);
    assert!(matches!(event, Event::Response(_)), "{event:?}");
    assert!(time < Duration::from_secs(5), "{time:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever forgers do from fewer addresses than the table has places, the honest
    /// client's transactions are each executed once, and answered.
    #[test]
    fn honest_transactions_run_once_beside_forgers(
        steps in prop::collection::vec((0_u8..3, 1_u32..6, 0_u64..40, any::<bool>()), 1..40)
    ) {
        let limits = Limits { clients: 32, bytes: 4 * SEGMENT_LEN_MAX, ..Limits::default() };
        let mut net = Net::new(limits);
        let mut client = honest();
        for (mode, addresses, count, is_lost) in steps {
            let mode = [Mode::Read, Mode::Part, Mode::Nothing][usize::from(mode)];
            let transaction = client.call(net.now, read(2000)).unwrap();
            if is_lost {
                let mut request = Vec::new();
                client.poll_transmit(&mut request).unwrap();
                net.send(HOME, &request);
                net.take(HOME);
            }
            let address = |number| FORGER + number as u32 % addresses;
            net.flood(mode, 0..count, address);
            // Also in the client's name.
            net.forge(FORGER, &packet(HONEST, transaction + 1_000_000, 0, 0));
            net.send(HOME, &bytes(&packet(HONEST, transaction + 1_000_000, 0, 0), 1));
            let (event, time) = net.finish(&mut client);
            prop_assert!(matches!(event, Event::Response(_)), "{:?}", event);
            prop_assert!(time < Duration::from_secs(2), "{:?}", time);
            prop_assert_eq!(net.executed[&(HONEST, transaction)], 1);
        }
    }
}

#[test]
fn a_request_in_anothers_name_does_not_lock_it_out() {
    let mut net = Net::new(Limits::default());
    let mut client = honest();
    for round in 0..10 {
        let transaction = client.call(net.now, read(3000)).unwrap();
        // The forger is first, answers its probe, and goes on.
        net.forge(FORGER, &packet(HONEST, transaction + 1_000_000, 0, 0));
        net.forge(FORGER, &packet(HONEST, transaction, 0, 0));
        let (event, time) = net.finish(&mut client);
        assert!(matches!(event, Event::Response(_)), "{round}: {event:?}");
        assert_eq!(time, Duration::ZERO, "{round}");
        assert!(
            net.take(FORGER).is_empty(),
            "{round}: a response went astray"
        );
        net.forge(FORGER, &packet(HONEST, transaction + 2, 0, 0));
    }
}

#[test]
fn a_request_far_ahead_from_a_clients_own_address_is_asked_about() {
    let mut net = Net::new(Limits::default());
    let mut client = honest();
    net.call(&mut client, 10);
    for ahead in [65, 1_000_000, 0x7fff_ff00] {
        for _ in 0..40 {
            let forged = packet(HONEST, 101 + ahead, 0, 0);
            net.send(HOME, &bytes(&forged, 1));
        }
        net.call(&mut client, 3000);
        net.call(&mut client, 10);
    }
    // Nor before the server knows the client.
    let mut net = Net::new(Limits::default());
    let mut client = honest();
    let transaction = client.call(net.now, read(10)).unwrap();
    let forged = packet(HONEST, transaction + 1_000_000, 0, 0);
    net.send(HOME, &bytes(&forged, 1));
    let (event, time) = net.finish(&mut client);
    assert!(matches!(event, Event::Response(_)), "{event:?}");
    assert_eq!(time, Duration::ZERO);
    assert_eq!(net.executed.len(), 1);
}

#[test]
fn a_client_that_is_far_ahead_is_served_after_a_probe() {
    let mut net = Net::new(Limits::default());
    let mut client = honest();
    net.call(&mut client, 10);
    // Transactions with other servers.
    for _ in 0..1000 {
        client.call(net.now, Request::new(Entity(9), 5)).unwrap();
        client.cancel();
    }
    net.call(&mut client, 3000);
}

#[test]
fn a_repeated_request_of_an_older_transaction_is_answered() {
    let mut net = Net::new(Limits::default());
    let mut client = honest();
    for _ in 0..3 {
        net.call(&mut client, 10);
    }
    let mut stale = packet(HONEST, 100, 0, 0);
    net.send(HOME, &bytes(&stale, 0));
    assert!(net.take(HOME).is_empty(), "a duplicate needs no answer");
    stale.acknowledge = true;
    net.send(HOME, &bytes(&stale, 0));
    let answers = net.take(HOME);
    let [answer] = &answers[..] else {
        panic!("{} answers", answers.len());
    };
    let answer = head(answer);
    assert_eq!(answer.code, manager::NOTIFY_CLIENT);
    assert_eq!(answer.user_data[0], code::RESPONSE_DISCARDED);
    assert_eq!(answer.transaction, 100);
    assert_eq!(net.executed.values().sum::<u32>(), 3);
}

#[test]
fn a_probe_is_answered_by_whom_it_was_sent_to() {
    let mut numbers = Vec::new();
    for seed in 0..2 {
        let mut server = Server::<u32>::new(SERVER, seed);
        for client in 0..100 {
            let request = packet(made_up(client), 7, 0, 0);
            server.handle(Duration::ZERO, FORGER, &bytes(&request, 0));
            let mut probe = Vec::new();
            server.poll_transmit(&mut probe).unwrap();
            numbers.push(head(&probe).transaction);
        }
    }
    // No two of them are near each other: 200 of 2^32, by these two seeds.
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    let least = sorted.windows(2).map(|pair| pair[1] - pair[0]).min();
    assert!(least > Some(100), "{least:?}: {numbers:x?}");
    assert!(numbers.windows(2).any(|pair| pair[1] < pair[0]));

    let mut net = Net::new(Limits::default());
    net.send(HOME, &bytes(&packet(HONEST, 50, 0, 0), 0));
    let probe = head(&net.take(HOME)[0]);
    let right = probe_answer(&probe, 50);
    let wrong = Repr {
        transaction: probe.transaction.wrapping_add(1),
        ..right
    };
    net.send(FORGER, &bytes(&right, 0));
    net.send(HOME, &bytes(&wrong, 0));
    assert!(net.executed.is_empty());
    net.send(HOME, &bytes(&right, 0));
    assert_eq!(net.executed[&(HONEST, 50)], 1);
}

/// A client whose entity has gone on under an earlier process does not wait in vain.
#[test]
fn a_stale_call_fails_at_once() {
    let mut net = Net::new(Limits::default());
    net.call(&mut Client::new(HONEST, 140), 10);
    let mut client = honest();
    client.call(net.now, read(10)).unwrap();
    let (event, time) = net.finish(&mut client);
    let refused = Failure::Refused {
        server: SERVER,
        code: code::RESPONSE_DISCARDED,
    };
    assert_eq!(event, Event::Failed(refused));
    assert!(time < Duration::from_secs(1), "{time:?}");
}
