//! A panic in the stack, of the net's thread or of a call that drives the net, leaves
//! no call on a socket waiting.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::wait::WAIT_MAX;
use weir_socket::link::{self, Link, RxSink};
use weir_socket::{Net, TcpListener, TcpStream, UdpSocket};
use weir_stack::{Config, TxSink};
use weir_wire::ethernet::Address;

/// A link of which the driver panics once on request.
struct Fragile {
    link: link::Mem,
    broken: Arc<AtomicBool>,
}

impl TxSink for Fragile {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.link.reserve(len)
    }

    fn submit(&mut self) {
        self.link.submit();
    }
}

impl Link for Fragile {
    fn fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }

    fn receive(&mut self, take: &mut RxSink<'_>) -> io::Result<bool> {
        assert!(!self.broken.swap(false, Relaxed), "as the test wants it");
        self.link.receive(take)
    }
}

/// Two hosts; what breaks the first one; a port of the second that answers,
/// by which frames come to the first.
fn hosts() -> (Net, Net, Arc<AtomicBool>) {
    weir_lab::wait::limit_this_test();
    let (link, other) = link::mem().unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let fragile = Fragile {
        link,
        broken: Arc::clone(&broken),
    };
    let config = |number: u8| {
        Config::new(Address([2, 0, 0, 0, 0, number]))
            .address(format!("10.0.0.{number}/24").parse().unwrap())
    };
    let net = Net::with_seed(fragile, &config(1), 1).unwrap();
    let near = Net::with_seed(other, &config(2), 2).unwrap();
    (net, near, broken)
}

/// Breaks the first host, by a frame that comes to it.
fn shatter(near: &Net, broken: &AtomicBool) {
    broken.store(true, Relaxed);
    let socket = UdpSocket::bind(near, "10.0.0.2:0").unwrap();
    let _ = socket.send_to(b"x", "10.0.0.1:9");
}

fn is_down<T>(result: io::Result<T>) -> bool {
    let error = result.map(drop).unwrap_err();
    error.raw_os_error() == Some(Errno::NETDOWN.raw_os_error())
}

/// What a thread's call came to; `None` for one that itself drove the net into
/// the panic.
fn calls(
    call: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Receiver<Option<io::Result<()>>> {
    let (tell, told) = channel();
    thread::spawn(move || {
        let _ = tell.send(catch_unwind(AssertUnwindSafe(call)).ok());
    });
    told
}

#[test]
fn every_call_that_waits_ends_with_an_error() {
    let (net, near, broken) = hosts();
    let echo = TcpListener::bind(&near, "10.0.0.2:7").unwrap();
    let mut stream = TcpStream::connect(&net, "10.0.0.2:7").unwrap();
    let _there = echo.accept().unwrap();
    let listener = TcpListener::bind(&net, "10.0.0.1:8").unwrap();
    let datagrams = UdpSocket::bind(&net, "10.0.0.1:9").unwrap();
    let to = net.clone();
    let waiting = [
        calls(move || listener.accept().map(drop)),
        calls(move || stream.read(&mut [0; 9]).map(drop)),
        calls(move || datagrams.recv_from(&mut [0; 9]).map(drop)),
        // No station answers there.
        calls(move || TcpStream::connect(&to, "10.0.0.77:7").map(drop)),
    ];
    let mut events = net.events();
    let (tell, told) = channel();
    thread::spawn(move || tell.send(events.by_ref().count()));
    thread::sleep(Duration::from_millis(20));
    shatter(&near, &broken);
    let ended = waiting.map(|told| told.recv_timeout(WAIT_MAX).expect("no call waits"));
    let by_panic = ended.iter().filter(|ended| ended.is_none()).count();
    assert!(by_panic <= 1, "{ended:?}");
    assert!(ended.into_iter().flatten().all(is_down));
    told.recv_timeout(WAIT_MAX).expect("no news comes");
    // Nor is any call after it let wait, and the host's end is not an error.
    assert!(is_down(TcpStream::connect(&net, "10.0.0.2:7")));
    assert!(net.is_gone());
    let began = Instant::now();
    drop(net);
    assert!(began.elapsed() < Duration::from_secs(4), "no lingering");
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// The first of all wakers, which itself panics.
struct Bad;

impl Wake for Bad {
    fn wake(self: Arc<Bad>) {
        panic!("a waker of the test's");
    }
}

#[test]
fn tasks_are_woken_and_descriptors_become_ready() {
    let (net, near, broken) = hosts();
    let listeners = [8, 9, 10, 11].map(|port| {
        let listener = TcpListener::bind(&net, ("10.0.0.1", port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    });
    let bad = Waker::from(Arc::new(Bad));
    let mut context = Context::from_waker(&bad);
    assert!(listeners[0].poll_accept(&mut context).is_pending());
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    for listener in &listeners[1..3] {
        assert!(listener.poll_accept(&mut context).is_pending());
    }
    let fd = listeners[3].ready_fd().unwrap();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let none = Timespec::default();
    assert_eq!(poll(&mut fds, Some(&none)).unwrap(), 0);
    shatter(&near, &broken);
    let patience = Timespec::try_from(WAIT_MAX).unwrap();
    assert_eq!(poll(&mut fds, Some(&patience)).unwrap(), 1);
    assert!(fds[0].revents().contains(PollFlags::IN));
    // That it hangs up follows.
    let mut hung = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
    assert_eq!(poll(&mut hung, Some(&patience)).unwrap(), 1);
    assert!(hung[0].revents().contains(PollFlags::HUP));
    let began = Instant::now();
    while woken.0.load(Relaxed) == 0 {
        assert!(began.elapsed() < WAIT_MAX, "no task was woken");
        thread::yield_now();
    }
    for listener in &listeners[1..] {
        match listener.poll_accept(&mut context) {
            Poll::Ready(ended) => assert!(is_down(ended)),
            Poll::Pending => panic!("it waits"),
        }
        assert!(is_down(listener.accept()));
    }
}
