//! Fan-out groups and shares, over interfaces in memory.

use std::collections::BTreeMap;
use weir_broker::Bytes;
use weir_broker::compile::Source;
use weir_broker::engine::mem::MemBackend;
use weir_broker::engine::{Engine, Owner, fanout_limits};
use weir_broker::policy::{Accounts, PeerCred, Policy};
use weir_broker::protocol::{ErrorKind, FanoutStatus, OpenPort, Opened, Refusal, Response};
use weir_demux::fanout::{Layout, Share, bucket};
use weir_wire::LinkType;

const POLICY: &str = r#"
[[grant]]
users = ["*"]
interfaces = ["*"]
take = true
ports_max = 200
ports_total = 1000
memory_max = "16 MiB"
memory_total = "64 MiB"
"#;

/// An engine with an interface, and its ports.
struct Bed {
    engine: Engine<MemBackend>,
    fabric: MemBackend,
    eth: u32,
}

fn user(connection: u64, uid: u32) -> Owner {
    let who = PeerCred {
        uid,
        gids: [uid].into(),
        pid: 1,
        is_superuser: uid == 0,
    };
    Owner { connection, who }
}

fn port(fanout: &str, filter: &str) -> OpenPort {
    OpenPort {
        fanout: Some(fanout.parse().expect("a fan-out")),
        ..OpenPort::copies("eth0", Source::expr(filter), Bytes(64 << 10))
    }
}

/// A datagram of flow `number`, there or back.
fn datagram(number: u32, is_back: bool) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12] = 0x08;
    frame[14] = 0x45;
    frame[23] = 17;
    let ends = [0x0a00_0000 + number, 0xc0a8_0001].map(u32::to_be_bytes);
    let ports = [4_000 + number as u16, 53].map(u16::to_be_bytes);
    let at = usize::from(is_back);
    frame[26..30].copy_from_slice(&ends[at]);
    frame[30..34].copy_from_slice(&ends[1 - at]);
    frame[34..36].copy_from_slice(&ports[at]);
    frame[36..38].copy_from_slice(&ports[1 - at]);
    frame
}

/// Flows of each test.
const FLOWS: u32 = 400;

impl Bed {
    fn new() -> Bed {
        let fabric = MemBackend::new();
        let eth = fabric.add("eth0");
        let policy = Policy::parse(POLICY, &Accounts::default()).unwrap();
        let engine = Engine::new(fabric.clone(), policy);
        Bed {
            engine,
            fabric,
            eth,
        }
    }

    fn open(&mut self, owner: Owner, asked: OpenPort) -> Result<Opened, Refusal> {
        self.engine.open(owner, asked)?;
        let finished = self.engine.poll_finished().pop().expect("it is ready");
        match finished.result? {
            (Response::Opened(opened), _) => Ok(opened),
            other => panic!("{other:?}"),
        }
    }

    fn opened(&mut self, connection: u64, fanout: &str) -> Opened {
        let owner = user(connection, 1001);
        let opened = self.open(owner, port(fanout, "udp"));
        opened.unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// Sends a frame each way of each flow; returns, by flow, the slot that got
    /// both, if just one did.
    fn receivers(&mut self, ports: &[&Opened]) -> BTreeMap<u32, u32> {
        let mut found = BTreeMap::new();
        for port in ports {
            self.drain(port.slot);
        }
        for flow in 0..FLOWS {
            self.fabric.send(self.eth, &datagram(flow, false));
            self.fabric.send(self.eth, &datagram(flow, true));
            let slots = ports.iter().map(|port| port.slot);
            let counts: Vec<(u32, usize)> = slots.map(|slot| (slot, self.drain(slot))).collect();
            let all: usize = counts.iter().map(|(_, count)| count).sum();
            assert!(all == 0 || all == 2, "flow {flow}: {counts:?}");
            let both = counts.into_iter().find(|(_, count)| *count == 2);
            assert!(all == 0 || both.is_some(), "both ways at one port");
            found.extend(both.map(|(slot, _)| (flow, slot)));
        }
        found
    }

    fn drain(&self, slot: u32) -> usize {
        std::iter::from_fn(|| self.fabric.receive(self.eth, slot)).count()
    }

    fn statuses(&self) -> Vec<FanoutStatus> {
        self.engine
            .all_status()
            .filter_map(|port| port.fanout)
            .collect()
    }
}

fn share_of(receivers: &BTreeMap<u32, u32>, port: &Opened) -> f64 {
    let count = receivers
        .values()
        .filter(|slot| **slot == port.slot)
        .count();
    count as f64 / f64::from(FLOWS)
}

/// Four members get each frame once, about a quarter each; what a member leaves is
/// dealt out among the rest, and a newcomer gets a share; other flows stay where
/// they are.
#[test]
fn members_join_and_leave() {
    let mut bed = Bed::new();
    let ports: Vec<Opened> = (1..=4).map(|at| bed.opened(at, "workers")).collect();
    assert_eq!(bed.fabric.in_use(bed.eth), (4, 1), "one binding for all");
    let all: Vec<&Opened> = ports.iter().collect();
    let before = bed.receivers(&all);
    assert_eq!(before.len(), FLOWS as usize);
    for port in &ports {
        let share = share_of(&before, port);
        assert!((0.15..0.35).contains(&share), "{share}");
    }
    let shown: Vec<String> = bed.statuses().iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        ["workers:0/4", "workers:1/4", "workers:2/4", "workers:3/4"]
    );

