//! `weir balance`: connections through it, and a server that goes away.

use super::{Net, live, weir};
use live::Running;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Signal};

/// Time for a connection that may fail.
const SHORT: Duration = Duration::from_secs(1);
const SERVICE: &str = "198.51.100.2:80";

/// A server that sends the last byte of its address on each connection.
struct Server {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Server {
    fn start(host: &Host, address: Ipv4Addr) -> Server {
        let at = SocketAddr::new(address.into(), 8080);
        let listener = host.run(move || TcpListener::bind(at).unwrap());
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((mut stream, _)) => _ = stream.write_all(&address.octets()[3..]),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Server { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// The server that a new connection reaches within a time.
fn reached(net: &Net, time: Duration) -> Option<u8> {
    let service: SocketAddr = SERVICE.parse().unwrap();
    let connect = move || TcpStream::connect_timeout(&service, time);
    let mut stream = net.b.run(connect).ok()?;
    stream.set_read_timeout(Some(live::PATIENCE)).unwrap();
    let mut name = [0];
    stream.read_exact(&mut name).ok()?;
    Some(name[0])
}

#[test]
fn connections_are_shared_and_a_dead_server_is_left_out() {
    let Some(net) = Net::new("balance") else {
        return;
    };
    let second: IpAddr = "10.0.0.10".parse().unwrap();
    super::ip(
        &net.a,
        &["address", "add", &format!("{second}/24"), "dev", "eth0"],
    );
    let [one, two] = [9, 10].map(|last| Server::start(&net.a, Ipv4Addr::new(10, 0, 0, last)));
    let arguments = [
        "balance",
        "eth1",
        "eth0",
        "--service",
        SERVICE,
        "--to",
        "10.0.0.9:8080,10.0.0.10:8080",
        "--hang-ms",
        "2000",
    ];
    let running = Running::start(&net.r, weir([]), &arguments).until("ready");
    let mut seen = [0; 2];
    for _ in 0..40 {
        match reached(&net, live::PATIENCE) {
            Some(9) => seen[0] += 1,
            Some(10) => seen[1] += 1,
            other => panic!("{other:?} answered"),
        }
    }
    assert!(seen[0] > 5 && seen[1] > 5, "{seen:?}");
    two.end();
    // Probes each second, three in a row.
    let began = Instant::now();
    let mut in_a_row = 0;
    while in_a_row < 30 {
        match reached(&net, SHORT) {
            Some(9) => in_a_row += 1,
            _ => in_a_row = 0,
        }
        assert!(
            began.elapsed() < live::PATIENCE,
            "the dead server is still chosen"
        );
    }
    let two = Server::start(&net.a, Ipv4Addr::new(10, 0, 0, 10));
    let began = Instant::now();
    while reached(&net, SHORT) != Some(10) {
        assert!(
            began.elapsed() < live::PATIENCE,
            "the server does not come back"
        );
    }
    running.signal(Signal::INT);
    running.end();
    one.end();
    two.end();
}
