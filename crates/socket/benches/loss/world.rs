//! A sender, a line, a place of loss and a receiver.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::delay::{Bottleneck, DelayLine};
use weir_lab::lossy::Lossy;
use weir_lab::net::{Host, Lab, Offloads, get_option, set_option_bytes};
use weir_link::net::Tap;
use weir_socket::Net;
use weir_socket::link::{BATCH, Link, RxSink};
use weir_stack::iface::RxMeta;
use weir_stack::tcp::TcpConfig;
use weir_stack::{Config, TxSink};
use weir_wire::ethernet::Address;

const NEAR: &str = "192.0.2.1";
const FAR: &str = "192.0.2.2";
const PORT: u16 = 5001;
/// What one call writes or reads, in bytes.
const BLOCK: usize = 64 << 10;
/// What our line holds of each direction, in bytes: as a device's queue of some
/// hundred frames.
const QUEUE: usize = 1 << 20;

/// Who sends to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Linux to Linux.
    Linux,
    /// As that, and a thread carries the frames between the sender and the line: each wake-up
    /// that a stack in a thread has, this sender has as well.
    LinuxBehindThread,
    /// weir to Linux.
    Weir,
    /// Linux to weir.
    Receiver,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Linux => "Linux to Linux",
            Kind::LinuxBehindThread => "Linux by a thread",
            Kind::Weir => "weir to Linux",
            Kind::Receiver => "Linux to weir",
        }
    }
}

/// What a run gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) mbps: f64,
    /// The least round trip.
    pub(crate) rtt_us: f64,
    /// What part of the segments went again.
    pub(crate) again: f64,
}

/// What is at the near end of the line.
enum End {
    /// The interface goes with the last descriptor of its other end.
    Linux(Host),
    Weir(Net),
}

/// A path between two hosts, with loss, delay and rate.
pub(crate) struct World {
    kind: Kind,
    /// Of the senders, by Linux' name.
    algorithm: &'static str,
    near: End,
    far: Host,
    /// Of frames from the near end, and of those to it.
    lossy: [Lossy; 2],
    _line: DelayLine,
    /// Of [`Kind::LinuxBehindThread`].
    _thread: Option<DelayLine>,
    _middle: (Host, Tap),
    _lab: Lab,
}

/// Our end of a line: each message of a socket is a frame.
struct Line {
    fd: OwnedFd,
    frame: Vec<u8>,
    came: Vec<u8>,
    is_full: bool,
}

impl TxSink for Line {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.is_full {
            self.flush();
        }
        if self.is_full {
            return None;
        }
        self.frame.resize(len, 0);
        Some(&mut self.frame)
    }

    fn submit(&mut self) {
        self.is_full = rustix::io::write(&self.fd, &self.frame).is_err();
    }
}

