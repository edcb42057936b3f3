//! An ordinary program that measures its sockets: a server, and a client.
//!
//! The program uses the standard library's sockets and nothing of weir, so that `weir exec` can run
//! it, unmodified, on the kernel's protocols and on weir's. The server is one thread, which serves
//! one connection after another, and then datagrams. The first byte says what is asked; of a datagram
//! its lowest two bits, and the others are a number, by which an answer is known:
//!
//! | byte | of a connection | of a datagram |
//! |---|---|---|
//! | 0 | all that follows is sent back | the datagram is sent back |
//! | 1 | what follows is counted to its end; the count is sent back | counted |
//! | 2 | | counted; its first byte and the number of datagrams since the last answer are sent back |
//! | 3 | the last connection | the server ends |

use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

const ECHO: u8 = 0;
const COUNT: u8 = 1;
const REPORT: u8 = 2;
const END: u8 = 3;
/// The bits of a datagram's first byte that say what is asked, and how many they are.
const KIND_MASK: u8 = 3;
const KIND_BITS: u32 = 2;

/// Bytes of the messages, by which throughput is measured.
pub const SIZES: [usize; 7] = [1, 64, 256, 1024, 4096, 8192, 16_384];

/// Longest wait for one call on a connection.
const CALL_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a datagram, which may be lost.
const ANSWER_MAX: Duration = Duration::from_millis(200);
/// Answers in a row that may be missing.
const MISSING_MAX: u32 = 20;
/// How long the client tries to connect to a server that may not have begun.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest time of the round trips of one transport.
const TRIPS_TIME_MAX: Duration = Duration::from_millis(300);
/// Datagrams and bytes that are sent before the client waits for an answer.
const WINDOW_MESSAGES: usize = 32;
const WINDOW_BYTES: usize = 32 << 10;
/// Length of the answer to [`REPORT`], in bytes.
const REPORT_LEN: usize = 1 + size_of::<u64>();
/// Bytes that one call reads at most.
const BUFFER: usize = 64 << 10;

/// The quantity that the client measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The server.
    pub server: SocketAddr,
    /// Round trips of one byte, at most.
    pub trips: u32,
    /// Time in which messages of one size are sent.
    pub time: Duration,
}

/// The client's figures.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Over TCP, without Nagle's algorithm.
    pub tcp: Measured,
    /// Over UDP, by connected sockets.
    pub udp: Measured,
}

/// The figures of one transport.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Median of the round trips of one byte, in microseconds.
    pub round_trip_us: f64,
    /// Throughput by message size.
    pub rates: Vec<Rate>,
}

/// Throughput of messages of one size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Rate {
    /// Bytes of a message.
    pub bytes: usize,
    /// Gigabits a second that the server has received.
    pub gbit_s: f64,
    /// The share of the messages that the server has not received: 0 to 1.
    pub lost: f64,
}

/// Serves one client at this address, over TCP and then over UDP. The wait for a client has no limit.
///
/// # Errors
/// The system's.
pub fn serve(at: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(at)?;
    let socket = UdpSocket::bind(at)?;
    let mut buffer = vec![0; BUFFER];
    while serve_connection(listener.accept()?.0, &mut buffer)? {}
    serve_datagrams(&socket, &mut buffer)
}

