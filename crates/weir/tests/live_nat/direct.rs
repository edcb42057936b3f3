//! Client, balancer and servers on one segment: servers that answer the client themselves (direct server
//! return), and servers that answer by way of the balancer's one link.

use super::{live, metric, weir};
use crate::common::Folder;
use live::{Running, ip};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_lab::net::{Device, Host, Lab, Offloads};
use weir_lab::{testenv, wait};

/// Time for a connection that may fail.
const SHORT: Duration = Duration::from_secs(1);
const SERVICE: &str = "10.0.0.80:80";
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);
/// Bytes that a server sends when it is asked.
const BULK: usize = 4 << 20;

struct Net {
    client: Host,
    balancer: Host,
    servers: [(u8, Host); 2],
    /// The switch's end of the balancer's link.
    to_balancer: Device,
    folder: Folder,
}

impl Net {
    fn new(name: &str) -> Option<Net> {
        if !testenv::root() || !testenv::programs(&["ip"]) {
            return None;
        }
        let lab = Lab::new();
        let switch = lab.host("switch").unwrap();
        let bridge = switch.bridge("br0").unwrap();
        let host = |name: &str, last: u8| {
            let host = lab.host(name).unwrap();
            let (inner, port) = lab.link(&host, &switch).connect().unwrap();
            inner.add_address([10, 0, 0, last], 24).unwrap();
            port.attach_to(&bridge).unwrap();
            (host, port)
        };
        let (client, _) = host("client", CLIENT.octets()[3]);
        let (balancer, to_balancer) = host("balancer", 1);
        let servers = [9, 10].map(|last| {
            let (server, _) = host("server", last);
            // The service's address, for which the server does not answer ARP.
            for (name, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
                let name = format!("net.ipv4.conf.all.{name}");
                server.set_sysctl(&name, value).unwrap();
            }
            ip(&server, &["address", "add", "10.0.0.80/32", "dev", "lo"]);
            (last, server)
        });
        // As hardware does: the kernel serves flows from then on.
        let takes = Offloads {
            generic_receive: true,
            ..Offloads::OFF
        };
        to_balancer.set_offloads(takes).unwrap();
        let folder = Folder::new(name);
        Some(Net {
            client,
            balancer,
            servers,
            to_balancer,
            folder,
        })
    }

    fn connected(&self, service: &str) -> Option<TcpStream> {
        let service: SocketAddr = service.parse().unwrap();
        let connect = move || TcpStream::connect_timeout(&service, SHORT);
        let stream = self.client.run(connect).ok()?;
        stream.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
        Some(stream)
    }

    /// The server that a new connection reaches.
    fn reached(&self) -> Option<u8> {
        name(&mut self.connected(SERVICE)?)
    }

    /// Connects until these servers alone answer, each of them.
    fn until_only(&self, expected: &[u8]) {
        let mut seen = Vec::new();
        wait::until("these servers", || {
            match self.reached() {
                Some(last) if expected.contains(&last) => seen.push(last),
                _ => seen.clear(),
            }
            seen.len() >= 30 && expected.iter().all(|last| seen.contains(last))
        });
    }
}

/// What a server says first: the last byte of its own address.
fn name(stream: &mut TcpStream) -> Option<u8> {
    let mut name = [0];
    stream.read_exact(&mut name).ok()?;
    Some(name[0])
}

/// A server that gives its name, and [`BULK`] bytes for each byte that it gets.
struct Server {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Server {
    fn start((last, host): &(u8, Host)) -> Server {
        // The service's address for clients, and the own one for checks.
        let listener = host.run(|| TcpListener::bind("0.0.0.0:80").unwrap());
        listener.set_nonblocking(true).unwrap();
        let (last, stop) = (*last, Arc::new(AtomicBool::new(false)));
        let asked = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                let Ok((stream, peer)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                // Nothing was translated.
                if peer.ip() == CLIENT {
                    assert_eq!(stream.local_addr().unwrap().to_string(), SERVICE);
                }
                // It ends with its connection, which the test's end closes at the latest.
                std::thread::spawn(move || serve(stream, last));
            }
        });
        Server { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn serve(mut stream: TcpStream, last: u8) {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(live::WAIT_MAX)).unwrap();
    let bulk = vec![last; BULK];
    let mut asked = [0];
    let mut is_up = stream.write_all(&[last]).is_ok();
    while is_up && matches!(stream.read(&mut asked), Ok(1)) {
        is_up = stream.write_all(&bulk).is_ok();
    }
}

/// Asks for the server's bytes, and takes them all.
fn download(stream: &mut TcpStream, last: u8) {
    stream.write_all(b"?").unwrap();
    let mut bytes = vec![0; BULK];
    stream.read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == last));
}

