//! `weir echo`: an echo server (RFC 862), and its client.

use crate::error::{CliError, limited, say};
use crate::host::{self, HostArgs, LinkRequirement, any_of, any_towards};
use crate::report::stdout;
use crate::signals::ShutdownSignal;
use serde_json::json;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use weir_socket::{Net, TcpListener, TcpStream, UdpSocket};

/// Echo messages over TCP and UDP (RFC 862), as server or client
///
/// Without HOST a server, which prints `ready` on standard error and serves
/// until SIGINT, SIGTERM or SIGHUP. With HOST a client, which sends messages,
/// checks that they are echoed, and prints the round-trip times.
///
/// The server gives no datagram back that comes from a transport port below 512
/// or from its own: another echo server there would answer it for ever. Against
/// one at another port, it does not answer one datagram of 4,096 that come from
/// one transport port with the same bytes, each within a second.
#[derive(clap::Args, Debug)]
#[command(after_help = format!("\
{}

Examples:
  weir echo --link tap0 --addr 192.0.2.5/24
  weir echo 192.0.2.1 --link tap0 --addr 192.0.2.5/24 --count 1000 --size 1
  weir echo 192.0.2.1 --udp --link tap0 --addr 192.0.2.5/24 --json

A client's --json: {{\"sent\":n,\"came_back\":n,\"microseconds\":{{\"min\":a,\"median\":b,\"max\":c}}}}.

Exit status: 0; 1 if the link cannot be used, or not all came back; 2 if an option is wrong; a
client's 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM.", host::HELP))]
pub(crate) struct Args {
    /// The server: a name or an address
    #[arg(value_name = "HOST")]
    server: Option<String>,

    #[command(flatten)]
    host: HostArgs,

    /// The transport port
    #[arg(short, long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u16).range(1..), allow_negative_numbers = true)]
    port: u16,

    /// Use UDP
    #[arg(short, long, requires = "server")]
    udp: bool,

    /// Number of messages
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 10,
        requires = "server"
    )]
    count: usize,

    /// Bytes of a message
    #[arg(short, long, value_name = "BYTES", default_value_t = 64, requires = "server",
          value_parser = clap::value_parser!(u32).range(1..=65_507), allow_negative_numbers = true)]
    size: u32,

    /// Print JSON
    #[arg(long, requires = "server")]
    json: bool,
}

/// Time limit for an echo.
const IO_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for opening a connection: longer, since no earlier exchange has
/// shown that the peer answers.
const OPENS_WITHIN: Duration = Duration::from_secs(5);
/// How often blocking calls check for a signal.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A client may be silent indefinitely, but keep-alive probes check after this
/// time that it still exists: a vanished client would otherwise occupy a
/// connection forever.
const SILENT_MAX: Duration = Duration::from_secs(15);
/// Largest number of TCP connections at one time; further connections wait.
const CONNECTIONS_MAX: usize = 1024;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let stop = ShutdownSignal::watch_hangup_too()?;
    match &args.server {
        None => serve(args, &stop),
        Some(server) => {
            let (net, to) = args.host.open_towards(server, args.port, &stop)?;
            run_client(args, &net, to, &stop)
        }
    }
}

fn serve(args: &Args, stop: &ShutdownSignal) -> Result<(), CliError> {
    let net = args.host.open(LinkRequirement::Later, stop)?;
    let ended = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    let failed =
        |error: io::Error| CliError::run(format!("cannot listen at port {}: {error}", args.port));
    for any in any_of(&net, args.port) {
        let listener = TcpListener::bind(&net, any).map_err(failed)?;
        let socket = UdpSocket::bind(&net, any).map_err(failed)?;
        socket
            .set_read_timeout(Some(STOP_POLL_INTERVAL))
            .map_err(failed)?;
        let (its, other) = (Arc::clone(&ended), Arc::clone(&ended));
        threads.push(spawn(move || accept(&listener, &its)).map_err(no_thread)?);
        let port = args.port;
        threads.push(spawn(move || datagrams(&socket, port, &other)).map_err(no_thread)?);
    }
    say("ready");
    let mut outcome = Ok(());
    while !stop.is_requested() && outcome.is_ok() {
        stop.wait(5 * STOP_POLL_INTERVAL);
        outcome = args.host.check(&net);
    }
    ended.store(true, Relaxed);
    for thread in threads {
        let _ = thread.join();
    }
    outcome
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().spawn(work)
}

fn no_thread(error: io::Error) -> CliError {
    CliError::run(format!("cannot start a thread: {}", limited(&error)))
}

/// Pauses after a failed call that did not block, so that a retry loop does not
/// spin.
fn back_off(error: &io::Error) {
    if error.kind() != io::ErrorKind::WouldBlock {
        thread::sleep(STOP_POLL_INTERVAL);
    }
}

