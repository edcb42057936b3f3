//! `[[scheduler]]` of a translator's outside link: the rate holds, a sparse flow waits little, and the kernel
//! serves the way back alone.

use super::{INSIDE, Net, OUTSIDE, POOL, metric};
use crate::common::weir;
use crate::live::{Running, WAIT_MAX};
use serde_json::Value;
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use weir_lab::wait;

/// Bits per second of the outside link.
const RATE: f64 = 20e6;

/// Bytes of a frame beside its payload.
const HEADERS: usize = 42;

const GREEDY: usize = 1_400;
const SPARSE: usize = 100;

/// Port of the receiver.
const PORT: u16 = 7_005;

/// Time for which the flows send, and the part of it in which the rate is measured: the queue is full.
const TIME: Duration = Duration::from_secs(4);
const MEASURED: std::ops::Range<Duration> =
    Duration::from_millis(1_000)..Duration::from_millis(3_500);

/// How often rate and delays are measured, at most: a busy machine stops a process for longer than a burst lasts.
const ROUNDS: usize = 3;

const BOX: &str = "outside = \"eth1\"\n[kernel]\nroutes = true\n\
     [[link]]\nname = \"eth0\"\n[[link]]\nname = \"eth1\"\n\
     [[stage]]\nkind = \"nat\"\npool = [\"198.51.100.2\"]\n\
     [[scheduler]]\nlink = \"eth1\"\nrate = \"20M\"\n";

/// The received datagrams of two flows: the time since each was sent.
#[derive(Default)]
struct Got {
    greedy: Vec<Duration>,
    sparse: Vec<Duration>,
    /// Bits on the link in [`MEASURED`].
    bits: f64,
}

/// A payload: its number, and its time.
fn payload(number: u64, began: Instant, len: usize) -> Vec<u8> {
    let mut payload = vec![0; len];
    payload[..8].copy_from_slice(&number.to_be_bytes());
    let time = began.elapsed().as_nanos() as u64;
    payload[8..16].copy_from_slice(&time.to_be_bytes());
    payload
}

