//! Byte streams in a simulated network.

mod common;

use common::{CALM, STORM, Sim, Weather};
use proptest::prelude::*;
use std::time::Duration;
use weir_pup::bsp::{DALLY, Ended, Read};
use weir_pup::datagram::{Port, socket};

/// Opens a connection from host 0 to host 1; returns both ends.
fn connect(sim: &mut Sim) -> (u32, u32) {
    sim.hosts[1].listen(socket::FTP);
    let remote = sim.hosts[1].port(socket::FTP);
    let now = sim.now;
    let here = sim.hosts[0].open(now, remote).unwrap();
    let mut there = None;
    sim.until("opening", |sim| {
        there = there.or_else(|| sim.hosts[1].poll_accepted());
        there.is_some() && sim.hosts[0].connection(here).unwrap().is_open()
    });
    (here, there.unwrap().connection)
}

/// What an application writes: bytes and marks.
fn script(sim: &mut Sim, len: u64) -> Vec<Result<u8, u8>> {
    let item = |number: u64| match number % 400 {
        0 => Err((number >> 16) as u8),
        _ => Ok((number >> 8) as u8),
    };
    (0..len).map(|_| item(sim.below(u64::MAX))).collect()
}

/// Writes the items from `at` on that fit; returns where to go on.
fn write(
    sim: &mut Sim,
    host: usize,
    number: u32,
    items: &[Result<u8, u8>],
    mut at: usize,
) -> usize {
    let connection = sim.hosts[host].connection(number).unwrap();
    while at < items.len() {
        let taken = match items[at] {
            Err(mark) => usize::from(connection.write_mark(mark)),
            Ok(_) => {
                let run = items[at..].iter().map_while(|item| item.ok());
                connection.write(&run.collect::<Vec<u8>>())
            }
        };
        if taken == 0 {
            break;
        }
        at += taken;
    }
    at
}

fn read(
    sim: &mut Sim,
    host: usize,
    number: u32,
    buffer_len: usize,
    out: &mut Vec<Result<u8, u8>>,
) -> bool {
    let connection = sim.hosts[host].connection(number).unwrap();
    let mut buffer = vec![0; buffer_len];
    loop {
        match connection.read(&mut buffer) {
            Read::Data(count) => out.extend(buffer[..count].iter().map(|byte| Ok(*byte))),
            Read::Mark(mark) => out.push(Err(mark)),
            Read::Nothing => return false,
            Read::End => return true,
        }
    }
}

/// Sends bytes and marks both ways at once, then ends.
fn exchange(seed: u64, weather: Weather, len: u64) -> u64 {
    let mut sim = Sim::new(seed, weather);
    let (here, there) = connect(&mut sim);
    let scripts = [script(&mut sim, len), script(&mut sim, len / 2)];
    let numbers = [here, there];
    let mut written = [0; 2];
    let mut got = [Vec::new(), Vec::new()];
    sim.until("data", |sim| {
        for host in 0..2 {
            written[host] = write(sim, host, numbers[host], &scripts[host], written[host]);
            read(sim, host, numbers[host], 1000, &mut got[1 - host]);
        }
        got.iter()
            .zip(&scripts)
            .all(|(got, script)| got.len() >= script.len())
    });
    assert!(got == scripts, "seed {seed}: the streams differ");
    let sent = sim.sent;
    sim.hosts[0].connection(here).unwrap().close();
    sim.until("the end", |sim| {
        let one = sim.hosts[0].connection(here).unwrap().ended();
        one == Some(Ended::Closed) && read(sim, 1, there, 10, &mut Vec::new())
    });
    let end = sim.now + DALLY * 20;
    while sim.now < end && sim.step() {}
    for host in &mut sim.hosts {
        host.forget_finished(|_| false);
        assert!(host.connection(here).is_none() && host.connection(there).is_none());
    }
    sent
}

#[test]
fn bytes_and_marks_arrive_once_and_in_order() {
    for seed in [1, 1987] {
        exchange(seed, STORM, 60_000);
    }
}

#[test]
fn without_loss_little_more_is_sent_than_needed() {
    let sent = exchange(3, CALM, 200_000);
    // 300,000 bytes, in pieces between marks of 400 bytes on average, and
    // acknowledgments.
    assert!(sent < 3500, "{sent} Pups");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn streams_survive_any_weather(
        seed: u64, loss in 0_u64..200, twice in 0_u64..300, delay_us in 1_u64..20_000
    ) {
        exchange(seed, Weather { loss, twice, delay_us }, 5000);
    }
}

#[test]
fn a_reader_that_stops_stops_the_writer() {
    let mut sim = Sim::new(4, CALM);
    let (here, there) = connect(&mut sim);
    let mut written = 0;
    let end = sim.now + Duration::from_secs(20);
    while sim.now < end && sim.step() {
        written += sim.hosts[0].connection(here).unwrap().write(&[7; 10_000]);
    }
    // The sender's buffer and the receiver's window.
    assert!((300_000..330_000).contains(&written), "{written}");
    let mut got = Vec::new();
    sim.until("the rest", |sim| {
        read(sim, 1, there, 4000, &mut got);
        got.len() == written
    });
}

