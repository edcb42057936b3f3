//! The streams of a test.

use super::{Parameters, Results, StreamResult, stream_id, unexpected};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_socket::{TcpStream, UdpSocket};

/// How often blocking calls check for the end of the test.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Largest backlog of a paced sender, in time; more is not made up for.
const BEHIND_MAX: Duration = Duration::from_millis(100);

/// The socket of a stream.
pub(super) enum StreamSocket {
    Tcp(TcpStream),
    /// Several streams may share the socket; the peer distinguishes them.
    Udp(UdpSocket, SocketAddr),
}

/// A receiving UDP socket and its streams, by their peers: a server has one
/// socket for all streams, a client one for each.
struct UdpDemux {
    socket: UdpSocket,
    streams: Vec<(SocketAddr, Arc<Counts>)>,
}

impl UdpDemux {
    fn add(all: &mut Vec<UdpDemux>, socket: UdpSocket, peer: SocketAddr, counts: Arc<Counts>) {
        let at = |socket: &UdpSocket| socket.local_addr().ok();
        match all.iter_mut().find(|one| at(&one.socket) == at(&socket)) {
            Some(one) => one.streams.push((peer, counts)),
            None => all.push(UdpDemux {
                socket,
                streams: vec![(peer, counts)],
            }),
        }
    }
}

/// The counts of a running stream.
#[derive(Default)]
struct Counts {
    bytes: AtomicU64,
    packets: AtomicI64,
    lost: AtomicI64,
    /// Jitter in seconds and the last transit time (RFC 3550 §6.4.1).
    jitter: Mutex<(f64, Option<f64>)>,
}

/// The streams of a running test.
pub(super) struct Streams {
    has_ended: Arc<AtomicBool>,
    counts: Vec<Arc<Counts>>,
    threads: Vec<JoinHandle<()>>,
    /// Open connections: closing one with unread bytes would reset it.
    open: Vec<TcpStream>,
    /// Whether this side sends.
    sends: bool,
    began: Instant,
}

