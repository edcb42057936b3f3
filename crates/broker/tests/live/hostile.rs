//! Programs that mean harm: with what the broker gave them, and with its
//! socket.
#![allow(unsafe_code)] // Raw calls of a process that ignores the interface.

use crate::net::{Net, net, none_more, numbers};
use crate::process::{Folder, Role};
use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_broker::compile::Source;
use weir_broker::protocol::{
    Attach, Channel, OpenPort, Opened, Request, RequestKind, Response, ServerMessage, decode,
    encode,
};
use weir_broker::{Bytes, Connection, Port, PortError};
use weir_lab::net::unprivileged::{self, NOBODY};

/// Another user, of no name.
const OTHER: u32 = 65_432;

/// Each user sees and takes a range, whatever is asked for.
fn policy() -> String {
    let grant = |uid, from, to| {
        format!(
            "[[grant]]\nusers = [{uid}]\ninterfaces = ['*']\npriority_max = 9\nports_max = 4\n\
             memory_max = '2 MiB'\ntake = true\nfilter = 'udp dst portrange {from}-{to}'\n"
        )
    };
    grant(NOBODY, 5000, 5499) + &grant(OTHER, 5500, 5999)
}

pub(crate) fn ask(interface: &str) -> RequestKind {
    RequestKind::Open(OpenPort {
        priority: 9,
        take: true,
        ..OpenPort::copies(interface, Source::expr("udp"), Bytes(64 << 10))
    })
}

/// A port's descriptors, raw.
fn open(connection: &mut Connection, interface: &str) -> (u32, Vec<OwnedFd>) {
    let (opened, fds) = opened(connection, interface);
    (opened.port, fds)
}

