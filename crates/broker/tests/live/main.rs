//! Ports on live links between network namespaces: in this process, and by a
//! daemon for users without rights.

mod events;
mod fanout;
mod hostile;
mod memory;
mod net;
mod peer;
mod process;
mod sends;
mod takeover;
mod tokio_example;
mod user;
mod verifier;

use net::{Broker, follow, net, none_more, numbers, stream};
use rustix::net::sockopt;
use std::net::UdpSocket;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_broker::protocol::Attach;
use weir_broker::{Bytes, Connection, Port, PortError, Timeout};
use weir_lab::net::unprivileged;

#[test]
fn a_copy_disturbs_nothing_and_a_taker_keeps_frames_from_the_host() {
    let Some(net) = net() else { return };
    for attach in [
        Attach::Auto,
        Attach::XdpGeneric,
        Attach::XdpNative,
        Attach::Tc,
    ] {
        let server = net.server(53);
        let other = net.server(54);
        net.b.run(|| {
            let on = || Port::on(net.eth_b.name()).in_process().attach(attach);
            let mut copy = on()
                .filter("udp dst port 53")
                .unwrap()
                .tag(7)
                .open()
                .unwrap();
            net.send(53, 100);
            assert_eq!(numbers(&mut copy, 100), (0..100).collect::<Vec<u32>>());
            for _ in 0..100 {
                server.recv(&mut [0; 9]).expect("the host gets them too");
            }
            let taker = on()
                .filter("udp dst port 53")
                .unwrap()
                .take(true)
                .timestamps(true);
            let mut taker = taker.open().unwrap();
            net.send(53, 50);
            net.send(54, 1);
            assert_eq!(numbers(&mut copy, 50).len(), 50);
            assert_eq!(numbers(&mut taker, 50), (0..50).collect::<Vec<u32>>());
            assert!(server.recv(&mut [0; 9]).is_err(), "taken ({attach})");
            other.recv(&mut [0; 9]).expect("others pass");
            assert_eq!(taker.counters().unwrap().delivered, 50);
            drop(taker);
            net.send(53, 1);
            server.recv(&mut [0; 9]).expect("the host gets them again");
            assert_eq!(numbers(&mut copy, 1).len(), 1);
            assert!(none_more(&mut copy));
        });
    }
}

#[test]
fn frames_carry_time_tag_length_and_losses() {
    let Some(net) = net() else { return };
    net.b.run(|| {
        let port = Port::on(net.eth_b.name())
            .in_process()
            .filter("udp")
            .unwrap();
        let port = port
            .tag(99)
            .timestamps(true)
            .snap_len(30)
            .queue(Bytes(4096));
        let mut port = port.open().unwrap();
        net.send(9, 1000);
        let (mut seen, mut lost) = (0, 0);
        while seen + lost < 1000 {
            let before = (seen, lost);
            for frame in port
                .recv_batch(Timeout::after(Duration::from_millis(100)))
                .unwrap()
            {
                assert_eq!(
                    (frame.bytes().len(), frame.original_len(), frame.tag()),
                    (30, 46, 99)
                );
                let age = frame.timestamp().unwrap().elapsed().unwrap_or_default();
                assert!(age < Duration::from_secs(10), "{age:?}");
                assert!(frame.is_cut() && !frame.is_outgoing());
                seen += 1;
                lost += frame.lost_before() as usize;
            }
            if (seen, lost) == before {
                // The next frame carries the count of the last losses.
                net.send(9, 1);
                seen -= 1;
            }
        }
        assert!(lost > 0, "a ring of a page holds {seen}");
        let counters = port.counters().unwrap();
        assert_eq!(counters.lost as usize, lost);
    });
}

