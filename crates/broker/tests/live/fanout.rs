//! Fan-out groups on a live link: each frame at one member, both directions of a
//! flow at the same one, whatever members and brokers come and go.

use crate::net::{Net, follow, net};
use crate::process::Folder;
use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use weir_broker::protocol::Attach;
use weir_broker::{Bytes, Connection, Port, PortError, Timeout};
use weir_lab::net::unprivileged::{self, NOBODY};

const POLICY: &str = "[[grant]]\nusers = ['*']\ninterfaces = ['*']\nports_max = 8\n\
                      memory_max = '64 MiB'\ntake = true\n";

/// Flows of each test.
const FLOWS: usize = 64;

/// Time from the death of a process until its share is dealt out, on a busy
/// machine.
const DEATH_MAX: Duration = Duration::from_secs(2);

/// Sockets of a, each of a flow.
fn clients(net: &Net) -> Vec<UdpSocket> {
    let bind = |_| UdpSocket::bind("10.0.0.1:0").unwrap();
    net.a.run(|| (0..FLOWS).map(bind).collect())
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[42..46].try_into().unwrap())
}

/// The frames of a port by flow, as the client's transport port, until none comes
/// any more.
fn by_flow(port: &mut Port) -> BTreeMap<u16, usize> {
    let mut flows = BTreeMap::new();
    loop {
        let frames = port.recv_batch(Timeout::after(Duration::from_millis(200)));
        let frames = frames.unwrap();
        if frames.is_empty() {
            return flows;
        }
        for frame in frames {
            let at = |at: usize| u16::from_be_bytes([frame.bytes()[at], frame.bytes()[at + 1]]);
            let ends = [at(34), at(36)];
            let client = ends.into_iter().find(|end| *end != 5000);
            *flows.entry(client.expect("a client's")).or_insert(0) += 1;
        }
    }
}

/// Queries and answers of 64 clients: each member sees both of the same clients.
#[test]
fn both_directions_of_each_flow_are_at_one_member() {
    const QUERIES: usize = 5;
    let Some(net) = net() else { return };
    for attach in [Attach::Tc, Attach::XdpGeneric] {
        let server = net.server(5000);
        net.b.run(|| {
            let member = |fanout: &str| {
                let port = Port::on(net.eth_b.name()).in_process().attach(attach);
                let port = port.filter("udp port 5000").unwrap();
                port.fanout(fanout.parse().unwrap()).open().unwrap()
            };
            let mut members: Vec<Port> = (0..4).map(|_| member("g")).collect();
            let mut shares: Vec<Port> = (0..4).map(|at| member(&format!("{at}/4"))).collect();
            let clients = clients(&net);
            for client in &clients {
                for _ in 0..QUERIES {
                    client.send_to(b"query", "10.0.0.2:5000").unwrap();
                    let (_, from) = server.recv_from(&mut [0; 9]).unwrap();
                    server.send_to(b"answer", from).unwrap();
                }
            }
            // What leaves is seen at tc in any case.
            let expected = 2 * QUERIES;
            for ports in [&mut members, &mut shares] {
                let mut seen = BTreeSet::new();
                let mut sizes = Vec::new();
                for port in ports {
                    let flows = by_flow(port);
                    sizes.push(flows.len());
                    for (client, count) in flows {
                        assert_eq!(count, expected, "both ways, {attach}");
                        assert!(seen.insert(client), "{client} is at two members");
                    }
                }
                assert_eq!(seen.len(), FLOWS);
                // The kernel chooses the clients' ports: most deals are far more even.
                assert!(sizes.iter().all(|count| *count >= 1), "{sizes:?}");
            }
        });
    }
}

/// Numbered datagrams of all flows in turn until stopped; when each was sent.
fn stream(net: &Net, stop: &AtomicBool) -> Vec<Instant> {
    let clients = clients(net);
    let mut sent = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        for client in &clients {
            let number = sent.len() as u32;
            sent.push(Instant::now());
            client
                .send_to(&number.to_be_bytes(), "10.0.0.2:5000")
                .unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    sent
}

fn member(net: &Net, folder: &Folder) -> Result<Port, PortError> {
    unprivileged::run(|| {
        let port = Port::on(net.eth_b.name()).broker(&folder.socket);
        let port = port.filter("udp dst port 5000")?.queue(Bytes(4 << 20));
        port.take(true).fanout("workers".parse().unwrap()).open()
    })
}

/// Runs `what` while datagrams are sent; returns when each was sent, and what each
/// port got.
fn under_traffic<T>(
    net: &Net,
    ports: &mut [Port],
    what: impl FnOnce() -> T,
) -> (Vec<Instant>, Vec<Vec<u32>>, T) {
    let stop = AtomicBool::new(false);
    let sent = std::sync::Mutex::new(None);
    let count = || {
        sent.lock()
            .unwrap()
            .as_ref()
            .map(|sent: &Vec<_>| sent.len() as u32)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let all = stream(net, &stop);
            *sent.lock().unwrap() = Some(all);
        });
        let count = &count;
        let readers = ports.iter_mut();
        let readers: Vec<_> = readers
            .map(|port| scope.spawn(move || follow(port, count)))
            .collect();
        let done = what();
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
        let got = readers.into_iter().map(|reader| {
            let (got, lost) = reader.join().unwrap();
            assert_eq!(lost, 0, "a queue of 4 MiB overflows?");
            got
        });
        let got = got.collect();
        (sent.lock().unwrap().take().unwrap(), got, done)
    })
}

