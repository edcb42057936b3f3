//! Brokers that die, and programs that die, and what goes on.

use crate::net::{Net, follow, net, none_more, numbers, stream};
use crate::process::{Folder, Objects, Role};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_broker::protocol::{Listener, VERSION};
use weir_broker::runtime_dir::{RuntimeDir, RuntimeDirError};
use weir_broker::{Bytes, Connection, Port, PortError};
use weir_lab::net::unprivileged::{self, NOBODY};

const POLICY: &str = "[[grant]]\nusers = ['*']\ninterfaces = ['*']\npriority_max = 50\n\
                      ports_max = 8\nmemory_max = '64 MiB'\ntake = true\n\
                      filter = 'udp dst portrange 5000-5999'\n";

/// A port of user nobody.
fn port(net: &Net, folder: &Folder, filter: &str, take: bool) -> Port {
    unprivileged::run(|| {
        let port = Port::on(net.eth_b.name()).broker(&folder.socket);
        let port = port.filter(filter).unwrap().queue(Bytes(8 << 20));
        port.take(take).open().unwrap()
    })
}

#[test]
pub(crate) fn brokers_that_are_killed_or_replaced_interrupt_nothing() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, POLICY);
    let mut taker = port(&net, &folder, "udp", true);
    let mut copy = port(&net, &folder, "udp dst port 5000", false);
    let stop = AtomicBool::new(false);
    let sent = std::sync::Mutex::new(None);
    let known = || *sent.lock().unwrap();
    let (got, copied, broker) = std::thread::scope(|scope| {
        scope.spawn(|| *sent.lock().unwrap() = Some(stream(&net, &stop)));
        let following = scope.spawn(|| follow(&mut taker, &known));
        let copying = scope.spawn(|| follow(&mut copy, &known));
        let mut broker = broker;
        for round in 0..4 {
            std::thread::sleep(Duration::from_millis(100));
            match round % 2 {
                0 => broker.kill(),
                _ => broker.end(),
            }
            std::thread::sleep(Duration::from_millis(100));
            let said;
            (broker, said) = folder.broker(&net, POLICY);
            assert_eq!(said, "2 0", "both are taken over");
        }
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Relaxed);
        (following.join().unwrap(), copying.join().unwrap(), broker)
    });
    let all: Vec<u32> = (0..known().unwrap()).collect();
    assert!(all.len() > 1000, "there was something to lose");
    for (got, lost) in [&got, &copied] {
        assert_eq!(*lost, 0, "a queue of 8 MiB overflows?");
        let first = got.iter().zip(&all).find(|(got, sent)| got != sent);
        assert_eq!(
            (first, got.len()),
            (None, all.len()),
            "each, once, in order"
        );
    }
    // The port can be asked and changed again, by the broker of now.
    assert_eq!(taker.counters().unwrap().delivered, all.len() as u64);
    taker.set_filter("udp dst port 5001").unwrap();
    net.send(5001, 3);
    assert_eq!(numbers(&mut taker, 3), [0, 1, 2]);
    // What was changed is noted for the next, of many changes the last.
    for port in (5100..5400).chain([5001]) {
        taker.set_filter(&format!("udp dst port {port}")).unwrap();
    }
    broker.kill();
    let (broker, said) = folder.broker(&net, POLICY);
    assert_eq!(said, "2 0");
    net.send(5100, 3);
    net.send(5001, 2);
    assert_eq!(numbers(&mut taker, 2), [0, 1]);
    assert!(none_more(&mut taker));
    assert!(taker.counters().is_ok());
    // And belongs to the connection again: it goes with it at once.
    drop((taker, copy));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !Connection::to(&folder.socket)
        .unwrap()
        .ports()
        .unwrap()
        .is_empty()
    {
        assert!(Instant::now() < deadline, "the ports outlive their program");
    }
    broker.end();
}