    bed.engine.close_all(2);
    let after = bed.receivers(&all);
    assert_eq!(after.len(), FLOWS as usize, "none is lost");
    let gone = ports[1].slot;
    for (flow, slot) in &before {
        assert_ne!(after[flow], gone);
        assert!(*slot == gone || after[flow] == *slot, "flow {flow} stays");
    }

    let newcomer = bed.opened(9, "workers");
    let now = bed.receivers(&[&ports[0], &ports[2], &ports[3], &newcomer]);
    assert_eq!(now.len(), FLOWS as usize);
    let share = share_of(&now, &newcomer);
    assert!((0.15..0.35).contains(&share), "{share}");
    for (flow, slot) in &now {
        assert!(*slot == newcomer.slot || after[flow] == *slot);
    }
    bed.engine.close_every();
    assert_eq!(bed.fabric.in_use(bed.eth), (0, 0));
}

/// The share is the one that the hash alone says, whichever ports there are.
#[test]
fn shares_stay_the_same() {
    let mut bed = Bed::new();
    let (first, third) = (bed.opened(1, "0/4"), bed.opened(2, "2/4"));
    assert_eq!(bed.fabric.in_use(bed.eth), (2, 1));
    let twin = bed.opened(3, "2/4");
    assert_eq!(bed.fabric.in_use(bed.eth), (3, 2), "two ports of one share");
    for flow in 0..FLOWS {
        let frame = datagram(flow, flow % 2 == 1);
        bed.fabric.send(bed.eth, &frame);
        let has = |index| {
            let share = Share::new(index, 4).unwrap();
            usize::from(share.has(bucket(&frame, Layout::ETHERNET)))
        };
        let got = [&first, &third, &twin].map(|port| bed.drain(port.slot));
        assert_eq!(got, [has(0), has(2), has(2)], "flow {flow}");
    }
    assert_eq!(bed.statuses()[1].to_string(), "2/4");
    bed.engine.close_all(2);
    assert_eq!(bed.receivers(&[&first, &third]).len(), {
        let share = Share::new(0, 4).unwrap();
        let own = |flow: &u32| share.has(bucket(&datagram(*flow, false), Layout::ETHERNET));
        (0..FLOWS).filter(own).count()
    });
}

/// Ports of different users, filters, priorities, kinds or names are in different
/// groups: each group gets all frames.
#[test]
fn a_group_is_of_one_user_and_filter() {
    let mut bed = Bed::new();
    let base = bed.opened(1, "g");
    let mut others = vec![bed.opened(2, "h"), bed.opened(3, "0/1")];
    for (connection, uid, asked) in [
        (4, 1002, port("g", "udp")),
        (5, 0, port("g", "udp")),
        (6, 1001, port("g", "udp port 53")),
        (
            7,
            1001,
            OpenPort {
                priority: 0,
                snap_len: Some(99),
                ..port("g", "udp")
            },
        ),
    ] {
        let opened = bed.open(user(connection, uid), asked);
        others.push(opened.unwrap_or_else(|refusal| panic!("{refusal}")));
    }
    assert_eq!(bed.fabric.in_use(bed.eth), (7, 7));
    for port in std::iter::once(&base).chain(&others) {
        assert_eq!(bed.receivers(&[port]).len(), FLOWS as usize);
    }
    // Tags are the members' own.
    let asked = OpenPort {
        tag: 77,
        ..port("g", "udp")
    };
    let tagged = bed.open(user(8, 1001), asked).unwrap();
    bed.drain(base.slot);
    assert_eq!(bed.fabric.in_use(bed.eth), (8, 7), "one more of the first");
    for flow in 0..FLOWS {
        bed.fabric.send(bed.eth, &datagram(flow, false));
        for (port, tag) in [(&base, 0), (&tagged, 77)] {
            while let Some(frame) = bed.fabric.receive(bed.eth, port.slot) {
                assert_eq!(frame.tag, tag);
            }
        }
    }
}

