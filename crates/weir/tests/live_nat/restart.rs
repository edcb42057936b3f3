//! `weir nat --restart`: sessions go on after an orderly end, and not after a kill.

use super::{INSIDE, Net, OUTSIDE, POOL, weir};
use crate::live;
use rustix::net::SocketAddrUnix;
use rustix::process::{Pid, kill_process};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_lab::net::Signal;

/// The process that forwards.
fn worker(parent: u32) -> Pid {
    let children = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(children).unwrap();
    let child = children.split_whitespace().next().expect("a child");
    Pid::from_raw(child.parse().unwrap()).unwrap()
}

/// A word from one end of a connection to the other.
fn says(from: &mut TcpStream, to: &mut TcpStream, word: &[u8; 4]) {
    from.write_all(word).unwrap();
    let mut heard = [0; 4];
    to.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, word);
}

fn datagram(socket: &UdpSocket, time: Duration) -> Option<(Vec<u8>, SocketAddr)> {
    socket.set_read_timeout(Some(time)).unwrap();
    let mut bytes = [0; 100];
    let (len, from) = socket.recv_from(&mut bytes).ok()?;
    Some((bytes[..len].to_vec(), from))
}

#[test]
fn sessions_go_on_after_an_orderly_restart_and_not_after_a_kill() {
    let Some(net) = Net::new("nat-restart") else {
        return;
    };
    let log = net.folder.path("nat.ndjson");
    let mut running = net.start(&["--restart", "--log", &log]);
    let at: SocketAddr = (OUTSIDE.parse::<std::net::IpAddr>().unwrap(), 7000).into();
    let listener = net.b.run(move || TcpListener::bind(at).unwrap());
    let mut client = net.a.run(move || TcpStream::connect(at).unwrap());
    let (mut server, peer) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    assert_eq!(peer.ip().to_string(), POOL);
    says(&mut client, &mut server, b"one ");
    let outside = net.b.run(move || UdpSocket::bind(at).unwrap());
    let inside: SocketAddr = format!("{INSIDE}:5000").parse().unwrap();
    let inside = net.a.run(move || UdpSocket::bind(inside).unwrap());
    inside.send_to(b"out", at).unwrap();
    let (_, mapped) = datagram(&outside, live::WAIT_MAX).unwrap();
    // Asked of the supervisor, and of the process itself.
    for round in 0..2 {
        let before = worker(running.id());
        match round {
            0 => running.signal_at_once(Signal::USR1),
            _ => kill_process(before, Signal::TERM).unwrap(),
        }
        running = running.until("goes on with 2 sessions; 0 have ended");
        running = running.until("ready");
        assert_ne!(worker(running.id()), before);
        // From the outside first: that needs the mapping.
        says(&mut server, &mut client, b"two ");
        says(&mut client, &mut server, b"tree");
        outside.send_to(b"in", mapped).unwrap();
        let (_, from) = datagram(&inside, live::WAIT_MAX).expect("the mapping is kept");
        assert_eq!(from, at);
        inside.send_to(b"out", at).unwrap();
        let (_, again) = datagram(&outside, live::WAIT_MAX).unwrap();
        assert_eq!(again, mapped);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let find = format!("udp:{mapped}");
        let time = format!("{}", now.as_secs_f64());
        let found = weir(["nat", "--log", &log, "--find", &find, "--time", &time]).output();
        let found = found.unwrap();
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        assert_eq!(found.trim(), INSIDE, "the log names the subscriber");
    }
    // After a kill there is no state: nothing is let in by an earlier mapping.
    let before = worker(running.id());
    kill_process(before, Signal::KILL).unwrap();
    running = running.until("ready");
    outside.send_to(b"in", mapped).unwrap();
    let short = Duration::from_millis(500);
    assert_eq!(datagram(&inside, short), None, "an earlier mapping is used");
    inside.send_to(b"new", at).unwrap();
    let (_, new) = datagram(&outside, live::WAIT_MAX).unwrap();
    assert_eq!(new.ip(), mapped.ip());
    outside.send_to(b"in", new).unwrap();
    assert!(datagram(&inside, live::WAIT_MAX).is_some());
    running.signal(Signal::TERM);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stderr.contains("without the earlier"), "{ended:?}");
    let shut = ended.stderr.matches("are dropped until weir runs").count();
    assert_eq!(shut, 1, "{ended:?}");
}

/// The log cannot be opened, which a start notices after it has taken the sessions.
#[test]
fn a_start_that_fails_leaves_the_sessions_to_the_next() {
    let Some(net) = Net::new("nat-restart-fails") else {
        return;
    };
    let log = net.folder.path("nat.ndjson");
    let mut running = net.start(&["--restart", "--log", &log]);
    let at: SocketAddr = (OUTSIDE.parse::<std::net::IpAddr>().unwrap(), 7000).into();
    let outside = net.b.run(move || UdpSocket::bind(at).unwrap());
    let inside: SocketAddr = format!("{INSIDE}:5000").parse().unwrap();
    let inside = net.a.run(move || UdpSocket::bind(inside).unwrap());
    inside.send_to(b"out", at).unwrap();
    let (_, mapped) = datagram(&outside, live::WAIT_MAX).unwrap();
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir(&log).unwrap();
    running.signal_at_once(Signal::USR1);
    running = running.until("goes on with 1 sessions; 0 have ended");
    running = running.until("has ended (exit status: 1)");
    std::fs::remove_dir(&log).unwrap();
    running = running.until("goes on with 1 sessions; 0 have ended");
    running = running.until("ready");
    outside.send_to(b"in", mapped).unwrap();
    let (_, from) = datagram(&inside, live::WAIT_MAX).expect("the mapping is kept");
    assert_eq!(from, at);
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, Some(0));
}

/// What another user of the machine can do: take names of sockets, and send to names.
#[test]
fn no_other_process_can_send_heartbeats_or_stop_a_restart() {
    let Some(net) = Net::new("nat-heartbeats") else {
        return;
    };
    let mut running = net.start(&["--restart"]);
    let before = worker(running.id());
    let name = format!("weir-supervisor-{}", running.id());
    let (ends, ended) = channel::<()>();
    let taken = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let at = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let other = net.r.run(|| UnixDatagram::unbound().unwrap());
    let owner = net.r.run(|| UnixDatagram::unbound().unwrap());
    other.set_nonblocking(true).unwrap();
    let other = std::thread::spawn(move || {
        let wait = Duration::from_millis(50);
        while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let _ = other.send_to_addr(b"READY=1\nWATCHDOG=1\n", &at);
            // Once the name is free, it is taken for good.
            let _ = rustix::net::bind(&owner, &taken);
        }
    });
    kill_process(before, Signal::STOP).unwrap();
    running = running.until("hung, and was ended").until("ready");
    kill_process(worker(running.id()), Signal::KILL).unwrap();
    running = running.until("has ended").until("ready");
    drop(ends);
    other.join().unwrap();
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, Some(0));
}
