//! What happens to an interface while ports are open, and to their programs:
//! it is said, and frames go on coming where they can. In this process and by
//! a broker.

use crate::net::{Broker, Net, net, none_more, numbers};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use weir_broker::protocol::{Attach, Event};
use weir_broker::{Builder, Port, Signal, Timeout};
use weir_lab::net::unprivileged;
use weir_link::live::Sender;

/// Each may ask for it: alone it would have nothing but copies.
const POLICY: &str = "[[grant]]\nusers = ['*']\ninterfaces = ['eth*']\npriority_max = 9\n\
                      ports_max = 8\nmemory_max = '8 MiB'\ntake = true\n";

/// Runs for a port of this process, and for a port of user nobody by a broker.
fn both(run: impl Fn(&Net, &dyn Fn(&str) -> Builder, bool) + Sync) {
    let Some(own) = net() else { return };
    let on = |name: &str| Port::on(name).in_process();
    own.b.run(|| run(&own, &on, false));
    let Some(net) = net() else { return };
    let broker = Broker::start(&net, POLICY);
    let on = |name: &str| Port::on(name).broker(&broker.path);
    net.b.run(|| run(&net, &on, true));
}

fn open(builder: Builder, as_nobody: bool) -> Port {
    if as_nobody {
        unprivileged::run(|| builder.open().unwrap())
    } else {
        builder.open().unwrap()
    }
}

/// The port's next event; a broker's events take a moment.
fn news(port: &mut Port) -> Vec<Event> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let news = port.events().unwrap();
        if !news.is_empty() || Instant::now() > deadline {
            return news;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn receives(net: &Net, port: &mut Port) {
    net.send(5000, 3);
    assert_eq!(numbers(port, 3), [0, 1, 2]);
    assert!(none_more(port), "each once");
}

#[test]
fn what_happens_to_an_interface_is_said_and_ports_go_on() {
    for (take, attach) in [
        (false, Attach::Auto),
        (true, Attach::Auto),
        (true, Attach::XdpGeneric),
    ] {
        both(|net, on, as_nobody| {
            let mut eth = net.eth_b.clone();
            let port = on(eth.name()).filter("udp dst port 5000").unwrap();
            let mut port = open(port.take(take).attach(attach), as_nobody);
            receives(net, &mut port);
            eth.set_mtu(1400).unwrap();
            assert_eq!(news(&mut port), [Event::Mtu { mtu: 1400 }]);
            receives(net, &mut port);
            eth.down().unwrap();
            assert_eq!(news(&mut port), [Event::Down]);
            let status = port.status().unwrap();
            assert_eq!(
                (status.up, status.running, status.mtu),
                (false, false, 1400)
            );
            eth.up().unwrap();
            eth.wait_running().unwrap();
            assert_eq!(news(&mut port), [Event::Up]);
            neighbours(net);
            receives(net, &mut port);
            eth.rename("eth7").unwrap();
            let name = "eth7".to_owned();
            assert_eq!(news(&mut port), [Event::Renamed { name }]);
            receives(net, &mut port);
            // Whatever its name is now.
            let status = port.status().unwrap();
            assert_eq!(
                (&*status.name, status.up, status.header_len),
                ("eth7", true, 14)
            );
            assert_eq!(status.broadcast, "ff:ff:ff:ff:ff:ff");
            assert_eq!(status.address, eth.mac().to_string());
            assert!(
                status
                    .addresses
                    .iter()
                    .any(|(ip, len)| { ip.to_string() == "10.0.0.2" && *len == 24 }),
                "{status:?}"
            );
            assert!(status.attach.is_some() && status.cost.is_some());
            // It can be changed, and another opened beside it by the new name.
            port.set_filter("udp dst portrange 5000-5001").unwrap();
            let mut other = open(on("eth7").filter("udp").unwrap(), as_nobody);
            net.send(5001, 1);
            assert_eq!(numbers(&mut port, 1), [0]);
            assert!(!none_more(&mut other), "copies come first");
            // Removed, it ends.
            eth.delete().unwrap();
            assert_eq!(news(&mut port), [Event::Gone]);
            assert!(none_more(&mut port));
            assert!(port.status().is_err());
            assert!(port.set_filter("ip").is_err());
        });
    }
}

/// What a device that goes down has forgotten.
fn neighbours(net: &Net) {
    net.eth_a.wait_running().unwrap();
    net.eth_b
        .add_neighbour([10, 0, 0, 1], net.eth_a.mac())
        .unwrap();
}

#[test]
fn a_signal_comes_with_frames_if_asked_for() {
    let (mut heard, tell) = UnixStream::pair().unwrap();
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGUSR1, tell).unwrap();
    heard
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let mut signals = || {
        let mut byte = [0; 1];
        let mut count = 0;
        while heard.read(&mut byte).is_ok() {
            count += 1;
        }
        count
    };
    // Both as root: a thread of user nobody may not signal root's process.
    let Some(net) = net() else { return };
    let broker = Broker::start(&net, "");
    let ways: [Option<&Path>; 2] = [None, Some(&broker.path)];
    for way in ways {
        net.b.run(|| {
            let port = Port::on(net.eth_b.name())
                .filter("udp dst port 5000")
                .unwrap();
            let port = match way {
                None => port.in_process(),
                Some(path) => port.broker(path),
            };
            let mut port = port.open().unwrap();
            net.send(5000, 1);
            assert_eq!(signals(), 0, "nobody asked");
            assert_eq!(numbers(&mut port, 1), [0]);
            port.set_signal(Some(Signal::USR1)).unwrap();
            assert_eq!(signals(), 0, "nothing came");
            net.send(5000, 3);
            assert_eq!(signals(), 1, "once for the first");
            net.send(5000, 2);
            assert_eq!(signals(), 0, "until all is read");
            let mut got = 0;
            loop {
                let frames = port.recv_batch(Timeout::NOW).unwrap().len();
                got += frames;
                if frames == 0 {
                    break;
                }
            }
            assert_eq!(got, 5);
            assert_eq!(signals(), 0);
            net.send(5000, 1);
            assert_eq!(signals(), 1, "again");
            port.set_signal(None).unwrap();
            assert_eq!(numbers(&mut port, 1), [0]);
            assert!(none_more(&mut port));
            net.send(5000, 1);
            assert_eq!(signals(), 0, "no more");
        });
    }
}