/// Another filter leads into another group; every group is complete at any time.
#[test]
fn a_member_with_another_filter_changes_groups() {
    let mut bed = Bed::new();
    let ports = [bed.opened(1, "g"), bed.opened(2, "g"), bed.opened(3, "g")];
    let all: Vec<&Opened> = ports.iter().collect();
    let set = |bed: &mut Bed, at: usize, filter: &str| {
        let owner = user(at as u64 + 1, 1001);
        let source = Source::expr(filter);
        bed.engine.set_filter(&owner, ports[at].port, source)
    };
    set(&mut bed, 0, "udp port 53").unwrap();
    assert_eq!(bed.fabric.in_use(bed.eth), (3, 2));
    assert_eq!(
        bed.receivers(&all[..1]).len(),
        FLOWS as usize,
        "alone in it"
    );
    assert_eq!(
        bed.receivers(&all[1..]).len(),
        FLOWS as usize,
        "the rest has all"
    );
    set(&mut bed, 1, "udp port 53").unwrap();
    set(&mut bed, 2, "udp port 53").unwrap();
    assert_eq!(bed.fabric.in_use(bed.eth), (3, 1), "together again");
    assert_eq!(bed.receivers(&all).len(), FLOWS as usize);
    set(&mut bed, 0, "udp port (").unwrap_err();
    set(&mut bed, 0, "udp port 53").unwrap();
    assert_eq!(bed.receivers(&all).len(), FLOWS as usize);
    set(&mut bed, 0, "tcp").unwrap();
    set(&mut bed, 0, "icmp").unwrap();
    assert_eq!(
        bed.fabric.in_use(bed.eth),
        (3, 2),
        "the only member stays in its group"
    );
    assert_eq!(bed.receivers(&all[1..]).len(), FLOWS as usize);
}

#[test]
fn a_numbered_group_has_so_many_members() {
    let mut bed = Bed::new();
    let ports = [bed.opened(1, "2"), bed.opened(2, "2")];
    let refused = bed.open(user(3, 1001), port("2", "udp")).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Limit);
    let text = refused.to_string();
    assert!(
        text.contains("`2`") && text.contains("has 2 members"),
        "{text}"
    );
    assert!(text.contains("close one"), "{text}");
    assert_eq!(bed.fabric.in_use(bed.eth), (2, 1), "nothing is left of it");
    let opened = bed.open(user(3, 1001), port("2", "udp port 54")).unwrap();
    let changed = bed
        .engine
        .set_filter(&user(3, 1001), opened.port, Source::expr("udp"));
    assert!(changed.unwrap_err().to_string().contains("has 2 members"));
    assert_eq!(
        bed.fabric.in_use(bed.eth),
        (3, 2),
        "it keeps its own filter"
    );
    bed.engine.close_all(1);
    let changed = bed
        .engine
        .set_filter(&user(3, 1001), opened.port, Source::expr("udp"));
    changed.expect("there is room now");
    let found = bed.receivers(&[&ports[1], &opened]);
    assert_eq!(found.len(), FLOWS as usize);
}

/// A port whose new filter is refused is in a group of its old filter, whatever the
/// group's number is now.
#[test]
fn a_refused_filter_leaves_nothing_behind() {
    let mut bed = Bed::new();
    // Takes the lowest number.
    bed.opened(1, "x");
    let one = bed.open(user(2, 1001), port("1", "udp port 54")).unwrap();
    let other = bed.opened(3, "1");
    bed.engine.close_all(1);
    let set = |bed: &mut Bed, filter| {
        let source = Source::expr(filter);
        bed.engine.set_filter(&user(2, 1001), one.port, source)
    };
    let refused = set(&mut bed, "udp").unwrap_err();
    assert!(refused.to_string().contains("has 1 member"), "{refused}");
    assert_eq!(bed.fabric.in_use(bed.eth), (2, 2));
    set(&mut bed, "udp port 53").expect("alone in its group");
    assert_eq!(bed.receivers(&[&one]).len(), FLOWS as usize);
    assert_eq!(bed.receivers(&[&other]).len(), FLOWS as usize);
    set(&mut bed, "udp").unwrap_err();
    bed.engine.close_all(2);
    assert_eq!(bed.fabric.in_use(bed.eth), (1, 1));
    assert_eq!(bed.receivers(&[&other]).len(), FLOWS as usize);
}