/// A port of an unprivileged user, as soon as the broker has noticed that the user's
/// earlier connections are closed; its descriptors are closed.
fn opened_when_room(folder: &Folder, interface: &str, limit: Duration) -> (Connection, u32) {
    let deadline = Instant::now() + limit;
    loop {
        let connection = unprivileged::run(|| Connection::to(&folder.socket));
        let tried = connection.and_then(|mut connection| {
            let (answer, _) = connection.request(ask(interface))?;
            Ok((connection, answer))
        });
        match tried {
            Ok((connection, Response::Opened(opened))) => return (connection, opened.port),
            Ok((_, other)) => panic!("{other:?}"),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn opened(connection: &mut Connection, interface: &str) -> (Opened, Vec<OwnedFd>) {
    match connection.request(ask(interface)).unwrap() {
        (Response::Opened(opened), fds) => (opened, fds),
        (other, _) => panic!("{other:?}"),
    }
}

/// Takes up a port by some secret.
fn resume(socket: &Path, port: u32, secret: &str) -> Response {
    let channel = Channel::connect(socket).unwrap();
    let secret = secret.to_owned();
    let ask = RequestKind::Resume { port, secret };
    let bytes = encode(&Request { id: 1, kind: ask }).unwrap();
    channel.send(&bytes, &[], true).unwrap();
    let said = channel.receive(true).unwrap().unwrap();
    match decode(&said.bytes).unwrap() {
        ServerMessage::Answer { answer, .. } => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
pub(crate) fn users_do_not_get_each_others_frames_nor_the_hosts() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, &policy());
    let host = net.server(53);
    let mut nobodys = folder.reader(&net, NOBODY, "udp");
    let mut others = folder.reader(&net, OTHER, "udp or tcp or arp or icmp");
    net.send(5001, 3);
    net.send(5501, 5);
    net.send(53, 1);
    assert_eq!(nobodys.count(3), 3);
    assert_eq!(others.count(5), 5);
    host.recv(&mut [0; 9])
        .expect("what nobody is granted is the host's");
    // A port that is another user's, taken up with what holds one's own.
    let interface = net.eth_b.name();
    unprivileged::run(|| {
        let mut connection = Connection::to(&folder.socket).unwrap();
        let (opened, _fds) = opened(&mut connection, interface);
        let (own, secret) = (opened.port, opened.secret.unwrap());
        let all = connection.ports().unwrap();
        assert!(all.iter().all(|port| port.uid == NOBODY), "{all:?}");
        for port in (0..=own + 1).filter(|port| *port != own) {
            let filter = Source::expr("ip");
            for ask in [
                RequestKind::Close { port },
                RequestKind::SetFilter { port, filter },
            ] {
                let refused = connection.request(ask);
                assert!(matches!(refused, Err(PortError::Refused(_))), "{refused:?}");
            }
            for secret in [secret.as_str(), "", &secret[1..]] {
                let refused = resume(&folder.socket, port, secret);
                assert!(matches!(refused, Response::Refused(_)), "{refused:?}");
            }
        }
        // Nor is one's own another connection's.
        let refused = resume(&folder.socket, own, &secret);
        assert!(matches!(refused, Response::Refused(_)), "{refused:?}");
    });
    let mut asker = Connection::to(&folder.socket).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while asker.ports().unwrap().len() > 2 {
        assert!(Instant::now() < deadline, "the third is closed");
    }
    net.send(5001, 1);
    net.send(5501, 1);
    assert_eq!((nobodys.count(4), others.count(6)), (4, 6));
    broker.kill();
}

#[test]
pub(crate) fn a_user_gets_no_more_memory_by_closing_and_keeping() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    // Of closed ports a user may hold four times as many rings as ports.
    let policy = policy().replace("ports_max = 4", "ports_max = 16");
    let (broker, _) = folder.broker(&net, &policy);
    unprivileged::run(|| {
        let mut kept = Vec::new();
        for _ in 0..100 {
            let mut connection = Connection::to(&folder.socket).unwrap();
            match connection.request(ask(net.eth_b.name())) {
                Ok((_, fds)) => kept.extend(fds),
                Err(PortError::Refused(_)) => break,
                Err(other) => panic!("{other}"),
            }
        }
        let rings = kept.len() / 2;
        assert_eq!(rings, 32, "of 64 KiB, 2 MiB granted");
        drop(kept);
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut connection = Connection::to(&folder.socket).unwrap();
        while connection.request(ask(net.eth_b.name())).is_err() {
            assert!(
                Instant::now() < deadline,
                "what is given back is free again"
            );
        }
    });
    broker.kill();
}

#[test]
pub(crate) fn what_a_client_is_given_reaches_nothing_else() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, &policy());
    let port = Port::on(net.eth_b.name()).broker(&folder.socket);
    let port = port.filter("udp dst portrange 5000-5010").unwrap();
    let mut victim = port.priority(10).open().unwrap();
    let host = net.server(7);
    let set = [
        ("WEIR_SOCKET", folder.socket.to_str().unwrap()),
        ("WEIR_INTERFACE", net.eth_b.name()),
    ];
    let mut hostile = Role::start(&net, "hostile", Some(NOBODY), &set);
    // Frames for both, while it writes wild positions into its ring.
    hostile.hear("scribbles");
    let mut got = 0;
    for _ in 0..10 {
        net.send(5001, 100);
        got += numbers(&mut victim, 100).len();
    }
    assert_eq!(got, 1000, "the other port gets everything");
    let lost = hostile.hear("done");
    assert_eq!(lost, "", "what it could do: {lost}");
    net.send(7, 1);
    host.recv(&mut [0; 9]).expect("the host gets its own");
    let ports = Connection::to(&folder.socket).unwrap().ports().unwrap();
    assert_eq!(ports.len(), 2);
    for port in ports {
        assert_eq!(
            port.delivered + port.lost,
            1000,
            "every frame has its place"
        );
    }
    hostile.kill();
    net.send(5001, 1);
    assert_eq!(numbers(&mut victim, 1).len(), 1);
    assert!(none_more(&mut victim));
    broker.kill();
}

