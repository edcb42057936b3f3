//! The engine against a naive model: a list of all frames of a period, grouped at its end.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use weir_filter::lang::expr::NoNames;
use weir_meter::engine::{Engine, Frame, Inside, LinkIndex, Settings, Unit};
use weir_meter::measure::{Accepted, ActiveTime, Flows, Gaps};
use weir_meter::period::Moment;
use weir_meter::services::{Service, Services};
use weir_meter::{Chunk, Direction, Flags, Key, KeyKind, OwnerKind, SessionInfo};
use weir_wire::{LinkType, Protocol};

/// What a frame of the test is made of.
#[derive(Clone, Copy, Debug)]
struct TestFrame {
    host: u8,
    peer: u8,
    v6: bool,
    vlan: Option<u16>,
    port: u16,
    /// UDP, TCP, ICMP, a fragment, ARP.
    what: u8,
    up: bool,
    padding: usize,
    after_ns: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Frame(TestFrame),
    Up(u8, Vec<Key>),
    Down(u8),
    Cut,
}

const MS: u64 = 1_000_000;

fn address(v6: bool, outside: bool, host: u8) -> IpAddr {
    match (v6, outside) {
        (false, false) => [10, 0, 0, host].into(),
        (false, true) => [192, 0, 2, host].into(),
        (true, false) => [0xfd00, 0, 0, 0, 0, 0, 0, host.into()].into(),
        (true, true) => [0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()].into(),
    }
}

fn mac(host: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, host]
}

impl TestFrame {
    fn subscriber(&self) -> Option<IpAddr> {
        (self.what != 4).then(|| address(self.v6, false, self.host))
    }

    fn ip_len(&self) -> usize {
        match (self.what, self.v6) {
            (4, _) => 0,
            (3, true) => 40 + 8 + 8,
            (_, true) => 48,
            (_, false) => 28,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let (host, peer) = (mac(self.host), mac(100 + self.peer));
        let (src_mac, dst_mac) = if self.up { (host, peer) } else { (peer, host) };
        let mut frame = [dst_mac, src_mac].concat();
        if let Some(vlan) = self.vlan {
            frame.extend([0x81, 0]);
            frame.extend(vlan.to_be_bytes());
        }
        if self.what == 4 {
            frame.extend([8, 6]);
            frame.extend([0; 28]);
        } else {
            self.packet(&mut frame);
        }
        frame.resize(frame.len() + self.padding, 0);
        frame
    }

    fn packet(&self, frame: &mut Vec<u8>) {
        let (own, far) = (
            address(self.v6, false, self.host),
            address(self.v6, true, self.peer),
        );
        let (src, dst) = if self.up { (own, far) } else { (far, own) };
        let protocol = [17, 6, if self.v6 { 58 } else { 1 }, 17][usize::from(self.what)];
        let octets = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        if self.v6 {
            let len = (self.ip_len() - 40) as u16;
            let next = if self.what == 3 { 44 } else { protocol };
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(len.to_be_bytes());
            frame.extend([next, 64]);
        } else {
            frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0]);
            frame.extend(if self.what == 3 { [0x20, 0] } else { [0, 0] });
            frame.extend([64, protocol, 0, 0]);
        }
        frame.extend(octets(src));
        frame.extend(octets(dst));
        if self.v6 && self.what == 3 {
            frame.extend([protocol, 0, 0, 1, 0, 0, 0, 0]);
        }
        let (src_port, dst_port) = if self.up {
            (40_000, self.port)
        } else {
            (self.port, 40_000)
        };
        frame.extend(src_port.to_be_bytes());
        frame.extend(dst_port.to_be_bytes());
        frame.extend([0, 8, 0, 0]);
    }

    /// As the list of [`services`] says, in words of its own.
    fn service(&self) -> u16 {
        let untagged = self.vlan.is_none();
        match (self.what, self.port) {
            (0 | 1, 53) => 0,
            _ if untagged && !self.v6 && self.what != 4 && self.peer == 1 => 1,
            (1, 80..=89) => 2,
            (2, _) if !self.v6 => 2,
            (3, _) => 3,
            (2, _) => 4,
            (4, _) => 5,
            _ => 6,
        }
    }
}

fn services() -> Services {
    Services::new(vec![
        Service {
            name: "dns".into(),
            ports: vec![(Protocol::UDP, 53..=53), (Protocol::TCP, 53..=53)],
            ..Service::default()
        },
        Service {
            name: "near".into(),
            filter: Some("ip host 192.0.2.1".into()),
            ..Service::default()
        },
        Service {
            name: "web".into(),
            ports: vec![(Protocol::TCP, 80..=89)],
            protocols: vec![Protocol::ICMPV4],
            ..Service::default()
        },
    ])
}

