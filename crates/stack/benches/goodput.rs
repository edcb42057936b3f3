//! How fast bytes go between two hosts in memory, on one core, in frames of
//! 1,500 bytes: our stack, smoltcp and lwIP, each against itself, in turn.
//!
//! ```sh
//! cargo bench -p weir-stack --bench goodput
//! ```
//!
//! Both write, checksum, carry, check and read the same bytes over the same
//! queues; the best of several rounds counts, so the ratio is good even where
//! the times are not.

mod common;

use common::lwip::Lwip;
use common::{BUFFER, Ends, Other, Out, Wire};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as OtherInstant;
use std::time::Instant;
use weir_lab::results::{Bar, Unit, recorder};
use weir_stack::{Config, Stack};
use weir_wire::ethernet::Address;

/// Bytes of one round: enough that its start does not count.
const BYTES: usize = 512 << 20;
const ROUNDS: usize = 8;
/// Bytes that are written or read at a time.
const PIECE: usize = 64 << 10;

/// Seconds that our stack takes.
fn ours() -> f64 {
    let hosts = ["192.0.2.1/24", "192.0.2.2/24"];
    let mut stacks: Vec<Stack> = hosts
        .iter()
        .zip(1..)
        .map(|(address, number)| {
            let config =
                Config::new(Address([2, 0, 0, 0, 0, number])).address(address.parse().unwrap());
            let mut stack = Stack::new(&config, number.into()).unwrap();
            let tcp = weir_stack::tcp::TcpConfig {
                receive_buffer: BUFFER,
                send_buffer: BUFFER,
                ..Default::default()
            };
            stack.tcp_configure(tcp);
            stack
        })
        .collect();
    let mut wires = [Wire::default(), Wire::default()];
    let server = "192.0.2.2:80".parse().unwrap();
    let listener = stacks[1].tcp_listen(server, 1).unwrap();
    let client = stacks[0].tcp_connect(0, None, server).unwrap();
    let (mut accepted, mut written, mut read) = (None, 0, 0);
    let (bytes, mut buffer) = (vec![7; PIECE], vec![0; PIECE]);
    let start = Instant::now();
    while read < BYTES {
        let now_ns = start.elapsed().as_nanos() as u64;
        while written < BYTES {
            match stacks[0].tcp_write(client, &bytes[..PIECE.min(BYTES - written)]) {
                Ok(count) => written += count,
                Err(_) => break,
            }
        }
        for end in 0..2 {
            while let Some(frame) = wires[1 - end].frames.pop_front() {
                stacks[end].receive(now_ns, &frame);
                wires[1 - end].spare.push(frame);
            }
            if end == 1 {
                accepted = accepted.or_else(|| stacks[1].tcp_accept(now_ns, listener).ok());
                while let Some(count) =
                    accepted.and_then(|id| stacks[1].tcp_read(id, &mut buffer).ok())
                {
                    read += count;
                }
            }
            let wire = &mut wires[end];
            let frame = Vec::new();
            stacks[end].poll(now_ns, &mut Out { wire, frame });
        }
    }
    start.elapsed().as_secs_f64()
}

/// Seconds that smoltcp takes.
fn smoltcp() -> f64 {
    let [mut there, mut back] = [Wire::default(), Wire::default()];
    let mut client = Other::new(
        1,
        &mut Ends {
            from: &mut back,
            to: &mut there,
        },
    );
    let mut server = Other::new(
        2,
        &mut Ends {
            from: &mut there,
            to: &mut back,
        },
    );
    server.tcp().listen(80).unwrap();
    let context = client.interface.context();
    let socket = client.sockets.get_mut::<tcp::Socket<'_>>(client.socket);
    let remote: std::net::SocketAddr = "192.0.2.2:80".parse().unwrap();
    socket.connect(context, remote, 50_000).unwrap();
    let (mut written, mut read) = (0, 0);
    let (bytes, mut buffer) = (vec![7; PIECE], vec![0; PIECE]);
    let start = Instant::now();
    while read < BYTES {
        let now = OtherInstant::from_micros(start.elapsed().as_micros() as i64);
        while written < BYTES && client.tcp().can_send() {
            written += client
                .tcp()
                .send_slice(&bytes[..PIECE.min(BYTES - written)])
                .unwrap();
        }
        let mut ends = Ends {
            from: &mut back,
            to: &mut there,
        };
        client.interface.poll(now, &mut ends, &mut client.sockets);
        let mut ends = Ends {
            from: &mut there,
            to: &mut back,
        };
        server.interface.poll(now, &mut ends, &mut server.sockets);
        while server.tcp().can_recv() {
            read += server.tcp().recv_slice(&mut buffer).unwrap();
        }
    }
    start.elapsed().as_secs_f64()
}

fn main() {
    let results = recorder!();
    let best = |run: fn() -> f64, best: f64| best.min(run());
    let (mut us, mut other, mut third) = (f64::MAX, f64::MAX, f64::MAX);
    let alone = std::env::args().any(|argument| argument == "weir");
    let mut lwip = if alone {
        Err("not asked for".to_owned())
    } else {
        Lwip::start()
    };
    for _ in 0..ROUNDS {
        us = best(ours, us);
        if alone {
            continue;
        }
        other = best(smoltcp, other);
        if let Ok(lwip) = &mut lwip {
            third = third.min(lwip.run("bytes", BYTES));
        }
    }
    let rate = |seconds: f64| BYTES as f64 * 8.0 / 1e9 / seconds;
    println!("weir    {:6.2} Gb/s", rate(us));
    println!("smoltcp {:6.2} Gb/s", rate(other));
    println!("ratio   {:6.2}", other / us);
    match lwip {
        Ok(_) => println!("lwIP    {:6.2} Gb/s, ratio {:.2}", rate(third), third / us),
        Err(why) => println!("lwIP is skipped: {why}"),
    }
    results.record(
        "goodput: weir",
        rate(us),
        Unit::GigabitsPerSecond,
        Bar::None,
    );
    if !alone {
        let (ratio, bar) = (other / us, Bar::AtLeast(2.0));
        results.record(
            "goodput: weir : smoltcp",
            ratio,
            Unit::RateOf("smoltcp"),
            bar,
        );
    }
    if third < f64::MAX {
        let ratio = third / us;
        results.record(
            "goodput: weir : lwIP",
            ratio,
            Unit::RateOf("lwIP"),
            Bar::None,
        );
    }
}
