//! The balancer's checks of servers, against servers in virtual time: connections and HTTP,
//! answers in pieces, losses, and the time within which a death is noticed.

mod common;

use common::{Spec, checksums_are_right};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use weir_chain::balance::{Balance, BalanceConfig, HttpCheck, Server};
use weir_chain::{Batch, Direction, Output, Packet, SentFrame, Stage};
use weir_lab::rng::Rng;
use weir_wire::Protocol;
use weir_wire::field::{read_u16, read_u32};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const SERVICE: (&str, u16) = ("192.0.2.1", 80);
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 0x10;

fn server(last: u8) -> Server {
    Server {
        end: (Ipv4Addr::new(10, 0, 0, last), 8080),
        weight: 1,
        is_draining: false,
    }
}

fn config(count: u8, http: bool) -> BalanceConfig {
    let servers = (1..=count).map(server).collect();
    let service = (SERVICE.0.parse().unwrap(), SERVICE.1);
    BalanceConfig {
        http: http.then(|| HttpCheck {
            path: "/health".into(),
            host: "www.example.com".into(),
            statuses: vec![200..=299, 304..=304],
        }),
        ..BalanceConfig::new(Protocol::TCP, service, servers)
    }
}

/// What a server does with a connection.
#[derive(Clone, Debug)]
enum Conduct {
    /// Answers with these bytes, in segments of this length.
    Answers(Vec<u8>, usize),
    /// Accepts connections, and says nothing.
    IsSilent,
    /// Accepts connections, and ends them.
    Closes,
    Refuses,
    IsDead,
}

/// A segment that is on its way to the balancer: from whom, flags, sequence number, acknowledgment.
type Segment = (u8, u8, u32, u32, Vec<u8>);

/// A server's TCP.
struct Peer {
    conduct: Conduct,
    iss: u32,
    /// The next sequence number of the balancer, of a connection that is open.
    expected: Option<u32>,
    sent: usize,
    requests: Vec<Vec<u8>>,
    resets: u32,
}

impl Peer {
    fn new(conduct: Conduct) -> Peer {
        Peer {
            conduct,
            iss: 0xffff_fff8,
            expected: None,
            sent: 0,
            requests: Vec::new(),
            resets: 0,
        }
    }

    /// The answer to a segment, if any.
    fn takes(&mut self, me: u8, segment: &[u8]) -> Option<Segment> {
        let (sequence, flags) = (read_u32(segment, 4), segment[13]);
        let payload = &segment[20..];
        let own = self.iss.wrapping_add(1).wrapping_add(self.sent as u32);
        if matches!(self.conduct, Conduct::IsDead) {
            return None;
        }
        if flags & RST != 0 {
            if self.expected == Some(sequence) {
                (self.expected, self.resets) = (None, self.resets + 1);
            }
            return None;
        }
        if flags & SYN != 0 {
            let next = sequence.wrapping_add(1);
            if matches!(self.conduct, Conduct::Refuses) {
                return Some((me, RST | ACK, 0, next, Vec::new()));
            }
            if let Some(expected) = self.expected.filter(|expected| *expected != next) {
                // A challenge (RFC 5961 §4.2).
                return Some((me, ACK, own, expected, Vec::new()));
            }
            (self.expected, self.sent) = (Some(next), 0);
            return Some((me, SYN | ACK, self.iss, next, Vec::new()));
        }
        let expected = self.expected?;
        if !payload.is_empty() {
            let end = sequence.wrapping_add(payload.len() as u32);
            if sequence == expected {
                self.requests.push(payload.to_vec());
                self.expected = Some(end);
            } else {
                assert_eq!(end, expected, "the request again");
            }
        }
        let ack = self.expected?;
        // What the balancer has got so far; the next piece goes, perhaps again.
        let first = self.iss.wrapping_add(1);
        self.sent = read_u32(segment, 8).wrapping_sub(first) as usize;
        let own = read_u32(segment, 8);
        match &self.conduct {
            Conduct::Answers(bytes, piece) => {
                if self.requests.is_empty() || self.sent >= bytes.len() {
                    return None;
                }
                let end = bytes.len().min(self.sent + piece);
                let piece = bytes[self.sent..end].to_vec();
                Some((me, ACK, own, ack, piece))
            }
            Conduct::Closes => Some((me, FIN | ACK, own, ack, Vec::new())),
            _ => None,
        }
    }
}

/// A balancer and its servers, which are 1 ms away.
struct World {
    balance: Balance,
    peers: BTreeMap<u8, Peer>,
    now: u64,
    /// Frames to servers, and segments to the balancer, by the time of their arrival.
    to_peers: Vec<(u64, Vec<u8>)>,
    to_balance: Vec<(u64, Segment)>,
    /// Loses one segment of this many.
    loss: Option<(Rng, usize)>,
}