/// Owner (kind, session, key), service, direction, flags.
type Row = (u8, String, String, u16, u8, u8);

/// One frame of the period, as the model keeps it.
struct Counted {
    frame: TestFrame,
    at: u64,
    len: usize,
    session: Option<u8>,
    /// The key of unattributed traffic and the number of the entry it counts for.
    unattributed: Option<(Option<Key>, Option<usize>)>,
    adopted: Option<u8>,
    new_flow: bool,
}

#[derive(Default)]
struct Model {
    owned: HashMap<Key, u8>,
    declared: HashMap<u8, Vec<Key>>,
    period: Vec<Counted>,
    /// Entries of unattributed keys of the period; `None` once adopted.
    entries: Vec<Option<Key>>,
    flows: HashMap<String, u64>,
    now: u64,
}

const ADOPTION: u64 = 50 * MS;
const IDLE: u64 = 80 * MS;

impl Model {
    fn owner(&self, frame: &TestFrame) -> Option<u8> {
        let exact = |key: Key| self.owned.get(&key).copied();
        let vlan = frame.vlan.and_then(|vlan| exact(Key::Vlan(vlan, None)));
        let by_mac = || exact(Key::Mac(mac(frame.host)));
        let by_address = || {
            let ip = frame.subscriber()?;
            let best = self.owned.iter().filter(|(key, _)| key.covers(ip));
            let length = |key: &Key| match key {
                Key::Prefix(_, len) => *len,
                _ => u8::MAX,
            };
            best.max_by_key(|(key, _)| length(key)).map(|(_, id)| *id)
        };
        vlan.or_else(by_mac).or_else(by_address)
    }

    fn unattributed(&mut self, frame: &TestFrame, max: usize) -> (Option<Key>, Option<usize>) {
        let key = match frame.subscriber() {
            Some(IpAddr::V4(ip)) => Key::Ipv4(ip),
            Some(IpAddr::V6(ip)) => Key::Ipv6(ip),
            None => match frame.vlan {
                Some(vlan) => Key::Vlan(vlan, None),
                None => Key::Mac(mac(frame.host)),
            },
        };
        if let Some(entry) = self.entries.iter().position(|entry| *entry == Some(key)) {
            return (Some(key), Some(entry));
        }
        let live = self.entries.iter().flatten().count();
        if live >= max || self.entries.len() >= 2 * max {
            return (None, None);
        }
        self.entries.push(Some(key));
        (Some(key), Some(self.entries.len() - 1))
    }

    fn frame(&mut self, frame: TestFrame, len: usize, max: usize) {
        let session = self.owner(&frame);
        let unattributed = session.is_none().then(|| self.unattributed(&frame, max));
        let kept = (
            frame.host, frame.peer, frame.v6, frame.vlan, frame.what, frame.up,
        );
        let port = if frame.what < 2 { frame.port } else { 0 };
        let new_flow = frame.what != 4 && {
            let last = self.flows.insert(format!("{kept:?} {port}"), self.now);
            last.is_none_or(|last| self.now - last >= IDLE)
        };
        self.period.push(Counted {
            frame,
            at: self.now,
            len,
            session,
            unattributed,
            adopted: None,
            new_flow,
        });
    }

    fn up(&mut self, id: u8, keys: &[Key]) {
        let before = self.declared.insert(id, keys.to_vec()).unwrap_or_default();
        self.owned
            .retain(|key, owner| *owner != id || keys.contains(key));
        let gained: Vec<Key> = keys
            .iter()
            .filter(|key| !before.contains(key))
            .copied()
            .collect();
        for gained in gained {
            if self.owned.insert(gained, id) != Some(id) {
                self.adopt(gained, id);
            }
        }
    }

    fn adopt(&mut self, gained: Key, id: u8) {
        for entry in 0..self.entries.len() {
            let Some(key) = self.entries[entry] else {
                continue;
            };
            let is_in = match key {
                Key::Ipv4(ip) => gained.covers(ip.into()),
                Key::Ipv6(ip) => gained.covers(ip.into()),
                key => key == gained,
            };
            let of_entry = |counted: &&mut Counted| {
                counted
                    .unattributed
                    .is_some_and(|(_, of)| of == Some(entry))
            };
            let frames: Vec<&mut Counted> = self.period.iter_mut().filter(of_entry).collect();
            if !is_in
                || frames
                    .iter()
                    .any(|counted| self.now - counted.at > ADOPTION)
            {
                continue;
            }
            for counted in frames {
                counted.adopted = Some(id);
            }
            self.entries[entry] = None;
        }
    }

