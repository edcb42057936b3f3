//! The forwarders of one process: from the C library's resolver, by the kernel's loopback, to servers,
//! by weir.
//!
//! A datagram is one query, with a socket of weir and so a random port of its own; what waits longer
//! than the resolver does is forgotten. A query that cannot be sent is answered with SERVFAIL, so that
//! the resolver asks its next server at once. Over TCP a thread for each connection passes messages
//! (RFC 1035 §4.2.2).

use super::{Ports, SERVERS_MAX, servers};
use crate::sock::errno;
use crate::{host, signals};
use libc::c_int;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use weir_socket::Net;

/// The transport port of servers (RFC 1035 §4.2).
const PORT: u16 = 53;
/// Bytes of a message's header (RFC 1035 §4.1.1).
const HEADER: usize = 12;
/// Longest datagram that is passed on, in bytes: more than any resolver announces (RFC 6891 §6.2.5).
const MESSAGE_MAX: usize = 8192;
/// Limit on queries that wait for an answer; one more takes the place of the oldest.
const QUERIES_MAX: usize = 64;
/// Limit on connections.
const CONNECTIONS_MAX: usize = 16;
/// How long an answer is waited for: the resolver's longest time-out (`RES_MAXRETRANS`).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest rest between two looks at time-outs.
const REST_MAX: Duration = Duration::from_secs(1);

/// The forwarders that run in this process.
#[derive(Clone, Copy)]
pub(crate) struct Forwarders(Ports);

/// The ports of this process's forwarders, which the first call starts; as many as there are servers.
///
/// # Errors
/// If the system provides no sockets or threads.
pub(crate) fn ports(net: &Net) -> Result<Ports, c_int> {
    let running = host::process().forwarders.lock();
    let mut running = running.unwrap_or_else(PoisonError::into_inner);
    let Forwarders(mut ports) = match *running {
        Some(forwarders) => forwarders,
        None => *running.insert(start(net).map_err(|error| errno(&error))?),
    };
    let count = servers(net).len();
    ports[count.min(SERVERS_MAX)..].fill(0);
    Ok(ports)
}

/// The kernel's sockets of one server.
struct Local {
    datagrams: UdpSocket,
    listener: TcpListener,
}

fn start(net: &Net) -> io::Result<Forwarders> {
    let mut locals = Vec::new();
    let mut ports = [0; SERVERS_MAX];
    for port in &mut ports {
        let local = Local::bind()?;
        *port = local.datagrams.local_addr()?.port();
        locals.push(local);
    }
    let net = net.clone();
    let mask = signals::block_all();
    let started = thread::Builder::new()
        .name("weir-names".to_owned())
        .spawn(move || run(&net, &locals));
    drop(mask);
    started.map(|_| Forwarders(ports))
}

/// A descriptor out of the application's way.
fn hidden<T: From<OwnedFd> + Into<OwnedFd>>(socket: T) -> T {
    host::hide(socket.into()).into()
}

