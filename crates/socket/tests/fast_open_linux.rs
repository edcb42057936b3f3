//! TCP Fast Open (RFC 7413) between our sockets and Linux's, by python.

mod common;

use common::{V4, V6, config, ip};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use std::thread;
use std::time::Duration;
use weir_lab::command::Command;
use weir_lab::net::{Host, Lab};
use weir_lab::testenv;
use weir_lab::wait::Limited;
use weir_socket::{Net, TcpSocket, TcpStream, link};

const WAIT_MAX: Option<Duration> = Some(Duration::from_secs(60));
/// Connections one after another: the first asks for a cookie.
const COUNT: usize = 6;

/// A server of Linux's that takes bytes in SYNs (`TCP_FASTOPEN` is 23) and
/// answers "hello" with "world".
const SERVER: &str = "
import socket, sys
server = socket.create_server((sys.argv[1], 81), family=int(sys.argv[2]))
server.setsockopt(socket.IPPROTO_TCP, 23, 5)
print('ready', flush=True)
for number in range(int(sys.argv[3])):
    stream, _ = server.accept()
    got = b''
    while len(got) < 5:
        got += stream.recv(5)
    assert got == b'hello', got
    stream.sendall(b'world')
    stream.recv(1)
    stream.close()
";

/// A client of Linux's whose SYNs carry "hello" (`MSG_FASTOPEN`).
const CLIENT: &str = "
import socket, sys
for number in range(int(sys.argv[3])):
    stream = socket.socket(int(sys.argv[2]), socket.SOCK_STREAM)
    stream.sendto(b'hello', 0x20000000, (sys.argv[1], 80))
    got = b''
    while len(got) < 5:
        got += stream.recv(5)
    assert got == b'world', got
    stream.close()
";

/// Linux at the other end of a TAP interface of two queues, ours being of this many
/// stacks.
fn world(shards: usize) -> Option<(Lab, Host, Net)> {
    if !testenv::root() || !testenv::tun() || !testenv::programs(&["python3"]) {
        return None;
    }
    let lab = Lab::new();
    let host = lab.host("linux").unwrap();
    let queues = host.run(|| link::Tap::queues("tap0", shards)).unwrap();
    let device = host.device("tap0").unwrap();
    device.up().unwrap();
    device.add_address(ip(V4[1]), 24).unwrap();
    device.add_address(ip(V6[1]), 64).unwrap();
    // Clients and servers.
    host.set_sysctl("net.ipv4.tcp_fastopen", "3").unwrap();
    let net = Net::builder().queues(queues, &config(0)).shards(shards);
    Some((lab, host, net.start().unwrap()))
}

fn python(program: &str, at: &str) -> Command {
    let family = if at.contains(':') { "10" } else { "2" };
    let mut command = testenv::program("python3").expect("the test has asked for it");
    command.args(["-c", program, at, family, &COUNT.to_string()]);
    command
}

#[test]
fn linux_sends_bytes_in_syns_to_us() {
    for shards in [1, 2] {
        let Some((_lab, host, net)) = world(shards) else {
            return;
        };
        for (at, any) in [(V4[0], "0.0.0.0:80"), (V6[0], "[::]:80")] {
            let mut socket = TcpSocket::new(&net);
            socket.bind(any.parse().unwrap()).unwrap();
            socket.set_fast_open(Some(10));
            let listener = socket.listen(10).unwrap();
            listener.set_read_timeout(WAIT_MAX).unwrap();
            thread::scope(|scope| {
                let client = scope.spawn(|| host.output(python(CLIENT, at)).unwrap());
                for number in 0..COUNT {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut bytes = [0; 5];
                    stream.read_exact(&mut bytes).unwrap();
                    assert_eq!(&bytes, b"hello");
                    assert_eq!(
                        stream.info().unwrap().syn_data_acked,
                        number > 0,
                        "{at} {number}"
                    );
                    stream.write_all(b"world").unwrap();
                    // The client closes first.
                    assert_eq!(stream.read(&mut bytes).unwrap(), 0);
                }
                let output = client.join().unwrap();
                assert!(output.status.success(), "{output:?}");
            });
        }
    }
}

fn ask(net: &Net, to: SocketAddr) -> (TcpStream, usize) {
    let (mut stream, taken) = TcpSocket::new(net).start_fast(to, b"hello").unwrap();
    stream.set_read_timeout(WAIT_MAX).unwrap();
    stream.write_all(&b"hello"[taken..]).unwrap();
    (stream, taken)
}

#[test]
fn we_send_bytes_in_syns_to_linux() {
    let Some((_lab, host, net)) = world(1) else {
        return;
    };
    for at in [V4[1], V6[1]] {
        let mut command = python(SERVER, at);
        command.stdout(Stdio::piped());
        let mut server = host.spawn(command).unwrap();
        let mut ready = [0; 6];
        let said = server.child_mut().stdout.take().unwrap();
        let mut said = Limited::new(said, "`ready` of the server");
        said.read_exact(&mut ready).unwrap();
        for number in 0..COUNT {
            let (mut stream, taken) = ask(&net, SocketAddr::new(ip(at), 81));
            let mut bytes = [0; 5];
            stream.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"world");
            assert_eq!(taken, if number > 0 { 5 } else { 0 });
            assert_eq!(
                stream.info().unwrap().syn_data_acked,
                number > 0,
                "{at} {number}"
            );
        }
        assert!(server.wait(WAIT_MAX.unwrap()).unwrap().unwrap().success());
    }
}
