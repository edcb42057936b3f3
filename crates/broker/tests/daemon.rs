//! The daemon over interfaces in memory: ports, policy, and clients that mean
//! it ill.

mod support;

use rustix::net::sockopt;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use support::{Running, copy, udp};
use weir_broker::Bytes;
use weir_broker::compile::Source;
use weir_broker::protocol::{
    Channel, ErrorKind, Event, MESSAGE_LEN_MAX, OpenPort, RequestKind, Response, ServerMessage,
    decode, encode,
};
use weir_lab::net::unprivileged;
use weir_lab::rng::Rng;
use weir_lab::testenv;

/// Long enough for anything that ought to happen.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// What everyone but the superuser may do.
/// Who runs the tests may do everything, root or not.
const ALL: &str = r#"
[[grant]]
users = ["*"]
interfaces = ["*"]
priority_max = 65535
ports_max = 4096
ports_total = 4096
memory_max = "1 GiB"
memory_total = "1 GiB"
take = true
"#;

const POLICY: &str = r#"
[[host]]
interfaces = ["*"]
priority = 100
filter = "udp port 22"

[[grant]]
users = ["*"]
interfaces = ["eth0"]
priority_max = 50
ports_max = 3
memory_max = "256 KiB"
take = true
filter = "udp portrange 5000-5999 or port 22"
"#;

#[test]
fn a_queue_without_room_is_refused() {
    let running = Running::start(ALL);
    let mut client = running.connect();
    let with = |ring| OpenPort {
        ring,
        ..copy("udp")
    };
    for ring in [Bytes(0), Bytes(1), Bytes(4095)] {
        let refusal = client.open(with(ring)).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::Request);
        let said = refusal.to_string();
        assert!(
            said.contains(&ring.to_string()) && said.contains("4 KiB"),
            "{said}"
        );
    }
    client.open(with(Bytes(4096))).expect("a page");
}

#[test]
fn ports_get_their_frames_and_go_with_the_connection() {
    let running = Running::start(ALL);
    let mut client = running.connect();
    let watch = client.open(copy("udp")).unwrap();
    let take = OpenPort {
        take: true,
        tag: 9,
        ..copy("udp port 53")
    };
    let take = client.open(take).unwrap();
    let send = |port| running.fabric.send(running.eth, &udp(port));
    assert!(!send(53), "taken from the host");
    assert!(send(54));
    let got = |slot| running.fabric.receive(running.eth, slot);
    assert_eq!(got(take.slot).map(|got| got.tag), Some(9));
    assert_eq!(got(take.slot), None);
    assert!(got(watch.slot).is_some() && got(watch.slot).is_some());

    let port = take.port;
    let filter = Source::expr("udp port 54");
    assert_eq!(
        client.ask(RequestKind::SetFilter { port, filter }).0,
        Response::Done
    );
    assert!(send(53) && !send(54));
    let wrong = RequestKind::SetFilter {
        port,
        filter: Source::expr("udp prot 1"),
    };
    let (Response::Refused(refusal), _) = client.ask(wrong) else {
        panic!("the filter is wrong");
    };
    assert_eq!(
        (refusal.kind, refusal.span),
        (ErrorKind::Filter, Some((4, 8)))
    );
    assert!(!send(54), "the old filter stays");

    let (Response::Ports { ports, more: false }, _) =
        client.ask(RequestKind::Ports { after: None })
    else {
        panic!("there are two ports");
    };
    let shown: Vec<_> = ports
        .iter()
        .map(|one| (one.copy, one.delivered, &*one.filter))
        .collect();
    assert_eq!(shown, [(true, 5, "udp"), (false, 3, "udp port 54")]);

    assert_eq!(client.ask(RequestKind::Close { port }).0, Response::Done);
    assert!(send(54));
    assert!(matches!(
        client.ask(RequestKind::Close { port }).0,
        Response::Refused(_)
    ));
    drop(client);
    running.wait_until_clean();
}

