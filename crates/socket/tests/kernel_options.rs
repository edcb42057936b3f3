//! Options of streams mean what they mean of the kernel's: the same is done with
//! a pair of ours and a pair of its.

mod common;

use common::{V4, nets};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use weir_lab::net::set_option;
use weir_lab::wait::WAIT_MAX;
use weir_socket::{Net, TcpListener, TcpStream};

/// Linux's numbers.
const SOL_SOCKET: i32 = 1;
const SO_RCVLOWAT: i32 = 18;
const IPPROTO_TCP: i32 = 6;
const TCP_NOTSENT_LOWAT: i32 = 25;

/// A stream of ours or of the kernel's.
trait Stream: Send + Sync {
    fn fd(&self) -> BorrowedFd<'_>;
    fn set_nonblocking(&self, nonblocking: bool);
    fn set_timeout(&self, time: Duration);
    fn peek(&self, out: &mut [u8]) -> io::Result<usize>;
    fn read(&self, out: &mut [u8]) -> io::Result<usize>;
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;
    fn end(&self);
    fn set_read_least(&self, bytes: usize);
    fn set_unsent_max(&self, bytes: usize);

    fn is(&self, flag: PollFlags) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), flag)];
        poll(&mut fds, Some(&Timespec::default())).unwrap();
        fds[0].revents().contains(flag)
    }

    fn until(&self, flag: PollFlags) {
        let began = Instant::now();
        while !self.is(flag) {
            assert!(began.elapsed() < WAIT_MAX, "it is not {flag:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until this many bytes have come.
    fn until_there(&self, count: usize) {
        let began = Instant::now();
        while self.peek(&mut [0; 100]).ok() != Some(count) {
            assert!(began.elapsed() < WAIT_MAX, "{count} bytes have not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

macro_rules! calls {
    () => {
        fn set_nonblocking(&self, nonblocking: bool) {
            self.set_nonblocking(nonblocking).unwrap();
        }
        fn set_timeout(&self, time: Duration) {
            self.set_read_timeout(Some(time)).unwrap();
        }
        fn peek(&self, out: &mut [u8]) -> io::Result<usize> {
            self.peek(out)
        }
        fn read(&self, out: &mut [u8]) -> io::Result<usize> {
            let mut stream = self;
            Read::read(&mut stream, out)
        }
        fn write(&self, bytes: &[u8]) -> io::Result<usize> {
            let mut stream = self;
            Write::write(&mut stream, bytes)
        }
        fn end(&self) {
            self.shutdown(Shutdown::Write).unwrap();
        }
    };
}

impl Stream for TcpStream {
    calls!();

    fn fd(&self) -> BorrowedFd<'_> {
        self.ready_fd().unwrap()
    }
    fn set_read_least(&self, bytes: usize) {
        self.set_recv_lowat(bytes);
    }
    fn set_unsent_max(&self, bytes: usize) {
        self.set_notsent_lowat(Some(bytes)).unwrap();
    }
}

impl Stream for std::net::TcpStream {
    calls!();

    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
    fn set_read_least(&self, bytes: usize) {
        set_option(self, SOL_SOCKET, SO_RCVLOWAT, bytes as i32).unwrap();
    }
    fn set_unsent_max(&self, bytes: usize) {
        set_option(self, IPPROTO_TCP, TCP_NOTSENT_LOWAT, bytes as i32).unwrap();
    }
}

type Pair = [Box<dyn Stream>; 2];

fn ours() -> (Net, Net, Pair) {
    let (a, b) = nets();
    let listener = TcpListener::bind(&b, (V4[1], 80)).unwrap();
    let client = TcpStream::connect(&a, (V4[1], 80)).unwrap();
    let server = listener.accept().unwrap().0;
    (a, b, [Box::new(client), Box::new(server)])
}

fn kernels() -> Pair {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [Box::new(client), Box::new(listener.accept().unwrap().0)]
}

/// Does the same with both.
fn with_each(act: fn(&dyn Stream, &dyn Stream)) {
    let [client, server] = kernels();
    act(&*client, &*server);
    let (_a, _b, [client, server]) = ours();
    act(&*client, &*server);
}

#[test]
fn a_stream_is_readable_with_so_many_bytes() {
    with_each(|client, server| {
        server.set_read_least(5);
        server.set_nonblocking(true);
        client.write(b"1234").unwrap();
        server.until_there(4);
        assert!(!server.is(PollFlags::IN));
        client.write(b"5").unwrap();
        server.until(PollFlags::IN);
        // Who does not wait has what there is.
        let mut out = [0; 9];
        assert_eq!(server.read(&mut out[..3]).unwrap(), 3);
        assert!(!server.is(PollFlags::IN));
        assert_eq!(server.read(&mut out).unwrap(), 2);
        let error = server.read(&mut out).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        // Set later, it is so at once.
        client.write(b"67").unwrap();
        server.until_there(2);
        assert!(!server.is(PollFlags::IN));
        server.set_read_least(2);
        server.until(PollFlags::IN);
        server.set_read_least(3);
        // The end is something.
        client.end();
        server.until(PollFlags::IN);
        assert_eq!(server.read(&mut out).unwrap(), 2);
        assert_eq!(server.read(&mut out).unwrap(), 0);
    });
}

#[test]
fn a_read_waits_for_so_many_bytes() {
    with_each(|client, server| {
        server.set_read_least(5);
        server.set_timeout(WAIT_MAX);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut out = [0; 9];
                server.read(&mut out)
            });
            std::thread::sleep(Duration::from_millis(30));
            client.write(b"12345").unwrap();
            assert_eq!(reader.join().unwrap().unwrap(), 5);
        });
        // Who has less room waits for no more than fits.
        client.write(b"12345").unwrap();
        let mut out = [0; 9];
        server.until(PollFlags::IN);
        assert_eq!(server.read(&mut out[..2]).unwrap(), 2);
        assert_eq!(server.read(&mut out[..2]).unwrap(), 2);
        // When the time is over, what there is will do; then there is nothing.
        server.set_timeout(Duration::from_millis(50));
        assert_eq!(server.read(&mut out).unwrap(), 1);
        let error = server.read(&mut out).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn little_waits_to_be_sent() {
    with_each(|client, server| {
        // More than the peer's window takes, and ours.
        const LEN: usize = 16 << 20;
        let fill = |client: &dyn Stream| {
            let mut count = 0;
            while let Ok(written) = client.write(&[7; 50_000]) {
                count += written;
                assert!(count < LEN, "it takes whatever comes");
            }
            count
        };
        client.set_nonblocking(true);
        client.set_unsent_max(10_000);
        // The peer's window closes in the end.
        let began = Instant::now();
        let mut sent = fill(client);
        while client.is(PollFlags::OUT) {
            assert!(began.elapsed() < WAIT_MAX, "it stays writable");
            sent += fill(client);
        }
        let mut out = vec![0; 100_000];
        server.set_timeout(WAIT_MAX);
        let mut read = 0;
        for _ in 0..20 {
            while read < sent {
                read += server.read(&mut out).unwrap();
            }
            client.until(PollFlags::OUT);
            let more = fill(client);
            assert!(more > 0, "it is writable");
            sent += more;
        }
        client.set_unsent_max(i32::MAX as usize);
        client.end();
        while let Ok(count @ 1..) = server.read(&mut out) {
            read += count;
        }
        assert_eq!(read, sent);
    });
}

/// Linux takes what there is before it waits, and then waits for as many more; ours
/// does not.
#[test]
fn what_comes_bit_by_bit_is_waited_for_once() {
    let (_a, _b, [client, server]) = ours();
    server.set_read_least(5);
    server.set_nonblocking(true);
    client.write(b"123").unwrap();
    server.until_there(3);
    server.set_nonblocking(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut out = [0; 9];
            server.read(&mut out)
        });
        std::thread::sleep(Duration::from_millis(30));
        client.write(b"45").unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), 5);
    });
}

