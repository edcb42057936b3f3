//! Stations that send from both sides at once, and more stations than the table
//! holds.

use crate::Net;
use crate::common::Folder;
use crate::live::{Running, WAIT_MAX};
use rustix::net::{RecvFlags, recv};
use serde_json::Value;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use weir_lab::load::{Field, Generator, Order, Rate, Sending, Sent, Template};
use weir_lab::net::{Linear, Offloads, Signal};
use weir_lab::testenv;

/// The bytes before the number in a frame of these tests.
const MAGIC: [u8; 2] = [0x77, 0x66];
const MAGIC_AT: usize = 44;

/// MAC addresses: the station that moves, the fixed station at either side,
/// broadcast.
const MOVES: [u8; 6] = [2, 0, 0, 0, 7, 9];
const STAYS: [[u8; 6]; 2] = [[2, 0, 0, 0, 7, 1], [2, 0, 0, 0, 7, 2]];
const ALL: [u8; 6] = [0xff; 6];

/// Identity of a frame: ingress side, kind, number.
type Name = (u8, u8, u64);

/// Frames of a side: an ARP request for an unused address, with that kind.
fn template(side: u8, kind: u8, src: [u8; 6], dst: [u8; 6]) -> Template {
    let mut frame = [dst, src].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(src);
    frame.extend([10, 9, 0, 200, 0, 0, 0, 0, 0, 0, 10, 9, 0, 201]);
    frame.extend([side, kind]);
    frame.extend(MAGIC);
    frame.resize(60, 0);
    Template {
        frame,
        flows: 1,
        order: Order::InTurn,
        fields: Vec::new(),
        number_at: Some(MAGIC_AT + MAGIC.len()),
        time_at: None,
    }
}

/// The frames received by a host, and how often.
struct Came {
    socket: OwnedFd,
    frames: HashMap<Name, u32>,
}

impl Came {
    fn look(&mut self) {
        let mut bytes = [0; 2048];
        while let Ok((len, _)) = recv(&self.socket, &mut bytes, RecvFlags::empty()) {
            let frame = &bytes[..len];
            if frame.get(MAGIC_AT..MAGIC_AT + 2) != Some(&MAGIC) {
                continue;
            }
            let number = frame[MAGIC_AT + 2..][..8].try_into().unwrap();
            let (side, kind) = (frame[MAGIC_AT - 2], frame[MAGIC_AT - 1]);
            let name = (side, kind, u64::from_be_bytes(number));
            *self.frames.entry(name).or_default() += 1;
        }
    }

    fn of(&self, kind: u8) -> usize {
        self.frames.keys().filter(|name| name.1 == kind).count()
    }
}

/// A bridge in the middle, and the frames that it forwarded.
struct Storm {
    net: Net,
    folder: Folder,
    bridge: Option<Running>,
    /// To `a`, to `b`.
    came: [Came; 2],
    sent: u64,
    /// Dropped on the way.
    dropped: u64,
}

impl Storm {
    fn new(name: &str, fast: &str, net: impl FnOnce(Linear) -> Linear) -> Option<Storm> {
        if !testenv::root() {
            return None;
        }
        let net = Net(net(Linear::new(Offloads::OFF).unwrap()));
        net.set_one_queue();
        let folder = Folder::new(&format!("{name}-{fast}"));
        let json = folder.path("stats.json");
        let bridge = ["--hang-ms", "10000", "--flow-cache", fast];
        let bridge = net.bridge(&[&bridge[..], &["--stats-json", &json]].concat());
        let came = [&net.a, &net.b].map(|host| Came {
            socket: host.capture().unwrap(),
            frames: HashMap::new(),
        });
        Some(Storm {
            bridge: Some(bridge.until("ready")),
            net,
            folder,
            came,
            sent: 0,
            dropped: 0,
        })
    }

    fn generator(&self, side: usize, templates: &[Template]) -> Generator {
        let device = [&self.net.eth_a, &self.net.eth_b][side];
        let ways: Vec<_> = templates.iter().map(|t| (device, t.clone())).collect();
        Generator::in_turn(&ways).unwrap()
    }

    fn look(&mut self) {
        self.came.iter_mut().for_each(Came::look);
    }

    /// Waits until a side has received that many frames of a kind.
    fn until(&mut self, side: usize, kind: u8, count: usize) {
        let began = Instant::now();
        while self.came[side].of(kind) < count {
            let so_far = self.came[side].of(kind);
            assert!(began.elapsed() < WAIT_MAX, "{so_far} of {count}: {kind}");
            std::thread::sleep(Duration::from_micros(200));
            self.look();
        }
    }

