//! The kernel's UDP and TCP.

use super::source::Source;
use super::world::{SERVER, World, megabytes, microseconds};
use super::{ProtocolError, Settings};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use weir_lab::net::set_option;

/// How often a server checks whether it shall end.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of a read.
const CHUNK: usize = 64 << 10;
/// Options of tcp(7).
const IPPROTO_TCP: i32 = 6;
const TCP_MAXSEG: i32 = 2;

/// Microseconds of a UDP round trip with as many bytes as a minimal VMTP packet.
pub(super) fn udp_round_trip(world: &World, settings: &Settings) -> Result<f64, ProtocolError> {
    const BYTES: usize = 68;
    world.run(
        |ended, ready| {
            let socket = UdpSocket::bind(SERVER)?;
            socket.set_read_timeout(Some(POLL_INTERVAL))?;
            ready(());
            let mut buffer = [0; 2048];
            while !ended.load(Relaxed) {
                if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                    socket.send_to(&buffer[..len], from)?;
                }
            }
            Ok(())
        },
        |()| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(SERVER)?;
            socket.set_read_timeout(Some(Duration::from_secs(2)))?;
            let mut buffer = [0; 2048];
            microseconds(settings.time, || {
                socket.send(&[7; BYTES])?;
                socket.recv(&mut buffer)?;
                Ok(())
            })
        },
    )
}

/// Bytes of a segment so that its packet has this many, without TCP options but
/// timestamps.
fn segment_of(packet_bytes: i32) -> i32 {
    packet_bytes - 40
}

/// Megabytes a second of a source by TCP, with packets of at most this many bytes if given.
pub(super) fn tcp(
    world: &World,
    settings: &Settings,
    source: &mut Source,
    packet_bytes: Option<i32>,
) -> Result<f64, ProtocolError> {
    let limit = move |socket: &dyn AsFd| match packet_bytes {
        Some(bytes) => set_option(socket.as_fd(), IPPROTO_TCP, TCP_MAXSEG, segment_of(bytes)),
        None => Ok(()),
    };
    world.run(
        |ended, ready| {
            let listener = TcpListener::bind(SERVER)?;
            limit(&listener)?;
            ready(());
            let (mut stream, _) = listener.accept()?;
            stream.set_write_timeout(Some(POLL_INTERVAL))?;
            while !ended.load(Relaxed) {
                match stream.write(source.next()?) {
                    Ok(count) => source.consume(count),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // The client has ended.
                    Err(_) => break,
                }
            }
            Ok(())
        },
        |()| {
            let mut stream = TcpStream::connect(SERVER)?;
            limit(&stream)?;
            let mut buffer = vec![0; CHUNK];
            megabytes(settings.time, || Ok(stream.read(&mut buffer)?))
        },
    )
}

/// Characters a second by TCP that a display of this speed shows.
pub(super) fn tcp_display(
    world: &World,
    time: Duration,
    display: &super::stream::Display,
) -> Result<f64, ProtocolError> {
    world.run(
        |ended, ready| {
            let listener = TcpListener::bind(SERVER)?;
            ready(());
            let (mut stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(POLL_INTERVAL))?;
            while !ended.load(Relaxed) {
                match stream.write(&super::stream::LINE) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
            }
            Ok(())
        },
        |()| {
            let mut stream = TcpStream::connect(SERVER)?;
            let mut buffer = [0; 512];
            display.run(
                time,
                |limit| Ok(stream.read(&mut buffer[..limit.min(512)])?),
            )
        },
    )
}
