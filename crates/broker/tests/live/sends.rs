//! Sending: by the superuser, and by users through paths that check.

use crate::net::{Net, net};
use crate::process::{Folder, Role, say};
use std::path::Path;
use std::time::{Duration, Instant};
use weir_broker::protocol::{ErrorKind, OpenPort, Opened, RequestKind, Response};
use weir_broker::runtime_dir::{RuntimeDir, RuntimeDirError};
use weir_broker::{Connection, Port, PortError, Timeout};
use weir_lab::frames::{datagram, to_all as frame};
use weir_lab::net::unprivileged::{self, NOBODY};
use weir_ring::XskTx;

/// An Ethernet type for experiments, as the policy below grants it.
const OURS: u16 = 0x88b5;

/// Host a, whom packets are for.
const A: [u8; 4] = [10, 0, 0, 1];

fn policy(send: &str) -> String {
    format!(
        "[[grant]]\nusers = [{NOBODY}]\ninterfaces = ['*']\nports_max = 2\n\
         memory_max = '4 MiB'\n{send}\n"
    )
}

const SEND: &str = "send = { ethertypes = [0x88b5], addresses = ['10.0.0.2', '2001:db8::2'] }";

fn mac(net: &Net) -> [u8; 6] {
    net.eth_b.mac().0
}

/// Everything of b's that comes to a.
fn judge(net: &Net) -> Port {
    let mac = net.eth_b.mac();
    net.a.run(|| {
        let port = Port::on(net.eth_a.name()).in_process();
        let filter = format!("ether src {mac} or ether src 02:00:00:00:99:99");
        port.filter(&filter).unwrap().open().unwrap()
    })
}

/// The frames that came, by type, until `count` or nothing more comes.
fn came(judge: &mut Port, count: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let wait = if all.len() < count { 1000 } else { 50 };
        let frames = judge.recv_batch(Timeout::after(Duration::from_millis(wait)));
        let before = all.len();
        // The kernel of b has its own to say, by IPv6.
        let frames = frames.unwrap().filter(|frame| {
            let is_ipv6 = frame.bytes()[12..14] == [0x86, 0xdd];
            !frame.is_outgoing() && !is_ipv6
        });
        all.extend(frames.map(|frame| frame.bytes().to_vec()));
        if all.len() == before {
            return all;
        }
    }
}

/// Waits until the broker has counted so much.
fn counted(port: &mut Port, total: u64) -> (u64, u64) {
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        let counters = port.counters().unwrap();
        if counters.sent + counters.refused >= total || Instant::now() > deadline {
            return (counters.sent, counters.refused);
        }
    }
}

fn port(net: &Net, folder: &Folder) -> Port {
    unprivileged::run(|| own_port(net, folder))
}

/// A port of the calling thread's user.
fn own_port(net: &Net, folder: &Folder) -> Port {
    let port = Port::on(net.eth_b.name()).broker(&folder.socket);
    port.filter("udp").unwrap().open().unwrap()
}

fn send_all(port: &mut Port, frames: &[Vec<u8>]) {
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let mut sent = 0;
    while sent < frames.len() {
        sent += port.send_batch(&frames[sent..]).unwrap();
    }
}

#[test]
pub(crate) fn a_user_sends_what_the_policy_allows_and_the_rest_is_counted() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, &policy(SEND));
    let mut judge = judge(&net);
    let own = mac(&net);
    let thief = [2, 0, 0, 0, 0x99, 0x99];
    let allowed = [
        frame(own, OURS, b"ours"),
        frame(own, 0x0800, &datagram([10, 0, 0, 2], A)),
    ];
    let refused = [
        frame(thief, OURS, b"a foreign station"),
        frame(own, 0x0800, &datagram([10, 0, 0, 7], A)),
        frame(own, 0x88b6, b"a foreign type"),
        frame(own, 0x8100, b"\0\x05\x88\xb5"),
    ];
    let mut port = port(&net, &folder);
    unprivileged::run(|| {
        for _ in 0..100 {
            send_all(&mut port, &allowed);
            send_all(&mut port, &refused);
        }
        // A whole batch in one call.
        let many = vec![allowed[0].as_slice(); 1000];
        assert_eq!(port.send_batch(&many).unwrap(), 1000);
    });
    assert_eq!(counted(&mut port, 1600), (1200, 400));
    let came = came(&mut judge, 1200);
    assert_eq!(came.len(), 1200);
    assert!(came.iter().all(|frame| allowed.contains(frame)));
    // It is shown to its user, and to the superuser.
    let shown = |mut connection: Connection| connection.ports().unwrap()[0].clone();
    let to_user = unprivileged::run(|| shown(Connection::to(&folder.socket).unwrap()));
    let to_root = shown(Connection::to(&folder.socket).unwrap());
    assert_eq!((to_user.sent, to_user.refused), (1200, 400));
    assert_eq!(to_user, to_root);
    drop(port);
    broker.end();
}