/// A member is killed under traffic: what is sent after its death arrives at the
/// others, and each frame at one of them.
#[test]
fn a_dead_members_share_is_dealt_out() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, POLICY);
    let mut ports: Vec<Port> = (0..3).map(|_| member(&net, &folder).unwrap()).collect();
    let mut victim = folder.member(&net, NOBODY, "udp dst port 5000", "workers");
    let (sent, got, killed) = under_traffic(&net, &mut ports, || {
        // It has a share.
        victim.hear("got ");
        let killed = Instant::now();
        victim.kill();
        killed
    });
    let mut arrived = BTreeSet::new();
    for number in got.into_iter().flatten() {
        assert!(arrived.insert(number), "{number} came twice");
    }
    // The share that the victim had goes to the rest some time after the death.
    let missing = (0..sent.len() as u32).filter(|number| !arrived.contains(number));
    let last = missing.map(|number| sent[number as usize]).max();
    let after = last.map_or(Duration::ZERO, |last| {
        last.saturating_duration_since(killed)
    });
    println!("the last frame that was lost was sent {after:?} after the kill");
    assert!(after < DEATH_MAX, "{after:?} after the kill");
    let behind = sent.iter().filter(|at| **at > killed + after);
    assert!(behind.count() > FLOWS, "there are frames after that");
    drop(ports);
    broker.end();
}

/// Brokers that die or are replaced interrupt no group.
#[test]
pub(crate) fn groups_outlive_their_broker() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, POLICY);
    let mut ports: Vec<Port> = (0..3).map(|_| member(&net, &folder).unwrap()).collect();
    let (sent, got, broker) = under_traffic(&net, &mut ports, || {
        let mut broker = broker;
        for round in 0..2 {
            std::thread::sleep(Duration::from_millis(100));
            match round {
                0 => broker.kill(),
                _ => broker.end(),
            }
            let said;
            (broker, said) = folder.broker(&net, POLICY);
            assert_eq!(said, "3 0", "all are taken over");
        }
        broker
    });
    assert!(got.iter().all(|got| got.len() > FLOWS), "each has a share");
    let mut all: Vec<u32> = got.into_iter().flatten().collect();
    all.sort_unstable();
    let expected: Vec<u32> = (0..sent.len() as u32).collect();
    assert!(
        all == expected,
        "{} of {}, each once",
        all.len(),
        expected.len()
    );
    let mut connection = unprivileged::run(|| Connection::to(&folder.socket)).unwrap();
    let shown = connection.ports().unwrap();
    let shown: Vec<String> = shown
        .iter()
        .filter_map(|port| Some(port.fanout.as_ref()?.to_string()))
        .collect();
    assert_eq!(shown, ["workers:0/3", "workers:1/3", "workers:2/3"]);
    drop(ports);
    broker.end();
}

/// Members join while frames come: none is lost or comes twice, and the newcomers
/// get a share.
#[test]
fn members_join_under_traffic() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, POLICY);
    let mut ports = [member(&net, &folder).unwrap()];
    let (tell, joined) = channel();
    let (sent, mut got, later) = under_traffic(&net, &mut ports, || {
        std::thread::scope(|scope| {
            let join = |_| {
                std::thread::sleep(Duration::from_millis(50));
                let tell = tell.clone();
                let (net, folder) = (&net, &folder);
                scope.spawn(move || {
                    let mut port = member(net, folder).unwrap();
                    tell.send(()).unwrap();
                    let mut got = Vec::new();
                    let until = Instant::now() + Duration::from_millis(600);
                    while Instant::now() < until {
                        let frames = port.recv_batch(Timeout::after(Duration::from_millis(20)));
                        got.extend(frames.unwrap().map(|frame| number(frame.bytes())));
                    }
                    (port, got)
                })
            };
            let joining: Vec<_> = (0..3).map(join).collect();
            (0..3).for_each(|_| joined.recv().unwrap());
            joining
                .into_iter()
                .map(|one| one.join().unwrap())
                .collect::<Vec<_>>()
        })
    });
    for (mut port, mut numbers) in later {
        loop {
            let frames = port.recv_batch(Timeout::NOW).unwrap();
            if frames.is_empty() {
                break;
            }
            numbers.extend(frames.map(|frame| number(frame.bytes())));
        }
        assert!(numbers.len() > FLOWS, "a newcomer has a share");
        got.push(numbers);
    }
    let mut all: Vec<u32> = got.into_iter().flatten().collect();
    all.sort_unstable();
    let expected: Vec<u32> = (0..sent.len() as u32).collect();
    assert!(
        all == expected,
        "{} of {}, each once",
        all.len(),
        expected.len()
    );
    drop(ports);
    broker.end();
}