/// Returns whether another connection is to come.
fn serve_connection(mut stream: TcpStream, buffer: &mut [u8]) -> io::Result<bool> {
    prepare(&stream)?;
    let mut asked = [0];
    stream.read_exact(&mut asked)?;
    match asked[0] {
        ECHO => loop {
            match stream.read(buffer)? {
                0 => return Ok(true),
                len => stream.write_all(&buffer[..len])?,
            }
        },
        COUNT => {
            let mut count = 0_u64;
            loop {
                match stream.read(buffer)? {
                    0 => break,
                    len => count += len as u64,
                }
            }
            stream.write_all(&count.to_be_bytes())?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

fn serve_datagrams(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<()> {
    socket.set_read_timeout(Some(CALL_MAX))?;
    // The client is the only one.
    let client = socket.peek_from(buffer)?.1;
    socket.connect(client)?;
    let mut count = 0_u64;
    loop {
        let len = socket.recv(buffer)?;
        let Some(first) = buffer[..len].first() else {
            continue;
        };
        match first & KIND_MASK {
            ECHO => drop(socket.send(&buffer[..len])?),
            COUNT => count += 1,
            REPORT => {
                let mut answer = [*first; REPORT_LEN];
                answer[1..].copy_from_slice(&(count + 1).to_be_bytes());
                socket.send(&answer)?;
                count = 0;
            }
            _ => return Ok(()),
        }
    }
}

/// Measures both transports at a server that may begin within some seconds, and ends the server.
///
/// # Errors
/// The system's, and `InvalidData` if a connection has lost bytes.
pub fn measure(settings: &Settings) -> io::Result<Found> {
    await_server(settings.server)?;
    let tcp = Measured {
        round_trip_us: tcp_trips(settings)?,
        rates: each_size(|bytes| tcp_rate(settings, bytes))?,
    };
    connect(settings.server, END)?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(settings.server)?;
    socket.set_read_timeout(Some(ANSWER_MAX))?;
    let mut datagrams = Datagrams { socket, number: 0 };
    let udp = Measured {
        round_trip_us: trips(settings, || Ok(datagrams.ask(ECHO, &mut [0])?.is_some()))?,
        rates: each_size(|bytes| udp_rate(settings, &mut datagrams, bytes))?,
    };
    let socket = datagrams.socket;
    socket.send(&[END])?;
    Ok(Found { tcp, udp })
}

fn each_size(rate: impl FnMut(usize) -> io::Result<Rate>) -> io::Result<Vec<Rate>> {
    SIZES.into_iter().map(rate).collect()
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(CALL_MAX))?;
    stream.set_write_timeout(Some(CALL_MAX))
}

/// A connection that asks for this.
fn connect(server: SocketAddr, ask: u8) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&server, CALL_MAX)?;
    prepare(&stream)?;
    stream.write_all(&[ask])?;
    Ok(stream)
}

/// Connects, again and again, until the server accepts.
fn await_server(server: SocketAddr) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match connect(server, ECHO) {
            Ok(_) => return Ok(()),
            // There is no host: a message has said why.
            Err(error) if error.kind() == io::ErrorKind::NetworkDown => return Err(error),
            Err(error) if began.elapsed() > CONNECT_MAX => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn tcp_trips(settings: &Settings) -> io::Result<f64> {
    let mut stream = connect(settings.server, ECHO)?;
    let mut byte = [0];
    trips(settings, || {
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        Ok(true)
    })
}

/// The client's datagrams.
struct Datagrams {
    socket: UdpSocket,
    /// The number of the last question.
    number: u8,
}

impl Datagrams {
    /// Asks by a message, and waits for the answer; `None` if it does not come in time. Answers to
    /// earlier questions, which came too late, are passed over.
    fn ask(&mut self, what: u8, message: &mut [u8]) -> io::Result<Option<[u8; REPORT_LEN]>> {
        self.number = self.number.wrapping_add(1);
        message[0] = self.number << KIND_BITS | what;
        self.socket.send(message)?;
        let mut answer = [0; REPORT_LEN];
        loop {
            match self.socket.recv(&mut answer) {
                Ok(_) if answer[0] == message[0] => return Ok(Some(answer)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

/// The median of round trips in microseconds, after some that warm the caches. `trip` returns
/// whether the byte came back.
fn trips(settings: &Settings, mut trip: impl FnMut() -> io::Result<bool>) -> io::Result<f64> {
    let (warm, mut missing) = (settings.trips as usize / 10, 0);
    let mut times = Vec::new();
    let mut began = Instant::now();
    // Until there is one, however long it takes.
    while times.len() <= warm
        || times.len() < warm + settings.trips as usize && began.elapsed() < TRIPS_TIME_MAX
    {
        if times.len() < warm {
            began = Instant::now();
        }
        let start = Instant::now();
        if trip()? {
            times.push(start.elapsed());
            missing = 0;
        } else {
            check_missing(&mut missing)?;
        }
    }
    let times = &mut times[warm..];
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64() * 1e6)
}

fn check_missing(missing: &mut u32) -> io::Result<()> {
    *missing += 1;
    if *missing > MISSING_MAX {
        let text = format!("{MISSING_MAX} answers in a row are missing");
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    }
    Ok(())
}

/// Writes messages for the time, and counts until the server has read all of them.
fn tcp_rate(settings: &Settings, bytes: usize) -> io::Result<Rate> {
    let mut stream = connect(settings.server, COUNT)?;
    let message = vec![0; bytes];
    let mut sent = 0_u64;
    let began = Instant::now();
    while began.elapsed() < settings.time {
        stream.write_all(&message)?;
        sent += bytes as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut received = [0; 8];
    stream.read_exact(&mut received)?;
    let took = began.elapsed();
    let received = u64::from_be_bytes(received);
    if received != sent {
        let text = format!("the server has received {received} bytes of {sent}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(Rate {
        bytes,
        gbit_s: gbit_s(received, took),
        lost: 0.0,
    })
}

/// Sends windows of messages for the time; the last message of each asks how many have come.
fn udp_rate(settings: &Settings, datagrams: &mut Datagrams, bytes: usize) -> io::Result<Rate> {
    let window = (WINDOW_BYTES / bytes).clamp(1, WINDOW_MESSAGES);
    let mut message = vec![COUNT; bytes];
    let (mut sent, mut received, mut missing) = (0, 0, 0);
    // The count of messages that were sent before.
    while datagrams.ask(REPORT, &mut message)?.is_none() {
        check_missing(&mut missing)?;
    }
    let began = Instant::now();
    while received == 0 || began.elapsed() < settings.time {
        message[0] = COUNT;
        for _ in 1..window {
            datagrams.socket.send(&message)?;
        }
        let answer = datagrams.ask(REPORT, &mut message)?;
        sent += window as u64;
        match answer.and_then(|answer| answer.last_chunk().copied()) {
            Some(count) => {
                received += u64::from_be_bytes(count);
                missing = 0;
            }
            None => check_missing(&mut missing)?,
        }
    }
    let took = began.elapsed();
    let received = received.min(sent);
    Ok(Rate {
        bytes,
        gbit_s: gbit_s(received * bytes as u64, took),
        lost: 1.0 - received as f64 / sent as f64,
    })
}

fn gbit_s(bytes: u64, took: Duration) -> f64 {
    bytes as f64 * 8.0 / took.as_nanos().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the loopback interface of a machine without other needs.
    #[test]
    fn client_and_server_agree() {
        // No other test has this address, so none takes the port between the two binds.
        let free = TcpListener::bind("127.19.96.7:0").unwrap();
        let at = free.local_addr().unwrap();
        drop(free);
        let server = thread::spawn(move || serve(at));
        let settings = Settings {
            server: at,
            trips: 20,
            time: Duration::from_millis(5),
        };
        let found = measure(&settings).unwrap();
        server.join().unwrap().unwrap();
        for of in [found.tcp, found.udp] {
            assert!(of.round_trip_us > 0.0, "{of:?}");
            let sizes: Vec<usize> = of.rates.iter().map(|rate| rate.bytes).collect();
            assert_eq!(sizes, SIZES);
            assert!(of.rates.iter().all(|rate| rate.gbit_s > 0.0), "{of:?}");
        }
    }

    /// A server whose answers come after the client has asked again.
    #[test]
    fn late_answers_are_not_taken_for_others() {
        let server = UdpSocket::bind("127.19.96.8:0").unwrap();
        let at = server.local_addr().unwrap();
        let late = thread::spawn(move || {
            let mut buffer = [0; 16];
            let (_, client) = server.recv_from(&mut buffer).unwrap();
            let first = buffer[0];
            let _ = server.recv_from(&mut buffer).unwrap();
            let answer = |first: u8, count: u8| [first, 0, 0, 0, 0, 0, 0, 0, count];
            server.send_to(&answer(first, 1), client).unwrap();
            server.send_to(&answer(buffer[0], 2), client).unwrap();
        });
        let socket = UdpSocket::bind("127.19.96.8:0").unwrap();
        socket.connect(at).unwrap();
        socket.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        let mut datagrams = Datagrams { socket, number: 63 };
        assert_eq!(datagrams.ask(REPORT, &mut [0]).unwrap(), None);
        let answer = datagrams.ask(REPORT, &mut [0]).unwrap().unwrap();
        assert_eq!(answer[REPORT_LEN - 1], 2);
        late.join().unwrap();
    }

    #[test]
    fn without_answers_there_is_no_figure() {
        let settings = Settings {
            server: SocketAddr::from(([127, 0, 0, 1], 9)),
            trips: 20,
            time: Duration::from_millis(1),
        };
        let error = trips(&settings, || Ok(false)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