impl Link for Line {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn receive(&mut self, take: &mut RxSink<'_>) -> io::Result<bool> {
        for _ in 0..BATCH {
            match rustix::io::read(&self.fd, &mut self.came) {
                Ok(count) => take(&self.came[..count], RxMeta::default()),
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The frame that found no room goes first.
    fn flush(&mut self) {
        if self.is_full {
            self.is_full = rustix::io::write(&self.fd, &self.frame).is_err();
        }
    }

    fn is_full(&self) -> bool {
        self.is_full
    }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect("a constant")
}

impl World {
    /// A world with such senders, whose line may have a bottleneck.
    pub(crate) fn new(
        kind: Kind,
        delay: Duration,
        bottleneck: Option<Bottleneck>,
        algorithm: &'static str,
    ) -> World {
        let lab = Lab::new();
        let host = |name| lab.host(name).expect("a namespace");
        let (middle, far) = (host("middle"), host("far"));
        let link = lab.link(&middle, &far).offloads(Offloads::OFF);
        let (right, eth) = link.connect().expect("a veth pair");
        eth.add_address(ip(FAR), 24).expect("it takes one");
        let left_tap = middle.run(|| Tap::open("left")).expect("a TAP interface");
        let left = middle.device("left").expect("it was just made");
        left.up().expect("it goes up");
        let lossy = [(&left, &right), (&right, &left)];
        let lossy = lossy.map(|(from, to)| Lossy::between(from, to).expect("a program"));
        let left_fd = left_tap.as_fd().try_clone_to_owned().expect("a descriptor");
        let mut carrier = None;
        let (near, near_fd) = match kind {
            Kind::Linux | Kind::LinuxBehindThread => {
                let near = host("near");
                let tap = near.run(|| Tap::open("tap0")).expect("a TAP interface");
                let device = near.device("tap0").expect("it was just made");
                device.up().expect("it goes up");
                device.add_address(ip(NEAR), 24).expect("it takes one");
                let mut fd = tap.as_fd().try_clone_to_owned().expect("a descriptor");
                if kind == Kind::LinuxBehindThread {
                    let (inner, outer) = pair().expect("a socket pair");
                    let line = DelayLine::start([fd, inner], Duration::ZERO);
                    carrier = Some(line.expect("a thread"));
                    fd = outer;
                }
                (End::Linux(near), fd)
            }
            Kind::Weir | Kind::Receiver => {
                let (net, fd) = weir_host(NEAR, algorithm);
                (End::Weir(net), fd)
            }
        };
        let line = DelayLine::shared(vec![near_fd], left_fd, delay, bottleneck);
        let line = line.expect("a thread");
        World {
            kind,
            algorithm,
            near,
            far,
            lossy,
            _line: line,
            _thread: carrier,
            _middle: (middle, left_tap),
            _lab: lab,
        }
    }

    /// Sends for as long as the two times say, of which the first is not counted.
    pub(crate) fn run(&self, seed: u64, per_million: u32, times: [Duration; 2]) -> Run {
        let work = Work {
            per_million,
            seed,
            times,
        };
        match (&self.near, self.kind) {
            (End::Linux(near), _) => {
                let at = SocketAddr::new(ip(FAR), PORT);
                let listener = self.far.run(|| TcpListener::bind(at));
                let listener = listener.expect("a free port");
                let stream = near.run(|| TcpStream::connect(at));
                let stream = stream.expect("nothing is lost yet");
                choose_algorithm(&stream, self.algorithm);
                let (reader, _) = listener.accept().expect("it has connected");
                self.transfer(&work, &stream, &reader, || {
                    let facts = linux_facts(&stream);
                    end_linux(&[&stream, &reader]);
                    facts
                })
            }
            (End::Weir(net), Kind::Weir) => {
                let at = SocketAddr::new(ip(FAR), PORT);
                let listener = self.far.run(|| TcpListener::bind(at));
                let listener = listener.expect("a free port");
                let stream = weir_socket::TcpStream::connect(net, at).expect("nothing is lost yet");
                let (reader, _) = listener.accept().expect("it has connected");
                self.transfer(&work, &stream, &reader, || {
                    let info = stream.info().expect("it is open");
                    let _ = stream.shutdown(Shutdown::Both);
                    end_linux(&[&reader]);
                    let (again, all) = (info.counts.retransmitted, info.counts.segments_out);
                    (info.min_rtt_ns as f64 / 1e3, again as f64 / all as f64)
                })
            }
            (End::Weir(net), _) => {
                let at = SocketAddr::new(ip(NEAR), PORT);
                let listener = weir_socket::TcpListener::bind(net, at).expect("a free port");
                let stream = self.far.run(|| TcpStream::connect(at));
                let stream = stream.expect("nothing is lost yet");
                choose_algorithm(&stream, self.algorithm);
                let (reader, _) = listener.accept().expect("it has connected");
                self.transfer(&work, &stream, &reader, || {
                    let facts = linux_facts(&stream);
                    let _ = reader.shutdown(Shutdown::Both);
                    end_linux(&[&stream]);
                    facts
                })
            }
        }
    }

    /// Writes at one end and reads at the other; `end` ends both and returns what
    /// the sender knows.
    fn transfer<W, R>(
        &self,
        work: &Work,
        writer: W,
        reader: R,
        end: impl FnOnce() -> (f64, f64),
    ) -> Run
    where
        W: Write + Send,
        R: Read + Send,
    {
        let to_near = usize::from(self.kind == Kind::Receiver);
        for (way, lossy) in self.lossy.iter().enumerate() {
            let is_data = way == to_near;
            lossy.begin(2 * work.seed + u64::from(is_data), work.per_million);
        }
        let (is_over, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut writer, block) = (writer, vec![1; BLOCK]);
                while !is_over.load(Ordering::Relaxed) {
                    if writer.write_all(&block).is_err() {
                        break;
                    }
                }
            });
            scope.spawn(|| {
                let (mut reader, mut block) = (reader, vec![0; BLOCK]);
                while let Ok(count @ 1..) = reader.read(&mut block) {
                    bytes.fetch_add(count as u64, Ordering::Relaxed);
                }
            });
            thread::sleep(work.times[0]);
            let (start, before) = (Instant::now(), bytes.load(Ordering::Relaxed));
            thread::sleep(work.times[1]);
            let (time, after) = (start.elapsed(), bytes.load(Ordering::Relaxed));
            is_over.store(true, Ordering::Relaxed);
            for lossy in &self.lossy {
                lossy.begin(0, 0);
            }
            let (rtt_us, again) = end();
            Run {
                mbps: (after - before) as f64 * 8.0 / time.as_micros() as f64,
                rtt_us,
                again,
            }
        })
    }
}

