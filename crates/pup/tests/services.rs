//! Echo, time, names, gateway information, error Pups, EFTP.

mod common;

use common::{CALM, STORM, Sim};
use std::time::Duration;
use weir_pup::datagram::{Port, Pup, kind, socket};
use weir_pup::eftp::{EftpError, Receiver, Sender};
use weir_pup::gateway::Route;
use weir_pup::services::Clock;

/// Sends a Pup from host 0 to a socket of host 1, and returns the answer.
fn ask(sim: &mut Sim, pup_type: u8, to: u32, payload: &[u8]) -> Pup {
    let own = sim.hosts[0].bind();
    let (src, dst) = (sim.hosts[0].port(own), sim.hosts[1].port(to));
    sim.hosts[0].send(Pup::new(pup_type, 42, dst, src, payload));
    let mut answer = None;
    sim.until("the answer", |sim| {
        answer = sim.hosts[0].poll_datagram();
        answer.is_some()
    });
    let answer = answer.unwrap();
    assert_eq!((answer.head.identifier, answer.head.dst), (42, src));
    answer
}

#[test]
fn a_host_serves() {
    let mut sim = Sim::new(1, CALM);
    let clock = Clock { unix: 951_782_400 };
    let ada = Port {
        net: 1,
        host: 8,
        socket: 0,
    };
    sim.hosts[1].set_clock(clock);
    assert!(sim.hosts[1].add_name("Ada", ada));
    let route = Route {
        net: 9,
        gateway_net: 1,
        gateway_host: 4,
        hops: 2,
    };
    let own = Route {
        net: 1,
        gateway_net: 1,
        gateway_host: 3,
        hops: 0,
    };
    sim.hosts[1].set_routes(vec![own, route]);
    let echo = ask(&mut sim, kind::ECHO_ME, socket::ECHO, b"hello");
    assert_eq!(
        (echo.head.pup_type, &*echo.payload),
        (kind::ECHO, &b"hello"[..])
    );
    let services = socket::MISCELLANEOUS;
    let time = ask(&mut sim, kind::STRING_TIME_REQUEST, services, b"");
    assert_eq!(time.payload, b"29-FEB-00 00:00:00");
    let time = ask(&mut sim, kind::ALTO_TIME_REQUEST, services, b"");
    assert_eq!(Clock::of_alto(&time.payload), Some(clock));
    let name = ask(&mut sim, kind::NAME_LOOKUP, services, b"aDA");
    assert_eq!(name.payload, [1, 8, 0, 0, 0, 0]);
    let name = ask(
        &mut sim,
        kind::ADDRESS_LOOKUP,
        services,
        &[1, 8, 0, 0, 0, 0],
    );
    assert_eq!(name.payload, b"ada");
    let name = ask(&mut sim, kind::NAME_LOOKUP, services, b"eve");
    assert_eq!(name.head.pup_type, kind::LOOKUP_ERROR);
    let routes = ask(&mut sim, kind::GATEWAY_REQUEST, socket::GATEWAY, b"");
    assert_eq!(routes.payload, [1, 1, 3, 0, 9, 1, 4, 2]);
    let error = ask(&mut sim, kind::ECHO_ME, 0o4321, b"");
    assert_eq!(error.error_reason().unwrap().1, "no such socket");
}

/// Sends bytes by EFTP; returns both results.
fn transfer(sim: &mut Sim, len: usize, len_max: usize) -> (Result<(), EftpError>, Option<usize>) {
    let bytes: Vec<u8> = (0..len).map(|at| (at / 3) as u8).collect();
    sim.hosts[1].bind_at(socket::EFTP);
    let own = sim.hosts[0].bind();
    let (src, dst) = (sim.hosts[0].port(own), sim.hosts[1].port(socket::EFTP));
    let mut sender = Sender::new(src, dst, bytes.clone());
    let mut receiver = Receiver::new(len_max);
    let mut received = None;
    let mut steps = 0;
    while sender.result().is_none() || received.is_none() {
        let now = sim.now;
        if let Some(pup) = sender.poll_transmit(now) {
            sim.hosts[0].send(pup);
        }
        while let Some(pup) = sim.hosts[0].poll_datagram() {
            sender.handle(&pup);
        }
        while let Some(pup) = sim.hosts[1].poll_datagram() {
            let answer = receiver.handle(now, &pup);
            answer.into_iter().for_each(|pup| sim.hosts[1].send(pup));
        }
        if received.is_none() {
            received = receiver.finish(now);
        }
        if !sim.step() {
            sim.now += Duration::from_millis(100);
        }
        if sender.next_timeout().is_some_and(|due| due <= sim.now) {
            sender.handle_timeout(sim.now);
        }
        steps += 1;
        assert!(steps < 100_000, "it does not end");
    }
    let received = received.unwrap().ok();
    if let Some(received) = &received {
        assert!(*received == bytes, "the bytes differ");
    }
    (
        sender.result().unwrap().clone(),
        received.map(|bytes| bytes.len()),
    )
}

#[test]
fn files_go_one_pup_at_a_time() {
    for len in [0, 1, 532, 533, 20_000] {
        let mut sim = Sim::new(len as u64, STORM);
        assert_eq!(transfer(&mut sim, len, 1 << 20), (Ok(()), Some(len)));
    }
    let mut sim = Sim::new(2, CALM);
    let (sent, received) = transfer(&mut sim, 5000, 1000);
    assert_eq!(received, None);
    assert!(sent.unwrap_err().to_string().contains("too long"));
}
