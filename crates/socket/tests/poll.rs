//! [`Net::poll`]: applications that wait for descriptors and drive the net.

mod common;

use common::nets;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::wait;
use weir_socket::{Net, ReadyList, TcpListener, TcpStream};

/// Where the other net listens.
const THERE: &str = "192.0.2.2:7";

/// Waits until the stream is readable, as an application does; fails after 20 s.
fn readable(net: &Net, stream: &TcpStream) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let fd = stream.ready_fd().unwrap();
        let mut fds = vec![PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        net.poll(&mut fds, Some(deadline), &mut |fds, time| poll(fds, time))
            .unwrap();
        assert_eq!(fds.len(), 1);
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if poll(&mut fds, Some(&now)).unwrap() > 0 {
            return;
        }
        assert!(Instant::now() < deadline, "it is not readable");
    }
}

fn read(net: &Net, mut stream: &TcpStream, out: &mut [u8]) {
    let mut got = 0;
    while got < out.len() {
        match stream.read(&mut out[got..]) {
            Ok(0) => panic!("the end"),
            Ok(count) => got += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => readable(net, stream),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Several threads of one net wait at once, each for its connection.
#[test]
fn threads_that_poll_drive_the_net_for_each_other() {
    const THREADS: usize = 3;
    const TIMES: usize = 500;
    wait::limit_this_test();
    let (here, there) = nets();
    let listener = TcpListener::bind(&there, THERE).unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let client = TcpStream::connect(&here, THERE).unwrap();
            let (server, _) = listener.accept().unwrap();
            let (here, there) = (&here, &there);
            for (net, stream, begins) in [(here, client, true), (there, server, false)] {
                scope.spawn(move || {
                    stream.set_nonblocking(true).unwrap();
                    let mut bytes = [0; 100];
                    for time in 0..TIMES {
                        if begins {
                            (&stream).write_all(&[time as u8; 100]).unwrap();
                        }
                        read(net, &stream, &mut bytes);
                        assert_eq!(bytes, [time as u8; 100]);
                        if !begins {
                            (&stream).write_all(&bytes).unwrap();
                        }
                        // Now and then the net's thread takes over.
                        if time % 100 == 0 {
                            thread::sleep(Duration::from_millis(3));
                        }
                    }
                });
            }
        }
    });
}

#[test]
fn a_poll_ends_with_its_time_and_with_a_signal() {
    let (here, there) = nets();
    let listener = TcpListener::bind(&there, THERE).unwrap();
    let client = TcpStream::connect(&here, THERE).unwrap();
    let _server = listener.accept().unwrap();
    let began = Instant::now();
    let time = Duration::from_millis(50);
    let fd = client.ready_fd().unwrap();
    let mut fds = vec![PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    while began.elapsed() < time {
        here.poll(&mut fds, Some(began + time), &mut |fds, time| {
            poll(fds, time)
        })
        .unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    let error = here.poll(&mut fds, None, &mut |_, _| Err(Errno::INTR));
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::Interrupted);
    // The net still runs.
    let (mut client, mut bytes) = (&client, [0; 1]);
    client.set_read_timeout(Some(time)).unwrap();
    let error = client.read(&mut bytes).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

fn shows_readable(stream: &TcpStream) -> bool {
    let fd = stream.ready_fd().unwrap();
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&now)).unwrap() > 0
}

/// The descriptor shows what the read leaves, and another socket's bytes do not end the wait.
#[test]
fn a_read_that_polls_takes_bytes_past_the_descriptor() {
    const PAUSE: Duration = Duration::from_millis(30);
    wait::limit_this_test();
    let (here, there) = nets();
    let listener = TcpListener::bind(&there, THERE).unwrap();
    let connection = || {
        let client = TcpStream::connect(&here, THERE).unwrap();
        client.set_nonblocking(true).unwrap();
        assert!(!shows_readable(&client));
        (client, listener.accept().unwrap().0)
    };
    let ((awaited, mut its), (other, mut others)) = (connection(), connection());
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(PAUSE);
            others.write_all(b"o").unwrap();
            thread::sleep(PAUSE);
            its.write_all(b"abc").unwrap();
        });
        let fd = awaited.ready_fd().unwrap();
        let mut fds = vec![PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        awaited
            .poll_to_read(&mut fds, None, &mut |fds, time| poll(fds, time))
            .unwrap();
    });
    assert!(shows_readable(&other));
    assert!(!shows_readable(&awaited));
    let (mut stream, mut bytes) = (&awaited, [0; 3]);
    assert_eq!(stream.read(&mut bytes[..1]).unwrap(), 1);
    assert!(shows_readable(&awaited));
    assert_eq!(stream.read(&mut bytes[1..]).unwrap(), 2);
    assert_eq!(&bytes, b"abc");
    assert!(!shows_readable(&awaited));
}

/// A readable connection is in its list, and its descriptor does not show it; the end is shown. When the
/// list ends, or another thread drives the net, the descriptors show everything.
#[test]
fn a_list_has_the_readable_connections() {
    wait::limit_this_test();
    let (here, there) = nets();
    let listener = TcpListener::bind(&there, THERE).unwrap();
    let open = |number: u64, list: &ReadyList| {
        let client = TcpStream::connect(&here, THERE).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.set_nonblocking(true).unwrap();
        let is_in = client.list_in(Some((list, number))).unwrap();
        (client, server, is_in)
    };
    let is_shown = |stream: &TcpStream, flags| {
        let fd = stream.ready_fd().unwrap();
        let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)).unwrap() > 0
    };
    let taken = |list: &ReadyList| {
        let deadline = Some(Instant::now() + Duration::from_secs(20));
        let mut numbers = Vec::new();
        while numbers.is_empty() {
            assert!(
                deadline.is_none_or(|at| Instant::now() < at),
                "the list is empty"
            );
            let mut wait = |fds: &mut [PollFd<'_>], time: Option<&Timespec>| poll(fds, time);
            here.poll_listed(list, &mut Vec::new(), deadline, &mut wait)
                .unwrap();
            list.take(&mut numbers);
        }
        numbers
    };
    let list = ReadyList::new();
    let (one, mut peer, is_in) = open(7, &list);
    assert!(is_in);
    peer.write_all(b"ab").unwrap();
    assert_eq!(taken(&list), [7]);
    assert_eq!(one.is_listed_ready(), Some(true));
    assert!(!is_shown(&one, PollFlags::IN));
    let mut bytes = [0; 1];
    (&one).read_exact(&mut bytes).unwrap();
    assert_eq!(one.is_listed_ready(), Some(true), "a byte is left");
    (&one).read_exact(&mut bytes).unwrap();
    assert_eq!(one.is_listed_ready(), None);
    assert!(list.is_empty());

    // Another thread's call brings the bytes: this one is woken.
    let (two, mut other_peer, _) = open(8, &list);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            other_peer.write_all(b"c").unwrap();
            (&one).write_all(b"d").unwrap();
        });
        assert_eq!(taken(&list), [8]);
    });

    here.end_ready_list(&list);
    assert!(list.is_ended() && is_shown(&two, PollFlags::IN));
    let (three, _peer, is_in) = open(9, &list);
    assert!(!is_in && !is_shown(&three, PollFlags::IN));

    let list = ReadyList::new();
    let (four, peer, _) = open(10, &list);
    drop(peer);
    wait::until("the end", || is_shown(&four, PollFlags::IN));
}
