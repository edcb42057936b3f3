//! An ordinary program, client and server, whose sockets are those of the standard library: it knows
//! nothing of weir.

use super::SIZES;
use crate::error::CliError;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// The program: an echo and a sink, and who uses them.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    side: Side,
}

#[derive(clap::Subcommand, Debug)]
enum Side {
    /// Serve at an address
    Serve { at: SocketAddr },
    /// Measure the server at an address
    Measure {
        at: SocketAddr,
        /// Round trips
        trips: u32,
        /// Milliseconds of each throughput
        each: u64,
    },
}

/// Time limit of a call, and for the server to listen.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a read.
const CHUNK: usize = 64 << 10;
/// The first byte of a connection: send back what comes, or count it until its end.
const ECHO: u8 = 0;
const SINK: u8 = 1;

/// What the client prints.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Measured {
    /// Medians of one-byte round trips in µs: TCP, UDP.
    pub(super) round_trip_us: [f64; 2],
    /// Gb/s by TCP, for each of [`SIZES`].
    pub(super) gbit_s: Vec<f64>,
}

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    match args.side {
        Side::Serve { at } => serve(at).map_err(CliError::run),
        Side::Measure { at, trips, each } => {
            let measured = measure(at, trips, Duration::from_millis(each));
            let text = serde_json::to_string(&measured.map_err(CliError::run)?);
            writeln!(std::io::stdout(), "{}", text.map_err(CliError::run)?)
                .map_err(CliError::output)
        }
    }
}

fn serve(at: SocketAddr) -> std::io::Result<()> {
    let datagrams = UdpSocket::bind(at)?;
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = datagrams.recv_from(&mut buffer) {
            let _ = datagrams.send_to(&buffer[..len], from);
        }
    });
    for stream in TcpListener::bind(at)?.incoming() {
        // A client that goes is no failure.
        let _ = answer(stream?);
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut kind, mut buffer) = ([0], vec![0; CHUNK]);
    stream.read_exact(&mut kind)?;
    let mut sum = 0_u64;
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            count if kind == [ECHO] => stream.write_all(&buffer[..count])?,
            count => sum += count as u64,
        }
    }
    stream.write_all(&sum.to_be_bytes())
}

fn measure(at: SocketAddr, trips: u32, each: Duration) -> std::io::Result<Measured> {
    let mut echo = connect(at, ECHO)?;
    let tcp = median_us(trips, || {
        echo.write_all(&[1])?;
        echo.read_exact(&mut [0])
    })?;
    drop(echo);
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(at)?;
    let udp = median_us(trips, || {
        socket.send(&[1])?;
        socket.recv(&mut [0]).map(drop)
    })?;
    let rates = SIZES.into_iter().map(|size| rate(at, size, each));
    Ok(Measured {
        round_trip_us: [tcp, udp],
        gbit_s: rates.collect::<std::io::Result<_>>()?,
    })
}

/// Connects once the server listens.
fn connect(at: SocketAddr, kind: u8) -> std::io::Result<TcpStream> {
    let deadline = Instant::now() + PATIENCE;
    let mut stream = loop {
        match TcpStream::connect(at) {
            Ok(stream) => break stream,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                if Instant::now() >= deadline {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&[kind])?;
    Ok(stream)
}

/// The median of round trips, after some to warm up.
fn median_us(trips: u32, mut trip: impl FnMut() -> std::io::Result<()>) -> std::io::Result<f64> {
    for _ in 0..trips / 10 {
        trip()?;
    }
    let mut times = Vec::with_capacity(trips as usize);
    for _ in 0..trips {
        let began = Instant::now();
        trip()?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Gb/s of messages of `size` bytes, until the server has all of them.
fn rate(at: SocketAddr, size: usize, time: Duration) -> std::io::Result<f64> {
    let mut stream = connect(at, SINK)?;
    let message = vec![7; size];
    let (began, mut sent) = (Instant::now(), 0_u64);
    while began.elapsed() < time {
        for _ in 0..16 {
            stream.write_all(&message)?;
            sent += size as u64;
        }
    }
    stream.shutdown(Shutdown::Write)?;
    let mut sum = [0; 8];
    stream.read_exact(&mut sum)?;
    if u64::from_be_bytes(sum) != sent {
        return Err(std::io::Error::other("the server has another sum"));
    }
    Ok(sent as f64 * 8.0 / began.elapsed().as_secs_f64() / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program itself, with the kernel's sockets.
    #[test]
    fn client_and_server_agree() {
        // An address of its own: between the two binds nobody else takes the port.
        let free = TcpListener::bind("127.19.96.7:0").unwrap();
        let at = free.local_addr().unwrap();
        drop(free);
        std::thread::spawn(move || serve(at));
        let measured = measure(at, 20, Duration::from_millis(5)).unwrap();
        assert!(measured.round_trip_us.iter().all(|time| *time > 0.0));
        assert_eq!(measured.gbit_s.len(), SIZES.len());
        assert!(measured.gbit_s.iter().all(|rate| *rate > 0.0));
    }
}