impl Streams {
    /// Starts sending or receiving.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn start(
        sockets: Vec<StreamSocket>,
        sends: bool,
        parameters: &Parameters,
    ) -> io::Result<Streams> {
        let connection = |way: &StreamSocket| match way {
            StreamSocket::Tcp(stream) => Some(stream.clone()),
            StreamSocket::Udp(..) => None,
        };
        let mut streams = Streams {
            has_ended: Arc::default(),
            counts: sockets.iter().map(|_| Arc::default()).collect(),
            threads: Vec::new(),
            open: sockets.iter().filter_map(connection).collect(),
            sends,
            began: Instant::now(),
        };
        match streams.begin(sockets, parameters) {
            Ok(()) => Ok(streams),
            Err(error) => {
                streams.end();
                Err(error)
            }
        }
    }

    fn begin(&mut self, ways: Vec<StreamSocket>, parameters: &Parameters) -> io::Result<()> {
        // Total bytes to send, for a test of a number of bytes or blocks.
        let left = match (parameters.num, parameters.blockcount) {
            (0, 0) => i64::MAX,
            (0, blocks) => (blocks.saturating_mul(parameters.len as u64)).min(1 << 62) as i64,
            (bytes, _) => bytes.min(1 << 62) as i64,
        };
        let left = Arc::new(AtomicI64::new(left));
        let mut heard: Vec<UdpDemux> = Vec::new();
        let counts = self.counts.clone();
        for (way, counts) in ways.into_iter().zip(counts) {
            let (over, left, sends) = (Arc::clone(&self.has_ended), Arc::clone(&left), self.sends);
            let parameters = parameters.clone();
            match way {
                StreamSocket::Udp(socket, peer) if !sends => {
                    UdpDemux::add(&mut heard, socket, peer, counts)
                }
                way => self.spawn(move || match (way, sends) {
                    (StreamSocket::Tcp(stream), true) => {
                        write(&stream, &parameters, &counts, &left, &over)
                    }
                    (StreamSocket::Tcp(stream), false) => {
                        read(&stream, &parameters, &counts, &over)
                    }
                    (StreamSocket::Udp(socket, to), _) => {
                        send(&socket, to, &parameters, &counts, &left, &over);
                    }
                })?,
            }
        }
        for one in heard {
            let (over, wide) = (
                Arc::clone(&self.has_ended),
                parameters.udp_counters_64bit > 0,
            );
            self.spawn(move || receive(&one.socket, &one.streams, wide, &over))?;
        }
        Ok(())
    }

    fn spawn(&mut self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().spawn(work);
        let thread =
            thread.map_err(|error| unexpected(format!("cannot start a thread: {error}")))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Bytes of all streams so far.
    pub(super) fn bytes(&self) -> u64 {
        self.counts
            .iter()
            .map(|counts| counts.bytes.load(Relaxed))
            .sum()
    }

    /// Ends the streams; returns their results, the duration in seconds, and
    /// the connections, to be closed later.
    pub(super) fn end(self) -> (Results, f64, Vec<TcpStream>) {
        let seconds = self.began.elapsed().as_secs_f64();
        self.has_ended.store(true, Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
        // Only a TCP sender knows this number.
        let again = |index: usize| {
            let info = self.open.get(index).filter(|_| self.sends)?.info().ok()?;
            Some(i64::from(info.counts.retransmitted))
        };
        let result = |(index, counts): (usize, &Arc<Counts>)| StreamResult {
            id: stream_id(index),
            bytes: counts.bytes.load(Relaxed),
            retransmits: again(index).unwrap_or(-1),
            jitter: counts
                .jitter
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .0,
            errors: counts.lost.load(Relaxed),
            packets: counts.packets.load(Relaxed),
            end_time: seconds,
            ..StreamResult::default()
        };
        let results = Results {
            sender_has_retransmits: if self.sends && !self.open.is_empty() {
                1
            } else {
                -1
            },
            streams: self.counts.iter().enumerate().map(result).collect(),
            ..Results::default()
        };
        (results, seconds, self.open)
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Paces to a rate in bits per second; 0 for no limit.
struct Pacer {
    rate: u64,
    due: Instant,
}

impl Pacer {
    fn new(rate: u64) -> Pacer {
        Pacer {
            rate,
            due: Instant::now(),
        }
    }

    /// Waits until `bytes` more bytes may be sent; `false` if the test ends
    /// first.
    fn wait(&mut self, bytes: usize, over: &AtomicBool) -> bool {
        if self.rate == 0 {
            return true;
        }
        let mut now = Instant::now();
        if now.saturating_duration_since(self.due) > BEHIND_MAX {
            self.due = now;
        }
        // At a low rate this may be longer than the test.
        while self.due > now {
            if over.load(Relaxed) {
                return false;
            }
            std::thread::sleep((self.due - now).min(STOP_POLL_INTERVAL));
            now = Instant::now();
        }
        self.due += Duration::from_secs_f64(bytes as f64 * 8.0 / self.rate as f64);
        true
    }
}

fn write(
    mut stream: &TcpStream,
    parameters: &Parameters,
    counts: &Counts,
    left: &AtomicI64,
    over: &AtomicBool,
) {
    let _ = stream.set_write_timeout(Some(STOP_POLL_INTERVAL));
    let block: Vec<u8> = (0..parameters.len).map(|at| at as u8).collect();
    let mut pace = Pacer::new(parameters.bandwidth);
    let mut from = 0;
    while !over.load(Relaxed) && left.load(Relaxed) > 0 {
        if from == 0 && !pace.wait(block.len(), over) {
            return;
        }
        match stream.write(&block[from..]) {
            Ok(count) => {
                counts.bytes.fetch_add(count as u64, Relaxed);
                left.fetch_sub(count as i64, Relaxed);
                from = (from + count) % block.len();
            }
            Err(error) if would_block(&error) => {}
            Err(_) => return,
        }
    }
}

fn read(mut stream: &TcpStream, parameters: &Parameters, counts: &Counts, over: &AtomicBool) {
    let _ = stream.set_read_timeout(Some(STOP_POLL_INTERVAL));
    let mut block = vec![0; parameters.len];
    while !over.load(Relaxed) {
        match stream.read(&mut block) {
            Ok(0) => return,
            Ok(count) => drop(counts.bytes.fetch_add(count as u64, Relaxed)),
            Err(error) if would_block(&error) => {}
            Err(_) => return,
        }
    }
}

/// Writes seconds, microseconds and the datagram's number.
fn stamp(datagram: &mut [u8], number: i64, wide: bool) {
    let now = std::time::SystemTime::now();
    let since = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    datagram[..4].copy_from_slice(&(since.as_secs() as u32).to_be_bytes());
    datagram[4..8].copy_from_slice(&since.subsec_micros().to_be_bytes());
    if wide {
        datagram[8..16].copy_from_slice(&number.to_be_bytes())
    } else {
        datagram[8..12].copy_from_slice(&(number as u32).to_be_bytes())
    }
}

fn send(
    socket: &UdpSocket,
    to: SocketAddr,
    parameters: &Parameters,
    counts: &Counts,
    left: &AtomicI64,
    over: &AtomicBool,
) {
    let mut datagram = vec![0; parameters.len.max(16)];
    let mut pace = Pacer::new(parameters.bandwidth);
    let wide = parameters.udp_counters_64bit > 0;
    while !over.load(Relaxed) && left.load(Relaxed) > 0 {
        if !pace.wait(datagram.len(), over) {
            return;
        }
        let number = counts.packets.load(Relaxed) + 1;
        stamp(&mut datagram, number, wide);
        match socket.send_to(&datagram, to) {
            Ok(count) => {
                counts.packets.store(number, Relaxed);
                counts.bytes.fetch_add(count as u64, Relaxed);
                left.fetch_sub(count as i64, Relaxed);
            }
            Err(error) if would_block(&error) => {}
            Err(_) => return,
        }
    }
}

/// Receives the datagrams of all streams, distinguished by their peers.
fn receive(
    socket: &UdpSocket,
    streams: &[(SocketAddr, Arc<Counts>)],
    wide: bool,
    over: &AtomicBool,
) {
    let _ = socket.set_read_timeout(Some(STOP_POLL_INTERVAL));
    while !over.load(Relaxed) {
        let (bytes, from) = match socket.recv_owned() {
            Ok(received) => received,
            Err(error) if would_block(&error) => continue,
            Err(_) => return,
        };
        let head = if wide { 16 } else { 12 };
        let Some((_, counts)) = streams.iter().find(|(peer, _)| *peer == from) else {
            continue;
        };
        if bytes.len() < head {
            continue;
        }
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let number = if wide {
            (i64::from(word(8)) << 32) | i64::from(word(12))
        } else {
            i64::from(word(8))
        };
        counts.bytes.fetch_add(bytes.len() as u64, Relaxed);
        counts.count(number, f64::from(word(0)) + f64::from(word(4)) / 1e6);
    }
}

impl Counts {
    /// Counts a datagram with this number and sending time.
    fn count(&self, number: i64, sent: f64) {
        let highest = self.packets.load(Relaxed);
        if number > highest {
            self.lost.fetch_add(number - highest - 1, Relaxed);
            self.packets.store(number, Relaxed);
        } else {
            // Late, not lost.
            let _ = self
                .lost
                .fetch_update(Relaxed, Relaxed, |lost| (lost > 0).then(|| lost - 1));
        }
        let now = std::time::SystemTime::now();
        let since = now
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let transit = since.as_secs_f64() - sent;
        let mut jitter = self.jitter.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = jitter.1 {
            jitter.0 += ((transit - before).abs() - jitter.0) / 16.0;
        }
        jitter.1 = Some(transit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At 1 bit/s, a block of 128 KB is due after twelve days.
    #[test]
    fn a_paced_sender_ends_with_the_test() {
        let over = AtomicBool::new(false);
        let mut pace = Pacer::new(1);
        assert!(pace.wait(128 << 10, &over), "the first goes at once");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| pace.wait(128 << 10, &over));
            over.store(true, Relaxed);
            assert!(!waits.join().unwrap());
        });
    }
}