impl Local {
    /// Two sockets of one port.
    fn bind() -> io::Result<Local> {
        /// A port that is free for datagrams may be taken for connections.
        const TRIALS: usize = 100;
        let mut last = None;
        for _ in 0..TRIALS {
            let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            match TcpListener::bind(datagrams.local_addr()?) {
                Ok(listener) => {
                    datagrams.set_nonblocking(true)?;
                    listener.set_nonblocking(true)?;
                    return Ok(Local {
                        datagrams: hidden(datagrams),
                        listener: hidden(listener),
                    });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    }
}

/// A query that waits for its answer.
struct Query {
    /// The server that it was sent to, by its number.
    server: usize,
    client: SocketAddr,
    udp: weir_socket::UdpSocket,
    /// The question, for an answer that says that there is none.
    head: Vec<u8>,
    until: Instant,
}

fn run(net: &Net, locals: &[Local]) {
    let _inside = signals::enter();
    let mut queries: Vec<Query> = Vec::new();
    let connections = Arc::new(AtomicUsize::new(0));
    let mut message = vec![0; MESSAGE_MAX];
    let mut accepts = true;
    // Also when the host is gone: the ports must not become another user's.
    loop {
        await_any(locals, &queries, accepts);
        accepts = true;
        for (server, local) in locals.iter().enumerate() {
            for _ in 0..QUERIES_MAX {
                let Ok((len, client)) = local.datagrams.recv_from(&mut message) else {
                    break;
                };
                if queries.len() == QUERIES_MAX {
                    queries.remove(0);
                }
                let query = ask(net, server, client, &message[..len]);
                match query {
                    Ok(query) => queries.push(query),
                    Err(_) => refuse(local, client, &message[..len]),
                }
            }
            for _ in 0..CONNECTIONS_MAX {
                match local.listener.accept() {
                    Ok((stream, _)) => serve(net, server, hidden(stream), &connections),
                    Err(error) => {
                        // Without a descriptor the connection stays, and would be seen again at once.
                        accepts &= error.kind() == io::ErrorKind::WouldBlock;
                        break;
                    }
                }
            }
        }
        let now = Instant::now();
        queries.retain(|query| {
            let local = &locals[query.server];
            match query.udp.recv(&mut message) {
                Ok(len) if !is_answer(&message[..len], &query.head) => query.until > now,
                Ok(len) => {
                    // A client that has gone needs no answer.
                    let _ = local.datagrams.send_to(&message[..len], query.client);
                    false
                }
                Err(error) if errno(&error) == libc::EAGAIN => query.until > now,
                Err(_) => {
                    refuse(local, query.client, &query.head);
                    false
                }
            }
        });
    }
}

/// Whether a datagram can be the answer to a query (RFC 1035 §4.1.1): it is a response of this number.
/// The resolver compares the rest.
fn is_answer(datagram: &[u8], query: &[u8]) -> bool {
    datagram.len() >= HEADER && datagram[..2] == query[..2] && datagram[2] & 0x80 != 0
}

/// Waits for queries, connections and answers.
fn await_any(locals: &[Local], queries: &[Query], accepts: bool) {
    let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(2 * locals.len() + queries.len());
    for local in locals {
        if accepts {
            fds.push(PollFd::new(&local.listener, PollFlags::IN));
        }
        fds.push(PollFd::new(&local.datagrams, PollFlags::IN));
    }
    let ready = queries.iter().filter_map(|query| query.udp.ready_fd().ok());
    fds.extend(ready.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    let rest = Timespec::try_from(REST_MAX).ok();
    let _ = poll(&mut fds, rest.as_ref());
}

/// The address of a server, by its number.
fn address(net: &Net, server: usize) -> io::Result<SocketAddr> {
    let server = servers(net).get(server).copied();
    let server = server.ok_or(io::ErrorKind::NotFound)?;
    Ok(SocketAddr::new(server, PORT))
}

/// Sends a query on to a server.
fn ask(net: &Net, server: usize, client: SocketAddr, query: &[u8]) -> io::Result<Query> {
    if query.len() < HEADER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let to = address(net, server)?;
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let udp = weir_socket::UdpSocket::bind(net, (any, 0))?;
    udp.set_nonblocking(true)?;
    udp.connect(to)?;
    udp.send(query)?;
    Ok(Query {
        server,
        client,
        udp,
        head: query.to_vec(),
        until: Instant::now() + ANSWER_TIMEOUT,
    })
}

/// Answers a query with SERVFAIL.
fn refuse(local: &Local, client: SocketAddr, query: &[u8]) {
    if let Some(answer) = failure(query) {
        let _ = local.datagrams.send_to(&answer, client);
    }
}

/// The answer SERVFAIL to a query (RFC 1035 §4.1.1): the header and the question, without other records.
/// `None` if the query is not one.
fn failure(query: &[u8]) -> Option<Vec<u8>> {
    const SERVFAIL: u8 = 2;
    let (head, rest) = query.split_first_chunk::<HEADER>()?;
    let mut end = 0;
    loop {
        match *rest.get(end)? {
            0 => break,
            len @ 1..=63 => end += 1 + usize::from(len),
            _ => return None,
        }
    }
    // The root, type and class.
    let question = rest.get(..end + 5)?;
    let mut answer = head.to_vec();
    answer[2] |= 0x80;
    answer[3] = 0x80 | SERVFAIL;
    answer[4..].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    answer.extend(question);
    Some(answer)
}

/// Passes the messages of a connection on, in a thread of its own; a connection too many is closed.
fn serve(net: &Net, server: usize, client: TcpStream, connections: &Arc<AtomicUsize>) {
    if connections.load(Relaxed) >= CONNECTIONS_MAX {
        return;
    }
    connections.fetch_add(1, Relaxed);
    let (net, count) = (net.clone(), Arc::clone(connections));
    let started = thread::Builder::new().spawn(move || {
        let _inside = signals::enter();
        // The resolver finds out by the end of the connection.
        let _ = pass(&net, server, client);
        count.fetch_sub(1, Relaxed);
    });
    if started.is_err() {
        connections.fetch_sub(1, Relaxed);
    }
}

fn pass(net: &Net, server: usize, mut client: TcpStream) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    client.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let to = address(net, server)?;
    let mut upstream = weir_socket::TcpStream::connect(net, to)?;
    upstream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    upstream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    loop {
        let query = message(&mut client)?;
        upstream.write_all(&query)?;
        let answer = message(&mut upstream)?;
        client.write_all(&answer)?;
    }
}

/// The next message, with its length. Its sender may not take longer for all than for the first byte.
fn message(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let until = Instant::now() + ANSWER_TIMEOUT;
    let mut message = vec![0; 2];
    let mut have = 0;
    while have < message.len() {
        match from.read(&mut message[have..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => have += count,
        }
        if have == 2 && message.len() == 2 {
            let len = u16::from_be_bytes([message[0], message[1]]);
            message.resize(2 + usize::from(len), 0);
        }
        if Instant::now() > until {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(message)
}