#[test]
fn frames_that_leave_are_seen_and_leave() {
    let Some(net) = net() else { return };
    let server = net.server(7);
    net.b.run(|| {
        let on = || {
            Port::on(net.eth_b.name())
                .in_process()
                .filter("udp src port 7")
                .unwrap()
        };
        let mut taker = on().take(true).open().unwrap();
        let client = net.a.run(|| UdpSocket::bind("10.0.0.1:77")).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        server.send_to(b"text", "10.0.0.1:77").unwrap();
        assert_eq!(
            client.recv(&mut [0; 9]).unwrap(),
            4,
            "taking does not stop the host"
        );
        let frames = taker
            .recv_batch(Timeout::after(Duration::from_secs(1)))
            .unwrap();
        let outgoing: Vec<bool> = frames.map(|frame| frame.is_outgoing()).collect();
        assert_eq!(outgoing, [true]);
    });
}

#[test]
fn a_filter_changes_while_frames_come() {
    let Some(net) = net() else { return };
    net.b.run(|| {
        let port = Port::on(net.eth_b.name()).in_process();
        let mut port = port.filter("udp dst port 1000").unwrap().open().unwrap();
        // A known shape, a new shape, and one that is no key at all. What
        // old and new accept comes once, at once.
        for filter in [
            "udp dst port 1001",
            "ip dst 10.0.0.2 and udp",
            "udp[8:4] & 1 = 1",
        ] {
            port.set_filter(filter).unwrap();
            net.send(1001, 4);
            let mut got = numbers(&mut port, 4);
            if filter.contains('&') {
                got.retain(|number| number & 1 == 1);
                assert_eq!(got, [1, 3]);
            } else {
                assert_eq!(got, [0, 1, 2, 3], "{filter}");
                assert!(none_more(&mut port), "{filter}");
            }
        }
        // And the old one comes to its end.
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            net.send(1001, 4);
            if numbers(&mut port, 4) == [1, 3] {
                break;
            }
            assert!(Instant::now() < deadline, "the old filter goes on");
        }
        // Names of hosts are looked up.
        port.set_filter("dst host localhost and udp or udp[8:4] & 1 = 1")
            .unwrap();
        net.send(1001, 2);
        assert_eq!(numbers(&mut port, 1), [1]);
        assert!(matches!(
            port.set_filter("udp prot 1"),
            Err(PortError::Filter(_))
        ));
    });
}

