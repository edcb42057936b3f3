//! UDP of hosts of several stacks: a socket has a part in each, by whichever queue
//! a datagram comes or goes.

mod common;

use common::{V4, V6, bytes, config, ip};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use weir_lab::net::{Host, Lab};
use weir_lab::testenv;
use weir_socket::link::{self, Link};
use weir_socket::{Net, UdpSocket};
use weir_stack::udp::UdpBind;

const WAIT_MAX: Option<Duration> = Some(Duration::from_secs(60));
/// As many flows as are sure to come by every queue.
const FLOWS: usize = 24;

/// A host of this many stacks, and a kernel at the other end of a TAP interface
/// of this many queues.
fn with_kernel(shards: usize, queues: usize) -> (Lab, Host, Net) {
    let lab = Lab::new();
    let host = lab.host("linux").unwrap();
    let queues: Vec<Box<dyn Link>> = host.run(|| link::Tap::queues("tap0", queues)).unwrap();
    let device = host.device("tap0").unwrap();
    device.up().unwrap();
    device.add_address(ip(V4[1]), 24).unwrap();
    device.add_address(ip(V6[1]), 64).unwrap();
    let builder = Net::builder().queues(queues, &config(0)).shards(shards);
    (lab, host, builder.start().unwrap())
}

/// Each flow carries a short datagram and one in fragments, both ways.
fn talk(host: &Host, net: &Net, version: [&str; 2]) {
    let at = SocketAddr::new(ip(version[0]), 7);
    let server = UdpSocket::bind(net, at).unwrap();
    server.set_read_timeout(WAIT_MAX).unwrap();
    let any = SocketAddr::new(ip(version[1]), 0);
    let clients: Vec<std::net::UdpSocket> = host.run(|| {
        let bind = |_| std::net::UdpSocket::bind(any).unwrap();
        (0..FLOWS).map(bind).collect()
    });
    for (flow, client) in clients.iter().enumerate() {
        client.set_read_timeout(WAIT_MAX).unwrap();
        for len in [flow + 1, 5000 + flow] {
            client.send_to(&bytes(len), at).unwrap();
            let (heard, from) = server.recv_owned().unwrap();
            assert!(heard == bytes(len), "flow {flow}, {len} bytes");
            assert_eq!(from, client.local_addr().unwrap());
            server.send_to(&heard, from).unwrap();
            let mut heard = vec![0; 65_536];
            let (count, from) = client.recv_from(&mut heard).unwrap();
            assert!(heard[..count] == bytes(len) && from == at, "flow {flow}");
        }
    }
}

/// A connected socket of ours learns that no application is at its peer.
fn be_refused(net: &Net, version: [&str; 2]) {
    let socket = UdpSocket::bind(net, SocketAddr::new(ip(version[0]), 0)).unwrap();
    socket.set_read_timeout(WAIT_MAX).unwrap();
    socket.connect((version[1], 9)).unwrap();
    socket.send(b"anybody?").unwrap();
    let error = socket.recv(&mut [0; 9]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn datagrams_are_their_owners_whatever_queue_they_come_by() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    for (shards, queues) in [(2, 2), (4, 2), (3, 1)] {
        let (_lab, host, net) = with_kernel(shards, queues);
        for version in [V4, V6] {
            talk(&host, &net, version);
            // A kernel refuses no more than six in a row.
            for _ in 0..4 {
                be_refused(&net, version);
            }
        }
        let taken = |number| net.with_shard(number, |stack| stack.counters()).unwrap();
        let took = |shard| taken(shard).datagrams_standard + taken(shard).datagrams_fast;
        let all: u64 = (0..shards).map(took).sum();
        assert_eq!(all, 2 * 2 * FLOWS as u64);
        // 48 peers: that a shard has none of them is less likely than 1 in 10^5.
        for shard in 0..shards {
            assert!(took(shard) > 0, "shard {shard} of {shards}");
        }
        assert_eq!(net.stats().forwarded_lost, 0);
    }
}

/// Datagrams of many peers arrive unread: none is lost, and each peer's are in order. A task, a
/// waiting thread and the descriptor see them all.
#[test]
fn what_waits_in_any_shard_is_read_in_each_peers_order() {
    const EACH: usize = 20;
    if !testenv::root() || !testenv::tun() {
        return;
    }
    let (_lab, host, net) = with_kernel(3, 2);
    let at = SocketAddr::new(ip(V4[0]), 7);
    let server = UdpSocket::bind(&net, at).unwrap();
    server.set_read_timeout(WAIT_MAX).unwrap();
    let ready = server.ready_fd().unwrap();
    let readable = |wait_s| {
        let mut fds = [PollFd::from_borrowed_fd(
            ready,
            PollFlags::IN | PollFlags::OUT,
        )];
        let wait = Timespec {
            tv_sec: wait_s,
            tv_nsec: 0,
        };
        // Writable at any time: what is asked for is that it is readable.
        poll(&mut fds, Some(&wait)).unwrap();
        assert!(fds[0].revents().contains(PollFlags::OUT));
        fds[0].revents().contains(PollFlags::IN)
    };
    assert!(!readable(0));
    let any = SocketAddr::new(ip(V4[1]), 0);
    let clients: Vec<std::net::UdpSocket> = host.run(|| {
        let bind = |_| std::net::UdpSocket::bind(any).unwrap();
        (0..FLOWS).map(bind).collect()
    });
    // The kernel learns our hardware address.
    clients[0].send_to(&[], at).unwrap();
    assert!(server.recv_owned().unwrap().0.is_empty());
    for number in 0..EACH {
        for client in &clients {
            client.send_to(&[number as u8], at).unwrap();
        }
    }
    let mut heard: HashMap<SocketAddr, Vec<u8>> = HashMap::new();
    let all = FLOWS * EACH;
    for count in 0..all {
        let mut out = [0; 9];
        // The one that was looked at is the one that is taken.
        let (len, from) = match count % 3 {
            0 => {
                let seen = server.peek_from(&mut out).unwrap();
                let (bytes, from) = server.recv_owned().unwrap();
                assert_eq!((&out[..seen.0], seen.1), (&bytes[..], from));
                seen
            }
            1 => block_on(|context| server.poll_recv_from(context, &mut out)).unwrap(),
            _ => server.recv_from(&mut out).unwrap(),
        };
        assert_eq!(len, 1);
        heard.entry(from).or_default().push(out[0]);
    }
    assert!(!readable(0), "all was read");
    let sent: Vec<u8> = (0..EACH as u8).collect();
    for client in &clients {
        assert_eq!(heard[&client.local_addr().unwrap()], sent);
    }
}

/// Polls until it is ready, woken by its waker.
fn block_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Unpark>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(done) = poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        std::thread::park_timeout(WAIT_MAX.unwrap());
    }
}