#[test]
fn losses_are_counted_at_the_port_and_at_the_interface() {
    both(|net, on, as_nobody| {
        let port = on(net.eth_b.name()).filter("udp dst port 5000").unwrap();
        let mut port = open(port.queue(weir_broker::Bytes(4096)).tag(7), as_nobody);
        net.send(5000, 500);
        let counters = port.counters().unwrap();
        assert_eq!(counters.delivered + counters.lost, 500);
        assert!(counters.lost > 0 && counters.delivered > 10, "{counters:?}");
        assert_eq!(counters.interface_lost, 0);
        let frames = port.recv_batch(Timeout::after(Duration::from_secs(1)));
        let frames = frames
            .unwrap()
            .map(|frame| (frame.tag(), frame.timestamp()));
        let frames: Vec<_> = frames.collect();
        assert!(frames.len() > 2);
        assert!(frames.iter().all(|frame| *frame == (7, None)));
        // The device counts frames of protocols that the host does not know.
        let before = port.status().unwrap().dropped;
        let mut frame = vec![0xff; 12];
        frame.extend([0x88, 0xb5]);
        frame.resize(60, 0);
        net.a.run(|| {
            let sender = Sender::open(net.eth_a.index()).unwrap();
            (0..20).for_each(|_| sender.send(&frame).unwrap());
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        while port.counters().unwrap().interface_lost < 20 {
            assert!(Instant::now() < deadline, "{:?}", port.counters().unwrap());
        }
        assert!(port.status().unwrap().dropped >= before + 20);
    });
}

#[test]
fn root_sees_what_other_processes_of_roots_have_open() {
    let Some(net) = net() else { return };
    let mine = || {
        let all = weir_broker::in_process();
        let pid = std::process::id();
        let index = net.eth_b.index();
        let all = all.into_iter().filter(|one| {
            one.ports.iter().all(|port| port.pid == pid)
                && one
                    .interfaces
                    .iter()
                    .any(|eth| eth.ifindex == index && eth.attach.is_some())
        });
        all.flat_map(|one| one.ports)
            .filter(|port| port.filter.contains("5077"))
            .collect::<Vec<_>>()
    };
    let port = net.b.run(|| {
        let port = Port::on(net.eth_b.name()).in_process();
        port.filter("udp dst port 5077")
            .unwrap()
            .priority(3)
            .open()
            .unwrap()
    });
    net.send(5077, 4);
    let ports = mine();
    assert_eq!(ports.len(), 1, "{ports:?}");
    let seen = (
        ports[0].uid,
        ports[0].priority,
        ports[0].delivered,
        ports[0].copy,
    );
    assert_eq!(seen, (0, 3, 4, true));
    assert!(unprivileged::run(|| weir_broker::in_process().is_empty()));
    drop(port);
    assert_eq!(mine(), []);
}