/// In a process of its own, as user nobody: every call that comes to mind.
pub(crate) fn hostile() {
    let variable = |name| std::env::var(name).unwrap();
    let mut connection = Connection::to(Path::new(&variable("WEIR_SOCKET"))).unwrap();
    let (_, fds) = open(&mut connection, &variable("WEIR_INTERFACE"));
    let [ring, held] = &fds[..] else {
        panic!("{} descriptors", fds.len())
    };
    let mut could = Vec::new();
    let page = rustix::param::page_size();
    let mapped = |at, bytes| map(ring.as_fd(), at, bytes);
    let consumer = mapped(0, page).expect("the reader's own page");
    if mapped(page, page).is_ok() {
        could.push("write the producer's page");
    }
    if mapped(2 * page, 64 << 10).is_ok() {
        could.push("write the records");
    }
    abuse_maps(ring.as_fd(), &mut could);
    abuse_objects(&mut could);
    abuse_files(ring.as_fd(), held.as_fd(), &mut could);
    crate::process::say("scribbles");
    let end = Instant::now() + Duration::from_secs(2);
    let mut state = 1u64;
    while Instant::now() < end {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let wild = [0, u64::MAX, 1 << 63, 7, state, state >> 40, u64::MAX - 8];
        for position in wild {
            // SAFETY: the first word of a page that was mapped for writing,
            // and stays.
            unsafe { consumer.cast::<u64>().write_volatile(position) };
        }
    }
    crate::process::say(&format!("done {}", could.join(", ")));
    std::thread::sleep(Duration::from_secs(60));
}

/// A mapping that is never taken away.
fn map(fd: BorrowedFd<'_>, at: usize, bytes: usize) -> Result<*mut libc::c_void, ()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let anywhere = std::ptr::null_mut();
    // SAFETY: a new mapping in a place of the kernel's choice.
    let start = unsafe {
        libc::mmap(
            anywhere,
            bytes,
            protection,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            at as i64,
        )
    };
    (start != libc::MAP_FAILED).then_some(start).ok_or(())
}

/// A call of bpf(2), with attributes of words; what it gives.
fn bpf(command: i32, words: &[u64]) -> i64 {
    let mut attributes = [0u64; 16];
    attributes[..words.len()].copy_from_slice(words);
    let bytes = size_of_val(&attributes);
    // SAFETY: the kernel reads and writes no more than the attributes, and
    // where they point, which is memory of ours that nothing else uses.
    unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), bytes) }
}

/// What can be done with the descriptor of a map.
fn abuse_maps(ring: BorrowedFd<'_>, could: &mut Vec<&'static str>) {
    let fd = ring.as_raw_fd() as u64;
    let mut room = [0u64; 8];
    let (key, value) = (room.as_mut_ptr() as u64, room[4..].as_mut_ptr() as u64);
    let commands = [
        (1, "look up in it"),
        (2, "update it"),
        (3, "delete from it"),
        (4, "list it"),
        (21, "look up and delete"),
    ];
    for (command, what) in commands {
        if bpf(command, &[fd, key, value, 0]) >= 0 {
            could.push(what);
        }
    }
    for (command, what) in [
        (24, "read a batch"),
        (26, "update a batch"),
        (27, "delete a batch"),
    ] {
        if bpf(command, &[0, value, key, value, 1 | fd << 32, 0, 0]) >= 0 {
            could.push(what);
        }
    }
    // Attach it, detach it, replace it, as if it were a link or a program.
    for (command, what) in [
        (8, "attach"),
        (9, "detach"),
        (29, "replace"),
        (34, "detach a link"),
    ] {
        if bpf(command, &[fd | fd << 32, 0, 0]) >= 0 {
            could.push(what);
        }
    }
    // Freezing stops further mappings for writing, of its own ring alone.
    bpf(22, &[fd]);
}