#[test]
fn groups_of_a_user_have_a_limit() {
    let mut bed = Bed::new();
    let most = fanout_limits::USER_GROUPS_MAX;
    for number in 0..most {
        bed.opened(1, &format!("g{number}"));
    }
    let refused = bed.open(user(1, 1001), port("another", "udp")).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Limit);
    assert!(
        refused.to_string().contains("64 fan-out groups"),
        "{refused}"
    );
    bed.opened(1, "g5");
    bed.open(user(2, 1002), port("g0", "udp"))
        .expect("another user's");
    bed.open(user(3, 0), port("g0", "udp"))
        .expect("the superuser's");
    assert_eq!(bed.fabric.in_use(bed.eth).1, most + 2);
}

/// A new policy changes the filters of a group's members one by one: the group
/// changes as a whole.
#[test]
fn a_reload_changes_groups_as_a_whole() {
    let mut bed = Bed::new();
    let ports = [bed.opened(1, "g"), bed.opened(2, "g"), bed.opened(3, "g")];
    let all: Vec<&Opened> = ports.iter().collect();
    let before = bed.receivers(&all);
    let text = POLICY.replace("take = true", "take = true\nfilter = 'udp port 53'");
    let policy = Policy::parse(&text, &Accounts::default()).unwrap();
    let (reloaded, _) = bed
        .engine
        .reload(policy, &Accounts::default(), || {})
        .unwrap();
    assert_eq!((reloaded.kept, reloaded.ended), (3, 0));
    assert_eq!(bed.fabric.in_use(bed.eth), (3, 1));
    assert_eq!(bed.receivers(&all), before, "each flow stays where it was");
}

/// Processes of one user may have different groups of the system, and so different
/// grants: each gets what its own grant allows.
#[test]
fn a_reload_parts_members_with_different_grants() {
    let mut bed = Bed::new();
    let owner = |connection, gid: u32| Owner {
        who: PeerCred {
            gids: [gid].into(),
            ..user(connection, 1001).who
        },
        ..user(connection, 1001)
    };
    let mut ports = Vec::new();
    for (connection, gid) in [(1, 7), (2, 8), (3, 7)] {
        let opened = bed.open(owner(connection, gid), port("g", "udp"));
        ports.push(opened.unwrap_or_else(|refusal| panic!("{refusal}")));
    }
    assert_eq!(bed.fabric.in_use(bed.eth), (3, 1));
    let rest = POLICY.split_once("users = [\"*\"]").expect("of everyone").1;
    let grant = |gid: u32, filter: &str| {
        format!("[[grant]]\ngroups = [{gid}]\nfilter = '{filter}'{rest}\n")
    };
    let apply = |bed: &mut Bed, filters: [&str; 2]| {
        let text = grant(7, filters[0]) + &grant(8, filters[1]);
        let policy = Policy::parse(&text, &Accounts::default()).unwrap();
        let accounts = Accounts::default();
        let (reloaded, _) = bed.engine.reload(policy, &accounts, || {}).unwrap();
        assert_eq!((reloaded.kept, reloaded.ended), (3, 0));
    };
    apply(&mut bed, ["udp port 53", "udp port 54"]);
    assert_eq!(bed.fabric.in_use(bed.eth), (3, 2));
    let found = bed.receivers(&[&ports[0], &ports[2]]);
    assert_eq!(found.len(), FLOWS as usize, "all of port 53");
    assert_eq!(bed.drain(ports[1].slot), 0, "nothing of port 53");

    // Together again; then only the filter of the group's first member changes.
    apply(&mut bed, ["udp port 54", "udp port 54"]);
    assert_eq!(bed.fabric.in_use(bed.eth), (3, 1));
    apply(&mut bed, ["udp", "udp port 54"]);
    assert_eq!(bed.fabric.in_use(bed.eth), (3, 2));
    let found = bed.receivers(&[&ports[0], &ports[2]]);
    assert_eq!(found.len(), FLOWS as usize, "all of UDP");
    assert_eq!(bed.drain(ports[1].slot), 0, "port 54 alone");
}

#[test]
fn links_without_flows_have_no_fan_out() {
    let mut bed = Bed::new();
    bed.fabric
        .change(bed.eth, |facts| facts.linktype = LinkType::PPP);
    let refused = bed.open(user(1, 1001), port("0/4", "")).unwrap_err();
    let text = refused.to_string();
    assert_eq!(refused.kind, ErrorKind::Request);
    assert!(
        text.contains("`0/4`") && text.contains("eth0") && text.contains("PPP"),
        "{text}"
    );
}