/// Datagrams from before a connect are still read; after it, only its peer's, also by a read that
/// already waits.
#[test]
fn a_socket_is_connected_in_whichever_shard_its_peer_is() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    let (_lab, host, net) = with_kernel(4, 2);
    let any = SocketAddr::new(ip(V4[1]), 0);
    let mut met = [false; 4];
    while met.contains(&false) {
        let server = UdpSocket::bind(&net, "0.0.0.0:0").unwrap();
        server.set_read_timeout(WAIT_MAX).unwrap();
        let at = SocketAddr::new(ip(V4[0]), server.local_addr().unwrap().port());
        let [stranger, peer] = [0; 2].map(|_| host.run(|| std::net::UdpSocket::bind(any).unwrap()));
        peer.set_read_timeout(WAIT_MAX).unwrap();
        stranger.send_to(b"early", at).unwrap();
        let mut out = [0; 9];
        assert_eq!(server.peek_from(&mut out).unwrap().0, 5);
        let heard = std::thread::scope(|scope| {
            let reader = server.clone();
            let waiting = scope.spawn(move || {
                let early = reader.recv_owned().unwrap();
                (early.0, reader.recv_owned().unwrap())
            });
            let there = peer.local_addr().unwrap();
            server.connect(there).unwrap();
            assert_eq!(server.peer_addr().unwrap(), there);
            assert_eq!(server.local_addr().unwrap(), at);
            stranger.send_to(b"late", at).unwrap();
            server.send(b"hello").unwrap();
            assert_eq!(peer.recv_from(&mut out).unwrap(), (5, at));
            peer.send_to(b"peer", at).unwrap();
            waiting.join().unwrap()
        });
        let there = peer.local_addr().unwrap();
        assert_eq!(heard, (b"early".to_vec(), (b"peer".to_vec(), there)));
        for (shard, met) in met.iter_mut().enumerate() {
            let fast = net.with_shard(shard, |stack| stack.counters().datagrams_standard);
            *met |= fast.unwrap() > 0;
        }
    }
}