    fn down(&mut self, id: u8) {
        self.declared.remove(&id);
        self.owned.retain(|_, owner| *owner != id);
    }

    /// Rows of the period: packets, bytes, flows, active time, gaps below 1 ms, accepted.
    fn cut(&mut self, unit: Unit) -> BTreeMap<Row, Vec<u64>> {
        let mut rows: BTreeMap<Row, Vec<u64>> = BTreeMap::new();
        // By entry: two entries that one session adopts are rows of their own.
        let mut slots = BTreeSet::new();
        let mut last: HashMap<(Row, Option<usize>), u64> = HashMap::new();
        for counted in self.period.drain(..) {
            let TestFrame { up, .. } = counted.frame;
            let entry = counted.unattributed.and_then(|(_, entry)| entry);
            let name = |id: u8| format!("session {id}");
            let (kind, session, key, flags) = match (counted.session, counted.adopted) {
                (Some(id), _) => (0, name(id), String::new(), 0),
                (None, Some(id)) => (0, name(id), String::new(), Flags::ADOPTED.0),
                (None, None) => match counted.unattributed.unwrap().0 {
                    Some(key) => (1, String::new(), key.to_string(), 0),
                    None => (2, String::new(), String::new(), 0),
                },
            };
            let service = counted.frame.service();
            let row: Row = (kind, session, key, service, u8::from(!up), flags);
            let counts = rows.entry(row.clone()).or_insert_with(|| vec![0; 6]);
            counts[0] += 1;
            counts[1] += match unit {
                Unit::Ip => counted.frame.ip_len() as u64,
                Unit::Wire => counted.len as u64,
            };
            counts[2] += u64::from(counted.new_flow);
            if slots.insert((row.clone(), entry, counted.at / (10 * MS))) {
                counts[3] += 10;
            }
            if let Some(before) = last.insert((row, entry), counted.at) {
                counts[4] += u64::from(counted.at - before < 1_024_000);
            }
            counts[5] += u64::from(counted.frame.what == 4 && counted.frame.vlan.is_none());
        }
        self.entries.clear();
        rows
    }
}

/// Rows of chunks; checks that the chunks say the truth of themselves.
fn rows(chunks: &[Chunk]) -> BTreeMap<Row, Vec<u64>> {
    let mut rows: BTreeMap<Row, Vec<u64>> = BTreeMap::new();
    let (mut packets, mut bytes) = ([0; 2], [0; 2]);
    for (number, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk.manifest.id.number as usize, number);
        assert_eq!(chunk.manifest.last, number + 1 == chunks.len());
        assert_eq!(chunk.manifest.records as usize, chunk.records.len());
        let (mut of_chunk, mut bytes_of_chunk) = ([0; 2], [0; 2]);
        for record in &chunk.records {
            of_chunk[record.direction as usize] += record.counts[0];
            bytes_of_chunk[record.direction as usize] += record.counts[1];
            let owner = &chunk.owners[record.owner as usize];
            let kind = owner.kind as u8;
            let key = match owner.kind {
                OwnerKind::Unattributed => {
                    let key = owner.keys.first();
                    key.map(Key::to_string).unwrap_or_default()
                }
                _ => String::new(),
            };
            let direction = record.direction as u8;
            let row = (
                kind,
                owner.session.clone(),
                key,
                record.service,
                direction,
                record.flags.0,
            );
            let counts = rows.entry(row).or_insert_with(|| vec![0; 6]);
            for (sum, count) in counts.iter_mut().zip(&record.counts).take(4) {
                *sum += count;
            }
            // Buckets below 1.024 ms.
            counts[4] += record.counts[4..15].iter().sum::<u64>();
            counts[5] += record.counts[4 + Gaps::BUCKETS];
        }
        assert_eq!(chunk.manifest.totals.packets, of_chunk);
        assert_eq!(chunk.manifest.totals.bytes, bytes_of_chunk);
        for direction in 0..2 {
            packets[direction] += of_chunk[direction];
            bytes[direction] += bytes_of_chunk[direction];
        }
    }
    let link = chunks[0].manifest.link;
    assert_eq!(
        (link.packets, link.bytes),
        (packets, bytes),
        "sum = link total"
    );
    rows
}