fn accept(listener: &TcpListener, ended: &Arc<AtomicBool>) {
    let open = Arc::new(AtomicUsize::new(0));
    let _ = listener.set_read_timeout(Some(STOP_POLL_INTERVAL));
    while !ended.load(Relaxed) {
        if open.load(Relaxed) >= CONNECTIONS_MAX {
            thread::sleep(STOP_POLL_INTERVAL / 10);
            continue;
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                back_off(&error);
                continue;
            }
        };
        open.fetch_add(1, Relaxed);
        let (its, ended) = (Arc::clone(&open), Arc::clone(ended));
        let spawned = spawn(move || {
            if give_back(&stream, &ended).is_err() {
                stream.reset();
            }
            its.fetch_sub(1, Relaxed);
        });
        if spawned.is_err() {
            // The connection was dropped together with the failed thread's
            // closure.
            open.fetch_sub(1, Relaxed);
            thread::sleep(STOP_POLL_INTERVAL);
        }
    }
}

fn give_back(mut stream: &TcpStream, ended: &AtomicBool) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_keepalive(Some(SILENT_MAX))?;
    stream.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
    let mut buffer = vec![0; 64 << 10];
    while !ended.load(Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => stream.write_all(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    stream.shutdown(Shutdown::Write)
}

fn datagrams(socket: &UdpSocket, port: u16, ended: &AtomicBool) {
    let mut loops = LoopGuard::new();
    while !ended.load(Relaxed) {
        match socket.recv_owned() {
            Ok((_, from)) if may_be_server(from, port) => {}
            Ok((bytes, from)) if loops.ends(from, &bytes, Instant::now()) => {}
            // A reply that cannot be sent is lost, as any datagram may be.
            Ok((bytes, from)) => drop(socket.send_to(&bytes, from)),
            Err(error) => back_off(&error),
        }
    }
}

/// Whether a datagram may come from a server that would answer the echo: one of
/// the small services, or another echo server at the same port. BSD's inetd
/// ignores the same transport ports.
fn may_be_server(from: SocketAddr, own_port: u16) -> bool {
    const SERVERS_BELOW: u16 = 512;
    from.port() < SERVERS_BELOW || from.port() == own_port
}

/// Ends the loop of a datagram between this server and another at a port that
/// says nothing: the datagram comes back again and again, until it is not
/// answered once. A client that repeats itself loses one in
/// [`LoopGuard::REPEATS_MAX`].
struct LoopGuard {
    hasher: RandomState,
    /// The last datagram of each hash, and how often it came.
    entries: Vec<Repeats>,
}

#[derive(Clone, Copy)]
struct Repeats {
    hash: u64,
    count: u32,
    last: Instant,
}

impl LoopGuard {
    /// Number of remembered datagrams, and so of loops that are ended at one time.
    const ENTRIES: usize = 1 << 14;
    /// Times that a datagram is answered in a row.
    const REPEATS_MAX: u32 = 4096;
    /// A datagram that comes later than this does not come from a loop.
    const REPEATS_WITHIN: Duration = Duration::from_secs(1);

    fn new() -> LoopGuard {
        let never = Repeats {
            hash: 0,
            count: 0,
            last: Instant::now(),
        };
        LoopGuard {
            hasher: RandomState::new(),
            entries: vec![never; LoopGuard::ENTRIES],
        }
    }

    /// Whether a datagram is not to be answered.
    fn ends(&mut self, from: SocketAddr, bytes: &[u8], now: Instant) -> bool {
        let hash = self.hasher.hash_one((from, bytes));
        let entry = &mut self.entries[hash as usize % LoopGuard::ENTRIES];
        let since = now.saturating_duration_since(entry.last);
        let repeats = entry.hash == hash && since <= LoopGuard::REPEATS_WITHIN;
        let count = if repeats { entry.count + 1 } else { 1 };
        let ends = count >= LoopGuard::REPEATS_MAX;
        *entry = Repeats {
            hash,
            count: if ends { 0 } else { count },
            last: now,
        };
        ends
    }
}

fn run_client(
    args: &Args,
    net: &Net,
    to: SocketAddr,
    stop: &ShutdownSignal,
) -> Result<(), CliError> {
    let failed = |error: io::Error| {
        if stop.is_requested() {
            CliError::Stopped(stop.signal())
        } else {
            host::unreached(net, to, &error)
        }
    };
    let mut way = Transport::open(args, net, to, stop).map_err(failed)?;
    let mut times = Vec::new();
    let mut trouble = None;
    for count in 0..args.count {
        if stop.is_requested() {
            break;
        }
        let message: Vec<u8> = (0..args.size as usize)
            .map(|at| (at + count) as u8)
            .collect();
        let began = Instant::now();
        match way.round_trip(&message, stop) {
            Ok(()) => times.push(began.elapsed()),
            Err(error) => trouble = Some(failed(error)),
        }
        if trouble.is_some() && !args.udp {
            break;
        }
    }
    report(args, &mut times)?;
    match (stop.is_requested(), trouble) {
        (true, _) => Err(CliError::Stopped(stop.signal())),
        (false, Some(trouble)) => Err(trouble),
        (false, None) => Ok(()),
    }
}

enum Transport {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Transport {
    fn open(
        args: &Args,
        net: &Net,
        to: SocketAddr,
        stop: &ShutdownSignal,
    ) -> io::Result<Transport> {
        if args.udp {
            let socket = UdpSocket::bind(net, any_towards(to))?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
            return Ok(Transport::Udp(socket));
        }
        let stream = host::connect(net, to, OPENS_WITHIN, stop)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STOP_POLL_INTERVAL))?;
        Ok(Transport::Tcp(stream))
    }

    /// Sends a message and waits until it comes back.
    fn round_trip(&mut self, message: &[u8], stop: &ShutdownSignal) -> io::Result<()> {
        let until = Instant::now() + IO_TIMEOUT;
        match self {
            Transport::Tcp(stream) => {
                // At most the size of a send buffer.
                stream.write_all(message)?;
                let mut back = vec![0; message.len()];
                let mut count = 0;
                while count < back.len() {
                    match patient(until, stop, || stream.read(&mut back[count..]))? {
                        0 => return Err(io::Error::other("the connection was closed")),
                        more => count += more,
                    }
                }
                if back == message {
                    Ok(())
                } else {
                    Err(io::Error::other("the echo differs from the message"))
                }
            }
            Transport::Udp(socket) => {
                socket.send(message)?;
                // A late datagram echoes an earlier message.
                while patient(until, stop, || socket.recv_owned())?.0 != message {}
                Ok(())
            }
        }
    }
}

