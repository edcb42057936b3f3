//! The wait of a user while the superuser binds filters that the kernel's
//! verifier takes long for.

use crate::net::{Broker, net};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weir_broker::compile::Source;
use weir_broker::protocol::{Attach, OpenPort, RequestKind, Response};
use weir_broker::{Bytes, Connection};
use weir_lab::net::unprivileged;

const POLICY: &str = "[[grant]]\nusers = ['*']\ninterfaces = ['*']\npriority_max = 9\n\
                      ports_max = 8\nmemory_max = '8 MiB'\n";

/// Connections of the superuser that change filters without a pause.
const CONNECTIONS: usize = 3;

/// Ports whose heavy filter stays, and is verified with each that changes: with
/// them the interface has nearly all the steps that it may.
const BOUND: usize = 1;

/// A filter that the kernel must run on its own, with 30 loads at computed
/// offsets one after the other, as a `protochain` has.
fn heavy(value: usize) -> Source {
    let (open, close) = ("ether[".repeat(31), "]".repeat(31));
    Source::expr(&format!("{open}0{close} = {value}"))
}

fn open(interface: &str, filter: Source) -> RequestKind {
    RequestKind::Open(OpenPort {
        interface: interface.to_owned(),
        filter,
        priority: 1,
        take: false,
        send: false,
        ring: Bytes(64 << 10),
        ring_min: None,
        snap_len: None,
        timestamps: false,
        tag: 0,
        attach: Attach::Tc,
        fanout: None,
        namespace: None,
    })
}

fn opened(connection: &mut Connection, ask: RequestKind) -> u32 {
    match connection.request(ask).unwrap() {
        (Response::Opened(opened), _) => opened.port,
        (other, _) => panic!("{other:?}"),
    }
}

/// Changes the filter of a port until `stop` is set, and counts the changes.
fn change(connection: &mut Connection, port: u32, stop: &AtomicBool, done: &AtomicUsize) {
    let deadline = Instant::now() + Duration::from_secs(45);
    let mut value = 0;
    while !stop.load(Ordering::Relaxed) && Instant::now() < deadline {
        value = (value + 1) % 256;
        let filter = heavy(value);
        let request = RequestKind::SetFilter { port, filter };
        connection.request(request).unwrap();
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// The time of each request of a user, and the number of the superuser's
/// requests that were answered during it.
type Waits = Vec<(Duration, usize)>;

#[test]
fn a_user_waits_for_few_of_the_superusers_heavy_filters() {
    let Some(net) = net() else { return };
    let broker = Broker::start(&net, POLICY);
    let interface = net.eth_b.name();
    let mut supers: Vec<(Connection, u32)> = Vec::new();
    for value in 0..CONNECTIONS + BOUND {
        let mut connection = Connection::to(&broker.path).unwrap();
        let port = opened(&mut connection, open(interface, heavy(value)));
        supers.push((connection, port));
    }
    let mut user = unprivileged::run(|| Connection::to(&broker.path)).unwrap();
    let udp = |port: u32| Source::expr(&format!("udp dst port {port}"));
    let port = opened(&mut user, open(interface, udp(5000)));
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut lists, mut changes, mut opens) = (Waits::new(), Waits::new(), Waits::new());
    let began = Instant::now();
    std::thread::scope(|scope| {
        for (connection, port) in &mut supers[..CONNECTIONS] {
            let (stop, done) = (&stop, &done);
            scope.spawn(move || change(connection, *port, stop, done));
        }
        std::thread::sleep(Duration::from_millis(300));
        let mut timed = |waits: &mut Waits, ask| {
            let (before, began) = (done.load(Ordering::Relaxed), Instant::now());
            let (answer, _) = user.request(ask).unwrap();
            waits.push((began.elapsed(), done.load(Ordering::Relaxed) - before));
            // The user's budget is no matter here.
            std::thread::sleep(Duration::from_millis(20));
            answer
        };
        for number in 0..5 {
            timed(&mut lists, RequestKind::Ports { after: None });
            let filter = udp(5001 + number);
            timed(&mut changes, RequestKind::SetFilter { port, filter });
            match timed(&mut opens, open(interface, udp(6000 + number))) {
                Response::Opened(opened) => {
                    let port = opened.port;
                    timed(&mut Vec::new(), RequestKind::Close { port });
                }
                other => panic!("{other:?}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let each = began.elapsed() / done.load(Ordering::Relaxed).max(1) as u32;
    eprintln!("a heavy filter each {each:?}");
    for (what, mut waits, most) in [
        ("lists", lists, 3),
        ("changes", changes, 4),
        ("opens", opens, 8),
    ] {
        waits.sort();
        let (median, worst) = (waits[waits.len() / 2], waits[waits.len() - 1]);
        eprintln!("{what}: median {median:?}, worst {worst:?} (time, the superuser's meanwhile)");
        let mut counts: Vec<usize> = waits.iter().map(|(_, count)| *count).collect();
        counts.sort();
        // The median: a machine that is busy wakes the user's thread late.
        let median = counts[counts.len() / 2];
        assert!(
            median <= most,
            "{what}: {median} of the superuser's came first"
        );
        let worst = counts.last().copied().unwrap_or_default();
        assert!(worst <= 20, "{what}: {worst} of the superuser's came first");
    }
}
