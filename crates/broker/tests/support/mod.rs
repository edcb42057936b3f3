//! A daemon over interfaces in memory, and a client that says anything.
#![allow(dead_code)] // Each test file uses a part.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_broker::Bytes;
use weir_broker::compile::Source;
use weir_broker::daemon::Daemon;
use weir_broker::engine::mem::MemBackend;
use weir_broker::policy::{Accounts, Policy};
use weir_broker::protocol::{
    Channel, Listener, OpenPort, Opened, Refusal, Request, RequestKind, Response, ServerMessage,
    decode, encode,
};

/// The path of a socket of this test alone.
pub(crate) fn socket_path() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("weir-broker-{}-{number}.sock", std::process::id());
    std::env::temp_dir().join(name)
}

/// A running daemon; it ends with this.
pub(crate) struct Running {
    pub(crate) path: PathBuf,
    pub(crate) fabric: MemBackend,
    pub(crate) eth: u32,
    /// The daemon's thread.
    pub(crate) tid: u32,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// With one interface, `eth0`.
    pub(crate) fn start(policy: &str) -> Running {
        Running::start_with(policy, |_| {})
    }

    /// The same, with a listener that was changed.
    pub(crate) fn start_with(policy: &str, change: impl FnOnce(&mut Listener)) -> Running {
        weir_lab::wait::limit_this_test();
        let accounts = Accounts::default();
        let policy = Policy::parse(policy, &accounts).expect("the test's policy is right");
        let fabric = MemBackend::new();
        let eth = fabric.add("eth0");
        let path = socket_path();
        let mut listener = Listener::bind(&path).expect("a socket in the temporary folder");
        change(&mut listener);
        let (stopped, stop) = rustix::pipe::pipe().expect("a pipe");
        let machine = fabric.clone();
        let (tell, tid) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            tell.send(tid.unsigned_abs()).expect("it is waited for");
            let mut daemon = Daemon::new(listener, machine, policy, accounts).expect("a daemon");
            daemon.hold_native(Duration::ZERO);
            daemon.run(stopped.as_fd()).expect("it serves");
        });
        Running {
            path,
            fabric,
            eth,
            tid: tid.recv().expect("the thread says so first"),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(crate) fn connect(&self) -> Client {
        let channel = Channel::connect(&self.path).expect("the daemon listens");
        Client { channel, id: 0 }
    }

    /// Waits until nothing is left of any port.
    pub(crate) fn wait_until_clean(&self) {
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.fabric.in_use(self.eth) != (0, 0) {
            assert!(
                Instant::now() < deadline,
                "{:?} left",
                self.fabric.in_use(self.eth)
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended
                .expect("it was started")
                .expect("the daemon did not panic");
        }
    }
}

/// A client.
pub(crate) struct Client {
    pub(crate) channel: Channel,
    pub(crate) id: u32,
}

impl Client {
    pub(crate) fn ask(&mut self, ask: RequestKind) -> (Response, Vec<OwnedFd>) {
        self.id += 1;
        let request = Request {
            id: self.id,
            kind: ask,
        };
        let bytes = encode(&request).unwrap();
        self.channel.send(&bytes, &[], true).unwrap();
        loop {
            let message = self.channel.receive(true).unwrap().unwrap();
            match decode(&message.bytes).unwrap() {
                ServerMessage::Answer { to, answer } if to == self.id => {
                    return (answer, message.fds);
                }
                ServerMessage::Shutdown { reason, .. } => panic!("goodbye: {reason}"),
                _ => {}
            }
        }
    }

    pub(crate) fn open(&mut self, open: OpenPort) -> Result<Opened, Refusal> {
        match self.ask(RequestKind::Open(open)) {
            (Response::Opened(opened), fds) => {
                assert_eq!(opened.fds.len(), fds.len());
                Ok(opened)
            }
            (Response::Refused(refusal), _) => Err(refusal),
            (other, _) => panic!("{other:?}"),
        }
    }

    /// The reason that the daemon gives for ending the connection.
    pub(crate) fn goodbye(&mut self) -> String {
        loop {
            let message = self.channel.receive(true).unwrap().unwrap();
            if let ServerMessage::Shutdown { reason, .. } = decode(&message.bytes).unwrap() {
                assert!(self.channel.receive(true).is_err(), "then it is closed");
                return reason;
            }
        }
    }
}

/// A port to ask for: copies of 64 KiB.
pub(crate) fn copy(filter: &str) -> OpenPort {
    OpenPort::copies("eth0", Source::expr(filter), Bytes(64 << 10))
}

/// A UDP datagram in Ethernet with this destination port.
pub(crate) fn udp(dst_port: u16) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12] = 0x08;
    frame[14] = 0x45;
    frame[23] = 17;
    frame[36..38].copy_from_slice(&dst_port.to_be_bytes());
    frame
}