fn key() -> impl Strategy<Value = Key> {
    (0..8u8, 0..6u8).prop_map(|(host, kind)| match kind {
        0 | 1 => Key::Ipv4([10, 0, 0, host].into()),
        2 => match address(true, false, host) {
            IpAddr::V6(ip) => Key::Ipv6(ip),
            IpAddr::V4(_) => unreachable!("asked for version 6"),
        },
        3 => Key::prefix(address(host & 1 == 0, false, host), 32 - (host & 3)).unwrap(),
        4 => Key::Vlan(1 + u16::from(host & 1), None),
        _ => Key::Mac(mac(host)),
    })
}

fn step() -> impl Strategy<Value = Step> {
    let frame = (
        (0..8u8, 0..3u8, any::<bool>()),
        prop::option::weighted(0.2, 1..3u16),
        prop::sample::select(vec![53, 80, 443]),
        0..5u8,
        any::<bool>(),
        0..4usize,
        prop::sample::select(vec![0, 1000, MS, 7 * MS, 60 * MS]),
    );
    let frame = frame.prop_map(
        |((host, peer, v6), vlan, port, what, up, padding, after_ns)| {
            Step::Frame(TestFrame {
                host,
                peer,
                v6,
                vlan,
                port,
                what,
                up,
                padding,
                after_ns,
            })
        },
    );
    let up = (0..5u8, prop::collection::btree_set(key(), 0..4));
    prop_oneof![
        20 => frame,
        3 => up.prop_map(|(id, keys)| Step::Up(id, keys.into_iter().collect())),
        2 => (0..5u8).prop_map(Step::Down),
        1 => Just(Step::Cut),
    ]
}

fn engine(unit: Unit, unattributed_max: usize, chunk_records: usize) -> (Engine, LinkIndex) {
    let settings = Settings {
        unit,
        keys: KeyKind::ALL.to_vec(),
        services: services(),
        measures: vec![
            Box::new(Flows::new(1 << 16, IDLE, 5)),
            Box::new(ActiveTime::new(10)),
            Box::new(Gaps),
            Box::new(Accepted::new("arp", "arp")),
        ],
        unattributed_max,
        adoption_ns: ADOPTION,
        chunk_records,
        ..Settings::default()
    };
    let mut engine = Engine::new(settings, Moment::default());
    let (link, refusals) = engine.prepare(LinkType::EN10MB, &NoNames);
    assert!(refusals.is_empty(), "{refusals:?}");
    (engine, link)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_equals_the_model_and_its_sums_are_the_links(
        steps in prop::collection::vec(step(), 0..200),
        wire in any::<bool>(),
        unattributed_max in prop::sample::select(vec![0, 1, 3, 1000]),
        chunk_records in prop::sample::select(vec![1, 3, 1000]),
    ) {
        let unit = if wire { Unit::Wire } else { Unit::Ip };
        let (mut engine, link) = engine(unit, unattributed_max, chunk_records);
        let mut model = Model::default();
        let mut periods = 0;
        for step in steps.iter().chain([&Step::Cut]) {
            match step {
                Step::Frame(frame) => {
                    model.now += frame.after_ns;
                    let bytes = frame.bytes();
                    engine.count(&Frame {
                        bytes: &bytes,
                        wire_len: bytes.len() as u32,
                        link,
                        direction: Some(if frame.up { Direction::Up } else { Direction::Down }),
                        now_ns: model.now,
                    });
                    model.frame(*frame, bytes.len(), unattributed_max);
                }
                Step::Up(id, keys) => {
                    engine.up(&info(&format!("session {id}"), keys.clone()), 0, model.now).unwrap();
                    model.up(*id, keys);
                }
                Step::Down(id) => {
                    // Through the public event, as RADIUS does.
                    let event = down(&format!("session {id}"));
                    engine.apply(&event, model.now).unwrap();
                    model.down(*id);
                }
                Step::Cut => {
                    let mut chunks = Vec::new();
                    let now = Moment { monotonic_ns: model.now, unix_ns: 0 };
                    engine.cut(now, 0, None, &mut |chunk| chunks.push(chunk));
                    prop_assert_eq!(chunks[0].manifest.id.period, periods);
                    periods += 1;
                    prop_assert_eq!(rows(&chunks), model.cut(unit));
                }
            }
        }
    }
}

fn info(id: &str, keys: Vec<Key>) -> SessionInfo {
    SessionInfo {
        id: id.into(),
        subscriber: id.into(),
        keys,
        ..SessionInfo::default()
    }
}