#[test]
fn a_policy_holds_whatever_is_asked() {
    if !testenv::root() {
        return;
    }
    let running = Running::start(POLICY);
    let refused = |change: fn(&mut OpenPort)| {
        unprivileged::run(|| {
            let mut asked = copy("");
            change(&mut asked);
            running.connect().open(asked).unwrap_err()
        })
    };
    for (change, words) in [
        (
            (|asked| asked.priority = 51) as fn(&mut OpenPort),
            "priority 51",
        ),
        (|asked| asked.ring = Bytes(512 << 10), "512 KiB"),
        (|asked| asked.send = true, "sending"),
        (|asked| asked.interface = "eth1".into(), "eth1"),
        (
            |asked| asked.interface = "../x".into(),
            "no interface's name",
        ),
        (|asked| asked.ring = Bytes(u64::MAX), "at most"),
    ] {
        let refusal = refused(change);
        assert!(refusal.message.contains(words), "{refusal}");
    }
    unprivileged::run(|| {
        let mut client = running.connect();
        let wide = OpenPort {
            take: true,
            priority: 50,
            ..copy("")
        };
        let port = client.open(wide).unwrap();
        let sent: Vec<bool> = [53, 22, 4999, 5000, 5999, 6000]
            .map(|port| running.fabric.send(running.eth, &udp(port)))
            .to_vec();
        assert_eq!(
            sent,
            [true, true, true, false, false, true],
            "the host gets its own"
        );
        assert_eq!(
            running
                .fabric
                .receive(running.eth, port.slot)
                .unwrap()
                .bytes,
            udp(5000)
        );
        client.open(copy("")).unwrap();
        client.open(copy("")).unwrap();
        let refusal = client.open(copy("")).unwrap_err();
        assert!(refusal.message.contains("3 ports"), "{refusal}");
        // Neither can another connection have more.
        let refusal = running.connect().open(copy("")).unwrap_err();
        assert!(refusal.message.contains("3 ports"), "{refusal}");
        assert!(matches!(
            client.ask(RequestKind::Stop).0,
            Response::Refused(_)
        ));
        let unknown = RequestKind::Interface { name: "lo".into() };
        assert!(matches!(client.ask(unknown).0, Response::Refused(_)));
    });
    running.wait_until_clean();
}

#[test]
fn users_do_not_see_or_touch_each_others_ports() {
    if !testenv::root() {
        return;
    }
    let running = Running::start(POLICY);
    let mut root = running.connect();
    let port = root.open(copy("udp")).unwrap().port;
    unprivileged::run(|| {
        let mut client = running.connect();
        let own = client.open(copy("udp")).unwrap().port;
        let (Response::Ports { ports, .. }, _) = client.ask(RequestKind::Ports { after: None })
        else {
            panic!("ports");
        };
        assert_eq!(ports.iter().map(|one| one.port).collect::<Vec<_>>(), [own]);
        let filter = Source::expr("");
        for ask in [
            RequestKind::Close { port },
            RequestKind::SetFilter { port, filter },
        ] {
            let (Response::Refused(refusal), _) = client.ask(ask) else {
                panic!("not theirs");
            };
            assert_eq!(refusal.kind, ErrorKind::Port);
        }
    });
    let (Response::Ports { ports, .. }, _) = root.ask(RequestKind::Ports { after: None }) else {
        panic!("ports");
    };
    assert!(ports.iter().any(|one| one.port == port));
    // A connection of the same user is another's too.
    let mut other = running.connect();
    assert!(matches!(
        other.ask(RequestKind::Close { port }).0,
        Response::Refused(_)
    ));
}