#[test]
pub(crate) fn without_a_grant_nothing_is_sent_and_a_filter_narrows_one() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, &policy(""));
    let own = mac(&net);
    let ours = frame(own, OURS, b"ours");
    unprivileged::run(|| {
        let early = Port::on(net.eth_b.name())
            .broker(&folder.socket)
            .send(true)
            .open();
        let late = own_port(&net, &folder).send_batch(&[&ours]).map(drop);
        for refused in [early.map(drop), late] {
            match refused {
                Err(PortError::Refused(refusal)) => assert_eq!(refusal.kind, ErrorKind::Denied),
                other => panic!("{other:?}"),
            }
        }
    });
    broker.end();
    // A station and addresses of its own, and one kind of datagrams.
    let send = "send = { source = '02:00:00:00:99:99', addresses = ['10.0.0.7'], \
                filter = 'udp dst port 9' }";
    let (broker, _) = folder.broker(&net, &policy(send));
    let mut judge = judge(&net);
    let guest = [2, 0, 0, 0, 0x99, 0x99];
    let mut port = port(&net, &folder);
    let allowed = frame(guest, 0x0800, &datagram([10, 0, 0, 7], A));
    let refused = [
        frame(own, 0x0800, &datagram([10, 0, 0, 2], A)),
        frame(guest, 0x0800, &datagram([10, 0, 0, 2], A)),
        frame(guest, OURS, b"ours"),
    ];
    unprivileged::run(|| {
        send_all(&mut port, &refused);
        send_all(&mut port, std::slice::from_ref(&allowed));
    });
    assert_eq!(counted(&mut port, 4), (1, 3));
    assert_eq!(came(&mut judge, 1), [allowed]);
    drop(port);
    broker.end();
}

#[test]
fn the_superuser_sends_in_process_and_by_a_broker_elsewhere() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, "");
    let mut judge = judge(&net);
    // Any source, with what the interface is called in the broker's
    // namespace, which is not this one.
    let frames = vec![frame([2, 0, 0, 0, 0x99, 0x99], OURS, b"any"); 70];
    let mut port = Port::on(net.eth_b.name())
        .broker(&folder.socket)
        .send(true)
        .open()
        .unwrap();
    send_all(&mut port, &frames);
    assert_eq!(came(&mut judge, 70), frames);
    net.b.run(|| {
        let port = Port::on(net.eth_b.name()).in_process();
        let mut port = port.open().unwrap();
        send_all(&mut port, &frames);
    });
    assert_eq!(came(&mut judge, 70), frames);
    drop(port);
    broker.end();
}

/// In a process of its own, as user nobody: sends a frame, says so, and waits.
pub(crate) fn sender() {
    let variable = |name| std::env::var(name).unwrap();
    let port = Port::on(&variable("WEIR_INTERFACE")).broker(Path::new(&variable("WEIR_SOCKET")));
    let mut port = port.filter("udp").unwrap().open().unwrap();
    let own = port.status().unwrap().address;
    let own: Vec<u8> = own
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    let frame = frame(own.try_into().unwrap(), OURS, b"from a process");
    send_all(&mut port, &[frame]);
    say("sent");
    std::thread::sleep(Duration::from_secs(60));
}

impl Folder {
    /// A user's program that has sent one frame.
    fn sender(&self, net: &Net) -> Role {
        let set = [
            ("WEIR_SOCKET", self.socket.to_str().unwrap()),
            ("WEIR_INTERFACE", net.eth_b.name()),
        ];
        let mut role = Role::start(net, "sender", Some(NOBODY), &set);
        role.hear("sent");
        role
    }

    /// The pins of paths.
    fn paths(&self, net: &Net) -> Vec<String> {
        let root = weir_link::bpf::PinFolder::open_of(&self.path.join("bpf"), self.user);
        let root = root.unwrap();
        let folders = root.list().unwrap().1;
        let mut pins = Vec::new();
        for folder in folders.iter().filter(|name| name.starts_with("paths-")) {
            pins.extend(root.folder(folder).unwrap().list().unwrap().0);
        }
        let devices = net.b.run(|| weir_link::net::interfaces().unwrap());
        let devices = devices.into_iter().map(|one| one.name);
        pins.extend(devices.filter(|name| name != "lo" && name != net.eth_b.name()));
        pins
    }

