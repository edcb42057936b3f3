//! A net on several links.

mod common;

use common::Through;
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use weir_socket::link::{self, Link, Mem, RxSink};
use weir_socket::{Net, TcpListener, TcpStream, UdpSocket};
use weir_stack::Config;
use weir_wire::ethernet::Address;

/// Long enough for anything that ought to happen.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// At 10.LINK.0.HOST and 2001:db8:LINK::HOST.
fn config(link: u8, host: u8) -> Config {
    Config::new(Address([2, 0, 0, 0, link, host]))
        .address(format!("10.{link}.0.{host}/24").parse().unwrap())
        .address(format!("2001:db8:{link}::{host}/64").parse().unwrap())
}

/// A host on links 0 and 1, what pulls these out, and its neighbours there.
fn hosts() -> (Net, [Arc<AtomicBool>; 2], [Net; 2]) {
    let out = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let mut links: Vec<(Box<dyn Link>, Config)> = Vec::new();
    let near = [0, 1].map(|number: u8| {
        let (a, b) = link::mem().unwrap();
        let is_out = Arc::clone(&out[usize::from(number)]);
        let loose = move |link: &mut Mem, take: &mut RxSink<'_>| {
            if is_out.load(Relaxed) {
                Err(Errno::NODEV.into())
            } else {
                link.receive(take)
            }
        };
        links.push((Box::new(Through(a, loose)), config(number, 1)));
        Net::new(b, &config(number, 9)).unwrap()
    });
    (Net::with_links(links).unwrap(), out, near)
}

fn echo(net: &Net, near: &Net, at: &str) -> TcpStream {
    let listener = TcpListener::bind(near, at).unwrap();
    let mut stream = TcpStream::connect(net, at).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            stream.write_all(&bytes[..count]).unwrap();
        }
    });
    say(&mut stream).unwrap();
    stream
}

fn say(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"hello")?;
    let mut heard = [0; 5];
    stream.read_exact(&mut heard)?;
    assert_eq!(&heard, b"hello");
    Ok(())
}

#[test]
fn connections_and_datagrams_go_by_every_link() {
    let (net, _, near) = hosts();
    for (link, at) in [
        (0, "10.0.0.9:7"),
        (1, "10.1.0.9:7"),
        (0, "[2001:db8::9]:7"),
        (1, "[2001:db8:1::9]:7"),
    ] {
        echo(&net, &near[link], at);
    }
    // Who answers need not know by which link it was asked.
    let server = UdpSocket::bind(&net, "[::]:9").unwrap();
    server.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let to = net.with_stack(|stack| {
        let mut all = stack.link(1).unwrap().addresses();
        all.find(|one| one.to_string().starts_with("fe80")).unwrap()
    });
    let asks = UdpSocket::bind(&near[1], "[::]:9").unwrap();
    asks.set_read_timeout(Some(WAIT_MAX)).unwrap();
    asks.send_to(b"who", (to, 9)).unwrap();
    let mut heard = [0; 9];
    let (count, from) = server.recv_from(&mut heard).unwrap();
    assert!(from.to_string().ends_with("%1]:9"), "{from}");
    server.send_to(&heard[..count], from).unwrap();
    assert_eq!(asks.recv_from(&mut heard).unwrap().0, 3);
    assert_eq!(
        server
            .join_multicast_on("ff02::99".parse().unwrap(), 2)
            .unwrap_err()
            .raw_os_error(),
        Some(Errno::NODEV.raw_os_error())
    );
    assert!(!net.is_link_gone(1) && net.is_link_gone(2));
}

#[test]
fn a_host_goes_on_while_a_link_is_left() {
    let (net, out, near) = hosts();
    let mut first = echo(&net, &near[0], "10.0.0.9:7");
    let mut second = echo(&net, &near[1], "10.1.0.9:7");
    // No error about an absent host may come, which would be what fails first.
    let _taker = UdpSocket::bind(&near[0], "10.0.0.9:9").unwrap();
    let open = UdpSocket::bind(&net, "0.0.0.0:9").unwrap();
    let sockets = ["0.0.0.0:0", "10.0.0.1:0"].map(|at| {
        let socket = UdpSocket::bind(&net, at).unwrap();
        socket.connect("10.0.0.9:9").unwrap();
        assert_eq!(socket.send(b"x").unwrap(), 1);
        socket
    });
    out[0].store(true, Relaxed);
    // The answer that comes is what the link is looked at for.
    first.write_all(b"hello").unwrap();
    while !net.is_link_gone(0) {
        std::thread::yield_now();
    }
    assert!(!net.is_gone() && !net.is_link_gone(1));
    for _ in 0..10 {
        say(&mut second).unwrap();
    }
    // As a kernel has it whose device is gone.
    let code = |result: io::Result<usize>| result.unwrap_err().raw_os_error();
    let unreachable = Some(Errno::NETUNREACH.raw_os_error());
    for connected in sockets {
        assert_eq!(code(connected.send(b"x")), unreachable);
        assert_eq!(code(connected.send_to(b"x", "10.0.0.9:9")), unreachable);
    }
    assert_eq!(open.send_to(b"x", "10.1.0.9:9").unwrap(), 1);
    assert_eq!(code(open.send_to(b"x", "10.0.0.9:9")), unreachable);
    let error = TcpStream::connect(&net, "10.0.0.9:7")
        .map(drop)
        .unwrap_err();
    assert_eq!(error.raw_os_error(), unreachable);
    out[1].store(true, Relaxed);
    let error = say(&mut second).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NETDOWN.raw_os_error()));
    assert!(net.is_gone());
}
