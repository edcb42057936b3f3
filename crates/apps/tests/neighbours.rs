//! The router and its neighbours: frames that wait for them, and senders that get an error.

mod common;

use common::*;
use std::net::Ipv4Addr;
use weir_apps::router::engine::{Reason, UNRESOLVED_ALL_MAX, Verdict};
use weir_wire::EtherType;
use weir_wire::arp::{self, Operation};
use weir_wire::ethernet::Address;

const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

#[test]
fn a_neighbour_is_asked_for_and_what_waits_is_sent_or_given_up() {
    let mut router = router(&settings());
    let unknown = Ipv4Addr::new(198, 51, 100, 77);
    let mut asks = 0;
    // Half of the limit, if no other neighbour's frames wait.
    const WAITING: usize = UNRESOLVED_ALL_MAX / 2;
    for number in 0..WAITING + 3 {
        let sent = udp_v4(PEER_V4[0], unknown, 64, number % 1000, true);
        let given = give(&mut router, 0, 0, sent);
        assert_eq!(given.verdict, Verdict::Done);
        asks += given.own.len();
    }
    assert_eq!(
        (asks, router.counters().dropped(Reason::NeighbourUnresolved)),
        (1, 3)
    );
    let told = answer(unknown);
    let given = give(&mut router, 1, 1, told.clone());
    assert_eq!(given.own.len(), WAITING);
    for (number, (link, frame)) in given.own.iter().enumerate() {
        assert_eq!((*link, &frame[..6]), (1, &NEIGHBOUR.0[..]));
        assert_eq!(frame.len(), 42 + (number + 3) % 1000, "the oldest are gone");
    }
    // An unsolicited answer is not believed.
    let given = give(&mut router, 1, 1, told);
    assert_eq!(given.verdict, Verdict::Done);
    assert_eq!(router.counters().dropped(Reason::NeighbourRefused), 1);
}

const NEIGHBOUR: Address = Address([2, 9, 9, 9, 9, 9]);

/// A neighbour on the second link answers.
fn answer(ip: Ipv4Addr) -> Vec<u8> {
    let answer = arp::Repr {
        operation: Operation::REPLY,
        sender: NEIGHBOUR,
        sender_ip: ip,
        target: OWN[1],
        target_ip: OWN_V4[1],
    };
    let mut told = frame(EtherType::ARP, &[0; 28]);
    told[..6].copy_from_slice(&OWN[1].0);
    answer.emit(&mut told[14..]);
    told
}

/// However much waits for one that is silent, others' frames wait, too.
#[test]
fn a_silent_neighbour_leaves_room_for_others() {
    let mut router = router(&settings());
    let host = |number| Ipv4Addr::new(198, 51, 100, number);
    let send = |router: &mut _, to, count| {
        for _ in 0..count {
            give(router, 0, 0, udp_v4(PEER_V4[0], host(to), 64, 10, true));
        }
    };
    send(&mut router, 70, 2 * UNRESOLVED_ALL_MAX);
    // And to a hundred more: the newest for each waits in any case.
    let others = 100..200;
    for other in others.clone() {
        send(&mut router, other, 10);
    }
    send(&mut router, 70, 2 * UNRESOLVED_ALL_MAX);
    let mut sent = 0;
    for other in others {
        sent += give(&mut router, 1, 1, answer(host(other))).own.len();
    }
    assert_eq!(sent, 1000, "none of theirs was lost");
    let greedy = give(&mut router, 1, 1, answer(host(70))).own.len();
    assert!(
        (1000..=UNRESOLVED_ALL_MAX / 2).contains(&greedy),
        "{greedy}"
    );
}

/// Those that came first had half of all, a quarter, …, and the twelfth one frame.
#[test]
fn silent_neighbours_come_to_equal_shares() {
    let mut router = router(&settings());
    let hosts = (100..112).map(|number| Ipv4Addr::new(198, 51, 100, number));
    let send = |router: &mut _, to| {
        give(router, 0, 0, udp_v4(PEER_V4[0], to, 64, 10, true));
    };
    for host in hosts.clone() {
        (0..UNRESOLVED_ALL_MAX).for_each(|_| send(&mut router, host));
    }
    // Each as much again, by turns.
    for _ in 0..UNRESOLVED_ALL_MAX {
        hosts.clone().for_each(|host| send(&mut router, host));
    }
    let waited: Vec<usize> = hosts
        .map(|host| give(&mut router, 1, 1, answer(host)).own.len())
        .collect();
    // One share is left for the next neighbour.
    let share = UNRESOLVED_ALL_MAX / (waited.len() + 1);
    let near = |count: &usize| (share * 9 / 10..=share * 11 / 10).contains(count);
    assert!(waited.iter().all(near), "{share}: {waited:?}");
}

