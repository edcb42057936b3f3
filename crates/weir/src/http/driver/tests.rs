use super::*;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use weir_socket::{Net, TcpListener, link};
use weir_stack::tcp::TcpConfig;
use weir_stack::{Config, Stack};
use weir_wire::ethernet::Address;

const FILE_LEN: usize = 3 << 20;
/// So much fits into a connection's buffer at once.
const SMALL_LEN: usize = 12 << 10;
const PORT: u16 = 80;
const SERVER: &str = "192.0.2.1";
const CLIENT: &str = "192.0.2.2";
/// Clients that take nothing.
const SLOW: usize = 300;
/// How long anything may take that is waited for.
const WAIT_MAX: Duration = Duration::from_secs(30);

struct Site(std::path::PathBuf);

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn net(link: link::Mem, last: u8, address: &str) -> Net {
    let config = Config::new(Address([2, 0, 0, 0, 0, last]));
    let prefix = format!("{address}/24").parse().unwrap();
    Net::new(link, &config.address(prefix)).unwrap()
}

/// Runs `clients` beside a server with these limits; returns the most bytes that the buffers of the
/// server's stack had.
fn serve(name: &str, limits: Limits, clients: impl FnOnce(&Net) + Send) -> usize {
    serve_with(name, limits, &Hooks::default(), clients)
}

/// A test's hooks in the driver while clients run.
#[derive(Default)]
struct Hooks {
    /// The driver's time is later by this many windows of [`IO_TIMEOUT`], once.
    later: AtomicU64,
    /// How often the driver has looked for a connection to replace.
    scans: AtomicUsize,
}

/// [`serve`], with these hooks.
fn serve_with(
    name: &str,
    limits: Limits,
    Hooks { later, scans }: &Hooks,
    clients: impl FnOnce(&Net) + Send,
) -> usize {
    let path = std::env::temp_dir().join(format!("weir-driver-{name}-{}", std::process::id()));
    let site = Site(path);
    std::fs::create_dir_all(&site.0).unwrap();
    std::fs::write(site.0.join("big"), vec![b'x'; FILE_LEN]).unwrap();
    std::fs::write(site.0.join("small"), vec![b'x'; SMALL_LEN]).unwrap();
    let folder = Folder::open(&site.0).unwrap();
    let (a, b) = link::mem().unwrap();
    let (server, client) = (net(a, 1, SERVER), net(b, 2, CLIENT));
    server.tcp_configure(TcpConfig {
        send_initial: SEND_BUFFER_INITIAL,
        ..TcpConfig::default()
    });
    let listener = TcpListener::bind(&server, (SERVER, PORT)).unwrap();
    let memory = || server.with_stack(Stack::tcp_memory);
    let log = |_, _: &Answered| {};
    let driver = Driver::new(vec![listener], &folder, limits, &memory, false, &log);
    let (mut driver, mut most) = (driver.unwrap(), 0);
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| clients(&client));
        while !clients.is_finished() {
            driver.turn(None, Duration::from_millis(20)).unwrap();
            most = most.max(memory());
            scans.store(driver.scans, SeqCst);
            let windows = u32::try_from(later.load(SeqCst)).unwrap();
            if windows > 0 {
                driver.close_expired(Instant::now() + windows * (IO_TIMEOUT + IO_TIMEOUT / 10));
                later.store(0, SeqCst);
            }
        }
        clients.join().unwrap();
    });
    driver.reset();
    let began = Instant::now();
    while memory() > 0 {
        assert!(began.elapsed() < WAIT_MAX, "buffers of reset connections");
        std::thread::sleep(Duration::from_millis(5));
    }
    most
}

fn ask(net: &Net) -> TcpStream {
    ask_for(net, "big")
}

