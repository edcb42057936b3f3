//! Transactions in a simulated network.

mod common;

use common::{STORM, Sim, Weather, exactly_once, group, pattern, server_entity};
use proptest::prelude::*;
use std::time::Duration;
use weir_vmtp::packet::code;
use weir_vmtp::{Entity, Event, Failure, Request};

const CALM: Weather = Weather {
    loss: 0,
    twice: 0,
    delay_us: 10,
};

fn request(len: u32) -> Request {
    Request {
        user_data: [len, 77, 0],
        ..Request::new(server_entity(0), 5)
    }
}

/// The whole test is `examples/exactly_once.rs`, with a million transactions.
#[test]
fn each_transaction_is_executed_exactly_once() {
    for seed in [1, 1987, 0xfeed] {
        let outcome = exactly_once(seed, 3000, STORM);
        assert_eq!(outcome.failed, 0, "seed {seed}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn exactly_once_in_any_weather(
        seed: u64, loss in 0_u64..200, twice in 0_u64..500, delay_us in 1_u64..50_000
    ) {
        exactly_once(seed, 150, Weather { loss, twice, delay_us });
    }
}

#[test]
fn segments_of_all_lengths_go_both_ways() {
    let mut sim = Sim::new(1, 1, 1, CALM);
    for len in [0, 1, 511, 512, 513, 1024, 1025, 16_383, 16_384] {
        let segment = pattern(len, 3);
        let sum = segment.iter().map(|byte| u32::from(*byte)).sum();
        let ask = Request {
            segment,
            ..request(len as u32)
        };
        let transaction = sim.call(0, ask);
        let [Event::Response(response)] = &sim.finish(0)[..] else {
            panic!("{len}: no response");
        };
        assert_eq!(response.user_data, [77, sum, transaction]);
        assert_eq!(response.segment, pattern(len, 77));
    }
    let drops = sim.servers[0].drops();
    assert_eq!((drops.malformed, drops.not_ours), (0, 0));
}

#[test]
fn a_server_that_takes_long_is_waited_for() {
    let mut sim = Sim::new(2, 1, 1, CALM);
    sim.work_us = 20_000_000;
    for _ in 0..3 {
        sim.call(0, request(10));
        let events = sim.finish(0);
        assert!(matches!(events[..], [Event::Response(_)]), "{events:?}");
    }
    assert!(sim.executed.values().all(|times| *times == 1));
}

#[test]
fn an_idempotent_request_may_be_executed_again() {
    let mut sim = Sim::new(3, 1, 1, STORM);
    sim.idempotent = true;
    for number in 0..300 {
        sim.call(0, request(if number % 5 == 0 { 8000 } else { 0 }));
        let events = sim.finish(0);
        assert!(matches!(events[..], [Event::Response(_)]), "{events:?}");
    }
    assert!(sim.executed.values().any(|times| *times > 1));
}

#[test]
fn a_group_answers_and_each_member_executes_once() {
    let mut sim = Sim::new(4, 5, 1, STORM);
    for _ in 0..50 {
        let ask = Request {
            server: group(),
            collect: Some(Duration::from_secs(3)),
            ..request(2000)
        };
        sim.call(0, ask);
        let events = sim.finish(0);
        let mut servers: Vec<Entity> = Vec::new();
        for event in &events {
            if let Event::Response(response) = event {
                assert_eq!(response.segment, pattern(2000, 77));
                servers.push(response.server);
            }
        }
        servers.sort_unstable();
        let expected: Vec<Entity> = (0..5).map(server_entity).collect();
        assert_eq!(servers, expected);
        assert_eq!(events.last(), Some(&Event::Collected));
    }
    assert!(sim.executed.values().all(|times| *times == 1));
}

#[test]
fn the_first_of_a_group_answers_if_one_is_enough() {
    let mut sim = Sim::new(5, 3, 1, CALM);
    let ask = Request {
        server: group(),
        ..request(100)
    };
    sim.call(0, ask);
    let events = sim.finish(0);
    let [Event::Response(response)] = &events[..] else {
        panic!("{events:?}");
    };
    assert!(
        (0..3)
            .map(server_entity)
            .any(|server| server == response.server)
    );
}

#[test]
fn probes_are_answered_by_managers() {
    let mut sim = Sim::new(6, 3, 1, CALM);
    sim.call(0, Request::probe(server_entity(1)));
    let events = sim.finish(0);
    assert!(matches!(&events[..], [Event::Response(one)] if one.server == server_entity(1)));
    let all = Request {
        collect: Some(Duration::from_secs(1)),
        ..Request::probe(Entity::MANAGERS)
    };
    sim.call(0, all);
    let events = sim.finish(0);
    assert_eq!(events.len(), 4, "{events:?}");
    assert!(sim.executed.is_empty());
}

#[test]
fn an_absent_server_and_an_unknown_entity_are_told_apart() {
    let mut sim = Sim::new(7, 1, 1, CALM);
    let absent = Entity::process(1, [10, 9, 9, 9].into());
    sim.call(0, Request::new(absent, 5));
    assert_eq!(sim.finish(0), [Event::Failed(Failure::NoAnswer(absent))]);
    assert!(sim.now > Duration::from_secs(1) && sim.now < Duration::from_secs(10));
    let unknown = Entity::process(1, server_entity(0).host());
    sim.call(0, Request::new(unknown, 5));
    let code = code::NONEXISTENT_ENTITY;
    let refused = Failure::Refused {
        server: unknown,
        code,
    };
    assert_eq!(sim.finish(0), [Event::Failed(refused)]);
    assert_eq!(
        refused.to_string(),
        "1@10.0.1.0 refuses: NONEXISTENT_ENTITY"
    );
}