impl World {
    fn new(config: BalanceConfig, conducts: &[Conduct]) -> World {
        let peers = (1..).zip(conducts.iter().cloned().map(Peer::new));
        World {
            balance: Balance::new(config, 1).unwrap(),
            peers: peers.collect(),
            now: 0,
            to_peers: Vec::new(),
            to_balance: Vec::new(),
            loss: None,
        }
    }

    fn sent(&mut self, mut output: Output) {
        for sent in output.take() {
            assert_eq!(sent.direction, Direction::Inward);
            if let SentFrame::Made(frame) = sent.frame {
                assert!(checksums_are_right(&frame));
                assert_eq!(read_u16(&frame, 34), 1023);
                if !self.is_lost() {
                    self.to_peers.push((self.now + MS, frame));
                }
            }
        }
    }

    fn is_lost(&mut self) -> bool {
        let loss = self.loss.as_mut();
        loss.is_some_and(|(rng, one_of)| rng.below(*one_of) == 0)
    }

    /// Runs up to a time.
    fn run(&mut self, until: u64) {
        loop {
            let timers = self.balance.next_deadline();
            let frames = self.to_peers.iter().map(|(at, _)| *at);
            let segments = self.to_balance.iter().map(|(at, _)| *at);
            let next = timers.into_iter().chain(frames).chain(segments).min();
            let Some(next) = next.filter(|next| *next <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(next);
            let mut output = Output::default();
            self.balance.poll(self.now, &mut output);
            self.sent(output);
            let now = self.now;
            for (_, frame) in self
                .to_peers
                .extract_if(.., |(at, _)| *at <= now)
                .collect::<Vec<_>>()
            {
                let last = frame[33];
                if let Some(peer) = self.peers.get_mut(&last)
                    && let Some(segment) = peer.takes(last, &frame[34..])
                    && !self.is_lost()
                {
                    self.to_balance.push((now + MS, segment));
                }
            }
            let due: Vec<_> = self
                .to_balance
                .extract_if(.., |(at, _)| *at <= now)
                .collect();
            for (_, (last, flags, sequence, ack, payload)) in due {
                let from = Ipv4Addr::new(10, 0, 0, last).to_string();
                let mut spec = Spec::tcp((&from, 8080), (SERVICE.0, 1023), flags);
                spec.payload = payload;
                let mut frame = spec.frame();
                frame[38..42].copy_from_slice(&sequence.to_be_bytes());
                frame[42..46].copy_from_slice(&ack.to_be_bytes());
                let mut batch = Batch::new(vec![Packet::new(&mut frame)]);
                let mut output = Output::default();
                self.balance.outward(now, &mut batch, &mut output);
                assert_ne!(
                    batch.all()[0].fate(),
                    weir_chain::Fate::Pass,
                    "it is the stage's"
                );
                self.sent(output);
            }
        }
    }

    fn is_up(&self, last: u8) -> bool {
        let mut shares = self.balance.shares();
        let of_it = shares.find(|(it, ..)| it.end == server(last).end);
        of_it.expect("a server").3
    }
}

fn answers(text: &str, piece: usize) -> Conduct {
    Conduct::Answers(text.as_bytes().to_vec(), piece)
}

#[test]
fn the_status_decides() {
    let conducts = [
        (answers("HTTP/1.1 200 OK\r\n\r\n", 1000), true),
        (answers("HTTP/1.0 204 \r\n", 1), true),
        (answers("HTTP/1.1 304 Not Modified\r\n", 11), true),
        (answers("HTTP/1.1 303 See Other\r\n", 1000), false),
        (answers("HTTP/1.1 503 Service Unavailable\r\n", 5), false),
        (answers("HTTP/1.1 20", 1000), false),
        (answers("HTTP/1.1 2xx OK\r\n", 1000), false),
        (answers("HTTP/1.1200 OK\r\n", 1000), false),
        (answers("SSH-2.0-OpenSSH_9.2\r\n", 2), false),
        (Conduct::IsSilent, false),
        (Conduct::Closes, false),
        (Conduct::Refuses, false),
        (Conduct::IsDead, false),
    ];
    let all: Vec<Conduct> = conducts.iter().map(|(it, _)| it.clone()).collect();
    let mut world = World::new(config(conducts.len() as u8, true), &all);
    world.run(10 * SECOND + SECOND / 2);
    for (last, (conduct, is_up)) in (1..).zip(&conducts) {
        assert_eq!(world.is_up(last), *is_up, "{conduct:?}");
        let peer = &world.peers[&last];
        let request = "GET /health HTTP/1.1\r\nHost: www.example.com\r\n\
                       User-Agent: weir\r\nConnection: close\r\n\r\n";
        for found in &peer.requests {
            assert_eq!(found, request.as_bytes());
        }
        match conduct {
            Conduct::Refuses | Conduct::IsDead => assert!(peer.requests.is_empty()),
            // The connection that is open is the last check's.
            _ => {
                assert!(peer.resets >= 8, "{conduct:?}: {} resets", peer.resets);
                assert!(peer.requests.len() as u32 - peer.resets <= 1, "{conduct:?}");
            }
        }
    }
}

#[test]
fn a_connection_alone_is_enough_without_a_request() {
    let all = [
        Conduct::IsSilent,
        answers("anything", 3),
        Conduct::Refuses,
        Conduct::IsDead,
    ];
    let mut world = World::new(config(4, false), &all);
    world.run(10 * SECOND);
    assert_eq!(
        [1, 2, 3, 4].map(|last| world.is_up(last)),
        [true, true, false, false]
    );
    assert!(world.peers[&1].requests.is_empty());
    assert!(world.peers[&1].resets >= 9);
}

/// The stated time: the failing probes' intervals and one time-out.
#[test]
fn a_death_is_noticed_within_the_stated_time() {
    let mut rng = Rng::new(1);
    for round in 0..200 {
        let interval = (50 + rng.below(2000) as u64) * MS;
        let config = BalanceConfig {
            probe: interval,
            probe_timeout: (interval / MS).div_ceil(1 + rng.below(4) as u64) * MS,
            fall: 1 + rng.below(5) as u32,
            rise: 1 + rng.below(5) as u32,
            ..config(3, round % 2 == 0)
        };
        let fine = answers("HTTP/1.1 200 OK\r\n\r\n", 1000);
        let mut world = World::new(config.clone(), &[fine.clone(), fine.clone(), fine.clone()]);
        let dies = 3 * interval + rng.below((2 * interval) as usize) as u64;
        world.run(dies);
        assert!([1, 2, 3].iter().all(|last| world.is_up(*last)));
        let bad = [
            Conduct::IsDead,
            Conduct::Refuses,
            answers("HTTP/1.1 500 \r\n", 1000),
            Conduct::IsSilent,
        ];
        let http = config.http.is_some();
        let conduct = bad[rng.below(if http { 4 } else { 2 })].clone();
        world.peers.get_mut(&2).unwrap().conduct = conduct.clone();
        let stated = u64::from(config.fall) * interval + config.probe_timeout;
        world.run(dies + stated + 2 * MS);
        assert!(!world.is_up(2), "round {round}: {conduct:?}, {config:?}");
        assert!(world.is_up(1) && world.is_up(3));
        // It is back after as many good answers.
        world.peers.get_mut(&2).unwrap().conduct = fine;
        world.run(world.now + u64::from(config.rise + 1) * interval + config.probe_timeout);
        assert!(world.is_up(2), "round {round}: it is not back, {config:?}");
    }
}

/// One segment of thirty lost: each is sent thrice, so that no server is given up.
#[test]
fn losses_are_no_death() {
    for seed in 0..20 {
        let fine = answers("HTTP/1.1 200 OK\r\n\r\n", 1000);
        let mut world = World::new(config(3, true), &[fine.clone(), fine.clone(), fine]);
        world.loss = Some((Rng::new(seed), 30));
        for second in 1..60 {
            world.run(second * SECOND);
            assert!(
                [1, 2, 3].iter().all(|last| world.is_up(*last)),
                "seed {seed}, second {second}"
            );
        }
    }
}

/// A server that has kept a connection of which the balancer knows nothing any more.
#[test]
fn a_half_open_connection_is_ended() {
    let fine = answers("HTTP/1.1 200 OK\r\n\r\n", 1000);
    let mut world = World::new(config(1, true), &[fine]);
    world.peers.get_mut(&1).unwrap().expected = Some(77);
    world.run(900 * MS);
    assert!(
        !world.peers[&1].requests.is_empty(),
        "the first check goes on"
    );
}

#[test]
fn wrong_requests_are_refused() {
    let plain = config(1, true);
    let http = plain.http.clone().unwrap();
    let with = |http: HttpCheck| BalanceConfig {
        http: Some(http),
        ..plain.clone()
    };
    let long = format!("/{}", "a".repeat(200));
    for path in ["", "health", "/a b", "/a\r\nX: y", "/\u{e9}", &long] {
        let wrong = HttpCheck {
            path: path.to_owned(),
            ..http.clone()
        };
        let error = Balance::new(with(wrong), 1).unwrap_err().to_string();
        let begins = format!("path {path:?} of the check by HTTP: write");
        assert!(error.starts_with(&begins), "{error}");
    }
    for host in ["", "a b", "a\r\nX: y"] {
        let wrong = HttpCheck {
            host: host.to_owned(),
            ..http.clone()
        };
        assert!(Balance::new(with(wrong), 1).is_err(), "{host}");
    }
    for statuses in [
        vec![],
        vec![99..=200],
        vec![200..=600],
        vec![RangeInclusive::new(300, 200)],
    ] {
        let wrong = HttpCheck {
            statuses,
            ..http.clone()
        };
        assert!(Balance::new(with(wrong), 1).is_err());
    }
}