#[test]
fn nonsense_ends_the_connection_with_a_reason_and_hurts_no_other() {
    let running = Running::start(ALL);
    let mut steady = running.connect();
    let port = steady.open(copy("udp")).unwrap();
    let mut rng = Rng::new(0x6a7b);
    for round in 0..300 {
        let mut client = running.connect();
        let bytes = match round % 4 {
            0 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            1 => vec![7; MESSAGE_LEN_MAX + 1],
            2 => (0..rng.below(200) + 1)
                .map(|_| rng.below(256) as u8)
                .collect(),
            _ => {
                let mut bytes = encode(&()).unwrap();
                bytes.truncate(8 + rng.below(4));
                bytes
            }
        };
        client.channel.send(&bytes, &[], true).unwrap();
        assert!(!client.goodbye().is_empty());
    }
    assert!(running.fabric.send(running.eth, &udp(1)));
    assert!(running.fabric.receive(running.eth, port.slot).is_some());
    let interface = RequestKind::Interface {
        name: "eth0".into(),
    };
    let (Response::Interface(status), _) = steady.ask(interface) else {
        panic!("the facts of eth0");
    };
    assert_eq!((status.mtu, status.attach.as_deref()), (1500, Some("tc")));
}

#[test]
fn connections_are_bounded_for_each_user() {
    if !testenv::root() {
        return;
    }
    let running = Running::start(POLICY);
    unprivileged::run(|| {
        let mut open = Vec::new();
        let mut refused = 0;
        for _ in 0..1000 {
            let Ok(channel) = Channel::connect(&running.path) else {
                refused += 1;
                continue;
            };
            open.push(channel);
        }
        let mut ended = vec![false; open.len()];
        let began = Instant::now();
        loop {
            for (ended, channel) in ended.iter_mut().zip(&open) {
                *ended |= matches!(channel.receive(false), Err(_) | Ok(Some(_)));
            }
            let ended = ended.iter().filter(|ended| **ended).count();
            if ended + refused >= 1000 - 64 {
                break;
            }
            let told = format!("{ended} ended, {refused} refused");
            assert!(began.elapsed() < WAIT_MAX, "{told}");
            std::thread::sleep(Duration::from_millis(5));
        }
        // The superuser is served all the while.
        drop(open);
    });
    let began = Instant::now();
    running.connect().open(copy("udp")).unwrap();
    assert!(began.elapsed() < WAIT_MAX);
}