/// Values that the kernel returns only by a call of its own: no more than was asked for, and
/// a segment.
#[test]
fn no_more_than_a_segment_beyond_waits_to_be_sent() {
    let (a, b) = nets();
    let listener = TcpListener::bind(&b, (V4[1], 80)).unwrap();
    let client = TcpStream::connect(&a, (V4[1], 80)).unwrap();
    let server = listener.accept().unwrap().0;
    server.set_receive_buffer(5000).unwrap();
    client.set_nonblocking(true).unwrap();
    for most in [1, 3000, 40_000] {
        client.set_notsent_lowat(Some(most)).unwrap();
        // In the end the window closes, and so much waits.
        let began = Instant::now();
        let mut unsent = 0;
        while unsent < most {
            assert!(began.elapsed() < WAIT_MAX, "{unsent} of {most}");
            while client.write(&[7; 70_000]).is_ok() {}
            unsent = client.info().unwrap().unsent;
            assert!(unsent < most + 1500, "{unsent} of {most}");
        }
    }
    client.set_notsent_lowat(None).unwrap();
    assert!(client.write(&[7; 70_000]).unwrap() > 40_000);
}

#[test]
fn quick_acknowledgments_are_asked_for_and_not() {
    let (a, b) = nets();
    let _listener = TcpListener::bind(&b, (V4[1], 80)).unwrap();
    let client = TcpStream::connect(&a, (V4[1], 80)).unwrap();
    let [kernel, _other] = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [client, listener.accept().unwrap().0]
    };
    for quick in [false, true, false] {
        rustix::net::sockopt::set_tcp_quickack(&kernel, quick).unwrap();
        client.set_quick_ack(quick).unwrap();
        let said = rustix::net::sockopt::tcp_quickack(&kernel).unwrap();
        assert_eq!((client.quick_ack().unwrap(), said), (quick, quick));
    }
}