#[test]
fn without_a_broker_frames_come_and_requests_fail() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, POLICY);
    let mut port = port(&net, &folder, "udp", false);
    broker.kill();
    net.send(5000, 5);
    assert_eq!(numbers(&mut port, 5).len(), 5);
    assert!(matches!(port.counters(), Err(PortError::NoBroker { .. })));
    // The policy of the next one grants nothing any more.
    let (broker, said) = folder.broker(&net, "");
    assert_eq!(said, "0 1");
    assert!(matches!(port.counters(), Err(PortError::Refused(_))));
    net.send(5000, 5);
    assert!(none_more(&mut port));
    broker.kill();
}

/// The socket stays until the broker's process is gone: a client that connects meanwhile gets no
/// answer, and must go on as without a broker.
#[test]
fn a_broker_on_its_way_out_is_none() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, POLICY);
    let mut port = port(&net, &folder, "udp", false);
    broker.kill();
    let leaving = Listener::bind(&folder.socket).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || while let Ok(None) = leaving.accept() {});
        let events = port.events();
        assert!(
            matches!(events, Err(PortError::NoBroker { .. })),
            "{events:?}"
        );
    });
    let (broker, said) = folder.broker(&net, POLICY);
    assert_eq!(said, "1 0");
    assert_eq!(port.events().unwrap(), []);
    assert!(port.counters().is_ok());
    broker.kill();
}

/// Programs of version 1, which its broker did not note, read other records.
#[test]
fn ports_of_another_version_of_the_protocol_end() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, POLICY);
    let mut port = port(&net, &folder, "udp", false);
    let _other = self::port(&net, &folder, "udp", false);
    broker.kill();
    let noted = folder.path.join("ports/1.port");
    let text = std::fs::read_to_string(&noted).unwrap();
    let old = text.replace(&format!("\"version\":{VERSION},"), "");
    assert_ne!(old, text);
    std::fs::write(&noted, old).unwrap();
    let (broker, said) = folder.broker(&net, POLICY);
    assert_eq!(said, "1 1");
    assert!(matches!(port.counters(), Err(PortError::Refused(_))));
    net.send(5000, 5);
    assert!(none_more(&mut port));
    broker.kill();
}

/// The process still has the group: its membership was lost meanwhile.
#[test]
fn a_group_that_a_user_has_lost_does_not_survive_the_broker() {
    const PASSWD: &str = "nobody:x:65534:65534::/:\n";
    const POLICY: &str = "[[grant]]\ngroups = [4711, 4712]\ninterfaces = ['*']\nports_max = 2\nmemory_max = '64 MiB'\n";
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    // The file does not know the other group.
    let listed = [PASSWD, "capture:x:4711:nobody\n"];
    let (broker, _) = folder.broker_with(&net, POLICY, listed);
    let port_of = |gid: u32| {
        let inside = || {
            set_thread_groups(&[Gid::from_raw(gid)]).unwrap();
            let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            let port = Port::on(net.eth_b.name()).broker(&folder.socket);
            port.filter("udp").unwrap().open().unwrap()
        };
        std::thread::scope(|scope| scope.spawn(inside).join().unwrap())
    };
    let [mut lost, mut stays] = [4711, 4712].map(port_of);
    broker.kill();
    let (broker, said) = folder.broker_with(&net, POLICY, listed);
    assert_eq!(said, "2 0", "nothing is lost yet");
    broker.kill();
    let (broker, said) = folder.broker_with(&net, POLICY, [PASSWD, "capture:x:4711:\n"]);
    assert_eq!(said, "1 1");
    assert!(matches!(lost.counters(), Err(PortError::Refused(_))));
    net.send(5000, 3);
    assert_eq!(numbers(&mut stays, 3), [0, 1, 2]);
    assert!(none_more(&mut lost));
    broker.kill();
}