fn ask_for(net: &Net, name: &str) -> TcpStream {
    let mut stream = TcpStream::connect(net, (SERVER, PORT)).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let asked = format!("GET /{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(asked.as_bytes()).unwrap();
    stream
}

fn take_all(net: &Net) -> Duration {
    let (began, mut all) = (Instant::now(), Vec::new());
    ask(net).read_to_end(&mut all).unwrap();
    assert!(all.len() > FILE_LEN, "{} bytes", all.len());
    began.elapsed()
}

/// Clients whose windows are small, and which take nothing of the answers.
fn slow(net: &Net, count: usize, window: usize) -> Vec<TcpStream> {
    net.tcp_configure(TcpConfig {
        receive_buffer: window,
        ..TcpConfig::default()
    });
    let streams = (0..count).map(|_| ask(net)).collect();
    net.tcp_configure(TcpConfig::default());
    streams
}

#[test]
fn clients_that_take_nothing_hold_little_and_harm_no_other() {
    let most = serve("little", Limits::default(), |net| {
        let _slow = slow(net, SLOW, 2000);
        for _ in 0..3 {
            let took = take_all(net);
            assert!(took < Duration::from_secs(10), "{took:?}");
        }
    });
    // The client that takes all has 4 MiB at most.
    let most_slow = SLOW * (SEND_BUFFER_INITIAL + 4096);
    assert!(most < most_slow + (4 << 20), "{most} bytes");
}

/// Beyond the limit of memory those are reset that take nothing.
#[test]
fn memory_that_is_short_is_taken_from_those_that_take_least() {
    let limits = Limits {
        memory: 2 << 20,
        stall: Duration::from_millis(300),
        ..Limits::default()
    };
    serve("short", limits, |net| {
        let mut slow = slow(net, SLOW, 2000);
        take_all(net);
        let mut is_reset = [false; SLOW];
        let count = |is_reset: &[bool; SLOW]| is_reset.iter().filter(|reset| **reset).count();
        let began = Instant::now();
        while count(&is_reset) < SLOW / 2 && began.elapsed() < WAIT_MAX {
            std::thread::sleep(limits.stall);
            for (stream, is_reset) in slow.iter_mut().zip(&mut is_reset) {
                *is_reset |= !matches!(stream.take_error(), Ok(None));
            }
        }
        let count = count(&is_reset);
        assert!((SLOW / 2..SLOW).contains(&count), "{count} of {SLOW}");
        take_all(net);
    });
}

/// A client has a window of time after the other as long as it takes enough in each.
#[test]
fn an_answer_has_a_least_rate() {
    let hooks = Hooks::default();
    let later = &hooks.later;
    let wait = |windows: u64| {
        later.store(windows, SeqCst);
        let began = Instant::now();
        while later.load(SeqCst) > 0 && began.elapsed() < WAIT_MAX {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The reset has its time to arrive.
        std::thread::sleep(Duration::from_millis(100));
    };
    let ended = |stream: &mut TcpStream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).map(|_| all.len())
    };
    // More than a window of the clients: acknowledgments may come late.
    let limits = Limits {
        window_bytes_min: 100_000,
        ..Limits::default()
    };
    serve_with("rate", limits, &hooks, |net| {
        let mut all = slow(net, 3, 20_000);
        for stream in &mut all[1..] {
            stream.read_exact(&mut vec![0; 200_000]).unwrap();
        }
        wait(1);
        // What was too slow is reset; the others go on.
        assert!(ended(&mut all[0]).is_err());
        assert!(ended(&mut all[1]).unwrap() > FILE_LEN - 200_000);
        wait(2);
        assert!(ended(&mut all[2]).is_err());
    });
}

/// All of an answer was written at once, and the client takes it bit by bit: a new connection does
/// not have its place.
#[test]
fn a_client_that_takes_the_end_of_an_answer_slowly_keeps_its_place() {
    const PART: usize = 1000;
    let limits = Limits {
        connections: 1,
        stall: Duration::from_millis(500),
        ..Limits::default()
    };
    serve("drain", limits, |net| {
        net.tcp_configure(TcpConfig {
            receive_buffer: 2 * PART,
            ..TcpConfig::default()
        });
        let mut stream = ask_for(net, "small");
        net.tcp_configure(TcpConfig::default());
        let mut took = 0;
        while took < SMALL_LEN {
            std::thread::sleep(limits.stall / 5);
            match stream.read(&mut [0; PART]) {
                Ok(0) => break,
                Ok(count) => took += count,
                Err(error) => panic!("after {took} bytes: {error}"),
            }
            // It is refused.
            let _ = TcpStream::connect(net, (SERVER, PORT));
        }
        assert!(took >= SMALL_LEN, "{took} bytes");
    });
}

/// Where all connections are being answered, a flood of new ones does not have each look at all.
#[test]
fn refused_connections_cost_no_look_at_all_others() {
    const FLOOD: usize = 1000;
    let limits = Limits {
        connections: 8,
        stall: Duration::from_secs(3600),
        ..Limits::default()
    };
    let hooks = Hooks::default();
    let mut most = 0;
    serve_with("flood", limits, &hooks, |net| {
        let _slow = slow(net, limits.connections, 2000);
        let began = Instant::now();
        for _ in 0..FLOOD {
            let _ = TcpStream::connect(net, (SERVER, PORT));
        }
        most = 2 + (began.elapsed().as_millis() / SCAN_INTERVAL.as_millis()) as usize;
    });
    let scans = hooks.scans.load(SeqCst);
    assert!((1..=most).contains(&scans), "{scans} looks, {most} at most");
    assert!(most < FLOOD / 4, "the machine is too slow for this test");
}

/// A client that sends all of a head that is too long before it reads has the answer all the same.
#[test]
fn too_long_heads_are_answered() {
    serve("heads", Limits::default(), |net| {
        for (begin, status) in [("GET /", 414), ("GET / HTTP/1.1\r\nX: ", 431)] {
            let mut stream = TcpStream::connect(net, (SERVER, PORT)).unwrap();
            stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
            let head = format!("{begin}{}", "x".repeat(1 << 20));
            stream.write_all(head.as_bytes()).unwrap();
            let mut answer = vec![0; 12];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, format!("HTTP/1.1 {status}").as_bytes());
        }
    });
}