    /// Waits until their number is `count`.
    fn has_paths(&self, net: &Net, count: usize, what: &str) {
        until(what, || self.paths(net).len() == count);
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Who begins to send does not wait for the kernel.
#[test]
fn a_path_is_there_before_the_first_frame() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, &policy(SEND));
    // The superuser's ports need none.
    let own = Port::on(net.eth_b.name()).broker(&folder.socket);
    let own = own.filter("tcp").unwrap().open().unwrap();
    assert!(folder.paths(&net).is_empty());
    let mut port = port(&net, &folder);
    folder.has_paths(&net, 3, "it is made when the port is open");
    let made = folder.paths(&net);
    let device = net.b.device(made.last().unwrap()).unwrap();
    unprivileged::run(|| send_all(&mut port, &[frame(mac(&net), OURS, b"")]));
    assert_eq!(counted(&mut port, 1), (1, 0));
    assert_eq!(device.counters().unwrap().rx_frames, 1);
    folder.has_paths(&net, 6, "another is made for the next one");
    let now = folder.paths(&net);
    assert!(made.iter().all(|one| now.contains(one)));
    drop(port);
    folder.has_paths(&net, 3, "what was sent by is gone, and the spare stays");
    drop(own);
    folder.has_paths(&net, 0, "it goes with the last port");
    broker.end();
}

/// What was made ahead is of no use when the interface has changed since.
#[test]
fn a_path_is_as_wide_as_its_interface() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, &policy(SEND));
    let mut judge = judge(&net);
    let mut port = port(&net, &folder);
    folder.has_paths(&net, 3, "one is made ahead");
    for device in [&net.eth_a, &net.eth_b] {
        device.set_mtu(3_000).unwrap();
    }
    let long = frame(mac(&net), OURS, &[7; 2_900]);
    unprivileged::run(|| send_all(&mut port, std::slice::from_ref(&long)));
    assert!(came(&mut judge, 1) == [long]);
    drop(port);
    folder.has_paths(&net, 0, "both kinds are gone");
    broker.end();
}

#[test]
pub(crate) fn a_path_goes_with_its_program_its_port_and_its_broker() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, &policy(SEND));
    // The program dies.
    let sender = folder.sender(&net);
    folder.has_paths(
        &net,
        6,
        "a device, its check, counters; and for the next one",
    );
    sender.kill();
    folder.has_paths(&net, 0, "what a dead program sent by is gone");
    // The port is closed.
    let mut closed = port(&net, &folder);
    unprivileged::run(|| send_all(&mut closed, &[frame(mac(&net), OURS, b"")]));
    drop(closed);
    folder.has_paths(&net, 0, "what a closed port sent by is gone");
    // The broker ends for good, as the superuser asks it.
    let mut kept = port(&net, &folder);
    let ours = frame(mac(&net), OURS, b"");
    unprivileged::run(|| send_all(&mut kept, std::slice::from_ref(&ours)));
    let mut connection = Connection::to(&folder.socket).unwrap();
    connection.request(RequestKind::Stop).unwrap();
    let devices = || {
        let all = net.b.run(|| weir_link::net::interfaces().unwrap());
        all.len()
    };
    until("a broker that ends takes its paths along", || {
        devices() == 2
    });
    assert!(kept.send_batch(&[&ours]).is_err());
    broker.kill();
}

