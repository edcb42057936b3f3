//! The six calls, as a program makes them.

use crate::net::Net;
use std::time::{Duration, Instant};
use weir_lab::load::Sink;
use weir_lab::testenv;
use weir_lab::wait::WAIT_MAX;
use weir_link::bpf::Hook;
use weir_link::live::Sender;
use weir_tap::{Config, Pull, Tap, TapError};

const SOON: Duration = Duration::from_secs(5);

#[test]
fn map_tap_pull_push_untap_unmap() {
    if !testenv::root() {
        return;
    }
    let net = Net::new();
    let sink = Sink::new(&net.eth_b, Hook::XdpNative).unwrap();
    let sender = net.a.run(|| Sender::open(net.eth_a.index())).unwrap();
    net.middle.run(|| {
        let config = Config {
            chunks: 1024,
            reserved: 100,
            ring: 256,
            hang_max: None,
            ..Config::default()
        };
        let mut tap = Tap::map(config).unwrap();
        let left = tap.tap("left").unwrap();
        let right = tap.tap("right").unwrap();
        assert_eq!(tap.tap("left").unwrap(), left, "counted");
        // As many as are kept are there, whatever the rings have.
        assert!(tap.pull(Pull::Chunks(100)).unwrap());
        assert!(!tap.pull(Pull::Chunks(1025)).unwrap());
        assert!(!tap.pull(Pull::Frame(Duration::from_millis(5))).unwrap());
        // One comes, is changed and goes on; one of our own goes, too.
        sender.send(&[7; 60]).unwrap();
        assert!(tap.pull(Pull::Frame(SOON)).unwrap());
        assert!(tap.take(right).unwrap().is_none());
        let mut frame = tap.take(left).unwrap().unwrap();
        assert_eq!((frame.bytes(), frame.frags()), (&[7; 60][..], 1));
        frame.bytes_mut()[0] = 2;
        assert!(tap.give(right, frame).unwrap());
        let mut own = tap.alloc().unwrap();
        assert!(own.set(&[3; 1500]) && own.len() == 1500);
        assert!(own.set_len(100) && !own.set_len(4096));
        assert!(tap.give(right, own).unwrap());
        let dropped = tap.alloc().unwrap();
        assert_eq!(tap.census().process, 1);
        drop(dropped);
        tap.push().unwrap();
        net.settle(|| sink.counted().unwrap().frames == 2);
        let counted = sink.counted().unwrap();
        assert_eq!((counted.frames, counted.bytes), (2, 160));
        let counts = tap.link_counts(right);
        assert_eq!((counts.tx_frames, counts.tx_bytes), (2, 160));
        assert_eq!(tap.counts().syscalls_tx, 1, "one for both");
        // The last holder gives it back.
        assert!(!tap.untap(left).unwrap());
        assert_eq!(net.attached(), [true, true]);
        assert!(tap.untap(left).unwrap());
        assert_eq!(net.attached(), [false, true]);
        let again = tap.untap(left);
        assert!(matches!(again, Err(TapError::NotTapped { link: 0 })));
        // And it can be had again.
        assert_eq!(tap.tap("left").unwrap(), left);
        sender.send(&[9; 60]).unwrap();
        assert!(tap.pull(Pull::Frame(SOON)).unwrap());
        assert_eq!(tap.take(left).unwrap().unwrap().bytes(), [9; 60]);
        let census = tap.unmap().unwrap();
        assert_eq!((census.free, census.total()), (1024, 1024));
        assert_eq!(net.attached(), [false, false]);
    });
}

#[test]
fn links_that_come_and_go_are_watched() {
    if !testenv::root() {
        return;
    }
    let net = Net::new();
    net.middle.run(|| {
        let mut tap = Tap::map(Config::default()).unwrap();
        tap.tap("left").unwrap();
        tap.watch_links().unwrap();
        // It came after the watch was begun.
        let right = tap.tap("right").unwrap();
        tap.watch_links().unwrap();
        net.eth_b.clone().delete().unwrap();
        let until = Instant::now() + WAIT_MAX;
        let gone = loop {
            match tap.watch_links() {
                Ok(()) => assert!(Instant::now() < until, "nobody notices"),
                Err(error) => break error,
            }
        };
        assert!(matches!(gone, TapError::Gone { interface } if interface == "right"));
        // The frame is dropped on purpose.
        assert!(tap.untap(right).unwrap());
        for _ in 0..20 {
            tap.watch_links().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let census = tap.unmap().unwrap();
        assert_eq!(census.free, census.total());
    });
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let refused = |change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        Tap::map(config).unwrap_err().to_string()
    };
    assert!(refused(|c| c.ring = 100).contains("a power of two"));
    assert!(refused(|c| c.reserved = c.chunks).contains("fewer than there are chunks"));
    assert!(refused(|c| c.hang_max = Some(Duration::from_micros(999))).contains("1 ms or more"));
}