fn down(id: &str) -> weir_meter::SessionEvent {
    weir_meter::SessionEvent {
        number: 0,
        received_unix_ns: 0,
        happened_unix_ns: None,
        source: weir_meter::SessionSource::Control,
        lost: None,
        kind: weir_meter::SessionEventKind::Down(info(id, Vec::new())),
    }
}

/// A frame of a capture: from host 10.0.0.`host`, or to it.
fn udp(host: u8, up: bool) -> Vec<u8> {
    let frame = TestFrame {
        host,
        peer: 9,
        v6: false,
        vlan: None,
        port: 53,
        what: 0,
        up,
        padding: 0,
        after_ns: 0,
    };
    frame.bytes()
}

fn owners(inside: Inside, each_address: bool) -> Vec<(String, Direction, u64)> {
    let settings = Settings {
        inside,
        each_address,
        ..Settings::default()
    };
    let mut engine = Engine::new(settings, Moment::default());
    let (link, _) = engine.prepare(LinkType::EN10MB, &NoNames);
    let one = "10.0.0.1".parse().unwrap();
    if !each_address {
        engine.up(&info("one", vec![one]), 0, 0).unwrap();
    }
    for (host, up) in [(1, true), (1, false), (2, true), (2, false)] {
        let bytes = udp(host, up);
        engine.count(&Frame {
            bytes: &bytes,
            wire_len: bytes.len() as u32,
            link,
            direction: None,
            now_ns: 0,
        });
    }
    let mut owners = Vec::new();
    engine.cut(Moment::default(), 0, None, &mut |chunk| {
        for record in &chunk.records {
            let owner = &chunk.owners[record.owner as usize];
            let key = owner.keys.first().map(Key::to_string);
            let name = format!("{}{}", owner.session, key.unwrap_or_default());
            owners.push((name, record.direction, record.counts[0]));
        }
    });
    owners
}

#[test]
fn a_captures_direction_follows_prefixes_an_expression_or_sessions() {
    use Direction::{Down, Up};
    let all = |first: &str, second: &str| {
        let row = |name: &str, direction| (name.to_owned(), direction, 1);
        vec![
            row(first, Up),
            row(first, Down),
            row(second, Up),
            row(second, Down),
        ]
    };
    let prefixes = Inside::Prefixes(vec!["10.0.0.0/8".parse().unwrap()]);
    assert_eq!(
        owners(prefixes.clone(), false),
        all("one10.0.0.1", "10.0.0.2")
    );
    assert_eq!(
        owners(prefixes, true),
        all("10.0.0.110.0.0.1", "10.0.0.210.0.0.2")
    );
    let from = Inside::From("src net 10.0.0.0/8".into());
    assert_eq!(owners(from, false), all("one10.0.0.1", "10.0.0.2"));
    // A frame whose source belongs to no session goes down.
    let told = owners(Inside::Sessions, false);
    assert_eq!(told[..2], all("one10.0.0.1", "")[..2]);
    assert_eq!(told[2], ("192.0.2.9".into(), Down, 1));
    assert_eq!(told[3], ("10.0.0.2".into(), Down, 1));
}

#[test]
fn hostile_frames_are_counted_like_others() {
    let (mut engine, _) = engine(Unit::Wire, 10, 100);
    let links: Vec<LinkIndex> = LinkType::NAMED
        .iter()
        .map(|(linktype, _)| engine.prepare(*linktype, &NoNames).0)
        .collect();
    let mut seed = 7u64;
    let mut next = || {
        // xorshift64 (Marsaglia 2003).
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut bytes_total = 0;
    for _ in 0..20_000 {
        let len = (next() % 90) as usize;
        let bytes: Vec<u8> = (0..len)
            .map(|_| (next() % 3).wrapping_mul(next()) as u8)
            .collect();
        let wire_len = next() as u32;
        bytes_total += u64::from(wire_len);
        engine.count(&Frame {
            bytes: &bytes,
            wire_len,
            link: links[(next() % 10) as usize],
            direction: Some(Direction::Up),
            now_ns: next(),
        });
    }
    assert_eq!(engine.link().packets, [20_000, 0]);
    assert_eq!(engine.link().bytes, [bytes_total, 0]);
    let mut chunks = Vec::new();
    engine.cut(Moment::default(), 0, None, &mut |chunk| chunks.push(chunk));
    assert!(!rows(&chunks).is_empty());
}