/// Repeats a call with a short timeout until it returns data, a signal arrives,
/// or the time limit has passed.
fn patient<T>(
    until: Instant,
    stop: &ShutdownSignal,
    mut call: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
        if stop.is_requested() {
            return Err(io::Error::other("asked to stop"));
        } else if Instant::now() >= until {
            let seconds = IO_TIMEOUT.as_secs();
            return Err(io::Error::other(format!("no answer within {seconds} s")));
        }
    }
}

fn report(args: &Args, times: &mut [Duration]) -> Result<(), CliError> {
    times.sort_unstable();
    let at = |part: usize| {
        let index = (times.len() * part / 100).min(times.len().saturating_sub(1));
        times
            .get(index)
            .map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    let (min, median, max) = (at(0), at(50), at(100));
    let came_back = times.len();
    let json = json!({
        "sent": args.count,
        "came_back": came_back,
        "microseconds": {"min": min, "median": median, "max": max},
    });
    stdout::report(args.json, &json, || {
        format!(
            "{came_back} of {} came back; microseconds: min {min:.1}, median {median:.1}, max {max:.1}",
            args.count
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_not_answered() {
        let from = |port| SocketAddr::from(([192, 0, 2, 1], port));
        // Echo, chargen, DNS, and another weir echo server with the same port
        // number.
        assert!(
            [7, 19, 53, 511, 4007]
                .iter()
                .all(|port| may_be_server(from(*port), 4007))
        );
        assert!(
            ![512, 1024, 4006, 40_000]
                .iter()
                .any(|port| may_be_server(from(*port), 4007))
        );
    }

    /// Datagrams that two servers give each other end, also several at once.
    #[test]
    fn loops_between_servers_end() {
        const LOOPS: u32 = 50;
        // Each server sees a datagram every second round; one that shares its place at both servers, with
        // different others, ends once these have ended.
        const ROUNDS: u32 = 4 * LoopGuard::REPEATS_MAX;
        let address = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let mut servers = [4007, 4008].map(|port| (address(port), LoopGuard::new()));
        let mut now = Instant::now();
        let mut open: Vec<u32> = (0..LOOPS).collect();
        for round in 0.. {
            assert!(round <= ROUNDS, "{} go on", open.len());
            now += Duration::from_micros(10);
            let [here, there] = &mut servers;
            open.retain(|number| !here.1.ends(there.0, &number.to_be_bytes(), now));
            servers.reverse();
            if open.is_empty() {
                break;
            }
        }
    }

    #[test]
    fn clients_are_answered() {
        let from = SocketAddr::from(([192, 0, 2, 1], 40_000));
        let (mut guard, mut now) = (LoopGuard::new(), Instant::now());
        let mut refused = 0;
        for number in 0..20_000_u32 {
            now += Duration::from_micros(10);
            refused += u32::from(guard.ends(from, &[number as u8; 64], now));
            refused += u32::from(guard.ends(from, &number.to_be_bytes(), now));
        }
        for _ in 0..10_000 {
            now += Duration::from_millis(1001);
            refused += u32::from(guard.ends(from, b"ping", now));
        }
        assert_eq!(refused, 0);
    }
}