    fn count(&mut self, sent: Sent) {
        self.sent += sent.frames;
        self.dropped += sent.dropped;
    }

    fn send(&mut self, generator: &mut Generator, count: u64) {
        let sent = generator.send(count, Rate::PerSecond(20_000.0)).unwrap();
        self.count(sent);
        self.look();
    }

    fn stats(&self) -> Option<Value> {
        let text = std::fs::read_to_string(self.folder.path("stats.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Ends the bridge: no frame was duplicated or returned to its ingress.
    fn end(&mut self) -> Value {
        let bridge = self.bridge.take().expect("it ends once");
        bridge.signal(Signal::TERM);
        let ended = bridge.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        self.look();
        for (side, came) in self.came.iter().enumerate() {
            let back = came.frames.keys().find(|name| name.0 == side as u8);
            assert_eq!(back, None, "it came back to its side");
            let twice = came.frames.iter().find(|(_, count)| **count > 1);
            assert_eq!(twice, None, "it came twice");
        }
        let stats = self.stats().unwrap();
        println!("{stats}");
        assert_eq!(stats["chunks_free"], stats["chunks"], "{stats}");
        stats
    }

    /// Waits until every frame was received or counted as lost.
    fn until_all_are_accounted_for(&mut self, stats: &Value) {
        let began = Instant::now();
        loop {
            self.look();
            let came: usize = self.came.iter().map(|came| came.frames.len()).sum();
            let (sent, lost) = (self.sent, self.lost(stats));
            match sent.cmp(&(came as u64 + lost)) {
                Ordering::Equal => return,
                // The last frames are in flight.
                Ordering::Greater if began.elapsed() < WAIT_MAX => {}
                _ => panic!("{sent} sent, {came} came, {lost} lost: {stats}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Frames counted as lost.
    fn lost(&self, stats: &Value) -> u64 {
        let of_link = |link: &Value| {
            let reasons = ["rx_full", "rx_dropped", "stale", "bypassed", "no_room"];
            let reasons = reasons.iter().chain(&["invalid", "dropped_local"]);
            reasons.map(|r| link[*r].as_u64().unwrap()).sum::<u64>()
        };
        let by_weir: u64 = stats["links"].as_array().unwrap().iter().map(of_link).sum();
        let held = stats["fast"]["held_frames"].as_u64().unwrap_or(0);
        let by_device = [&self.net.left, &self.net.right].map(|at| at.counters().unwrap());
        let by_device: u64 = by_device.iter().map(|counted| counted.tx_dropped).sum();
        self.dropped + by_weir + held + by_device
    }
}

/// Kinds of frames: from the moving station to all or to fixed stations, and to
/// the moving station.
const TELLS: u8 = 1;
const TALKS: u8 = 2;
const CALLS: u8 = 3;
/// To the moving station before its moves, and after them.
const CALLS_FIRST: u8 = 4;
const CALLS_LATER: u8 = 5;

/// The station's frames alternate slowly at first, so that each move is seen,
/// then at both sides at full rate.
fn a_station_at_both_sides(fast: &str) {
    const TURNS: u64 = 40;
    const FRAMES: u64 = 10_000;
    let Some(mut storm) = Storm::new("flapping", fast, |line| line) else {
        return;
    };
    let tells = |side: u8| template(side, TELLS, MOVES, ALL);
    let talks = |side: u8| template(side, TALKS, MOVES, STAYS[1 - usize::from(side)]);
    let calls = |side: u8, kind| template(side, kind, STAYS[usize::from(side)], MOVES);
    let [mut tell_a, mut tell_b] = [0, 1].map(|side| storm.generator(side.into(), &[tells(side)]));
    let mut told = 0;
    // One after the other: each move is seen.
    for _ in 0..TURNS {
        storm.send(&mut tell_a, 1);
        storm.until(1, TELLS, told + 1);
        storm.send(&mut tell_b, 1);
        storm.until(0, TELLS, told + 1);
        told += 1;
    }
    let [mut both_a, mut both_b] = [0, 1].map(|side| {
        let templates = [talks(side), calls(side, CALLS)];
        storm.generator(side.into(), &templates)
    });
    // The kernel forwards frames to it where permitted.
    let mut first = storm.generator(0, &[calls(0, CALLS_FIRST)]);
    let went_by = |storm: &Storm| storm.stats()?["fast"]["frames"].as_u64();
    let began = Instant::now();
    while fast == "on" && went_by(&storm) < Some(400) {
        assert!(began.elapsed() < WAIT_MAX, "{:?}", storm.stats());
        storm.send(&mut first, 500);
    }
    // At full rate.
    let rate = Rate::PerSecond(20_000.0);
    let sending = [&mut both_a, &mut both_b].map(|both| both.start(FRAMES, rate).unwrap());
    while !sending.iter().all(Sending::is_done) {
        std::thread::sleep(Duration::from_millis(1));
        storm.look();
    }
    for sending in sending {
        storm.count(sending.wait().unwrap());
    }
    // Frames for it arrive where it was seen last.
    for (turn, side) in [0_u8, 1, 0].into_iter().enumerate() {
        let (here, there) = (usize::from(side), usize::from(1 - side));
        let mut tell = [&mut tell_a, &mut tell_b];
        let tell = &mut tell[here];
        told = storm.came[there].of(TELLS);
        storm.send(tell, 1);
        storm.until(there, TELLS, told + 1);
        let kind = CALLS_LATER + 2 * turn as u8;
        let mut near = storm.generator(here, &[calls(side, kind)]);
        let mut far = storm.generator(there, &[calls(1 - side, kind + 1)]);
        storm.send(&mut near, 20);
        let began = Instant::now();
        while storm.came[here].of(kind + 1) == 0 {
            assert!(began.elapsed() < WAIT_MAX, "none came to side {side}");
            storm.send(&mut far, 20);
        }
        storm.send(tell, 1);
        storm.until(there, TELLS, told + 2);
        assert_eq!(storm.came[there].of(kind), 0, "it is not there");
    }
    let stats = storm.end();
    storm.until_all_are_accounted_for(&stats);
    assert_eq!(stats["stations"], 3, "{stats}");
    let count = |what: &str| [0, 1].map(|link| stats["links"][link][what].as_u64().unwrap());
    // From one side to the other, back, and so on.
    let moved = count("stations_moved");
    assert!(moved[0].abs_diff(moved[1]) <= 1, "{stats}");
    assert!(moved[0] + moved[1] > 2 * TURNS, "{stats}");
    assert_eq!(count("stations_learned").iter().sum::<u64>(), 3, "{stats}");
}

#[test]
fn a_station_that_is_at_both_sides_at_once() {
    a_station_at_both_sides("off");
}

#[test]
fn a_station_that_is_at_both_sides_at_once_with_the_fast_path() {
    a_station_at_both_sides("on");
}

/// Size of the bridge's table, which is exceeded.
const ROOM: u64 = 16_384;
const STATIONS: u32 = 60_000;

fn more_stations_than_there_is_room_for(fast: &str) {
    let with_addresses = |line: Linear| line.with_addresses().unwrap();
    let Some(mut storm) = Storm::new("storm", fast, with_addresses) else {
        return;
    };
    assert!(storm.net.pings());
    // The last four bytes of the source, in both places.
    let differs = |offset| Field {
        offset,
        width: 4,
        base: 1 << 24,
        step: 1,
        divisor: 1,
        modulus: STATIONS,
        checksum: None,
    };
    let asks = Template {
        flows: STATIONS,
        fields: vec![differs(8), differs(24)],
        ..template(0, TELLS, MOVES, ALL)
    };
    let mut asks = storm.generator(0, &[asks]);
    let evicted = |storm: &Storm| storm.stats()?["links"][0]["stations_evicted"].as_u64();
    let began = Instant::now();
    while evicted(&storm) < Some(1_000) {
        assert!(began.elapsed() < WAIT_MAX, "{:?}", storm.stats());
        storm.send(&mut asks, 5_000);
    }
    assert!(storm.net.pings(), "the others are heard");
    let stats = storm.end();
    let count = |what: &str| [0, 1].map(|link| stats["links"][link][what].as_u64().unwrap());
    let stations = stats["stations"].as_u64().unwrap();
    assert!((ROOM / 2..=ROOM).contains(&stations), "{stats}");
    // A station that is missing was evicted for another.
    let [learned, evicted] = ["stations_learned", "stations_evicted"].map(count);
    let [learned, evicted] = [learned, evicted].map(|counts| counts.iter().sum::<u64>());
    assert_eq!(learned, stations + evicted, "{stats}");
    // Broadcast frames are not cached.
    let remembered = stats["fast"]["remembered"].as_u64().unwrap_or(0);
    assert!(remembered <= 4, "{stats}");
    let came = storm.came[1].frames.len() as u64;
    assert!(0 < came && came <= count("flooded")[0], "{came}: {stats}");
}

#[test]
fn a_storm_of_questions_from_more_stations_than_there_is_room_for() {
    more_stations_than_there_is_room_for("off");
}

#[test]
fn a_storm_of_questions_with_the_fast_path() {
    more_stations_than_there_is_room_for("on");
}