/// What can be reached by number.
fn abuse_objects(could: &mut Vec<&'static str>) {
    for (command, what) in [(13, "open programs"), (14, "open maps"), (30, "open links")] {
        if (1..3000).any(|id| bpf(command, &[id]) >= 0) {
            could.push(what);
        }
    }
    for (command, what) in [(11, "list programs"), (12, "list maps"), (31, "list links")] {
        if bpf(command, &[0]) >= 0 {
            could.push(what);
        }
    }
}

/// What holds the port, and the broker's folder.
fn abuse_files(ring: BorrowedFd<'_>, held: BorrowedFd<'_>, could: &mut Vec<&'static str>) {
    let path = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    if File::options().write(true).open(&path).is_ok() {
        could.push("write what holds the port");
    }
    if File::from(held.try_clone_to_owned().unwrap())
        .write(b"!")
        .is_ok()
    {
        could.push("write by the descriptor");
    }
    let target = std::fs::read_link(&path).unwrap();
    let folder = target.parent().unwrap();
    let keep = folder.parent().unwrap();
    if std::fs::read_dir(folder).is_ok() || std::fs::read_dir(keep.join("bpf")).is_ok() {
        could.push("list what the broker keeps");
    }
    let pin = CString::new(keep.join("bpf/mine").into_os_string().into_vec()).unwrap();
    if bpf(6, &[pin.as_ptr() as u64, ring.as_raw_fd() as u64]) >= 0 {
        could.push("pin where the broker does");
    }
    if std::fs::remove_file(&target).is_ok() || File::create(keep.join("mine")).is_ok() {
        could.push("change what the broker keeps");
    }
    if File::open(folder.join("1.port")).is_ok() || File::open(keep.join("lock")).is_ok() {
        could.push("open what the broker keeps");
    }
}

/// Asks as the superuser, and says how long it took.
fn answered(net: &Net, folder: &Folder) -> Duration {
    let began = Instant::now();
    let mut connection = Connection::to(&folder.socket).unwrap();
    connection.interface(net.eth_b.name()).unwrap();
    began.elapsed()
}

#[test]
fn the_broker_answers_whatever_others_do() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let (broker, _) = folder.broker(&net, &policy());
    // A blocked client would otherwise wait for ever.
    let limit = Duration::from_secs(10);
    // Many connections, some of which say nothing, or nonsense, or half.
    for _ in 0..20 {
        let kept: Vec<Channel> = unprivileged::run(|| {
            let connect = |number: u32| {
                let channel = Channel::connect(&folder.socket).ok()?;
                let said: &[u8] = match number % 4 {
                    0 => return Some(channel),
                    1 => b"weir",
                    2 => &[0xff; 4096],
                    _ => b"weir\x02\0\0\0{\"id\":1,\"ask\":{\"op",
                };
                let _ = channel.send(said, &[], false);
                Some(channel)
            };
            (0..500).filter_map(connect).collect()
        });
        assert!(answered(&net, &folder) < limit, "{} others", kept.len());
    }
    // One that closes what it was given, and goes on asking.
    let (mut connection, port) = opened_when_room(&folder, net.eth_b.name(), limit);
    let filter = Source::expr("udp dst port 5001");
    let (answer, _) = connection
        .request(RequestKind::SetFilter { port, filter })
        .unwrap();
    assert!(matches!(answer, Response::Done), "{answer:?}");
    net.send(5001, 1);
    assert!(answered(&net, &folder) < limit);
    drop(connection);
    // Programs that are stopped in the middle of a request.
    for wait in [1, 5, 20, 40] {
        let stopped = folder.reader_at_once(&net, NOBODY, "udp");
        std::thread::sleep(Duration::from_millis(wait));
        stopped.stop();
        assert!(answered(&net, &folder) < limit);
        stopped.kill();
    }
    let deadline = Instant::now() + limit;
    while !Connection::to(&folder.socket)
        .unwrap()
        .ports()
        .unwrap()
        .is_empty()
    {
        assert!(Instant::now() < deadline, "ports outlive their programs");
    }
    broker.end();
}

