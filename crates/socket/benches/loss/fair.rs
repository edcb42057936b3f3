//! Two streams that share a bottleneck: how they divide its rate.

use crate::world::{choose_algorithm, end_linux, ip, weir_host};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use weir_lab::delay::{Bottleneck, DelayLine};
use weir_lab::net::Lab;
use weir_link::net::Tap;

const FAR: &str = "192.0.2.2";
const NEAR: [&str; 2] = ["192.0.2.1", "192.0.2.3"];
const PORTS: [u16; 2] = [5001, 5002];
const BLOCK: usize = 64 << 10;

/// A sender: one of ours or Linux', and its congestion control.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) is_weir: bool,
    pub(crate) algorithm: &'static str,
}

impl Sender {
    pub(crate) fn name(self) -> String {
        let host = if self.is_weir { "weir" } else { "Linux" };
        format!("{host} {}", self.algorithm)
    }
}

/// Jain's index of two rates: from 0.5, where one has all, to 1.
pub(crate) fn jain(rates: [f64; 2]) -> f64 {
    let sum = rates[0] + rates[1];
    sum * sum / (2.0 * (rates[0] * rates[0] + rates[1] * rates[1]))
}

/// Writes until it is stopped, or a write fails.
fn fill(mut to: impl Write, is_over: &AtomicBool) {
    let block = vec![1; BLOCK];
    while !is_over.load(Ordering::Relaxed) && to.write_all(&block).is_ok() {}
}

/// The rates of two streams in Mb/s that begin at the same time; of the two
/// times the first is not counted.
pub(crate) fn share(
    senders: [Sender; 2],
    delay: Duration,
    bottleneck: Bottleneck,
    times: [Duration; 2],
) -> [f64; 2] {
    let lab = Lab::new();
    let host = |name: &str| lab.host(name).expect("a namespace");
    let far = host("far");
    let far_tap = far.run(|| Tap::open("tap0")).expect("a TAP interface");
    let device = far.device("tap0").expect("it was just made");
    device.up().expect("it goes up");
    device.add_address(ip(FAR), 24).expect("it takes one");
    let (mut nets, mut hosts, mut fds) = (Vec::new(), Vec::new(), Vec::new());
    for (index, sender) in senders.iter().enumerate() {
        if sender.is_weir {
            let (net, fd) = weir_host(NEAR[index], sender.algorithm);
            nets.push((index, net));
            fds.push(fd);
        } else {
            let near = host(["near0", "near1"][index]);
            let tap = near.run(|| Tap::open("tap0")).expect("a TAP interface");
            let device = near.device("tap0").expect("it was just made");
            device.up().expect("it goes up");
            let address = ip(NEAR[index]);
            device.add_address(address, 24).expect("it takes one");
            fds.push(tap.as_fd().try_clone_to_owned().expect("a descriptor"));
            hosts.push((index, near, tap));
        }
    }
    let far_fd = far_tap.as_fd().try_clone_to_owned().expect("a descriptor");
    let line = DelayLine::shared(fds, far_fd, delay, Some(bottleneck)).expect("a thread");
    let ends = PORTS.map(|port| SocketAddr::new(ip(FAR), port));
    let listeners = ends.map(|at| far.run(|| TcpListener::bind(at)).expect("a free port"));
    let (is_over, bytes) = (
        AtomicBool::new(false),
        [AtomicU64::new(0), AtomicU64::new(0)],
    );
    let rates = thread::scope(|scope| {
        let mut linux_streams = Vec::new();
        for (index, near, _) in &hosts {
            let stream = near.run(|| TcpStream::connect(ends[*index]));
            let stream = stream.expect("nothing is lost yet");
            choose_algorithm(&stream, senders[*index].algorithm);
            linux_streams.push(stream.try_clone().expect("a descriptor"));
            let is_over = &is_over;
            scope.spawn(move || fill(stream, is_over));
        }
        let mut weir_streams = Vec::new();
        for (index, net) in &nets {
            let stream = weir_socket::TcpStream::connect(net, ends[*index]);
            let stream = stream.expect("nothing is lost yet");
            let stream = Arc::new(stream);
            weir_streams.push(Arc::clone(&stream));
            let is_over = &is_over;
            scope.spawn(move || fill(&*stream, is_over));
        }
        for (listener, bytes) in listeners.iter().zip(&bytes) {
            let (mut reader, _) = listener.accept().expect("it has connected");
            linux_streams.push(reader.try_clone().expect("a descriptor"));
            scope.spawn(move || {
                let mut block = vec![0; BLOCK];
                while let Ok(count @ 1..) = reader.read(&mut block) {
                    bytes.fetch_add(count as u64, Ordering::Relaxed);
                }
            });
        }
        let now = || [0, 1].map(|index: usize| bytes[index].load(Ordering::Relaxed));
        thread::sleep(times[0]);
        let before = now();
        thread::sleep(times[1]);
        let after = now();
        is_over.store(true, Ordering::Relaxed);
        for stream in &weir_streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        end_linux(&linux_streams.iter().collect::<Vec<_>>());
        [0, 1].map(|index| {
            let bytes = (after[index] - before[index]) as f64;
            bytes * 8.0 / times[1].as_micros() as f64
        })
    });
    drop(line);
    rates
}