#[test]
fn a_frame_is_seen_once_while_the_plan_moves_from_hook_to_hook() {
    let Some(net) = net() else { return };
    let on = || Port::on(net.eth_b.name()).in_process();
    let copy = on().filter("udp dst port 5000").unwrap();
    let mut copy = net.b.run(|| copy.queue(Bytes(8 << 20)).open().unwrap());
    let host = net.server(5000);
    sockopt::set_socket_recv_buffer_size_force(&host, 64 << 20).unwrap();
    let (stop, sent) = (AtomicBool::new(false), Mutex::new(None));
    let known = || *sent.lock().unwrap();
    let (got, lost) = std::thread::scope(|scope| {
        scope.spawn(|| *sent.lock().unwrap() = Some(stream(&net, &stop)));
        let following = scope.spawn(|| follow(&mut copy, &known));
        for round in 0..6 {
            let attach = [Attach::Auto, Attach::XdpGeneric, Attach::XdpNative][round % 3];
            let taker = || on().filter("udp dst port 9").unwrap().take(true);
            let taker = net.b.run(|| taker().attach(attach).open().unwrap());
            // Less and more than a move takes.
            std::thread::sleep(Duration::from_millis([10, 150][round / 3]));
            let other = || on().attach(Attach::XdpGeneric).open().unwrap();
            drop((round == 4).then(|| net.b.run(other)));
            drop(taker);
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        following.join().unwrap()
    });
    // The judge is the host, which gets a copy: a veth that goes into native
    // XDP, or out of it, drops what is in its queue.
    let mut text = [0; 4];
    let received =
        std::iter::from_fn(|| host.recv(&mut text).ok().map(|_| u32::from_be_bytes(text)));
    let host: Vec<u32> = received.collect();
    assert!(
        host.len() > 1000 && lost == 0,
        "{lost} lost, {} seen",
        host.len()
    );
    let (twice, missed) = differences(got, host);
    assert_eq!((twice, missed), (Vec::new(), Vec::new()), "each, once");
}

/// What the first has more often than the second, and the other way round.
fn differences(mut a: Vec<u32>, mut b: Vec<u32>) -> (Vec<u32>, Vec<u32>) {
    b.retain(|number| match a.iter().position(|other| other == number) {
        Some(place) => {
            a.swap_remove(place);
            false
        }
        None => true,
    });
    (a, b)
}

#[test]
fn a_user_without_rights_sees_what_the_policy_says_and_no_more() {
    let Some(net) = net() else { return };
    let policy = "[[host]]\ninterfaces = ['*']\npriority = 100\nfilter = 'udp port 5022'\n\
                  [[grant]]\nusers = ['*']\ninterfaces = ['*']\npriority_max = 50\nports_max = 8\n\
                  memory_max = '8 MiB'\ntake = true\nfilter = 'udp dst portrange 5000-5999'\n";
    let broker = Broker::start(&net, policy);
    let kept = net.server(5022);
    let taken = net.server(5023);
    let out_of_reach = net.server(53);
    let mut port = unprivileged::run(|| {
        let port = Port::on(net.eth_b.name())
            .broker(&broker.path)
            .take(true)
            .priority(50);
        port.open().unwrap()
    });
    for number in [5022, 5023, 53] {
        net.send(number, 3);
    }
    assert_eq!(numbers(&mut port, 3).len(), 3);
    assert!(none_more(&mut port));
    for socket in [&kept, &out_of_reach] {
        socket.recv(&mut [0; 9]).expect("the host gets its own");
    }
    assert!(taken.recv(&mut [0; 9]).is_err());
    unprivileged::run(|| {
        let beyond = Port::on(net.eth_b.name())
            .broker(&broker.path)
            .priority(51)
            .open();
        assert!(matches!(beyond, Err(PortError::Refused(_))));
        let ports = Connection::to(&broker.path).unwrap().ports().unwrap();
        assert_eq!(
            (ports.len(), ports[0].uid, ports[0].delivered),
            (1, unprivileged::NOBODY, 3)
        );
    });
    drop(port);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !Connection::to(&broker.path)
        .unwrap()
        .ports()
        .unwrap()
        .is_empty()
    {
        assert!(Instant::now() < deadline, "the port outlives its program");
    }
    net.send(5023, 1);
    taken
        .recv(&mut [0; 9])
        .expect("the host gets everything again");
}

#[test]
fn opens_and_changes_are_quick() {
    let Some(net) = net() else { return };
    let broker = Broker::start(&net, "");
    let open = |number: u16| {
        let port = Port::on(net.eth_b.name()).broker(&broker.path);
        port.filter(&format!("udp dst port {number}"))
            .unwrap()
            .open()
            .unwrap()
    };
    let mut ports: Vec<Port> = (1..=3).map(open).collect();
    std::thread::sleep(Duration::from_millis(300));
    let mut opened = Duration::MAX;
    for number in 100..120 {
        let began = Instant::now();
        ports.push(open(number));
        opened = opened.min(began.elapsed());
        // A machine that is busy has its time.
        if number >= 104 && opened < Duration::from_secs(1) {
            break;
        }
    }
    let mut changes = Vec::new();
    for number in 200..300 {
        let began = Instant::now();
        ports[0]
            .set_filter(&format!("udp dst port {number}"))
            .unwrap();
        changes.push(began.elapsed());
    }
    changes.sort();
    eprintln!(
        "open {opened:?}, change median {:?}, worst {:?}",
        changes[50], changes[99]
    );
    // No change waits for the kernel, which takes 8 ms and more, and which each
    // open waits for. The quickest counts: the machine is shared, and this build is
    // slow.
    let of_kernel = Duration::from_millis(8).max(opened / 4);
    assert!(opened < Duration::from_secs(1) && changes[0] < of_kernel);
    net.send(299, 2);
    assert_eq!(numbers(&mut ports[0], 2).len(), 2);
}