/// As when its machine is busy, or its disk.
#[test]
fn a_peer_that_is_silent_for_a_while_is_waited_for() {
    let mut sim = Sim::new(9, CALM);
    let (here, there) = connect(&mut sim);
    let mut got = Vec::new();
    for silence in [0, 4, 25] {
        let whole = got.len() + 50_000;
        let written = sim.hosts[0].connection(here).unwrap().write(&[7; 50_000]);
        assert_eq!(written, 50_000, "after {silence} s");
        sim.weather.loss = 1000;
        let end = sim.now + Duration::from_secs(silence);
        while sim.now < end && sim.step() {}
        sim.weather.loss = 0;
        sim.until("the rest", |sim| {
            read(sim, 1, there, 4000, &mut got);
            got.len() == whole
        });
    }
    // One that says nothing any more is given up.
    sim.weather.loss = 1000;
    sim.hosts[0].connection(here).unwrap().write(b"more");
    let now = sim.now;
    sim.until("the end", |sim| {
        let connection = sim.hosts[0].connection(here).unwrap();
        connection.ended() == Some(Ended::NoAnswer)
    });
    let took = sim.now - now;
    assert!((30..60).contains(&took.as_secs()), "{took:?}");
}

#[test]
fn interrupts_pass_the_stream() {
    let mut sim = Sim::new(5, STORM);
    let (here, there) = connect(&mut sim);
    let connection = sim.hosts[0].connection(here).unwrap();
    assert!(connection.interrupt(1, "first") && connection.interrupt(2, "second"));
    let mut got = Vec::new();
    sim.until("interrupts", |sim| {
        got.extend(sim.hosts[1].connection(there).unwrap().poll_interrupt());
        got.len() == 2
    });
    assert_eq!(got, [(1, "first".to_owned()), (2, "second".to_owned())]);
}

#[test]
fn an_abort_tells_why() {
    let mut sim = Sim::new(6, CALM);
    let (here, there) = connect(&mut sim);
    sim.hosts[1].connection(there).unwrap().abort(7, "no more");
    sim.until("the abort", |sim| {
        sim.hosts[0].connection(here).unwrap().ended().is_some()
    });
    let ended = sim.hosts[0].connection(here).unwrap().ended().unwrap();
    assert_eq!(
        ended.to_string(),
        "the peer aborted the connection: no more (code 7)"
    );
}

/// A peer that acknowledges for ever, and never replies to the end.
#[test]
fn an_end_without_a_reply_ends_the_connection() {
    use weir_pup::bsp::Connection;
    use weir_pup::datagram::{Pup, kind};
    let port = |host, socket| Port {
        net: 1,
        host,
        socket,
    };
    let (own, peer) = (port(2, 77), port(3, 9));
    let request = [&[1, 3][..], &peer.socket.to_be_bytes()].concat();
    let request = Pup::new(kind::RFC, 500, port(2, 3), peer, &request);
    let mut now = Duration::ZERO;
    let mut connection = Connection::accept(now, own, &request).unwrap();
    connection.close();
    while connection.ended().is_none() {
        while connection.poll_transmit(now).is_some() {}
        let acknowledgment = [2, 20, 0, 10, 0xff, 0xff];
        let acknowledgment = Pup::new(kind::ACK, 500, own, peer, &acknowledgment);
        connection.handle(now, &acknowledgment);
        now = connection.next_timeout().unwrap();
        connection.handle_timeout(now);
        assert!(now < Duration::from_secs(120), "it waits for ever");
    }
    assert_eq!(connection.ended(), Some(Ended::Closed));
}

#[test]
fn an_absent_host_differs_from_a_refusal() {
    let mut sim = Sim::new(7, CALM);
    // A host without that socket answers.
    let remote = sim.hosts[1].port(0o777);
    let here = sim.hosts[0].open(Duration::ZERO, remote).unwrap();
    sim.until("the refusal", |sim| {
        sim.hosts[0].connection(here).unwrap().ended().is_some()
    });
    let ended = sim.hosts[0].connection(here).unwrap().ended().unwrap();
    assert_eq!(ended.to_string(), "no such socket (error 2)");
    // A host that is not there does not.
    let absent = Port { host: 99, ..remote };
    let now = sim.now;
    let here = sim.hosts[0].open(now, absent).unwrap();
    sim.until("patience", |sim| {
        sim.hosts[0].connection(here).unwrap().ended().is_some()
    });
    assert_eq!(
        sim.hosts[0].connection(here).unwrap().ended(),
        Some(Ended::NoAnswer)
    );
    assert!(sim.now < now + Duration::from_secs(60));
}

#[test]
fn both_sides_may_end_at_once() {
    let mut sim = Sim::new(8, STORM);
    let (here, there) = connect(&mut sim);
    sim.hosts[0].connection(here).unwrap().close();
    sim.hosts[1].connection(there).unwrap().close();
    sim.until("the end", |sim| {
        let one = sim.hosts[0].connection(here).unwrap().ended();
        let other = sim.hosts[1].connection(there).unwrap().ended();
        one == Some(Ended::Closed) && other == Some(Ended::Closed)
    });
}