/// Sends one and a half times the rate, and each 20 ms a datagram of another flow; `sent` of each flow
/// went before.
fn send([greedy, sparse]: [&UdpSocket; 2], began: Instant, sent: &mut [u64; 2]) {
    let before = *sent;
    let each = Duration::from_secs_f64((GREEDY + HEADERS) as f64 * 8.0 / (1.5 * RATE));
    while began.elapsed() < TIME {
        let flows = [
            (greedy, GREEDY, each),
            (sparse, SPARSE, Duration::from_millis(20)),
        ];
        for (((socket, len, each), sent), before) in flows.into_iter().zip(&mut *sent).zip(before) {
            while each * ((*sent - before) as u32) < began.elapsed() {
                let payload = payload(*sent, began, len);
                // What the socket has no room for is sent later.
                if socket.send_to(&payload, (OUTSIDE, PORT)).is_err() {
                    break;
                }
                *sent += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Receives until nothing comes any more. Each flow is in order, from the number `next` on.
fn receive(socket: &UdpSocket, began: Instant, mut next: [u64; 2]) -> Got {
    let mut got = Got::default();
    let mut buffer = [0; 2_048];
    let brief = Some(Duration::from_secs(1));
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    while let Ok((len, from)) = socket.recv_from(&mut buffer) {
        let now = began.elapsed();
        assert_eq!(from.ip().to_string(), POOL, "translated");
        let [number, time] =
            [0, 8].map(|at| u64::from_be_bytes(buffer[at..at + 8].try_into().unwrap()));
        let is_sparse = len == SPARSE;
        let next = &mut next[usize::from(is_sparse)];
        assert!(number >= *next, "{number} comes behind {next}");
        *next = number + 1;
        let delay = now.saturating_sub(Duration::from_nanos(time));
        if is_sparse {
            got.sparse.push(delay);
        } else {
            got.greedy.push(delay);
        }
        if MEASURED.contains(&now) {
            got.bits += ((len + HEADERS) * 8) as f64;
        }
        socket.set_read_timeout(brief).unwrap();
    }
    got
}

/// The delay that this part of the datagrams does not exceed.
fn at(share: f64, delays: &mut [Duration]) -> Duration {
    delays.sort_unstable();
    delays[((delays.len() - 1) as f64 * share) as usize]
}

#[test]
fn a_translators_uplink_keeps_its_rate_and_a_sparse_flow_waits_little() {
    let Some(net) = Net::new("nat-shaped") else {
        return;
    };
    net.take_redirected();
    let (file, json) = (net.folder.path("box.toml"), net.folder.path("stats.json"));
    std::fs::write(&file, BOX).unwrap();
    let checked = Running::start(&net.r, weir([]), &["run", &file, "--check"]).end();
    let good = format!("{file}: good\neth1 sends 20000000 b/s at most, by classes: 0\n");
    assert_eq!((checked.code, checked.stdout), (Some(0), good));
    let arguments = [
        "run",
        &file,
        "--hang-ms",
        "10000",
        "--metrics",
        "127.0.0.1:0",
        "--stats-json",
        &json,
    ];
    let running = Running::start(&net.r, weir([]), &arguments).until("schedulers: eth1");
    let running = running.until("ready");
    assert_eq!(net.pings(OUTSIDE), 3);
    let receiver = net.b.run(|| UdpSocket::bind((OUTSIDE, PORT)).unwrap());
    // So much that a receiver that is late loses nothing.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&receiver, 64 << 20).unwrap();
    let client = |port| net.a.run(|| UdpSocket::bind((INSIDE, port)).unwrap());
    let [greedy, sparse] = [4_100, 4_101].map(client);
    let mut sent = [0, 0];
    let mut is_good = false;
    for _ in 0..ROUNDS {
        let (began, next) = (Instant::now(), sent);
        let mut got = std::thread::scope(|scope| {
            let receiving = scope.spawn(|| receive(&receiver, began, next));
            send([&greedy, &sparse], began, &mut sent);
            receiving.join().unwrap()
        });
        let time = MEASURED.end - MEASURED.start;
        let ratio = got.bits / time.as_secs_f64() / RATE;
        let [first, last] = [at(0.5, &mut got.sparse), at(0.9, &mut got.sparse)];
        let greedy = at(0.5, &mut got.greedy);
        println!("of the rate: {ratio:.3}; sparse {first:?}, {last:?}; greedy {greedy:?}");
        is_good = (0.97..1.03).contains(&ratio) && first < greedy / 10 && last < greedy / 4;
        if is_good {
            break;
        }
    }
    assert!(is_good, "no round of {ROUNDS} was good");
    let class = "weir_run_class_frames_total{link=\"eth1\",class=\"0\"} ";
    running.until_metrics(&net.r, &[class, "weir_run_stale_total{link=\"eth1\"} 0\n"]);
    downward(&net, &receiver, &sparse, &running);
    running.stop();
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let queues = &report["links"][1]["queues"];
    let number = |value: &Value| value.as_u64().unwrap();
    let [left, dropped] = ["frames", "dropped"].map(|key| number(&queues["classes"][0][key]));
    assert!(dropped > 0, "{report}");
    // Each datagram has come to the queue: none has an entry in the kernel.
    let seen = left + dropped + number(&queues["flushed"]);
    let sent: u64 = sent.iter().sum();
    assert!(seen >= sent, "{seen} of {sent}: {report}");
    assert_eq!(number(&report["links"][1]["tx_frames"]), left, "{report}");
}

/// The way back leaves by a link without a scheduler: the kernel serves it, in order.
fn downward(net: &Net, server: &UdpSocket, client: &UdpSocket, running: &Running) {
    client.send_to(&[0; SPARSE], (OUTSIDE, PORT)).unwrap();
    server.set_read_timeout(Some(WAIT_MAX)).unwrap();
    client.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut buffer = [0; 2_048];
    let (_, to) = server.recv_from(&mut buffer).unwrap();
    let mut number = 0_u32;
    wait::until("frames by the kernel", || {
        let sent = number..number + 50;
        for number in sent.clone() {
            server.send_to(&number.to_be_bytes(), to).unwrap();
        }
        for expected in sent {
            client.recv_from(&mut buffer).unwrap();
            let came = u32::from_be_bytes(buffer[..4].try_into().unwrap());
            assert_eq!(came, expected, "in order");
        }
        number += 50;
        let metrics = running.metrics(&net.r);
        metric(&metrics, "weir_run_fast_frames_total") > Some(100)
    });
}