#[test]
fn servers_answer_past_the_balancer() {
    let Some(net) = Net::new("direct") else {
        return;
    };
    let stage = |protocol: &str, port: u16| {
        let server =
            |last: u8| format!("[[stage.server]]\nto = \"10.0.0.{last}:{port}\"\nweight = 1\n");
        format!(
            "[[stage]]\nkind = \"balance\"\nprotocol = \"{protocol}\"\n\
             service = \"10.0.0.80:{port}\"\ndirect_return = true\n{}{}",
            server(9),
            server(10)
        )
    };
    let text = format!(
        "outside = \"eth0\"\n[kernel]\nroutes = true\n[[link]]\nname = \"eth0\"\n{}{}",
        stage("tcp", 80),
        stage("udp", 53)
    );
    let path = net.folder.write("box.toml", text.as_bytes());
    let [one, two] = net.servers.each_ref().map(Server::start);
    let arguments = [
        "run",
        &path,
        "--hang-ms",
        "2000",
        "--metrics",
        "127.0.0.1:0",
    ];
    let running = Running::start(&net.balancer, weir([]), &arguments).until("ready");
    net.until_only(&[9, 10]);
    // An established connection, whose half from the server does not come to the balancer.
    let mut kept = None;
    wait::until("a connection to server 9", || {
        let of_it = |stream: &mut TcpStream| name(stream) == Some(9);
        kept = net
            .connected(SERVICE)
            .and_then(|mut it| of_it(&mut it).then_some(it));
        kept.is_some()
    });
    let mut kept = kept.unwrap();
    let before = net.to_balancer.counters().unwrap().tx_bytes;
    for _ in 0..3 {
        download(&mut kept, 9);
    }
    let passed = net.to_balancer.counters().unwrap().tx_bytes - before;
    assert!(passed < BULK as u64, "{passed} bytes passed the balancer");
    until_fast(&net, &running, || download(&mut kept, 9));
    datagrams(&net);
    // The death of the other server moves no connection but its own.
    two.end();
    net.until_only(&[9]);
    download(&mut kept, 9);
    let two = Server::start(&net.servers[1]);
    net.until_only(&[9, 10]);
    download(&mut kept, 9);
    kept.shutdown(Shutdown::Both).unwrap();
    running.stop();
    one.end();
    two.end();
}

/// Sends until the kernel has forwarded frames by itself: an entry is made after the frame that asks for it.
fn until_fast(net: &Net, running: &Running, mut send: impl FnMut()) {
    wait::until("frames that the kernel forwards by itself", || {
        send();
        let metrics = running.metrics(&net.balancer);
        metric(&metrics, "weir_run_fast_frames_total") > Some(50)
    });
}

/// Clients of another network, to whom the balancer is the servers' way.
#[test]
fn with_one_link_the_kernel_forwards_what_clients_send() {
    let Some(net) = Net::new("one-link") else {
        return;
    };
    let service = "192.0.2.1:80";
    // It asks for the balancer by its address there.
    let announce = ("net.ipv4.conf.all.arp_announce", "2");
    net.client.set_sysctl(announce.0, announce.1).unwrap();
    for (host, command) in [
        (&net.client, "address add 198.51.100.9/32 dev lo"),
        (
            &net.client,
            "route add 192.0.2.1 via 10.0.0.1 src 198.51.100.9",
        ),
        (&net.balancer, "route add 198.51.100.9 via 10.0.0.100"),
        (&net.servers[0].1, "route add default via 10.0.0.1"),
        (&net.servers[1].1, "route add default via 10.0.0.1"),
    ] {
        ip(host, &command.split(' ').collect::<Vec<_>>());
    }
    let [one, two] = net.servers.each_ref().map(Server::start);
    let arguments = [
        "balance",
        "eth0",
        "--service",
        service,
        "--to",
        "10.0.0.9,10.0.0.10",
        "--hang-ms",
        "2000",
        "--metrics",
        "127.0.0.1:0",
    ];
    let running = Running::start(&net.balancer, weir([]), &arguments).until("ready");
    let mut connection = None;
    wait::until("a server", || {
        let mut stream = net.connected(service);
        let last = stream.as_mut().and_then(name);
        connection = last.zip(stream);
        connection.is_some()
    });
    let (last, mut stream) = connection.unwrap();
    download(&mut stream, last);
    until_fast(&net, &running, || download(&mut stream, last));
    download(&mut stream, last);
    running.stop();
    one.end();
    two.end();
}

/// Datagrams in one piece and in fragments, to whichever server.
fn datagrams(net: &Net) {
    let service = "10.0.0.80:53";
    let servers = net.servers.each_ref().map(|(last, host)| {
        let socket = host.run(|| UdpSocket::bind(service).unwrap());
        socket.set_nonblocking(true).unwrap();
        (*last, socket)
    });
    let client = net.client.run(|| UdpSocket::bind((CLIENT, 0)).unwrap());
    client.connect(service).unwrap();
    client.set_nonblocking(true).unwrap();
    for len in [100, 3000, 200, 9000] {
        let sent = vec![7; len];
        client.send(&sent).unwrap();
        let mut bytes = vec![0; 10_000];
        wait::until("a datagram's echo", || {
            for (last, socket) in &servers {
                if let Ok((len, from)) = socket.recv_from(&mut bytes) {
                    bytes[..len].fill(*last);
                    socket.send_to(&bytes[..len], from).unwrap();
                }
            }
            client.recv(&mut bytes).is_ok_and(|echoed| echoed == len)
        });
        assert!([9, 10].contains(&bytes[0]));
    }
}