#[test]
pub(crate) fn a_path_outlives_its_broker_and_does_what_the_next_one_says() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let mut judge = judge(&net);
    let (broker, _) = folder.broker(&net, &policy(SEND));
    let own = mac(&net);
    let (ours, theirs) = (frame(own, OURS, b""), frame(own, 0x88b6, b""));
    let both = [ours.clone(), theirs.clone()];
    let mut port = port(&net, &folder);
    unprivileged::run(|| send_all(&mut port, &both));
    assert_eq!(counted(&mut port, 2), (1, 1));
    broker.kill();
    // Without a broker it goes on, and checks.
    unprivileged::run(|| send_all(&mut port, &both));
    assert_eq!(came(&mut judge, 2), [ours.clone(), ours.clone()]);
    // The next one counts on.
    let (broker, said) = folder.broker(&net, &policy(SEND));
    assert_eq!(said, "1 0");
    unprivileged::run(|| send_all(&mut port, &both));
    assert_eq!(counted(&mut port, 6), (3, 3));
    assert_eq!(came(&mut judge, 1), std::slice::from_ref(&ours));
    broker.kill();
    // One of other rules has the path made anew, at the next frame.
    let other = "send = { ethertypes = [0x88b6] }";
    let (broker, said) = folder.broker(&net, &policy(other));
    assert_eq!(said, "1 0");
    unprivileged::run(|| send_all(&mut port, &both));
    assert_eq!(counted(&mut port, 2), (1, 1));
    assert_eq!(came(&mut judge, 1), [theirs]);
    broker.kill();
    // And one that grants none ends it.
    let (broker, said) = folder.broker(&net, &policy(""));
    assert_eq!(said, "1 0");
    assert!(folder.paths(&net).is_empty());
    let refused = unprivileged::run(|| port.send_batch(&[&ours]));
    assert!(matches!(refused, Err(PortError::Refused(_))), "{refused:?}");
    // Cleaned up where the namespace is another's, nothing is left open that
    // would let unchecked frames out.
    broker.kill();
    let (broker, _) = folder.broker(&net, &policy(SEND));
    unprivileged::run(|| send_all(&mut port, &[ours]));
    broker.kill();
    let elsewhere = RuntimeDir::clean(&folder.path);
    assert!(
        matches!(elsewhere, Err(RuntimeDirError::Sweep(_))),
        "{elsewhere:?}"
    );
    assert_eq!(folder.paths(&net).len(), 3);
    // No other interface is removed, though a pin has its name.
    let pins = std::fs::read_dir(folder.path.join("bpf")).unwrap();
    let mut pins = pins.map(|entry| entry.unwrap().path());
    let paths = pins.find(|path| path.to_string_lossy().contains("/paths-"));
    let paths = std::fs::read_dir(paths.unwrap()).unwrap();
    let mut paths = paths.map(|entry| entry.unwrap().path());
    let counts = paths.find(|path| path.to_string_lossy().ends_with("-counts"));
    let counts = counts.unwrap();
    std::fs::rename(&counts, counts.with_file_name(net.eth_b.name())).unwrap();
    net.b.run(|| RuntimeDir::clean(&folder.path)).unwrap();
    let devices = net.b.run(|| weir_link::net::interfaces().unwrap());
    assert_eq!(devices.len(), 2, "lo and the link's end: {devices:?}");
}

#[test]
fn a_kept_egress_socket_of_a_closed_port_sends_nothing() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, &policy(SEND));
    let mut judge = judge(&net);
    let ours = frame(mac(&net), OURS, b"");
    // The socket and its memory outlive the port.
    let keep = || {
        let mut connection = Connection::to(&folder.socket)?;
        let ask = match crate::hostile::ask(net.eth_b.name()) {
            RequestKind::Open(asked) => RequestKind::Open(OpenPort {
                priority: 0,
                take: false,
                ..asked
            }),
            other => other,
        };
        let (Response::Opened(Opened { port, .. }), _) = connection.request(ask)? else {
            panic!("no port")
        };
        let (Response::TxReady(sends), mut fds) = connection.request(RequestKind::Send { port })?
        else {
            panic!("no path")
        };
        let (memory, socket) = (fds.pop().unwrap(), fds.pop().unwrap());
        let (bytes, chunk) = (sends.memory as usize, sends.chunk as usize);
        Ok(XskTx::open(socket, memory, bytes, chunk).unwrap())
    };
    let (mut kept, mut refused) = (Vec::new(), None);
    while refused.is_none() && kept.len() < 10 {
        match unprivileged::run(keep) {
            Ok(sender) => kept.push(sender),
            Err(PortError::Refused(refusal)) => refused = Some(refusal),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(kept.len(), 4, "twice what is granted");
    assert_eq!(refused.unwrap().kind, ErrorKind::Denied);
    // Its own way to send is no interface.
    let device = folder.paths(&net).pop().unwrap();
    let taken = unprivileged::run(|| Port::on(&device).broker(&folder.socket).open());
    assert!(matches!(taken, Err(PortError::Refused(_))), "{taken:?}");
    std::thread::sleep(Duration::from_millis(300));
    for sender in &mut kept {
        let _ = sender.send_batch(&[&ours]);
    }
    assert!(
        came(&mut judge, 0).is_empty(),
        "a closed port sends nothing"
    );
    // What is given back may be used again.
    drop(kept);
    until("what nobody holds is gone", || {
        let mut port = port(&net, &folder);
        unprivileged::run(|| port.send_batch(&[&ours]).is_ok())
    });
    assert_eq!(came(&mut judge, 1), [ours]);
    broker.end();
}
