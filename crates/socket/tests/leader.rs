//! Calls that drive the net themselves while they wait, and what others have of
//! it that wait beside them, or do not call at all.

mod common;

use common::{Through, V4, bytes, config, ip, nets};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::net::Lab;
use weir_lab::testenv;
use weir_socket::link::{Link, Mem, RxSink};
use weir_socket::{Net, TcpListener, TcpStream, link};

/// Longer than a call must go on alone before it leads.
const A_WHILE: Duration = Duration::from_millis(30);

/// After that, what is waited for will not come.
const WAIT_MAX: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// A connection between two nets, the first of which opens it.
fn pair(a: &Net, b: &Net) -> (TcpStream, TcpStream) {
    let at = SocketAddr::new(ip(V4[1]), 0);
    let listener = TcpListener::bind(b, at).unwrap();
    let near = TcpStream::connect(a, listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Sends a byte and waits for its echo, this many times: these calls lead.
fn talk(mut near: &TcpStream, mut far: &TcpStream, times: usize) {
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            for _ in 0..times {
                far.read_exact(&mut byte).unwrap();
                far.write_all(&byte).unwrap();
            }
        });
        let mut byte = [7];
        for _ in 0..times {
            near.write_all(&byte).unwrap();
            near.read_exact(&mut byte).unwrap();
        }
        assert_eq!(byte, [7]);
    });
}

#[test]
fn a_call_that_leads_ends_when_another_thread_says_so() {
    let (a, b) = nets();
    let (near, far) = pair(&a, &b);
    talk(&near, &far, 100);
    thread::scope(|scope| {
        let reader = scope.spawn(|| (&near).read(&mut [0]));
        thread::sleep(A_WHILE);
        near.shutdown(Shutdown::Read).unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), 0);
        let reader = scope.spawn(|| (&far).read(&mut [0]));
        thread::sleep(A_WHILE);
        near.reset();
        let error = reader.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_call_that_leads_waits_no_longer_than_it_is_to() {
    let (a, b) = nets();
    let (near, far) = pair(&a, &b);
    near.set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    for _ in 0..3 {
        let error = (&near).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
    near.set_read_timeout(None).unwrap();
    talk(&near, &far, 3);
}

/// A fault in a call that leads ends all calls, as a fault of the net's thread does: the stack's
/// state is unknown.
#[test]
fn a_call_that_leads_and_panics_takes_the_net_down() {
    let (near, far) = link::mem().unwrap();
    let armed = Arc::new(AtomicBool::new(false));
    let fires = Arc::clone(&armed);
    let near = Through(near, move |mem: &mut Mem, take: &mut RxSink<'_>| {
        let leads = thread::current().name() == Some("leads");
        assert!(!leads || !fires.swap(false, SeqCst), "a fault");
        mem.receive(take)
    });
    let (a, b) = (
        Net::new(near, &config(0)).unwrap(),
        Net::new(far, &config(1)).unwrap(),
    );
    let ((near, far), (idle_near, _idle_far)) = (pair(&a, &b), pair(&a, &b));
    thread::scope(|scope| {
        let read = || (&near).read(&mut [0]);
        let named = thread::Builder::new().name("leads".to_owned());
        let leader = named.spawn_scoped(scope, read).unwrap();
        thread::sleep(A_WHILE);
        let waiter = scope.spawn(|| (&idle_near).read_exact(&mut [0]));
        thread::sleep(A_WHILE);
        armed.store(true, SeqCst);
        (&far).write_all(&[1]).unwrap();
        assert!(leader.join().is_err());
        let down = Some(Errno::NETDOWN.raw_os_error());
        assert_eq!(waiter.join().unwrap().unwrap_err().raw_os_error(), down);
        assert_eq!((&near).read(&mut [0]).unwrap_err().raw_os_error(), down);
    });
    assert!(!armed.load(SeqCst), "it led");
}

/// Both sides of both nets, while a thread of each leads for good.
#[test]
fn others_are_served_beside_a_call_that_leads() {
    let (a, b) = nets();
    let (idle_near, idle_far) = pair(&a, &b);
    let (near, far) = pair(&a, &b);
    thread::scope(|scope| {
        let reads = [&idle_near, &idle_far].map(|mut idle| {
            scope.spawn(move || {
                let mut byte = [0];
                idle.read_exact(&mut byte).map(|()| byte)
            })
        });
        thread::sleep(A_WHILE);
        talk(&near, &far, 1000);
        thread::sleep(A_WHILE);
        talk(&near, &far, 1000);
        (&idle_near).write_all(&[3]).unwrap();
        (&idle_far).write_all(&[3]).unwrap();
        for read in reads {
            assert_eq!(read.join().unwrap().unwrap(), [3]);
        }
    });
}

/// How long it takes until two bytes are back that are waited for by the
/// descriptor, the median of many times.
fn by_descriptor(mut near: &TcpStream, mut far: &TcpStream) -> Duration {
    const TIMES: usize = 200;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut bytes = [0; 2];
            for _ in 0..TIMES {
                far.read_exact(&mut bytes).unwrap();
                far.write_all(&bytes).unwrap();
            }
        });
        let mut times: Vec<Duration> = (0..TIMES)
            .map(|_| {
                let begun = Instant::now();
                near.write_all(&[7]).unwrap();
                near.write_all(&[7]).unwrap();
                let mut count = 0;
                while count < 2 {
                    let fd = near.ready_fd().unwrap();
                    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
                    assert_eq!(poll(&mut fds, Some(&WAIT_MAX)), Ok(1), "nobody tells");
                    match near.read(&mut [0; 2]) {
                        Ok(more) => count += more,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                }
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        times[TIMES / 2]
    })
}

