//! Cached verdicts of a key whose frames come by several queues.

use std::time::{Duration, Instant};
use weir_lab::load::{Template, Udp};
use weir_lab::net::{Device, Host, Lab};
use weir_lab::testenv;
use weir_link::live::Sender;
use weir_tap::{Config, FlowAction, FlowCacheConfig, FlowKey, FlowKind, Pull, Tap};

/// Long enough for anything that ought to happen.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// How many frames each of two queues has given to a program at XDP.
fn by_queue(host: &Host) -> [u64; 2] {
    let mut ethtool = testenv::program("ethtool").expect("the test has asked for it");
    ethtool.args(["-S", "left"]);
    let output = host.output(ethtool).unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    [0, 1].map(|queue| {
        let name = format!("rx_queue_{queue}_xdp_packets:");
        let count = told
            .lines()
            .find_map(|line| line.trim().strip_prefix(&name));
        count.expect(&told).trim().parse().unwrap()
    })
}

/// Frames between the same stations that come by the first queue and by the
/// second: which it is, depends on their ports and on a number of the kernel's.
fn one_for_each(sender: &Sender, from: &Device, to: &Device) -> [Vec<u8>; 2] {
    let mut found = [None, None];
    for src_port in 1.. {
        let udp = Udp {
            src_port,
            ..Udp::new(
                from.mac(),
                to.mac(),
                [10, 9, 0, 1].into(),
                [10, 9, 0, 2].into(),
            )
        };
        let frame = Template::from(&udp).frame;
        let (before, began) = (by_queue(to.host()), Instant::now());
        sender.send(&frame).unwrap();
        let queue = loop {
            let now = by_queue(to.host());
            if let Some(queue) = (0..2).find(|at| now[*at] > before[*at]) {
                break queue;
            }
            assert!(began.elapsed() < WAIT_MAX, "{now:?}");
        };
        found[queue].get_or_insert(frame);
        if let [Some(first), Some(second)] = &found {
            return [first.clone(), second.clone()];
        }
    }
    unreachable!("some port of them all comes by each queue")
}

/// As many chunks as two links of one queue each ask for are enough for two of four:
/// each queue has some, also those that are bound last.
#[test]
fn the_last_of_many_queues_has_chunks_too() {
    if !testenv::root() {
        return;
    }
    let lab = Lab::new();
    let [a, middle, b] = ["a", "middle", "b"].map(|name| lab.host(name).unwrap());
    let to_a = lab.link(&a, &middle).names("eth0", "left").queues(4);
    let to_b = lab.link(&b, &middle).names("eth0", "right").queues(4);
    let (_eth_a, _left) = to_a.connect().unwrap();
    let (eth_b, right) = to_b.connect().unwrap();
    let sender = b.run(|| Sender::open(eth_b.index())).unwrap();
    middle.run(|| {
        let config = Config {
            hang_max: None,
            ..Config::default().with_rings(1024, 2)
        };
        let mut tap = Tap::between(config, "left", "right").unwrap();
        let links: Vec<_> = tap.links().collect();
        let [left, from_b] = links[..] else {
            panic!("{links:?}");
        };
        assert_eq!([tap.queues(left), tap.queues(from_b)], [4, 4]);
        tap.ready().unwrap();
        // Each of the four queues has some of this many flows.
        const FLOWS: u16 = 256;
        for src_port in 0..FLOWS {
            let udp = Udp {
                src_port,
                ..Udp::new(
                    eth_b.mac(),
                    right.mac(),
                    [10, 9, 0, 1].into(),
                    [10, 9, 0, 2].into(),
                )
            };
            sender.send(&Template::from(&udp).frame).unwrap();
        }
        let (mut came, began) = (0, Instant::now());
        while came < FLOWS {
            assert!(began.elapsed() < WAIT_MAX, "{came} of {FLOWS}");
            tap.pull(Pull::Frame(Duration::from_millis(20))).unwrap();
            while let Some(frame) = tap.take(from_b).unwrap() {
                came += u16::from(frame.bytes()[12..14] == [8, 0]);
            }
        }
        tap.unmap().unwrap();
    });
}

/// Frames of one key come by two queues in turn, and always before those are
/// settled that came last: held back after a while, they let the entry begin.
#[test]
fn a_key_of_two_queues_begins_though_the_program_is_never_idle() {
    if !testenv::root() {
        return;
    }
    if !testenv::programs(&["ethtool"]) {
        return;
    }
    let lab = Lab::new();
    let (a, middle) = (lab.host("a").unwrap(), lab.host("middle").unwrap());
    let link = lab.link(&a, &middle).names("eth0", "left").queues(2);
    let (eth_a, left) = link.connect().unwrap();
    let sender = a.run(|| Sender::open(eth_a.index())).unwrap();
    middle.run(|| {
        let config = Config {
            hang_max: None,
            flow_cache: Some(FlowCacheConfig::of(&[FlowKind::MacPair])),
            ..Config::default()
        };
        let mut tap = Tap::map(config).unwrap();
        let link = tap.tap("left").unwrap();
        assert_eq!(tap.queues(link), 2);
        tap.ready().unwrap();
        let frames = one_for_each(&sender, &eth_a, &left);
        let key = FlowKey::MacPair {
            link: 0,
            vlan: 0,
            src: eth_a.mac(),
            dst: left.mac(),
        };
        let fast = tap.flow_cache().unwrap();
        fast.insert(key, FlowAction::Drop, WAIT_MAX * 2);
        let began = Instant::now();
        let went_by = |tap: &mut Tap| {
            tap.flow_cache()
                .unwrap()
                .entry(&key)
                .unwrap()
                .traffic
                .frames
        };
        // Until both go by.
        let mut before = 0;
        while went_by(&mut tap) < before + 2 {
            let counts = tap.flow_cache().unwrap().counts();
            assert!(began.elapsed() < WAIT_MAX, "{counts:?}");
            before = went_by(&mut tap);
            // Says that what was taken in the turn before is settled.
            tap.pull(Pull::Frame(Duration::ZERO)).unwrap();
            while tap.take(link).unwrap().is_some() {}
            for frame in &frames {
                sender.send(frame).unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let counts = tap.flow_cache().unwrap().counts();
        assert!(
            (counts.held_back, counts.held_back_frames) >= (1, 2),
            "{counts:?}"
        );
        tap.unmap().unwrap();
    });
}
