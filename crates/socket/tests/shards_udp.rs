//! UDP of hosts of several stacks: it is the first one's, by whichever queue a
//! datagram comes or goes.

mod common;

use common::{V4, V6, bytes, config, ip};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;
use weir_lab::need;
use weir_lab::net::{Host, Lab};
use weir_socket::link::{self, Link};
use weir_socket::{Net, UdpSocket};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));
/// As many flows as are sure to come by every queue.
const FLOWS: usize = 24;

/// A host of so many stacks, and a kernel at the other end of a TAP interface
/// of so many queues.
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
    server.set_read_timeout(PATIENCE).unwrap();
    let any = SocketAddr::new(ip(version[1]), 0);
    let clients: Vec<std::net::UdpSocket> = host.run(|| {
        let bind = |_| std::net::UdpSocket::bind(any).unwrap();
        (0..FLOWS).map(bind).collect()
    });
    for (flow, client) in clients.iter().enumerate() {
        client.set_read_timeout(PATIENCE).unwrap();
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

/// A connected socket of ours learns that nobody is at its peer.
fn be_refused(net: &Net, version: [&str; 2]) {
    let socket = UdpSocket::bind(net, SocketAddr::new(ip(version[0]), 0)).unwrap();
    socket.set_read_timeout(PATIENCE).unwrap();
    socket.connect((version[1], 9)).unwrap();
    socket.send(b"anybody?").unwrap();
    let error = socket.recv(&mut [0; 9]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn datagrams_of_all_queues_are_the_first_shards() {
    if !need::root() {
        return;
    }
    for (shards, queues) in [(2, 2), (4, 2), (3, 1)] {
        let (_lab, host, net) = with_kernel(shards, queues);
        for version in [V4, V6] {
            talk(&host, &net, version);
            be_refused(&net, version);
        }
        let taken = |number| net.with_shard(number, |stack| stack.counters()).unwrap();
        for shard in 1..shards {
            assert_eq!(taken(shard).datagrams_standard, 0, "shard {shard}");
        }
        let all = 2 * 2 * FLOWS as u64;
        assert_eq!(taken(0).datagrams_standard + taken(0).datagrams_fast, all);
        assert_eq!(net.counted().handed_lost, 0);
    }
}

/// What is sent to a group that a host of several stacks is in comes once.
#[test]
fn a_group_of_a_host_of_several_stacks_is_heard_once() {
    if !need::root() {
        return;
    }
    let (_lab, host, net) = with_kernel(3, 2);
    let group = ip("239.1.2.3");
    let socket = UdpSocket::bind(&net, "0.0.0.0:5000").unwrap();
    socket.join_multicast(group).unwrap();
    socket.set_read_timeout(PATIENCE).unwrap();
    let mut route = Command::new("ip");
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
