//! TCP between our stack and Linux's, over a TAP interface.

mod common;

use common::stream::{Talker, byte};
use common::{HARDWARE, V4, V6, config, ip};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Lab};
use weir_lab::{testenv, wait};
use weir_link::net::Tap;
use weir_stack::tcp::State;
use weir_stack::{Stack, TxSink};

/// How much goes each way.
const BYTES: usize = 3_000_000;

/// Our host at one end of a TAP interface, Linux at the other.
struct World {
    tap: Tap,
    host: Host,
    stack: Stack,
    start: Instant,
}

/// Frames straight to the interface; what it does not take is lost.
struct Out<'a> {
    tap: &'a Tap,
    frame: Vec<u8>,
}

impl TxSink for Out<'_> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame.resize(len, 0);
        Some(&mut self.frame)
    }

    fn submit(&mut self) {
        self.tap.send(&self.frame).unwrap();
    }
}

impl World {
    fn new() -> World {
        let lab = Lab::new();
        let host = lab.host("linux").unwrap();
        let tap = host.run(|| Tap::open("tap0")).unwrap();
        let device = host.device("tap0").unwrap();
        device.up().unwrap();
        device.add_address(ip(V4[1]), 24).unwrap();
        device.add_address(ip(V6[1]), 64).unwrap();
        let mut config = config(0);
        config.hardware = HARDWARE[0];
        World {
            tap,
            host,
            stack: Stack::new(&config, 77).unwrap(),
            start: Instant::now(),
        }
    }

    /// Runs the stack until `done` says so; a minute is too long.
    fn run(&mut self, mut done: impl FnMut(&mut Stack, u64) -> bool) {
        let mut buffer = vec![0; 2000];
        loop {
            let now = self.start.elapsed();
            assert!(now < Duration::from_secs(60), "not done in time");
            let now_ns = now.as_nanos() as u64;
            while let Some(len) = self.tap.receive(&mut buffer).unwrap() {
                self.stack.receive(now_ns, &buffer[..len]);
            }
            let done = done(&mut self.stack, now_ns);
            let mut out = Out {
                tap: &self.tap,
                frame: Vec::new(),
            };
            let next_ns = self.stack.poll(now_ns, &mut out);
            if done {
                return;
            }
            let wait_ns = next_ns.map_or(10_000_000, |next_ns| {
                next_ns.saturating_sub(now_ns).min(10_000_000)
            });
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: wait_ns as i64,
            };
            let mut fds = [PollFd::new(&self.tap, PollFlags::IN)];
            poll(&mut fds, Some(&wait)).unwrap();
        }
    }

    /// Talks over a connection of ours until both sides have closed.
    fn talk(&mut self, mut open: impl FnMut(&mut Stack, u64) -> Option<weir_stack::tcp::TcpId>) {
        let mut talker = Talker::new(0, BYTES, BYTES, 30_000);
        self.run(|stack, now_ns| {
            if talker.connection.is_none() {
                talker.connection = open(stack, now_ns);
            }
            talker.talk(now_ns, stack);
            talker.ended && talker.closed
        });
        // What is still on its way, however long that takes.
        let connection = talker.connection.expect("it was open");
        self.run(|stack, _| {
            let state = stack.tcp_state(connection);
            matches!(state, None | Some(State::Closed | State::TimeWait))
        });
        let until = self.start.elapsed() + Duration::from_millis(50);
        self.run(|_, now_ns| u128::from(now_ns) > until.as_nanos());
    }
}

/// Linux's side: as many bytes each way, checked.
fn converse(stream: TcpStream) -> io::Result<()> {
    let writer = stream.try_clone()?;
    std::thread::scope(|scope| {
        let wrote = scope.spawn(move || -> io::Result<()> {
            let bytes: Vec<u8> = (0..BYTES).map(|at| byte(1, at)).collect();
            (&writer).write_all(&bytes)?;
            writer.shutdown(Shutdown::Write)
        });
        let mut bytes = Vec::new();
        (&stream).read_to_end(&mut bytes)?;
        assert_eq!(bytes.len(), BYTES);
        assert!(
            bytes
                .iter()
                .enumerate()
                .all(|(at, value)| *value == byte(0, at))
        );
        wrote.join().expect("the writer ends")
    })
}

#[test]
fn linux_connects_to_us_and_both_send() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    let mut world = World::new();
    for at in [V4, V6] {
        let server = SocketAddr::new(ip(at[0]), 80);
        let listener = world.stack.tcp_listen(server, 5).unwrap();
        let host = world.host.clone();
        let client = std::thread::spawn(move || host.run(|| converse(TcpStream::connect(server)?)));
        world.talk(|stack, now_ns| stack.tcp_accept(now_ns, listener).ok());
        client.join().unwrap().unwrap();
    }
}

#[test]
fn we_connect_to_linux_and_both_send() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    let mut world = World::new();
    for at in [V4, V6] {
        let server = SocketAddr::new(ip(at[1]), 8080);
        let listener = world.host.run(|| TcpListener::bind(server)).unwrap();
        let linux = std::thread::spawn(move || converse(wait::accept(&listener)?.0));
        let mut opened = None;
        world.talk(|stack, now_ns| {
            opened = opened.or_else(|| Some(stack.tcp_connect(now_ns, None, server).unwrap()));
            opened
        });
        linux.join().unwrap().unwrap();
    }
}

/// Bulk transfers against Linux, with timestamps: how many of the segments
/// take the fast path, each way, over both IP versions.
#[test]
fn bulk_transfers_with_linux_take_the_fast_path() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    const BULK: usize = 6_000_000;
    let mut world = World::new();
    for at in [V4, V6] {
        for to_linux in [true, false] {
            let server = SocketAddr::new(ip(at[1]), 9000 + u16::from(to_linux));
            let listener = world.host.run(|| TcpListener::bind(server)).unwrap();
            let linux = std::thread::spawn(move || -> io::Result<()> {
                let (mut stream, _) = wait::accept(&listener)?;
                if to_linux {
                    let mut bytes = Vec::new();
                    stream.read_to_end(&mut bytes)?;
                    assert_eq!(bytes.len(), BULK);
                } else {
                    stream.write_all(&vec![1; BULK])?;
                }
                Ok(())
            });
            let before = world.stack.counters().clone();
            let mut connection = None;
            let (mut sent, mut read) = (0, 0);
            let (bytes, mut buffer) = (vec![1; 1 << 16], vec![0; 1 << 16]);
            world.run(|stack, now_ns| {
                let id = *connection
                    .get_or_insert_with(|| stack.tcp_connect(now_ns, None, server).unwrap());
                while to_linux && sent < BULK {
                    let len = bytes.len().min(BULK - sent);
                    match stack.tcp_write(id, &bytes[..len]) {
                        Ok(count) => sent += count,
                        Err(_) => return false,
                    }
                }
                while !to_linux && read < BULK {
                    match stack.tcp_read(id, &mut buffer) {
                        Ok(count) => read += count,
                        Err(_) => return false,
                    }
                }
                stack.tcp_close(now_ns, id);
                true
            });
            world.run(|_, _| linux.is_finished());
            linux.join().unwrap().unwrap();
            let after = world.stack.counters();
            let fast = after.segments_fast - before.segments_fast;
            let standard = after.segments_standard - before.segments_standard;
            let share = fast as f64 / (fast + standard) as f64;
            let way = if to_linux { "to" } else { "from" };
            println!("{way} Linux at {server}: {fast} fast, {standard} standard: {share:.4}");
            assert!(share >= 0.95, "{way} {server}: {share:.3}");
        }
    }
}