#[test]
fn a_client_that_does_not_read_is_dropped() {
    let running = Running::start(ALL);
    let mut client = running.connect();
    client.open(copy("udp")).unwrap();
    let ask = RequestKind::Interface {
        name: "eth0".into(),
    };
    let bytes = encode(&weir_broker::protocol::Request { id: 0, kind: ask }).unwrap();
    // Answers fill the socket, then the daemon asks for no more: our own
    // requests fill up too. All the while others are served.
    let mut sent = 0;
    for _ in 0..10 {
        while client.channel.send(&bytes, &[], false).unwrap() == weir_broker::protocol::Sent::Whole
        {
            sent += 1;
            assert!(sent < 1_000_000, "the daemon buffers without end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let began = Instant::now();
    running.connect().open(copy("udp")).unwrap();
    assert!(began.elapsed() < WAIT_MAX);
    drop(client);
    running.wait_until_clean();
}

#[test]
fn what_happens_to_an_interface_is_said() {
    let running = Running::start(ALL);
    let mut client = running.connect();
    let port = client.open(copy("udp")).unwrap().port;
    running.fabric.change(running.eth, |facts| {
        facts.mtu = 9000;
        facts.is_running = false;
        facts.name = "lan0".into();
    });
    running.fabric.notify();
    let mut events = Vec::new();
    while events.len() < 3 {
        let message = client.channel.receive(true).unwrap().unwrap();
        let ServerMessage::Event { port: of, event } = decode(&message.bytes).unwrap() else {
            panic!("an event");
        };
        assert_eq!(of, port);
        events.push(event);
    }
    let renamed = Event::Renamed {
        name: "lan0".into(),
    };
    assert_eq!(events, [renamed, Event::Mtu { mtu: 9000 }, Event::Down]);
    running.fabric.remove(running.eth);
    running.fabric.notify();
    let message = client.channel.receive(true).unwrap().unwrap();
    let event = Event::Gone;
    assert_eq!(
        decode::<ServerMessage>(&message.bytes).unwrap(),
        ServerMessage::Event { port, event }
    );
    assert!(matches!(
        client.ask(RequestKind::Close { port }).0,
        Response::Refused(_)
    ));
    running.wait_until_clean();
}

#[test]
fn what_happens_is_said_also_when_a_port_is_opened_first() {
    let running = Running::start(ALL);
    let mut client = running.connect();
    let port = client.open(copy("udp")).unwrap().port;
    running.fabric.change(running.eth, |facts| facts.mtu = 9000);
    running.connect().open(copy("tcp")).unwrap();
    running.fabric.notify();
    let message = client.channel.receive(true).unwrap().unwrap();
    let event = Event::Mtu { mtu: 9000 };
    assert_eq!(
        decode::<ServerMessage>(&message.bytes).unwrap(),
        ServerMessage::Event { port, event }
    );
}

#[test]
fn many_ports_are_listed_page_by_page() {
    let running = Running::start(ALL);
    let mut client = running.connect();
    let long = format!("udp port 53 or ({})", vec!["udp"; 300].join(" or "));
    for _ in 0..80 {
        client.open(copy(&long)).unwrap();
    }
    let (mut after, mut seen, mut pages) = (None, 0, 0);
    loop {
        let (Response::Ports { ports, more }, _) = client.ask(RequestKind::Ports { after }) else {
            panic!("ports");
        };
        seen += ports.len();
        pages += 1;
        after = ports.last().map(|last| last.port);
        if !more {
            break;
        }
    }
    assert_eq!(seen, 80);
    assert!(pages > 1);
}

/// A socket whose close(2) blocks: of SO_LINGER and with unsent data. It does
/// so until the other end is gone, which comes with it.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    sockopt::set_socket_recv_buffer_size(&listener, 4 << 10).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    sockopt::set_socket_send_buffer_size(&near, 4 << 10).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    let mut idle = 0;
    // Until the far end has no room, and stays so.
    while idle < 5 {
        match std::io::Write::write(&mut &near, &[7; 1 << 16]) {
            Ok(_) => idle = 0,
            Err(_) => idle += 1,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    near.set_nonblocking(false).unwrap();
    let linger = Some(Duration::from_secs(600));
    sockopt::set_socket_linger(&near, linger).unwrap();
    (near.into(), far)
}

/// How long the superuser waits for an answer.
fn answered(running: &Running) -> Duration {
    let began = Instant::now();
    let name = "eth0".into();
    let (answer, _) = running.connect().ask(RequestKind::Interface { name });
    assert!(matches!(answer, Response::Interface(_)), "{answer:?}");
    began.elapsed()
}

#[test]
fn the_kernel_refuses_descriptors_of_clients() {
    let (socket, _other) = Channel::pair().unwrap();
    let set = weir_link::net::set_pass_rights(&socket.into(), false);
    if testenv::kernel("SO_PASSRIGHTS, as of Linux 6.16", set).is_none() {
        return;
    }
    let running = Running::start(POLICY);
    let file = std::fs::File::open("/dev/null").unwrap();
    // Before it is accepted, and after.
    let client = running.connect();
    for _ in 0..2 {
        let sent = client.channel.send(b"x", &[file.as_fd()], true);
        let error = sent.expect_err("not to be passed");
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        answered(&running);
    }
}

#[test]
fn descriptors_that_block_when_closed_delay_no_client() {
    if !testenv::root() {
        return;
    }
    // As before Linux 6.16.
    let running = Running::start_with(POLICY, |listener| listener.accept_descriptors());
    let far = block(&running, unprivileged::NOBODY);
    // Behind what is no request, in the queue of a connection that is ended.
    let file = std::fs::File::open("/dev/null").unwrap();
    unprivileged::run(|| {
        let client = running.connect();
        client.channel.send(b"x", &[], true).unwrap();
        let _ = client.channel.send(b"x", &[file.as_fd()], true);
    });
    for _ in 0..20 {
        let time = answered(&running);
        assert!(time < Duration::from_secs(5), "{time:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Their owner's requests wait until they are closed.
    unprivileged::run(|| {
        let channel = Channel::connect(&running.path).unwrap();
        let ask = RequestKind::Ports { after: None };
        let bytes = encode(&weir_broker::protocol::Request { id: 1, kind: ask }).unwrap();
        channel.send(&bytes, &[], true).unwrap();
        channel.wait_at_most(Duration::from_millis(300)).unwrap();
        assert!(channel.receive(true).unwrap().is_none(), "answered");
        drop(far);
        channel.wait_at_most(WAIT_MAX).unwrap();
        let answer = channel.receive(true).unwrap();
        assert!(answer.is_some(), "not heard again");
    });
}

/// Connects as that user, with a message that has a descriptor in the queue;
/// whether the user was let that far.
fn connect_with(running: &Running, uid: u32, fd: &OwnedFd) -> std::io::Result<bool> {
    as_user(uid, &[], || {
        let channel = Channel::connect(&running.path)?;
        Ok(channel.send(b"x", &[fd.as_fd()], true).is_ok())
    })
}

/// Has the daemon block as it closes a connection of that user, until what
/// this gives is gone.
fn block(running: &Running, uid: u32) -> TcpStream {
    loop {
        let (near, far) = lingering();
        let is_sent = connect_with(running, uid, &near).unwrap();
        // If the daemon was first, this copy is the last and blocks.
        let closing = std::thread::spawn(move || drop(near));
        std::thread::sleep(Duration::from_millis(5));
        if is_sent && closing.is_finished() {
            return far;
        }
    }
}

#[test]
fn a_sender_of_unclosable_descriptors_is_kept_off_the_socket() {
    if !testenv::root() {
        return;
    }
    let policy = "[[grant]]\nusers = [4711]\ninterfaces = ['*']\n";
    let running = Running::start_with(policy, |listener| listener.accept_descriptors());
    let far = block(&running, 4712);
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let attempts = (0..5000).position(|_| connect_with(&running, 4712, &file).is_err());
    let attempts = attempts.expect("a user can connect without end");
    assert!(attempts < 1000, "{attempts} connections");
    // Others are served all the while.
    as_user(4711, &[], || running.connect().open(copy("udp"))).unwrap();
    assert!(answered(&running) < WAIT_MAX);
    drop(far);
    let began = Instant::now();
    while as_user(4712, &[], || Channel::connect(&running.path)).is_err() {
        assert!(began.elapsed() < WAIT_MAX, "kept off for good");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_client_without_descriptors_does_not_wait_for_one_with() {
    if !testenv::root() {
        return;
    }
    let running = Running::start_with(POLICY, |listener| listener.accept_descriptors());
    // All threads that close wait.
    let _ends = Vec::from_iter((5000..5064).map(|uid| block(&running, uid)));
    let closers = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.flat_map(|task| std::fs::read_to_string(task.path().join("comm")));
        names.filter(|name| name.trim() == "weir-close").count()
    };
    let began = Instant::now();
    while closers() < 64 {
        assert!(began.elapsed() < WAIT_MAX, "{} threads", closers());
        std::thread::sleep(Duration::from_millis(5));
    }
    let ask = || RequestKind::Ports { after: None };
    let bytes = encode(&weir_broker::protocol::Request { id: 1, kind: ask() }).unwrap();
    unprivileged::run(|| {
        for _ in 0..20 {
            // With requests in the queue, an empty message too, when it ends.
            let channel = Channel::connect(&running.path).unwrap();
            for _ in 0..3 {
                channel.send(&bytes, &[], true).unwrap();
            }
            let _ = channel.send(b"", &[], true);
        }
        let mut client = running.connect();
        client.channel.wait_at_most(WAIT_MAX).unwrap();
        // Also once the daemon has seen all of them end.
        for _ in 0..5 {
            let (answer, _) = client.ask(ask());
            assert!(matches!(answer, Response::Ports { .. }), "{answer:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn more_descriptors_than_a_message_may_have_end_the_connection() {
    let running = Running::start_with(ALL, |listener| listener.accept_descriptors());
    let file = std::fs::File::open("/dev/null").unwrap();
    let client = running.connect();
    let fds = [file.as_fd(); 4];
    client.channel.send(b"x", &fds, true).unwrap();
    // It is closed with the message unread, which may be all that is seen.
    match client.channel.receive(true) {
        Ok(_) => assert!(client.channel.receive(true).is_err(), "then it is closed"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    answered(&running);
}

#[test]
fn a_user_without_a_grant_is_turned_away_at_once() {
    if !testenv::root() {
        return;
    }
    let running = Running::start("[[grant]]\nusers = [4711]\ninterfaces = ['*']\n");
    unprivileged::run(|| {
        let channel = Channel::connect(&running.path).unwrap();
        let message = channel.receive(true).unwrap().unwrap();
        let ServerMessage::Shutdown { reason, kind } = decode(&message.bytes).unwrap() else {
            panic!("not turned away");
        };
        assert_eq!(kind, Some(ErrorKind::Denied));
        assert!(reason.contains("grants user 65534 nothing"), "{reason}");
        assert!(channel.receive(true).is_err(), "then it is closed");
    });
}

/// Runs `f` as user nobody, with these groups besides.
fn with_groups<T: Send>(groups: &[u32], f: impl FnOnce() -> T + Send) -> T {
    as_user(unprivileged::NOBODY, groups, f)
}

/// Runs `f` as a user, in the group of that number and these.
fn as_user<T: Send>(uid: u32, groups: &[u32], f: impl FnOnce() -> T + Send) -> T {
    let inside = || {
        let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        set_thread_groups(&groups).unwrap();
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        f()
    };
    std::thread::scope(|scope| scope.spawn(inside).join().unwrap())
}

#[test]
fn groups_are_those_of_the_process() {
    if !testenv::root() {
        return;
    }
    let running = Running::start("[[grant]]\ngroups = [4711]\ninterfaces = ['*']\n");
    let groups: Vec<u32> = (5000..5100).chain([4711]).collect();
    with_groups(&groups, || running.connect().open(copy("udp")))
        .expect("a member, whatever /etc/group says");
    let channel = with_groups(&[4712], || Channel::connect(&running.path).unwrap());
    let message = channel.receive(true).unwrap().unwrap();
    let said = decode::<ServerMessage>(&message.bytes).unwrap();
    assert!(matches!(said, ServerMessage::Shutdown { .. }), "{said:?}");
}

#[test]
fn one_user_does_not_have_all_requests_that_wait_for_memory() {
    if !testenv::root() {
        return;
    }
    let running = Running::start(POLICY);
    running.fabric.hold_rings(true);
    let open = || OpenPort {
        ring: Bytes(256 << 10),
        ..copy("")
    };
    let answered = unprivileged::run(|| {
        let mut client = running.connect();
        let port = client.open(open()).unwrap().port;
        client.ask(RequestKind::Close { port });
        // All that there may be is held; so requests wait for two seconds.
        let began = Instant::now();
        let ask = RequestKind::Open(open());
        let bytes = encode(&weir_broker::protocol::Request { id: 1, kind: ask }).unwrap();
        let clients = Vec::from_iter((0..10).map(|_| running.connect()));
        for client in &clients {
            for _ in 0..4 {
                client.channel.send(&bytes, &[], true).unwrap();
            }
        }
        let mut answered = 0;
        while began.elapsed() < Duration::from_secs(1) {
            let answers = clients
                .iter()
                .filter_map(|one| one.channel.receive(false).ok());
            answered += answers.flatten().count();
            std::thread::sleep(Duration::from_millis(5));
        }
        answered
    });
    assert_eq!(answered, 40 - 8);
}

/// The superuser queues requests that take the kernel long; a user waits for a
/// few of them, not for all.
#[test]
fn a_user_comes_between_the_superusers_long_requests() {
    if !testenv::root() {
        return;
    }
    let running = Running::start(ALL);
    let (connections, requests) = (3, 20);
    let mut superusers = Vec::from_iter((0..connections).map(|_| running.connect()));
    let ports = superusers
        .iter_mut()
        .map(|one| one.open(copy("udp")).unwrap().port);
    let ports: Vec<u32> = ports.collect();
    let mut user = unprivileged::run(|| running.connect());
    user.ask(RequestKind::Ports { after: None });
    running.fabric.take_to_bind(Duration::from_millis(30));
    let queue = |id: u32, number: usize, opens: bool| {
        let kind = if opens {
            RequestKind::Open(copy("udp"))
        } else {
            let filter = Source::expr("tcp");
            let port = ports[number];
            RequestKind::SetFilter { port, filter }
        };
        let request = weir_broker::protocol::Request { id, kind };
        let bytes = encode(&request).unwrap();
        superusers[number].channel.send(&bytes, &[], true).unwrap();
    };
    let answered = || {
        let received = superusers.iter().flat_map(|one| {
            std::iter::from_fn(|| one.channel.receive(false).expect("it is connected"))
        });
        received.count()
    };
    for (opens, user_asks) in [
        (false, RequestKind::Ports { after: None }),
        (true, RequestKind::Ports { after: None }),
        (true, RequestKind::Open(copy("udp"))),
    ] {
        for id in 0..requests {
            for number in 0..connections {
                queue(1000 + id, number, opens);
            }
        }
        // The daemon is within a long request now.
        std::thread::sleep(Duration::from_millis(50));
        let before = answered();
        let (answer, _) = user.ask(user_asks);
        assert!(!matches!(answer, Response::Refused(_)), "{answer:?}");
        let between = answered();
        eprintln!("{between} of the superuser's requests during the user's, {before} before");
        assert!(between <= 10, "{between} of the superuser's came first");
        let deadline = Instant::now() + WAIT_MAX;
        let mut left = requests as usize * connections - before - between;
        while left > 0 {
            assert!(Instant::now() < deadline, "{left} were never answered");
            std::thread::sleep(Duration::from_millis(10));
            left -= answered();
        }
    }
}

/// Many ports become ready together, and each takes the kernel long to bind.
#[test]
fn ports_that_take_long_to_bind_delay_no_client() {
    if !testenv::root() {
        return;
    }
    let (many, few) = (unprivileged::NOBODY, 4711);
    let policy = format!(
        "[[grant]]\nusers = [{many}]\ninterfaces = ['*']\nports_max = 64\nmemory_max = '4 MiB'\n\
         [[grant]]\nusers = [{few}]\ninterfaces = ['*']\n"
    );
    let running = Running::start(&policy);
    // They wait in the queue until it is bound.
    running.fabric.take_to_bind(Duration::from_millis(500));
    let mut first = running.connect();
    let opening = std::thread::spawn(move || first.open(copy("udp")).unwrap());
    let ask = RequestKind::Open(copy("udp"));
    let bytes = encode(&weir_broker::protocol::Request { id: 1, kind: ask }).unwrap();
    let clients = unprivileged::run(|| {
        let clients = Vec::from_iter((0..40).map(|_| running.connect()));
        for client in &clients {
            client.channel.send(&bytes, &[], true).unwrap();
        }
        clients
    });
    opening.join().unwrap();
    let bind_time = Duration::from_millis(200);
    running.fabric.take_to_bind(bind_time);
    // The superuser waits for one of them, and another user for some: not for half.
    let limit = 20 * bind_time;
    for _ in 0..5 {
        let time = answered(&running);
        assert!(time < limit, "the superuser: {time:?}");
    }
    let began = Instant::now();
    as_user(few, &[], || running.connect().open(copy("udp"))).unwrap();
    let time = began.elapsed();
    assert!(time < limit, "another user: {time:?}");
    // The user's budget: a burst of 100 ms, and a quarter of the time. They were not asked for in
    // vain: as soon as binding takes no time, all are opened.
    running.fabric.take_to_bind(Duration::ZERO);
    for client in &clients {
        let message = client.channel.receive(true).unwrap().unwrap();
        let answer = decode(&message.bytes).unwrap();
        let is_open = matches!(
            &answer,
            ServerMessage::Answer {
                answer: Response::Opened(_),
                ..
            }
        );
        assert!(is_open, "{answer:?}");
    }
}

#[test]
fn a_user_in_too_many_groups_is_turned_away() {
    if !testenv::root() {
        return;
    }
    let running = Running::start(POLICY);
    let most = weir_broker::daemon::limits::GROUPS_MAX as u32;
    // And the own one.
    let groups: Vec<u32> = (10_000..10_000 + most).collect();
    with_groups(&groups[1..], || running.connect().open(copy(""))).unwrap();
    let channel = with_groups(&groups, || Channel::connect(&running.path).unwrap());
    let message = channel.receive(true).unwrap().unwrap();
    let ServerMessage::Shutdown { reason, kind } = decode(&message.bytes).unwrap() else {
        panic!("not turned away");
    };
    assert_eq!(kind, Some(ErrorKind::Limit));
    assert!(reason.contains("1025 groups"), "{reason}");
}

/// Processor time that the daemon has taken.
fn spent(running: &Running) -> Duration {
    let path = format!("/proc/self/task/{}/schedstat", running.tid);
    let text = std::fs::read_to_string(path).unwrap();
    let ns = text.split(' ').next().unwrap().parse().unwrap();
    Duration::from_nanos(ns)
}

#[test]
fn long_messages_that_make_no_sense_count_for_their_user() {
    if !testenv::root() {
        return;
    }
    let running = Running::start(POLICY);
    let addresses = vec![std::net::IpAddr::from([10, 0, 0, 1]); 4000];
    let filter = Source {
        hosts: [("a".to_owned(), addresses)].into(),
        ..Source::expr("udp")
    };
    let ask = RequestKind::SetFilter { port: 1, filter };
    let mut bytes = encode(&weir_broker::protocol::Request { id: 1, kind: ask }).unwrap();
    *bytes.last_mut().unwrap() = b']';
    let (before, mut count) = (spent(&running), 0);
    unprivileged::run(|| {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            let channel = Channel::connect(&running.path).unwrap();
            let _ = channel.send(&bytes, &[], true);
            channel.wait_at_most(Duration::from_millis(500)).unwrap();
            let _ = channel.receive(true);
            count += 1;
        }
    });
    let spent = spent(&running) - before;
    let one = spent / count;
    eprintln!("{count} messages in 3 s: {spent:?}, {one:?} each");
    // A burst of 100 ms, a quarter of the time, and what connections take.
    assert!(spent < Duration::from_millis(1500), "{spent:?}");
}

#[test]
fn connecting_again_and_again_takes_little() {
    if !testenv::root() {
        return;
    }
    for policy in [POLICY, ""] {
        let running = Running::start(policy);
        let (before, began) = (spent(&running), Instant::now());
        let mut count = 0;
        unprivileged::run(|| {
            while began.elapsed() < Duration::from_millis(1500) {
                drop(Channel::connect(&running.path));
                count += 1;
            }
        });
        // The superuser gets in all the while.
        assert!(answered(&running) < WAIT_MAX);
        let (spent, time) = (spent(&running) - before, began.elapsed());
        let percent = 100.0 * spent.as_secs_f64() / time.as_secs_f64();
        eprintln!("{count} connections in {time:?}: {percent:.1} % of a core");
        assert!(percent < 15.0, "{percent:.1} % of a core");
    }
}