/// A grant can be used again at once: a user that closes all ports and opens again waits until the
/// kernel has freed them.
#[test]
pub(crate) fn memory_of_a_closed_port_is_waited_for() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let policy = policy().replace("2 MiB", "64 KiB");
    let (broker, _) = folder.broker(&net, &policy);
    unprivileged::run(|| {
        let mut connection = Connection::to(&folder.socket).unwrap();
        for _ in 0..5 {
            let (port, fds) = open(&mut connection, net.eth_b.name());
            drop(fds);
            connection.request(RequestKind::Close { port }).unwrap();
        }
        // But not for ever.
        let (port, _fds) = open(&mut connection, net.eth_b.name());
        connection.request(RequestKind::Close { port }).unwrap();
        let began = Instant::now();
        let refused = connection.request(ask(net.eth_b.name())).unwrap_err();
        assert!(refused.to_string().contains("in use"), "{refused}");
        assert!(began.elapsed() < Duration::from_secs(10));
    });
    broker.kill();
}

/// A filter of this many loads at computed offsets: the verifier goes through a
/// load routine for each.
fn nested(loads: usize, value: usize) -> String {
    let (open, close) = ("ether[".repeat(loads + 1), "]".repeat(loads + 1));
    format!("{open}0{close} = {value}")
}

/// All filters of an interface are one program, which is verified with each
/// that comes.
#[test]
fn costly_filters_of_users_do_not_keep_root_waiting() {
    let Some(net) = net() else { return };
    let folder = Folder::new(&net);
    let policy = policy().replace("ports_max = 4", "ports_max = 16");
    let (broker, _) = folder.broker(&net, &policy);
    let ask = |filter: String, attach: Attach| {
        let RequestKind::Open(asked) = ask(net.eth_b.name()) else {
            unreachable!("it asks for a port")
        };
        RequestKind::Open(OpenPort {
            filter: Source::expr(&filter),
            take: false,
            attach,
            ..asked
        })
    };
    for attach in [Attach::Tc, Attach::XdpGeneric] {
        let mut kept = Vec::new();
        let mut connection = unprivileged::run(|| Connection::to(&folder.socket)).unwrap();
        let refused = connection
            .request(ask(nested(1000, 5), attach))
            .unwrap_err();
        // With the one of the grant's filter.
        let figures = "1001 computed offsets";
        assert!(refused.to_string().contains(figures), "{refused}");
        // One of them is the grant's filter's: so two filters are all that fits.
        for value in 0..16 {
            let began = Instant::now();
            match connection.request(ask(nested(20, value), attach)) {
                Ok((Response::Opened(_), fds)) => kept.push(fds),
                Ok((other, _)) => panic!("{other:?}"),
                Err(PortError::Refused(_)) => break,
                Err(other) => panic!("{other}"),
            }
            eprintln!("{attach:?}: a user's {:?}", began.elapsed());
        }
        assert!(kept.len() > 1, "{} filters were accepted", kept.len());
        let began = Instant::now();
        let mut root = Connection::to(&folder.socket).unwrap();
        for value in 0..2 {
            let began = Instant::now();
            let opened = root.request(ask(nested(20, value), attach));
            opened.unwrap_or_else(|error| panic!("{error}"));
            eprintln!("{attach:?}: root's {:?}", began.elapsed());
        }
        // A tenth of that on an idle machine.
        assert!(began.elapsed() < Duration::from_secs(5), "root waited");
        drop((root, connection, kept));
        let mut asker = Connection::to(&folder.socket).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !asker.ports().unwrap().is_empty() {
            assert!(Instant::now() < deadline, "ports outlive their connections");
        }
    }
    broker.kill();
}
