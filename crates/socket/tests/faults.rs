//! Sockets of ours and of Linux's over a TAP interface whose frames are lost,
//! late, out of order, doubled and damaged, both ways.
//!
//! `weir_lab::seeds` describes the variables that ask for more runs.

mod common;

use common::{V4, V6, byte, config, ip};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Lab};
use weir_lab::seeds::seeds;
use weir_lab::{testenv, wait};
use weir_link::mem::{End, Impairments, MemLink};
use weir_socket::link::{BATCH, Link, RxSink, Tap};
use weir_socket::{Net, TcpListener, TcpStream};
use weir_stack::TxSink;
use weir_stack::iface::RxMeta;
use weir_stack::rng::Rng;

const MS: u64 = 1_000_000;
/// How much goes each way on a connection.
const BYTES: usize = 150_000;
/// Long enough for anything that ought to happen.
const WAIT_MAX: Option<Duration> = Some(Duration::from_secs(300));

/// A TAP interface behind a bad line: ours is end A, the kernel's end B.
struct Bad {
    tap: Tap,
    line: MemLink,
    start: Instant,
    frame: Vec<u8>,
}

impl Bad {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Hands the kernel what has arrived at its end.
    fn deliver(&mut self) {
        let now_ns = self.now_ns();
        while let Some(frame) = self.line.receive(End::B, now_ns) {
            // What the interface has no room for is lost, too.
            if let Some(room) = self.tap.reserve(frame.bytes.len()) {
                room.copy_from_slice(&frame.bytes);
                self.tap.submit();
            }
        }
    }
}

impl TxSink for Bad {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame.resize(len, 0);
        Some(&mut self.frame)
    }

    fn submit(&mut self) {
        let now_ns = self.now_ns();
        self.line.send(End::A, now_ns, &self.frame).ok();
        self.deliver();
    }
}

impl Link for Bad {
    fn fd(&self) -> BorrowedFd<'_> {
        self.tap.fd()
    }

    fn receive(&mut self, take: &mut RxSink<'_>) -> io::Result<bool> {
        self.deliver();
        let now_ns = self.now_ns();
        let line = &mut self.line;
        let more = self.tap.receive(&mut |frame, _| {
            line.send(End::B, now_ns, frame).ok();
        })?;
        for _ in 0..BATCH {
            match line.receive(End::A, now_ns) {
                Some(frame) => take(&frame.bytes, RxMeta::default()),
                None => return Ok(more),
            }
        }
        Ok(true)
    }

    fn next_arrival(&self) -> Option<Duration> {
        let arrivals = [End::A, End::B].map(|end| self.line.next_arrival_ns(end));
        let next_ns = arrivals.into_iter().flatten().min()?;
        Some(Duration::from_nanos(next_ns.saturating_sub(self.now_ns())))
    }
}

/// A kernel, and a host of ours at the other end of a line as the seed says.
fn world(seed: u64) -> (Lab, Host, Net) {
    let mut rng = Rng::new(seed);
    let mut faults = || Impairments {
        loss_ppm: rng.below(30_000),
        duplicate_ppm: rng.below(10_000),
        corrupt_ppm: rng.below(10_000),
        delay_ns: u64::from(rng.below(4)) * MS,
        jitter_ns: u64::from(rng.below(3)) * MS,
        keep_order: rng.below(3) == 0,
        ..Impairments::default()
    };
    let ways = [faults(), faults()];
    println!("seed {seed}: {ways:?}");
    let lab = Lab::new();
    let host = lab.host("linux").unwrap();
    let tap = host.run(|| Tap::open_plain("tap0")).unwrap();
    let device = host.device("tap0").unwrap();
    device.up().unwrap();
    device.add_address(ip(V4[1]), 24).unwrap();
    device.add_address(ip(V6[1]), 64).unwrap();
    let [there, back] = ways;
    let bad = Bad {
        tap,
        line: MemLink::new(there, back, seed).unwrap(),
        start: Instant::now(),
        frame: Vec::new(),
    };
    (
        lab,
        host,
        Net::with_seed(bad, &config(0), seed.into()).unwrap(),
    )
}

