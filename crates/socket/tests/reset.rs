//! What a program learns of a reset, call by call: from our sockets as from the
//! kernel's.

mod common;

use common::{V4, nets};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_linger;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use weir_socket::{TcpListener, TcpStream};

/// The socket that is reset, and how it is watched.
trait Ours: Read + Write {
    fn fd(&self) -> BorrowedFd<'_>;
    fn error(&self) -> Option<io::Error>;
}

impl Ours for TcpStream {
    fn fd(&self) -> BorrowedFd<'_> {
        self.ready_fd().unwrap()
    }
    fn error(&self) -> Option<io::Error> {
        self.take_error().unwrap()
    }
}

impl Ours for std::net::TcpStream {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
    fn error(&self) -> Option<io::Error> {
        self.take_error().unwrap()
    }
}

/// What the peer does before it resets, and the calls that are made after.
#[derive(Clone, Copy, Debug)]
struct Case {
    says: &'static [u8],
    ends: bool,
    calls: &'static str,
}

fn flags(fd: BorrowedFd<'_>) -> PollFlags {
    let all = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
    let mut fds = [PollFd::from_borrowed_fd(fd, all)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    fds[0].revents()
}

fn until(socket: &impl Ours, wanted: PollFlags) {
    let began = Instant::now();
    while !flags(socket.fd()).contains(wanted) {
        assert!(began.elapsed().as_secs() < 60, "never {wanted:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes the calls; what each gives.
fn told(socket: &mut impl Ours, calls: &str) -> Vec<String> {
    let error = |error: io::Error| format!("{:?}", error.raw_os_error());
    let call = |call| match call {
        'p' => format!("poll {:?}", flags(socket.fd())),
        'e' => format!("error {:?}", socket.error().map(error)),
        'w' => format!("write {:?}", socket.write(b"x").map_err(error)),
        // Two of five bytes, so that some stay.
        _ => format!("read {:?}", socket.read(&mut [0; 2]).map_err(error)),
    };
    calls.chars().map(call).collect()
}

fn by_us(case: Case) -> Vec<String> {
    let (a, b) = nets();
    let listener = TcpListener::bind(&b, "0.0.0.0:80").unwrap();
    let mut socket = TcpStream::connect(&a, (V4[1], 80)).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.ready_fd().unwrap();
    peer.write_all(case.says).unwrap();
    if case.ends {
        peer.shutdown(Shutdown::Write).unwrap();
        until(&socket, PollFlags::RDHUP);
    }
    peer.reset();
    until(&socket, PollFlags::HUP);
    told(&mut socket, case.calls)
}

fn by_the_kernel(case: Case) -> Vec<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    peer.write_all(case.says).unwrap();
    if case.ends {
        peer.shutdown(Shutdown::Write).unwrap();
        until(&socket, PollFlags::RDHUP);
    }
    set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
    drop(peer);
    until(&socket, PollFlags::HUP);
    told(&mut socket, case.calls)
}

#[test]
fn resets_are_reported_as_by_the_kernel() {
    for says in [&b""[..], b"hello"] {
        for ends in [false, true] {
            for calls in ["peprrrrwep", "prrrrrpepw", "pwprrrrwe", "wrpe"] {
                let case = Case { says, ends, calls };
                assert_eq!(by_us(case), by_the_kernel(case), "{case:?}");
            }
        }
    }
}

/// Data that comes after both directions were shut down resets the connection; and an error stays for the next
/// call if this one has transferred bytes.
#[test]
fn data_after_a_shutdown_of_both_directions_resets() {
    let (a, b) = nets();
    let listener = TcpListener::bind(&b, "0.0.0.0:80").unwrap();
    let mut socket = TcpStream::connect(&a, (V4[1], 80)).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket.write_all(b"before").unwrap();
    until(&peer, PollFlags::IN);
    peer.shutdown(Shutdown::Both).unwrap();
    assert!(flags(peer.fd()).contains(PollFlags::HUP));
    assert!(!flags(peer.fd()).contains(PollFlags::ERR));
    until(&socket, PollFlags::RDHUP);
    socket.write_all(b"too late").unwrap();
    for one in [&peer, &socket] {
        until(one, PollFlags::ERR);
    }
    let number = |result: io::Result<usize>| result.map_err(|error| error.raw_os_error().unwrap());
    let slices = [io::IoSlice::new(b"more")];
    assert_eq!(number(socket.write_rest(&slices)), Err(32));
    let error = Ours::error(&socket).unwrap();
    assert_eq!(
        error.raw_os_error(),
        Some(32),
        "EPIPE after a FIN, as in Linux"
    );
    let mut read = [0; 6];
    assert_eq!(peer.read_rest(&mut read).unwrap(), 6);
    assert_eq!(peer.read_rest(&mut read).unwrap(), 0);
    assert_eq!(number((&peer).read(&mut read)), Err(104));
}