/// Calls that could wait, but do not, since a descriptor is waited for, leave the links
/// to the thread: else frames are seen a millisecond late.
#[test]
fn a_waiter_of_a_descriptor_is_woken_at_once() {
    let (a, b) = nets();
    let (near, far) = pair(&a, &b);
    near.set_nodelay(true).unwrap();
    let tried = (0..5).any(|_| {
        let [blocking, not] = [false, true].map(|nonblocking| {
            near.set_nonblocking(nonblocking).unwrap();
            by_descriptor(&near, &far)
        });
        println!("{blocking:?}, and {not:?} nonblocking");
        blocking < 2 * not + Duration::from_micros(300)
    });
    assert!(tried, "it takes longer where calls may wait");
}

#[test]
fn one_thread_reads_and_one_writes() {
    let (a, b) = nets();
    let (near, far) = pair(&a, &b);
    talk(&near, &far, 100);
    let sent = bytes(3_000_000);
    thread::scope(|scope| {
        for mut stream in [&near, &far] {
            let sent = &sent;
            scope.spawn(move || {
                sent.chunks(10_000)
                    .for_each(|part| stream.write_all(part).unwrap());
                stream.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut heard = Vec::new();
                stream.read_to_end(&mut heard).unwrap();
                assert!(&heard == sent);
            });
        }
    });
}

/// Between calls that lead no thread waits for the links, for up to a millisecond.
#[test]
fn frames_are_received_after_the_last_call() {
    let (a, b) = nets();
    let listener = TcpListener::bind(&b, SocketAddr::new(ip(V4[1]), 80)).unwrap();
    let (near, far) = pair(&a, &b);
    talk(&near, &far, 1000);
    // The second net is called no more.
    for _ in 0..10 {
        TcpStream::connect(&a, listener.local_addr().unwrap()).unwrap();
        thread::sleep(A_WHILE);
    }
}

/// What follows a stream of writes is not kept back for a write that never comes.
#[test]
fn the_last_write_is_sent_after_the_last_call() {
    let (a, b) = nets();
    let (near, far) = pair(&a, &b);
    let sent = bytes(2_000_003);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut heard = vec![0; 3 * sent.len()];
            (&far).read_exact(&mut heard).map(|()| heard)
        });
        for part in sent
            .chunks(9_999)
            .cycle()
            .take(3 * sent.len().div_ceil(9_999))
        {
            (&near).write_all(part).unwrap();
        }
        let heard = reader.join().unwrap().unwrap();
        assert!(heard.chunks(sent.len()).all(|part| part == sent));
    });
}

/// The kernel at the other end of a TAP interface sends and is sent to, in frames
/// of 64 KB that are read in pieces of any size.
#[test]
fn a_kernel_sends_and_hears_the_same_bytes() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    let lab = Lab::new();
    let host = lab.host("linux").unwrap();
    let tap = host.run(|| link::Tap::open("tap0")).unwrap();
    let device = host.device("tap0").unwrap();
    device.up().unwrap();
    device.add_address(ip(V4[1]), 24).unwrap();
    let net = Net::new(tap, &config(0)).unwrap();
    let listener = TcpListener::bind(&net, SocketAddr::new(ip(V4[0]), 80)).unwrap();
    let at = listener.local_addr().unwrap();
    let sent = bytes(5_000_000);
    for piece in [1000, 70_000, 131_072, 3_000_000] {
        let mut theirs = host.run(|| std::net::TcpStream::connect(at)).unwrap();
        let ours = listener.accept().unwrap().0;
        thread::scope(|scope| {
            let kernel = scope.spawn(|| {
                theirs.write_all(&sent).unwrap();
                theirs.shutdown(Shutdown::Write).unwrap();
                let mut heard = Vec::new();
                theirs.read_to_end(&mut heard).map(|_| heard)
            });
            let (mut heard, mut part) = (Vec::new(), vec![0; piece]);
            loop {
                match (&ours).read(&mut part).unwrap() {
                    0 => break,
                    count => heard.extend_from_slice(&part[..count]),
                }
            }
            assert!(heard == sent, "{} bytes by {piece}", heard.len());
            for part in sent.chunks(piece) {
                (&ours).write_all(part).unwrap();
            }
            ours.shutdown(Shutdown::Write).unwrap();
            assert!(kernel.join().unwrap().unwrap() == sent, "by {piece}");
        });
    }
}