/// Queued and fragmented frames go before later ones.
#[test]
fn what_the_router_itself_sends_on_is_not_overtaken() {
    let mut router = router(&settings());
    let unknown = Ipv4Addr::new(198, 51, 100, 77);
    let packet = |len| udp_v4(PEER_V4[0], unknown, 64, len, false);
    let bytes = |own: &[(u16, Vec<u8>)]| -> Vec<usize> {
        own.iter().map(|(_, frame)| frame.len() - 42).collect()
    };
    for len in 1..4 {
        give(&mut router, 0, 0, packet(len));
    }
    // The answer, and others' frames before what waited was taken.
    let (mut verdicts, mut told, mut next) = (Vec::new(), answer(unknown), packet(4));
    router.process(1, 1, &mut [&mut told[..]], &mut verdicts);
    router.process(1, 0, &mut [&mut next[..]], &mut verdicts);
    assert_eq!((verdicts[0], router.cacheable()), (Verdict::Done, 0));
    let own = own(&mut router);
    assert_eq!(bytes(&own), [1, 2, 3, 4]);
    assert!(own[3].1 == next && own[3].1[..6] == NEIGHBOUR.0);
    let after = give(&mut router, 1, 0, packet(5));
    assert!(matches!(after.verdict, Verdict::Forward { link: 1, .. }));
    assert_eq!(router.cacheable(), 1);
    // In pieces, and one behind it in the same batch; and elsewhere none waits.
    let [mut long, mut short] = [packet(1450), packet(6)];
    let mut back = udp_v4(PEER_V4[0], PEER_V4[0], 64, 7, false);
    let mut frames = [&mut long[..], &mut short[..], &mut back[..]];
    router.process(2, 0, &mut frames, &mut verdicts);
    assert_eq!(verdicts[..2], [Verdict::Done; 2]);
    assert!(matches!(verdicts[2], Verdict::Forward { link: 0, .. }));
    let own = common::own(&mut router);
    let onward: Vec<_> = own.into_iter().filter(|(link, _)| *link == 1).collect();
    assert_eq!(bytes(&onward)[2..], [6], "behind two pieces");
}

/// A link that took a part of the queued frames is tried again at once for the rest.
#[test]
fn nothing_is_slept_through_that_waits_to_be_taken() {
    let mut router = router(&settings());
    let unknown = Ipv4Addr::new(198, 51, 100, 77);
    for _ in 0..3 {
        give(&mut router, 0, 0, udp_v4(PEER_V4[0], unknown, 64, 10, true));
    }
    let mut told = answer(unknown);
    router.process(1, 1, &mut [&mut told[..]], &mut Vec::new());
    for _ in 0..3 {
        assert_eq!(router.next_ns(), Some(0));
        assert!(router.next_output().is_some());
    }
    assert_ne!(router.next_ns(), Some(0));
}

#[test]
fn senders_are_told_of_a_silent_neighbour() {
    let mut router = router(&settings());
    let unknown = Ipv4Addr::new(198, 51, 100, 77);
    give(&mut router, 0, 0, udp_v4(PEER_V4[0], unknown, 64, 10, true));
    let mut frames = Vec::new();
    while let Some(due) = router.next_ns() {
        router.poll(due);
        frames.append(&mut own(&mut router));
    }
    let [asks @ .., (0, error)] = &frames[..] else {
        panic!("{frames:?}")
    };
    assert_eq!(asks.len(), 2, "and one before");
    assert_eq!((icmp_of(error).0, icmp_of(error).1), (3, 1));
    assert_eq!(router.neighbours(), settings().neighbours.len());
}

/// Its address is one of a link alone.
#[test]
fn a_sender_of_the_same_link_gets_its_error_there() {
    let sender = v6("fe80::9");
    let mut settings = settings();
    settings.neighbours.push((1, sender.into(), PEER[1]));
    settings.redirects = false;
    let mut router = router(&settings);
    let mut sent = udp_v6(sender, v6("2001:db8:2::77"), 9, 10);
    sent[..6].copy_from_slice(&OWN[1].0);
    assert_eq!(give(&mut router, 0, 1, sent).verdict, Verdict::Done);
    // Something else, on the other link.
    give(&mut router, 0, 0, udp_v4(PEER_V4[0], FAR, 64, 10, true));
    let mut frames = Vec::new();
    while let Some(due) = router.next_ns() {
        router.poll(due);
        frames.append(&mut own(&mut router));
    }
    let (link, error) = frames.last().unwrap();
    assert_eq!((*link, icmp_of(error).0, icmp_of(error).1), (1, 1, 3));
}