/// What is dropped, and for how long is sent.
struct Work {
    seed: u64,
    per_million: u32,
    times: [Duration; 2],
}

/// A host of ours with this address, whose connections use this algorithm; and
/// the other end of its line.
pub(crate) fn weir_host(address: &str, algorithm: &str) -> (Net, OwnedFd) {
    let (ours, fd) = pair().expect("a socket pair");
    let line = Line {
        fd: ours,
        frame: Vec::new(),
        came: vec![0; 4096],
        is_full: false,
    };
    let config = Config::new(Address([2, 0, 0, 0, 0, 0xfe]));
    let config = config.address(format!("{address}/24").parse().expect("a constant"));
    let net = Net::new(line, &config).expect("our host");
    net.tcp_configure(TcpConfig {
        congestion: algorithm.parse().expect("we have the algorithm"),
        ..TcpConfig::default()
    });
    (net, fd)
}

/// Linux' socket option for the algorithm of a connection.
pub(crate) fn choose_algorithm(stream: &TcpStream, algorithm: &str) {
    const TCP: i32 = 6;
    const TCP_CONGESTION: i32 = 13;
    let set = set_option_bytes(stream, TCP, TCP_CONGESTION, algorithm.as_bytes());
    set.expect("Linux has the algorithm");
}

pub(crate) fn end_linux(streams: &[&TcpStream]) {
    for stream in streams {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// The least round trip in microseconds, and what part of the segments went
/// again: `struct tcp_info`.
fn linux_facts(stream: &TcpStream) -> (f64, f64) {
    const TCP: i32 = 6;
    const TCP_INFO: i32 = 11;
    let mut bytes = [0; 256];
    get_option(stream, TCP, TCP_INFO, &mut bytes).expect("it is a TCP socket");
    let word =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (again, all, rtt_us) = (word(100), word(136), word(148));
    (f64::from(rtt_us), f64::from(again) / f64::from(all))
}

/// Both ends of a line's socket, which do not block.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for fd in [&pair.0, &pair.1] {
        rustix::net::sockopt::set_socket_send_buffer_size(fd, QUEUE)?;
    }
    Ok(pair)
}
