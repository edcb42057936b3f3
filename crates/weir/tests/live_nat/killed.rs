//! A kill under load: nothing that the kernel remembers is served afterwards, and no address of the inside is
//! ever seen outside.

use super::{Net, OUTSIDE, metric};
use crate::common::weir;
use crate::live::Running;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_lab::net::{Host, Signal};
use weir_lab::wait;

/// Flows of the load.
const FLOWS: u16 = 16;

/// Datagrams of each flow in a millisecond.
const BURST: usize = 2;

/// Port of the receiver.
const PORT: u16 = 7003;

/// A load that goes on until it ends.
struct Load {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<()>,
}

impl Load {
    fn start(from: &Host, to: &'static str) -> Load {
        let bound = |flow| from.run(move || UdpSocket::bind(("10.0.0.9", 6000 + flow)).unwrap());
        let sockets: Vec<UdpSocket> = (0..FLOWS).map(bound).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let sender = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                for socket in &sockets {
                    for _ in 0..BURST {
                        // An ICMP error, or a full queue, is no failure.
                        let _ = socket.send_to(&[0x77; 64], (to, PORT));
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Load { stop, sender }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.sender.join().unwrap();
    }
}

/// Counts the load's frames at a host while it lives; an address of the inside is a failure.
struct Watch {
    seen: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    reader: JoinHandle<()>,
}

impl Watch {
    fn start(capture: OwnedFd) -> Watch {
        let (seen, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (count, asked) = (Arc::clone(&seen), Arc::clone(&stop));
        let reader = std::thread::spawn(move || {
            let mut buffer = vec![0; 4096];
            loop {
                let received =
                    rustix::net::recv(&capture, &mut buffer, rustix::net::RecvFlags::empty());
                let Ok((len, _)) = received else {
                    if asked.load(Ordering::Acquire) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let frame = &buffer[..len];
                if len < 42 || frame[12..14] != [8, 0] {
                    continue;
                }
                assert!(frame[26] != 10 && frame[30] != 10, "{frame:02x?}");
                let is_load = frame[23] == 17 && frame[36..38] == PORT.to_be_bytes();
                count.fetch_add(u64::from(is_load), Ordering::AcqRel);
            }
        });
        Watch { seen, stop, reader }
    }

    fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    fn end(self) {
        self.stop.store(true, Ordering::Release);
        self.reader.join().unwrap();
    }
}

#[test]
fn nothing_remembered_is_served_after_a_kill_under_load() {
    let Some(net) = Net::new("nat-load") else {
        return;
    };
    net.take_redirected();
    let watch = Watch::start(net.b.capture().unwrap());
    let load = Load::start(&net.a, OUTSIDE);
    // Three lives, each with the entries of its own.
    for _ in 0..3 {
        let before = watch.seen();
        let running = net.start(&["--metrics", "127.0.0.1:0"]);
        wait::until("entries that serve", || {
            std::thread::sleep(Duration::from_millis(50));
            let metrics = running.metrics(&net.r);
            metric(&metrics, "weir_run_fast_entries") >= Some(FLOWS.into())
                && metric(&metrics, "weir_run_fast_frames_total") > Some(1000)
                && watch.seen() > before + 2000
        });
        running.signal(Signal::KILL);
        running.end();
        // What was on its way.
        std::thread::sleep(Duration::from_millis(300));
        let after = watch.seen();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(watch.seen(), after, "frames pass after the kill");
    }
    load.end();
    watch.end();
    let cleaned = Running::start(&net.r, weir([]), &["nat", "eth0", "eth1", "--clean"]).end();
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
}