/// Three questions for a neighbour, or all SYNs, may be lost: then a person
/// tries again.
fn persist<T>(mut connect: impl FnMut() -> io::Result<T>) -> T {
    let began = Instant::now();
    loop {
        match connect() {
            Ok(done) => return done,
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    ErrorKind::HostUnreachable | ErrorKind::TimedOut
                ) && began.elapsed() < WAIT_MAX.unwrap(),
                "{error}"
            ),
        }
    }
}

/// Sends bytes and the end, and hears as many, each as it should be.
fn talk<S: Copy + Read + Write + Send>(stream: S, end: impl FnOnce() + Send, way: usize) {
    thread::scope(|scope| {
        scope.spawn(move || {
            let bytes: Vec<u8> = (0..BYTES).map(|at| byte(at) ^ way as u8).collect();
            let mut stream = stream;
            stream.write_all(&bytes).unwrap();
            end();
        });
        let mut heard = Vec::new();
        let mut stream = stream;
        stream.read_to_end(&mut heard).unwrap();
        assert_eq!(heard.len(), BYTES);
        let other = 1 - way as u8;
        let wrong = (0..BYTES).find(|at| heard[*at] != byte(*at) ^ other);
        assert_eq!(wrong, None, "the first wrong byte");
    });
}

fn ours(stream: &TcpStream) {
    stream.set_read_timeout(WAIT_MAX).unwrap();
    talk(stream, || stream.shutdown(Shutdown::Write).unwrap(), 0);
}

fn theirs(stream: &std::net::TcpStream) {
    stream.set_read_timeout(WAIT_MAX).unwrap();
    talk(stream, || stream.shutdown(Shutdown::Write).unwrap(), 1);
}

/// A part of a run. If it fails, the threads that wait for the other end would wait for ever.
fn part(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        std::process::abort();
    }
}

/// Both open connections, over both versions, all at once; both ends send.
fn run(seed: u64) {
    let (_lab, host, net) = world(seed);
    thread::scope(|scope| {
        for at in [V4, V6] {
            let here = SocketAddr::new(ip(at[0]), 80);
            let listener = TcpListener::bind(&net, here).unwrap();
            scope.spawn(move || part(|| ours(&listener.accept().unwrap().0)));
            let other = host.clone();
            scope.spawn(move || {
                let connect = || other.run(|| std::net::TcpStream::connect(here));
                part(|| theirs(&persist(connect)));
            });
            let any = SocketAddr::new(ip(at[1]), 0);
            let listener = host.run(|| std::net::TcpListener::bind(any)).unwrap();
            let there = listener.local_addr().unwrap();
            scope.spawn(move || part(|| theirs(&wait::accept(&listener).unwrap().0)));
            let net = &net;
            scope.spawn(move || part(|| ours(&persist(|| TcpStream::connect(net, there)))));
        }
    });
}

#[test]
fn linux_and_we_understand_each_other_on_a_bad_line() {
    if !testenv::root() || !testenv::tun() {
        return;
    }
    seeds(3).for_each(run);
}

/// Answers requests for a page, one a connection.
fn serve(listener: &TcpListener, page: &[u8], count: usize) {
    for _ in 0..count {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(WAIT_MAX).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut one = [0];
            stream.read_exact(&mut one).unwrap();
            head.push(one[0]);
        }
        let answer = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", page.len());
        stream.write_all(answer.as_bytes()).unwrap();
        stream.write_all(page).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        // The client has all when it closes.
        let _ = stream.read(&mut [0]);
    }
}

#[test]
fn curl_gets_a_page_over_a_bad_line() {
    if !testenv::root() {
        return;
    }
    if !testenv::tun() || !testenv::programs(&["curl"]) {
        return;
    }
    let (_lab, host, net) = world(7);
    let page: Vec<u8> = (0..400_000).map(byte).collect();
    for (place, at) in [
        ("0.0.0.0:80", V4[0].to_owned()),
        ("[::]:80", format!("[{}]", V6[0])),
    ] {
        let listener = TcpListener::bind(&net, place).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| serve(&listener, &page, 1));
            let mut curl = testenv::program("curl").expect("it is there");
            curl.args([
                "-sS",
                "--retry",
                "5",
                "--retry-all-errors",
                "--max-time",
                "300",
            ]);
            curl.arg(format!("http://{at}/page"));
            let output = host.output(curl).unwrap();
            assert!(output.status.success(), "{output:?}");
            assert!(output.stdout == page, "{} bytes", output.stdout.len());
        });
    }
}