/// Who waits for one peer's datagrams when the socket is connected to another one
/// hears that one's, whichever shard it is in: a thread, and a task.
#[test]
fn a_waiting_read_follows_to_another_peer() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    let (_lab, host, net) = with_kernel(4, 2);
    let server = UdpSocket::bind(&net, "0.0.0.0:0").unwrap();
    let at = SocketAddr::new(ip(V4[0]), server.local_addr().unwrap().port());
    let any = SocketAddr::new(ip(V4[1]), 0);
    let next = || {
        let peer = host.run(|| std::net::UdpSocket::bind(any).unwrap());
        server.connect(peer.local_addr().unwrap()).unwrap();
        peer
    };
    let mut peer = next();
    server.set_read_timeout(WAIT_MAX).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let reader = server.clone();
        scope.spawn(move || {
            for number in 0..FLOWS {
                let mut out = [0; 9];
                let heard = match number % 2 {
                    0 => reader.recv_from(&mut out),
                    _ => block_on(|context| reader.poll_recv_from(context, &mut out)),
                };
                tell.send(heard.unwrap()).unwrap();
            }
        });
        for _ in 0..FLOWS {
            // Most often it waits by then.
            std::thread::sleep(Duration::from_millis(5));
            peer = next();
            peer.send_to(b"peer", at).unwrap();
            let heard = told.recv().expect("it hears the new peer");
            assert_eq!(heard, (4, peer.local_addr().unwrap()));
        }
    });
    drop(peer);
}

/// A place is taken in all shards, and free in all when its socket is closed.
#[test]
fn a_place_is_one_for_all_shards() {
    let (near, _far) = link::mem().unwrap();
    let builder = Net::builder().link(near, &config(0)).shards(3);
    let net = builder.start().unwrap();
    let shared = UdpBind {
        shared: true,
        ..UdpBind::default()
    };
    let at = SocketAddr::new(ip(V4[0]), 7);
    for _ in 0..3 {
        let one = UdpSocket::bind(&net, at).unwrap();
        let error = UdpSocket::bind_with(&net, at, shared).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        drop(one);
        let both = [0; 2].map(|_| UdpSocket::bind_with(&net, at, shared).unwrap());
        let error = UdpSocket::bind(&net, at).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        drop(both);
    }
    let v6 = UdpSocket::bind_both(&net, 0).unwrap();
    let port = v6.local_addr().unwrap().port();
    let error = UdpSocket::bind(&net, ("0.0.0.0", port)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}

/// Several sockets bound to one address and port: each peer has one of them, in whichever shard.
#[test]
fn sockets_that_share_a_place_share_the_peers() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    let (_lab, host, net) = with_kernel(3, 2);
    let shared = UdpBind {
        shared: true,
        ..UdpBind::default()
    };
    let at = SocketAddr::new(ip(V4[0]), 7);
    let servers = [0; 2].map(|_| UdpSocket::bind_with(&net, at, shared).unwrap());
    let any = SocketAddr::new(ip(V4[1]), 0);
    let clients: Vec<std::net::UdpSocket> = host.run(|| {
        let bind = |_| std::net::UdpSocket::bind(any).unwrap();
        (0..FLOWS).map(bind).collect()
    });
    std::thread::scope(|scope| {
        for (number, server) in (0..).zip(&servers) {
            server.set_read_timeout(WAIT_MAX).unwrap();
            scope.spawn(move || {
                // Until the end is signalled.
                while let Ok((mut bytes, from)) = server.recv_owned()
                    && !bytes.is_empty()
                {
                    bytes.push(number);
                    server.send_to(&bytes, from).unwrap();
                }
            });
        }
        let mut met = [false; 2];
        for (flow, client) in (0..).zip(&clients) {
            client.set_read_timeout(WAIT_MAX).unwrap();
            let mut before = None;
            for _ in 0..3 {
                client.send_to(&[flow], at).unwrap();
                let mut heard = [0; 9];
                assert_eq!(client.recv_from(&mut heard).unwrap(), (2, at));
                assert_eq!(heard[0], flow);
                assert_eq!(*before.get_or_insert(heard[1]), heard[1], "flow {flow}");
                met[usize::from(heard[1])] = true;
            }
        }
        assert_eq!(met, [true; 2]);
        for client in &clients {
            client.send_to(&[], at).unwrap();
        }
    });
}

/// What is sent to a group that a host of several stacks is in comes once.
#[test]
fn a_group_of_a_host_of_several_stacks_is_heard_once() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    let (_lab, host, net) = with_kernel(3, 2);
    let group = ip("239.1.2.3");
    let socket = UdpSocket::bind(&net, "0.0.0.0:5000").unwrap();
    socket.join_multicast(group).unwrap();
    socket.set_read_timeout(WAIT_MAX).unwrap();
    let Some(mut route) = testenv::program("ip") else {
        return;
    };
    route.args(["route", "add", "224.0.0.0/4", "dev", "tap0"]);
    assert!(host.output(route).unwrap().status.success());
    let any = SocketAddr::new(ip(V4[1]), 0);
    for number in 0..FLOWS as u8 {
        let sender = host.run(|| std::net::UdpSocket::bind(any)).unwrap();
        sender.send_to(&[number], (group, 5000)).unwrap();
        let (heard, from) = socket.recv_owned().unwrap();
        assert_eq!((heard, from), (vec![number], sender.local_addr().unwrap()));
    }
    socket.set_nonblocking(true).unwrap();
    assert_eq!(
        socket.recv_owned().unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
}