#[test]
fn pins_without_an_owner_are_swept() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let server = net.server(5001);
    let (broker, _) = folder.broker(&net, POLICY);
    let reader = folder.reader(&net, NOBODY, "udp dst port 5001");
    let mut kept = port(&net, &folder, "udp dst port 5002", true);
    net.send(5001, 1);
    assert!(server.recv(&mut [0; 9]).is_err(), "taken");
    // The reader while the broker runs.
    reader.kill();
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.recv(&mut [0; 9]).is_err() {
        assert!(
            Instant::now() < deadline,
            "a dead reader's frames are taken"
        );
        net.send(5001, 1);
    }
    // Broker and reader.
    let reader = folder.reader(&net, NOBODY, "udp dst port 5001");
    broker.kill();
    reader.kill();
    let (broker, said) = folder.broker(&net, POLICY);
    assert_eq!(said, "1 1");
    net.send(5001, 1);
    server.recv(&mut [0; 9]).expect("the host gets its frames");
    // The broker, then the reader, when another broker runs already.
    let reader = folder.reader(&net, NOBODY, "udp dst port 5001");
    broker.kill();
    let (broker, said) = folder.broker(&net, POLICY);
    assert_eq!(said, "2 0");
    reader.kill();
    let deadline = Instant::now() + Duration::from_secs(60);
    let ports = || Connection::to(&folder.socket).unwrap().ports().unwrap();
    while ports().len() > 1 {
        assert!(Instant::now() < deadline, "the port outlives its program");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(ports().len(), 1);
    net.send(5001, 1);
    server.recv(&mut [0; 9]).expect("the host gets its frames");
    net.send(5002, 2);
    assert_eq!(numbers(&mut kept, 2).len(), 2);
    broker.kill();
}

#[test]
fn two_brokers_do_not_share_a_folder_and_cleaning_leaves_nothing() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, POLICY);
    let port = port(&net, &folder, "udp", true);
    let objects = folder.objects(&broker);
    assert!(objects.len() >= 10, "{objects:?}");
    assert!(matches!(
        RuntimeDir::open(&folder.path),
        Err(RuntimeDirError::InUse { .. })
    ));
    assert!(matches!(
        RuntimeDir::clean(&folder.path),
        Err(RuntimeDirError::InUse { .. })
    ));
    broker.kill();
    RuntimeDir::clean(&folder.path).unwrap();
    let server = net.server(5000);
    net.send(5000, 1);
    server.recv(&mut [0; 9]).expect("nothing is taken any more");
    drop(port);
    objects.assert_gone();
    assert_eq!(std::fs::read_dir(&folder.path).unwrap().count(), 0);
}

#[test]
pub(crate) fn kills_in_any_order_leave_nothing() {
    kills(8);
}

/// As the test above, for some minutes: `cargo test -p weir-broker --test
/// live -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn soak_two_hundred_kills() {
    kills(200);
}

/// Kills the broker, its reader, or both, again and again, while the host's
/// own traffic goes on.
fn kills(rounds: u64) {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let host = net.server(7);
    let mut objects = Objects::default();
    let (mut broker, _) = folder.broker(&net, POLICY);
    let mut reader = Some(folder.reader(&net, NOBODY, "udp dst port 5001"));
    // Any numbers: rounds of all three kinds.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..rounds {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(round | 1);
        objects.add(folder.objects(&broker));
        let kind = (state >> 33) % 3;
        let mut left = Some(broker);
        if kind != 0 {
            left.take().into_iter().for_each(Role::kill);
            net.send(7, 1);
            host.recv(&mut [0; 9]).expect("the host's own traffic");
        }
        if kind != 1
            && let Some(reader) = reader.take()
        {
            reader.kill();
        }
        broker = left.unwrap_or_else(|| {
            let (broker, said) = folder.broker(&net, POLICY);
            let expected = if kind == 1 { "1 0" } else { "0 1" };
            assert_eq!(said, expected, "round {round}");
            broker
        });
        net.send(7, 1);
        host.recv(&mut [0; 9]).expect("the host's own traffic");
        if reader.is_none() {
            // A port of an earlier broker's time is not a connection's.
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut asker = Connection::to(&folder.socket).unwrap();
            while !asker.ports().unwrap().is_empty() {
                assert!(Instant::now() < deadline, "the port outlives its program");
            }
            reader = Some(folder.reader(&net, NOBODY, "udp dst port 5001"));
        }
        net.send(5001, 1);
        let got = reader.as_mut().and_then(|reader| reader.try_hear("got"));
        assert!(got.is_some(), "round {round}, kind {kind}: no frame");
    }
    objects.add(folder.objects(&broker));
    broker.kill();
    drop(reader);
    RuntimeDir::clean(&folder.path).unwrap();
    objects.assert_gone();
}
