//! Numbered frames from one host to the other: each that arrives is distinguished from
//! the others, and how long none did.

use crate::net::Net;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{RecvFlags, recv};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_lab::net::Device;
use weir_lab::wait::WAIT_MAX;
use weir_link::live::Sender;

/// Ours: an EtherType for experiments (IEEE 802), and what distinguishes them.
const KIND: [u8; 4] = [0x88, 0xb5, b'n', b'o'];

/// What became of the frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) sent: u64,
    pub(crate) arrived: u64,
    /// Frames that arrived again.
    pub(crate) twice: u64,
    /// Frames that the devices at both ends dropped, as they do on a machine
    /// that is busy with other things.
    pub(crate) dropped: u64,
    /// The longest time in which frames were sent and none arrived.
    pub(crate) gap_max: Duration,
    /// The longest that a frame was under way.
    pub(crate) late_max: Duration,
}

/// Sent without a pause, where the sender is behind: few enough for a veth. What
/// it is behind by more, as on a machine that has paused, it does not make up for.
const BURST_MAX: f64 = 8.0;

pub(crate) struct Numbered {
    devices: [Device; 2],
    dropped: u64,
    /// When each was sent.
    times: Arc<Mutex<Vec<Duration>>>,
    /// Those that have arrived are below this number.
    arrived: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
    receiver: Option<JoinHandle<(Report, Vec<bool>)>>,
}

impl Numbered {
    /// Sends this many a second from `a` to `b`, until [`stop`](Self::stop).
    pub(crate) fn start(net: &Net, per_second: f64) -> Numbered {
        let stop = Arc::new(AtomicBool::new(false));
        let times = Arc::new(Mutex::new(Vec::new()));
        let devices = [net.eth_a.clone(), net.right.clone()];
        let begun = Instant::now();
        let socket = net.b.capture().unwrap();
        // Room for all: the reader may be kept from reading.
        set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
        let arrived = Arc::new(AtomicUsize::new(0));
        let receiver = {
            let (stop, arrived) = (Arc::clone(&stop), Arc::clone(&arrived));
            std::thread::spawn(move || receive(&socket, &stop, begun, &arrived))
        };
        let sender = net.a.run(|| Sender::open(net.eth_a.index())).unwrap();
        let sender = {
            let (stop, times) = (Arc::clone(&stop), Arc::clone(&times));
            std::thread::spawn(move || {
                let (mut number, mut due, mut then) = (0, 0.0, begun);
                while !stop.load(Ordering::Relaxed) {
                    let now = Instant::now();
                    due += (now - std::mem::replace(&mut then, now)).as_secs_f64() * per_second;
                    due = due.min(BURST_MAX);
                    while due >= 1.0 {
                        let at = begun.elapsed();
                        sender.send(&frame(number, at)).unwrap();
                        times.lock().unwrap().push(at);
                        number += 1;
                        due -= 1.0;
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
            })
        };
        Numbered {
            dropped: dropped(&devices),
            devices,
            times,
            arrived,
            stop,
            sender: Some(sender),
            receiver: Some(receiver),
        }
    }

    /// The outcome of the frames of at least a tenth of a second.
    pub(crate) fn burst(net: &Net) -> Report {
        let numbered = Numbered::start(net, 2_000.0);
        wait("they are sent", || numbered.sent() >= 200);
        numbered.report()
    }

    /// Waits until a frame has arrived that was not sent yet when this was
    /// called.
    pub(crate) fn until_one_passes(&self) {
        let next = self.sent();
        let has_passed = || self.arrived.load(Ordering::Relaxed) > next;
        wait("a frame passes", has_passed);
    }

    /// How many it has sent.
    pub(crate) fn sent(&self) -> usize {
        self.times.lock().unwrap().len()
    }

    /// No more are sent; those under way arrive.
    pub(crate) fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(sender) = self.sender.take() {
            sender.join().unwrap();
        }
    }

    pub(crate) fn report(mut self) -> Report {
        self.stop();
        let receiver = self.receiver.take().unwrap();
        let (report, seen) = receiver.join().unwrap();
        let times = self.times.lock().unwrap();
        let (mut gap_max, mut first) = (Duration::ZERO, None);
        for (number, at) in times.iter().enumerate() {
            match seen.get(number) {
                Some(true) => first = None,
                _ => gap_max = gap_max.max(*at - *first.get_or_insert(*at)),
            }
        }
        Report {
            sent: times.len() as u64,
            dropped: dropped(&self.devices) - self.dropped,
            gap_max,
            ..report
        }
    }
}

fn wait(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < WAIT_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Frames that devices have not handed on.
fn dropped(devices: &[Device]) -> u64 {
    let counters = devices.iter().map(|device| device.counters().unwrap());
    counters.map(|counters| counters.tx_dropped).sum()
}

impl Drop for Numbered {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn frame(number: u64, at: Duration) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 7, 2, 2, 0, 0, 0, 7, 1]);
    frame[12..16].copy_from_slice(&KIND);
    frame[16..24].copy_from_slice(&number.to_ne_bytes());
    frame[24..32].copy_from_slice(&(at.as_nanos() as u64).to_ne_bytes());
    frame
}

/// Until nothing has come for a while after the last was sent.
fn receive(
    socket: &OwnedFd,
    stop: &AtomicBool,
    begun: Instant,
    arrived: &AtomicUsize,
) -> (Report, Vec<bool>) {
    const AFTER: Duration = Duration::from_millis(400);
    let mut seen = Vec::new();
    let (mut report, mut buffer) = (Report::default(), [0; 2048]);
    let mut came = Instant::now();
    loop {
        let Ok((len, _)) = recv(socket, &mut buffer, RecvFlags::empty()) else {
            if stop.load(Ordering::Relaxed) && came.elapsed() > AFTER {
                return (report, seen);
            }
            std::thread::sleep(Duration::from_micros(300));
            continue;
        };
        if len < 32 || buffer[12..16] != KIND {
            continue;
        }
        came = Instant::now();
        let half = |at: usize| u64::from_ne_bytes(buffer[at..at + 8].try_into().unwrap());
        let (number, at) = (half(16) as usize, Duration::from_nanos(half(24)));
        if seen.len() <= number {
            seen.resize(number + 1, false);
        }
        if std::mem::replace(&mut seen[number], true) {
            report.twice += 1;
            continue;
        }
        report.arrived += 1;
        arrived.fetch_max(number + 1, Ordering::Relaxed);
        report.late_max = report.late_max.max(begun.elapsed().saturating_sub(at));
    }
}
