//! Two hosts and a link, and a daemon in one of them.

use std::net::UdpSocket;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_broker::daemon::Daemon;
use weir_broker::engine::kernel::KernelBackend;
use weir_broker::policy::{Accounts, Policy};
use weir_broker::protocol::Listener;
use weir_broker::{Port, Timeout};
use weir_lab::net::Pair;
use weir_lab::testenv;

/// Two hosts and a link.
pub(crate) struct Net(Pair);

pub(crate) fn net() -> Option<Net> {
    testenv::root().then(|| Net(Pair::new().unwrap()))
}

impl Deref for Net {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.0
    }
}

impl Net {
    /// Sends datagrams from a to b's port.
    pub(crate) fn send(&self, port: u16, count: u32) {
        self.0.send(port, count).unwrap();
    }

    /// A socket of b's own kernel.
    pub(crate) fn server(&self, port: u16) -> UdpSocket {
        self.0.server(port).unwrap()
    }
}

/// The numbers of the datagrams that a port gets, until `count` or for long
/// enough.
pub(crate) fn numbers(port: &mut Port, count: usize) -> Vec<u32> {
    let (mut got, mut idle) = (Vec::new(), 0);
    while got.len() < count && idle < IDLE_MAX {
        let batch = port.recv_batch(Timeout::after(Duration::from_millis(20)));
        idle += 1;
        for frame in batch.unwrap() {
            idle = 0;
            let text = frame.bytes()[42..46].try_into().unwrap();
            got.push(u32::from_be_bytes(text));
        }
    }
    got
}

/// Looks of 20 ms that find nothing, until nothing is waited for any more: a
/// machine that pauses does so for less.
const IDLE_MAX: usize = 25;

pub(crate) fn none_more(port: &mut Port) -> bool {
    let left = port.recv_batch(Timeout::after(Duration::from_millis(50)));
    left.unwrap().is_empty()
}

/// Sends numbered datagrams until stopped; returns their number.
pub(crate) fn stream(net: &Net, stop: &AtomicBool) -> u32 {
    net.a.run(|| {
        let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
        let mut number = 0u32;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..20 {
                let sent = socket.send_to(&number.to_be_bytes(), "10.0.0.2:5000");
                sent.unwrap();
                number += 1;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        number
    })
}

/// Reads all that comes, as numbers, until the end of the stream is known and
/// reached.
pub(crate) fn follow(port: &mut Port, sent: &dyn Fn() -> Option<u32>) -> (Vec<u32>, u64) {
    let (mut got, mut lost, mut idle) = (Vec::new(), 0, 0);
    loop {
        let end = sent();
        let frames = port.recv_batch(Timeout::after(Duration::from_millis(20)));
        idle += 1;
        for frame in frames.unwrap() {
            idle = 0;
            lost += u64::from(frame.lost_before());
            let text = frame.bytes()[42..46].try_into().unwrap();
            got.push(u32::from_be_bytes(text));
        }
        if idle >= IDLE_MAX && end.is_some() {
            return (got, lost);
        }
    }
}

/// A daemon in b's namespace; it ends with this.
pub(crate) struct Broker {
    pub(crate) path: PathBuf,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    pub(crate) fn start(net: &Net, policy: &str) -> Broker {
        let name = format!(
            "weir-live-{}-{}.sock",
            std::process::id(),
            net.eth_b.index()
        );
        let path = std::env::temp_dir().join(format!("{name}-{:?}", std::thread::current().id()));
        let listener = Listener::bind(&path).unwrap();
        let policy = Policy::parse(policy, &Accounts::default()).unwrap();
        let (stopped, stop) = rustix::pipe::pipe().unwrap();
        let host = net.b.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            host.enter().unwrap();
            let fabric = KernelBackend::open().unwrap();
            let mut daemon = Daemon::new(listener, fabric, policy, Accounts::default()).unwrap();
            ready.send(()).unwrap();
            daemon.run(stopped.as_fd()).unwrap();
        });
        is_ready.recv().unwrap();
        Broker {
            path,
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}
